#include "device/driver/quirks.h"

#include "absl/strings/str_cat.h"
#include "device/driver/hip_api.h"

namespace iris::driver {
namespace {

constexpr int Rocm(int major, int minor) { return major * 10'000'000 + minor * 100'000; }
constexpr int Cuda(int major, int minor) { return major * 1'000 + minor * 10; }

// Earlier versions name devices in partitions differently, or do not register read-only pages.
constexpr int kCudaMinimum = Cuda(11, 4);
// In earlier versions hipMemAllocationProp has another layout, or memory cannot be exported.
constexpr int kRocmMinimum = Rocm(6, 1);

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

std::string VersionText(BackendKind kind, int version) {
  if (kind == BackendKind::kCuda) return absl::StrCat(version / 1'000, ".", version % 1'000 / 10);
  return absl::StrCat(version / 10'000'000, ".", version / 100'000 % 100);
}

absl::Status CheckVersion(BackendKind kind, int version) {
  const bool cuda = kind == BackendKind::kCuda;
  const int minimum = cuda ? kCudaMinimum : kRocmMinimum;
  if (version >= minimum) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the installed driver is too old: it speaks ", cuda ? "CUDA " : "ROCm ",
      VersionText(kind, version), ", needed is ", VersionText(kind, minimum), " or newer"));
}

Quirks QuirksOf(BackendKind kind, int version) {
  Quirks q;
  q.allocation_type = hipMemAllocationTypePinned;
  q.granularity_floor_bytes = 2 * kMiB;
  if (kind == BackendKind::kCuda) {
    q.register_read_only = true;
    // With 13.0 and eight devices, mapping memory of the first peer takes 10 ms, of further peers
    // 1 ms, and 0.1 ms once other memory of the peer is mapped.
    q.links = true;
    return q;
  }
  // A pointer until 7.0, a value from 7.1 on. The wrong one is a crash, not an error.
  q.import_takes_pointer = version < Rocm(7, 1);
  // Import only stores the descriptor; the first hipMemSetAccess looks up its memory.
  q.keep_imported_fd = true;
  // 7.0 to 7.2 check the range against the mappings from the start of the reservation.
  q.access_from_base = version >= Rocm(7, 0) && version < Rocm(7, 14);
  // Memory is not freed while its address range is reserved. access_from_base needs this, too.
  q.reservation_per_piece = true;
  // Needed with 7.14, and harmless with earlier versions.
  q.grant_owner_last = true;
  q.uses_current_device = true;
  // Builds from this one on count holds of hipMemRetainAllocationHandle.
  q.retain_is_not_counted = version < Rocm(7, 12) + 60'540;
  // Some versions of the kernel driver do not clear memory between processes.
  q.zero_new_memory = true;
  // CUDA's read-only bit means coarse-grained here, which would hide the abort word.
  q.register_read_only = false;
  // Until 7.1 pinned memory is fine-grained enough for flags; from 7.2 on it must be requested.
  if (version >= Rocm(7, 2)) q.allocation_type = hipMemAllocationTypeUncached;
  return q;
}

}  // namespace iris::driver
