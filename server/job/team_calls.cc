// The sequence of a team's operations. OperateCall (inputs.h) documents the outcome of a call.
#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "server/job/teams.h"

namespace iris::server {
namespace {

bool Same(const Operation& a, const Operation& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b](const auto& args) {
        using Args = std::decay_t<decltype(args)>;
        const Args& others = std::get<Args>(b);
        if constexpr (requires { &Args::Same; }) {
          return args.Same(others);
        } else {
          return args == others;
        }
      },
      a);
}

void Prepare(Operation& op, const Team& team, size_t index) {
  std::visit(
      [&](auto& args) {
        if constexpr (requires { &std::decay_t<decltype(args)>::Prepare; }) {
          args.Prepare(team, index);
        }
      },
      op);
}

// Merges `asked`, which is the Same as `pending`, into `pending`.
void Merge(Operation& pending, const Operation& asked, const Team& team) {
  std::visit(
      [&](auto& args) {
        using Args = std::decay_t<decltype(args)>;
        if constexpr (requires { &Args::Merge; }) args.Merge(std::get<Args>(asked), team);
      },
      pending);
}

bool KeepsNothing(const Operation& op) {
  return std::visit(
      [](const auto& args) {
        return requires { args.kKeepsNothing; };
      },
      op);
}

// Calls Check, and refuses what jobs of several nodes do not have.
absl::Status CheckIn(const Job& job, const Operation& op, const Team& team) {
  const auto maps_others = [](const auto& each) { return each.second.with_previous; };
  if (std::holds_alternative<RegisterOp>(op) && job.nodes.has_value() &&
      std::any_of(job.nodes->all.begin(), job.nodes->all.end(), maps_others)) {
    return absl::UnimplementedError(
        "memory is not registered in a job whose nodes map each other's memory: allocate it");
  }
  return Check(op, team);
}

Team* FindPastTeam(Job& job, TeamId id) {
  const auto is = [id](const Team& team) { return team.info.id == id; };
  if (std::none_of(job.past_teams->begin(), job.past_teams->end(), is)) return nullptr;
  std::deque<Team>& teams = job.past_teams.Change();
  return &*std::find_if(teams.begin(), teams.end(), is);
}

// Returns OK if the rank may ask for k: for its next one, or again for an earlier one.
absl::Status CheckPosition(const Team& team, size_t index, uint64_t k, bool destroyed) {
  const uint64_t position = team.position[index];
  const std::string what = absl::StrCat("rank ", team.info.ranks[index], " asks for operation #", k,
                                        " of ", TeamText(team.info.id));
  if (destroyed && k >= position) {
    return Error(Code::kFailedPrecondition, what, ", which was destroyed");
  }
  if (k > position) {
    return Error(Code::kFailedPrecondition, what, ", but its next is #", position);
  }
  if (k > team.next_k) {
    return Error(Code::kFailedPrecondition, what, ", but #", team.next_k, " has no outcome yet");
  }
  return absl::OkStatus();
}

}  // namespace

std::string What(const Operation& op, const Team& team) {
  const char* const name = std::visit([](const auto& args) { return args.kName; }, op);
  return absl::StrCat(name, " #", team.next_k, " (", TeamText(team.info.id), "): ");
}

std::string Describe(const Operation& op) {
  return std::visit(
      [](const auto& args) {
        if constexpr (requires { args.Arguments(); }) return args.kName + args.Arguments();
        return std::string(args.kName);
      },
      op);
}

absl::Status Check(const Operation& op, const Team& team) {
  return std::visit(
      [&team](const auto& args) -> absl::Status {
        if constexpr (!requires { args.kOfOneRank; }) {
          if (IsOwnTeam(team.info.id)) {
            return absl::InvalidArgumentError(
                "a rank alone allocates, registers, publishes, opens and frees, and nothing else: "
                "ask a team");
          }
        }
        if constexpr (requires { args.Check(team); }) return args.Check(team);
        return absl::OkStatus();
      },
      op);
}

uint64_t HeldBytes(const Operation& op) {
  return std::visit(
      [](const auto& args) -> uint64_t {
        if constexpr (requires { args.HeldBytes(); }) return args.HeldBytes();
        return 0;
      },
      op);
}

