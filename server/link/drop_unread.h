// What lies unread in a socket that nobody reads any more. The kernel lets go of it when the socket
// is closed, and may take as long over the descriptors in it as whoever made them likes.
//
// The socket is of AF_UNIX and is shut down: its peer can send nothing more. Thread-safe.
#pragma once

namespace iris::server {

// Whether there is anything.
bool HasUnread(int socket);

// Takes out what came before the first descriptor: that never waits. Of a socket with packets, at
// most as many as a queue holds.
void DropPlain(int socket);

// Takes out everything, so that the peer reads what was sent to it before it learns of the close.
// As long as it takes: only for who may hang.
void DropAll(int socket);

}  // namespace iris::server
