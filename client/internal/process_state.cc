#include "client/internal/process_state.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace iris::internal {

bool IsStopped(int64_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string stat{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // The state stands behind the name, which may have brackets of its own.
  const size_t end = stat.rfind(')');
  if (end == std::string::npos || end + 2 >= stat.size()) return false;
  return stat[end + 2] == 'T' || stat[end + 2] == 't';
}

}  // namespace iris::internal
