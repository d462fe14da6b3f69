// Memory that ranks have allocated themselves: register, confirm.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/teams.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

// Returns the sum, which does not overflow for pieces that Check has passed.
uint64_t TotalBytes(const std::vector<uint64_t>& piece_bytes) {
  uint64_t sum = 0;
  for (const uint64_t bytes : piece_bytes) sum += bytes;
  return sum;
}

std::optional<uint64_t> FreesIfItFails(const Operation& op) {
  return std::visit(
      [](const auto& args) -> std::optional<uint64_t> {
        if constexpr (requires { args.FreesIfItFails(); }) return args.FreesIfItFails();
        return std::nullopt;
      },
      op);
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
  // The most bytes that a rank's allocations have before the begin of the range, and after it.
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
  // The sum cannot overflow: 128 allocations of at most 1 TiB each.
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

// The functions below keep the descriptors of memory that ranks register, for irisd to lend. Memory
// that several ranks register together waits with the operation, per rank, and is released with it
// unless the operation succeeds.

absl::StatusOr<GivenMemory> Teams::TakePieces(Job& job, Rank rank, const RegisterOp& op) {
  const size_t n = op.piece_bytes.size();
  if (n > wire::kMaxRegisteredPiecesPerJob - job.n_pieces) {
    return Error(Code::kResourceExhausted, "job '", job.name, "' has registered memory of ",
                 job.n_pieces, " allocations, and ", wire::kMaxRegisteredPiecesPerJob,
                 " are allowed: free some of it");
  }
  if (absl::Status s = CheckDescriptors(n, job.party); !s.ok()) return s;
  GivenMemory given{.lead_bytes = op.lead_bytes};
  for (uint32_t index = 0; index < n; ++index) {
    Segment& segment = NewSegment(job, rank, index, op.piece_bytes[index]);
    segment.created = segment.registered = true;
    Emit(AdoptSegment{segment.info.id, segment.device_index, segment.info.bytes, index});
    given.pieces.push_back(segment.info.id);
  }
  job.n_pieces += n;
  return given;
}

absl::Status Teams::TakeGiven(Job& job, Team& team, size_t index, const Operation& op) {
  const auto* registers = std::get_if<RegisterOp>(&op);
  if (registers == nullptr || IsOwnTeam(team.info.id)) return absl::OkStatus();
  absl::StatusOr<GivenMemory> given = TakePieces(job, team.info.ranks[index], *registers);
  if (!given.ok()) return given.status();
  team.op->given[index] = *std::move(given);
  return absl::OkStatus();
}

std::vector<Given> Teams::GivenBy(const Team& team) const {
  std::vector<Given> all;
  const auto* registers = std::get_if<RegisterOp>(&*team.op->op);
  if (registers == nullptr) return all;
  if (IsOwnTeam(team.info.id)) {
    all.push_back({OwnerOf(team.info.id), registers->lead_bytes, registers->piece_bytes});
    return all;
  }
  for (size_t index = 0; index < team.info.ranks.size(); ++index) {
    const GivenMemory& given = team.op->given[index];
    Given& one = all.emplace_back(Given{team.info.ranks[index], given.lead_bytes, {}});
    for (const SegmentId id : given.pieces) {
      one.piece_bytes.push_back(segments_.at(id).info.bytes);
    }
  }
  return all;
}

void Teams::Adopt(Job& job, Team& team, Adopts adopts) {
  std::vector<GivenMemory>& all = team.op->given;
  if (IsOwnTeam(team.info.id)) {
    absl::StatusOr<GivenMemory> given =
        TakePieces(job, OwnerOf(team.info.id), std::get<RegisterOp>(*team.op->op));
    if (!given.ok()) {
      return Conclude(job, team, WithPrefix(What(team.op->op, team), given.status()));
    }
    all = {*std::move(given)};
  }
  for (GivenMemory& given : all) {
    uint64_t offset_bytes = adopts.offset_bytes - given.lead_bytes;
    for (const SegmentId id : std::exchange(given.pieces, {})) {
      SegmentInfo& info = segments_.at(id).info;
      info.offset_bytes = offset_bytes;
      offset_bytes += info.bytes;
      adopts.allocation.registered.Change().pieces.push_back(id);
    }
  }
  Note(job, event::Allocated{team.info.id, team.next_k, adopts.offset_bytes,
                             adopts.allocation.bytes, std::string(adopts.allocation.label.name())});
  job.Keep(adopts.offset_bytes, std::move(adopts.allocation));
  Conclude(job, team, absl::OkStatus(), {.offset_bytes = adopts.offset_bytes});
}

void Teams::FreeFailed(Job& job, Team& team, const Operation& op) {
  const std::optional<uint64_t> offset_bytes = FreesIfItFails(op);
  // Memory that a rank registered alone is not confirmed, and other ranks may have it open.
  if (!offset_bytes.has_value() || IsOwnTeam(team.info.id) ||
      !job.RegisteredBy(team.info.id, *offset_bytes)) {
    return;
  }
  job.Unplace(*offset_bytes);
  DropAll(std::exchange(job.given_back, {}));
  Note(job, event::Freed{team.info.id, team.next_k, *offset_bytes});
}

}  // namespace iris::server
