#include "device/driver/vmm_share.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "device/base/bytes.h"
#include "device/base/unique_fd.h"

namespace iris::driver {
namespace {

// Segments are refused if fewer descriptors than this remain: the vendors' libraries need some, and
// report a lack of descriptors as another error.
constexpr int kSpareDescriptors = 32;

// The platform's words for messages.
struct Words {
  const char* create;
  const char* set_access;
  const char* handle_type;
  const char* others;  // what gives other memory
  const char* remedy;
};
const Words& WordsOf(BackendKind kind) {
  static constexpr Words kCudaWords = {
      "cuMemCreate", "cuMemSetAccess", "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
      "cudaMalloc, cudaMallocAsync, cudaMallocManaged and cudaMallocHost",
      "allocate it with cuMemCreate and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (PyTorch 2.5 and "
      "newer does so with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or copy it into the "
      "heap"};
  static constexpr Words kHipWords = {
      "hipMemCreate", "hipMemSetAccess", "hipMemHandleTypePosixFileDescriptor",
      "hipMalloc, hipMallocAsync, hipMallocManaged and hipHostMalloc",
      "allocate it with hipMemCreate and hipMemHandleTypePosixFileDescriptor, or copy it into the "
      "heap"};
  return kind == BackendKind::kCuda ? kCudaWords : kHipWords;
}

// Holds the library's handle of mapped memory.
class RetainedHandle {
 public:
  RetainedHandle(const SharePlatform& platform, uint64_t address) : platform_(platform) {
    error_ = platform.api.RetainHandle(&handle_, reinterpret_cast<void*>(address));
  }
  ~RetainedHandle() {
    if (error_ == hipSuccess && !platform_.quirks.retain_is_not_counted) {
      platform_.api.hipMemRelease(handle_);
    }
  }
  RetainedHandle(const RetainedHandle&) = delete;
  RetainedHandle& operator=(const RetainedHandle&) = delete;

  hipError_t error() const { return error_; }
  hipMemGenericAllocationHandle_t get() const { return handle_; }

 private:
  const SharePlatform& platform_;
  hipMemGenericAllocationHandle_t handle_ = 0;
  hipError_t error_ = hipSuccess;
};

// One call of ShareMappedMemory.
class Sharing {
 public:
  Sharing(const SharePlatform& platform, std::string what)
      : platform_(platform), words_(WordsOf(platform.kind)), what_(std::move(what)) {}

  // Returns the piece that contains `address`, without a descriptor yet.
  absl::StatusOr<SharedPiece> PieceAt(uint64_t address) const {
    void* base = nullptr;
    size_t bytes = 0;
    hipError_t error =
        platform_.api.hipMemGetAddressRange(&base, &bytes, reinterpret_cast<void*>(address));
    // The libraries know only the bounds of memory that a device may use.
    if (IsUnknown(error) && RetainedHandle(platform_, address).error() == hipSuccess) {
      return Refuse(absl::StrFormat(
          "the memory at %#x is mapped, but no device may use it yet: call %s first", address,
          words_.set_access));
    }
    if (IsUnknown(error)) {
      return Refuse(absl::StrFormat(
          "at %#x this process has no memory of a device: it is host memory, or nothing is mapped "
          "there; %s",
          address, words_.remedy));
    }
    if (error != hipSuccess) return Error(error);
    SharedPiece piece;
    piece.address = reinterpret_cast<uint64_t>(base);
    piece.bytes = bytes;
    if (address < piece.address || address - piece.address >= bytes) {
      return absl::InternalError(
          absl::StrFormat("%s: the library says that %#x is in the %d bytes from %#x on", what_,
                          address, bytes, piece.address));
    }
    const std::string memory = Describe(piece, address);
    const RetainedHandle handle(platform_, address);
    if (IsUnknown(handle.error())) {
      // With HIP, memory that the device may not use has the same error.
      const std::string no_access =
          platform_.kind == BackendKind::kCuda
              ? ""
              : absl::StrCat(", or device ", platform_.device, " may not use it yet (",
                             words_.set_access, ")");
      return Refuse(absl::StrCat(memory, " was not created by ", words_.create, " (", words_.others,
                                 " give other memory)", no_access, "; ", words_.remedy));
    }
    if (handle.error() != hipSuccess) return Error(handle.error());
    hipMemAllocationProp prop;
    error = platform_.api.hipMemGetAllocationPropertiesFromHandle(&prop, handle.get());
    if (error != hipSuccess) return Error(error);
    if (absl::Status s = CheckProperties(prop, memory); !s.ok()) return s;
    if (piece.address % platform_.granularity_bytes != 0 ||
        bytes % platform_.granularity_bytes != 0) {
      return Refuse(absl::StrFormat(
          "%s is not at a multiple of %s, or is not a multiple of them long: map and create "
          "it in this granularity, or copy it into the heap",
          memory, base::SizeText(platform_.granularity_bytes)));
    }
    return piece;
  }

