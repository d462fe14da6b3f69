// The daemon around the job machine: order of effects, memory on workers, cancellation, slow
// readers, deadlines.
#include "server/host/daemon.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "device/driver/emu_driver.h"
#include "server/job/testing/fake_clock.h"
#include "server/keep/testing/manager.h"
#include "server/state/machine_state.h"

namespace iris::server {
namespace {

using absl::StatusCode;

// The emulated platform, with faults on demand. Thread-safe.
class FaultyDriver : public driver::GpuDriver {
 public:
  driver::BackendKind kind() const override { return real_->kind(); }
  absl::Span<const driver::DeviceInfo> devices() const override { return real_->devices(); }
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> Create(uint32_t device, uint64_t bytes,
                                                                 bool prealloc) override {
    {
      absl::MutexLock lock(&mu_);
      const auto open = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !held_; };
      ++creating_;
      mu_.Await(absl::Condition(&open));
      if (!fails_with_.ok()) return fails_with_;
    }
    return real_->Create(device, bytes, prealloc);
  }
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> Adopt(uint32_t device, int fd,
                                                                uint64_t n) override {
    return real_->Adopt(device, fd, n);
  }
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> Import(int fd, uint64_t n) override {
    return real_->Import(fd, n);
  }
  absl::Status MakeCurrent(uint32_t device) override { return real_->MakeCurrent(device); }
  absl::Status CanAccessPeer(uint32_t from, uint32_t to) override {
    return real_->CanAccessPeer(from, to);
  }
  absl::StatusOr<std::string> FabricDomain() const override { return real_->FabricDomain(); }
  absl::StatusOr<driver::MemoryInfo> DeviceMemory(uint32_t device) override {
    return driver::MemoryInfo{77, 99};
  }
  absl::StatusOr<std::unique_ptr<driver::Reservation>> Reserve(uint64_t n, uint32_t pieces,
                                                               uint64_t at) override {
    return real_->Reserve(n, pieces, at);
  }
  absl::StatusOr<std::unique_ptr<driver::Mapping>> Map(
      driver::Reservation& range, uint64_t offset, driver::PhysicalMemory& memory,
      driver::Access access, absl::Span<const uint32_t> devices) override {
    return real_->Map(range, offset, memory, access, devices);
  }
  absl::Status Fill(uint64_t at, uint8_t value, uint64_t n) override {
    return real_->Fill(at, value, n);
  }
  absl::Status Copy(void* to, const void* from, uint64_t n) override {
    return real_->Copy(to, from, n);
  }
  absl::StatusOr<std::vector<driver::SharedPiece>> Share(uint32_t device_index, uint64_t address,
                                                         uint64_t n, size_t max) override {
    return real_->Share(device_index, address, n, max);
  }
  absl::StatusOr<const void*> RegisterHost(const void* page, uint64_t n,
                                           driver::Access access) override {
    return real_->RegisterHost(page, n, access);
  }
  absl::Status UnregisterHost(const void* page) override { return real_->UnregisterHost(page); }

  void FailWith(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    fails_with_ = status;
  }
  void set_held(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
  }
  void WaitCreating(int n) {
    absl::MutexLock lock(&mu_);
    const auto reached = [this, n]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return creating_ >= n; };
    mu_.Await(absl::Condition(&reached));
  }

 private:
  const std::unique_ptr<driver::GpuDriver> real_ = driver::CreateEmuDriver({2, 64ull << 20});
  absl::Mutex mu_;
  absl::Status fails_with_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int creating_ ABSL_GUARDED_BY(mu_) = 0;
};

