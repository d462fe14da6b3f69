#include "client/base/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {
namespace {

absl::Status Failed(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

// Returns the flags to open a file for writing. A link, a pipe or a device must belong to this user
// or to root (/dev/stdout), because in /tmp any user may have made it.
absl::StatusOr<int> WayToOpen(const std::string& path) {
  constexpr int kWay = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY;
  struct stat there = {};
  if (lstat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode)) return kWay | O_NOFOLLOW;
  if (there.st_uid == geteuid() || there.st_uid == 0) return kWay;
  return absl::PermissionDeniedError(
      absl::StrCat(path, ": it is no file, but a link or the like, and user ", there.st_uid,
                   " has made it: name another file"));
}

}  // namespace

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  const absl::StatusOr<int> way = WayToOpen(path);
  if (!way.ok()) return way.status();
  wire::UniqueFd fd(open(path.c_str(), *way, 0666));
  if (!fd.valid()) return Failed(path, errno);
  // Truncation waits until the kind of the opened file is known.
  struct stat opened = {};
  if (fstat(fd.get(), &opened) != 0) return Failed(path, errno);
  if (S_ISREG(opened.st_mode) && ftruncate(fd.get(), 0) != 0) return Failed(path, errno);
  while (!text.empty()) {
    const ssize_t n = base::Retry([&] { return write(fd.get(), text.data(), text.size()); });
    if (n < 0) return Failed(path, errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  // Some file systems say only now that there is no room.
  return close(fd.Release()) == 0 ? absl::OkStatus() : Failed(path, errno);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(path.c_str(), "re"),
                                                           &std::fclose);
  if (in == nullptr) return Failed(path, errno);
  std::string text;
  char piece[1 << 16];
  for (;;) {
    errno = 0;
    const size_t n = std::fread(piece, 1, sizeof(piece), in.get());
    if (n == 0) break;
    if (n > bytes_max - text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": it has more than ", base::SizeText(bytes_max)));
    }
    text.append(piece, n);
  }
  if (std::ferror(in.get()) != 0) return Failed(path, errno);
  return text;
}

}  // namespace iris::internal
