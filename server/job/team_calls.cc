// The sequence of a team's operations: each (team, k) has exactly one outcome, the same for every
// member, kept for retries.
//
// A rank's k-th call is its own k-th, whatever came of it: success, mismatch, time-out, malformed
// and aborted alike are outcomes and consume k. Refused without consuming it are only calls that
// are nobody's k-th: of another's team or job, or ahead of the rank's own position.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/job_machine_impl.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

constexpr absl::string_view kReservedPrefix = "iris.";

bool IsPowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

// So that what means the same compares equal, and without a broadcast's value.
Operation Normalized(Operation op) {
  if (auto* broadcast = std::get_if<BroadcastOp>(&op)) broadcast->value.clear();
  if (auto* allocate = std::get_if<AllocateOp>(&op)) {
    const uint64_t alignment = allocate->alignment_bytes;
    if (alignment < wire::kMinAlignmentBytes && (alignment == 0 || IsPowerOfTwo(alignment))) {
      allocate->alignment_bytes = wire::kMinAlignmentBytes;
    }
  }
  return op;
}

const char* NameOf(const Operation& op) {
  constexpr const char* kNames[] = {"allocate",    "free",         "broadcast",
                                    "create_team", "destroy_team", "grow"};
  return kNames[op.index()];
}

// For messages; of an operation that CheckForm accepts.
std::string Describe(const Operation& op) {
  std::string text = NameOf(op);
  if (const auto* allocate = std::get_if<AllocateOp>(&op)) {
    absl::StrAppend(&text, "(bytes=", allocate->bytes, " alignment=", allocate->alignment_bytes,
                    " name='", allocate->name, "' dtype='", allocate->tensor.dtype, "' shape=[",
                    absl::StrJoin(allocate->tensor.shape, ","), "])");
  } else if (const auto* free = std::get_if<FreeOp>(&op)) {
    absl::StrAppend(&text, "(offset=", free->offset_bytes, ")");
  } else if (const auto* broadcast = std::get_if<BroadcastOp>(&op)) {
    absl::StrAppend(&text, "(root=", broadcast->root, ")");
  } else if (const auto* create = std::get_if<CreateTeamOp>(&op)) {
    absl::StrAppend(&text, "(ranks=[", absl::StrJoin(create->ranks, ","), "])");
  } else if (const auto* grow = std::get_if<GrowOp>(&op)) {
    absl::StrAppend(&text, "(bytes=", grow->bytes, ")");
  }
  return text;
}

bool Same(const Operation& a, const Operation& b) {
  if (a.index() != b.index()) return false;
  if (const auto* broadcast = std::get_if<BroadcastOp>(&a)) {
    return broadcast->root == std::get<BroadcastOp>(b).root;
  }
  if (std::holds_alternative<DestroyTeamOp>(a)) return true;
  if (const auto* allocate = std::get_if<AllocateOp>(&a))
    return *allocate == std::get<AllocateOp>(b);
  if (const auto* free = std::get_if<FreeOp>(&a)) return *free == std::get<FreeOp>(b);
  if (const auto* create = std::get_if<CreateTeamOp>(&a))
    return *create == std::get<CreateTeamOp>(b);
  return std::get<GrowOp>(a) == std::get<GrowOp>(b);
}

absl::Status CheckAllocate(const AllocateOp& op) {
  if (!IsPowerOfTwo(op.alignment_bytes) || op.alignment_bytes > wire::kMaxAlignmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("alignment ", op.alignment_bytes,
                                                   " is not a power of two up to ",
                                                   wire::kMaxAlignmentBytes));
  }
  if (absl::Status s = CheckText("the name", op.name, 0, wire::kMaxAllocationNameBytes); !s.ok())
    return s;
  if (absl::string_view(op.name).substr(0, kReservedPrefix.size()) == kReservedPrefix) {
    return absl::InvalidArgumentError(
        absl::StrCat("names that begin with '", kReservedPrefix, "' are irisd's own"));
  }
  if (absl::Status s = CheckText("the dtype", op.tensor.dtype, 0, wire::kMaxDtypeBytes); !s.ok())
    return s;
  if (op.tensor.shape.size() > wire::kMaxDims) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the shape has ", op.tensor.shape.size(), " dimensions; ", wire::kMaxDims, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const Team& team, const std::vector<Rank>& ranks) {
  if (ranks.empty()) return absl::InvalidArgumentError("a team has at least one rank");
  if (ranks.size() > team.info.ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(ranks.size(), " ranks are more than the ",
                                                   team.info.ranks.size(), " of team ",
                                                   team.info.id));
  }
  std::set<Rank> seen;
  for (const Rank rank : ranks) {
    if (team.IndexOf(rank) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " is not a member of team ", team.info.id));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is named twice"));
    }
  }
  return absl::OkStatus();
}