class RecordingOutput : public SessionOutput {
 public:
  void SendDescriptors(SessionId session, std::vector<OutgoingDescriptor> items) override {
    absl::MutexLock lock(&mu_);
    for (OutgoingDescriptor& item : items) sent_[session.value].push_back(std::move(item));
  }
  void EndSession(SessionId session, const absl::Status& reason) override {
    absl::MutexLock lock(&mu_);
    ended_[session.value] = reason;
  }
  void ReleaseSession(SessionId session) override {
    absl::MutexLock lock(&mu_);
    released_.insert(session.value);
  }
  bool released(uint64_t session) {
    absl::MutexLock lock(&mu_);
    return released_.contains(session);
  }
  std::vector<OutgoingDescriptor> sent(uint64_t session) {
    absl::MutexLock lock(&mu_);
    return sent_[session];
  }
  absl::Status ended(uint64_t session) {
    absl::MutexLock lock(&mu_);
    return ended_[session];
  }
  void Forget() {
    absl::MutexLock lock(&mu_);
    sent_.clear();
  }

 private:
  absl::Mutex mu_;
  std::map<uint64_t, std::vector<OutgoingDescriptor>> sent_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, absl::Status> ended_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> released_ ABSL_GUARDED_BY(mu_);
};

class QueueSink : public WatchSink {
 public:
  explicit QueueSink(size_t room = 256) : room_(room) {}
  bool Push(const WatchItem& item) override {
    absl::MutexLock lock(&mu_);
    if (items_.size() >= room_) return false;
    items_.push_back(item);
    return true;
  }
  void Kick() override {
    absl::MutexLock lock(&mu_);
    ++kicks_;
  }
  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    closed_ = status;
  }
  std::deque<WatchItem> items() {
    absl::MutexLock lock(&mu_);
    return items_;
  }
  absl::Status closed() {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  const size_t room_;
  absl::Mutex mu_;
  std::deque<WatchItem> items_ ABSL_GUARDED_BY(mu_);
  int kicks_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
};

// One call's answer.
class Answer {
 public:
  Daemon::Answer Fn() {
    return [this](const Reply& reply) {
      reply_ = reply;
      done_.Notify();
    };
  }
  const Reply& Wait() {
    EXPECT_TRUE(done_.WaitForNotificationWithTimeout(absl::Seconds(60)));
    return reply_;
  }
  bool done() const { return done_.HasBeenNotified(); }

 private:
  Reply reply_;
  absl::Notification done_;
};

void Join(Daemon* daemon, SessionId session, CallId call, const JoinSpec& spec,
          Daemon::Answer answer) {
  daemon->Call(call, JoinCall{session, call, spec}, std::move(answer));
}

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() : DaemonTest(/*frozen=*/false) {}
  explicit DaemonTest(bool frozen) : logger_(LogLevel::kError, LogFormat::kKeyValue) {
    DaemonOptions options;
    options.limits.join_timeout_default = absl::Seconds(60);
    const Clock* clock = &fake_clock_;
    if (!frozen) clock = &system_clock_;
    daemon_ = std::make_unique<Daemon>(std::move(options), &driver_, clock, &logger_);
    daemon_->SetSessionOutput(&output_);
  }
  ~DaemonTest() override {
    output_.Forget();
    if (daemon_ != nullptr) daemon_->SetSessionOutput(nullptr);
  }

  SessionId Open(uint64_t id, int64_t pid = 100) {
    CallerInfo caller;
    caller.pid = pid;
    caller.party = {7};
    daemon_->Submit(SessionOpened{SessionId{id}, caller});
    return SessionId{id};
  }
  static JoinSpec Spec(int rank, int n_ranks) {
    JoinSpec spec;
    spec.job = "job";
    spec.rank = rank;
    spec.n_ranks = n_ranks;
    spec.heap_bytes = 2 << 20;
    return spec;
  }
  // A job of one rank, with its epoch committed.
  JobId Ready(SessionId session) {
    Answer join, mapped;
    Join(daemon_.get(), session, daemon_->NewCall(), Spec(0, 1), join.Fn());
    EXPECT_TRUE(join.Wait().status.ok()) << join.Wait().status;
    const JoinResult result = std::get<JoinResult>(join.Wait().result);
    Mapped(session, result, mapped.Fn());
    EXPECT_TRUE(mapped.Wait().status.ok()) << mapped.Wait().status;
    return result.job;
  }
  void Mapped(SessionId session, const JoinResult& joined, Daemon::Answer answer) {
    const CallId call = daemon_->NewCall();
    daemon_->Call(call,
                  MappedCall{session, call, joined.job, joined.epoch, joined.proposed_base, ""},
                  std::move(answer));
  }
  void Leave(SessionId session, JobId job, Daemon::Answer answer) {
    const CallId call = daemon_->NewCall();
    daemon_->Call(call, LeaveCall{session, call, job}, std::move(answer));
  }
  void Watch(SessionId session, JobId job, std::shared_ptr<WatchSink> sink) {
    daemon_->Watch(WatchOpened{session, daemon_->NewCall(), job}, std::move(sink));
  }
  std::vector<JobSnapshot> Jobs() {
    return daemon_->Inspect([](const JobMachine& machine) { return machine.Jobs(); });
  }
  size_t n_sessions() {
    return daemon_->Inspect([](const JobMachine& machine) { return machine.n_sessions(); });
  }
  uint64_t UsedBytes() {
    return daemon_->Inspect(
        [](const JobMachine& machine) { return machine.ledger().used_bytes_total(); });
  }
  bool EventuallyUnused() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (UsedBytes() != 0) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  const Logger logger_;
  const SystemClock system_clock_;
  FakeClock fake_clock_;
  FaultyDriver driver_;
  RecordingOutput output_;
  std::unique_ptr<Daemon> daemon_;
};

