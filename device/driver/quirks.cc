#include "device/driver/quirks.h"

#include "absl/strings/str_cat.h"
#include "device/driver/hip_api.h"

namespace iris::driver {
namespace {

constexpr int Rocm(int major, int minor) { return major * 10'000'000 + minor * 100'000; }
constexpr int Cuda(int major, int minor) { return major * 1'000 + minor * 10; }

// Below it, libcuda names devices differently inside partitions and cannot register read-only pages
// reliably.
constexpr int kCudaMinimum = Cuda(11, 4);
// Below it, hipMemAllocationProp has another layout, or memory cannot be exported.
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
    // 13.0 on eight devices: 10 ms for the first peer, 1 ms for each further one, against 0.1 ms
    // while a mapping exists.
    q.links = true;
    return q;
  }
  // Pointer until 7.0, value from 7.1: the wrong one is a crash, not an error.
  q.import_takes_pointer = version < Rocm(7, 1);
  // Import only notes the descriptor; the memory behind it is looked up by the first
  // hipMemSetAccess.
  q.keep_imported_fd = true;
  // 7.0 to 7.2 check the range against the mappings from the start of the reservation, whatever
  // address is given.
  q.access_from_base = version >= Rocm(7, 0) && version < Rocm(7, 14);
  // Memory stays taken while the range that it was mapped into is reserved: small ranges that can
  // be freed. Also what access_from_base needs. Costs nothing elsewhere, so it is the same for all
  // versions.
  q.reservation_per_piece = true;
  // Seen with 7.14; harmless before.
  q.grant_owner_last = true;
  q.uses_current_device = true;
  // The first build that counts it.
  q.retain_is_not_counted = version < Rocm(7, 12) + 60'540;
  // Some versions of the kernel driver do not clear memory between processes.
  q.zero_new_memory = true;
  // The bit of CUDA's read-only flag means coarse-grained here, which would hide the abort word
  // from a running kernel.
  q.register_read_only = false;
  // Until 7.1 pinned memory is fine-grained enough for flags; from 7.2 it must be asked for.
  if (version >= Rocm(7, 2)) q.allocation_type = hipMemAllocationTypeUncached;
  return q;
}

}  // namespace iris::driver