// What one rank's request alone shows to be wrong.
absl::Status CheckForm(const Team& team, const Operation& op, const std::string* value) {
  if (value != nullptr && value->size() > wire::kMaxBroadcastBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a value of ", value->size(), " bytes; ",
                                                   wire::kMaxBroadcastBytes, " are allowed"));
  }
  if (const auto* allocate = std::get_if<AllocateOp>(&op)) return CheckAllocate(*allocate);
  if (const auto* create = std::get_if<CreateTeamOp>(&op)) return CheckRanks(team, create->ranks);
  if (const auto* broadcast = std::get_if<BroadcastOp>(&op)) {
    if (team.IndexOf(broadcast->root) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("root ", broadcast->root, " is not a member of team ", team.info.id));
    }
  }
  if (std::holds_alternative<DestroyTeamOp>(op) && team.info.id == kWorldTeam) {
    return absl::InvalidArgumentError("the world is not destroyed: leave the job");
  }
  if (const auto* grow = std::get_if<GrowOp>(&op)) {
    if (team.info.id != kWorldTeam)
      return absl::InvalidArgumentError("a heap grows by a call of the world team");
    if (grow->bytes == 0) return absl::InvalidArgumentError("a heap grows by more than 0 bytes");
  }
  return absl::OkStatus();
}

// The value that this member brings to a broadcast; null if it brings none.
const std::string* ValueOf(const Team& team, size_t index, const Operation& op) {
  const auto* broadcast = std::get_if<BroadcastOp>(&op);
  const bool is_root = broadcast != nullptr && broadcast->root == team.info.ranks[index];
  return is_root ? &broadcast->value : nullptr;
}

std::string What(const Team& team, const Operation& op) {
  return absl::StrCat(NameOf(op), " (team ", team.info.id, ", k=", team.next_k, "): ");
}

Team* FindPastTeam(Job& job, TeamId id) {
  for (Team& team : job.past_teams) {
    if (team.info.id == id) return &team;
  }
  return nullptr;
}

const Outcome* FindOutcome(const Team& team, uint64_t k) {
  if (team.history.empty() || k < team.history.front().k || k > team.history.back().k)
    return nullptr;
  return &team.history[k - team.history.front().k];
}

// Whether the member may ask for k: for its next one, or again for an earlier one.
absl::Status CheckPosition(const Team& team, size_t index, uint64_t k, bool destroyed) {
  const uint64_t position = team.position[index];
  const std::string what =
      absl::StrCat("rank ", team.info.ranks[index], " asks for k=", k, " of team ", team.info.id);
  if (destroyed && k >= position) {
    return absl::FailedPreconditionError(absl::StrCat(what, ", which was destroyed"));
  }
  if (k > position) {
    return absl::FailedPreconditionError(absl::StrCat(what, ", but its next is k=", position));
  }
  if (k > team.next_k) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ", but its k=", team.next_k, " has no outcome yet"));
  }
  return absl::OkStatus();
}

}  // namespace

// Asking.

void JobMachine::Impl::Operate(SessionId id, CallId call, const OperationSpec& spec) {
  const auto membership = FindMembership(id, spec.job);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  const Rank rank = membership->session->rank;
  if (job.state == JobState::kForming || job.state == JobState::kMapping) {
    return Answer(call,
                  absl::FailedPreconditionError(absl::StrCat(
                      "job '", job.name, "' is not ready: not every rank has mapped its peers")));
  }
  const auto found = job.teams.find(spec.team);
  Team* team = found == job.teams.end() ? FindPastTeam(job, spec.team) : &found->second;
  if (team == nullptr) {
    return Answer(
        call, absl::NotFoundError(absl::StrCat("job '", job.name, "' has no team ", spec.team)));
  }
  const int index = team->IndexOf(rank);
  if (index < 0) {
    return Answer(call, absl::PermissionDeniedError(
                            absl::StrCat("rank ", rank, " is not a member of team ", spec.team)));
  }
  const bool destroyed = found == job.teams.end();
  if (absl::Status s = CheckPosition(*team, index, spec.k, destroyed); !s.ok()) {
    return Answer(call, s);
  }
  if (spec.k == team->next_k) return Ask(job, *team, index, call, spec);
  const Outcome* const kept = FindOutcome(*team, spec.k);
  // A copy: trimming may drop it.
  const Outcome outcome = kept != nullptr
                              ? *kept
                              : Outcome{spec.k,
                                        absl::OutOfRangeError(absl::StrCat(
                                            "rank ", rank, " asks for k=", spec.k, " of team ",
                                            spec.team, ", whose outcome is no longer kept")),
                                        {}};
  if (spec.k == team->position[index]) ++team->position[index];
  TrimHistory(job, *team);
  ReplyWith(*team, index, call, outcome);
}

