// Memory that ranks have allocated themselves: register, confirm.
#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

// The sum does not overflow for pieces that Check has passed.
uint64_t TotalBytes(const std::vector<uint64_t>& piece_bytes) {
  uint64_t sum = 0;
  for (const uint64_t bytes : piece_bytes) sum += bytes;
  return sum;
}

}  // namespace

std::string RegisterOp::Arguments() const {
  return absl::StrCat("(bytes=", bytes, " lead=", lead_bytes, " pieces=[",
                      absl::StrJoin(piece_bytes, ","), "] name='", name, "' dtype='", tensor.dtype,
                      "' shape=[", absl::StrJoin(tensor.shape, ","), "])");
}

absl::Status RegisterOp::Check(const Team& /*team*/) const {
  if (!error.empty()) {
    return absl::InvalidArgumentError(CleanText(error, wire::kMaxErrorTextBytes));
  }
  if (piece_bytes.empty() || piece_bytes.size() > wire::kMaxDescriptorsPerCall) {
    return Error(Code::kInvalidArgument, "the memory is of ", piece_bytes.size(),
                 " allocations; 1 to ", wire::kMaxDescriptorsPerCall,
                 " can be registered at a time");
  }
  for (const uint64_t one : piece_bytes) {
    if (one == 0 || one > wire::kMaxHeapBytes) {
      return Error(Code::kInvalidArgument, "an allocation of ", base::SizeText(one), "; 1 byte to ",
                   base::SizeText(wire::kMaxHeapBytes), " can be registered");
    }
  }
  const uint64_t total = TotalBytes(piece_bytes);
  if (bytes == 0 || lead_bytes >= piece_bytes.front() || bytes > total ||
      lead_bytes > total - bytes || lead_bytes + bytes <= total - piece_bytes.back()) {
    return Error(Code::kInvalidArgument, bytes, " bytes after ", lead_bytes,
                 " do not begin in the first and end in the last of the allocations, which have ",
                 absl::StrJoin(piece_bytes, ", "), " bytes");
  }
  if (absl::Status s = CheckAllocationName(name, /*min_bytes=*/0); !s.ok()) return s;
  return CheckTensor(tensor);
}

Executed RegisterOp::Execute(Run& run) const {
  const Job& job = run.job;
  const TeamId team = run.team.info.id;
  const uint64_t granularity = run.granularity_bytes;
  // How far the allocations of any rank reach before the begin of the range, and after it.
  uint64_t before = 0, behind = 0;
  for (const Given& given : run.given) {
    for (const uint64_t one : given.piece_bytes) {
      if (one % granularity == 0) continue;
      return Error(Code::kInvalidArgument,
                   run.given.size() > 1 ? absl::StrCat(job.Who(given.rank), ": ") : "",
                   "an allocation of ", base::SizeText(one), "; it must be a multiple of ",
                   base::SizeText(granularity), ", the granularity of the devices");
    }
    const Given& first = run.given.front();
    if (given.lead_bytes % granularity != first.lead_bytes % granularity) {
      return Error(Code::kInvalidArgument, "the memory of ", job.Who(first.rank), " begins ",
                   base::SizeText(first.lead_bytes % granularity), " behind a multiple of ",
                   base::SizeText(granularity), " of its allocation, that of ", job.Who(given.rank),
                   " ", base::SizeText(given.lead_bytes % granularity),
                   ": to lie at one offset it must begin alike on all members, or be copied");
    }
    before = std::max(before, given.lead_bytes);
    behind = std::max(behind, TotalBytes(given.piece_bytes) - given.lead_bytes);
  }
  if (absl::Status s = job.CheckName(team, name); !s.ok()) return s;
  // No overflow: 128 allocations of at most 1 TiB each.
  const uint64_t total = before + behind;
  const std::optional<uint64_t> start = job.RoomAboveHeap(total);
  if (!start.has_value()) {
    return Error(Code::kResourceExhausted, "registered memory lies above the heap, where ",
                 base::SizeText(job.stride_bytes - job.heap_bytes),
                 " are for it and for growth, and no ", base::SizeText(total),
                 " together are free: create the context with a larger max_heap_bytes");
  }
  return Adopts{*start + before,
                {.bytes = bytes,
                 .k = run.team.next_k,
                 .created = run.wall,
                 .label = AllocationLabel(name, tensor),
                 .registered = RegisteredMemory{{}, before, total},
                 .team = team}};
}

std::string ConfirmOp::Arguments() const { return absl::StrCat("(offset=", offset_bytes, ")"); }

absl::Status ConfirmOp::Check(const Team& /*team*/) const {
  if (error.empty()) return absl::OkStatus();
  return Error(Code::kResourceExhausted,
               "could not map it: ", CleanText(error, wire::kMaxErrorTextBytes));
}

Executed ConfirmOp::Execute(Run& run) const {
  if (run.job.RegisteredBy(run.team.info.id, offset_bytes)) return Concluded{};
  return Error(Code::kInvalidArgument, TeamText(run.team.info.id),
               " has registered nothing at offset ", offset_bytes);
}

}  // namespace iris::server
