// free: gives back what the same team allocated. A rank's own team also gives back what it has
// opened.
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

struct FreeOp {
  uint64_t offset_bytes = 0;
  friend bool operator==(const FreeOp&, const FreeOp&) = default;
};

template <>
struct OperationOf<FreeOp> : OperationDefaults<FreeOp> {
  static constexpr char kName[] = "free";
  static constexpr bool kOfOneRank = true;
  static std::string Arguments(const FreeOp& op);
  static bool Same(const FreeOp& a, const FreeOp& b) { return a == b; }
  static absl::Status Check(const FreeOp& op, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const FreeOp& op, Run& run);
};

}  // namespace iris::server
