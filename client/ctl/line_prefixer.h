// LinePrefixer: turns a stream of bytes into whole lines that begin with a prefix. Pure; not
// thread-safe.
//
// A line is given out only when its line feed has come, so lines of several ranks never mix. A line
// that grows beyond a limit is cut into pieces, so a rank that writes no line feed costs bounded
// memory.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::ctl {

class LinePrefixer {
 public:
  static constexpr size_t kMaxLineBytes = 64 << 10;

  explicit LinePrefixer(std::string prefix, size_t max_line_bytes = kMaxLineBytes)
      : prefix_(std::move(prefix)), max_line_bytes_(max_line_bytes) {}

  // Takes the next bytes of the stream; appends the lines that they complete to `out`.
  void Append(absl::string_view bytes, std::string* out);

  // The stream has ended: appends what is left, with the line feed that it lacks.
  void Finish(std::string* out);

 private:
  void Emit(absl::string_view line, std::string* out);

  const std::string prefix_;
  const size_t max_line_bytes_;
  std::string partial_;
};

}  // namespace iris::ctl
