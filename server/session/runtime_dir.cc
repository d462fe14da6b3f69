#include "server/session/runtime_dir.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "server/session/directory_lock.h"

namespace iris::server {
namespace {

constexpr char kPrivate[] = "/.irisd";
// A client that connects to session.sock waits for those before it in the queue. It is short, so a
// flood of connects waits in connect(), each thread once. irisd takes thousands per second.
constexpr int kSessionBacklog = 256;
constexpr size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;  // 107

// Allows only users that the options admit to connect. The socket is at `file` now.
absl::Status SetAccess(const std::string& file, const std::string& path,
                       const RuntimeDirOptions& options) {
  if (options.socket_group.has_value() &&
      chown(file.c_str(), static_cast<uid_t>(-1), *options.socket_group) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("give ", path, " to group ",
                                                 static_cast<uint64_t>(*options.socket_group)));
  }
  if (chmod(file.c_str(), options.socket_mode) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("set the mode of ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsSocket(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0) return S_ISSOCK(info.st_mode);
  if (errno == ENOENT) return false;
  return wire::ErrnoStatus(errno, absl::StrCat("look at ", path));
}

bool IsListening(int fd, int type, const std::string& bound_to) {
  const auto is = [fd](int option, int wanted) {
    int value = 0;
    socklen_t length = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &length) == 0 && value == wanted;
  };
  if (fd < 0 || !is(SO_DOMAIN, AF_UNIX) || !is(SO_TYPE, type) || !is(SO_ACCEPTCONN, 1)) {
    return false;
  }
  struct sockaddr_un address = {};
  socklen_t length = sizeof(address);
  return getsockname(fd, reinterpret_cast<struct sockaddr*>(&address), &length) == 0 &&
         strnlen(address.sun_path, sizeof(address.sun_path)) == bound_to.size() &&
         memcmp(address.sun_path, bound_to.data(), bound_to.size()) == 0;
}

}  // namespace

absl::StatusOr<std::string> DefaultRuntimeDir() {
  if (geteuid() == 0) return std::string("/run/iris");
  const char* const xdg = getenv("XDG_RUNTIME_DIR");
  if (xdg != nullptr && xdg[0] == '/') return absl::StrCat(xdg, "/iris");
  return absl::FailedPreconditionError(
      "no runtime directory: not root, and XDG_RUNTIME_DIR is not set; give --runtime-dir");
}

absl::StatusOr<bool> MakeRuntimeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) {
    // The umask must not hide the sockets from users whom their mode admits.
    if (chmod(path.c_str(), 0755) != 0) {
      return wire::ErrnoStatus(errno, absl::StrCat("set the mode of ", path));
    }
    return true;
  }
  const int error = errno;
  if (error == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat("make runtime directory ", path, ": its parent does not exist"));
  }
  if (error != EEXIST) {
    return wire::ErrnoStatus(error, absl::StrCat("make runtime directory ", path));
  }
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("look at runtime directory ", path));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("runtime directory ", path, " is not a directory"));
  }
  const bool by_everybody = (info.st_mode & S_IWOTH) != 0;
  if (by_everybody || ((info.st_mode & S_IWGRP) != 0 && info.st_gid != getegid())) {
    const std::string who = by_everybody
                                ? "everybody"
                                : absl::StrCat("group ", info.st_gid, ", which is not irisd's own");
    return absl::PermissionDeniedError(
        absl::StrCat("runtime directory ", path, " is writable by ", who,
                     ": they could replace irisd's sockets; take that away (chmod go-w ", path,
                     "), or choose a directory of irisd's own"));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("runtime directory ", path, " belongs to uid ",
                                                    info.st_uid,
                                                    ", who could replace irisd's sockets"));
  }
  return false;
}

