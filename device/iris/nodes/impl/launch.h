// What the launchers of a NodesComm share: the arguments of kernels, and pieces for which there is
// room on the device. Host code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "iris/backend/select.h"
#include "iris/nodes/impl/layout.h"
#include "iris/nodes/nodes.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/residency.h"
#include "iris/translate.h"

namespace iris::ccl::impl {

// Checks that a NodesComm can be used. kFailedPrecondition if an earlier operation failed.
Result CheckNodesComm(const NodesComm& comm);
// Returns true if the port can read these bytes.
bool PortReads(const NodesComm& comm, const void* p, uint64_t bytes);
bool OverlapsWorkspace(const NodesComm& comm, const void* buffer, uint64_t bytes);

// Returns a hash that is the same for calls that belong together.
uint32_t NodesSignatureOf(const PackedCall& call, uint32_t root, NodesPath path);
// Returns the arguments of the kernels of a call.
NodesCall CallOf(const NodesComm& comm, const Call& call, NodesPath path);
// The same for parts of `whole`, which nodes compare. Parts may take different paths, and ranks
// that wait in different parts compare signatures, so these have no path.
NodesCall CallOf(const NodesComm& comm, const PackedCall& whole);

// The ranks of a call of an operation that runs on one node or on several: those of `comm`; or
// those of `nodes`, whose local Comm is `comm`.
struct Ranks {
  const Comm& comm;
  const NodesComm* nodes = nullptr;

  uint32_t size() const { return nodes != nullptr ? nodes->size : comm.team.size; }
  uint32_t index() const { return nodes != nullptr ? nodes->index : comm.team.index; }
};
// CheckComm or CheckNodesComm.
inline Result CheckRanks(const Ranks& ranks) {
  return ranks.nodes != nullptr ? CheckNodesComm(*ranks.nodes) : CheckComm(ranks.comm);
}
// Checks a buffer as for a Comm, and that it does not overlap the workspace between nodes.
inline Result CheckBuffer(const Ranks& ranks, const void* p, uint64_t bytes, uint64_t element_bytes,
                          uint64_t* offset_bytes) {
  Result result = CheckBuffer(ranks.comm, p, bytes, element_bytes, offset_bytes);
  if (result.ok() && ranks.nodes != nullptr && OverlapsWorkspace(*ranks.nodes, p, bytes)) {
    result = Invalid("a buffer overlaps the workspace");
  }
  return result;
}
// Says why a variant does not run on several nodes. `text` is a literal.
#define IRIS_NEEDS_MAPPING(text)                                                         \
  "the variant " text                                                                    \
  " needs ranks that map each other's memory, and the team has ranks on several nodes: " \
  "use auto or pair, or the team that iris_team_local() gives"

// Memory in the heap for the data of an operation of which collectives are parts: of `comm`, whose
// workspace ends before it.
struct Scratch {
  NodesComm comm;
  uint8_t* first;
  uint64_t bytes;
};
inline Scratch ScratchOf(const NodesComm& nodes) {
  const uint64_t begin = NodesOffsetsOf(nodes.size, nodes.n_nodes, nodes.config).scratch;
  Scratch scratch = {nodes, nullptr, nodes.workspace_bytes - begin};
  scratch.first =
      AtOffset<uint8_t>(nodes.context, nodes.context.rank, nodes.workspace_offset_bytes + begin);
  scratch.comm.workspace_bytes = begin;
  return scratch;
}

// Launches by launch(config, first block), in pieces for which there is room. `together` blocks
// wait for each other.
template <typename Launch>
Result LaunchPieces(const NodesComm& comm, uint32_t blocks, uint32_t together,
                    const backend::Stream& stream, Launch launch) {
  LaunchConfig piece = {blocks, comm.config.threads};
  if (comm.share == nullptr) return launch(piece, 0);
  DeviceShare::Room room = {};
  Result result = comm.share->Begin(blocks, together, false, stream, &room);
  if (!result.ok()) return result;
  for (uint32_t first = 0; result.ok() && first < blocks; first += room.piece) {
    piece.grid = std::min(room.piece, blocks - first);
    result = launch(piece, first);
  }
  comm.share->End();
  return result;
}

Result LaunchTurn(const NodesComm& comm, const NodesCall& args, const TurnStep& step,
                  backend::Stream& stream);
// Launches a turn that neither frees nor puts anything, and tells other nodes if this rank failed.
inline Result LaunchIdleTurn(const NodesComm& comm, const NodesCall& args,
                             backend::Stream& stream) {
  TurnStep step = {};
  step.to = TurnStep::kNobody;
  step.mark = step.await = kNoMark;
  return LaunchTurn(comm, args, step, stream);
}

Result RunAllToAllVOnNodes(const NodesComm& comm, const Call& call, backend::Stream& stream);
// Load the kernels of each file.
Result PrepareNodesOperations();
Result PrepareNodesMessages();

}  // namespace iris::ccl::impl
