#include "server/state/change_table.h"

#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/arena.h"
#include "google/protobuf/repeated_field.h"
#include "proto/wire/limits.h"
#include "server/state/machine_state.pb.h"

namespace iris::server {
namespace {

using google::protobuf::RepeatedPtrField;

constexpr uint32_t kVersion = 1;  // of state::MachineState

// All messages are in the arena of the tables, and stay in it until the tables are destroyed.
struct TeamTable {
  state::Team* head = nullptr;  // without its history
  std::deque<state::Outcome*> outcomes;
};

struct JobTable {
  state::Job* head = nullptr;  // without the entries of the tables below
  std::vector<state::Member*> ranks;
  std::map<uint64_t, state::Allocation*> allocations;
  std::map<uint32_t, TeamTable> teams;
  std::deque<state::Sent*> outbox;
  state::PastTeams* past_teams = nullptr;
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

template <typename From, typename To>
void CopyCounters(const From& from, To* to) {
  to->set_next_job(from.next_job());
  to->set_next_segment(from.next_segment());
  to->set_next_grow(from.next_grow());
  to->set_stopping(from.stopping());
}

// Removes the elements from a field, and leaves them in their arena.
template <typename T>
std::vector<T*> Extract(RepeatedPtrField<T>* field) {
  std::vector<T*> all(static_cast<size_t>(field->size()));
  field->UnsafeArenaExtractSubrange(0, field->size(), all.data());
  return all;
}
template <typename T>
void Add(T* element, RepeatedPtrField<T>* field) {
  field->UnsafeArenaAddAllocated(element);
}

}  // namespace

struct ChangeTable::Tables {
  google::protobuf::Arena arena;
  state::Counters* counters = New<state::Counters>();
  state::Devices* devices = New<state::Devices>();
  std::map<uint64_t, state::Session*> sessions;
  std::map<uint64_t, JobTable> jobs;
  std::map<uint64_t, state::Segment*> segments;
  std::map<DeadlineKey, state::Deadline*> deadlines;
  state::KeptMemories* kept = New<state::KeptMemories>();
  std::map<Name, state::AbandonedJob*> abandoned;
  std::map<Name, state::RefusedJoin*> refused;

  template <typename Message>
  Message* New() {
    return google::protobuf::Arena::CreateMessage<Message>(&arena);
  }

  static absl::Status Apply(state::TeamChange* change, TeamTable* team) {
    state::PendingOp* const op = change->mutable_team()->mutable_op();
    if (op->members_size() == 0) {
      change->mutable_team()->clear_op();
    } else if (op->op().empty()) {
      if (team->head == nullptr || !team->head->has_op()) {
        return Bad("an operation without arguments");
      }
      op->mutable_op()->swap(*team->head->mutable_op()->mutable_op());
    }
    team->head = change->mutable_team();
    for (state::Outcome* const outcome : Extract(change->mutable_added())) {
      team->outcomes.push_back(outcome);
    }
    if (team->outcomes.size() < change->n_outcomes()) return Bad("outcomes that nobody has seen");
    while (team->outcomes.size() > change->n_outcomes()) team->outcomes.pop_front();
    return absl::OkStatus();
  }

  absl::Status Apply(state::JobChange* change, JobTable* job) {
    job->head = change->mutable_job();
    for (state::RankChange& rank : *change->mutable_ranks()) {
      if (rank.rank() >= wire::kMaxWorldRanks) return Bad("a rank beyond the most that a job has");
      // Ranks come in order. To fill a gap would take much more memory than the bytes that name it.
      if (rank.rank() > job->ranks.size()) return Bad("a rank without those before it");
      if (rank.rank() == job->ranks.size()) job->ranks.push_back(nullptr);
      job->ranks[rank.rank()] = rank.mutable_member();
    }
    for (const uint64_t offset : change->gone_allocations()) job->allocations.erase(offset);
    for (state::Allocation* const allocation : Extract(change->mutable_allocations())) {
      job->allocations[allocation->offset_bytes()] = allocation;
    }
    for (const uint32_t id : change->gone_teams()) job->teams.erase(id);
    for (state::TeamChange& team : *change->mutable_teams()) {
      const uint32_t id = team.team().info().id();
      if (absl::Status s = Apply(&team, &job->teams[id]); !s.ok()) return s;
    }
    if (change->has_past_teams()) job->past_teams = change->mutable_past_teams();
    for (state::Sent* const sent : Extract(change->mutable_sent())) job->outbox.push_back(sent);
    if (job->outbox.size() < change->n_sent()) return Bad("messages that nobody has seen");
    while (job->outbox.size() > change->n_sent()) job->outbox.pop_front();
    return absl::OkStatus();
  }
};

ChangeTable::ChangeTable() : tables_(std::make_unique<Tables>()) {}
ChangeTable::~ChangeTable() = default;

absl::Status ChangeTable::Begin(absl::string_view bytes) {
  tables_ = std::make_unique<Tables>();
  Tables& to = *tables_;
  auto* const from = to.New<state::MachineState>();
  if (!from->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("what it begins with is no state");
  }
  if (from->version() != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state of irisd has version ", from->version(), ", and this irisd reads ",
                     kVersion, ": start the irisd that wrote it, or a newer one"));
  }
  CopyCounters(*from, to.counters);
  to.devices->mutable_all()->Swap(from->mutable_devices());
  for (state::Session* const one : Extract(from->mutable_sessions())) to.sessions[one->id()] = one;
  for (state::Job* const one : Extract(from->mutable_jobs())) {
    JobTable& job = to.jobs[one->id()];
    job.head = one;
    job.ranks = Extract(one->mutable_ranks());
    for (state::Allocation* const each : Extract(one->mutable_allocations())) {
      job.allocations[each->offset_bytes()] = each;
    }
    for (state::Team* const each : Extract(one->mutable_teams())) {
      const std::vector<state::Outcome*> outcomes = Extract(each->mutable_history());
      job.teams[each->info().id()] = {each, {outcomes.begin(), outcomes.end()}};
    }
    const std::vector<state::Sent*> outbox = Extract(one->mutable_outbox());
    job.outbox = {outbox.begin(), outbox.end()};
    job.past_teams = to.New<state::PastTeams>();
    job.past_teams->mutable_all()->Swap(one->mutable_past_teams());
  }
  for (state::Segment* const one : Extract(from->mutable_segments())) to.segments[one->id()] = one;
  for (state::Deadline* const one : Extract(from->mutable_deadlines())) {
    to.deadlines[KeyOf(*one)] = one;
  }
  to.kept->mutable_all()->Swap(from->mutable_kept());
  for (auto* const one : Extract(from->mutable_abandoned())) to.abandoned[NameOf(*one)] = one;
  for (auto* const one : Extract(from->mutable_refused())) to.refused[NameOf(*one)] = one;
  return absl::OkStatus();
}

