// LinePrefixer: splits a stream of bytes into lines and puts a prefix before them. Pure; not
// thread-safe.
//
// A line is output only after its line feed has arrived, so lines of several ranks never mix. A
// line beyond a limit is cut into pieces, so a rank that writes no line feed costs bounded memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace iris::ctl {

class LinePrefixer {
 public:
  static constexpr size_t kMaxLineBytes = 64 << 10;

  explicit LinePrefixer(std::string prefix, size_t max_line_bytes = kMaxLineBytes)
      : prefix_(std::move(prefix)), max_line_bytes_(max_line_bytes) {}

  // Takes the next bytes of the stream, and appends the completed lines to `out`.
  void Append(absl::string_view bytes, std::string* out) {
    while (!bytes.empty()) {
      const size_t room = max_line_bytes_ - partial_.size();
      const size_t end = bytes.find('\n');
      const bool whole = end != absl::string_view::npos && end <= room;
      const size_t taken = whole ? end : std::min(room, bytes.size());
      absl::StrAppend(&partial_, bytes.substr(0, taken));
      bytes.remove_prefix(whole ? taken + 1 : taken);
      if (whole || (partial_.size() == max_line_bytes_ && !bytes.empty())) Emit(out);
    }
  }

  // Appends the rest at the end of the stream, with the missing line feed.
  void Finish(std::string* out) {
    if (!partial_.empty()) Emit(out);
  }

 private:
  void Emit(std::string* out) {
    absl::StrAppend(out, prefix_, partial_, "\n");
    partial_.clear();
  }

  const std::string prefix_;
  const size_t max_line_bytes_;
  std::string partial_;
};

}  // namespace iris::ctl
