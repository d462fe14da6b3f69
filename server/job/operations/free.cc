#include "absl/strings/str_cat.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string FreeOp::Arguments() const { return absl::StrCat("(offset=", offset_bytes, ")"); }

Executed FreeOp::Execute(Run& run) const {
  Job& job = run.job;
  const TeamId team = run.team.info.id;
  const bool own = IsOwnTeam(team);
  const HeapAllocation* const found = std::as_const(job.allocations).Find(offset_bytes);
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no live allocation starts at offset ", offset_bytes));
  }
  if (found->sync) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", offset_bytes, " is irisd's own area '", found->label.name(), "'"));
  }
  if (own && found->opens->contains(OwnerOf(team))) {
    job.CloseOpened(offset_bytes, OwnerOf(team), 1);
    return Concluded{};
  }
  if (found->team != team) {
    return absl::InvalidArgumentError(absl::StrCat("offset ", offset_bytes, " was allocated by ",
                                                   TeamText(found->team),
                                                   own ? ", and this rank has not opened it" : ""));
  }
  if (found->freed) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", offset_bytes, " is freed already, and stays until its ",
                     found->opens->size(), " openers have closed it"));
  }
  if (own) {
    job.FreeOwn(offset_bytes);
  } else {
    job.Unplace(offset_bytes);
  }
  run.events.push_back(event::Freed{team, run.team.next_k, offset_bytes});
  return Concluded{};
}

}  // namespace iris::server
