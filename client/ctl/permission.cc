#include "client/ctl/permission.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace iris::ctl {
namespace {

std::vector<gid_t> OwnGroups() {
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int n = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(0, n)));
  if (std::find(groups.begin(), groups.end(), getegid()) == groups.end()) {
    groups.insert(groups.begin(), getegid());
  }
  return groups;
}

// Returns true if the database lists this user in the group, even if this process is not in it.
bool IsListedIn(gid_t gid) {
  const passwd* const user = getpwuid(geteuid());
  if (user == nullptr) return false;
  const std::string name = user->pw_name;
  const gid_t primary = user->pw_gid;
  int n = 64;
  std::vector<gid_t> groups(64);
  if (getgrouplist(name.c_str(), primary, groups.data(), &n) < 0) {
    groups.resize(static_cast<size_t>(n));
    if (getgrouplist(name.c_str(), primary, groups.data(), &n) < 0) return false;
  }
  groups.resize(static_cast<size_t>(n));
  return std::find(groups.begin(), groups.end(), gid) != groups.end();
}

std::string ThisUser() {
  std::vector<std::string> groups;
  for (const gid_t gid : OwnGroups()) groups.push_back(GroupName(gid));
  return absl::StrCat("user ", UserName(geteuid()), " with ",
                      groups.size() == 1 ? "group " : "groups ", absl::StrJoin(groups, ", "));
}

std::string Remedy(const std::string& path, const struct stat& info, mode_t group_bits,
                   absl::string_view otherwise) {
  const std::string group = GroupName(info.st_gid);
  const std::vector<gid_t> own = OwnGroups();
  const bool in_group = std::find(own.begin(), own.end(), info.st_gid) != own.end();
  // Root's group is never suggested.
  if ((info.st_mode & group_bits) == group_bits && info.st_gid != 0 && !in_group) {
    if (IsListedIn(info.st_gid)) {
      return absl::StrCat("this user has been put into the group ", group,
                          " since this process's login: log in again, or run newgrp ", group);
    }
    return absl::StrCat("have an administrator put this user into the group ", group,
                        ": usermod -aG ", group, " ", UserName(geteuid()), ", then log in again");
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::StrCat("have ", UserName(info.st_uid), " open it (chmod o+x ", path, "), or ",
                        otherwise);
  }
  return std::string(otherwise);
}

AccessProblem Describe(const std::string& path, mode_t group_bits, absl::string_view otherwise) {
  struct stat info = {};
  stat(path.c_str(), &info);
  return {absl::StrFormat("%s (mode %04o, owner %s, group %s) is closed to %s", path,
                          info.st_mode & 07777, UserName(info.st_uid), GroupName(info.st_gid),
                          ThisUser()),
          Remedy(path, info, group_bits, otherwise)};
}

bool IsClosed(const std::string& path, int wanted) {
  return faccessat(AT_FDCWD, path.c_str(), wanted, AT_EACCESS) != 0 &&
         (errno == EACCES || errno == EPERM);
}

}  // namespace

std::string UserName(unsigned uid) {
  const passwd* const user = getpwuid(uid);
  return user == nullptr ? absl::StrCat(uid) : std::string(user->pw_name);
}

std::string GroupName(unsigned gid) {
  const group* const found = getgrgid(gid);
  return found == nullptr ? absl::StrCat(gid) : std::string(found->gr_name);
}

std::optional<AccessProblem> FindAccessProblem(const std::string& path,
                                               absl::string_view otherwise) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (IsClosed(folder, X_OK)) return Describe(folder, S_IXGRP, otherwise);
  }
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  const bool folder = S_ISDIR(info.st_mode);
  if (!IsClosed(path, folder ? X_OK : R_OK | W_OK)) return std::nullopt;
  return Describe(path, folder ? S_IXGRP : S_IRGRP | S_IWGRP, otherwise);
}

}  // namespace iris::ctl