void Teams::On(const OperateCall& in) {
  const auto& [id, call, spec] = in;
  const auto membership = FindMembership(id, spec.job);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  const Rank rank = membership->rank;
  if (job.is_starting()) {
    return Refuse(call, Code::kFailedPrecondition, "job '", job.name,
                  "' is not ready: not every rank has mapped its peers");
  }
  Team* team = job.teams.Find(spec.team);
  const bool destroyed = team == nullptr;
  if (destroyed) team = FindPastTeam(job, spec.team);
  if (team == nullptr) {
    return Refuse(call, Code::kNotFound, "job '", job.name, "' has no team ", spec.team);
  }
  const int index = team->IndexOf(rank);
  if (index < 0) {
    return Refuse(call, Code::kPermissionDenied, "rank ", rank, " is not a member of team ",
                  spec.team);
  }
  if (absl::Status s = CheckPosition(*team, index, spec.k, destroyed); !s.ok()) {
    return Answer(call, s);
  }
  if (spec.k == team->next_k) return Ask(job, *team, index, call, spec);
  const Outcome* const kept = team->FindOutcome(spec.k);
  // Makes a copy, since trimming may drop the outcome.
  const Outcome outcome =
      kept != nullptr
          ? *kept
          : Outcome{spec.k,
                    Error(Code::kOutOfRange, "rank ", rank, " asks for operation #", spec.k, " of ",
                          TeamText(spec.team), ", whose outcome is no longer kept"),
                    {}};
  if (spec.k == team->position[index]) ++team->position[index];
  job.TrimHistory(*team);
  ReplyWith(*team, index, call, outcome);
}

void Teams::Ask(Job& job, Team& team, size_t index, CallId call, const OperationSpec& spec) {
  if (spec.k < team.position[index]) {  // a retry
    if (!spec.only_thread) team.op->asked_alone[index] = 0;
    return WaitFor(job, team, index, call);
  }
  Operation op = spec.op;
  Prepare(op, team, index);
  absl::Status full;
  if (HeldBytes(op) > 0 && job.value_bytes + HeldBytes(op) > kMaxValueBytesPerJob) {
    full = Error(Code::kResourceExhausted, What(op, team), "irisd holds ",
                 base::SizeText(job.value_bytes), " of values for job '", job.name,
                 "' that some ranks have not asked for; ", base::SizeText(kMaxValueBytesPerJob),
                 " are allowed: iris-ctl waits says which ranks");
    // For a rank of another node, which has no call here, it is the outcome.
    if (call.value != 0) return Answer(call, full);
  }
  ++team.position[index];
  job.TrimHistory(team);
  if (!team.op.has_value()) {
    team.op = NewPending(team, op, index);
    job.value_bytes += HeldBytes(op);
  }
  PendingOp& pending = *team.op;
  pending.asked[index] = true;
  if (spec.only_thread) pending.asked_alone[index] = ++job.moment;
  const Rank rank = team.info.ranks[index];
  if (call.value != 0) WaitFor(job, team, index, call);
  if (!job.Decides()) {
    TakeForLeader(job, team, index, &op);
    return TellNodes(job, OperationAsked{team.info.id, spec.k, rank, spec.timeout, spec.only_thread,
                                         std::move(op)});
  }
  if (absl::Status s = job.CheckAlive(team); !s.ok()) return Conclude(job, team, s);
  const auto fail = [&](const absl::Status& status) {
    // Other nodes free what the operation names that they are told.
    if (!job.nodes.has_value()) FreeFailed(job, team, op);
    Conclude(job, team, status);
  };
  if (!full.ok()) return fail(full);
  if (absl::Status s = CheckIn(job, op, team); !s.ok()) {
    return fail(WithPrefix(absl::StrCat(What(op, team), job.Who(rank), ": "), s));
  }
  // Later ranks only complete what irisd already keeps, so `room` counts for the first rank only.
  if (index == pending.first && !KeepsNothing(op) && !spec.room.ok()) {
    return fail(WithPrefix(What(op, team), spec.room));
  }
  if (!Same(op, pending.op)) {
    return fail(Error(Code::kInvalidArgument, What(pending.op, team),
                      "the ranks differ: ", job.Who(team.info.ranks[pending.first]), " asked for ",
                      Describe(pending.op), ", ", job.Who(rank), " asked for ", Describe(op)));
  }
  if (index != pending.first) {
    job.value_bytes -= HeldBytes(pending.op);
    // A rank without a value does not mark a value that was already received as changed.
    if (HeldBytes(op) > 0 || HeldBytes(pending.op) == 0) Merge(pending.op.Change(), op, team);
    job.value_bytes += HeldBytes(pending.op);
  }
  if (absl::Status s = TakeGiven(job, team, index, op); !s.ok()) {
    return fail(WithPrefix(absl::StrCat(What(op, team), job.Who(rank), ": "), s));
  }
  const DeadlineKey key{job.id, Due::kOperation, team.info.id};
  if (pending.AllAsked()) {
    deadlines_.Clear(key);
    return Execute(job, team);
  }
  const absl::Duration timeout = std::min(
      spec.timeout <= absl::ZeroDuration() ? limits_.operation_timeout_default : spec.timeout,
      limits_.operation_timeout_max);
  const absl::Time deadline = now_.steady + timeout;
  const std::optional<absl::Time> earlier = deadlines_.Get(key);
  if (!earlier.has_value() || *earlier > deadline) {
    pending.hurried = index;
    pending.hurried_timeout = timeout;
    deadlines_.Set(key, deadline);
  }
  if (spec.only_thread) LookForStuck(job);
}

