// Require: how a fuzz target says that something does not hold. It ends the process, which is what
// a fuzzer and a test notice.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace iris::fuzz {

// Prints `parts` and ends the process if `condition` is false.
template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::fprintf(stderr, "does not hold: %s\n", absl::StrCat(parts...).c_str());
  std::abort();
}

}  // namespace iris::fuzz