void JobMachine::Impl::Ask(Job& job, Team& team, size_t index, CallId call,
                           const OperationSpec& spec) {
  if (spec.k < team.position[index]) return WaitFor(job, team, index, call);  // a retry
  const Operation op = Normalized(spec.op);
  const std::string* value = ValueOf(team, index, spec.op);
  if (value != nullptr && value->size() > kMaxValueBytesPerJob - job.value_bytes) {
    return Answer(
        call, absl::ResourceExhaustedError(absl::StrCat("broadcast: irisd holds ", job.value_bytes,
                                                        " bytes of values for job '", job.name,
                                                        "' that some ranks have not asked for")));
  }
  ++team.position[index];
  TrimHistory(job, team);
  const size_t n = team.info.ranks.size();
  if (!team.op.has_value()) {
    team.op = PendingOp{.op = op, .first = index};
    team.op->asked.resize(n);
    team.op->calls.resize(n);
    team.op->last_epochs.resize(n);
  }
  PendingOp& pending = *team.op;
  pending.asked[index] = true;
  WaitFor(job, team, index, call);
  if (absl::Status s = CheckTeamAlive(job, team); !s.ok()) return Conclude(job, team, s);
  const std::string what = What(team, pending.op);
  if (absl::Status s = CheckForm(team, op, value); !s.ok()) {
    return Conclude(job, team,
                    absl::InvalidArgumentError(
                        absl::StrCat(NameOf(op), " (team ", team.info.id, ", k=", team.next_k,
                                     "): ", job.Who(team.info.ranks[index]), ": ", s.message())));
  }
  if (!Same(op, pending.op)) {
    return Conclude(job, team,
                    absl::InvalidArgumentError(absl::StrCat(
                        what, "the ranks differ: ", job.Who(team.info.ranks[pending.first]),
                        " asked for ", Describe(pending.op), ", ", job.Who(team.info.ranks[index]),
                        " asked for ", Describe(op))));
  }
  if (value != nullptr) {
    pending.value = *value;
    job.value_bytes += value->size();
  }
  if (const auto* destroy = std::get_if<DestroyTeamOp>(&op)) {
    pending.last_epochs[index] = destroy->last_barrier_epoch;
  }
  if (std::find(pending.asked.begin(), pending.asked.end(), false) == pending.asked.end()) {
    deadlines_.Clear({job.id, DeadlineKey::Kind::kOperation, team.info.id});
    return Execute(job, team);
  }
  const absl::Duration timeout = std::min(
      spec.timeout <= absl::ZeroDuration() ? limits_.operation_timeout_default : spec.timeout,
      limits_.operation_timeout_max);
  const DeadlineKey key{job.id, DeadlineKey::Kind::kOperation, team.info.id};
  const absl::Time deadline = now_.steady + timeout;
  deadlines_.Set(key, std::min(deadline, deadlines_.Get(key).value_or(deadline)));
}

void JobMachine::Impl::WaitFor(Job& job, Team& team, size_t index, CallId call) {
  auto& calls = team.op->calls[index];
  if (calls.size() >= kMaxWaitingCallsPerRank) {
    return Answer(call, absl::ResourceExhaustedError(absl::StrCat(
                            "rank ", team.info.ranks[index], " waits for k=", team.next_k,
                            " of team ", team.info.id, " in ", calls.size(), " calls already")));
  }
  calls.push_back(call);
  AddWaiting(call, {WaitingCall::Kind::kOperation, job.id, team.info.ranks[index], team.info.id});
}

