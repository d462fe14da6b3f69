#include "server/job/operations/allocate.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/limits.h"
#include "server/job/job_heap.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string OperationOf<AllocateOp>::Arguments(const AllocateOp& op) {
  return absl::StrCat("(bytes=", op.bytes, " alignment=", op.alignment_bytes, " name='", op.name,
                      "' dtype='", op.tensor.dtype, "' shape=[",
                      absl::StrJoin(op.tensor.shape, ","), "])");
}

void OperationOf<AllocateOp>::Prepare(AllocateOp& op, const Team& /*team*/, size_t /*index*/) {
  const uint64_t alignment = op.alignment_bytes;
  if (alignment < wire::kMinAlignmentBytes && (alignment == 0 || std::has_single_bit(alignment))) {
    op.alignment_bytes = wire::kMinAlignmentBytes;
  }
}

absl::Status OperationOf<AllocateOp>::Check(const AllocateOp& op, const Team& /*team*/) {
  if (!std::has_single_bit(op.alignment_bytes) || op.alignment_bytes > wire::kMaxAlignmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("alignment ", op.alignment_bytes,
                                                   " is not a power of two up to ",
                                                   wire::kMaxAlignmentBytes));
  }
  if (absl::Status s = CheckAllocationName(op.name, /*min_bytes=*/0); !s.ok()) return s;
  return CheckTensor(op.tensor);
}

Executed OperationOf<AllocateOp>::Execute(const AllocateOp& op, Run& run) {
  Job& job = run.job;
  Team& team = run.team;
  if (NameTaken(job, team.info.id, op.name)) return Concluded{run.Error(NameTakenError(op.name))};
  const auto offset = Place(job, {.bytes = op.bytes,
                                  .k = team.next_k,
                                  .created = run.wall,
                                  .label = AllocationLabel(op.name, op.tensor),
                                  .team = team.info.id,
                                  .alignment_log2 = Log2(op.alignment_bytes)});
  if (offset.ok()) {
    ++team.n_allocations;
    run.events.push_back(event::Allocated{team.info.id, team.next_k, *offset, op.bytes, op.name});
    return Concluded{absl::OkStatus(), {.offset_bytes = *offset}};
  }
  const absl::Status failed = run.Error(offset.status());
  const uint64_t needed = job.allocator.ShortfallBytes(op.bytes, op.alignment_bytes);
  if (needed == 0) return Concluded{failed};  // not for want of room
  return NeedsGrowth{needed, std::max(needed, job.heap_bytes_initial), failed};
}

}  // namespace iris::server
