// The layout of a NodesComm's workspace, and the arguments of its kernels.
//
//   table     first[nodes + 1]: places of each node's ranks in the next two; ranks[size]: world
//             ranks, node by node; places[size]: their indexes in the team
//   state     NodesState
//   notices   [nodes]: an error word from each node, 0 if none
//   calls     [nodes]: the call that each node made, with its notice
//   callings  [nodes]: signature << 32 | 1 + number of the operation in which a node waits for long
//   led       [2][nodes]: arrivals in the inboxes of leaders
//   arrived   [kRailSlots][nodes]: arrivals in the inboxes of rails
//   freed     [nodes]: rounds of the rail whose inboxes each node has read
//   came      [2][size]: arrivals in the inboxes of messages, by sender
//   taken     [size]: chunks that each receiver has read
//   sent, received  [size]: chunks of messages to and from each rank
//   leaders   [2][nodes][leader_bytes]: inboxes of leaders
//   block     [leader_bytes]: the data of this node, which the leader puts
//   inboxes   [kRailSlots][nodes][piece_bytes]
//   stages    [kRailStages][nodes][piece_bytes]: sources of puts
//   results   [kRailStages][piece_bytes]: sources of the second puts of an all-reduce
//   temps     [2][nodes][piece_bytes]: for the operations of the local Comm
//   messages  [2][size][message_bytes]: inboxes of messages, by sender
//   message_stages  [size][message_bytes]: sources of messages, by receiver
//   scratch   [ScratchBytes]: rows of operations of which collectives between nodes are parts
//
// An arrival is signature << 32 | number of the round, from 1. Rounds of leaders and rounds of a
// rail are counted apart, and all ranks count alike. Chunks of messages are counted for each sender
// and receiver. All numbers only grow.
//
// A leader puts round r into the slot of its parity. It has then received round r - 1 of all nodes,
// whose leaders had then met their ranks for it, which had then read round r - 2. A rank puts round
// r of its rail into slot r % kRailSlots once the other has freed round r - kRailSlots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "iris/nodes/nodes.h"
#include "iris/rounds/layout.h"