// Nothing is due until the test says so.
class FrozenDaemonTest : public DaemonTest {
 protected:
  FrozenDaemonTest() : DaemonTest(/*frozen=*/true) {}
};

TEST_F(DaemonTest, JoinCreatesMemoryAndSendsDescriptors) {
  const SessionId session = Open(1);
  Ready(session);
  const auto sent = output_.sent(1);
  ASSERT_EQ(sent.size(), 3u);  // status page, control page, segment
  EXPECT_EQ(sent[0].record.kind, static_cast<uint32_t>(wire::DescriptorKind::kStatusPage));
  EXPECT_EQ(sent[1].record.kind, static_cast<uint32_t>(wire::DescriptorKind::kControlPage));
  EXPECT_EQ(sent[2].record.kind, static_cast<uint32_t>(wire::DescriptorKind::kSegment));
  EXPECT_EQ(sent[2].record.bytes, 2u << 20);
  for (const OutgoingDescriptor& item : sent) {
    auto fd = item.open();
    ASSERT_TRUE(fd.ok()) << fd.status();
    close(*fd);
  }
}

TEST_F(DaemonTest, LeaveGivesEverythingBack) {
  const SessionId session = Open(1);
  const JobId job = Ready(session);
  EXPECT_EQ(UsedBytes(), 2u << 20);
  output_.Forget();
  Answer leave;
  Leave(session, job, leave.Fn());
  EXPECT_TRUE(leave.Wait().status.ok());
  EXPECT_TRUE(EventuallyUnused());
  EXPECT_TRUE(Jobs().empty());
}

TEST_F(DaemonTest, AQueuedDescriptorKeepsItsMemoryUntilItIsSent) {
  const SessionId session = Open(1);
  const JobId job = Ready(session);
  auto queued = output_.sent(1);
  output_.Forget();
  Answer leave;
  Leave(session, job, leave.Fn());
  EXPECT_TRUE(leave.Wait().status.ok());
  auto fd = queued[2].open();
  EXPECT_TRUE(fd.ok()) << fd.status();
  if (fd.ok()) close(*fd);
  EXPECT_EQ(UsedBytes(), 2u << 20);  // the ledger says what is still held
  queued.clear();
  EXPECT_TRUE(EventuallyUnused());
}

