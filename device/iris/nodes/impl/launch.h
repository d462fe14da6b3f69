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
