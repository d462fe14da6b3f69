#include "server/session/party_finder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "server/session/peer.h"

namespace iris::server {
namespace {

constexpr int kDeepestNamespace = 32;  // as the kernel allows

// Remembers that a call failed because this process, or the system, lacks something now.
class Lacks {
 public:
  // Returns `value`, or `otherwise` if the call that returned it has failed with errno.
  template <typename T>
  T Look(bool failed, T value, T otherwise) {
    if (!failed) return value;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO) error_ = errno;
    return otherwise;
  }
  int error() const { return error_; }  // 0: no error

 private:
  int error_ = 0;
};

wire::UniqueFd Open(const std::string& path, Lacks* lacks) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  return wire::UniqueFd(lacks->Look(fd < 0, fd, -1));
}

std::string ReadText(const std::string& path, Lacks* lacks) {
  const wire::UniqueFd fd = Open(path, lacks);
  if (!fd.valid()) return "";
  char text[4096];
  const ssize_t n = base::Retry([&] { return read(fd.get(), text, sizeof(text)); });
  return std::string(text, static_cast<size_t>(lacks->Look(n < 0, n, ssize_t{0})));
}

// Returns the inode number of a namespace; 0 if it cannot be read.
uint64_t InodeOf(const std::string& path, Lacks* lacks) {
  struct stat info = {};
  const bool failed = stat(path.c_str(), &info) != 0;
  return lacks->Look<uint64_t>(failed, info.st_ino, 0);
}
uint64_t InodeOf(const wire::UniqueFd& fd) {
  struct stat info = {};
  return fd.valid() && fstat(fd.get(), &info) == 0 ? info.st_ino : 0;
}

// Reads a property of irisd's own namespaces, once. Throws if it cannot.
template <typename T>
T Own(T (*look)(const std::string&, Lacks*), const char* path) {
  Lacks lacks;
  T found = look(path, &lacks);
  if (lacks.error() == 0) return found;
  throw std::system_error(lacks.error(), std::generic_category(), absl::StrCat("look at ", path));
}

// Returns the owner of a user namespace, or nothing if irisd may not read it.
std::optional<uint32_t> OwnerOf(const wire::UniqueFd& user_namespace) {
  uid_t owner = 0;
  if (ioctl(user_namespace.get(), NS_GET_OWNER_UID, &owner) != 0) return std::nullopt;
  return owner;
}

// Walks from the namespace at `path` outwards to irisd's own, and calls `visit(const
// wire::UniqueFd&, inode)` for each. Returns false if irisd may not inspect all of them.
template <typename Visit>
bool Outwards(const std::string& path, uint64_t own, Lacks* lacks, Visit visit) {
  if (InodeOf(path, lacks) == own) return true;  // as for nearly all processes
  wire::UniqueFd fd = Open(path, lacks);
  for (int depth = 0; depth < kDeepestNamespace && fd.valid(); ++depth) {
    const uint64_t at = InodeOf(fd);
    if (at == own) return true;
    visit(fd, at);
    const int parent = ioctl(fd.get(), NS_GET_PARENT);
    fd.Reset(lacks->Look(parent < 0, parent, -1));
  }
  return false;
}

// Returns true if the process is in a PID namespace below that of this /proc, even if irisd may not
// inspect the namespace: the process's status then lists one pid for each namespace.
bool InNestedPidNamespace(int64_t pid, Lacks* lacks) {
  const std::string status = ReadText(absl::StrCat("/proc/", pid, "/status"), lacks);
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, "NSpid:")) continue;
    const std::vector<absl::string_view> numbers =
        absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    return numbers.size() != 1;
  }
  return true;
}

}  // namespace

PartyFinder::PartyFinder()
    : own_uid_(geteuid()),
      own_pid_namespace_(Own<uint64_t>(InodeOf, "/proc/self/ns/pid")),
      own_user_namespace_(Own<uint64_t>(InodeOf, "/proc/self/ns/user")),
      own_uid_map_(Own<std::string>(ReadText, "/proc/self/uid_map")) {}

absl::StatusOr<Party> PartyFinder::Find(int64_t pid, uint32_t uid, int pidfd) const {
  const std::string process = absl::StrCat("/proc/", pid);
  Party party{uid};
  // To make a PID namespace, a process needs the capability in the user namespace that owns it.
  uint64_t pid_container = 0, user_container = 0;
  Lacks lacks;
  const bool pid_known = Outwards(
      process + "/ns/pid", own_pid_namespace_, &lacks, [&](const wire::UniqueFd& fd, uint64_t at) {
        const int opened = ioctl(fd.get(), NS_GET_USERNS);
        const wire::UniqueFd users(lacks.Look(opened < 0, opened, -1));
        if (!users.valid()) return;
        if (InodeOf(users) == own_user_namespace_ || OwnerOf(users) == 0u) pid_container = at;
      });
  const bool user_known = Outwards(process + "/ns/user", own_user_namespace_, &lacks,
                                   [&](const wire::UniqueFd& fd, uint64_t at) {
                                     const std::optional<uint32_t> owner = OwnerOf(fd);
                                     if (owner == 0u) user_container = at;
                                     // The outermost of those inside the innermost that root made.
                                     if (owner.value_or(0) != 0 && user_container == 0) {
                                       party.maker = *owner;
                                     }
                                   });
  if (party.maker == uid) party.maker = 0;
  party.container = pid_container != 0 ? pid_container : user_container;
  // Another user's namespaces may be hidden from an irisd without CAP_SYS_PTRACE. Files that
  // everybody may read still show whether they are irisd's own.
  const bool hidden = (!pid_known && InNestedPidNamespace(pid, &lacks)) ||
                      (!user_known && ReadText(process + "/uid_map", &lacks) != own_uid_map_);
  if (lacks.error() != 0) {
    return wire::ErrnoStatus(lacks.error(), absl::StrCat("look whose process ", pid, " is"));
  }
  if (party.container == 0 && hidden) party.container = Party::kUnknownContainer;
  // If the process still runs, its pid was not reused: all files read under /proc/PID were its own.
  if (ProcessHasEnded(pidfd)) {
    return absl::AbortedError(
        absl::StrCat("process ", pid, ", which connected, has ended: connect again"));
  }
  return party;
}

}  // namespace iris::server
