// What lies unread in a socket of AF_UNIX, without taking it. The kernel may take as long over the
// close of a descriptor in it as whoever made it likes, also of one that it lets go of together
// with the socket. Thread-safe.
#pragma once

#include <stddef.h>

namespace iris::server {

// What a receive would bring.
enum class Next {
  kNothing,      // yet
  kPlain,        // a packet without descriptors
  kDescriptors,  // a packet with some
  kEnd,          // the peer said no more, and cannot any more
  kFailed,       // the kernel did not say
};

// What comes first in a socket of packets. Only this process takes anything out of it, so kPlain,
// kDescriptors and kEnd stay true until it does. kNothing may be untrue at once: who does not want
// descriptors receives nothing then. Costs one system call.
Next NextOf(int socket);

// The same of a stream: looks at up to *n_bytes bytes, which it copies to `buffer`. kPlain:
// *n_bytes is how many come before the first descriptor, so that to receive as many brings none.
Next NextOf(int socket, void* buffer, size_t* n_bytes);

// The socket is one that nobody reads any more, and is shut down: its peer can send nothing more.

// Whether there is anything.
bool HasUnread(int socket);

// Takes out what came before the first descriptor: that never waits. Of a socket with packets, at
// most as many as a queue holds.
void DropPlain(int socket);

// Takes out everything, so that the peer reads what was sent to it before it learns of the close.
// As long as it takes: only for who may hang.
void DropAll(int socket);

}  // namespace iris::server
