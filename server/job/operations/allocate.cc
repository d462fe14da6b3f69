#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string AllocateOp::Arguments() const {
  return absl::StrCat("(bytes=", bytes, " alignment=", alignment_bytes, " name='", name,
                      "' dtype='", tensor.dtype, "' shape=[", absl::StrJoin(tensor.shape, ","),
                      "])");
}

void AllocateOp::Prepare(const Team& /*team*/, size_t /*index*/) {
  if (alignment_bytes < wire::kMinAlignmentBytes &&
      (alignment_bytes == 0 || std::has_single_bit(alignment_bytes))) {
    alignment_bytes = wire::kMinAlignmentBytes;
  }
}

absl::Status AllocateOp::Check(const Team& /*team*/) const {
  if (!std::has_single_bit(alignment_bytes) || alignment_bytes > wire::kMaxAlignmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "alignment ", alignment_bytes, " is not a power of two up to ", wire::kMaxAlignmentBytes));
  }
  if (absl::Status s = CheckAllocationName(name, /*min_bytes=*/0); !s.ok()) return s;
  return CheckTensor(tensor);
}

Executed AllocateOp::Execute(Run& run) const {
  Job& job = run.job;
  const TeamId team = run.team.info.id;
  const uint64_t k = run.team.next_k;
  if (job.NameTaken(team, name)) return NameTakenError(name);
  const auto offset = job.Place({.bytes = bytes,
                                 .k = k,
                                 .created = run.wall,
                                 .label = AllocationLabel(name, tensor),
                                 .team = team,
                                 .alignment_log2 = Log2(alignment_bytes)});
  if (offset.ok()) {
    run.events.push_back(event::Allocated{team, k, *offset, bytes, name});
    return Concluded{{.offset_bytes = *offset}};
  }
  const uint64_t needed = job.allocator.ShortfallBytes(bytes, alignment_bytes);
  if (needed == 0) return offset.status();  // not for want of room
  return NeedsGrowth{needed, std::max(needed, job.heap_bytes_initial), offset.status()};
}

}  // namespace iris::server