  absl::StatusOr<base::UniqueFd> Export(const SharedPiece& piece) const {
    if (absl::Status s = CheckDescriptors(-1, what_); !s.ok()) return s;
    const RetainedHandle handle(platform_, piece.address);
    if (handle.error() != hipSuccess) return Error(handle.error());
    int fd = -1;
    const hipError_t error = platform_.api.hipMemExportToShareableHandle(
        &fd, handle.get(), hipMemHandleTypePosixFileDescriptor, 0);
    if (IsUnknown(error)) {
      return Refuse(absl::StrCat(Describe(piece, piece.address),
                                 " cannot be exported: ", HipErrorText(platform_.api, error),
                                 "; memory that another process created, a heap of Iris included, "
                                 "can be lent by its creator alone"));
    }
    if (error != hipSuccess || fd < 0) return Error(error != hipSuccess ? error : hipErrorUnknown);
    base::UniqueFd owned(fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InternalError(
          absl::StrCat(what_, ": descriptor ", fd, ": ", std::generic_category().message(errno)));
    }
    return owned;
  }

  absl::Status Refuse(absl::string_view why) const { return absl::InvalidArgumentError(why); }

 private:
  static std::string Describe(const SharedPiece& piece, uint64_t address) {
    return absl::StrFormat("the memory at %#x (%d bytes from %#x on)", address, piece.bytes,
                           piece.address);
  }

  // Returns true if the library does not know the address, or not as memory of the requested kind.
  static bool IsUnknown(hipError_t error) {
    return error == hipErrorInvalidValue || error == hipErrorInvalidDevicePointer ||
           error == hipErrorInvalidHandle || error == hipErrorNotFound;
  }

  absl::Status Error(hipError_t error) const {
    if (error != hipErrorNotSupported) return HipStatus(platform_.api, error, what_);
    return absl::UnimplementedError(absl::StrCat(
        what_, ": the installed driver's library cannot tell what is behind an address (",
        HipErrorText(platform_.api, error),
        "): install a newer driver, or copy the data into the heap"));
  }

  absl::Status CheckProperties(const hipMemAllocationProp& prop, absl::string_view memory) const {
    if (prop.location.type != hipMemLocationTypeDevice) {
      return Refuse(absl::StrCat(memory, " is not a device's (it is of location type ",
                                 prop.location.type, "): create it on device ", platform_.device,
                                 ", or copy it into the heap"));
    }
    if (prop.location.id != platform_.device) {
      return Refuse(absl::StrCat(memory, " is on device ", prop.location.id,
                                 ", and this process lends memory of its device ", platform_.device,
                                 " alone: create it there, or copy it into the heap"));
    }
    if ((prop.requestedHandleTypes & hipMemHandleTypePosixFileDescriptor) != 0) {
      return absl::OkStatus();
    }
    const char* const asked = prop.requestedHandleTypes == 0
                                  ? "no shareable handle, or by another process"
                              : (prop.requestedHandleTypes & hipMemHandleTypeFabric) != 0
                                  ? "fabric handles alone (PyTorch does so where these work)"
                                  : "handles of another type alone";
    return Refuse(absl::StrCat(memory, " was created for ", asked, ", and not with ",
                               words_.handle_type, ", which lending needs; ", words_.remedy));
  }

  const SharePlatform& platform_;
  const Words& words_;
  const std::string what_;
};

}  // namespace

// The kernel returns the lowest free number, so a number near the limit means that few remain.
absl::Status CheckDescriptors(int any_fd, absl::string_view what) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  const base::UniqueFd probe(any_fd >= 0 ? fcntl(any_fd, F_DUPFD_CLOEXEC, 0)
                                         : open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!probe.valid() && errno != EMFILE) return absl::OkStatus();
  if (probe.valid() && static_cast<rlim_t>(probe.get()) + kSpareDescriptors < limit.rlim_cur) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      what, ": nearly all of this process's ", limit.rlim_cur,
      " descriptors are open, and each segment needs one: raise the limit (LimitNOFILE of "
      "the service, ulimit -n), or use fewer and larger segments"));
}

absl::StatusOr<std::vector<SharedPiece>> ShareMappedMemory(const SharePlatform& platform,
                                                           uint64_t address, uint64_t bytes,
                                                           size_t max_pieces) {
  const std::string what = absl::StrFormat("share %s at %#x", base::SizeText(bytes), address);
  const Sharing sharing(platform, what);
  if (address == 0 || bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() - address) {
    return sharing.Refuse(absl::StrFormat("at %#x there is no such range of memory", address));
  }
  std::vector<SharedPiece> pieces;
  std::vector<base::UniqueFd> fds;
  for (uint64_t at = address; at < address + bytes;) {
    if (pieces.size() == max_pieces) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%s: it lies in more than %d allocations, of which each takes a descriptor: lend less at "
          "a time, or memory of fewer and larger allocations",
          what, max_pieces));
    }
    const absl::StatusOr<SharedPiece> piece = sharing.PieceAt(at);
    if (!piece.ok()) return piece.status();
    if (!pieces.empty() && piece->address != at) {
      return absl::InternalError(absl::StrFormat(
          "%s: the library says that the allocation at %#x begins at %#x, inside the one before it",
          what, at, piece->address));
    }
    pieces.push_back(*piece);
    at = piece->address + piece->bytes;
  }
  // Export after all pieces were checked, because some versions export an allocation only once.
  for (const SharedPiece& piece : pieces) {
    absl::StatusOr<base::UniqueFd> fd = sharing.Export(piece);
    if (!fd.ok()) return fd.status();
    fds.push_back(*std::move(fd));
  }
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].fd = fds[i].Release();
  return pieces;
}

}  // namespace iris::driver
