// Inspects unread input of an AF_UNIX socket, and drops it. A descriptor in the input can block the
// kernel in close(2) for as long as the maker of the descriptor likes, even if the kernel closes it
// together with the socket. Thread-safe.
#pragma once

#include <stddef.h>

namespace iris::server {

// The result of the next receive.
enum class Next {
  kNothing,      // nothing yet
  kPlain,        // a packet without descriptors
  kDescriptors,  // a packet with descriptors
  kEnd,          // nothing is left, and the peer can send no more
  kFailed,       // the kernel returned an error
};

// Returns what comes first in a socket of packets. Only this process takes packets out of the
// socket, so kPlain, kDescriptors and kEnd stay true until it does. kNothing may be outdated at
// once: a caller that wants no descriptors must then receive nothing. Costs one system call.
Next NextOf(int socket);

// Inspects up to *n_bytes bytes of a stream, and copies them to `buffer`. kPlain: *n_bytes precede
// the first descriptor, so receiving that many brings no descriptor.
Next NextOf(int socket, void* buffer, size_t* n_bytes);

// The functions below are for a socket that is shut down, so that its peer can send nothing more.

bool HasUnread(int socket);

// Drops input before the first descriptor, at most as many packets as a queue holds. Never waits.
void DropPlain(int socket);

// Drops all input, so that the peer reads what was sent to it before it sees the close. May block
// for ever, so call it only in processes and threads that may hang.
void DropAll(int socket);

}  // namespace iris::server
