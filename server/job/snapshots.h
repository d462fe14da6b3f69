// Snapshots of the JobMachine's state, which iris-ctl shows. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/job/ids.h"
#include "server/job/operation_spec.h"
#include "server/job/results.h"
#include "server/job/states.h"

namespace iris::server {

struct RankSnapshot {
  Rank rank = 0;
  // Zero for a rank of another node whose state only the leader knows, while the job starts.
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  SessionId session;
  uint32_t device_index = 0;
  uint64_t base = 0;
  std::vector<SegmentInfo> segments;    // of the heap, in order
  std::vector<SegmentInfo> registered;  // above the heap, in order
  // The host name of another node, which has the rank; empty if it is not known yet. None: this
  // node has it.
  std::optional<std::string> node;
  std::optional<Rank> node_rank;  // the first rank of that node; none: not known yet
};
// A node of a job that spans several, or ranks whose node is not known yet.
struct NodeSnapshot {
  NodePart part;  // n_ranks is 0 if it is not known
  NodeState state = NodeState::kUnknown;
  std::string lost_because;
  std::string address;  // of the leader: where the nodes meet
  bool mapped = false;  // ranks of this node map the memory of its ranks
};
struct AllocationSnapshot {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;
  std::string name;
  TensorInfo tensor;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Time created;
  uint32_t n_open = 0;      // ranks that have an own team's allocation open
  bool freed = false;       // the owner freed it; only those ranks still use it
  bool registered = false;  // a rank's own memory
};
struct JobSnapshot : JobHead {
  uint32_t n_ranks = 0;
  Rank first_local = 0;  // of the ranks of this node
  uint32_t n_local = 0;
  bool spans_nodes = false;
  uint64_t run = 0;  // of a job that spans nodes: random, and the same on all; 0: it has not begun
  std::optional<std::string> leader;  // host name of the node that leads, if another one does
  uint32_t n_teams = 0;
  uint32_t n_allocations = 0;
  uint64_t allocated_bytes = 0;
  uint64_t largest_free_bytes = 0;
  std::vector<RankSnapshot> ranks;
  std::vector<AllocationSnapshot> allocations;  // if JobQuery::allocations
};
// An operation of the control plane in which some ranks wait for others.
struct PendingSnapshot {
  enum class Kind { kJoin, kMap, kOperation, kGrowth };
  Kind kind = Kind::kJoin;
  TeamId team = kWorldTeam;
  uint32_t n_members = 0;
  uint64_t k = 0;
  std::string call;  // "allocate (4096 bytes)"
  absl::Time since;  // when the first rank asked, on the steady clock
  std::vector<Rank> waiting;
  std::vector<Rank> missing;
};
// The pending operations and teams that show which ranks of a job wait for which.
struct WaitsSnapshot {
  std::vector<PendingSnapshot> pending;
  std::vector<TeamInfo> teams;
};
// Counts of what the machine keeps for an account.
struct AccountSnapshot {
  uint64_t jobs = 0;
  uint64_t teams = 0;
  uint64_t allocations = 0;
  uint64_t registered_pieces = 0;
  uint64_t value_bytes = 0;
  uint64_t descriptors = 0;
  uint64_t heap_bytes = 0;  // with KeptMemory
};
// Selects jobs, and with `allocations` includes their allocations.
struct JobQuery {
  std::optional<Party> party;  // absent: jobs of all parties
  std::string name;            // empty: any
  bool allocations = false;    // a job may have a million of them
};
// The position at which a listing continues: after `item` in job or session `id`, then with larger
// ids. An entry never changes its place in that order, so an entry that exists during the entire
// listing is listed exactly once. Any value is harmless.
struct ListPosition {
  uint64_t id = 0;    // of a job or a session; zero: the listing begins
  uint64_t item = 0;  // a rank of the job, or the offset of an allocation
  friend bool operator==(const ListPosition&, const ListPosition&) = default;
};
struct SessionSnapshot {
  SessionId id;
  CallerInfo caller;
  bool ending = false;
  std::string job;
  int32_t rank = -1;
  absl::Time created;
};

}  // namespace iris::server
