// Ranges of the heap: allocate, free, grow.
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
    return Error(Code::kInvalidArgument, "alignment ", alignment_bytes,
                 " is not a power of two up to ", wire::kMaxAlignmentBytes);
  }
  if (absl::Status s = CheckAllocationName(name, /*min_bytes=*/0); !s.ok()) return s;
  return CheckTensor(tensor);
}

Executed AllocateOp::Execute(Run& run) const {
  Job& job = run.job;
  const TeamId team = run.team.info.id;
  const uint64_t k = run.team.next_k;
  if (absl::Status s = job.CheckName(team, name); !s.ok()) return s;
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
  if (needed == 0) return offset.status();  // not for lack of room
  return NeedsGrowth{needed, std::max(needed, job.heap_bytes_initial), offset.status()};
}

std::string FreeOp::Arguments() const { return absl::StrCat("(offset=", offset_bytes, ")"); }

Executed FreeOp::Execute(Run& run) const {
  Job& job = run.job;
  const TeamId team = run.team.info.id;
  const bool own = IsOwnTeam(team);
  const HeapAllocation* const found = std::as_const(job.allocations).Find(offset_bytes);
  if (found == nullptr) {
    return Error(Code::kInvalidArgument, "no live allocation starts at offset ", offset_bytes);
  }
  if (found->sync) {
    return Error(Code::kInvalidArgument, "offset ", offset_bytes, " is irisd's own area '",
                 found->label.name(), "'");
  }
  if (own && found->opens->contains(OwnerOf(team))) {
    job.CloseOpened(offset_bytes, OwnerOf(team), 1);
    return Concluded{};
  }
  if (found->team != team) {
    return Error(Code::kInvalidArgument, "offset ", offset_bytes, " was allocated by ",
                 TeamText(found->team), own ? ", and this rank has not opened it" : "");
  }
  if (found->freed) {
    return Error(Code::kInvalidArgument, "offset ", offset_bytes,
                 " is freed already, and stays until its ", found->opens->size(),
                 " openers have closed it");
  }
  if (own) {
    job.FreeOwn(offset_bytes);
  } else {
    job.Unplace(offset_bytes);
  }
  run.events.push_back(event::Freed{team, run.team.next_k, offset_bytes});
  return Concluded{};
}

std::string GrowOp::Arguments() const { return absl::StrCat("(bytes=", bytes, ")"); }

absl::Status GrowOp::Check(const Team& team) const {
  if (team.info.id != kWorldTeam)
    return absl::InvalidArgumentError("a heap grows by a call of the world team");
  if (bytes == 0) return absl::InvalidArgumentError("a heap grows by more than 0 bytes");
  return absl::OkStatus();
}

Executed GrowOp::Execute(Run& run) const {
  if (run.grown) return Concluded{};
  return NeedsGrowth{bytes, bytes, absl::ResourceExhaustedError("no room")};
}

}  // namespace iris::server
