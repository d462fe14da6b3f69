// The helpers' work in irisd's worker program: it closes connections, or inspects descriptors, for
// irisd. Clients can make either block in the kernel as long as they like, so the program hangs in
// irisd's place. It returns when irisd has closed the link, or when there was nothing to do for a
// while: irisd starts another one when it needs it.
#pragma once

#include <cstddef>
#include <optional>

#include "proto/wire/unique_fd.h"
#include "server/worker/worker_options.h"

namespace iris::server {

// Takes descriptors from `link`, a stream, drops the unread data of each, and closes it. It takes
// nothing else from them. The kernel closes those that are still in the link at the end.
void CloseConnections(wire::UniqueFd link);

// Returns the kind of a descriptor, if the kernel says. Asks no file system, so it does not wait.
std::optional<FileKind> KindOf(int fd);

// Reads each LookRequest from `link`, a stream, and answers it: it peeks into the socket that came
// with the request, and takes nothing out of it. It accepts files that live in memory (they have
// seals), whose close cannot block, and those of the kind `limits.device_memory`. It closes its
// copies of these before it answers, and the others on a thread for each tenant.
//
// This process may have `max_descriptors`; those whose close hangs are at most half of them.
void LookAtDescriptors(wire::UniqueFd link, const LookingLimits& limits, size_t max_descriptors);

}  // namespace iris::server
