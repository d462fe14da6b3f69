#include "server/job/allocation_label.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {

AllocationLabel::AllocationLabel(absl::string_view name, const TensorInfo& tensor) {
  static_assert(wire::kMaxAllocationNameBytes < 256 && wire::kMaxDtypeBytes < 256 &&
                wire::kMaxDims < 256);
  const size_t parts[kHeadBytes] = {name.size(), tensor.dtype.size(), tensor.shape.size()};
  if (parts[0] + parts[1] + parts[2] == 0) return;
  IRIS_CHECK(parts[0] <= wire::kMaxAllocationNameBytes && parts[1] <= wire::kMaxDtypeBytes &&
                 parts[2] <= wire::kMaxDims,
             "the label of an allocation has been checked");
  const size_t shape_bytes = parts[2] * sizeof(uint64_t);
  block_.reset(new unsigned char[kHeadBytes + parts[0] + parts[1] + shape_bytes]);
  unsigned char* to = block_.get();
  for (const size_t part : parts) *to++ = static_cast<unsigned char>(part);
  to = std::copy(name.begin(), name.end(), to);
  to = std::copy(tensor.dtype.begin(), tensor.dtype.end(), to);
  if (shape_bytes != 0) memcpy(to, tensor.shape.data(), shape_bytes);
}

absl::string_view AllocationLabel::name() const {
  if (block_ == nullptr) return {};
  return {reinterpret_cast<const char*>(block_.get()) + kHeadBytes, head(0)};
}

TensorInfo AllocationLabel::tensor() const {
  TensorInfo tensor;
  if (block_ == nullptr) return tensor;
  const unsigned char* const dtype = block_.get() + kHeadBytes + head(0);
  tensor.dtype.assign(dtype, dtype + head(1));
  tensor.shape.resize(head(2));
  if (head(2) != 0) memcpy(tensor.shape.data(), dtype + head(1), head(2) * sizeof(uint64_t));
  return tensor;
}

}  // namespace iris::server
