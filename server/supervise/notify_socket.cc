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
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "server/session/directory_lock.h"
#include "server/session/runtime_dir.h"

namespace iris::server {
namespace {

constexpr char kFolder[] = "/.supervisor";
constexpr char kSocket[] = "/notify";
constexpr size_t kMaxTextBytes = 8192;
constexpr size_t kMaxDescriptors = 253;  // of one message, by the kernel
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
      // A umask can only take away, also from the owner.
      if (chmod(folder_.c_str(), 0700) != 0 && errno != ENOENT) {
        return wire::ErrnoStatus(errno, absl::StrCat("set the mode of ", folder_));
      }
    } else if (errno != EEXIST) {
      return wire::ErrnoStatus(errno, absl::StrCat("make ", folder_));
    }
    struct stat info = {};
    if (lstat(folder_.c_str(), &info) != 0) {
      if (errno == ENOENT) continue;  // of a supervisor that ended just now
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
  unlink(path_.c_str());  // of a supervisor that died here
  wire::UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return wire::ErrnoStatus(errno, absl::StrCat("make a socket for ", path_));
  // Before the first message can come: every one names its sender.
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
    // Removed while still locked: who waits for it finds another file under the name.
    unlink(absl::StrCat(folder_, "/", kLockName).c_str());
    rmdir(folder_.c_str());
  }
  if (made_runtime_dir_) rmdir(runtime_dir_.c_str());
}

bool NotifySocket::Receive(NotifyDatagram* datagram) {
  datagram->sender = 0;
  datagram->whole = false;
  datagram->text = {};
  datagram->fds.clear();
  union {
    char bytes[CMSG_SPACE(kMaxDescriptors * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    struct cmsghdr aligned;
  } control;
  struct iovec text = {text_.data(), text_.size()};
  struct msghdr header = {};
  header.msg_iov = &text;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof(control.bytes);
  const ssize_t n =
      base::Retry([&] { return recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  if (n < 0) return false;
  for (struct cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
       part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    const size_t bytes = part->cmsg_len - CMSG_LEN(0);
    if (part->cmsg_type == SCM_RIGHTS) {
      for (size_t i = 0; i < bytes / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
        datagram->fds.emplace_back(fd);
      }
    } else if (part->cmsg_type == SCM_CREDENTIALS && bytes >= sizeof(struct ucred)) {
      struct ucred sender = {};
      std::memcpy(&sender, CMSG_DATA(part), sizeof(sender));
      datagram->sender = sender.pid;
    }
  }
  datagram->whole = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  datagram->text = std::string_view(text_.data(), static_cast<size_t>(n));
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
    // Whoever has the folder now has a lock of another file.
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