PendingOp Teams::NewPending(const Team& team, Operation op, size_t first) const {
  const size_t n = team.info.ranks.size();
  PendingOp pending{.op = std::move(op), .first = first, .since = now_.steady};
  pending.asked.resize(n);
  pending.calls.resize(n);
  pending.given.resize(n);
  pending.asked_alone.resize(n);
  return pending;
}

absl::Status Teams::Follow(Job& job, const OperationDecided& decided) {
  Team* const team = job.TeamOfNodes(decided.team);
  if (team == nullptr) return absl::InternalError("there is no such team here");
  if (decided.k < team->next_k) return absl::OkStatus();  // concluded when the job broke
  if (decided.k > team->next_k) return absl::InternalError("an operation before it is missing");
  const uint64_t held = team->op.has_value() ? HeldBytes(team->op->op) : 0;
  if (decided.status.ok()) {
    if (absl::Status s = CheckIn(job, decided.op, *team); !s.ok()) return s;
    if (absl::Status s = CheckGiven(job, *team, decided.op); !s.ok()) return s;
    if (job.value_bytes - held + HeldBytes(decided.op) > job.MaxValueBytes()) {
      return absl::ResourceExhaustedError("values of broadcasts take too much memory");
    }
  }
  if (!team->op.has_value()) team->op = NewPending(*team, FreeOp(), 0);
  // One that has failed may free memory.
  if (decided.status.ok() || std::holds_alternative<ConfirmOp>(decided.op)) {
    job.value_bytes += HeldBytes(decided.op) - held;
    team->op->op = decided.op;
  }
  if (!decided.status.ok()) {
    Conclude(job, *team, CleanStatus(decided.status));
    return absl::OkStatus();
  }
  team->op->grown = true;  // the leader has published the growth that it needed
  Execute(job, *team);
  if (!job.teams.contains(decided.team)) return absl::OkStatus();  // it was its last operation
  const Outcome& outcome = team->history.back();
  if (!outcome.status.ok()) return outcome.status;
  if (outcome.result.offset_bytes == decided.offset_bytes) return absl::OkStatus();
  return absl::InternalError("the heap has another layout here");
}

void Teams::WaitFor(Job& job, Team& team, size_t index, CallId call) {
  auto& calls = team.op->calls[index];
  if (calls.size() >= kMaxWaitingCallsPerRank) {
    return Refuse(call, Code::kResourceExhausted, "rank ", team.info.ranks[index],
                  " waits for operation #", team.next_k, " of ", TeamText(team.info.id), " in ",
                  calls.size(), " calls already");
  }
  calls.push_back(call);
  AddWaiting(call, {WaitingCall::Kind::kOperation, job.id, team.info.ranks[index], team.info.id});
}