namespace iris::ccl::impl {

inline constexpr uint32_t kRailSlots = 4;
inline constexpr uint32_t kRailStages = 3;
inline constexpr uint32_t kNoMark = ~0u;

struct NodesState {
  uint32_t failed;    // not 0: an operation failed, and no kernel waits any more
  uint32_t told;      // not 0: the other nodes have been told
  uint32_t round;     // of leaders
  uint32_t sequence;  // operations so far
  uint64_t posted;    // rounds of the rail that this rank has put
  uint64_t consumed;  // and read
  // For each stage and each result: the requests to the port up to those that read it.
  uint64_t marks[2 * kRailStages];
  PackedCall call;     // of the failed operation
  uint64_t announced;  // 1 + number of the last operation that is in the others' `callings`
  uint32_t reserved[4];
};
static_assert(sizeof(NodesState) == 128);
static_assert(offsetof(NodesState, sequence) == kNodesFinishedAt);
static_assert(offsetof(NodesState, announced) == kNodesWaitingAt);

struct NodesCallSlot {
  PackedCall call;
  uint32_t reserved[2];
};

// Offsets in a workspace, for a complete config.
struct NodesOffsets {
  uint64_t state, notices, calls, callings, led, arrived, freed, came, taken, sent, received,
      leaders, block, inboxes, stages, results, temps, messages, message_stages, scratch, total;
};

constexpr NodesOffsets NodesOffsetsOf(uint32_t size, uint32_t n_nodes, const NodesConfig& config) {
  const uint64_t n = n_nodes;
  const uint64_t m = size;
  const uint64_t pieces = n * config.piece_bytes;
  NodesOffsets at = {};
  uint64_t end = 0;
  const auto place = [&end](uint64_t bytes) {
    const uint64_t begin = end;
    end = RoundUp(end + bytes, kWorkspaceAlignmentBytes);
    return begin;
  };
  (void)place((n + 1 + 2 * m) * sizeof(uint32_t));
  at.state = place(sizeof(NodesState));
  at.notices = place(n * sizeof(uint64_t));
  at.calls = place(n * sizeof(NodesCallSlot));
  at.callings = place(n * sizeof(uint64_t));
  at.led = place(2 * n * sizeof(uint64_t));
  at.arrived = place(kRailSlots * n * sizeof(uint64_t));
  at.freed = place(n * sizeof(uint64_t));
  at.came = place(2 * m * sizeof(uint64_t));
  at.taken = place(m * sizeof(uint64_t));
  at.sent = place(m * sizeof(uint64_t));
  at.received = place(m * sizeof(uint64_t));
  at.leaders = place(2 * n * config.leader_bytes);
  at.block = place(config.leader_bytes);
  at.inboxes = place(kRailSlots * pieces);
  at.stages = place(kRailStages * pieces);
  at.results = place(kRailStages * config.piece_bytes);
  at.temps = place(2 * pieces);
  at.messages = place(2 * m * config.message_bytes);
  at.message_stages = place(m * config.message_bytes);
  at.scratch = place(2 * pieces > (64 << 10) ? 2 * pieces : 64 << 10);
  at.total = end;
  return at;
}

// An error word is code | operation << 8 | (member + 1) << 16 | sequence << 40. kWithinNode in it:
// the ranks of one node failed among themselves.
inline constexpr uint64_t kWithinNode = 0x80;
IRIS_HOST_DEVICE constexpr uint64_t PackNodesError(uint64_t code, Operation operation,
                                                   uint32_t member, uint32_t sequence) {
  return code | static_cast<uint64_t>(operation) << 8 |
         (static_cast<uint64_t>(member + 1) & 0xffffff) << 16 |
         static_cast<uint64_t>(sequence & 0xffffff) << 40;
}

// Returns true for the error word of a failure of MoE, which all ranks find for themselves.
IRIS_HOST_DEVICE constexpr bool FoundByAll(uint64_t word) {
  const StatusCode code = static_cast<StatusCode>(word & 0xff);
  return code == StatusCode::kOutOfRange || code == StatusCode::kFailedPrecondition;
}

// The arguments of every kernel.
struct NodesCall {
  DeviceContext context;
  NodesReport* report;
  const uint64_t* local_word;   // of the local Comm's report
  uint64_t local_header_bytes;  // offset of the local Comm's workspace in the heap
  uint64_t workspace_bytes;     // offset of the workspace in the heap
  NodesOffsets at;
  uint64_t leader_bytes;
  uint64_t piece_bytes;
  uint64_t message_bytes;
  uint32_t size;     // of the team
  uint32_t index;    // of this rank in the team
  uint32_t n_nodes;  // of the team
  uint32_t node;     // of this rank
  uint32_t place;    // of this rank among those of its node
  uint32_t signature;
  uint32_t ends;  // 1: the operation's last kernel, which counts it
  Operation operation;
  uint32_t even;
  PackedCall call;
};

// Rows that a kernel copies from the data of each node, or of one. The part of node b has rows that
// are `part_stride` apart.
struct NodesRows {
  static constexpr uint32_t kAll = ~0u;
  uint8_t* out;         // null: nothing is copied
  uint64_t bytes;       // of a row
  uint64_t out_stride;  // between rows of `out`
  uint64_t part_stride;
  uint64_t offset;  // of the first row in a part
  uint32_t only;    // the one node whose part has the data, or kAll
  // Rows of each part. kPlaces: one for each rank of the node, and it goes to the row of `out` that
  // is the rank's index in the team.
  uint32_t rows;
  static constexpr uint32_t kPlaces = ~0u;
};

// A round of leaders.
struct LeaderStep {
  enum Mode : uint32_t {
    kMeet,        // no data
    kReduce,      // the parts are terms
    kReduceRows,  // the rows of all parts are terms
    kCopy,        // the parts have rows
  };
  Mode mode;
  uint32_t posts;  // 1: this node has data
  uint64_t bytes;  // of this node's data
  NodesRows rows;  // kReduce and kReduceRows: `out`, `offset` and `part_stride`
  uint64_t count;  // of elements; of reductions
  ReduceOp op;
};

// Ends rounds of the rail that this rank has read, and puts the next one.
struct TurnStep {
  static constexpr uint32_t kNobody = ~0u;
  static constexpr uint32_t kEach = ~0u - 1;
  uint32_t consumed;   // rounds read since the last turn
  uint32_t takes;      // 1: there is a next round
  uint32_t to;         // the node that gets it, kEach, or kNobody
  uint32_t mark;       // of the source, or kNoMark
  uint32_t await;      // the mark of the source that the next kernels overwrite, or kNoMark
  uint32_t await_all;  // 1: wait until all puts have been read
  // Node b gets `bytes` bytes from `source` + b * stride on, and none beyond `limit`.
  uint64_t source;  // offset in the heap
  uint64_t stride;
  uint64_t bytes;
  uint64_t limit;
};

// Reads a round of the rail.
struct UseStep {
  uint32_t ahead;      // rounds read since the last turn
  uint32_t reduces;    // 1: the pieces of all nodes are terms; else they have rows
  const uint8_t* own;  // this rank's piece; null: it has none
  // Of a reduction.
  uint8_t* to[2];  // the second may be null
  uint64_t count;
  uint32_t divide;
  ReduceOp op;
  // Of copies: row r of node b's piece goes to out + b * node_stride + r * rows.out_stride. Nothing
  // beyond `limit` is copied, which counts from `out`.
  NodesRows rows;
  uint64_t node_stride;
  uint64_t limit;
};

// A message of this rank.
struct NodesMessage {
  const uint8_t* in;  // null: this rank receives
  uint8_t* out;
  uint64_t bytes;
  uint32_t peer;  // index in the team
  uint32_t rank;  // of the peer, in the world
  uint32_t signature;
  uint32_t staged;  // 1: `in` is not where the port can read it
};
inline constexpr uint32_t kMaxNodesMessages = 16;  // of a launch
struct NodesMessages {
  NodesMessage each[kMaxNodesMessages];
};

}  // namespace iris::ccl::impl
