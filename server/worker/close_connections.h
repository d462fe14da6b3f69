// The other thing that irisd's worker program does: it closes connections that irisd hands over,
// because the kernel may take as long over that as clients like. It hangs in irisd's place.
#pragma once

#include "proto/wire/unique_fd.h"

namespace iris::server {

// Takes descriptors from `link`, a stream, and closes them one after another, what lies unread in
// them first. It takes nothing else from them, and looks at none of it. Returns when the other end
// has closed the link, and when nothing has come for a while: irisd starts another when it needs
// one, and what was sent meanwhile the kernel closes with the link.
void CloseConnections(wire::UniqueFd link);

}  // namespace iris::server
