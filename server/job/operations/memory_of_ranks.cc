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
    const Given& first = run.given.front();
    if (given.lead_bytes % granularity != first.lead_bytes % granularity) {
      return Error(Code::kInvalidArgument, "the memory of ", job.Who(first.rank), " begins ",
                   base::SizeText(first.lead_bytes % granularity), " behind a multiple of ",
                   base::SizeText(granularity), " of its allocation, that of ", job.Who(given.rank),
                   " ", base::SizeText(given.lead_bytes % granularity),
                   ": to lie at one offset it must begin alike on all members, or be copied");
    }
    before = std::max(before, given.lead_bytes);
    behind = std::max(behind, given.bytes - given.lead_bytes);
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

// The functions below keep the descriptors of memory that ranks register, for irisd to lend. The
// memory waits with the operation, per rank, and is released with it unless the operation succeeds.

absl::StatusOr<GivenMemory> Teams::TakePieces(Job& job, Rank rank, const RegisterOp& op) {
  for (const uint64_t one : op.piece_bytes) {
    if (one % granularity_bytes_ == 0) continue;
    return Error(Code::kInvalidArgument, "an allocation of ", base::SizeText(one),
                 "; it must be a multiple of ", base::SizeText(granularity_bytes_),
                 ", the granularity of the devices");
  }
  GivenMemory given{op.lead_bytes, TotalBytes(op.piece_bytes), {}};
  if (!job.IsLocal(rank)) return given;
  const size_t n = op.piece_bytes.size();
  if (n > wire::kMaxRegisteredPiecesPerJob - job.n_pieces) {
    return Error(Code::kResourceExhausted, "job '", job.name, "' has registered memory of ",
                 job.n_pieces, " allocations, and ", wire::kMaxRegisteredPiecesPerJob,
                 " are allowed: free some of it");
  }
  if (absl::Status s = CheckDescriptors(n, job.party); !s.ok()) return s;
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
  if (registers == nullptr) return absl::OkStatus();
  absl::StatusOr<GivenMemory> given = TakePieces(job, team.info.ranks[index], *registers);
  if (!given.ok()) return given.status();
  team.op->given[index] = *std::move(given);
  return absl::OkStatus();
}

void Teams::TakeForLeader(Job& job, Team& team, size_t index, Operation* op) {
  auto* registers = std::get_if<RegisterOp>(op);
  if (registers == nullptr || !registers->error.empty()) return;
  absl::Status taken = Check(*op, team);
  if (taken.ok()) taken = TakeGiven(job, team, index, *op);
  if (!taken.ok()) registers->error = std::string(taken.message());
}

absl::Status Teams::CheckGiven(const Job& job, const Team& team, const Operation& op) {
  const auto* registers = std::get_if<RegisterOp>(&op);
  if (registers == nullptr) return absl::OkStatus();
  const uint64_t behind = TotalBytes(registers->piece_bytes) - registers->lead_bytes;
  for (size_t index = 0; index < team.info.ranks.size(); ++index) {
    if (!job.IsLocal(team.info.ranks[index])) continue;
    const GivenMemory given = team.op.has_value() ? team.op->given[index] : GivenMemory();
    const uint64_t rest = given.bytes - given.lead_bytes;
    if (given.pieces.empty() || given.lead_bytes > registers->lead_bytes || rest > behind ||
        registers->bytes > rest) {
      return absl::InternalError(
          absl::StrCat("rank ", team.info.ranks[index], " has not given such memory"));
    }
  }
  return absl::OkStatus();
}

std::vector<Given> Teams::GivenBy(const Job& job, const Team& team) {
  std::vector<Given> all;
  const auto* registers = std::get_if<RegisterOp>(&*team.op->op);
  if (registers == nullptr) return all;
  if (!job.Decides()) {
    return {{team.info.ranks.front(), registers->lead_bytes, TotalBytes(registers->piece_bytes)}};
  }
  for (size_t index = 0; index < team.info.ranks.size(); ++index) {
    const GivenMemory& given = team.op->given[index];
    all.push_back({team.info.ranks[index], given.lead_bytes, given.bytes});
  }
  return all;
}

void Teams::Adopt(Job& job, Team& team, Adopts adopts) {
  RegisteredMemory& registered = adopts.allocation.registered.Change();
  for (GivenMemory& given : team.op->given) {
    uint64_t offset_bytes = adopts.offset_bytes - given.lead_bytes;
    for (const SegmentId id : std::exchange(given.pieces, {})) {
      SegmentInfo& info = segments_.at(id).info;
      info.offset_bytes = offset_bytes;
      offset_bytes += info.bytes;
      registered.pieces.push_back(id);
    }
  }
  if (job.nodes.has_value()) {
    SetLayout layout{job.id, job.nodes->epoch, {}, InfosOf(registered.pieces), {}};
    layout.registered_from = job.HeapEndBytes();
    Emit(std::move(layout));
    // Nodes that follow leave as much room as this one, whatever their ranks have given.
    auto& op = std::get<RegisterOp>(team.op->op.Change());
    op.lead_bytes = registered.lead_bytes;
    op.piece_bytes = {registered.piece_bytes};
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
