// Looks at unread input of a socket of AF_UNIX, and drops it. The kernel may take as long over the
// close of a descriptor in it as the maker of the descriptor likes, also if it closes one together
// with the socket. Thread-safe.
#pragma once

#include <stddef.h>

namespace iris::server {

// The result of the next receive.
enum class Next {
  kNothing,      // yet
  kPlain,        // a packet without descriptors
  kDescriptors,  // a packet with some
  kEnd,          // the peer said no more, and cannot any more
  kFailed,       // the kernel did not say
};

// Says what comes first in a socket of packets. Only this process takes anything out of it, so
// kPlain, kDescriptors and kEnd stay true until it does. kNothing may be untrue at once: a caller
// that wants no descriptors receives nothing then. Costs one system call.
Next NextOf(int socket);

// Looks at up to *n_bytes bytes of a stream, and copies them to `buffer`. kPlain: *n_bytes come
// before the first descriptor, so receiving as many brings none.
Next NextOf(int socket, void* buffer, size_t* n_bytes);

// The following are for a socket that is shut down, so that its peer can send nothing more.

bool HasUnread(int socket);

// Drops input before the first descriptor, which never waits; at most as many packets as a queue
// holds.
void DropPlain(int socket);

// Drops everything, so that the peer reads what was sent to it before it sees the close. It may
// block for ever: only for processes and threads that may hang.
void DropAll(int socket);

}  // namespace iris::server
