// Shared by the tests of the job machine: a machine with a fake clock whose effects are recorded,
// and whose invariants are checked after every input. Not thread-safe.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/limits.h"
#include "server/heap/ledger.h"
#include "server/job/events.h"
#include "server/job/job_machine.h"
#include "server/job/testing/fake_clock.h"

namespace iris::server {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGranularity = 64 * kKiB;
inline constexpr uint64_t kHeap = kMiB;

class MachineTest : public ::testing::Test {
 protected:
  // A job of ranks 0 to n - 1; rank r has pid 100 + r.
  struct TestJob {
    JobId id;
    std::vector<SessionId> sessions;
    size_t size() const { return sessions.size(); }
  };

  virtual JobLimits Limits() { return JobLimits(); }
  virtual std::vector<Ledger::DeviceAccount> Devices() {
    return {{"dev-0", 64 * kMiB, kGranularity, 0}, {"dev-1", 64 * kMiB, kGranularity, 0}};
  }

  virtual UnusablePairs Unusable() { return {}; }

  void SetUp() override { Restart(); }

  void Restart() {
    machine_.reset();
    machine_ = std::make_unique<JobMachine>(Limits(), Ledger(Devices()), Unusable());
  }

  Effects Do(const Input& input) {
    Effects effects = machine_->Apply(input, {clock_.Now(), clock_.Wall()});
    for (const Effect& effect : effects) Record(effect);
    const absl::Status status = machine_->CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
    Applied();
    return effects;
  }

  // Called after each input, once its effects are recorded.
  virtual void Applied() {}

  SessionId Open(int64_t pid, const Party& party = {1000}) {
    const SessionId id{next_session_++};
    Do(SessionOpened{id, {.pid = pid, .party = party, .gid = party.uid, .process_start = 7}});
    return id;
  }

  JoinSpec Spec(int32_t rank, int32_t n_ranks) const {
    JoinSpec spec;
    spec.job = "train";
    spec.rank = rank;
    spec.n_ranks = n_ranks;
    spec.heap_bytes = kHeap;
    spec.local_rank = std::max(rank, 0);
    spec.team_sync_bytes = 8 * kKiB;
    return spec;
  }

  CallId Join(SessionId session, const JoinSpec& spec) {
    const CallId call = NewCall();
    Do(JoinCall{session, call, spec});
    return call;
  }
  CallId Mapped(const TestJob& job, size_t rank, uint64_t base = wire::kProposedBase,
                const std::string& error = "") {
    const CallId call = NewCall();
    Do(MappedCall{job.sessions[rank], call, job.id, 1, base, error});
    return call;
  }
  CallId Ask(const TestJob& job, size_t rank, uint64_t k, Operation op, TeamId team = kWorldTeam,
             absl::Duration timeout = absl::ZeroDuration()) {
    const CallId call = NewCall();
    Do(OperateCall{job.sessions[rank], call, {job.id, team, k, timeout, std::move(op)}});
    return call;
  }
  CallId GrowMapped(const TestJob& job, size_t rank, GrowId grow, const std::string& error = "") {
    const CallId call = NewCall();
    Do(GrowMappedCall{job.sessions[rank], call, job.id, grow, error});
    return call;
  }
  CallId Leave(const TestJob& job, size_t rank) {
    const CallId call = NewCall();
    Do(LeaveCall{job.sessions[rank], call, job.id});
    return call;
  }
  CallId Resume(SessionId session, const TestJob& job, int32_t rank,
                const std::string& name = "train", uint64_t epoch = 1) {
    const CallId call = NewCall();
    Do(ResumeCall{session, call, job.id, name, rank, epoch});
    return call;
  }
  CallId Watch(SessionId session, JobId job) {
    const CallId call = NewCall();
    Do(WatchOpened{session, call, job});
    return call;
  }
  void HangUp(SessionId session) { Do(SessionHungUp{session, "test"}); }
  void Gone(SessionId session) { Do(ProcessGone{session}); }
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    Do(Tick{});
  }

  // These stand for the workers.

  void CreateSegments() {
    for (const CreateSegment& create : std::exchange(to_create_, {})) {
      Do(SegmentCreated{create.id, absl::OkStatus()});
    }
  }
  void FailSegments(const absl::Status& status) {
    for (const CreateSegment& create : std::exchange(to_create_, {})) {
      Do(SegmentCreated{create.id, status});
    }
  }
  void DropSegments() {
    for (const SegmentId id : std::exchange(to_drop_, {})) Do(SegmentDropped{id});
  }

