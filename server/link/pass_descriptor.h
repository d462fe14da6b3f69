// Passes descriptors from irisd to a process that may hang in its place, each with a few bytes. The
// link between them is an AF_UNIX stream; neither end ever waits. Each end belongs to one thread.
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

// Takes the next descriptor. *fd is not valid if the descriptor did not arrive because this process
// has none left. Returns kHasEnded also if the bytes have another length.
Taken TakeDescriptor(int link, void* data, size_t n_bytes, wire::UniqueFd* fd);

}  // namespace iris::server