absl::Status JobMachine::Impl::CheckTeamAlive(const Job& job, const Team& team) const {
  if (job.state == JobState::kBroken) {
    return absl::AbortedError(absl::StrCat("job '", job.name, "' is broken: ", job.broken_reason));
  }
  for (const Rank rank : team.info.ranks) {
    const RankState state = job.ranks[rank].state;
    if (state == RankState::kReady) continue;
    return absl::AbortedError(absl::StrCat("team ", team.info.id, " of job '", job.name,
                                           "': ", job.Who(rank),
                                           state == RankState::kLeft     ? " has left the job"
                                           : state == RankState::kEnding ? " hung up"
                                                                         : " died"));
  }
  return absl::OkStatus();
}

// Outcomes.

void JobMachine::Impl::Conclude(Job& job, Team& team, absl::Status status, OperationResult result) {
  PendingOp op = std::move(*team.op);
  team.op.reset();
  deadlines_.Clear({job.id, DeadlineKey::Kind::kOperation, team.info.id});
  job.value_bytes -= op.value.size();
  result.heap_bytes = job.heap_bytes;
  Outcome outcome{team.next_k++, std::move(status), std::move(result)};
  job.value_bytes += outcome.result.value.size();
  team.history.push_back(outcome);
  for (size_t index = 0; index < op.calls.size(); ++index) {
    for (const CallId call : op.calls[index]) ReplyWith(team, index, call, outcome);
  }
  TrimHistory(job, team);
  if (!outcome.status.ok()) {
    NoteFailure(job, outcome.status);
  }
}

void JobMachine::Impl::NoteFailure(const Job& job, const absl::Status& status) {
  const std::string reason(status.message());
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return Note(job, event::OperationTimeout{reason});
    case absl::StatusCode::kInvalidArgument:
      return Note(job, event::OperationMismatch{reason});
    default:
      return Note(job, event::OperationFailed{reason});
  }
}

void JobMachine::Impl::ReplyWith(const Team& team, size_t index, CallId call,
                                 const Outcome& outcome) {
  Outcome reply = outcome;
  if (reply.result.team.has_value()) {
    const auto& members = reply.result.team->ranks;
    if (std::find(members.begin(), members.end(), team.info.ranks[index]) == members.end())
      reply.result.team.reset();
  }
  Answer(call, absl::OkStatus(), std::move(reply));
}

void JobMachine::Impl::TrimHistory(Job& job, Team& team) {
  const uint64_t slowest = *std::min_element(team.position.begin(), team.position.end());
  size_t n_forget =
      team.history.size() > kMaxOutcomesPerTeam ? team.history.size() - kMaxOutcomesPerTeam : 0;
  // A value is big, and of no more use once every member has asked for what comes after it.
  for (size_t i = n_forget; i < team.history.size(); ++i) {
    const Outcome& outcome = team.history[i];
    if (outcome.k + 1 < slowest && !outcome.result.value.empty()) n_forget = i + 1;
  }
  for (; n_forget > 0; --n_forget) {
    job.value_bytes -= team.history.front().result.value.size();
    team.history.pop_front();
  }
}

void JobMachine::Impl::OperationTimedOut(Job& job, Team& team) {
  std::vector<std::string> missing;
  for (size_t index = 0; index < team.info.ranks.size(); ++index) {
    if (!team.op->asked[index]) missing.push_back(job.Who(team.info.ranks[index]));
  }
  Conclude(job, team,
           absl::DeadlineExceededError(absl::StrCat(
               What(team, team.op->op), "time is up: missing: ", absl::StrJoin(missing, ", "))));
}

void JobMachine::Impl::ConcludeDeadTeams(Job& job) {
  for (auto& [id, team] : job.teams) {
    if (!team.op.has_value()) continue;
    if (absl::Status s = CheckTeamAlive(job, team); !s.ok()) Conclude(job, team, s);
  }
}

// The operations.

