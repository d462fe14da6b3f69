#include "server/state/change_table.h"

#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/state/machine_state.pb.h"

namespace iris::server {
namespace {

constexpr uint32_t kVersion = 1;  // of state::MachineState

struct TeamTable {
  state::Team head;
  std::deque<state::Outcome> outcomes;
};

struct JobTable {
  state::Job head;
  std::vector<state::Member> ranks;
  std::map<uint64_t, state::Allocation> allocations;
  std::map<uint32_t, TeamTable> teams;
  state::PastTeams past_teams;
};

using DeadlineKey = std::tuple<uint64_t, uint32_t, uint32_t>;
DeadlineKey KeyOf(const state::Deadline& deadline) {
  return {deadline.job(), deadline.kind(), deadline.index()};
}

using Name = std::tuple<uint32_t, uint64_t, uint32_t, std::string>;
template <typename Message>
Name NameOf(const Message& message) {
  const state::Party& party = message.party();
  return {party.uid(), party.container(), party.maker(), message.name()};
}

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a change of irisd's state: ", what));
}

}  // namespace

struct ChangeTable::Tables {
  state::Counters counters;
  state::Devices devices;
  std::map<uint64_t, state::Session> sessions;
  std::map<uint64_t, JobTable> jobs;
  std::map<uint64_t, state::Segment> segments;
  std::map<DeadlineKey, state::Deadline> deadlines;
  state::KeptMemories kept;
  std::map<Name, state::AbandonedJob> abandoned;
  std::map<Name, state::RefusedJoin> refused;

  static absl::Status Apply(state::TeamChange* change, TeamTable* team) {
    state::PendingOp* const op = change->mutable_team()->mutable_op();
    if (op->members_size() == 0) {
      change->mutable_team()->clear_op();
    } else if (op->op().empty()) {
      if (!team->head.has_op()) return Bad("an operation without arguments");
      op->mutable_op()->swap(*team->head.mutable_op()->mutable_op());
    }
    team->head.Swap(change->mutable_team());
    for (state::Outcome& outcome : *change->mutable_added()) {
      team->outcomes.push_back(std::move(outcome));
    }
    if (team->outcomes.size() < change->n_outcomes()) return Bad("outcomes that nobody has seen");
    while (team->outcomes.size() > change->n_outcomes()) team->outcomes.pop_front();
    return absl::OkStatus();
  }

  static absl::Status Apply(state::JobChange* change, JobTable* job) {
    job->head.Swap(change->mutable_job());
    for (state::RankChange& rank : *change->mutable_ranks()) {
      if (rank.rank() >= wire::kMaxRanks) return Bad("a rank beyond the most that a job has");
      if (rank.rank() >= job->ranks.size()) job->ranks.resize(rank.rank() + 1);
      job->ranks[rank.rank()].Swap(rank.mutable_member());
    }
    for (const uint64_t offset : change->gone_allocations()) job->allocations.erase(offset);
    for (state::Allocation& allocation : *change->mutable_allocations()) {
      job->allocations[allocation.offset_bytes()].Swap(&allocation);
    }
    for (const uint32_t id : change->gone_teams()) job->teams.erase(id);
    for (state::TeamChange& team : *change->mutable_teams()) {
      const uint32_t id = team.team().info().id();
      if (absl::Status s = Apply(&team, &job->teams[id]); !s.ok()) return s;
    }
    if (change->has_past_teams()) job->past_teams.Swap(change->mutable_past_teams());
    return absl::OkStatus();
  }
};

ChangeTable::ChangeTable() : tables_(std::make_unique<Tables>()) {}
ChangeTable::~ChangeTable() = default;

