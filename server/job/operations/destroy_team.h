// destroy_team: a team's last operation, asked of the team itself. Its barrier slot and its area
// are free again.
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

struct DestroyTeamOp {
  // How far the member's epoch word has come. Members may differ: the furthest counts.
  uint32_t last_barrier_epoch = 0;
};

template <>
struct OperationOf<DestroyTeamOp> : OperationDefaults<DestroyTeamOp> {
  static constexpr char kName[] = "destroy_team";
  static std::string Arguments(const DestroyTeamOp& /*op*/) { return ""; }
  static bool Same(const DestroyTeamOp& /*a*/, const DestroyTeamOp& /*b*/) { return true; }
  static absl::Status Check(const DestroyTeamOp& op, const Team& team);
  static void Merge(DestroyTeamOp& pending, const DestroyTeamOp& asked, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const DestroyTeamOp& op, Run& run);
};

}  // namespace iris::server
