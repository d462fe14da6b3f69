// Collectives of teams whose ranks are on several nodes.
//
// A NodesComm stands on a Comm over the team's ranks of this node, the local Comm, and adds the
// part between nodes, which goes through the ports: kernels put pieces into inboxes in the
// workspaces of ranks of other nodes, with a signal for each piece. Nothing on the host takes part
// in it.
//
// A call goes one of two ways, which ChoosePath names:
//
//   kLeaders  The ranks of a node meet by an operation of the local Comm. The first rank of each
//             node, the leader, puts the result into the inboxes of the other leaders, and all
//             ranks of a node read the inbox of their leader. One message goes from each node to
//             each other. For small calls, and for all calls of uneven teams, in chunks.
//   kRails    Each rank exchanges its share with the ranks of the same place on the other nodes,
//             its rail, in pieces: the pieces of the next chunk travel while the ranks work on
//             this one.
//
// A team is even if each of its nodes has as many of its ranks, and the ranks of a node follow each
// other in the team. Other teams take kLeaders, which is slow for large calls.
//
// The rules of collective.h hold, with these differences:
// - Sums go in the order of the ranks within a node, then in the order of the nodes. f16 and bf16
//   are rounded twice: the sum of each node, and the result. The bits are the same on all ranks.
// - Messages between any two ranks, and the rows of all_to_all_v, go from one to the other, by an
//   inbox for each. Ranks of such a team have one block for each message.
// - Calls that differ between nodes fail with kInvalidArgument on all ranks that exchange data with
//   each other. In an operation with a root whose calls differ only between nodes, the root may
//   find out in its next operation.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/collective.h"
#include "iris/types.h"

