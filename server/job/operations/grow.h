// grow: at least so many more bytes in every rank's heap, within the stride.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/job/operations/operation_of.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct GrowOp {
  uint64_t bytes = 0;
  friend bool operator==(const GrowOp&, const GrowOp&) = default;
};

template <>
struct OperationOf<GrowOp> : OperationDefaults<GrowOp> {
  static constexpr char kName[] = "grow";
  static std::string Arguments(const GrowOp& op);
  static bool Same(const GrowOp& a, const GrowOp& b) { return a == b; }
  static absl::Status Check(const GrowOp& op, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const GrowOp& op, Run& run);
};

}  // namespace iris::server
