#include "server/session/directory_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

constexpr mode_t kMode = 0600;
constexpr int kAttempts = 100;
constexpr int kWaitsMost = 1000;
constexpr useconds_t kWaitUs = 1000;

// Returns the pid that the holder of a lock file wrote into the file; 0 if it cannot be read.
long LockHolder(int fd) {
  char text[32] = {};
  const ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
  return n > 0 ? strtol(text, nullptr, 10) : 0;
}

// Returns true if the holder has ended. Its lock remains while a child that it had just forked has
// not reached its exec, which closes the descriptor.
bool HolderIsGone(long holder) {
  return holder > 0 && kill(static_cast<pid_t>(holder), 0) != 0 && errno == ESRCH;
}

bool OpenToOthers(const struct stat& info) { return (info.st_mode & 077) != 0; }

absl::Status NotOurs(const std::string& path, const struct stat& info) {
  const std::string what =
      S_ISREG(info.st_mode)
          ? absl::StrCat("belongs to uid ", info.st_uid, ", who could keep irisd from starting")
          : std::string("is not a plain file");
  return absl::PermissionDeniedError(absl::StrCat(
      "lock ", path, " ", what, ": make sure that no irisd serves this directory, and remove it"));
}

// Opens or makes the file. Returns an invalid descriptor if the file was removed meanwhile.
absl::StatusOr<wire::UniqueFd> OpenLock(const std::string& path) {
  wire::UniqueFd made(
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (made.valid()) {
    // A umask can remove rights, even the owner's.
    if (fchmod(made.get(), kMode) != 0) {
      return wire::ErrnoStatus(errno, absl::StrCat("set the mode of ", path));
    }
    return made;
  }
  if (errno != EEXIST) return wire::ErrnoStatus(errno, absl::StrCat("make ", path));
  // To open a device or a pipe may have side effects, so check the type first.
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return wire::UniqueFd();
    return wire::ErrnoStatus(errno, absl::StrCat("look at ", path));
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) return NotOurs(path, info);
  wire::UniqueFd found(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!found.valid() && errno != ENOENT) {
    return wire::ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  return found;
}

absl::Status HeldByAnother(const std::string& directory, int fd, const struct stat& info) {
  const long holder = LockHolder(fd);
  std::string text =
      absl::StrCat("another irisd", holder > 0 ? absl::StrCat(" (pid ", holder, ")") : "",
                   " serves ", directory, ": stop it, or give another --runtime-dir");
  if (OpenToOthers(info)) {
    absl::StrAppendFormat(&text,
                          ". If there is no such irisd, another user holds the lock of one that "
                          "died: its mode, %03o, "
                          "lets others open it. Then remove %s/%s",
                          info.st_mode & 0777, directory, kLockName);
  }
  return absl::AlreadyExistsError(text);
}

}  // namespace

absl::StatusOr<wire::UniqueFd> LockDirectory(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kLockName);
  // The holder removes the file when it ends. A lock on a removed file is useless: check again.
  int waits = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    absl::StatusOr<wire::UniqueFd> fd = OpenLock(path);
    if (!fd.ok()) return fd.status();
    if (!fd->valid()) continue;
    struct stat locked = {}, named = {};
    if (fstat(fd->get(), &locked) != 0) {
      return wire::ErrnoStatus(errno, absl::StrCat("look at ", path));
    }
    if (flock(fd->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return wire::ErrnoStatus(errno, absl::StrCat("lock ", path));
      if (!OpenToOthers(locked) && HolderIsGone(LockHolder(fd->get())) && waits < kWaitsMost) {
        ++waits;
        --attempt;
        usleep(kWaitUs);
        continue;
      }
      return HeldByAnother(directory, fd->get(), locked);
    }
    if (lstat(path.c_str(), &named) != 0 || locked.st_ino != named.st_ino ||
        locked.st_dev != named.st_dev) {
      continue;
    }
    if (OpenToOthers(locked)) {
      // Another process may have the file open and could lock it after this irisd. While this irisd
      // has it locked, no other irisd takes it.
      if (unlink(path.c_str()) != 0) {
        return wire::ErrnoStatus(errno, absl::StrCat("replace ", path));
      }
      continue;
    }
    // The pid is only for messages, so a full file system may prevent the write.
    const std::string pid = absl::StrCat(getpid(), "\n");
    if (pwrite(fd->get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()) ||
        ftruncate(fd->get(), static_cast<off_t>(pid.size())) != 0) {
      (void)!ftruncate(fd->get(), 0);  // another process's pid may remain
    }
    return fd;
  }
  return absl::UnavailableError(absl::StrCat("lock ", path, ": it keeps being removed"));
}

}  // namespace iris::server
