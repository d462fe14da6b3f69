#include "server/job/operations/free.h"

#include "absl/strings/str_cat.h"
#include "server/heap/check.h"
#include "server/job/job_heap.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string OperationOf<FreeOp>::Arguments(const FreeOp& op) {
  return absl::StrCat("(offset=", op.offset_bytes, ")");
}

// Whether the offset is anybody's is known when all have asked.
absl::Status OperationOf<FreeOp>::Check(const FreeOp& /*op*/, const Team& /*team*/) {
  return absl::OkStatus();
}

Executed OperationOf<FreeOp>::Execute(const FreeOp& op, Run& run) {
  Job& job = run.job;
  Team& team = run.team;
  const auto found = job.allocations.find(op.offset_bytes);
  if (found == job.allocations.end()) {
    return Concluded{run.Error(absl::InvalidArgumentError(
        absl::StrCat("no live allocation starts at offset ", op.offset_bytes)))};
  }
  if (found->second.sync) {
    return Concluded{run.Error(absl::InvalidArgumentError(absl::StrCat(
        "offset ", op.offset_bytes, " is irisd's own area '", found->second.label.name(), "'")))};
  }
  const bool own = IsOwnTeam(team.info.id);
  if (own && found->second.opens->contains(OwnerOf(team.info.id))) {
    CloseOpened(job, op.offset_bytes, OwnerOf(team.info.id), 1);
    return Concluded{};
  }
  if (found->second.team != team.info.id) {
    return Concluded{run.Error(absl::InvalidArgumentError(
        absl::StrCat("offset ", op.offset_bytes, " was allocated by ", TeamText(found->second.team),
                     own ? ", and this rank has not opened it" : "")))};
  }
  if (found->second.freed) {
    return Concluded{run.Error(absl::InvalidArgumentError(
        absl::StrCat("offset ", op.offset_bytes, " is freed already, and stays until its ",
                     found->second.opens->size(), " openers have closed it")))};
  }
  if (own) {
    FreeOwn(job, op.offset_bytes);
    run.events.push_back(event::Freed{team.info.id, team.next_k, op.offset_bytes});
    return Concluded{};
  }
  const absl::Status freed = Unplace(job, op.offset_bytes);
  IRIS_CHECK(freed.ok(), "the allocator knows every live allocation");
  --team.n_allocations;
  run.events.push_back(event::Freed{team.info.id, team.next_k, op.offset_bytes});
  return Concluded{};
}

}  // namespace iris::server
