// Names of allocations that a rank made alone: publish, open.
#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string PublishOp::Arguments() const {
  return absl::StrCat("(offset=", offset_bytes, " name='", name, "')");
}

absl::Status PublishOp::Check(const Team& team) const {
  if (!IsOwnTeam(team.info.id)) {
    return absl::InvalidArgumentError("a rank publishes what is its own, by its own team");
  }
  return CheckAllocationName(name, /*min_bytes=*/1);
}

Executed PublishOp::Execute(Run& run) const {
  const TeamId team = run.team.info.id;
  const HeapAllocation* const found = std::as_const(run.job.allocations).Find(offset_bytes);
  if (found == nullptr || found->team != team || found->freed) {
    return Error(Code::kInvalidArgument, TeamText(team), " has allocated nothing at offset ",
                 offset_bytes);
  }
  if (!found->label.name().empty()) {
    return Error(Code::kFailedPrecondition, "offset ", offset_bytes, " is published already, as '",
                 found->label.name(), "'");
  }
  if (absl::Status s = run.job.CheckName(team, name); !s.ok()) return s;
  run.job.SetName(offset_bytes, name);
  return Concluded{};
}

std::string OpenOp::Arguments() const {
  return absl::StrCat("(rank=", owner, " name='", name, "')");
}

absl::Status OpenOp::Check(const Team& team) const {
  if (!IsOwnTeam(team.info.id)) {
    return absl::InvalidArgumentError("a rank opens for itself, by its own team");
  }
  if (owner == OwnerOf(team.info.id)) {
    return absl::InvalidArgumentError(
        "what it allocated itself is not opened: use the address that it got then");
  }
  return CheckText("the name", name, 1, wire::kMaxAllocationNameBytes);
}

Executed OpenOp::Execute(Run& run) const {
  Job& job = run.job;
  if (owner >= job.n_ranks()) {
    return Error(Code::kInvalidArgument, "there is no rank ", owner, " in a job of ",
                 job.n_ranks());
  }
  const auto found = job.names.find(ByName::Key(name, OwnTeam(owner)));
  if (found != job.names.end()) {
    const uint64_t offset_bytes = (*found)->first;
    HeapAllocation& allocation = job.allocations.at(offset_bytes);
    ++allocation.opens.Change()[OwnerOf(run.team.info.id)];
    return Concluded{
        {.opened = OpenedInfo{offset_bytes, allocation.bytes, allocation.label.tensor().dtype,
                              allocation.is_registered()}}};
  }
  if (const auto shared = job.names.find(ByName::Key(name, kWorldTeam));
      shared != job.names.end()) {
    return Error(Code::kInvalidArgument, "'", name, "' was allocated by team ",
                 (*shared)->second.team, " together, and not by rank ", owner,
                 " alone: each member has its own address of it, and translates it");
  }
  if (job.ranks[owner].state != RankState::kReady) {
    return Error(Code::kAborted, job.Who(owner), " has left the job, and left nothing named '",
                 name, "' behind");
  }
  return Concluded{};
}

}  // namespace iris::server