namespace iris::ccl {

inline constexpr uint32_t kMaxNodes = 256;

enum class NodesPath : uint8_t { kAuto = 0, kLeaders = 1, kRails = 2 };

// The configuration, the same on all ranks. 0 stands for the backend's default.
struct NodesConfig {
  // Calls of even teams take kLeaders if the larger of in and out has no more bytes than this.
  uint64_t leaders_most_bytes = 0;
  uint64_t leaders_most_bytes_of[kOperationCount] = {};  // of one operation; 0: as above
  // Room for the data of a node in each inbox of leaders; a multiple of 256.
  uint64_t leader_bytes = 0;
  // The largest piece that a rank puts to another at once; a multiple of 256.
  uint64_t piece_bytes = 0;
  // The largest part of a message that a rank puts to another at once; a multiple of 256.
  uint64_t message_bytes = 0;
  // All-reduces over so many nodes exchange whole shares. With more nodes each rank of a rail
  // reduces a slice and puts the result to the others, which moves less.
  uint32_t direct_nodes = 0;
  uint32_t blocks = 0;                // of kernels that reduce or copy pieces, at most
  uint32_t threads = 0;               // of their blocks
  NodesPath path = NodesPath::kAuto;  // overrides the choice, where the team allows it
};

// Observers find the progress of the device at these bytes after NodesComm::progress_offset_bytes,
// as in a Comm's workspace: see kWorkspaceFinishedAt.
inline constexpr uint16_t kNodesFinishedAt = 12;
inline constexpr uint16_t kNodesWaitingAt = 104;

// The failure that kernels report to the host. Only CheckNodesError and
// ResetNodesError interpret it.
struct NodesReport {
  uint64_t word = 0;  // not 0: an operation failed
  uint64_t has_calls = 0;
  PackedCall mine;
  PackedCall theirs;
};

// One rank's side of the operations of a team with ranks on several nodes, made by CreateNodesComm.
// A plain value that owns nothing; it has a share of the device until ReleaseNodesComm.
struct NodesComm {
  DeviceContext context;
  Comm local;
  NodesConfig config;
  const uint32_t* ranks = nullptr;  // by index in the team: the world rank
  const uint32_t* nodes = nullptr;  // and the index of its node
  uint32_t size = 0;                // of the team
  uint32_t index = 0;               // of this rank in the team
  uint32_t n_nodes = 0;
  uint32_t node = 0;        // of this rank
  uint32_t most_local = 0;  // the largest number of ranks of a node
  bool even = false;
  uint64_t workspace_offset_bytes = 0;
  uint64_t workspace_bytes = 0;
  uint64_t progress_offset_bytes = 0;
  uint64_t heap_bytes = 0;
  NodesReport* report = nullptr;
  DeviceShare* share = nullptr;
};

struct NodesOptions {
  DeviceContext context;
  uint32_t size = 0;  // of the team
  // For each rank of the team: its world rank, and the index of its node. Nodes are numbered in the
  // order in which they come first in the team. Both must outlive the NodesComm.
  const uint32_t* ranks = nullptr;
  const uint32_t* nodes = nullptr;
  uint32_t index = 0;  // of this rank in the team
  // Over the ranks of this node, in the order of the team.
  Comm local;
  // Of this rank's heap, which the port can read. The addresses above may have memory that the
  // program has registered, which goes through the workspace. 0: the stride.
  uint64_t heap_bytes = 0;
  // In the heap, at the same offset on all ranks, aligned to kWorkspaceAlignmentBytes,
  // NodesWorkspaceBytes() of it.
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  // Host memory of this rank that kernels can write, initialized as a new NodesReport.
  NodesReport* report = nullptr;
  NodesConfig config = {};
  const char* name = "";  // for messages: see ListShares
};

// Returns the bytes of workspace for a team of `size` ranks on `n_nodes` nodes, or 0 if the config
// is not valid.
uint64_t NodesWorkspaceBytes(uint32_t size, uint32_t n_nodes, const NodesConfig& config = {});

// Makes a NodesComm, and enqueues the writing of its workspace. All ranks synchronize `stream` and
// make a host barrier before the first operation. kInvalidArgument says what is wrong; *out is then
// unchanged. kResourceExhausted: see CreateComm.
Result CreateNodesComm(const NodesOptions& options, backend::Stream& stream, NodesComm* out);
void ReleaseNodesComm(NodesComm* comm);
// Loads all kernels of this library onto the current device, as CreateNodesComm does.
Result PrepareNodesKernels();

// Checks a call of any operation of struct Call, and puts it on the stream. The root
// is an index in the team. Errors are those of Run for a Comm.
Result RunOnNodes(const NodesComm& comm, const Call& call, backend::Stream& stream);

// Runs a collective as the part between nodes of another operation: nodes compare `whole`, which
// must determine the collective, and failures name its operation. Operations of the local Comm may
// come before it; if they fail, all nodes are told. The part that `ends` the operation counts it.
// The caller has checked that the NodesComm can be used. Errors are those of RunOnNodes.
Result RunPartOnNodes(const NodesComm& comm, const PackedCall& whole, const Call& call,
                      backend::Stream& stream, bool ends = true);

// Sends and receives messages: see Exchange in collective.h.
Result ExchangeOnNodes(const NodesComm& comm, const Message* messages, uint32_t n_messages,
                       backend::Stream& stream);

// Returns the path that RunOnNodes takes.
NodesPath ChoosePath(const NodesComm& comm, const Shape& shape);

// The first failure of an operation.
struct NodesErrorInfo {
  static constexpr uint32_t kNoMember = ~0u;
  Operation operation = Operation::kNone;
  // The rank that was missing or made another call, as its index in the team. If a node as a whole
  // was awaited, the rank of it with which this rank exchanges data.
  uint32_t member_index = kNoMember;
  uint32_t sequence = 0;  // of the failed operation among those of the NodesComm, from 0
  // The failure is one of the local Comm: `detail` has more, with indexes in the local team and the
  // operation of the local Comm. For kOutOfRange and kFailedPrecondition, it has ErrorInfo::detail.
  bool local = false;
  ErrorInfo detail;
  // The failure is between ranks of another node, which told this one.
  bool elsewhere = false;
  // For kInvalidArgument between nodes: the calls of this rank and of the other.
  bool has_calls = false;
  PackedCall mine;
  PackedCall theirs;
};

// Returns the first failure that the stream has reached, and keeps it: see CheckError of a Comm.
// `info` may be null.
Result CheckNodesError(const NodesComm& comm, NodesErrorInfo* info = nullptr);

// For recovery after a failure, all ranks call QuietNodes, synchronize, and make a host barrier.
// Then they call PrepareWorkspace of the local Comm and PrepareNodesWorkspace, synchronize, make
// another host barrier, and call ResetNodesError. QuietNodes waits on the stream until the puts of
// this rank have ended.
Result QuietNodes(const NodesComm& comm, backend::Stream& stream);
Result PrepareNodesWorkspace(const NodesComm& comm, backend::Stream& stream);
void ResetNodesError(const NodesComm& comm);

}  // namespace iris::ccl