TEST_F(DaemonTest, AMemoryFailureAnswersTheJoinAndLeavesNothing) {
  driver_.FailWith(absl::ResourceExhaustedError("the test wants no memory"));
  const SessionId session = Open(1);
  Answer join;
  Join(daemon_.get(), session, daemon_->NewCall(), Spec(0, 1), join.Fn());
  EXPECT_EQ(join.Wait().status.code(), StatusCode::kResourceExhausted) << join.Wait().status;
  EXPECT_TRUE(EventuallyUnused());
  driver_.FailWith(absl::OkStatus());
  Ready(session);
}

TEST_F(DaemonTest, ARefusalForWantOfMemoryHasTheDriversCount) {
  driver_.FailWith(absl::ResourceExhaustedError("no memory"));
  Answer join;
  Join(daemon_.get(), Open(1), daemon_->NewCall(), Spec(0, 1), join.Fn());
  EXPECT_EQ(join.Wait().status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(join.Wait().status.message(),
                                "no memory; device 0 (EMU-00000000-0000-0000-0000-000000000000): "
                                "64 MiB of 64 MiB are free, 77 bytes by the driver's count"))
      << join.Wait().status;
}

TEST_F(DaemonTest, ADeviceThatDisappearsIsNamed) {
  driver_.FailWith(absl::InternalError("the device is lost"));
  Answer join;
  Join(daemon_.get(), Open(1), daemon_->NewCall(), Spec(0, 1), join.Fn());
  EXPECT_EQ(join.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(join.Wait().status.message(),
                                "device 0 (EMU-00000000-0000-0000-0000-000000000000, emulated "
                                "device 0) does not work: the device is lost"))
      << join.Wait().status;
  EXPECT_TRUE(EventuallyUnused());
}

TEST(DaemonPeerTest, RanksOnDevicesWithoutAccessAreRefused) {
  driver::EmuOptions options{.n_devices = 2, .memory_bytes_per_device = 64ull << 20};
  options.denied = {{1, 0}};
  const auto driver = driver::CreateEmuDriver(options);
  const SystemClock clock;
  const Logger logger(LogLevel::kError, LogFormat::kKeyValue);
  Daemon daemon({}, driver.get(), &clock, &logger);
  JoinSpec spec{.job = "job", .rank = 0, .n_ranks = 2, .heap_bytes = 2 << 20, .local_rank = 0};
  Answer first, second;
  for (const uint64_t id : {1, 2})
    daemon.Submit(SessionOpened{SessionId{id}, {.pid = 100, .party = {7}}});
  Join(&daemon, SessionId{1}, daemon.NewCall(), spec, first.Fn());
  spec.rank = spec.local_rank = 1;
  Join(&daemon, SessionId{2}, daemon.NewCall(), spec, second.Fn());
  EXPECT_EQ(second.Wait().status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(second.Wait().status.message(), "device 1 (EMU-"))
      << second.Wait().status;
  EXPECT_TRUE(absl::StrContains(second.Wait().status.message(),
                                "emulated device 1 has no access to memory of device 0"));
  daemon.Stop("test");
  EXPECT_FALSE(first.Wait().status.ok());
}

TEST_F(DaemonTest, AJoinCancelledWhileItsMemoryIsCreatedLeavesNothing) {
  driver_.set_held(true);
  const SessionId session = Open(1);
  Answer join;
  const CallId call = daemon_->NewCall();
  Join(daemon_.get(), session, call, Spec(0, 2), join.Fn());
  driver_.WaitCreating(1);
  EXPECT_TRUE(daemon_->Cancel(call));
  EXPECT_FALSE(daemon_->Cancel(call));
  driver_.set_held(false);
  EXPECT_TRUE(EventuallyUnused());
  EXPECT_FALSE(join.done());
}

