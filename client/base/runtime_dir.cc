#include "client/base/runtime_dir.h"

#include <errno.h>

#include <system_error>

#include "absl/strings/str_cat.h"

namespace iris::internal {

std::vector<std::string> RuntimeDirs(absl::string_view explicit_dir, const Getter& get) {
  if (!explicit_dir.empty()) return {std::string(explicit_dir)};
  if (const auto dir = get("IRIS_RUNTIME_DIR"); dir.has_value() && !dir->empty()) return {*dir};
  std::vector<std::string> dirs = {"/run/iris"};
  if (const auto dir = get("XDG_RUNTIME_DIR"); dir.has_value() && !dir->empty()) {
    dirs.push_back(absl::StrCat(*dir, "/iris"));
  }
  return dirs;
}

absl::Status CannotReach(const std::vector<std::string>& dirs, absl::string_view socket_name,
                         int error) {
  const std::string& dir = dirs.front();
  std::string text = absl::StrCat("cannot reach irisd at ", dir, "/", socket_name, ": ",
                                  std::generic_category().message(error), ". ");
  if (error == EACCES || error == EPERM) {
    absl::StrAppend(
        &text, "Ask for access to ", dir,
        " (`iris-ctl doctor` says who can give it), or set IRIS_RUNTIME_DIR to an irisd of yours");
    return absl::PermissionDeniedError(text);
  }
  absl::StrAppend(&text, "Start it with `irisd --runtime-dir ", dir,
                  "` (or systemctl start irisd), or set IRIS_RUNTIME_DIR");
  for (size_t i = 1; i < dirs.size(); ++i) {
    absl::StrAppend(&text, i == 1 ? " (also tried: " : ", ", dirs[i]);
    if (i + 1 == dirs.size()) absl::StrAppend(&text, ")");
  }
  return absl::UnavailableError(text);
}

}  // namespace iris::internal
