#include "server/session/tenant.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "device/base/posix.h"
#include "proto/wire/unique_fd.h"
#include "server/session/attestation.h"

namespace iris::server {
namespace {

constexpr int kDeepestNamespace = 32;  // as the kernel allows

std::string ReadText(const std::string& path) {
  const wire::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  char text[4096];
  const ssize_t n = base::Retry([&] { return read(fd.get(), text, sizeof(text)); });
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

// Inode number of a namespace; 0: it cannot be read.
uint64_t InodeOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}
uint64_t InodeOf(const wire::UniqueFd& fd) {
  struct stat info = {};
  return fd.valid() && fstat(fd.get(), &info) == 0 ? info.st_ino : 0;
}

// True if root, as irisd knows it, made the user namespace.
bool RootMade(const wire::UniqueFd& user_namespace) {
  uid_t owner = 0;
  return ioctl(user_namespace.get(), NS_GET_OWNER_UID, &owner) == 0 && owner == 0;
}

struct OwnNamespaces {
  uint64_t pid;
  uint64_t user;
};

// The nearest namespace around the one at `path`, itself included, that is irisd's own (0) or that
// root made. Nothing: irisd may not look.
std::optional<uint64_t> NearestThatCounts(const std::string& path, bool is_pid_namespace,
                                          const OwnNamespaces& own) {
  const uint64_t inode = InodeOf(path);
  if (inode == 0) return std::nullopt;
  const uint64_t own_inode = is_pid_namespace ? own.pid : own.user;
  if (inode == own_inode) return 0;  // what nearly all are in
  wire::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (int depth = 0; depth < kDeepestNamespace && fd.valid(); ++depth) {
    const uint64_t at = InodeOf(fd);
    if (at == own_inode) return 0;
    if (is_pid_namespace) {
      // Only who has the capability in the user namespace that owns it could make it.
      const wire::UniqueFd owner(ioctl(fd.get(), NS_GET_USERNS));
      if (owner.valid() && (InodeOf(owner) == own.user || RootMade(owner))) return at;
    } else if (RootMade(fd)) {
      return at;
    }
    fd.Reset(ioctl(fd.get(), NS_GET_PARENT));
  }
  return std::nullopt;
}

// Whether the process is in a PID namespace below that of our /proc, where irisd may not look
// closer: its status then lists one number for each.
bool InNestedPidNamespace(int64_t pid) {
  const std::string status = ReadText(absl::StrCat("/proc/", pid, "/status"));
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, "NSpid:")) continue;
    const std::vector<absl::string_view> numbers =
        absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    return numbers.size() != 1;
  }
  return true;
}

}  // namespace

std::string Tenant::Text() const {
  const auto name = [](absl::string_view kind, uint64_t inode) {
    return absl::StrCat(kind, " namespace ",
                        inode == kUnknownNamespace ? "(unknown)" : absl::StrCat(inode));
  };
  std::vector<std::string> namespaces;
  if (pid_namespace != 0) namespaces.push_back(name("PID", pid_namespace));
  if (user_namespace != 0) namespaces.push_back(name("user", user_namespace));
  return absl::StrCat("uid ", uid, namespaces.empty() ? "" : " of ",
                      absl::StrJoin(namespaces, " and "));
}

TenantFinder::TenantFinder()
    : own_uid_(geteuid()),
      own_pid_namespace_(InodeOf("/proc/self/ns/pid")),
      own_user_namespace_(InodeOf("/proc/self/ns/user")),
      own_uid_map_(ReadText("/proc/self/uid_map")) {}

absl::StatusOr<Tenant> TenantFinder::Find(int64_t pid, uint32_t uid, int pidfd) const {
  const OwnNamespaces own = {own_pid_namespace_, own_user_namespace_};
  const std::string process = absl::StrCat("/proc/", pid);
  Tenant tenant;
  tenant.uid = uid;
  const std::optional<uint64_t> pid_namespace =
      NearestThatCounts(process + "/ns/pid", /*is_pid_namespace=*/true, own);
  const std::optional<uint64_t> user_namespace =
      NearestThatCounts(process + "/ns/user", /*is_pid_namespace=*/false, own);
  // Another user's namespaces may be hidden from an irisd without CAP_SYS_PTRACE. What everybody
  // may read still says whether they are irisd's own.
  if (pid_namespace.has_value()) {
    tenant.pid_namespace = *pid_namespace;
  } else if (InNestedPidNamespace(pid)) {
    tenant.pid_namespace = Tenant::kUnknownNamespace;
  }
  if (user_namespace.has_value()) {
    tenant.user_namespace = *user_namespace;
  } else if (ReadText(process + "/uid_map") != own_uid_map_) {
    tenant.user_namespace = Tenant::kUnknownNamespace;
  }
  // If the process still runs, everything that was read by its number was its own.
  if (ProcessHasEnded(pidfd)) {
    return absl::AbortedError(
        absl::StrCat("process ", pid, ", which connected, has ended: connect again"));
  }
  return tenant;
}

bool TenantFinder::IsOperator(const Tenant& tenant) const {
  return tenant.pid_namespace == 0 && tenant.user_namespace == 0 &&
         (tenant.uid == 0 || tenant.uid == own_uid_);
}

}  // namespace iris::server
