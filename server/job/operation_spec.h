// What the members of a team can ask for together: the operations of the control plane. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/job/ids.h"

namespace iris::server {

struct TensorInfo {
  std::string dtype;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct AllocateOp {
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;
  std::string name;
  TensorInfo tensor;
  friend bool operator==(const AllocateOp&, const AllocateOp&) = default;
};
struct FreeOp {
  uint64_t offset_bytes = 0;
  friend bool operator==(const FreeOp&, const FreeOp&) = default;
};
struct BroadcastOp {
  Rank root = 0;
  std::string value;  // root's only; not compared
};
struct CreateTeamOp {
  std::vector<Rank> ranks;
  friend bool operator==(const CreateTeamOp&, const CreateTeamOp&) = default;
};
struct DestroyTeamOp {
  uint32_t last_barrier_epoch = 0;  // not compared
};
struct GrowOp {
  uint64_t bytes = 0;
  friend bool operator==(const GrowOp&, const GrowOp&) = default;
};
using Operation =
    std::variant<AllocateOp, FreeOp, BroadcastOp, CreateTeamOp, DestroyTeamOp, GrowOp>;

struct OperationSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Duration timeout;  // zero: the default
  Operation op;
};

}  // namespace iris::server