  // Joined, mapped and ready.
  TestJob ReadyJob(int n_ranks, std::optional<JoinSpec> like = std::nullopt) {
    TestJob job = MappingJob(n_ranks, like);
    std::vector<CallId> calls;
    for (int rank = 0; rank < n_ranks; ++rank) calls.push_back(Mapped(job, rank));
    for (const CallId call : calls) EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    return job;
  }
  TestJob MappingJob(int n_ranks, std::optional<JoinSpec> like = std::nullopt) {
    TestJob job;
    std::vector<CallId> calls;
    for (int rank = 0; rank < n_ranks; ++rank) {
      job.sessions.push_back(Open(100 + rank));
      JoinSpec spec = like.value_or(Spec(rank, n_ranks));
      spec.rank = spec.local_rank = rank;
      spec.n_ranks = n_ranks;
      calls.push_back(Join(job.sessions.back(), spec));
    }
    CreateSegments();
    for (const CallId call : calls) EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    job.id = ResultOf<JoinResult>(calls[0]).job;
    return job;
  }
  // A ready job of two nodes with a rank each, of which this one leads. Its port process has taken
  // the messages up to `taken`.
  TestJob JobOfTwoNodes(uint64_t taken) {
    TestJob job;
    job.sessions.push_back(Open(100));
    JoinSpec spec = Spec(0, 2);
    spec.job = "wide";
    spec.nodes = JoinNodes{0, 1, "a:4711", "0123456789abcdef"};
    const CallId join = Join(job.sessions[0], spec);
    CreateSegments();
    job.id = machine_->Jobs().back().id;
    Do(PortReady{job.id, 77, "host-0", "no fabric"});
    Do(NodeConnected{job.id, 1, "host-1", 1});
    NodeJoined joined{.n_ranks = 2,
                      .heap_bytes = kHeap,
                      .stride_bytes = 4 * kHeap,
                      .team_sync_bytes = 8 * kKiB,
                      .pids = {101}};
    Do(NodeSaid{job.id, 1, joined, 2});
    EXPECT_TRUE(StatusOf(join).ok()) << StatusOf(join);
    Mapped(job, 0);
    Do(NodeSaid{job.id, 1, NodeMapped{true}, 3, taken});
    return job;
  }
  // Every member of the world asks the same.
  std::vector<CallId> AskAll(const TestJob& job, uint64_t k, const Operation& op) {
    std::vector<CallId> calls;
    for (size_t rank = 0; rank < job.size(); ++rank) calls.push_back(Ask(job, rank, k, op));
    return calls;
  }
  // The one outcome of calls that must all have the same.
  absl::Status OneOutcome(const std::vector<CallId>& calls) {
    for (const CallId call : calls) EXPECT_EQ(StatusOf(call), StatusOf(calls[0]));
    return StatusOf(calls[0]);
  }
  // All ranks leave, all memory is dropped; nothing may be left.
  void EndJob(const TestJob& job) {
    for (const SessionId session : job.sessions) Gone(session);
    DropSegments();
    EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
    EXPECT_TRUE(machine_->Jobs().empty());
    EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
  }

  // These return results.

  bool Answered(CallId call) const { return replies_.contains(call); }
  // Returns the call's status if it was refused, else that of the operation that it asked for, if
  // any.
  absl::Status StatusOf(CallId call) const {
    const auto found = replies_.find(call);
    if (found == replies_.end()) return absl::UnknownError("not answered yet");
    if (!found->second.status.ok()) return found->second.status;
    const auto* outcome = std::get_if<Outcome>(&found->second.result);
    return outcome == nullptr ? absl::OkStatus() : outcome->status;
  }
  // True if the call was refused: nothing is consumed.
  bool Refused(CallId call) const {
    const auto found = replies_.find(call);
    return found != replies_.end() && !found->second.status.ok();
  }
  Outcome OutcomeOf(CallId call) const {
    const auto found = replies_.find(call);
    const auto* outcome =
        found == replies_.end() ? nullptr : std::get_if<Outcome>(&found->second.result);
    EXPECT_NE(outcome, nullptr) << "no outcome";
    return outcome == nullptr ? Outcome() : *outcome;
  }
  template <typename T>
  T ResultOf(CallId call) const {
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    const auto found = replies_.find(call);
    if (found != replies_.end()) {
      if constexpr (std::is_same_v<T, OperationResult>) {
        if (const auto* outcome = std::get_if<Outcome>(&found->second.result))
          return outcome->result;
      } else {
        if (const auto* result = std::get_if<T>(&found->second.result)) return *result;
      }
    }
    ADD_FAILURE() << "no such result";
    return T();
  }
  uint64_t OffsetOf(CallId call) const { return ResultOf<OperationResult>(call).offset_bytes; }
  JobSnapshot TheJob() const {
    const auto jobs = machine_->Jobs({.allocations = true});
    EXPECT_EQ(jobs.size(), 1u);
    return jobs.empty() ? JobSnapshot() : jobs[0];
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const Effect& effect : effects_) {
      if (const auto* one = std::get_if<T>(&effect)) found.push_back(*one);
    }
    return found;
  }
  template <typename T>
  std::vector<T> Watched(SessionId session) const {
    std::vector<T> found;
    for (const NotifyWatch& notify : All<NotifyWatch>()) {
      if (notify.session != session) continue;
      if (const auto* one = std::get_if<T>(&notify.event)) found.push_back(*one);
    }
    return found;
  }
  // The events of one kind, in order.
  template <typename Detail>
  std::vector<Event> Events() const {
    std::vector<Event> found;
    for (const EmitEvent& effect : All<EmitEvent>()) {
      if (std::holds_alternative<Detail>(effect.event.detail)) found.push_back(effect.event);
    }
    return found;
  }
  CallId NewCall() { return CallId{next_call_++}; }

  FakeClock clock_;
  std::unique_ptr<JobMachine> machine_;
  Effects effects_;  // all, in order
  std::map<CallId, Reply> replies_;
  std::vector<CreateSegment> to_create_;
  std::vector<SegmentId> to_drop_;
  uint64_t next_session_ = 1;
  uint64_t next_call_ = 1;

 private:
  void Record(const Effect& effect) {
    effects_.push_back(effect);
    if (const auto* reply = std::get_if<Reply>(&effect)) {
      EXPECT_TRUE(replies_.emplace(reply->call, *reply).second)
          << "answered twice: " << reply->call.value;
    } else if (const auto* create = std::get_if<CreateSegment>(&effect)) {
      to_create_.push_back(*create);
    } else if (const auto* drop = std::get_if<DropSegment>(&effect)) {
      std::erase_if(to_create_, [&](const CreateSegment& c) { return c.id == drop->id; });
      to_drop_.push_back(drop->id);
    }
  }
};

}  // namespace iris::server
