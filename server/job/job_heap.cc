#include "server/job/job_heap.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {

absl::StatusOr<uint64_t> Place(Job& job, HeapAllocation allocation) {
  if (job.allocations.size() >= wire::kMaxAllocationsPerJob) {
    return absl::ResourceExhaustedError(absl::StrCat("job '", job.name, "' has ",
                                                     job.allocations.size(),
                                                     " live allocations, the limit: free some"));
  }
  const auto offset = job.allocator.Allocate(allocation.bytes, allocation.alignment_bytes);
  if (!offset.ok()) return offset.status();
  if (!allocation.name.empty()) job.names.insert(allocation.name);
  job.allocations.emplace(*offset, std::move(allocation));
  return *offset;
}

absl::Status Unplace(Job& job, uint64_t offset_bytes) {
  const auto found = job.allocations.find(offset_bytes);
  IRIS_CHECK(found != job.allocations.end(), "what is given back was placed");
  if (!found->second.name.empty()) job.names.erase(found->second.name);
  job.allocations.erase(found);
  return job.allocator.Free(offset_bytes);
}

}  // namespace iris::server