void JobMachine::Impl::Execute(Job& job, Team& team) {
  const Operation op = team.op->op;
  if (const auto* allocate = std::get_if<AllocateOp>(&op))
    return ExecuteAllocate(job, team, *allocate);
  if (const auto* free = std::get_if<FreeOp>(&op)) return ExecuteFree(job, team, *free);
  if (const auto* create = std::get_if<CreateTeamOp>(&op))
    return ExecuteCreateTeam(job, team, *create);
  if (std::holds_alternative<DestroyTeamOp>(op)) return ExecuteDestroyTeam(job, team);
  if (const auto* grow = std::get_if<GrowOp>(&op)) return ExecuteGrow(job, team, *grow);
  OperationResult result;
  result.value = team.op->value;
  Conclude(job, team, absl::OkStatus(), std::move(result));
}

absl::StatusOr<uint64_t> JobMachine::Impl::Place(Job& job, HeapAllocation allocation) {
  if (job.allocations.size() >= wire::kMaxAllocationsPerJob) {
    return absl::ResourceExhaustedError(absl::StrCat("job '", job.name, "' has ",
                                                     job.allocations.size(),
                                                     " live allocations, the limit: free some"));
  }
  const auto offset = job.allocator.Allocate(allocation.bytes, allocation.alignment_bytes);
  if (!offset.ok()) return offset.status();
  if (!allocation.name.empty()) job.names.insert(allocation.name);
  allocation.created = now_.wall;
  job.allocations.emplace(*offset, std::move(allocation));
  return *offset;
}

absl::Status JobMachine::Impl::Unplace(Job& job, uint64_t offset_bytes) {
  const auto found = job.allocations.find(offset_bytes);
  IRIS_CHECK(found != job.allocations.end(), "what is given back was placed");
  if (!found->second.name.empty()) job.names.erase(found->second.name);
  job.allocations.erase(found);
  return job.allocator.Free(offset_bytes);
}

void JobMachine::Impl::ExecuteAllocate(Job& job, Team& team, const AllocateOp& op) {
  const std::string what = What(team, op);
  if (job.names.contains(op.name)) {
    return Conclude(
        job, team,
        absl::AlreadyExistsError(absl::StrCat(what, "an allocation named '", op.name,
                                              "' is live: free it or choose another name")));
  }
  const auto offset = Place(job, {.bytes = op.bytes,
                                  .alignment_bytes = op.alignment_bytes,
                                  .name = op.name,
                                  .tensor = op.tensor,
                                  .team = team.info.id,
                                  .k = team.next_k});
  if (offset.ok()) {
    ++team.n_allocations;
    Note(job, event::Allocated{team.info.id, team.next_k, *offset, op.bytes, op.name});
    OperationResult result;
    result.offset_bytes = *offset;
    return Conclude(job, team, absl::OkStatus(), std::move(result));
  }
  const absl::Status failed(offset.status().code(), absl::StrCat(what, offset.status().message()));
  const uint64_t needed = job.allocator.ShortfallBytes(op.bytes, op.alignment_bytes);
  if (needed == 0) return Conclude(job, team, failed);  // not for want of room
  RequestGrowth(job, team, needed, std::max(needed, job.heap_bytes_initial), failed);
}

void JobMachine::Impl::ExecuteFree(Job& job, Team& team, const FreeOp& op) {
  const std::string what = What(team, op);
  const auto found = job.allocations.find(op.offset_bytes);
  if (found == job.allocations.end()) {
    return Conclude(job, team,
                    absl::InvalidArgumentError(absl::StrCat(
                        what, "no live allocation starts at offset ", op.offset_bytes)));
  }
  if (found->second.sync) {
    return Conclude(
        job, team,
        absl::InvalidArgumentError(absl::StrCat(
            what, "offset ", op.offset_bytes, " is irisd's own area '", found->second.name, "'")));
  }
  if (found->second.team != team.info.id) {
    return Conclude(
        job, team,
        absl::InvalidArgumentError(absl::StrCat(what, "offset ", op.offset_bytes,
                                                " was allocated by team ", found->second.team)));
  }
  const absl::Status freed = Unplace(job, op.offset_bytes);
  IRIS_CHECK(freed.ok(), "the allocator knows every live allocation");
  --team.n_allocations;
  Note(job, event::Freed{team.info.id, team.next_k, op.offset_bytes});
  Conclude(job, team, absl::OkStatus());
}

std::optional<uint32_t> JobMachine::Impl::FreeSlot(const Job& job) const {
  for (uint32_t slot = 0; slot < wire::kMaxTeamsPerJob; ++slot) {
    const auto epoch = job.slot_epochs.find(slot);
    const bool worn_out = epoch != job.slot_epochs.end() && epoch->second >= kMaxSlotEpoch;
    if (!worn_out && !job.slots_in_use.contains(slot)) return slot;
  }
  return std::nullopt;
}

