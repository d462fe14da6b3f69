// NodeMeeting: one rank of each node of a team, its leader, meets those of the other nodes, for the
// host barrier. Each puts words into the team's areas in the heaps of others, by dissemination: in
// step k, a leader sends to the one 2^k places after it, and waits for the one 2^k places before.
//
// Not thread-safe: one call at a time. Borrows the port.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/membership/job_status.h"
#include "client/port/host_port.h"
#include "client/wire/job.h"

namespace iris::internal {

class NodeMeeting {
 public:
  // The ranks of a team on a node.
  struct Group {
    uint32_t leader = 0;  // the first of them in the team
    uint32_t node = 0;    // index in the list of nodes
  };

  // Returns the groups of a team, in the order of `nodes`.
  static std::vector<Group> GroupsOf(absl::Span<const uint32_t> ranks,
                                     const std::vector<Node>& nodes);

  // `ranks` are those of the team, and `rank` is one of them, on this node. `sync_offset_bytes` is
  // the place of the team's SyncArea.
  NodeMeeting(absl::Span<const uint32_t> ranks, std::vector<Group> groups,
              const std::vector<Node>& nodes, uint32_t rank, uint64_t sync_offset_bytes,
              HostPort* port, JobStatus status);

  // The leader of this node, which calls Meet; the other ranks of the node call Skip.
  uint32_t leader() const { return groups_[index_].leader; }
  // kDeadlineExceeded names a node that did not come, kAborted a rank of another node that has
  // left. Each call counts, also one that fails.
  absl::Status Meet(absl::Time deadline);
  void Skip() { ++epoch_; }
  // Returns kAborted if a rank of the team on another node has left.
  absl::Status Left() const { return status_.Left(elsewhere_); }

 private:
  // Waits for the word of a step.
  absl::Status Await(uint64_t offset, absl::Time deadline);

  const std::vector<Group> groups_;
  std::vector<std::string> names_;   // of the groups' nodes
  size_t index_ = 0;                 // of this node's group
  std::vector<uint32_t> elsewhere_;  // the team's ranks on other nodes
  const uint64_t sync_offset_bytes_;
  HostPort* const port_;
  const JobStatus status_;
  uint64_t epoch_ = 0;
};

}  // namespace iris::internal
