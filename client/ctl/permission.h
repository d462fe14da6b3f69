// Why this process may not use a file, and who can change that. Reads the file system and the
// databases of users and groups; keeps nothing; not thread-safe (getpwuid, getgrgid).
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::ctl {

// Names of files and users are as they are: who shows the texts escapes them.
struct AccessProblem {
  std::string what;    // "/run/iris/irisd.sock (mode 0660, owner root, group gpu) is closed to ..."
  std::string remedy;  // what to do, as a sentence without a full stop
};

// Looks at each folder on the way to `path`, and then at `path`, which this process wants to read
// and to write. The first that the modes close to it is the problem. `otherwise` is what to do
// where no group lets anybody in. nullopt: they let it in, or something on the way is not there.
std::optional<AccessProblem> FindAccessProblem(const std::string& path,
                                               absl::string_view otherwise);

// "root", or the number of a user or a group without a name.
std::string UserName(unsigned uid);
std::string GroupName(unsigned gid);

// What to do about sockets of irisd that no group opens.
inline constexpr char kAskForSocket[] =
    "have irisd's administrator set socket_group or socket_mode in irisd.toml, or use an irisd of "
    "your own: irisd --runtime-dir $XDG_RUNTIME_DIR/iris";

}  // namespace iris::ctl
