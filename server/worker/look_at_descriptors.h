// The third thing that irisd's worker program does: it looks at descriptors that sessions have
// sent, before irisd has them. What makes irisd wait is not received there. It hangs in irisd's
// place.
#pragma once

#include <cstddef>
#include <optional>

#include "proto/wire/unique_fd.h"
#include "server/worker/looking.h"

namespace iris::server {

// The kind of a descriptor. Asks no file system, so it does not wait; not known if the kernel does
// not say.
std::optional<FileKind> KindOf(int fd);

// Takes LookRequests from `link`, a stream, and answers each: it peeks into the socket that came
// along, and takes nothing out of it. Good are files that live in memory (they have seals), whose
// close asks nobody, and those of the kind `limits.device_memory`. It closes its copies of these
// before it answers, and what is not good on a thread of its tenant's.
//
// `max_descriptors`: how many this process may have, of which those that do not close take at most
// half.
//
// Returns when the other end has closed the link, and when nothing has come for a while and nothing
// waits to be closed: irisd starts another when it needs one.
void LookAtDescriptors(wire::UniqueFd link, const LookingLimits& limits, size_t max_descriptors);

}  // namespace iris::server
