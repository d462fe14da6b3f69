// Explains why this process may not use a file, and how that can be changed. Reads the file system
// and the databases of users and groups; keeps nothing; not thread-safe (getpwuid, getgrgid).
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::ctl {

// Callers escape the texts, which have names of files and users as they are.
struct AccessProblem {
  std::string what;    // "/run/iris/irisd.sock (mode 0660, owner root, group gpu) is closed to ..."
  std::string remedy;  // what to do, as a sentence without a full stop
};

// Looks at each folder on the way to `path`, and then at `path`, which this process wants to read
// and to write. The first that the modes close to it is the problem. `otherwise` is what to do
// where no group lets anybody in. Returns nullopt if they let it in, or if something on the way is
// not there.
std::optional<AccessProblem> FindAccessProblem(const std::string& path,
                                               absl::string_view otherwise);

// "root", or the number of a user or a group without a name.
std::string UserName(unsigned uid);
std::string GroupName(unsigned gid);

// The remedy if no group opens irisd's sockets.
inline constexpr char kAskForSocket[] =
    "have irisd's administrator set socket_group or socket_mode in irisd.toml, or use an irisd of "
    "your own: irisd --runtime-dir $XDG_RUNTIME_DIR/iris";

}  // namespace iris::ctl
