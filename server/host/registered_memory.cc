#include "server/host/registered_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

class RegisteredMemory : public driver::PhysicalMemory {
 public:
  RegisteredMemory(driver::BackendKind kind, wire::UniqueFd fd, uint64_t bytes,
                   std::function<void(wire::UniqueFd)> close)
      : PhysicalMemory(bytes), kind_(kind), fd_(std::move(fd)), close_(std::move(close)) {}
  ~RegisteredMemory() override { close_(std::move(fd_)); }

  absl::StatusOr<int> ExportFd(driver::Access access) override {
    if (access == driver::Access::kReadOnly && kind_ == driver::BackendKind::kEmu) {
      const std::string path = absl::StrCat("/proc/self/fd/", fd_.get());
      const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd >= 0) return fd;
      return wire::ErrnoStatus(errno, "open registered memory read-only");
    }
    const int fd = fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return wire::ErrnoStatus(errno, "duplicate the descriptor of registered memory");
    return fd;
  }

  absl::Status Read(uint64_t offset_bytes, absl::Span<uint8_t> out) override {
    if (kind_ != driver::BackendKind::kEmu) {
      return absl::UnimplementedError("irisd cannot read memory of GPUs: borrow it");
    }
    if (offset_bytes > bytes() || out.size() > bytes() - offset_bytes) {
      return absl::InvalidArgumentError("read registered memory: out of range");
    }
    for (size_t done = 0; done < out.size();) {
      const ssize_t n = base::Retry([&] {
        return pread(fd_.get(), out.data() + done, out.size() - done,
                     static_cast<off_t>(offset_bytes + done));
      });
      if (n < 0) return wire::ErrnoStatus(errno, "read registered memory");
      if (n == 0) return absl::DataLossError("read registered memory: it ended early");
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  const driver::BackendKind kind_;
  wire::UniqueFd fd_;
  const std::function<void(wire::UniqueFd)> close_;
};

// Checks that `fd` is a memfd that cannot be resized. Only files in memory have seals, so the calls
// after F_GET_SEALS wait for no file server.
absl::Status CheckEmulated(int fd, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "the descriptor of memory to be registered is no memfd that is sealed against resizing "
        "(F_SEAL_SHRINK and F_SEAL_GROW)");
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0) return wire::ErrnoStatus(errno, "look at registered memory");
  if (info.st_size >= 0 && static_cast<uint64_t>(info.st_size) == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "memory to be registered has ", base::SizeText(static_cast<uint64_t>(info.st_size)),
      ", and the request says ", base::SizeText(bytes)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> KeepRegistered(
    driver::BackendKind kind, const wire::UniqueFd& fd, uint64_t bytes,
    std::function<void(wire::UniqueFd)> close) {
  if (kind == driver::BackendKind::kEmu) {
    if (absl::Status s = CheckEmulated(fd.get(), bytes); !s.ok()) return s;
  }
  wire::UniqueFd own(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!own.valid()) return wire::ErrnoStatus(errno, "keep the descriptor of registered memory");
  return std::make_unique<RegisteredMemory>(kind, std::move(own), bytes, std::move(close));
}

}  // namespace iris::server
