// How irisd hands descriptors to a process that may hang in its place, each with a few bytes that
// say what it is for. The link between them is a stream of AF_UNIX; neither end ever waits.
// Thread-safe in so far as each end of a link belongs to one thread.
#pragma once

#include <cstddef>

#include "proto/wire/unique_fd.h"

namespace iris::server {

enum class Passed {
  kYes,
  kFull,      // the other end has not taken what was passed before
  kHasEnded,  // the other end is closed
  kNotNow,    // too many descriptors are in flight, or there is no memory
};

// Passes `fd`, which is borrowed, with the bytes.
Passed PassDescriptor(int link, const void* data, size_t n_bytes, int fd);

enum class Taken { kOne, kNoneYet, kHasEnded };

// Takes what was passed next. *fd is not valid where the descriptor did not arrive, because this
// process has none left. kHasEnded also if what comes is not of that length.
Taken TakeDescriptor(int link, void* data, size_t n_bytes, wire::UniqueFd* fd);

}  // namespace iris::server