void Teams::Conclude(Job& job, Team& team, absl::Status status, OperationResult result) {
  PendingOp op = std::move(*team.op);
  team.op.reset();
  deadlines_.Clear({job.id, Due::kOperation, team.info.id});
  job.value_bytes -= HeldBytes(op.op);
  for (const GivenMemory& given : op.given) {
    job.n_pieces -= given.pieces.size();
    DropAll(given.pieces);
  }
  if (!status.ok()) FreeFailed(job, team, op.op);
  result.heap_bytes = job.heap_bytes;
  const Outcome outcome{team.next_k++, std::move(status), std::move(result)};
  job.AddOutcome(team, outcome);
  if (job.nodes.has_value() && job.nodes->leads()) {
    TellNodes(job, OperationDecided{team.info.id, outcome.k, outcome.status,
                                    outcome.result.offset_bytes, *op.op});
  }
  for (size_t index = 0; index < op.calls.size(); ++index) {
    for (const CallId call : op.calls[index]) ReplyWith(team, index, call, outcome);
  }
  job.TrimHistory(team);
  if (outcome.status.ok()) return;
  const std::string reason(outcome.status.message());
  switch (outcome.status.code()) {
    case Code::kDeadlineExceeded:
      return Note(job, event::OperationTimeout{reason});
    case Code::kInvalidArgument:
      return Note(job, event::OperationMismatch{reason});
    default:
      return Note(job, event::OperationFailed{reason});
  }
}

void Teams::ReplyWith(const Team& team, size_t index, CallId call, const Outcome& outcome) {
  Outcome reply = outcome;
  for (TeamInfo& made : std::exchange(reply.result.teams, {})) {
    const auto& ranks = made.ranks;
    if (std::count(ranks.begin(), ranks.end(), team.info.ranks[index]) > 0) {
      reply.result.team = std::move(made);
    }
  }
  Answer(call, absl::OkStatus(), std::move(reply));
}

void Teams::OperationTimedOut(Job& job, Team& team) {
  const std::vector<Rank> missing = team.Missing();
  Conclude(job, team,
           Error(Code::kDeadlineExceeded, What(team.op->op, team), "time is up after ",
                 absl::FormatDuration(team.op->hurried_timeout), ", the timeout of ",
                 job.Who(team.info.ranks[team.op->hurried]), ", which was over first: missing: ",
                 absl::StrJoin(job.Who(missing), ", "), "; ", WhereAre(job, missing)));
}

void Teams::ConcludeDeadTeams(Job& job) {
  for (const auto& [id, team] : job.teams) {
    if (!team.op.has_value() || !job.Decides()) continue;
    if (absl::Status s = job.CheckAlive(team); !s.ok()) Conclude(job, job.teams.at(id), s);
  }
  AnswerBarriersOfDeadTeams(job);
}

void Teams::Execute(Job& job, Team& team) {
  Run run{.job = job,
          .team = team,
          .wall = now_.wall,
          .grown = team.op->grown,
          .granularity_bytes = granularity_bytes_,
          .given = GivenBy(job, team)};
  const Operation& op = team.op->op;
  Executed executed = std::visit([&run](const auto& args) { return args.Execute(run); }, op);
  for (EventDetail& event : run.events) Note(job, std::move(event));
  if (!executed.ok()) {
    return Conclude(job, team, WithPrefix(What(team.op->op, team), executed.status()));
  }
  if (auto* needs = std::get_if<NeedsGrowth>(&*executed)) {
    needs->unfit = WithPrefix(What(team.op->op, team), needs->unfit);
    if (!job.Decides()) return Conclude(job, team, needs->unfit);
    return RequestGrowth(job, team, *needs);
  }
  if (auto* adopts = std::get_if<Adopts>(&*executed)) {
    return Adopt(job, team, std::move(*adopts));
  }
  DropAll(std::exchange(job.given_back, {}));
  Concluded& concluded = std::get<Concluded>(*executed);
  Conclude(job, team, absl::OkStatus(), std::move(concluded.result));
  if (concluded.ends_team) job.EndTeam(team);
}

}  // namespace iris::server
