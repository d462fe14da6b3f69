// Results in the answers of calls, and the records that they share with listings. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/heap/ledger.h"
#include "server/job/ids.h"
#include "server/job/node_messages.h"
#include "server/job/shared_bytes.h"
#include "server/job/states.h"

namespace iris::server {

struct JobHead {
  JobId id;
  std::string name;
  Party party;
  JobState state = JobState::kForming;
  uint64_t epoch = 1;
  uint64_t heap_bytes = 0;
  uint64_t stride_bytes = 0;
  bool same_address = false;
  absl::Time created;
};
struct SegmentInfo {
  SegmentId id;
  Rank rank = 0;
  uint32_t index = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};
// Memory that irisd has, makes, or is giving back.
struct Segment {
  SegmentInfo info;
  JobId job;
  uint32_t device_index = 0;
  Ledger::Holder holder;
  bool created = false;
  bool dropping = false;
  // True if a rank has registered the segment: irisd only keeps a descriptor of the rank's own
  // memory, and counts it on no account.
  bool registered = false;
  // True if it is memory of another node, which irisd only names to its clients: on no account
  // here.
  bool imported = false;
  // By which other nodes import it; empty if they cannot. Not stored, like the jobs that need it.
  std::string fabric;

  bool is_booked() const { return !registered && !imported; }
};
struct PeerInfo {
  Rank rank = 0;
  int64_t pid = 0;
  uint32_t device_index = 0;
};
struct TeamInfo {
  TeamId id = kWorldTeam;
  std::vector<Rank> ranks;
  uint32_t barrier_slot = 0;
  uint32_t barrier_start_epoch = 0;
  uint64_t sync_offset_bytes = 0;
};

struct JoinResult {
  JobId job;
  Rank rank = 0;  // the caller's
  uint64_t epoch = 0;
  uint64_t proposed_base = 0;
  uint64_t stride_bytes = 0;
  uint64_t granularity_bytes = 0;
  uint64_t heap_bytes = 0;
  std::vector<SegmentInfo> segments;
  std::vector<PeerInfo> peers;
  uint32_t device_index = 0;
  absl::Duration map_timeout;
  Rank first_local = 0;
  std::vector<NodePart> nodes;  // by first rank; none if the job has one node
};
struct MappedResult {
  bool same_address = false;
  TeamInfo world;
};
// An allocation of another rank that a rank has opened.
struct OpenedInfo {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  std::string dtype;
  bool registered = false;  // that rank's own memory; the opener maps it separately
};
struct OperationResult {
  uint64_t offset_bytes = 0;
  SharedBytes value;
  std::vector<TeamInfo> teams;   // in an outcome that irisd keeps: all new teams
  std::optional<TeamInfo> team;  // in an answer: the new team that has the rank
  uint64_t heap_bytes = 0;
  std::optional<OpenedInfo> opened;  // for an open; absent if nothing has the name yet
};
// The outcome of the k-th operation of a team. `result` is meaningful if `status` is ok.
struct Outcome {
  uint64_t k = 0;
  absl::Status status;
  OperationResult result;
};
struct ResumeResult {
  RankState state = RankState::kAbsent;
};
// Answers a call about a host barrier: the barrier cannot end, with the reason; or the rank must
// look for missing ranks again; or the rank's time is up, with the places of the missing ranks.
struct BarrierAnswer {
  uint64_t moment = 0;
  bool cannot_end = false;
  std::string text;
};
struct Done {};  // for calls without a result: GrowMapped, Leave, a watch

using Result = std::variant<Done, JoinResult, MappedResult, Outcome, ResumeResult, BarrierAnswer>;

}  // namespace iris::server
