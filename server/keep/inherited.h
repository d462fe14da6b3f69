// The descriptors that the previous irisd kept, each under its name. The starter of irisd can pass
// it anything, so irisd assumes only that these are descriptors; their users check them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/job/ids.h"
#include "server/keep/descriptor_keeper.h"

namespace iris::server {

struct NamedDescriptor {
  std::string name;
  wire::UniqueFd fd;
};

// Takes the descriptors of the environment (sd_listen_fds_with_names(3)), and removes its
// variables. They are closed when a program is executed. Call it once, before other threads run.
// kInvalidArgument if the environment is wrong, or if one of them is not open; `*lost` then gets
// all of them, with the names found.
absl::StatusOr<std::vector<NamedDescriptor>> TakeInherited(std::vector<NamedDescriptor>* lost);

struct Inherited {
  wire::UniqueFd session_listener;
  wire::UniqueFd admin_listener;
  std::map<SegmentId, wire::UniqueFd> segments;
  std::map<JobId, std::vector<wire::UniqueFd>> pages;
  std::map<SessionId, wire::UniqueFd> sessions;
  // These were closed: names that irisd does not give, and second ones of names that stand for one.
  std::vector<std::string> unknown;
  std::vector<std::string> twice;

  bool empty() const {
    return !session_listener.valid() && !admin_listener.valid() && segments.empty() &&
           pages.empty() && sessions.empty();
  }
};

Inherited SortInherited(std::vector<NamedDescriptor> all);

// Closes descriptors that are not used, and gives them up at `keeper`, unless that is null. A
// client at the other end of one notices at once, although the manager may still have it.
void GiveUp(std::vector<NamedDescriptor> all, DescriptorKeeper* keeper);

}  // namespace iris::server
