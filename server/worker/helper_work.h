// The helpers' work in irisd's worker program: to close connections, or to inspect descriptors, for
// irisd. Clients can make either block in the kernel as long as they like, so the program hangs in
// irisd's place. The functions return when irisd has closed the link, or after a while without
// work: irisd starts another helper when it needs one.
#pragma once

#include <cstddef>
#include <optional>

#include "proto/wire/unique_fd.h"
#include "server/worker/worker_options.h"

namespace iris::server {

// Receives descriptors from `link`, a stream, drops the unread data of each, and closes it. It
// takes no descriptors from that data. The kernel closes those that remain in the link at the end.
void CloseConnections(wire::UniqueFd link);

// Returns the kind of a descriptor, if the kernel knows it. Never asks a file system, nor waits.
std::optional<FileKind> KindOf(int fd);

// Reads each LookRequest from `link`, a stream, and answers it: it peeks into the socket that came
// with the request, and takes nothing out of it. It accepts files that live in memory (they have
// seals), whose close cannot block, and descriptors of the kind `limits.device_memory`. It closes
// its copies of accepted descriptors before it answers, and the others on one thread per tenant.
//
// This process may have `max_descriptors`; descriptors whose close hangs are at most half of them.
void LookAtDescriptors(wire::UniqueFd link, const LookingLimits& limits, size_t max_descriptors);

}  // namespace iris::server
