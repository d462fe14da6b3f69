// allocate: a range of the heap, at the same offset for every member of the team. What a rank's own
// team allocates is that rank's alone, and nobody else's heap has anything at its offset.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/job/operations/operation_of.h"
#include "server/job/tensor_info.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct AllocateOp {
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;  // raised to the smallest that irisd has
  std::string name;              // unique (NameTaken), or empty
  TensorInfo tensor;
  friend bool operator==(const AllocateOp&, const AllocateOp&) = default;
};

template <>
struct OperationOf<AllocateOp> : OperationDefaults<AllocateOp> {
  static constexpr char kName[] = "allocate";
  static constexpr bool kOfOneRank = true;
  static std::string Arguments(const AllocateOp& op);
  static bool Same(const AllocateOp& a, const AllocateOp& b) { return a == b; }
  static absl::Status Check(const AllocateOp& op, const Team& team);
  static void Prepare(AllocateOp& op, const Team& team, size_t index);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const AllocateOp& op, Run& run);
};

}  // namespace iris::server
