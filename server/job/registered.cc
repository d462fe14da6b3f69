// Memory that ranks have registered: descriptors of theirs, which irisd keeps and lends on. What
// several ranks register together waits with the operation, member by member, and is given back
// with it unless it succeeds.
#include <utility>

#include "proto/wire/limits.h"
#include "server/job/teams.h"

namespace iris::server {

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
  // Memory that a rank registered alone is not confirmed, and others may have it open.
  if (!offset_bytes.has_value() || IsOwnTeam(team.info.id) ||
      !job.RegisteredBy(team.info.id, *offset_bytes)) {
    return;
  }
  job.Unplace(*offset_bytes);
  DropAll(std::exchange(job.given_back, {}));
  Note(job, event::Freed{team.info.id, team.next_k, *offset_bytes});
}

}  // namespace iris::server
