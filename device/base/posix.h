// Retry repeats an interrupted system call. Thread-safe.
#pragma once

#include <cerrno>

namespace iris::base {

// Calls `call` until it succeeds or fails with something else than EINTR, and returns its last
// result. Not for close, which must not be repeated, nor for a wait whose timeout would start anew.
template <typename Call>
auto Retry(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace iris::base
