// What an irisd is given when it is started: the descriptors that the one before had kept, each
// under its name. Whoever starts irisd can give it anything, so nothing is believed but that these
// are descriptors; who uses one looks what it is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/job/ids.h"
#include "server/keep/descriptor_keeper.h"

namespace iris::server {

struct NamedDescriptor {
  std::string name;
  wire::UniqueFd fd;
};

// Those that the environment tells of (sd_listen_fds_with_names(3)), and takes that out of it. They
// are closed when a program is executed. Once, before other threads run. kInvalidArgument: the
// environment is wrong, or one of them is not open; `*lost` then gets all of which it tells, under
// the names that there are.
absl::StatusOr<std::vector<NamedDescriptor>> TakeInherited(std::vector<NamedDescriptor>* lost);

struct Inherited {
  wire::UniqueFd session_listener;
  wire::UniqueFd admin_listener;
  std::map<SegmentId, wire::UniqueFd> segments;
  std::map<JobId, std::vector<wire::UniqueFd>> pages;
  std::map<SessionId, wire::UniqueFd> sessions;
  // Closed: of names that irisd does not give, and second ones of names that stand for one.
  std::vector<std::string> unknown;
  std::vector<std::string> twice;

  bool empty() const {
    return !session_listener.valid() && !admin_listener.valid() && segments.empty() &&
           pages.empty() && sessions.empty();
  }
};

Inherited SortInherited(std::vector<NamedDescriptor> all);

// Closes descriptors with which nobody goes on. A client at the other end of one sees that at once,
// although whoever keeps descriptors may have it still; `keeper`, unless null, is told to give it
// up.
void GiveUp(std::vector<NamedDescriptor> all, DescriptorKeeper* keeper);

}  // namespace iris::server