absl::Status ChangeTable::Begin(absl::string_view bytes) {
  state::MachineState from;
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("what it begins with is no state");
  }
  if (from.version() != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state of irisd has version ", from.version(), ", and this irisd reads ",
                     kVersion, ": start the irisd that wrote it, or a newer one"));
  }
  tables_ = std::make_unique<Tables>();
  Tables& to = *tables_;
  to.counters.set_next_job(from.next_job());
  to.counters.set_next_segment(from.next_segment());
  to.counters.set_next_grow(from.next_grow());
  to.counters.set_stopping(from.stopping());
  to.devices.mutable_all()->Swap(from.mutable_devices());
  for (state::Session& one : *from.mutable_sessions()) to.sessions[one.id()].Swap(&one);
  for (state::Job& one : *from.mutable_jobs()) {
    JobTable& job = to.jobs[one.id()];
    for (state::Member& rank : *one.mutable_ranks()) job.ranks.emplace_back().Swap(&rank);
    for (state::Allocation& each : *one.mutable_allocations()) {
      job.allocations[each.offset_bytes()].Swap(&each);
    }
    for (state::Team& each : *one.mutable_teams()) {
      TeamTable& team = job.teams[each.info().id()];
      for (state::Outcome& outcome : *each.mutable_history()) {
        team.outcomes.emplace_back().Swap(&outcome);
      }
      each.clear_history();
      team.head.Swap(&each);
    }
    job.past_teams.mutable_all()->Swap(one.mutable_past_teams());
    one.clear_ranks();
    one.clear_allocations();
    one.clear_teams();
    job.head.Swap(&one);
  }
  for (state::Segment& one : *from.mutable_segments()) to.segments[one.id()].Swap(&one);
  for (state::Deadline& one : *from.mutable_deadlines()) to.deadlines[KeyOf(one)].Swap(&one);
  to.kept.mutable_all()->Swap(from.mutable_kept());
  for (state::AbandonedJob& one : *from.mutable_abandoned()) to.abandoned[NameOf(one)].Swap(&one);
  for (state::RefusedJoin& one : *from.mutable_refused()) to.refused[NameOf(one)].Swap(&one);
  return absl::OkStatus();
}

absl::Status ChangeTable::Apply(absl::string_view bytes) {
  state::Change change;
  if (!change.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("these bytes are none");
  }
  Tables& to = *tables_;
  to.counters = change.counters();
  if (change.has_devices()) to.devices.Swap(change.mutable_devices());
  for (const uint64_t id : change.gone_sessions()) to.sessions.erase(id);
  for (state::Session& one : *change.mutable_sessions()) to.sessions[one.id()].Swap(&one);
  for (const uint64_t id : change.gone_jobs()) to.jobs.erase(id);
  for (state::JobChange& one : *change.mutable_jobs()) {
    const uint64_t id = one.job().id();
    if (absl::Status s = Tables::Apply(&one, &to.jobs[id]); !s.ok()) return s;
  }
  for (const uint64_t id : change.gone_segments()) to.segments.erase(id);
  for (state::Segment& one : *change.mutable_segments()) to.segments[one.id()].Swap(&one);
  for (const state::Deadline& one : change.gone_deadlines()) to.deadlines.erase(KeyOf(one));
  for (state::Deadline& one : *change.mutable_deadlines()) to.deadlines[KeyOf(one)].Swap(&one);
  if (change.has_kept()) to.kept.Swap(change.mutable_kept());
  for (const state::AbandonedJob& one : change.gone_abandoned()) to.abandoned.erase(NameOf(one));
  for (state::AbandonedJob& one : *change.mutable_abandoned()) to.abandoned[NameOf(one)].Swap(&one);
  for (const state::RefusedJoin& one : change.gone_refused()) to.refused.erase(NameOf(one));
  for (state::RefusedJoin& one : *change.mutable_refused()) to.refused[NameOf(one)].Swap(&one);
  return absl::OkStatus();
}

std::string ChangeTable::Take() {
  const std::unique_ptr<Tables> from = std::exchange(tables_, std::make_unique<Tables>());
  state::MachineState to;
  to.set_version(kVersion);
  to.set_next_job(from->counters.next_job());
  to.set_next_segment(from->counters.next_segment());
  to.set_next_grow(from->counters.next_grow());
  to.set_stopping(from->counters.stopping());
  to.mutable_devices()->Swap(from->devices.mutable_all());
  for (auto& [id, session] : from->sessions) to.add_sessions()->Swap(&session);
  for (auto& [id, job] : from->jobs) {
    state::Job* const one = to.add_jobs();
    one->Swap(&job.head);
    for (state::Member& rank : job.ranks) one->add_ranks()->Swap(&rank);
    for (auto& [offset, allocation] : job.allocations) one->add_allocations()->Swap(&allocation);
    for (auto& [team_id, team] : job.teams) {
      state::Team* const whole = one->add_teams();
      whole->Swap(&team.head);
      for (state::Outcome& outcome : team.outcomes) whole->add_history()->Swap(&outcome);
    }
    one->mutable_past_teams()->Swap(job.past_teams.mutable_all());
  }
  for (auto& [id, segment] : from->segments) to.add_segments()->Swap(&segment);
  for (auto& [key, deadline] : from->deadlines) to.add_deadlines()->Swap(&deadline);
  to.mutable_kept()->Swap(from->kept.mutable_all());
  for (auto& [name, abandoned] : from->abandoned) to.add_abandoned()->Swap(&abandoned);
  for (auto& [name, refused] : from->refused) to.add_refused()->Swap(&refused);
  return to.SerializeAsString();
}

}  // namespace iris::server