absl::StatusOr<TeamInfo> JobMachine::Impl::MakeTeam(Job& job, const std::vector<Rank>& ranks,
                                                    uint32_t slot) {
  Team team;
  team.info.id = job.next_team;
  team.info.ranks = ranks;
  team.info.barrier_slot = slot;
  team.info.barrier_start_epoch = static_cast<uint32_t>(job.slot_epochs[slot]);
  team.position.resize(ranks.size());
  if (job.team_sync_bytes > 0) {
    const auto offset = Place(job, {.bytes = job.team_sync_bytes,
                                    .alignment_bytes = wire::kMinAlignmentBytes,
                                    .name = absl::StrCat("iris.sync.", team.info.id),
                                    .team = team.info.id,
                                    .sync = true});
    if (!offset.ok()) return offset.status();
    team.info.sync_offset_bytes = *offset;
  }
  ++job.next_team;
  job.slots_in_use.insert(slot);
  return job.teams.emplace(team.info.id, std::move(team)).first->second.info;
}

void JobMachine::Impl::ExecuteCreateTeam(Job& job, Team& team, const CreateTeamOp& op) {
  const std::optional<uint32_t> slot = FreeSlot(job);
  if (!slot.has_value() || job.next_team == ~TeamId{0}) {
    return Conclude(
        job, team,
        absl::ResourceExhaustedError(absl::StrCat(What(team, op), "the job has ", job.teams.size(),
                                                  " teams and no slot for another: destroy some")));
  }
  const auto made = MakeTeam(job, op.ranks, *slot);
  if (made.ok()) {
    Note(job, event::TeamCreated{made->id, made->barrier_slot, made->ranks});
    OperationResult result;
    result.team = *made;
    return Conclude(job, team, absl::OkStatus(), std::move(result));
  }
  const absl::Status failed(made.status().code(),
                            absl::StrCat(What(team, op), made.status().message()));
  const uint64_t needed =
      job.allocator.ShortfallBytes(job.team_sync_bytes, wire::kMinAlignmentBytes);
  if (needed == 0) return Conclude(job, team, failed);  // not for want of room
  RequestGrowth(job, team, needed, std::max(needed, job.heap_bytes_initial), failed);
}

void JobMachine::Impl::ExecuteDestroyTeam(Job& job, Team& team) {
  if (team.n_allocations > 0) {
    return Conclude(
        job, team,
        absl::FailedPreconditionError(absl::StrCat(
            What(team, team.op->op), "its ", team.n_allocations, " live allocations come first")));
  }
  // Words of the slot only count up: the next team starts behind what any member says it has
  // reached.
  const uint32_t start = team.info.barrier_start_epoch;
  uint64_t furthest = 0;
  for (const uint32_t epoch : team.op->last_epochs) {
    const int32_t ahead = static_cast<int32_t>(epoch - start);
    if (ahead > 0) furthest = std::max(furthest, static_cast<uint64_t>(ahead));
  }
  job.slot_epochs[team.info.barrier_slot] = uint64_t{start} + furthest + 1;
  job.slots_in_use.erase(team.info.barrier_slot);
  if (job.team_sync_bytes > 0) {
    const absl::Status freed = Unplace(job, team.info.sync_offset_bytes);
    IRIS_CHECK(freed.ok(), "a team's barrier area is allocated");
  }
  Note(job, event::TeamDestroyed{team.info.id});
  Conclude(job, team, absl::OkStatus());
  // Only its last outcome can still be asked for.
  while (team.history.size() > 1) {
    job.value_bytes -= team.history.front().result.value.size();
    team.history.pop_front();
  }
  const TeamId id = team.info.id;
  job.past_teams.push_back(std::move(team));
  job.teams.erase(id);
  if (job.past_teams.size() > kMaxPastTeams) job.past_teams.pop_front();
}

void JobMachine::Impl::ExecuteGrow(Job& job, Team& team, const GrowOp& op) {
  if (team.op->grown) return Conclude(job, team, absl::OkStatus());
  RequestGrowth(
      job, team, op.bytes, op.bytes,
      absl::ResourceExhaustedError(absl::StrCat(What(team, op), "by ", op.bytes, " bytes")));
}

}  // namespace iris::server