TEST_F(FrozenDaemonTest, ACallCancelledBecauseItsProcessDiedNamesTheDeath) {
  // A dying process closes its sockets one after the other: its Join may be cancelled first.
  const SessionId stays = Open(1), dies = Open(2);
  Answer waits, lost;
  Join(daemon_.get(), stays, daemon_->NewCall(), Spec(0, 3), waits.Fn());
  const CallId call = daemon_->NewCall();
  Join(daemon_.get(), dies, call, Spec(1, 3), lost.Fn());
  EXPECT_TRUE(daemon_->Cancel(call));
  daemon_->Submit(SessionHungUp{dies, "its socket closed"});
  EXPECT_EQ(waits.Wait().status.code(), StatusCode::kAborted);
  EXPECT_NE(waits.Wait().status.message().find("rank 1"), std::string::npos);
  EXPECT_TRUE(EventuallyUnused());
  EXPECT_FALSE(lost.done());
}

TEST_F(FrozenDaemonTest, AJoinCancelledAsTheLastRankJoinsFailsTheJobLongBeforeItsTimeIsUp) {
  const SessionId lives = Open(1), other = Open(2);
  Answer cancelled, joined, mapped;
  const CallId call = daemon_->NewCall();
  Join(daemon_.get(), lives, call, Spec(0, 2), cancelled.Fn());
  EXPECT_TRUE(daemon_->Cancel(call));
  Join(daemon_.get(), other, daemon_->NewCall(), Spec(1, 2), joined.Fn());
  ASSERT_TRUE(joined.Wait().status.ok()) << joined.Wait().status;
  const auto& reply = std::get<JoinResult>(joined.Wait().result);
  Mapped(other, reply, mapped.Fn());
  fake_clock_.Advance(kWithdrawAfter);
  EXPECT_EQ(mapped.Wait().status.code(), StatusCode::kAborted) << mapped.Wait().status;
  EXPECT_NE(mapped.Wait().status.message().find("cancelled its join"), std::string::npos);
  output_.Forget();
  EXPECT_TRUE(EventuallyUnused());
}

TEST_F(DaemonTest, ACancelledJoinCanBeMadeAgainAtOnce) {
  const SessionId session = Open(1);
  Answer cancelled, again;
  const CallId call = daemon_->NewCall();
  Join(daemon_.get(), session, call, Spec(0, 2), cancelled.Fn());
  EXPECT_TRUE(daemon_->Cancel(call));
  Join(daemon_.get(), session, daemon_->NewCall(), Spec(0, 1), again.Fn());
  EXPECT_TRUE(again.Wait().status.ok()) << again.Wait().status;
}

TEST_F(DaemonTest, AProcessThatDiesWhileItsMemoryIsCreatedLeavesNothing) {
  driver_.set_held(true);
  const SessionId session = Open(1);
  Answer join;
  Join(daemon_.get(), session, daemon_->NewCall(), Spec(0, 2), join.Fn());
  driver_.WaitCreating(1);
  daemon_->Submit(
      SessionHungUp{session, "test"});  // no descriptor is out yet: the rank is let go at once
  daemon_->Submit(ProcessGone{session});
  driver_.set_held(false);
  EXPECT_TRUE(EventuallyUnused());
  EXPECT_EQ(n_sessions(), 0u);
}

TEST_F(DaemonTest, AReservingCreationDoesNotHoldUpAQuickOne) {
  driver_.set_held(true);
  std::vector<std::unique_ptr<Answer>> slow;
  for (uint64_t i = 0; i < 4; ++i) {
    JoinSpec spec = Spec(0, 1);
    spec.job = "slow" + std::to_string(i);
    spec.prealloc = true;
    slow.push_back(std::make_unique<Answer>());
    Join(daemon_.get(), Open(10 + i), daemon_->NewCall(), spec, slow.back()->Fn());
  }
  // Two workers are stuck in the driver; a third creation gets there.
  driver_.WaitCreating(2);
  Answer quick;
  Join(daemon_.get(), Open(1), daemon_->NewCall(), Spec(0, 1), quick.Fn());
  driver_.WaitCreating(3);
  driver_.set_held(false);
  EXPECT_TRUE(quick.Wait().status.ok());
  for (auto& answer : slow) EXPECT_TRUE(answer->Wait().status.ok());
}

