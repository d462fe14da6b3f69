// Growths: the growth of a job's heap, inside its reserved stride, in two phases. First every
// rank's new segment is created. Then every rank maps all new segments and reports that; the new
// size is published after the last report. A failure of one rank fails the growth for all ranks. A
// job has one growth at a time; operations that need another one wait in a queue.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/job/teams.h"

namespace iris::server {

struct Growths : Teams {
  using Teams::On;
  using Teams::Teams;

  // Starts a growth, queues it, or concludes the operation because growth is impossible.
  void RequestGrowth(Job& job, Team& team, const NeedsGrowth& needs) override;
  void GrowthSegmentCreated(Job& job, SegmentId segment, const absl::Status& status);
  void On(const GrowMappedCall& in);
  void GrowthTimedOut(Job& job);
  // Fails the growth that is under way, if there is one.
  void FailGrowth(Job& job, const absl::Status& why);
  SegmentsAdded SegmentsAddedBy(const Job& job) const;
  // If a growth is being mapped, sends it to a rank that has not reported it mapped.
  void SendGrowthAgain(const Job& job, Rank rank);

  uint64_t next_grow_ = 1;

  // In a job of several nodes. Makes the memory of this node's ranks for the leader's growth.
  absl::Status FollowGrowth(Job& job, const GrowthBegun& begun);
  // Returns true if all ranks of this node have done the present phase of the growth.
  static bool GrewHere(const Job& job);
  // Sends the new segments to the ranks of this node. `handles` are as of GrowthMaps, and checked.
  void MapGrowth(Job& job, const std::vector<std::string>& handles);
  // Another node has created or mapped its part of the growth, or could not.
  void NodeGrew(Job& job, NodeId node, GrowId grow, bool mapped, const std::string& error);
  void PublishGrowth(Job& job);
  // Returns the segments of a growth that are of this node's ranks.
  static std::vector<SegmentId> OwnSegments(const Job& job, const Growth& growth);

 private:
  absl::Status StartGrowth(Job& job, Team& team, uint64_t needed_bytes, uint64_t wanted_bytes);
  void BeginGrowth(Job& job, TeamId team, GrowId id, GrowId leaders_id, uint64_t bytes);
  // Goes on if no rank is missing: on the leader's node, of the job; on others, of the node.
  void GrowthGoesOn(Job& job);
  // Fails the growth; on other nodes than the leader's, tells the leader, who ends it.
  void GrowthFails(Job& job, const absl::Status& why);
  // Books `bytes` for every rank of this node, or for none.
  absl::Status BookGrowth(const Job& job, uint64_t bytes);
  void RunGrowthQueue(Job& job);
};

}  // namespace iris::server
