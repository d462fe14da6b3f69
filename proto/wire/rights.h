// Descriptors that ride on a message of an AF_UNIX socket (SCM_RIGHTS). Thread-safe.
#pragma once

#include <stddef.h>
#include <sys/socket.h>

#include <vector>

#include "absl/types/span.h"
#include "proto/wire/unique_fd.h"

namespace iris::wire {

// The kernel lets no message carry more.
inline constexpr size_t kMaxRights = 253;

// Attaches `fds`, which are borrowed, unless there are none. `control` is aligned for a cmsghdr,
// has room for them, and lives as long as the message.
void AttachRights(absl::Span<const int> fds, char* control, struct msghdr* message);

// Appends the descriptors of a message that was received to *fds, and fills *sender, unless it is
// null, with the sender's credentials.
void TakeRights(struct msghdr* message, std::vector<UniqueFd>* fds, struct ucred* sender = nullptr);

}  // namespace iris::wire
