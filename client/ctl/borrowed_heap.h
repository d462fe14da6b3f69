// Reads a rank's heap from outside its job, with this process's own means: irisd lends the memory
// (Borrow), and the driver of its devices maps it here, read-only and for a moment. On GPUs this is
// what irisd cannot do, because it keeps no context there. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace iris::ctl {

struct HeapPlace {
  std::string job;
  uint32_t rank = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;  // not 0
};

// The bytes as they are now; the ranks may change them meanwhile. `timeout` bounds what irisd takes
// to answer. kNotFound: no such job, rank or memory. kFailedPrecondition: this process finds no
// device of irisd's kind. Else see internal::SessionClient::Connect.
absl::StatusOr<std::string> ReadHeap(const std::string& runtime_dir, const HeapPlace& place,
                                     absl::Duration timeout = absl::Seconds(10));

}  // namespace iris::ctl
