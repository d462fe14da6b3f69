// AllocationLabel: the name, dtype and shape of an allocation, in one block of memory, since a job
// has up to a million. Immutable, and movable alone.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/strings/string_view.h"
#include "server/job/operation_spec.h"

namespace iris::server {

class AllocationLabel {
 public:
  AllocationLabel() = default;  // of an allocation that has nothing of that
  // At most as long as CheckAllocationName and CheckTensor allow.
  AllocationLabel(absl::string_view name, const TensorInfo& tensor);

  // Valid as long as the label, also after a move of it.
  absl::string_view name() const;
  TensorInfo tensor() const;

 private:
  // Bytes of the name, bytes of the dtype, dimensions; then these.
  static constexpr size_t kHeadBytes = 3;
  size_t head(size_t i) const { return block_ == nullptr ? 0 : block_[i]; }

  std::unique_ptr<unsigned char[]> block_;
};

}  // namespace iris::server
