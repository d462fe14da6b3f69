// Explains why this process may not use a file, and gives a remedy. Reads the file system and the
// databases of users and groups; keeps nothing; not thread-safe (getpwuid, getgrgid).
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::ctl {

// The names of files and users in the texts are unescaped: callers escape the texts.
struct AccessProblem {
  std::string what;    // "/run/iris/irisd.sock (mode 0660, owner root, group gpu) is closed to ..."
  std::string remedy;  // what to do, as a sentence without a full stop
};

// Checks each folder on the way to `path`, and then `path`, which this process wants to read and to
// write, and returns the first one whose mode refuses the process. `otherwise` is the remedy if no
// group gives access. Returns nullopt if no mode refuses, or if something on the way is missing.
std::optional<AccessProblem> FindAccessProblem(const std::string& path,
                                               absl::string_view otherwise);

// Return the name of a user or a group, such as "root", or the number if it has no name.
std::string UserName(unsigned uid);
std::string GroupName(unsigned gid);

// The remedy if no group opens irisd's sockets.
inline constexpr char kAskForSocket[] =
    "have irisd's administrator set socket_group or socket_mode in irisd.toml, or use an irisd of "
    "your own: irisd --runtime-dir $XDG_RUNTIME_DIR/iris";

}  // namespace iris::ctl
