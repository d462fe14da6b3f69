// Teams with ranks on several nodes, for tests.
#pragma once

#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "iris/nodes/nodes.h"
#include "tests/conformance/world.h"

namespace iris::conformance {

// The ranks of a world, and those of them that are in the team, node by node.
struct Shape {
  uint32_t n_nodes;
  uint32_t per_node;
  std::vector<uint32_t> members = {};  // empty: all
  uint32_t seed = 5;
  uint32_t delay_us_max = 0;
};

inline local::WorldOptions OptionsOf(const Shape& shape) {
  local::WorldOptions options;
  options.n_ranks = shape.n_nodes * shape.per_node;
  options.n_nodes = shape.n_nodes;
  options.heap_bytes = backend::Traits::kEmulated ? 8 << 20 : 512 << 20;
  options.timeout_ns = kTestTimeoutNs;
  options.port = {shape.seed, shape.delay_us_max};
  return options;
}

inline std::vector<uint32_t> MembersOf(const Shape& shape) {
  std::vector<uint32_t> members = shape.members;
  if (members.empty()) {
    members.resize(shape.n_nodes * shape.per_node);
    std::iota(members.begin(), members.end(), 0);
  }
  return members;
}

// Small pieces, so that short calls have many.
inline ccl::NodesConfig SmallPieces(ccl::NodesPath path, uint32_t direct_nodes = 0) {
  ccl::NodesConfig config;
  config.leader_bytes = 4096;
  config.piece_bytes = 4096;
  config.message_bytes = 4096;
  config.path = path;
  config.direct_nodes = direct_nodes;
  return config;
}

// A rank's communicator over a team. All ranks of the world make it; `index` is ~0u in others.
struct Team {
  Team(Rank& rank, const Shape& shape, const ccl::NodesConfig& config)
      : Team(rank, shape, config, [&rank](const DeviceTeam& team) { return rank.NewComm(team); }) {}
  // new_comm(team) makes the local Comm of the team of a node's ranks, as Rank::NewComm does.
  template <typename NewComm>
  Team(Rank& rank, const Shape& shape, const ccl::NodesConfig& config, NewComm new_comm) {
    ranks = MembersOf(shape);
    std::map<uint32_t, uint32_t> numbers;
    for (uint32_t m = 0; m < ranks.size(); ++m) {
      const uint32_t node = ranks[m] / shape.per_node;
      nodes.push_back(numbers.try_emplace(node, numbers.size()).first->second);
      if (ranks[m] == rank.rank()) index = m;
    }
    ccl::NodesOptions options;
    for (const auto& [node, number] : numbers) {
      std::vector<uint32_t> here;
      for (const uint32_t r : ranks) {
        if (r / shape.per_node == node) here.push_back(r);
      }
      const ccl::Comm made = new_comm(rank.NewTeam(here));
      if (node == rank.rank() / shape.per_node) options.local = made;
    }
    options.context = rank.ctx;
    options.size = static_cast<uint32_t>(ranks.size());
    options.ranks = ranks.data();
    options.nodes = nodes.data();
    options.index = index;
    options.config = config;
    options.workspace_bytes =
        ccl::NodesWorkspaceBytes(options.size, static_cast<uint32_t>(numbers.size()), config);
    options.workspace = rank.New<uint8_t>(options.workspace_bytes);
    report = new (backend::MallocHost(sizeof(ccl::NodesReport))) ccl::NodesReport();
    options.report = report;
    if (index != ~0u) RequireOk(ccl::CreateNodesComm(options, rank.stream, &comm));
    rank.HostBarrier();
  }
  ~Team() {
    ccl::ReleaseNodesComm(&comm);
    backend::FreeHost(report);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  uint32_t n() const { return static_cast<uint32_t>(ranks.size()); }

  std::vector<uint32_t> ranks;
  std::vector<uint32_t> nodes;
  uint32_t index = ~0u;
  ccl::NodesComm comm;
  ccl::NodesReport* report = nullptr;
};

// Makes a NodesComm that has failed usable again. All ranks of the world call it.
inline void Recover(Rank& rank, const ccl::NodesComm& comm) {
  RequireOk(ccl::QuietNodes(comm, rank.stream));
  rank.Synchronize();
  rank.HostBarrier();
  RequireOk(ccl::PrepareWorkspace(comm.local, rank.stream));
  RequireOk(ccl::PrepareNodesWorkspace(comm, rank.stream));
  rank.Synchronize();
  rank.HostBarrier();
  ccl::ResetNodesError(comm);
}

}  // namespace iris::conformance
