// JobMachine over random operations. Once against ReferenceJobs: every reply, state, heap and
// deadline must be as predicted. Once in chaos, with scarce memory and small limits and no
// reference: what must hold whatever happens. After every input both check the invariants, that
// every call is answered at most once, and that each (team, k) has one outcome; at the end, that
// every call was answered, and that nothing is left when all sessions are gone. Every history is
// recorded, and the recording replayed: the same inputs must have the same effects, byte for byte.
// The state is written and read back on the way, and the machine that is made of it must go on in
// step. In chaos also over restarts: calls are forgotten and made again, and some of what there was
// is not kept.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/wire/limits.h"
#include "server/heap/ledger.h"
#include "server/job/events.h"
#include "server/job/job_machine.h"
#include "server/job/teams.h"
#include "server/job/testing/fake_clock.h"
#include "server/recording/codec.h"
#include "server/recording/recorder.h"
#include "server/recording/replay.h"
#include "server/sandbox/sanitizers.h"
#include "server/state/change_table.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"
#include "tests/model/reference_jobs.h"
#include "tests/model/seed.h"

namespace iris::model {
namespace {

using server::AwaitBarrierCall;
using server::BarrierAnswer;
using server::CallCancelled;
using server::CreateSegment;
using server::DropSegment;
using server::Effect;
using server::Effects;
using server::GrowId;
using server::GrowMappedCall;
using server::JobLimits;
using server::JobMachine;
using server::JobSnapshot;
using server::JoinCall;
using server::JoinSpec;
using server::LeaveCall;
using server::Ledger;
using server::MachineState;
using server::MappedCall;
using server::NotifyWatch;
using server::OperateCall;
using server::ProcessGone;
using server::Reply;
using server::ResumeCall;
using server::SegmentCreated;
using server::SegmentDropped;
using server::SessionHungUp;
using server::SessionOpened;
using server::WatchOpened;

// Under sanitizers an operation takes ten times as long.
constexpr uint64_t kOps = server::kSanitized ? 20000 : 100000;
constexpr uint64_t kGranularity = 16384;
constexpr size_t kMaxSessions = 14;
constexpr uint64_t kJournalEvery = 1000;  // the journal is read after so many inputs

struct Conditions {
  JobLimits limits;
  uint64_t device_bytes = 1ull << 40;
  // After every so many inputs the state is written and read back; a machine that is made of it
  // gets all that follows, too. IRIS_TEST_STATE_EVERY overrides it.
  uint64_t state_every = 50;
  bool with_reference = true;
  bool restarts = false;  // irisd is restarted at times
};

class Driver {
 public:
  // What happens is recorded in the file `recording`. The state lies under a directory beside it.
  Driver(uint64_t seed, const Conditions& conditions, const std::string& recording)
      : random_(seed),
        with_reference_(conditions.with_reference),
        restarts_(conditions.restarts),
        state_every_(FromEnvironment("IRIS_TEST_STATE_EVERY", conditions.state_every)),
        setup_(SetupOf(conditions)),
        directory_(recording + ".state"),
        machine_(setup_.limits, setup_.MakeLedger()),
        reference_(kGranularity, &clock_, setup_.limits.max_heap_bytes_per_uid != 0) {
    unlink(recording.c_str());
    auto recorder = server::Recorder::Create(recording);
    if (!recorder.ok()) ADD_FAILURE() << recorder.status();
    recorder_ = *std::move(recorder);
    recorder_->Begin(setup_);
    const absl::Status begun = stored_.Begin(MachineState::Encode(machine_));
    if (!begun.ok()) ADD_FAILURE() << begun;
    std::filesystem::create_directory(directory_);
    auto journal =
        server::Journal::Create(directory_, {}, [this] { return MachineState::Encode(machine_); });
    if (!journal.ok()) ADD_FAILURE() << journal.status();
    journal_ = *std::move(journal);
  }
  ~Driver() { std::filesystem::remove_all(directory_); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  void Step() {
    if (restarts_ && random_.OneIn(300)) return Restart();
    const uint64_t dice = random_.Below(1000);
    if (dice < 50) return Open();
    if (dice < 150) return Join();
    if (dice < 270) return Create();
    if (dice < 320) return Drop();
    if (dice < 390) return Mapped();
    if (dice < 860) return Operate();
    if (dice < 880) return AwaitBarrier();
    if (dice < 955) return GrowMapped();
    if (dice < 962) return Leave();
    if (dice < 966) return HangUp();
    if (dice < 971) return Gone();
    if (dice < 976) return Resume();
    if (dice < 981) return Cancel();
    if (dice < 985) return Watch();
    Tick();
  }

  // Everything ends: every session goes, every worker finishes.
  void Finish() {
    for (const SessionId id : Keys(sessions_)) {
      if (random_.OneIn(2)) Input(SessionHungUp{id, "test"}, [&] { reference_.HangUp(id); });
      Input(ProcessGone{id}, [&] { reference_.Gone(id); });
      sessions_.erase(id);
    }
    while (!creating_.empty()) Create();
    while (!dropping_.empty()) Drop();
    ASSERT_EQ(machine_.ledger().used_bytes_total(), 0u);
    ASSERT_TRUE(machine_.Jobs().empty());
    ASSERT_TRUE(machine_.Sessions().empty());
    ASSERT_EQ(machine_.kept_bytes(), 0u);
    ASSERT_TRUE(pending_.empty()) << "a call was never answered";
    ASSERT_EQ(machine_.NextDeadline(), absl::InfiniteFuture());
    ASSERT_TRUE(pages_.empty());
  }

  uint64_t n_dropped() const { return recorder_->n_dropped(); }

  void PrintCounts() const {
    std::printf("  %-32s %zu\n", "bytes of the largest state", state_bytes_max_);
    std::printf("  %-32s %llu\n", "bytes of a change, on average",
                static_cast<unsigned long long>(change_bytes_ / n_inputs_));
    for (const auto& [what, n] : counts_)
      std::printf("  %-32s %llu\n", what.c_str(), static_cast<unsigned long long>(n));
  }

 private:
  static server::MachineSetup SetupOf(const Conditions& conditions) {
    server::MachineSetup setup;
    setup.limits = conditions.limits;
    setup.devices = {{"dev-0", conditions.device_bytes, kGranularity, 0},
                     {"dev-1", conditions.device_bytes, 4096, 0}};
    return setup;
  }

  struct Member {
    JobId job;
    Rank rank = 0;
  };
  struct Session {
    int64_t pid = 0;
    uint32_t uid = 0;
    bool ending = false;
  };
  struct Asked {
    JobId job;
    TeamId team = 0;
    uint64_t k = 0;
  };

  template <typename Map>
  std::vector<typename Map::key_type> Keys(const Map& map) {
    std::vector<typename Map::key_type> keys;
    for (const auto& [key, value] : map) keys.push_back(key);
    return keys;
  }
  template <typename Map>
  typename Map::key_type AnyKey(const Map& map) {
    return std::next(map.begin(), random_.Below(map.size()))->first;
  }
  SessionId AnySession() {
    return sessions_.empty() || random_.OneIn(200) ? SessionId{9999} : AnyKey(sessions_);
  }
  CallId NewCall() {
    const CallId call{next_call_++};
    pending_.insert(call);
    return call;
  }
  absl::Duration SomeTimeout() { return absl::Seconds(1 + random_.Below(90)); }

  // Inputs.

  void Open() {
    if (sessions_.size() >= kMaxSessions) return;
    Session session{.pid = static_cast<int64_t>(1000 + next_session_),
                    .uid = static_cast<uint32_t>(random_.Below(2))};
    if (random_.OneIn(3)) {  // another session of a process that has one
      for (const auto& [other_id, other] : sessions_) {
        if (other.ending || random_.OneIn(4)) session = {.pid = other.pid, .uid = other.uid};
      }
    }
    OpenAs(session.pid, session.uid);
  }

  void OpenAs(int64_t pid, uint32_t uid) {
    const SessionId id{next_session_++};
    const Session session{.pid = pid, .uid = uid};
    sessions_[id] = session;
    const absl::Duration age = absl::Seconds(random_.Below(60));
    Input(SessionOpened{id, {.pid = session.pid, .party = {session.uid}, .process_start = 5}, age},
          [&] { reference_.OpenSession(id, session.pid, session.uid, age); });
  }

  // The connection of a session that joined is lost, and the Join is made again: the cancellation
  // of the earlier call may come before, after, or never.
  void JoinAgain() {
    const auto [id, asked] =
        *std::next(numbered_joins_.begin(), random_.Below(numbered_joins_.size()));
    const CallId earlier = join_calls_[id];
    if (random_.OneIn(2) && pending_.contains(earlier)) CancelCall(earlier);
    JoinSpec spec = asked;
    spec.timeout = SomeTimeout();
    const CallId call = NewCall();
    join_calls_[id] = call;
    Input(JoinCall{id, call, spec}, [&] { reference_.Join(id, call, spec); });
    if (random_.OneIn(2)) {
      Input(CallCancelled{earlier}, [&] { reference_.Cancelled(earlier); });
    }
  }

  void Join() {
    std::erase_if(numbered_joins_,
                  [&](const auto& entry) { return !sessions_.contains(entry.first); });
    if (!numbered_joins_.empty() && random_.OneIn(4)) return JoinAgain();
    const SessionId id = AnySession();
    JoinSpec spec;
    spec.job = random_.OneIn(2) ? "a" : "b";
    // A job's size is a property of its name, so that joins meet.
    const auto session = sessions_.find(id);
    const uint32_t uid = session == sessions_.end() ? 0 : session->second.uid;
    spec.n_ranks = spec.job == "a" ? 2 - static_cast<int32_t>(uid) : 4 - static_cast<int32_t>(uid);
    spec.rank = static_cast<int32_t>(random_.Below(spec.n_ranks));
    spec.heap_bytes = 2 * kGranularity - 100;
    spec.local_rank = spec.rank;
    spec.team_sync_bytes = 3000;
    spec.timeout = SomeTimeout();
    switch (random_.Below(40)) {
      case 0:
        ++spec.n_ranks;
        break;
      case 1:
        spec.heap_bytes *= 2;
        break;
      case 2:
        spec.rank = -1;
        break;
      case 3:
        spec.heap_bytes = 0;
        break;
      case 4:
        spec.team_sync_bytes = 1000;
        break;
      default:
        break;
    }
    numbered_joins_.erase(id);
    if (!random_.OneIn(3)) {
      spec.number = ++next_join_number_;
      numbered_joins_[id] = spec;
    }
    const CallId call = NewCall();
    join_calls_[id] = call;
    Input(JoinCall{id, call, spec}, [&] { reference_.Join(id, call, spec); });
  }

  void Create() {
    if (creating_.empty()) return;
    const size_t index = random_.Below(creating_.size());
    const SegmentId id = creating_[index];
    creating_.erase(creating_.begin() + static_cast<ptrdiff_t>(index));
    const bool ok = !random_.OneIn(80);
    if (ok) memory_.insert(id);
    Input(SegmentCreated{id, ok ? absl::OkStatus() : absl::InternalError("worker")},
          [&] { reference_.SegmentCreated(id, ok); });
  }

  void Drop() {
    if (dropping_.empty()) return;
    const size_t index = random_.Below(dropping_.size());
    const SegmentId id = dropping_[index];
    // A creation under way ends first.
    if (std::find(creating_.begin(), creating_.end(), id) != creating_.end()) {
      if (random_.OneIn(2)) return Create();
      std::erase(creating_, id);
      const bool ok = random_.OneIn(2);
      if (ok) memory_.insert(id);
      Input(SegmentCreated{id, ok ? absl::OkStatus() : absl::InternalError("late")},
            [&] { reference_.SegmentCreated(id, ok); });
    }
    dropping_.erase(dropping_.begin() + static_cast<ptrdiff_t>(index));
    memory_.erase(id);
    Input(SegmentDropped{id}, [&] { reference_.SegmentDropped(id); });
  }

  // A session and a job: most often a member and its own job, most often one in the wanted state.
  // Without a job in that state, another step is taken most often.
  std::optional<std::pair<SessionId, JobId>> SomeMember(JobState wanted) {
    const auto& jobs = jobs_;
    if (jobs.empty() || random_.OneIn(200)) return std::pair(AnySession(), JobId{random_.Below(3)});
    const JobSnapshot* job = &jobs[random_.Below(jobs.size())];
    for (const JobSnapshot& other : jobs) {
      if (other.state == wanted && job->state != wanted) job = &other;
    }
    if (job->state != wanted && !random_.OneIn(30)) return std::nullopt;
    if (random_.OneIn(200)) return std::pair(AnySession(), job->id);
    std::vector<SessionId> attached;
    for (const auto& rank : job->ranks) {
      if (rank.session.value == 0) continue;
      if (!sessions_[rank.session].ending || random_.OneIn(20)) attached.push_back(rank.session);
    }
    if (attached.empty()) return std::nullopt;
    return std::pair(attached[random_.Below(attached.size())], job->id);
  }

  void Mapped() {
    const auto chosen = SomeMember(JobState::kMapping);
    if (!chosen.has_value()) return Step();
    const SessionId id = chosen->first;
    const JobId job = chosen->second;
    const bool error = random_.OneIn(150);
    const CallId call = NewCall();
    Input(MappedCall{id, call, job, 1, wire::kProposedBase, error ? "no" : ""},
          [&] { reference_.Mapped(id, call, job, error); });
  }

  void Operate() {
    auto chosen = SomeMember(JobState::kReady);
    if (!chosen.has_value()) return Step();
    OperationSpec spec{.timeout = SomeTimeout()};
    // Most often a rank that does not wait in this team already.
    for (int tries = 0; tries < 8; ++tries) {
      if (tries > 0) chosen = SomeMember(JobState::kReady).value_or(*chosen);
      spec.job = chosen->second;
      spec.team = SomeTeam(chosen->first, spec.job);
      const auto last = last_call_.find({chosen->first, spec.job, spec.team});
      if (last == last_call_.end() || !pending_.contains(last->second) || random_.OneIn(20)) break;
    }
    const SessionId id = chosen->first;
    const JobId job_id = chosen->second;
    const auto& jobs = jobs_;
    const auto job =
        std::find_if(jobs.begin(), jobs.end(), [&](const auto& j) { return j.id == spec.job; });
    if (random_.OneIn(200)) spec.team = static_cast<TeamId>(random_.Below(30));
    // Positions as the client would count them: one more for each of its calls that had an outcome.
    uint64_t& position = position_[{id, job_id, spec.team}];
    spec.k = position;
    if (random_.OneIn(12) && position > 0)
      spec.k = position - 1 - random_.Below(std::min<uint64_t>(position, 3));
    if (random_.OneIn(300) && position > 0) spec.k = random_.Below(position);
    if (random_.OneIn(100)) spec.k += 1 + random_.Below(3);
    spec.op = OpFor(job == jobs.end() ? nullptr : &*job, job_id, spec.team, spec.k);
    if (auto* registers = std::get_if<RegisterOp>(&spec.op);
        registers != nullptr && !IsOwnTeam(spec.team)) {
      MakeOwn(registers);
    }
    spec.only_thread = random_.OneIn(4);
    const CallId call = NewCall();
    asked_[call] = {job_id, spec.team, spec.k};
    caller_[call] = id;
    last_call_[{id, job_id, spec.team}] = call;
    Input(OperateCall{id, call, spec}, [&] { reference_.Operate(id, call, spec); });
    // A call that waits has been counted too.
    if (pending_.contains(call) && spec.k == position) ++position;
  }

  // Most often of a rank that has looked again after the last answer, or has had none.
  void AwaitBarrier() {
    const auto chosen = SomeMember(JobState::kReady);
    if (!chosen.has_value()) return Step();
    server::AwaitBarrierSpec spec{.job = chosen->second};
    spec.team = random_.OneIn(2) ? 0 : SomeTeam(chosen->first, spec.job);
    const auto ranks = teams_[spec.job].find(spec.team);
    for (const JobSnapshot& shot : jobs_) {
      if (shot.id != spec.job) continue;
      for (const auto& rank : shot.ranks) {
        if (ranks != teams_[spec.job].end() &&
            std::count(ranks->second.begin(), ranks->second.end(), rank.rank) == 0)
          continue;
        const bool own = rank.session == chosen->first;
        if (own ? random_.OneIn(50) : !random_.OneIn(3)) spec.missing.push_back(rank.rank);
      }
    }
    spec.only_thread = !random_.OneIn(4);
    spec.time_is_up = random_.OneIn(10);
    uint64_t& moment = moments_[{chosen->first, spec.job}];
    spec.moment = random_.OneIn(8) ? random_.Below(1000) : std::exchange(moment, 0);
    const CallId call = NewCall();
    caller_[call] = chosen->first;
    barriers_[call] = spec.job;
    Input(AwaitBarrierCall{chosen->first, call, spec},
          [&] { reference_.AwaitBarrier(chosen->first, call, spec); });
  }

  // The world, or a team that the session is a member of.
  TeamId SomeTeam(SessionId id, JobId job) {
    std::vector<TeamId> mine;
    for (const JobSnapshot& shot : jobs_) {
      if (shot.id != job) continue;
      for (const auto& rank : shot.ranks) {
        for (const auto& [team, ranks] : teams_[job]) {
          if (rank.session == id && std::count(ranks.begin(), ranks.end(), rank.rank) > 0)
            mine.push_back(team);
        }
      }
    }
    if (random_.OneIn(4)) return SomeOwnTeam(id, job);
    return mine.empty() || random_.OneIn(2) ? 0 : mine[random_.Below(mine.size())];
  }

  // Of the session's rank, or, rarely, of another.
  TeamId SomeOwnTeam(SessionId id, JobId job) {
    for (const JobSnapshot& shot : jobs_) {
      if (shot.id != job || random_.OneIn(50)) continue;
      for (const auto& rank : shot.ranks) {
        if (rank.session == id) return OwnTeam(rank.rank);
      }
    }
    return OwnTeam(static_cast<Rank>(random_.Below(5)));
  }

  // The ranks agree most of the time: the operation is drawn once per (team, k) of a job.
  Operation OpFor(const JobSnapshot* job, JobId job_id, TeamId team, uint64_t k) {
    auto& plan = plans_[{job_id, team, k}];
    if (!plan.has_value() || random_.OneIn(100)) {
      const Operation op = RandomOp(job, job_id, team);
      if (plan.has_value()) return op;  // one that differs
      plan = op;
    }
    return *plan;
  }

  RegisterOp RandomRegister() {
    RegisterOp op;
    for (uint64_t n = random_.Below(20) == 0 ? 0 : 1 + random_.Below(2); n > 0; --n) {
      op.piece_bytes.push_back((1 + random_.Below(2)) * kGranularity);
    }
    if (random_.OneIn(3)) op.lead_bytes = random_.Below(kGranularity);
    op.bytes = op.piece_bytes.empty() ? 1 : op.piece_bytes.back();
    if (op.piece_bytes.size() == 2) op.bytes += op.piece_bytes.front();
    op.bytes -= std::min(op.bytes - 1, op.lead_bytes + random_.Below(kGranularity / 2));
    if (random_.OneIn(2)) op.name = absl::StrCat("n", random_.Below(6));
    if (random_.OneIn(30)) op.lead_bytes += kGranularity;
    if (random_.OneIn(30) && !op.piece_bytes.empty()) ++op.piece_bytes.back();
    if (random_.OneIn(50)) op.name = "iris.x";
    return op;
  }

  // What a team registers, confirms and frees together, most often what is there.
  Operation RandomTogether(const JobSnapshot* job, TeamId team) {
    if (random_.OneIn(2)) return RandomRegister();
    uint64_t offset = random_.Below(64) * 1024;
    for (int tries = 0; job != nullptr && !job->allocations.empty() && tries < 8; ++tries) {
      const auto& allocation = job->allocations[random_.Below(job->allocations.size())];
      offset = allocation.offset_bytes;
      if (allocation.team == team && allocation.registered) break;
    }
    if (random_.OneIn(2)) return FreeOp{offset};
    return ConfirmOp{offset, random_.OneIn(4) ? "no" : ""};
  }

  // The members' own part of what they ask for together.
  void MakeOwn(RegisterOp* op) {
    if (random_.OneIn(4) && !op->piece_bytes.empty()) {
      op->piece_bytes.insert(op->piece_bytes.begin(), kGranularity);
      op->lead_bytes += kGranularity;
      if (op->lead_bytes >= 2 * kGranularity || random_.OneIn(10)) op->lead_bytes = kGranularity;
    }
    if (random_.OneIn(20)) ++op->lead_bytes;
    if (random_.OneIn(30)) *op = {.bytes = op->bytes, .name = op->name, .error = "plain memory"};
  }

  // What a rank alone frees and closes, most often what it has or may have open; and names that
  // others have given.
  Operation RandomOwnOp(const JobSnapshot* job, TeamId team) {
    if (random_.OneIn(2)) {
      OpenOp op{static_cast<Rank>(random_.Below(4)), absl::StrCat("n", random_.Below(6))};
      if (random_.OneIn(50)) op.name = "";
      if (job == nullptr || job->allocations.empty() || random_.OneIn(10)) return op;
      for (int tries = 0; tries < 6; ++tries) {
        const auto& allocation = job->allocations[random_.Below(job->allocations.size())];
        if (!IsOwnTeam(allocation.team) || allocation.name.empty()) continue;
        return OpenOp{OwnerOf(allocation.team), allocation.name};
      }
      return op;
    }
    if (random_.OneIn(4)) return RandomRegister();
    if (random_.OneIn(3)) {
      PublishOp op{random_.Below(64) * 1024, absl::StrCat("n", random_.Below(6))};
      if (random_.OneIn(50)) op.name = "iris.x";
      if (job == nullptr || job->allocations.empty()) return op;
      for (int tries = 0; tries < 6; ++tries) {
        const auto& allocation = job->allocations[random_.Below(job->allocations.size())];
        op.offset_bytes = allocation.offset_bytes;
        if (allocation.team == team && (allocation.name.empty() || random_.OneIn(5))) break;
      }
      return op;
    }
    FreeOp op{random_.Below(64) * 1024};
    if (job == nullptr || job->allocations.empty()) return op;
    for (int tries = 0; tries < 6; ++tries) {
      const auto& allocation = job->allocations[random_.Below(job->allocations.size())];
      op.offset_bytes = allocation.offset_bytes;
      if (IsOwnTeam(allocation.team) && (allocation.n_open > 0 || random_.OneIn(3))) break;
    }
    return op;
  }

  Operation RandomOp(const JobSnapshot* job, JobId job_id, TeamId team) {
    if (random_.OneIn(IsOwnTeam(team) ? 2 : 100)) return RandomOwnOp(job, team);
    if (!IsOwnTeam(team) && random_.OneIn(8)) return RandomTogether(job, team);
    const uint64_t dice = random_.Below(100);
    if (dice < 40) {
      AllocateOp op{.bytes = random_.Below(12000)};
      if (random_.OneIn(3)) op.alignment_bytes = uint64_t{1} << random_.Below(15);
      if (random_.OneIn(4)) op.name = absl::StrCat("n", random_.Below(6));
      if (random_.OneIn(40)) op.alignment_bytes = 3;
      if (random_.OneIn(40)) op.name = "iris.x";
      if (random_.OneIn(60)) op.bytes = ~uint64_t{0} - random_.Below(3000);
      return op;
    }
    if (dice < 65) {
      FreeOp op{random_.Below(64) * 1024};
      if (job == nullptr || job->allocations.empty() || random_.OneIn(20)) return op;
      for (int tries = 0; tries < 4; ++tries) {
        const auto& allocation = job->allocations[random_.Below(job->allocations.size())];
        op.offset_bytes = allocation.offset_bytes;
        if (allocation.team == team) break;
      }
      return op;
    }
    if (dice < 80) {
      const auto known = teams_[job_id].find(team);
      Rank root = static_cast<Rank>(random_.Below(4));
      if (team == 0 && job != nullptr) root = static_cast<Rank>(random_.Below(job->n_ranks));
      if (known != teams_[job_id].end()) root = known->second[random_.Below(known->second.size())];
      if (random_.OneIn(30)) root = static_cast<Rank>(random_.Below(5));
      return BroadcastOp{root, std::string(random_.Below(50), 'v')};
    }
    if (dice < 88) {
      CreateTeamOp op;
      const uint32_t n = job == nullptr ? 1 : job->n_ranks;
      const auto parent = teams_[job_id].find(team);
      for (Rank rank = 0; rank < n; ++rank) {
        const bool outside = parent != teams_[job_id].end() &&
                             std::count(parent->second.begin(), parent->second.end(), rank) == 0;
        if (random_.OneIn(outside ? 30 : 2))
          op.ranks.insert(op.ranks.begin() + random_.Below(op.ranks.size() + 1), rank);
      }
      return op;
    }
    if (dice < 90) {
      SplitOp op;  // what it says of others than the caller is dropped
      for (Rank rank = 0; rank < 4; ++rank) {
        if (random_.OneIn(40)) continue;
        op.wishes.push_back({rank, static_cast<int32_t>(random_.Below(4)) - 1,
                             static_cast<int32_t>(random_.Below(3)) - 1});
        if (random_.OneIn(80)) op.wishes.push_back(op.wishes.back());
      }
      return op;
    }
    if (dice < 95) return DestroyTeamOp{static_cast<uint32_t>(random_.Below(100))};
    return GrowOp{random_.Below(2 * kGranularity)};
  }

  void GrowMapped() {
    const auto chosen = SomeMember(JobState::kReady);
    if (!chosen.has_value()) return Step();
    const SessionId id = chosen->first;
    const JobId job = chosen->second;
    GrowId grow = grows_.contains(job) ? grows_[job] : GrowId{random_.Below(3)};
    if (random_.OneIn(50)) grow.value += 1;
    if (random_.OneIn(10) && grow.value > 1) grow.value -= 1 + random_.Below(2);  // again, late
    const bool error = random_.OneIn(40);
    const CallId call = NewCall();
    Input(GrowMappedCall{id, call, job, grow, error ? "no" : ""},
          [&] { reference_.GrowMapped(id, call, job, grow.value, error); });
  }

  // Of a job that is over anyway, or, more rarely, of one that runs.
  void Leave() {
    auto chosen = SomeMember(JobState::kBroken);
    if (!chosen.has_value()) chosen = SomeMember(JobState::kReady);
    if (!chosen.has_value()) return Step();
    const SessionId id = chosen->first;
    const JobId job = chosen->second;
    const auto& jobs = jobs_;
    const auto shot =
        std::find_if(jobs.begin(), jobs.end(), [&](const auto& j) { return j.id == job; });
    const bool whole = shot != jobs.end() &&
                       std::all_of(shot->ranks.begin(), shot->ranks.end(), [](const auto& rank) {
                         return rank.state == RankState::kReady;
                       });
    if (whole && !random_.OneIn(8)) return Step();
    const CallId call = NewCall();
    Input(LeaveCall{id, call, job}, [&] { reference_.Leave(id, call, job); });
  }

  void HangUp() {
    const SessionId id = AnySession();
    if (sessions_.contains(id)) sessions_[id].ending = true;
    Input(SessionHungUp{id, "test"}, [&] { reference_.HangUp(id); });
  }

  void Gone() {
    SessionId id = AnySession();
    for (const auto& [other, session] : sessions_) {
      if (session.ending && random_.OneIn(2)) id = other;
    }
    sessions_.erase(id);
    Input(ProcessGone{id}, [&] { reference_.Gone(id); });
  }

  void Resume() {
    SessionId id = AnySession();
    JobId job{random_.Below(4)};
    std::string name = "a";
    int32_t rank = 0;
    for (const JobSnapshot& shot : jobs_) {
      for (const auto& one : shot.ranks) {
        if (one.state != RankState::kEnding || random_.OneIn(3)) continue;
        job = shot.id;
        name = shot.name;
        rank = static_cast<int32_t>(one.rank);
        bool fresh = false;
        for (const auto& [other, session] : sessions_) {
          if (session.ending || session.pid != one.pid) continue;
          id = other;
          fresh = true;
        }
        if (!fresh && random_.OneIn(2)) return OpenAs(one.pid, shot.party.uid);
      }
    }
    if (random_.OneIn(20)) rank += 1;
    if (random_.OneIn(20)) name = "c";
    const uint64_t epoch = random_.OneIn(20) ? 2 : 1;
    const CallId call = NewCall();
    Input(ResumeCall{id, call, job, name, rank, epoch},
          [&] { reference_.Resume(id, call, job, name, rank, epoch); });
  }

  // The answer of a Join was lost.
  void LoseJoin() {
    if (join_calls_.empty()) return;
    const CallId call = join_calls_[AnyKey(join_calls_)];
    if (pending_.contains(call)) return;
    Input(CallCancelled{call}, [&] { reference_.Cancelled(call); });
  }

  void Cancel() {
    if (random_.OneIn(3)) return LoseJoin();
    if (pending_.empty()) return;
    CancelCall(*std::next(pending_.begin(), random_.Below(pending_.size())));
  }
  void CancelCall(CallId call) {
    pending_.erase(call);
    cancelled_.insert(call);
    Input(CallCancelled{call}, [&] { reference_.Cancelled(call); });
  }

  void Watch() {
    const auto chosen = SomeMember(JobState::kReady);
    if (!chosen.has_value()) return Step();
    const SessionId id = chosen->first;
    const JobId job = chosen->second;
    const CallId call = NewCall();
    Input(WatchOpened{id, call, job}, [&] { reference_.Watch(id, call, job); });
  }

  void Tick() {
    clock_.Advance(absl::Seconds(random_.OneIn(15) ? random_.Below(100) : random_.Below(5)));
    Input(server::Tick{}, [&] { reference_.Tick(); });
  }

  // Another irisd goes on. What was kept for it is most often all, but for what the last one had
  // not come to.
  void Restart() {
    server::Recovered input{.generation = ++generation_};
    for (auto& [id, session] : sessions_) {
      if (session.ending) continue;
      session.ending = random_.OneIn(20);
      if (!session.ending) input.sessions.push_back(id);
    }
    for (const SegmentId id : std::exchange(creating_, {})) {
      if (random_.OneIn(2)) memory_.insert(id);
    }
    for (const SegmentId id : std::exchange(dropping_, {})) {
      if (random_.OneIn(2)) memory_.erase(id);
    }
    std::erase_if(memory_, [&](SegmentId) { return random_.OneIn(300); });
    input.memory.assign(memory_.begin(), memory_.end());
    for (const JobSnapshot& job : jobs_) {
      if (!random_.OneIn(50)) {
        input.pages.push_back(job.id);
      } else if (job.state == JobState::kForming) {
        pages_.erase(job.id);
      }
    }
    for (const auto& [key, call] : last_call_) {
      if (pending_.contains(call)) position_[key] = asked_[call].k;
    }
    pending_.clear();
    ++counts_["restarts"];
    Input(input, [] {});
  }

  // What came of it.

  template <typename Predict>
  void Input(const server::Input& input, Predict predict) {
    const server::Time now = {clock_.Now(), clock_.Wall()};
    const Effects effects = machine_.Apply(input, now);
    (void)recorder_->Record(input, now, effects);
    if (copy_ != nullptr) {
      ASSERT_EQ(server::recording::ValueText(copy_->Apply(input, now)),
                server::recording::ValueText(effects))
          << "what was read back goes another way";
    }
    StoreChange();
    if (n_inputs_++ % state_every_ == 0) ReadBackState();
    if (with_reference_) predict();
    std::map<CallId, Reply> replies;
    for (const Effect& effect : effects) {
      if (const auto* reply = std::get_if<Reply>(&effect)) {
        ASSERT_EQ(pending_.erase(reply->call), 1u)
            << "call " << reply->call.value << " is answered unasked";
        replies.emplace(reply->call, *reply);
        ++counts_[absl::StrCat("reply ", absl::StatusCodeToString(reply->status.code()))];
      } else if (const auto* create = std::get_if<CreateSegment>(&effect)) {
        creating_.push_back(create->id);
        ASSERT_TRUE(pages_.contains(create->job));
      } else if (const auto* adopt = std::get_if<server::AdoptSegment>(&effect)) {
        memory_.insert(adopt->id);
      } else if (const auto* drop = std::get_if<DropSegment>(&effect)) {
        dropping_.push_back(drop->id);
      } else if (const auto* pages = std::get_if<server::CreatePages>(&effect)) {
        ASSERT_TRUE(pages_.insert(pages->job).second);
      } else if (const auto* no_pages = std::get_if<server::DropPages>(&effect)) {
        ASSERT_EQ(pages_.erase(no_pages->job), 1u);
      } else if (const auto* state = std::get_if<server::SetRankState>(&effect)) {
        ASSERT_TRUE(pages_.contains(state->job)) << "a page is written that is not";
      } else if (const auto* event = std::get_if<server::EmitEvent>(&effect)) {
        ++counts_[std::string(server::KindOf(event->event))];
      } else if (const auto* release = std::get_if<server::ReleaseSession>(&effect)) {
        sessions_.erase(release->session);
      }
    }
    jobs_ = machine_.Jobs({.allocations = true});
    LearnGrowths(effects);
    const absl::Status sound = machine_.CheckInvariants();
    ASSERT_TRUE(sound.ok()) << sound;
    for (const auto& [call, reply] : replies) {
      CheckOneOutcome(reply);
      const auto* answer = std::get_if<BarrierAnswer>(&reply.result);
      if (answer == nullptr || !reply.status.ok()) continue;
      moments_[{caller_[call], barriers_[call]}] = answer->moment;
      ++counts_[answer->cannot_end ? "barrier: cannot end" : "barrier: look again"];
    }
    if (with_reference_) Compare(effects, replies);
  }

  // The state is what its changes make of it.
  void StoreChange() {
    std::string change;
    MachineState::EncodeChange(machine_, &change);
    change_bytes_ += change.size();
    const absl::Status applied = stored_.Apply(change);
    ASSERT_TRUE(applied.ok()) << applied;
    const std::string bytes = MachineState::Encode(machine_);
    ASSERT_EQ(MachineState::BytesOf(*stored_.Take()), bytes)
        << "a change of the state is not among its changes";
    const absl::Status begun = stored_.Begin(bytes);
    ASSERT_TRUE(begun.ok()) << begun;
    const absl::Status appended = journal_->Append(change);
    ASSERT_TRUE(appended.ok()) << appended;
    if (n_inputs_ % kJournalEvery != 0) return;
    const auto read = server::ReadJournal(directory_);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(MachineState::BytesOf(*read->state), bytes) << "the journal has another state";
  }

  // A machine that is made of the state goes on in step with the one that wrote it.
  void ReadBackState() {
    const std::string bytes = MachineState::Encode(machine_);
    if (copy_ != nullptr) {
      ASSERT_EQ(MachineState::Encode(*copy_), bytes) << "the copy went another way";
    }
    auto copy = MachineState::Decode(bytes, setup_.limits, setup_.MakeLedger());
    ASSERT_TRUE(copy.ok()) << copy.status();
    copy_ = *std::move(copy);
    ASSERT_EQ(MachineState::Encode(*copy_), bytes) << "what is read back is not what was written";
    state_bytes_max_ = std::max(state_bytes_max_, bytes.size());
  }

  void LearnGrowths(const Effects& effects) {
    const server::SegmentsAdded* added = nullptr;
    for (const Effect& effect : effects) {
      if (const auto* notify = std::get_if<NotifyWatch>(&effect)) {
        if (const auto* news = std::get_if<server::SegmentsAdded>(&notify->event)) added = news;
      }
      const auto* send = std::get_if<server::SendDescriptors>(&effect);
      if (send != nullptr && !send->pages) growing_job_ = send->job;
    }
    if (added != nullptr) grows_[growing_job_] = added->grow;
  }

  // Every rank hears the same of a (team, k), whenever it asks.
  void CheckOneOutcome(const Reply& reply) {
    const auto asked = asked_.find(reply.call);
    if (asked == asked_.end()) return;
    const Asked what = asked->second;
    const SessionId session = caller_[reply.call];
    if (reply.status.message().find("which was destroyed") != std::string::npos &&
        !random_.OneIn(4)) {
      teams_[what.job].erase(what.team);
    }
    if (!reply.status.ok()) return;  // the call is refused
    const auto& answer = std::get<server::Outcome>(reply.result);
    ASSERT_EQ(answer.k, what.k);
    uint64_t& position = position_[{session, what.job, what.team}];
    position = std::max(position, what.k + 1);
    if (absl::IsOutOfRange(answer.status)) return;  // no longer kept
    std::string outcome = answer.status.ToString();
    if (answer.status.ok()) {
      const server::OperationResult& result = answer.result;
      outcome = absl::StrCat("OK ", result.offset_bytes, " ", result.heap_bytes, " ",
                             result.value.view());
      if (result.opened.has_value()) {
        absl::StrAppend(&outcome, " opened ", result.opened->offset_bytes);
        ++counts_["opened"];
      }
      if (result.team.has_value()) teams_[what.job][result.team->id] = result.team->ranks;
    }
    const auto [known, is_new] = outcomes_.try_emplace({what.job, what.team, what.k}, outcome);
    ASSERT_EQ(known->second, outcome) << "team " << what.team << " k " << what.k;
  }

  void Compare(const Effects& effects, const std::map<CallId, Reply>& replies) {
    for (const Effect& effect : effects) {
      if (const auto* pages = std::get_if<server::CreatePages>(&effect)) {
        ASSERT_TRUE(reference_.WantsJob());
        reference_.LearnJob(pages->job);
      } else if (const auto* create = std::get_if<CreateSegment>(&effect)) {
        ASSERT_NE(reference_.Find(create->job), nullptr);
        reference_.LearnSegment(create->job, create->id, create->bytes);
      }
    }
    ASSERT_FALSE(reference_.WantsJob());
    auto expected = reference_.TakeExpected();
    std::erase_if(expected, [&](const auto& entry) { return cancelled_.contains(entry.first); });
    for (const auto& [call, reply] : replies) {
      const auto found = expected.find(call);
      ASSERT_NE(found, expected.end()) << "unexpected reply: " << reply.status;
      const absl::Status status = StatusOf(reply);
      ASSERT_EQ(status.code(), found->second.code) << status;
      CompareResult(reply, found->second);
      expected.erase(call);
    }
    ASSERT_TRUE(expected.empty()) << "no reply with "
                                  << static_cast<int>(expected.begin()->second.code);
    CompareState();
  }

  // Of the call if it was refused, else of the operation that it asked for, if any.
  static absl::Status StatusOf(const Reply& reply) {
    const auto* outcome = std::get_if<server::Outcome>(&reply.result);
    return reply.status.ok() && outcome != nullptr ? outcome->status : reply.status;
  }

  void CompareResult(const Reply& reply, const Expected& expected) {
    if (expected.cannot_end.has_value()) {
      ASSERT_EQ(std::get<BarrierAnswer>(reply.result).cannot_end, *expected.cannot_end);
    }
    if (!expected.heap_bytes.has_value()) return;
    const server::OperationResult& result = std::get<server::Outcome>(reply.result).result;
    ASSERT_EQ(result.heap_bytes, *expected.heap_bytes);
    ASSERT_EQ(result.offset_bytes, expected.offset.value_or(0));
    ASSERT_EQ(result.value.view(), expected.value.value_or(""));
    ASSERT_EQ(result.opened.has_value(), expected.opened.has_value());
    if (result.opened.has_value()) {
      ASSERT_EQ(result.opened->offset_bytes, *expected.opened);
    }
    ASSERT_EQ(result.team.has_value(), expected.team.has_value());
    if (result.team.has_value()) {
      ASSERT_EQ(result.team->id, *expected.team);
      ASSERT_EQ(result.team->ranks, expected.team_ranks);
    }
  }

  void CompareState() {
    ASSERT_EQ(machine_.ledger().used_bytes_total(), reference_.BookedBytes());
    ASSERT_EQ(machine_.kept_bytes(), reference_.KeptBytes());
    const std::vector<server::SessionSnapshot> sessions = machine_.Sessions();
    ASSERT_EQ(sessions.size(), reference_.sessions().size());
    for (const server::SessionSnapshot& session : sessions) {
      ASSERT_TRUE(reference_.sessions().contains(session.id));
    }
    ASSERT_EQ(machine_.NextDeadline(), reference_.NextDeadline());
    const auto& jobs = jobs_;
    ASSERT_EQ(jobs.size(), reference_.jobs().size());
    for (const JobSnapshot& shot : jobs) {
      const RefJob* job = reference_.Find(shot.id);
      ASSERT_NE(job, nullptr);
      ASSERT_EQ(shot.state, job->state);
      ASSERT_EQ(shot.ranks.size(), job->ranks.size());
      for (size_t rank = 0; rank < job->ranks.size(); ++rank) {
        ASSERT_EQ(shot.ranks[rank].state, job->ranks[rank].state) << "rank " << rank;
        ASSERT_EQ(shot.ranks[rank].session, job->ranks[rank].session) << "rank " << rank;
      }
      if (job->heap.capacity() == 0) continue;
      ASSERT_EQ(shot.heap_bytes, job->heap.capacity());
      ASSERT_EQ(shot.allocations.size(), job->heap.taken().size() + job->registered.size());
      for (const auto& allocation : shot.allocations) {
        const uint64_t offset = allocation.offset_bytes;
        ASSERT_EQ(allocation.registered, job->registered.contains(offset));
        ASSERT_TRUE(allocation.registered || job->heap.taken().contains(offset));
        ASSERT_EQ(IsOwnTeam(allocation.team), job->owner_of.contains(offset));
        const auto open = job->opens.equal_range(offset);
        std::set<Rank> openers;
        for (auto one = open.first; one != open.second; ++one) openers.insert(one->second);
        ASSERT_EQ(allocation.n_open, openers.size());
        if (allocation.freed) ++counts_["freed and still open"];
        if (allocation.registered && !IsOwnTeam(allocation.team)) ++counts_["registered together"];
        if (allocation.registered) ++counts_["registered"];
      }
    }
  }

  Random random_;
  const bool with_reference_;
  const bool restarts_;
  const uint64_t state_every_;
  server::FakeClock clock_;
  const server::MachineSetup setup_;
  const std::string directory_;
  JobMachine machine_;
  server::ChangeTable stored_;
  std::unique_ptr<server::Journal> journal_;
  uint64_t change_bytes_ = 0;
  std::unique_ptr<JobMachine> copy_;  // made of machine_'s state, then given the same inputs
  uint64_t n_inputs_ = 0;
  size_t state_bytes_max_ = 0;
  std::unique_ptr<server::Recorder> recorder_;
  ReferenceJobs reference_;

  std::map<SessionId, Session> sessions_;
  std::set<CallId> pending_;
  std::set<CallId> cancelled_;
  std::vector<JobSnapshot> jobs_;  // after the last input
  std::vector<SegmentId> creating_, dropping_;
  std::set<SegmentId> memory_;  // of which there is memory
  uint64_t generation_ = 1;
  std::set<JobId> pages_;
  std::map<JobId, std::map<TeamId, std::vector<Rank>>> teams_;
  std::map<JobId, GrowId> grows_;
  JobId growing_job_;
  std::map<CallId, Asked> asked_;
  std::map<CallId, SessionId> caller_;
  std::map<SessionId, CallId> join_calls_;  // the last of each
  std::map<SessionId, JoinSpec> numbered_joins_;
  uint64_t next_join_number_ = 0;
  std::map<CallId, JobId> barriers_;
  std::map<std::pair<SessionId, JobId>, uint64_t> moments_;  // of the last answer about a barrier
  std::map<std::tuple<SessionId, JobId, TeamId>, CallId> last_call_;
  std::map<std::tuple<SessionId, JobId, TeamId>, uint64_t> position_;
  std::map<std::tuple<JobId, TeamId, uint64_t>, std::optional<Operation>> plans_;
  std::map<std::tuple<JobId, TeamId, uint64_t>, std::string> outcomes_;
  std::map<std::string, uint64_t> counts_;
  uint64_t next_session_ = 1;
  uint64_t next_call_ = 1;
};

// One history, of `n_ops` operations. The recording of it is replayed.
void RunHistory(uint64_t seed, uint64_t n_ops, const Conditions& conditions, bool print) {
  const std::string recording = absl::StrCat(testing::TempDir(), "/history.", getpid());
  Driver driver(seed, conditions, recording);
  for (uint64_t i = 0; i < n_ops; ++i) {
    driver.Step();
    if (testing::Test::HasFatalFailure()) {
      FAIL() << "at operation " << i << " of seed " << seed
             << ": replay with IRIS_TEST_SEED=" << seed << "; the recording is " << recording;
    }
  }
  driver.Finish();
  if (print) driver.PrintCounts();
  ASSERT_EQ(driver.n_dropped(), 0u) << "the recording is too big";
  const absl::StatusOr<server::ReplayReport> report = server::Replay(recording);
  ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << report.status();
  ASSERT_FALSE(report->cut);
  if (print) {
    std::printf("  replayed: %llu inputs, %llu bytes of effects\n",
                static_cast<unsigned long long>(report->n_inputs),
                static_cast<unsigned long long>(report->n_effect_bytes));
  }
  unlink(recording.c_str());
}

// One history; or, for IRIS_TEST_MINUTES, history after history with other seeds.
void RunModel(const char* name, const Conditions& conditions, uint64_t n_ops = kOps) {
  const RandomRun run = BeginRandomRun(name, n_ops);
  const absl::Time end = absl::Now() + absl::Minutes(FromEnvironment("IRIS_TEST_MINUTES", 0));
  uint64_t n_histories = 0;
  do {
    RunHistory(run.seed + n_histories, run.n_ops, conditions, n_histories == 0);
    ++n_histories;
  } while (absl::Now() < end && !testing::Test::HasFatalFailure());
  std::printf("%s: %llu histories of %llu operations, each replayed\n", name,
              static_cast<unsigned long long>(n_histories),
              static_cast<unsigned long long>(run.n_ops));
}

TEST(JobModel, AgreesWithTheReference) { RunModel("job_model_test", Conditions()); }

// With a quota, too large to refuse anything, irisd follows who may still have memory mapped.
TEST(JobModel, AgreesWithTheReferenceUnderAQuota) {
  Conditions conditions;
  conditions.limits.max_heap_bytes_per_uid = 1ull << 50;
  RunModel("job_model_test (quota)", conditions, kOps / 2);
}

// Shorter, because the state is big. IRIS_TEST_OPS and IRIS_TEST_STATE_EVERY make it longer.
TEST(JobModel, StateIsReadBackAfterEveryInput) {
  Conditions conditions;
  conditions.state_every = 1;
  RunModel("job_model_test (state)", conditions, kOps / 10);
}

TEST(JobModel, StaysSoundOverRestarts) {
  Conditions conditions;
  conditions.with_reference = false;
  conditions.restarts = true;
  RunModel("job_model_test (restarts)", conditions, kOps / 2);
}

TEST(JobModel, StaysSoundWhenEverythingIsScarce) {
  Conditions conditions;
  conditions.with_reference = false;
  conditions.restarts = true;
  conditions.device_bytes = 10 * kGranularity;
  conditions.limits.max_jobs = 3;
  conditions.limits.max_jobs_per_uid = 1;
  conditions.limits.max_heap_bytes_per_uid = 12 * kGranularity;
  RunModel("job_model_test (scarce)", conditions, kOps / 2);
}

// Another way to say it: from a stuck rank a way along what ranks need comes back to where it was.
TEST(FindStuck, AgreesWithAWalkAlongTheNeeds) {
  const RandomRun run = BeginRandomRun("job_model_test (stuck)", 20000);
  Random random(run.seed);
  uint64_t n_stuck = 0;
  for (uint64_t i = 0; i < run.n_ops; ++i) {
    const Rank n = static_cast<Rank>(1 + random.Below(8));
    std::map<Rank, std::vector<Rank>> needs;
    std::vector<server::Blocked> blocked;
    for (Rank rank = 0; rank < n; ++rank) {
      if (random.OneIn(3)) continue;
      for (Rank other = 0; other < n; ++other) {
        if (other != rank && random.OneIn(4)) needs[rank].push_back(other);
      }
      blocked.push_back({rank, needs[rank]});
    }
    std::vector<Rank> expected;
    for (const server::Blocked& each : blocked) {
      std::set<Rank> ahead = {each.rank};  // after n steps: only what a cycle leads to
      for (Rank step = 0; step < n; ++step) {
        std::set<Rank> next;
        for (const Rank rank : ahead) next.insert(needs[rank].begin(), needs[rank].end());
        ahead = std::move(next);
      }
      std::erase_if(ahead, [&](Rank rank) {
        return std::none_of(blocked.begin(), blocked.end(),
                            [rank](const server::Blocked& other) { return other.rank == rank; });
      });
      if (!ahead.empty()) expected.push_back(each.rank);
    }
    n_stuck += expected.size();
    ASSERT_EQ(server::FindStuck(blocked), expected) << "case " << i << " of seed " << run.seed;
  }
  EXPECT_GT(n_stuck, run.n_ops / 100);
}

}  // namespace
}  // namespace iris::model