TEST_F(DaemonTest, HangUpForgetsASessionWithoutARank) {
  const SessionId session = Open(1);
  daemon_->Submit(SessionHungUp{session, "test"});
  EXPECT_TRUE(output_.released(1));
  EXPECT_EQ(n_sessions(), 0u);
}

TEST_F(DaemonTest, HangUpKeepsASessionWithARank) {
  const SessionId session = Open(1);
  Ready(session);
  daemon_->Submit(SessionHungUp{session, "test"});
  EXPECT_FALSE(output_.released(1));
  EXPECT_EQ(n_sessions(), 1u);
  output_.Forget();
  daemon_->Submit(ProcessGone{session});
  EXPECT_TRUE(output_.released(1));
  EXPECT_EQ(n_sessions(), 0u);
  EXPECT_TRUE(EventuallyUnused());
}

TEST_F(DaemonTest, AJoinsDeadlinePassesWithoutAnybodyAsking) {
  const SessionId session = Open(1);
  JoinSpec spec = Spec(0, 2);
  spec.timeout = absl::Milliseconds(50);
  Answer join;
  Join(daemon_.get(), session, daemon_->NewCall(), spec, join.Fn());
  EXPECT_EQ(join.Wait().status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(DaemonTest, AnEarlierDeadlineWakesTheTimer) {
  const SessionId late = Open(1), early = Open(2);
  JoinSpec spec = Spec(0, 2);
  spec.timeout = absl::Minutes(30);
  Answer waits, join;
  Join(daemon_.get(), late, daemon_->NewCall(), spec, waits.Fn());
  spec.job = "other";
  spec.timeout = absl::Milliseconds(50);
  Join(daemon_.get(), early, daemon_->NewCall(), spec, join.Fn());
  EXPECT_EQ(join.Wait().status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(waits.done());
  daemon_->Stop("test");
  EXPECT_EQ(waits.Wait().status.code(), StatusCode::kUnavailable);
}

TEST_F(DaemonTest, WatchStartsWithEstablished) {
  const SessionId session = Open(1);
  const JobId job = Ready(session);
  auto sink = std::make_shared<QueueSink>();
  Watch(session, job, sink);
  ASSERT_FALSE(sink->items().empty());
  EXPECT_TRUE(std::holds_alternative<WatchEstablished>(sink->items().front()));
}

TEST_F(DaemonTest, WatchOfAnotherJobIsRefused) {
  const SessionId session = Open(1);
  Ready(session);
  auto sink = std::make_shared<QueueSink>();
  Watch(session, JobId{999}, sink);
  EXPECT_EQ(sink->closed().code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(sink->items().empty());
}

TEST_F(DaemonTest, ASlowWatchReaderLosesItsSession) {
  const SessionId session = Open(1);
  const JobId job = Ready(session);
  auto sink = std::make_shared<QueueSink>(/*room=*/0);
  Watch(session, job, sink);
  EXPECT_EQ(output_.ended(1).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(output_.ended(1).message(), "slow")) << output_.ended(1);
  EXPECT_EQ(sink->closed().code(), StatusCode::kResourceExhausted);
}

TEST_F(DaemonTest, UnwatchOfAnOldStreamKeepsTheNewOne) {
  const SessionId session = Open(1);
  const JobId job = Ready(session);
  auto first = std::make_shared<QueueSink>(), second = std::make_shared<QueueSink>();
  Watch(session, job, first);
  Watch(session, job, second);
  EXPECT_EQ(first->closed().code(), StatusCode::kCancelled);
  daemon_->Unwatch(session, first.get());
  daemon_->Stop("test");
  EXPECT_TRUE(std::holds_alternative<WatchStopping>(second->items().back()));
}

TEST_F(DaemonTest, StopAnswersAndRefuses) {
  const SessionId session = Open(1);
  Answer waiting, late;
  Join(daemon_.get(), session, daemon_->NewCall(), Spec(0, 2), waiting.Fn());
  daemon_->Stop("test");
  EXPECT_EQ(waiting.Wait().status.code(), StatusCode::kUnavailable);
  Join(daemon_.get(), session, daemon_->NewCall(), Spec(0, 2), late.Fn());
  EXPECT_EQ(late.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(daemon_->stopping());
}

TEST_F(DaemonTest, ReadsSegments) {
  const SessionId session = Open(1);
  Ready(session);
  const SegmentId segment = Jobs()[0].ranks[0].segments[0].id;
  std::vector<uint8_t> bytes(16, 1);
  ASSERT_TRUE(daemon_->segments().Read(segment, 100, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes, std::vector<uint8_t>(16, 0));
  EXPECT_EQ(daemon_->segments().Read(SegmentId{999}, 0, absl::MakeSpan(bytes)).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(daemon_->segments().Read(segment, (2 << 20) - 1, absl::MakeSpan(bytes)).code(),
            StatusCode::kInvalidArgument);
}

// With a service manager that keeps descriptors, and a folder for the journal.
class KeepingTest : public DaemonTest {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/iris-daemon-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    daemon_->StopKeeping();
    EXPECT_EQ(rmdir(folder_.c_str()), 0);
    daemon_.reset();
  }
  void Keep(Inherited* inherited) {
    const absl::Status kept = daemon_->Keep({manager_.keeper.get(), folder_, {1, 1}}, inherited,
                                            [](const Party&, wire::UniqueFd) {});
    EXPECT_TRUE(kept.ok()) << kept;
  }
  // Returns the next message to the manager, or an empty text.
  std::string Told() {
    char text[100] = {};
    return recv(manager_.socket.get(), text, sizeof(text) - 1, MSG_DONTWAIT) > 0 ? text : "";
  }
  bool Stored() const { return access(absl::StrCat(folder_, "/state/journal").c_str(), F_OK) == 0; }
  bool EventuallyStored() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!Stored() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    return Stored();
  }

  ServiceManager manager_{100'000};
  std::string folder_;
};

// Whatever the daemon makes from Keep on may have the name of memory that nobody has.
TEST_F(KeepingTest, MemoryOfNobodyIsGivenUpBeforeAnythingIsMade) {
  Inherited inherited;
  inherited.segments[SegmentId{1}] = wire::UniqueFd(memfd_create("orphan", MFD_CLOEXEC));
  Keep(&inherited);
  EXPECT_EQ(Told(), "FDSTOREREMOVE=1\nFDNAME=gB");
}

// No input comes: a timer has it tried again.
TEST_F(KeepingTest, AnIdleDaemonStoresItsStateAgain) {
  Inherited inherited;
  Keep(&inherited);
  EXPECT_TRUE(Stored());
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit full = before;
  full.rlim_cur = 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  Open(1);
  EXPECT_FALSE(Stored());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(EventuallyStored());
  const auto stored = ReadJournal(folder_);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(MachineState::BytesOf(*stored->state), daemon_->Inspect(MachineState::Encode));
}

// Without an input, a timer sends the manager the messages that it has not taken.
TEST_F(KeepingTest, AManagerThatTookNothingForAWhileIsToldAll) {
  Inherited inherited;
  Keep(&inherited);
  const wire::UniqueFd file(memfd_create("kept", MFD_CLOEXEC));
  while (manager_.keeper->Store("gB", {file.get()}).ok()) continue;
  Open(1);
  EXPECT_TRUE(Stored());
  EXPECT_FALSE(daemon_->Kept()->status.ok());
  while (!Told().empty()) continue;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!daemon_->Kept()->status.ok() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(daemon_->Kept()->status.ok()) << daemon_->Kept()->status;
  EXPECT_TRUE(Stored());
}

}  // namespace
}  // namespace iris::server
