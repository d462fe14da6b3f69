// The descriptors that the previous irisd kept, each under its name. The starter of irisd can pass
// anything: irisd assumes only that these are descriptors, and the code that uses them checks them.
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

// Takes the descriptors named by the environment (sd_listen_fds_with_names(3)), and removes their
// variables. The descriptors get close-on-exec. Call it once, before other threads run. Returns
// kInvalidArgument if the environment is wrong, or if a descriptor is not open; `*lost` then gets
// all descriptors, with the names found.
absl::StatusOr<std::vector<NamedDescriptor>> TakeInherited(std::vector<NamedDescriptor>* lost);

struct Inherited {
  wire::UniqueFd session_listener;
  wire::UniqueFd admin_listener;
  std::map<SegmentId, wire::UniqueFd> segments;
  std::map<JobId, std::vector<wire::UniqueFd>> pages;
  std::map<SessionId, wire::UniqueFd> sessions;
  std::map<JobId, std::vector<wire::UniqueFd>> ports;
  // Names of descriptors that were closed: names that irisd does not use, and repeated names of
  // which irisd uses one.
  std::vector<std::string> unknown;
  std::vector<std::string> twice;

  bool empty() const {
    return !session_listener.valid() && !admin_listener.valid() && segments.empty() &&
           pages.empty() && sessions.empty() && ports.empty();
  }
};

Inherited SortInherited(std::vector<NamedDescriptor> all);

// Closes unused descriptors, and has `keeper` drop them, unless it is null. A client at the other
// end of a socket notices at once, although the manager may still have the descriptor.
void GiveUp(std::vector<NamedDescriptor> all, DescriptorKeeper* keeper);

}  // namespace iris::server
