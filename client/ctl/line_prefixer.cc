#include "client/ctl/line_prefixer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace iris::ctl {

void LinePrefixer::Emit(absl::string_view line, std::string* out) {
  absl::StrAppend(out, prefix_, line, "\n");
}

void LinePrefixer::Append(absl::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const size_t room = max_line_bytes_ - partial_.size();
    const size_t end = bytes.find('\n');
    if (end != absl::string_view::npos && end <= room) {
      absl::StrAppend(&partial_, bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
    } else {
      const size_t taken = std::min(room, bytes.size());
      absl::StrAppend(&partial_, bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      if (partial_.size() < max_line_bytes_ || bytes.empty()) continue;
    }
    Emit(partial_, out);
    partial_.clear();
  }
}

void LinePrefixer::Finish(std::string* out) {
  if (!partial_.empty()) Emit(partial_, out);
  partial_.clear();
}

}  // namespace iris::ctl
