// Memory that ranks have registered: descriptors of theirs, which irisd keeps and lends on.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/job_heap.h"
#include "server/job/job_machine_impl.h"
#include "server/job/operations/operation.h"

namespace iris::server {

void JobMachine::Impl::Adopt(Job& job, Team& team, Adopts adopts) {
  const auto refuse = [&](const absl::Status& why) {
    Conclude(job, team,
             absl::Status(why.code(), absl::StrCat(What(team.op->op, team), why.message())));
  };
  const size_t n = adopts.piece_bytes.size();
  if (n > wire::kMaxRegisteredPiecesPerJob - job.n_pieces) {
    return refuse(absl::ResourceExhaustedError(absl::StrCat(
        "job '", job.name, "' has registered memory of ", job.n_pieces, " allocations, and ",
        wire::kMaxRegisteredPiecesPerJob, " are allowed: free some of it")));
  }
  if (absl::Status s = CheckDescriptors(n); !s.ok()) return refuse(s);
  const Rank rank = OwnerOf(team.info.id);
  uint64_t offset_bytes = adopts.offset_bytes - adopts.allocation.lead_bytes;
  for (uint32_t index = 0; index < n; ++index) {
    const uint64_t bytes = adopts.piece_bytes[index];
    Segment segment;
    segment.info = {SegmentId{next_segment_++}, rank, index, offset_bytes, bytes};
    segment.job = job.id;
    segment.uid = job.uid;
    segment.device_index = job.ranks[rank].device_index;
    segment.holder = {job.name, rank, job.uid};
    segment.created = true;
    segment.registered = true;
    Emit(AdoptSegment{segment.info.id, segment.device_index, bytes, index});
    adopts.allocation.pieces.push_back(segment.info.id);
    adopts.allocation.piece_bytes += bytes;
    offset_bytes += bytes;
    segments_.emplace(segment.info.id, std::move(segment));
  }
  ++team.n_allocations;
  Note(job, event::Allocated{team.info.id, team.next_k, adopts.offset_bytes,
                             adopts.allocation.bytes, adopts.allocation.name});
  PlaceRegistered(job, adopts.offset_bytes, std::move(adopts.allocation));
  Conclude(job, team, absl::OkStatus(), {.offset_bytes = adopts.offset_bytes});
}

}  // namespace iris::server