absl::Status ChangeTable::Apply(absl::string_view bytes) {
  Tables& to = *tables_;
  auto* const change = to.New<state::Change>();
  if (!change->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("these bytes are none");
  }
  to.counters = change->mutable_counters();
  if (change->has_devices()) to.devices = change->mutable_devices();
  for (const uint64_t id : change->gone_sessions()) to.sessions.erase(id);
  for (auto* const one : Extract(change->mutable_sessions())) to.sessions[one->id()] = one;
  for (const uint64_t id : change->gone_jobs()) to.jobs.erase(id);
  for (state::JobChange& one : *change->mutable_jobs()) {
    const uint64_t id = one.job().id();
    if (absl::Status s = to.Apply(&one, &to.jobs[id]); !s.ok()) return s;
  }
  for (const uint64_t id : change->gone_segments()) to.segments.erase(id);
  for (auto* const one : Extract(change->mutable_segments())) to.segments[one->id()] = one;
  for (const state::Deadline& one : change->gone_deadlines()) to.deadlines.erase(KeyOf(one));
  for (auto* const one : Extract(change->mutable_deadlines())) to.deadlines[KeyOf(*one)] = one;
  if (change->has_kept()) to.kept = change->mutable_kept();
  for (const state::AbandonedJob& one : change->gone_abandoned()) to.abandoned.erase(NameOf(one));
  for (auto* const one : Extract(change->mutable_abandoned())) to.abandoned[NameOf(*one)] = one;
  for (const state::RefusedJoin& one : change->gone_refused()) to.refused.erase(NameOf(one));
  for (auto* const one : Extract(change->mutable_refused())) to.refused[NameOf(*one)] = one;
  return absl::OkStatus();
}

std::shared_ptr<const state::MachineState> ChangeTable::Take() {
  const std::shared_ptr<Tables> from = std::exchange(tables_, std::make_unique<Tables>());
  auto* const to = from->New<state::MachineState>();
  to->set_version(kVersion);
  CopyCounters(*from->counters, to);
  to->mutable_devices()->Swap(from->devices->mutable_all());
  for (const auto& [id, session] : from->sessions) Add(session, to->mutable_sessions());
  for (const auto& [id, job] : from->jobs) {
    for (state::Member* const rank : job.ranks) Add(rank, job.head->mutable_ranks());
    for (const auto& [offset, allocation] : job.allocations) {
      Add(allocation, job.head->mutable_allocations());
    }
    for (const auto& [team_id, team] : job.teams) {
      for (state::Outcome* const outcome : team.outcomes) {
        Add(outcome, team.head->mutable_history());
      }
      Add(team.head, job.head->mutable_teams());
    }
    for (state::Sent* const sent : job.outbox) Add(sent, job.head->mutable_outbox());
    if (job.past_teams != nullptr) {
      job.head->mutable_past_teams()->Swap(job.past_teams->mutable_all());
    }
    Add(job.head, to->mutable_jobs());
  }
  for (const auto& [id, segment] : from->segments) Add(segment, to->mutable_segments());
  for (const auto& [key, deadline] : from->deadlines) Add(deadline, to->mutable_deadlines());
  to->mutable_kept()->Swap(from->kept->mutable_all());
  for (const auto& [name, abandoned] : from->abandoned) Add(abandoned, to->mutable_abandoned());
  for (const auto& [name, refused] : from->refused) Add(refused, to->mutable_refused());
  return {from, to};
}

}  // namespace iris::server
