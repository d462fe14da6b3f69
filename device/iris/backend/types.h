// Types that all backends and the code that uses them share. C++17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "iris/status_code.h"

namespace iris {

// The threads that surely see an operation: of a block, a device, or all devices and the host.
enum class Scope { kBlock, kDevice, kSystem };

// Memory order of one operation, with the meaning of C++20. kSeqCst is for Fence.
enum class Order { kRelaxed, kAcquire, kRelease, kAcqRel, kSeqCst };

enum class AtomicOp { kAdd, kSub, kExchange, kAnd, kOr, kXor, kMin, kMax };

// Cache use of a bulk access. kStreaming: the data is used once. kVolatile: reads the data as its
// owner wrote it, not an older copy of a cache.
enum class CacheHint { kDefault, kStreaming, kVolatile };

// The unit of bulk copies, aligned to 16 bytes. It is not single-copy atomic.
struct alignas(16) Bytes16 {
  uint64_t lo = 0;
  uint64_t hi = 0;
};

// Rows of equal length to copy. `*_pitch_bytes` is the distance between the beginnings of two rows.
struct RowsToCopy {
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t dst_pitch_bytes = 0;
  uint64_t src_pitch_bytes = 0;
};

// The result of the device layer's host functions. It needs no library. `what` is a string literal.
struct [[nodiscard]] Result {
  StatusCode code = StatusCode::kOk;
  const char* what = "";
  bool ok() const { return code == StatusCode::kOk; }
};

// Shape of a launch. It has one dimension; kernels that need more divide the index.
struct LaunchConfig {
  uint32_t grid = 1;          // blocks; all of them are co-resident
  uint32_t block = 1;         // threads a block, 1 to 1,024
  uint32_t shared_bytes = 0;  // for DynamicShared()
  // The kernel may begin while the previous one on the stream runs. It must have been prepared, and
  // must call AwaitKernelBefore() first.
  bool early = false;
};

inline constexpr uint32_t kMaxBlockThreads = 1024;

}  // namespace iris