absl::StatusOr<std::unique_ptr<RuntimeDir>> RuntimeDir::Create(const RuntimeDirOptions& options,
                                                               Listeners earlier, bool leave) {
  std::unique_ptr<RuntimeDir> dir(new RuntimeDir());
  dir->leave_ = leave;
  dir->path_ = options.path;
  if (dir->path_.empty()) {
    absl::StatusOr<std::string> path = DefaultRuntimeDir();
    if (!path.ok()) return path.status();
    dir->path_ = *std::move(path);
  }
  while (dir->path_.size() > 1 && absl::EndsWith(dir->path_, "/")) dir->path_.pop_back();
  if (dir->path_[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("runtime directory ", dir->path_, ": give an absolute path"));
  }
  const size_t longest = dir->path_.size() + strlen(kPrivate) + 1 + strlen(kSessionSocketName);
  if (longest > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("runtime directory ", dir->path_, ": its path has ", dir->path_.size(),
                     " bytes; at most ", dir->path_.size() - (longest - kMaxSocketPathBytes),
                     " fit, because the path of a Unix socket has at most ", kMaxSocketPathBytes));
  }
  const absl::StatusOr<bool> made = MakeRuntimeDirectory(dir->path_);
  if (!made.ok()) return made.status();
  dir->made_directory_ = *made;
  absl::StatusOr<wire::UniqueFd> lock = LockDirectory(dir->path_);
  if (!lock.ok()) return lock.status();
  dir->lock_ = *std::move(lock);
  const std::string private_dir = dir->path_ + kPrivate;
  if (mkdir(private_dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return wire::ErrnoStatus(errno, absl::StrCat("make ", private_dir));
  }
  dir->made_private_ = true;
  struct stat info = {};
  if (lstat(private_dir.c_str(), &info) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("look at ", private_dir));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(private_dir, " is not a private directory of this user: remove it"));
  }
  absl::StatusOr<Listener> session =
      dir->Listen(kSessionSocketName, SOCK_SEQPACKET, options, std::move(earlier.session));
  if (!session.ok()) return session.status();
  dir->session_listener_ = *std::move(session);
  absl::StatusOr<Listener> admin =
      dir->Listen(kAdminSocketName, SOCK_STREAM, options, std::move(earlier.admin));
  if (!admin.ok()) return admin.status();
  dir->admin_listener_ = *std::move(admin);
  return dir;
}

absl::StatusOr<RuntimeDir::Listener> RuntimeDir::Listen(const char* name, int type,
                                                        const RuntimeDirOptions& options,
                                                        wire::UniqueFd earlier) {
  const std::string hidden = absl::StrCat(path_, kPrivate, "/", name);
  const std::string path = absl::StrCat(path_, "/", name);
  const absl::StatusOr<bool> in_place = IsSocket(path);
  if (!in_place.ok()) return in_place.status();
  if (*in_place && IsListening(earlier.get(), type, hidden)) {
    if (absl::Status s = SetAccess(path, path, options); !s.ok()) return s;
    return Listener{std::move(earlier), /*made=*/false};
  }
  unlink(hidden.c_str());  // remains of an irisd that died here
  wire::UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return wire::ErrnoStatus(errno, absl::StrCat("make a socket for ", path));
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, hidden.data(), hidden.size());
  if (bind(fd.get(), reinterpret_cast<const struct sockaddr*>(&address), sizeof(address)) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("bind ", hidden));
  }
  if (absl::Status s = SetAccess(hidden, path, options); !s.ok()) return s;
  // Set before the first connection can arrive, so that every frame of a session names its sender.
  const int on = type == SOCK_SEQPACKET ? 1 : 0;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("turn on SO_PASSCRED of ", path));
  }
  if (listen(fd.get(), type == SOCK_SEQPACKET ? kSessionBacklog : SOMAXCONN) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("listen on ", path));
  }
  if (rename(hidden.c_str(), path.c_str()) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("put ", path, " into place"));
  }
  return Listener{std::move(fd), /*made=*/true};
}

void RuntimeDir::RemoveSockets() {
  if (!lock_.valid()) return;
  for (const char* name : {kSessionSocketName, kAdminSocketName}) {
    unlink(absl::StrCat(path_, kPrivate, "/", name).c_str());
    unlink(absl::StrCat(path_, "/", name).c_str());
  }
}

RuntimeDir::~RuntimeDir() {
  if (leave_) return;
  if (lock_.valid()) {
    RemoveSockets();
    if (made_private_) rmdir((path_ + kPrivate).c_str());
    // Remove the lock file while it is still locked: a process that waits for the lock then finds
    // another file under the name, and tries again.
    unlink(absl::StrCat(path_, "/", kLockName).c_str());
  }
  if (made_directory_) rmdir(path_.c_str());
}

}  // namespace iris::server
