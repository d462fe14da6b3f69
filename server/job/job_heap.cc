#include "server/job/job_heap.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

// The name may be given to another.
void DropName(Job& job, const HeapAllocations::value_type& entry) {
  if (!entry.second.label.name().empty() && !entry.second.freed) job.names.erase(&entry);
}

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
  const auto offset = job.allocator.Allocate(allocation.bytes, allocation.alignment_bytes());
  if (offset.ok()) Keep(job, *offset, std::move(allocation));
  return offset;
}

std::optional<uint64_t> RoomAboveHeap(const Job& job, uint64_t bytes) {
  // From the top downwards, so that the heap can grow for as long as possible.
  const uint64_t floor =
      job.heap_bytes + (job.growth.has_value() ? job.growth->bytes : uint64_t{0});
  uint64_t end = job.stride_bytes;
  for (auto next = job.allocations.rbegin(); next != job.allocations.rend(); ++next) {
    const HeapAllocation& other = next->second;
    if (!other.is_registered()) break;  // of the heap, as all are that come now
    const uint64_t start = next->first - other.registered->lead_bytes;
    if (end - (start + other.registered->piece_bytes) >= bytes) return end - bytes;
    end = start;
  }
  if (end < floor || end - floor < bytes) return std::nullopt;
  return end - bytes;
}

uint64_t GrowthLimitBytes(const Job& job) {
  uint64_t limit = job.stride_bytes;
  for (auto next = job.allocations.rbegin(); next != job.allocations.rend(); ++next) {
    if (!next->second.is_registered()) break;
    limit = next->first - next->second.registered->lead_bytes;
  }
  return limit;
}

void PlaceRegistered(Job& job, uint64_t offset_bytes, HeapAllocation allocation) {
  IRIS_CHECK(allocation.is_registered(), "registered memory has pieces");
  Keep(job, offset_bytes, std::move(allocation));
}

void Keep(Job& job, uint64_t offset_bytes, HeapAllocation allocation) {
  const auto [entry, placed] = job.allocations.emplace(offset_bytes, std::move(allocation));
  IRIS_CHECK(placed, "there was room");
  if (!entry->second.label.name().empty() && !entry->second.freed) job.names.insert(&*entry);
}

bool RegisteredBy(const Job& job, TeamId team, uint64_t offset_bytes) {
  const auto found = job.allocations.find(offset_bytes);
  return found != job.allocations.end() && found->second.team == team &&
         found->second.is_registered();
}

absl::Status Unplace(Job& job, uint64_t offset_bytes) {
  const auto found = job.allocations.find(offset_bytes);
  IRIS_CHECK(found != job.allocations.end(), "what is given back was placed");
  const std::vector<SegmentId> pieces = found->second.registered->pieces;
  DropName(job, *found);
  job.allocations.erase(offset_bytes);
  if (pieces.empty()) return job.allocator.Free(offset_bytes);
  job.n_pieces -= pieces.size();
  job.given_back.insert(job.given_back.end(), pieces.begin(), pieces.end());
  return absl::OkStatus();
}

bool NameTaken(const Job& job, TeamId team, const std::string& name) {
  if (name.empty()) return false;
  if (IsOwnTeam(team)) {
    return job.names.contains(ByName::Key(name, kWorldTeam)) ||
           job.names.contains(ByName::Key(name, team));
  }
  const auto first = job.names.lower_bound(ByName::Key(name, kWorldTeam));
  return first != job.names.end() && (*first)->second.label.name() == name;
}

absl::Status NameTakenError(const std::string& name) {
  return absl::AlreadyExistsError(
      absl::StrCat("an allocation named '", name, "' is live: free it or choose another name"));
}

void SetName(Job& job, uint64_t offset_bytes, const std::string& name) {
  HeapAllocation* const allocation = job.allocations.Find(offset_bytes);
  IRIS_CHECK(allocation != nullptr && allocation->label.name().empty(),
             "an allocation has one name");
  allocation->label = AllocationLabel(name, allocation->label.tensor());
  job.names.insert(&*job.allocations.find(offset_bytes));
}

void FreeOwn(Job& job, uint64_t offset_bytes) {
  const auto entry = job.allocations.find(offset_bytes);
  IRIS_CHECK(
      entry != job.allocations.end() && IsOwnTeam(entry->second.team) && !entry->second.freed,
      "it is its owner's to free");
  if (entry->second.opens->empty()) return Remove(job, offset_bytes);
  DropName(job, *entry);
  job.allocations.at(offset_bytes).freed = true;
}

void CloseOpened(Job& job, uint64_t offset_bytes, Rank rank, uint64_t n) {
  HeapAllocation& allocation = job.allocations.at(offset_bytes);
  std::map<Rank, uint64_t>& opens = allocation.opens.Change();
  const auto open = opens.find(rank);
  IRIS_CHECK(open != opens.end() && open->second >= n, "who closes has it open");
  open->second -= n;
  if (open->second == 0) opens.erase(open);
  if (allocation.freed && opens.empty()) Remove(job, offset_bytes);
}

void CloseAllOf(Job& job, Rank rank) {
  for (auto next = job.allocations.begin(); next != job.allocations.end();) {
    const auto here = next++;
    const auto open = here->second.opens->find(rank);
    if (open != here->second.opens->end()) CloseOpened(job, here->first, rank, open->second);
  }
}

}  // namespace iris::server
