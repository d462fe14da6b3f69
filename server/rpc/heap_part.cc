#include "server/rpc/heap_part.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "server/job/text.h"
#include "server/rpc/listings.h"

namespace iris::server {

absl::StatusOr<HeapPart> FindHeapPart(const Daemon& daemon, const CallerInfo& caller,
                                      const HeapPartQuery& query) {
  if (query.job.empty())
    return absl::InvalidArgumentError(absl::StrCat(query.what, ": name a job"));
  if (query.bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(query.what, ": 0 bytes asked for"));
  }
  const std::vector<JobSnapshot> jobs = daemon.Inspect(
      [&](const JobMachine& machine) { return machine.Jobs(QueryOf(caller, query.job)); });
  if (jobs.empty()) return NoSuchJob(caller, query.job);
  if (jobs.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(query.what, ": ", jobs.size(),
                     " users have a job of that name; ask as the user who owns it"));
  }
  const JobSnapshot& job = jobs.front();
  const auto rank = std::find_if(job.ranks.begin(), job.ranks.end(),
                                 [&](const RankSnapshot& r) { return r.rank == query.rank; });
  if (rank != job.ranks.end() && rank->node.has_value()) {
    return absl::NotFoundError(absl::StrCat(
        query.what, ": rank ", query.rank, " of job \"", EscapeForLog(job.name), "\" is on ",
        rank->node->empty() ? "another node" : "node ", *rank->node, ": ask the irisd there"));
  }
  if (rank == job.ranks.end() || rank->segments.empty()) {
    return absl::NotFoundError(absl::StrCat(query.what, ": job \"", EscapeForLog(job.name),
                                            "\" has no rank ", query.rank, " with memory"));
  }
  HeapPart part{job.id, job.epoch, rank->device_index, rank->segments};
  part.of_member = std::any_of(job.ranks.begin(), job.ranks.end(), [&](const RankSnapshot& r) {
    return !r.node.has_value() && r.pid == caller.pid && job.party == caller.party;
  });
  std::sort(
      part.segments.begin(), part.segments.end(),
      [](const SegmentInfo& a, const SegmentInfo& b) { return a.offset_bytes < b.offset_bytes; });
  const uint64_t heap_bytes = part.segments.back().offset_bytes + part.segments.back().bytes;
  // Only registered memory is above the heap.
  const bool above = query.offset_bytes >= heap_bytes && query.offset_bytes < job.stride_bytes &&
                     query.bytes <= job.stride_bytes - query.offset_bytes &&
                     !rank->registered.empty();
  if (above) part.segments = rank->registered;
  if (!above &&
      (query.offset_bytes > heap_bytes || query.bytes > heap_bytes - query.offset_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(query.what, ": ", base::SizeText(query.bytes), " at offset ",
                     query.offset_bytes, " leave the heap of ", base::SizeText(heap_bytes)));
  }
  const uint64_t end = query.offset_bytes + query.bytes;
  std::erase_if(part.segments, [&](const SegmentInfo& segment) {
    return segment.offset_bytes >= end ||
           segment.offset_bytes + segment.bytes <= query.offset_bytes;
  });
  uint64_t covered = query.offset_bytes;
  for (const SegmentInfo& segment : part.segments) {
    if (segment.offset_bytes <= covered) covered = segment.offset_bytes + segment.bytes;
  }
  if (covered < end) {
    return absl::NotFoundError(absl::StrCat(query.what, ": the heap has no memory there now"));
  }
  return part;
}

}  // namespace iris::server
