#include "server/job/job_heap.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

// What an own team allocated is gone for good.
void Remove(Job& job, uint64_t offset_bytes) {
  --job.teams.at(job.allocations.at(offset_bytes).team).n_allocations;
  const absl::Status freed = Unplace(job, offset_bytes);
  IRIS_CHECK(freed.ok(), "the allocator knows every live allocation");
}

}  // namespace

absl::StatusOr<uint64_t> Place(Job& job, HeapAllocation allocation) {
  if (job.allocations.size() >= wire::kMaxAllocationsPerJob) {
    return absl::ResourceExhaustedError(absl::StrCat("job '", job.name, "' has ",
                                                     job.allocations.size(),
                                                     " live allocations, the limit: free some"));
  }
  const auto offset = job.allocator.Allocate(allocation.bytes, allocation.alignment_bytes);
  if (!offset.ok()) return offset.status();
  if (!allocation.name.empty()) job.names.emplace(NameKey(allocation), *offset);
  job.allocations.emplace(*offset, std::move(allocation));
  return *offset;
}

absl::Status Unplace(Job& job, uint64_t offset_bytes) {
  const auto found = job.allocations.find(offset_bytes);
  IRIS_CHECK(found != job.allocations.end(), "what is given back was placed");
  if (!found->second.freed) job.names.erase(NameKey(found->second));
  job.allocations.erase(found);
  return job.allocator.Free(offset_bytes);
}

std::pair<std::string, TeamId> NameKey(const HeapAllocation& allocation) {
  return {allocation.name, IsOwnTeam(allocation.team) ? allocation.team : kWorldTeam};
}

bool NameTaken(const Job& job, TeamId team, const std::string& name) {
  if (name.empty()) return false;
  if (IsOwnTeam(team)) {
    return job.names.contains({name, kWorldTeam}) || job.names.contains({name, team});
  }
  const auto first = job.names.lower_bound({name, kWorldTeam});
  return first != job.names.end() && first->first.first == name;
}

absl::Status NameTakenError(const std::string& name) {
  return absl::AlreadyExistsError(
      absl::StrCat("an allocation named '", name, "' is live: free it or choose another name"));
}

void SetName(Job& job, uint64_t offset_bytes, const std::string& name) {
  HeapAllocation& allocation = job.allocations.at(offset_bytes);
  IRIS_CHECK(allocation.name.empty(), "an allocation has one name");
  allocation.name = name;
  job.names.emplace(NameKey(allocation), offset_bytes);
}

void FreeOwn(Job& job, uint64_t offset_bytes) {
  HeapAllocation& allocation = job.allocations.at(offset_bytes);
  IRIS_CHECK(IsOwnTeam(allocation.team) && !allocation.freed, "it is its owner's to free");
  if (allocation.opens.empty()) return Remove(job, offset_bytes);
  job.names.erase(NameKey(allocation));
  allocation.freed = true;
}

void CloseOpened(Job& job, uint64_t offset_bytes, Rank rank, uint64_t n) {
  HeapAllocation& allocation = job.allocations.at(offset_bytes);
  const auto open = allocation.opens.find(rank);
  IRIS_CHECK(open != allocation.opens.end() && open->second >= n, "who closes has it open");
  open->second -= n;
  if (open->second == 0) allocation.opens.erase(open);
  if (allocation.freed && allocation.opens.empty()) Remove(job, offset_bytes);
}

void CloseAllOf(Job& job, Rank rank) {
  for (auto next = job.allocations.begin(); next != job.allocations.end();) {
    const auto here = next++;
    const auto open = here->second.opens.find(rank);
    if (open != here->second.opens.end()) CloseOpened(job, here->first, rank, open->second);
  }
}

}  // namespace iris::server
