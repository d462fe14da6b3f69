#include "server/job/operations/register.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/job/job_heap.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

// Of what Check allows, so that it does not overflow.
uint64_t TotalBytes(const std::vector<uint64_t>& piece_bytes) {
  uint64_t sum = 0;
  for (const uint64_t bytes : piece_bytes) sum += bytes;
  return sum;
}

}  // namespace

std::string OperationOf<RegisterOp>::Arguments(const RegisterOp& op) {
  return absl::StrCat("(bytes=", op.bytes, " lead=", op.lead_bytes, " pieces=[",
                      absl::StrJoin(op.piece_bytes, ","), "] name='", op.name, "' dtype='",
                      op.tensor.dtype, "' shape=[", absl::StrJoin(op.tensor.shape, ","), "])");
}

absl::Status OperationOf<RegisterOp>::Check(const RegisterOp& op, const Team& /*team*/) {
  if (!op.error.empty()) {
    return absl::InvalidArgumentError(CleanText(op.error, wire::kMaxErrorTextBytes));
  }
  if (op.piece_bytes.empty() || op.piece_bytes.size() > wire::kMaxDescriptorsPerCall) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory is of ", op.piece_bytes.size(), " allocations; 1 to ",
                     wire::kMaxDescriptorsPerCall, " can be registered at a time"));
  }
  for (const uint64_t bytes : op.piece_bytes) {
    if (bytes == 0 || bytes > wire::kMaxHeapBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("an allocation of ", base::SizeText(bytes), "; 1 byte to ",
                       base::SizeText(wire::kMaxHeapBytes), " can be registered"));
    }
  }
  const uint64_t total = TotalBytes(op.piece_bytes);
  if (op.bytes == 0 || op.lead_bytes >= op.piece_bytes.front() || op.bytes > total ||
      op.lead_bytes > total - op.bytes ||
      op.lead_bytes + op.bytes <= total - op.piece_bytes.back()) {
    return absl::InvalidArgumentError(absl::StrCat(
        op.bytes, " bytes after ", op.lead_bytes,
        " do not begin in the first and end in the last of the allocations, which have ",
        absl::StrJoin(op.piece_bytes, ", "), " bytes"));
  }
  if (absl::Status s = CheckAllocationName(op.name, /*min_bytes=*/0); !s.ok()) return s;
  return CheckTensor(op.tensor);
}

Executed OperationOf<RegisterOp>::Execute(const RegisterOp& op, Run& run) {
  Job& job = run.job;
  const TeamId team = run.team.info.id;
  const uint64_t granularity = run.granularity_bytes;
  // Of all members: how far the allocations reach before the range's begin, and behind it.
  uint64_t before = 0, behind = 0;
  for (const Given& given : run.given) {
    for (const uint64_t bytes : given.piece_bytes) {
      if (bytes % granularity == 0) continue;
      return Concluded{run.Error(absl::InvalidArgumentError(
          absl::StrCat(run.given.size() > 1 ? absl::StrCat(job.Who(given.rank), ": ") : "",
                       "an allocation of ", base::SizeText(bytes), "; it must be a multiple of ",
                       base::SizeText(granularity), ", the granularity of the devices")))};
    }
    const Given& first = run.given.front();
    if (given.lead_bytes % granularity != first.lead_bytes % granularity) {
      return Concluded{run.Error(absl::InvalidArgumentError(absl::StrCat(
          "the memory of ", job.Who(first.rank), " begins ",
          base::SizeText(first.lead_bytes % granularity), " behind a multiple of ",
          base::SizeText(granularity), " of its allocation, that of ", job.Who(given.rank), " ",
          base::SizeText(given.lead_bytes % granularity),
          ": to lie at one offset it must begin alike on all members, or be copied")))};
    }
    before = std::max(before, given.lead_bytes);
    behind = std::max(behind, TotalBytes(given.piece_bytes) - given.lead_bytes);
  }
  if (NameTaken(job, team, op.name)) return Concluded{run.Error(NameTakenError(op.name))};
  // No overflow: 128 allocations of at most 1 TiB each.
  const uint64_t total = before + behind;
  const std::optional<uint64_t> start = RoomAboveHeap(job, total);
  if (!start.has_value()) {
    return Concluded{run.Error(absl::ResourceExhaustedError(
        absl::StrCat("registered memory lies above the heap, where ",
                     base::SizeText(job.stride_bytes - job.heap_bytes),
                     " are for it and for growth, and no ", base::SizeText(total),
                     " together are free: create the context with a larger max_heap_bytes")))};
  }
  return Adopts{*start + before,
                {.bytes = op.bytes,
                 .k = run.team.next_k,
                 .created = run.wall,
                 .label = AllocationLabel(op.name, op.tensor),
                 .registered = RegisteredMemory{{}, before, total},
                 .team = team}};
}

}  // namespace iris::server
