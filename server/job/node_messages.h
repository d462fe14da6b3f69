// Messages between the irisds of a job that spans several nodes, as plain data. Their port
// processes carry them, in order, between the node of rank 0, which leads the job, and each other
// node (server/port). A message is hostile until the machine has checked it.
//
//   other node -> leader   NodeJoined      once all its ranks have joined and have memory
//                          NodeWithdrawn   one of them has given up since
//                          NodeMapped      once all of them have mapped their peers
//                          OperationAsked  for each rank that asks for a team's next operation
//   leader -> other nodes  NodesJoined     once every node has: the job's layout
//                          NodesMapped     once every node has: the epoch is committed
//                          OperationDecided  the one outcome of a team's operation
//                          NodeIsLost      another node is gone
//                          GrowthBegun     every node makes memory for its ranks, and says
//                                          GrowthCreated; then GrowthMaps, and GrowthMapped
//                          GrowthEnded     the heap has grown, or not
//   both                   JoinsFailed     the job cannot form
//                          RankIs          a rank has left, hung up or died; the leader passes it
//                                          on
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/ids.h"
#include "server/job/operation_spec.h"
#include "server/job/states.h"

namespace iris::server {

// A node of a job is named by its first rank.
using NodeId = Rank;
inline constexpr NodeId kLeader = 0;

// A node and its ranks, which are consecutive.
struct NodePart {
  NodeId node = 0;
  uint32_t n_ranks = 0;
  std::string name;  // of the host, for people
  // Its ranks and those of the node before it map each other, because they share a fabric domain.
  bool with_previous = false;
  std::string fabric;             // the name of its fabric domain, or why it has none, for people
  uint32_t ranks_per_device = 0;  // on its device that most of its ranks share
  friend bool operator==(const NodePart&, const NodePart&) = default;
};

struct NodeJoined {
  uint32_t n_ranks = 0;  // of the job
  uint64_t heap_bytes = 0;
  uint64_t stride_bytes = 0;
  uint64_t team_sync_bytes = 0;
  std::vector<int64_t> pids;  // of the node's ranks
  std::string fabric;         // as of NodePart, like the next
  uint32_t ranks_per_device = 0;
  // By which nodes of the same fabric domain import the memory of the node's ranks, in order; none
  // if it is in no domain.
  std::vector<std::string> handles;
};
struct NodeWithdrawn {};
struct NodesJoined {
  uint64_t epoch = 0;           // of the ports
  std::vector<NodePart> nodes;  // by first rank
  // Of all ranks that those of the receiving node map, in order; none if that is their own node
  // alone.
  std::vector<std::string> handles;
};
struct NodeMapped {
  bool same_address = false;  // all its ranks have the proposed base
};
struct NodesMapped {
  bool same_address = false;
};
struct OperationAsked {
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  Rank rank = 0;
  absl::Duration timeout;  // zero: the leader's default
  bool only_thread = false;
  Operation op;
};
// Each node carries the operation out on its own copy of the job's state, with the same result.
struct OperationDecided {
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Status status;
  uint64_t offset_bytes = 0;  // of the result, to be compared
  Operation op;               // with the arguments of all ranks
};
struct JoinsFailed {
  absl::Status status;
};
struct RankIs {
  Rank rank = 0;
  RankState state = RankState::kLeft;  // or kEnding, kDead
  int64_t pid = 0;
  std::string reason;
};
struct NodeIsLost {
  NodeId node = 0;
  std::string reason;
};

// A growth of the heap, named by the leader's id.
struct GrowthBegun {
  GrowId grow;
  uint64_t bytes = 0;  // per rank
};
struct GrowthCreated {
  GrowId grow;
  std::string error;                 // empty: the memory of the node's ranks is there
  std::vector<std::string> handles;  // as of NodeJoined
};
struct GrowthMaps {
  GrowId grow;
  std::vector<std::string> handles;  // as of NodesJoined
};
struct GrowthMapped {
  GrowId grow;
  std::string error;  // empty: the node's ranks have mapped it
};
struct GrowthEnded {
  GrowId grow;
  bool published = false;
  std::string reason;
};

using NodeMessage = std::variant<NodeJoined, NodeWithdrawn, NodesJoined, NodeMapped, NodesMapped,
                                 OperationAsked, OperationDecided, JoinsFailed, RankIs, NodeIsLost,
                                 GrowthBegun, GrowthCreated, GrowthMaps, GrowthMapped, GrowthEnded>;

}  // namespace iris::server
