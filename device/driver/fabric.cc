#include "device/driver/fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "device/base/posix.h"

namespace iris::driver {
namespace {

// The contents of the memfd. Memory of any driver is longer, so it is never taken for a handle.
struct Wrapped {
  char magic[8];
  uint32_t kind;
  uint32_t reserved;
  char handle[kFabricHandleBytes];
};
constexpr char kMagic[] = {'I', 'R', 'I', 'S', 'F', 'A', 'B', '1'};
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

absl::Status WrapError(int error) {
  return absl::Status(
      error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC
          ? absl::StatusCode::kResourceExhausted
          : absl::ErrnoToStatusCode(error),
      absl::StrCat("put a fabric handle into a memfd: ", std::generic_category().message(error)));
}

}  // namespace

absl::StatusOr<base::UniqueFd> WrapFabricHandle(BackendKind kind, absl::string_view handle) {
  if (handle.size() != kFabricHandleBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a fabric handle of ", handle.size(), " bytes: ", kFabricHandleBytes, " are expected"));
  }
  Wrapped wrapped = {};
  std::memcpy(wrapped.magic, kMagic, sizeof(kMagic));
  wrapped.kind = static_cast<uint32_t>(kind);
  std::memcpy(wrapped.handle, handle.data(), handle.size());
  base::UniqueFd fd(memfd_create("iris-fabric-handle", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return WrapError(errno);
  if (base::Retry([&] { return write(fd.get(), &wrapped, sizeof(wrapped)); }) != sizeof(wrapped) ||
      fchmod(fd.get(), 0400) != 0 || fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return WrapError(errno);
  }
  return fd;
}

absl::StatusOr<std::optional<std::string>> UnwrapFabricHandle(BackendKind kind, int fd) {
  struct stat info = {};
  Wrapped wrapped = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != sizeof(wrapped) ||
      fcntl(fd, F_GET_SEALS) < 0 || (fcntl(fd, F_GET_SEALS) & kSeals) != kSeals ||
      base::Retry([&] { return pread(fd, &wrapped, sizeof(wrapped), 0); }) != sizeof(wrapped) ||
      std::memcmp(wrapped.magic, kMagic, sizeof(kMagic)) != 0) {
    return std::nullopt;
  }
  if (wrapped.kind != static_cast<uint32_t>(kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("import memory of another node: its fabric handle is of another kind of "
                     "devices than ",
                     std::string(NameOf(kind)), ": use the same backend on all nodes"));
  }
  return std::string(wrapped.handle, sizeof(wrapped.handle));
}

}  // namespace iris::driver
