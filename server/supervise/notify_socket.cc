#include "server/supervise/notify_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "proto/wire/rights.h"
#include "server/session/directory_lock.h"
#include "server/session/runtime_dir.h"

namespace iris::server {
namespace {

constexpr char kFolder[] = "/.supervisor";
constexpr char kSocket[] = "/notify";
constexpr size_t kMaxTextBytes = 8192;
constexpr int kAttempts = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<NotifySocket>> NotifySocket::Open(const std::string& runtime_dir) {
  std::unique_ptr<NotifySocket> made(new NotifySocket());
  made->text_.resize(kMaxTextBytes);
  made->runtime_dir_ = runtime_dir;
  while (made->runtime_dir_.size() > 1 && absl::EndsWith(made->runtime_dir_, "/")) {
    made->runtime_dir_.pop_back();
  }
  made->folder_ = absl::StrCat(made->runtime_dir_, kFolder);
  made->path_ = absl::StrCat(made->folder_, kSocket);
  if (made->path_.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("runtime directory ", made->runtime_dir_,
                                                   ": its path is too long for a Unix socket"));
  }
  const absl::Status opened = made->OpenFolder();
  if (!opened.ok()) return opened;
  const absl::Status bound = made->Bind();
  if (!bound.ok()) return bound;
  return made;
}

absl::Status NotifySocket::OpenFolder() {
  const absl::StatusOr<bool> made = MakeRuntimeDirectory(runtime_dir_);
  if (!made.ok()) return made.status();
  made_runtime_dir_ = made_runtime_dir_ || *made;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (mkdir(folder_.c_str(), 0700) == 0) {
      // The umask may have removed rights, even the owner's.
      if (chmod(folder_.c_str(), 0700) != 0 && errno != ENOENT) {
        return wire::ErrnoStatus(errno, absl::StrCat("set the mode of ", folder_));
      }
    } else if (errno != EEXIST) {
      return wire::ErrnoStatus(errno, absl::StrCat("make ", folder_));
    }
    struct stat info = {};
    if (lstat(folder_.c_str(), &info) != 0) {
      if (errno == ENOENT) continue;  // its supervisor has just ended
      return wire::ErrnoStatus(errno, absl::StrCat("look at ", folder_));
    }
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 07777) != 0700) {
      return absl::PermissionDeniedError(
          absl::StrCat(folder_, " is not a private directory (0700) of this user: remove it"));
    }
    absl::StatusOr<wire::UniqueFd> lock = LockDirectory(folder_);
    if (lock.ok()) {
      lock_ = *std::move(lock);
      return absl::OkStatus();
    }
    if (!absl::IsNotFound(lock.status())) return lock.status();
  }
  return absl::UnavailableError(absl::StrCat(folder_, " keeps being removed"));
}

absl::Status NotifySocket::Bind() {
  unlink(path_.c_str());  // remains of a supervisor that died here
  wire::UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return wire::ErrnoStatus(errno, absl::StrCat("make a socket for ", path_));
  // Set before the first message can arrive, so that every message names its sender.
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("turn on SO_PASSCRED of ", path_));
  }
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  struct stat info = {};
  if (bind(fd.get(), reinterpret_cast<const struct sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path_.c_str(), 0600) != 0 || lstat(path_.c_str(), &info) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("bind ", path_));
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  socket_ = std::move(fd);
  return absl::OkStatus();
}

NotifySocket::~NotifySocket() {
  if (HoldsFolder()) {
    unlink(path_.c_str());
    // Removed while still locked: a process that waits for the lock then finds another file.
    unlink(absl::StrCat(folder_, "/", kLockName).c_str());
    rmdir(folder_.c_str());
  }
  if (made_runtime_dir_) rmdir(runtime_dir_.c_str());
}

bool NotifySocket::Receive(NotifyDatagram* datagram) {
  wire::Rights rights;
  const ssize_t n =
      wire::ReceiveRights(socket_.get(), text_.data(), text_.size(), MSG_DONTWAIT, &rights);
  if (n < 0) return false;
  datagram->sender = rights.sender.pid;
  datagram->whole = (rights.flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  datagram->text = std::string_view(text_.data(), static_cast<size_t>(n));
  datagram->fds = std::move(rights.fds);
  return true;
}

bool NotifySocket::IsInPlace() const {
  struct stat info = {};
  return lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

bool NotifySocket::HoldsFolder() const {
  struct stat held = {}, named = {};
  return lock_.valid() && fstat(lock_.get(), &held) == 0 &&
         lstat(absl::StrCat(folder_, "/", kLockName).c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

absl::Status NotifySocket::OpenAgain() {
  if (!HoldsFolder()) {
    // If another supervisor has the folder now, its lock is on another file.
    wire::UniqueFd old = std::move(lock_);
    const absl::Status opened = OpenFolder();
    if (!opened.ok()) {
      lock_ = std::move(old);
      return opened;
    }
  }
  return Bind();
}

}  // namespace iris::server
