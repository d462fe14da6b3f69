// create_team: some members of a team, in an order of their own, become a team.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/job/ids.h"
#include "server/job/operations/operation_of.h"

namespace iris::server {

struct Concluded;
struct NeedsGrowth;
struct Adopts;
struct Run;

struct CreateTeamOp {
  std::vector<Rank> ranks;
  friend bool operator==(const CreateTeamOp&, const CreateTeamOp&) = default;
};

template <>
struct OperationOf<CreateTeamOp> : OperationDefaults<CreateTeamOp> {
  static constexpr char kName[] = "create_team";
  static std::string Arguments(const CreateTeamOp& op);
  static bool Same(const CreateTeamOp& a, const CreateTeamOp& b) { return a == b; }
  static absl::Status Check(const CreateTeamOp& op, const Team& team);
  static std::variant<Concluded, NeedsGrowth, Adopts> Execute(const CreateTeamOp& op, Run& run);
};

// kInvalidArgument: a rank is not a member of the team, or is named twice.
absl::Status CheckRanksOf(const std::vector<Rank>& ranks, const Team& team);

// Makes a team of each list of ranks, or none.
std::variant<Concluded, NeedsGrowth, Adopts> MakeTeams(const std::vector<std::vector<Rank>>& teams,
                                                       Run& run);

}  // namespace iris::server
