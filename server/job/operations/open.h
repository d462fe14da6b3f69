// open: a rank's look for what another rank has allocated alone, by its name. Asked of the own team
// of the rank that looks. It never waits: what is not there yet is not an error, and is asked for
// again.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "server/job/ids.h"
#include "server/job/operations/operation_of.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct OpenOp {
  Rank owner = 0;
  std::string name;
  friend bool operator==(const OpenOp&, const OpenOp&) = default;
};

template <>
struct OperationOf<OpenOp> : OperationDefaults<OpenOp> {
  static constexpr char kName[] = "open";
  static constexpr bool kOfOneRank = true;
  static std::string Arguments(const OpenOp& op);
  static bool Same(const OpenOp& a, const OpenOp& b) { return a == b; }
  static absl::Status Check(const OpenOp& op, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const OpenOp& op, Run& run);
};

}  // namespace iris::server
