#include "server/tenant/worker_table.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "server/job/clock.h"
#include "server/tenant/testing/fake_worker.h"

namespace iris::server {
namespace {

// A worker that was started, without a process.
struct Started {
  Party tenant;
  pid_t pid = 0;
  FakeWorker worker;
  wire::UniqueFd exit{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::optional<std::string> how;  // once it has ended
  bool gone = false;               // the table has let go of it

  void End(const std::string& text) {
    if (how.has_value()) return;
    how = text;
    worker.Die();
    const uint64_t one = 1;
    EXPECT_EQ(write(exit.get(), &one, sizeof(one)), 8);
  }
  // The numbers of the connections that it was given.
  std::vector<uint64_t> Connections() {
    std::vector<uint64_t> connections;
    for (const auto& heard : worker.Hear()) {
      if (heard.type() == LinkType::kConnect) connections.push_back(heard.header.connection);
    }
    return connections;
  }
};

class FakeProcess : public RunningWorker {
 public:
  explicit FakeProcess(std::shared_ptr<Started> started) : started_(std::move(started)) {}
  ~FakeProcess() override {
    Kill();
    started_->gone = true;
  }
  pid_t pid() const override { return started_->pid; }
  int pidfd() const override { return started_->exit.get(); }
  wire::UniqueFd TakeLink() override { return started_->worker.TakeCoreEnd(); }
  void Kill() override { started_->End("killed by signal 9 (Killed)"); }
  std::optional<std::string> Reap() override { return started_->how; }

 private:
  const std::shared_ptr<Started> started_;
};

class WorkerTableTest : public ::testing::Test {
 protected:
  WorkerTableTest() {
    poller_ = *Poller::Create();
    limits_.start_burst = 4;
    limits_.start_interval = absl::Milliseconds(600);
  }

  WorkerTable& table() {
    if (table_ == nullptr) {
      WorkerTable::Setup setup;
      setup.start = [this](const Party& tenant) -> absl::StatusOr<std::unique_ptr<RunningWorker>> {
        if (!start_fails_.ok()) return start_fails_;
        auto started = std::make_shared<Started>();
        started->tenant = tenant;
        started->pid = static_cast<pid_t>(100 + workers_.size());
        workers_.push_back(started);
        return std::make_unique<FakeProcess>(started);
      };
      setup.serve = [this](const IncomingCall& call) -> std::shared_ptr<ActiveCall> {
        served_.push_back(call);
        return nullptr;
      };
      setup.died = [this](const Party& tenant, pid_t pid, const absl::Status& reason) {
        died_.push_back(absl::StrCat(tenant.Text(), " ", pid, " ", reason.message()));
      };
      setup.limits = limits_;
      setup.is_operator = [this](const Party& tenant) { return tenant.uid == operator_uid_; };
      table_ = std::make_unique<WorkerTable>(poller_.get(), std::move(setup));
    }
    return *table_;
  }

  void Turn() {
    for (int i = 0; i < 5; ++i) {
      poller_->Wait(absl::ZeroDuration());
      RunAt(SteadyNow());
    }
  }
  void RunAt(absl::Time now) {
    if (table().deadline() <= now) table().RunDeadlines(now);
  }

  absl::StatusOr<uint64_t> Connect(uint32_t uid, std::function<void()> closed = nullptr) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    clients_.emplace_back(pair[1]);
    RpcPeer peer;
    peer.tenant.uid = uid;
    peer.caller.party.uid = uid;
    wire::UniqueFd socket(pair[0]);
    return table().Connect(&socket, peer, std::move(closed));
  }
  // Returns true if the core and its workers have closed the other end.
  bool IsClosed(const wire::UniqueFd& client) {
    char byte;
    return recv(client.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  std::unique_ptr<Poller> poller_;
  WorkerLimits limits_;
  uint32_t operator_uid_ = ~0u;
  absl::Status start_fails_;
  std::vector<std::shared_ptr<Started>> workers_;
  std::vector<IncomingCall> served_;
  std::vector<std::string> died_;
  std::vector<wire::UniqueFd> clients_;
  std::unique_ptr<WorkerTable> table_;
};

TEST_F(WorkerTableTest, StartsOneWorkerForATenantAndAnotherForAnother) {
  const uint64_t a = *Connect(1000);
  const uint64_t b = *Connect(1000);
  const uint64_t c = *Connect(2000);
  ASSERT_EQ(workers_.size(), 2u);
  EXPECT_EQ(workers_[0]->tenant.uid, 1000u);
  EXPECT_EQ(workers_[1]->tenant.uid, 2000u);
  EXPECT_TRUE(workers_[0]->Connections().empty()) << "it is not ready";
  workers_[0]->worker.Ready();
  workers_[1]->worker.Ready();
  Turn();
  EXPECT_EQ(workers_[0]->Connections(), (std::vector<uint64_t>{a, b}));
  EXPECT_EQ(workers_[1]->Connections(), std::vector<uint64_t>{c});
  const uint64_t d = *Connect(1000);
  EXPECT_EQ(workers_[0]->Connections(), std::vector<uint64_t>{d});
  EXPECT_EQ(workers_.size(), 2u);
}

// Closing a client's socket may take long, so a refused one stays with the caller, which has means
// for that.
TEST_F(WorkerTableTest, ASocketThatIsRefusedIsLeftToTheCaller) {
  start_fails_ = absl::ResourceExhaustedError("no process is left");
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const wire::UniqueFd client(pair[1]);
  wire::UniqueFd socket(pair[0]);
  EXPECT_EQ(table().Connect(&socket, RpcPeer(), nullptr).status(), start_fails_);
  EXPECT_TRUE(socket.valid());
  EXPECT_FALSE(IsClosed(client));
}

TEST_F(WorkerTableTest, ATenantCannotUseAnothersConnections) {
  const uint64_t mine = *Connect(1000);
  ASSERT_TRUE(Connect(2000).ok());
  for (const auto& worker : workers_) worker->worker.Ready();
  Turn();
  workers_[1]->worker.Call(mine, 1, Method::kListJobs);
  Turn();
  EXPECT_TRUE(served_.empty());
  ASSERT_EQ(died_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(died_[0], "uid 2000")) << died_[0];
  EXPECT_TRUE(absl::StrContains(died_[0], "unknown connection")) << died_[0];
  EXPECT_FALSE(workers_[0]->how.has_value()) << "the other tenant's worker was ended";
}

TEST_F(WorkerTableTest, AWorkersDeathTellsItsOwnConnectionsAlone) {
  int mine = 0, others = 0;
  ASSERT_TRUE(Connect(1000, [&mine] { ++mine; }).ok());
  ASSERT_TRUE(Connect(2000, [&others] { ++others; }).ok());
  for (const auto& worker : workers_) worker->worker.Ready();
  Turn();
  workers_[0]->End("killed by signal 9 (Killed)");
  Turn();
  EXPECT_EQ(mine, 1);
  EXPECT_EQ(others, 0);
  ASSERT_EQ(died_.size(), 1u);
  EXPECT_EQ(died_[0], "uid 1000 100 killed by signal 9 (Killed)");
  EXPECT_EQ(workers_.size(), 2u) << "nobody waits for another";
  EXPECT_TRUE(workers_[0]->gone);
  // The next connection has another worker started.
  const uint64_t next = *Connect(1000);
  ASSERT_EQ(workers_.size(), 3u);
  workers_[2]->worker.Ready();
  Turn();
  EXPECT_EQ(workers_[2]->Connections(), std::vector<uint64_t>{next});
}

TEST_F(WorkerTableTest, WhoWaitsOutlivesAWorkerThatNeverBecameReady) {
  int closed = 0;
  const uint64_t waiting = *Connect(1000, [&closed] { ++closed; });
  workers_[0]->End("exited with 1");
  Turn();
  ASSERT_EQ(workers_.size(), 2u);
  workers_[1]->worker.Ready();
  Turn();
  EXPECT_EQ(workers_[1]->Connections(), std::vector<uint64_t>{waiting});
  EXPECT_EQ(closed, 0);
}

TEST_F(WorkerTableTest, StartsAreLimitedInTime) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Connect(1000).ok());
    ASSERT_EQ(workers_.size(), static_cast<size_t>(i + 1));
    workers_.back()->worker.Ready();
    Turn();
    workers_.back()->End("exited with 1");
    Turn();
  }
  const uint64_t waiting = *Connect(1000);
  EXPECT_EQ(workers_.size(), 4u) << "a fifth start within the same moment";
  // Another tenant is not touched by that.
  ASSERT_TRUE(Connect(2000).ok());
  EXPECT_EQ(workers_.size(), 5u);
  absl::SleepFor(limits_.start_interval + absl::Milliseconds(20));
  Turn();
  ASSERT_EQ(workers_.size(), 6u);
  workers_[5]->worker.Ready();
  Turn();
  EXPECT_EQ(workers_[5]->Connections(), std::vector<uint64_t>{waiting});
}

TEST_F(WorkerTableTest, ThoseWhoWaitAreGivenUpWhenNoWorkerBecomesReady) {
  limits_.start_burst = 100;
  limits_.max_failures = 3;
  int closed = 0;
  ASSERT_TRUE(Connect(1000, [&closed] { ++closed; }).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(closed, 0);
    workers_.back()->End("exited with 1");
    Turn();
  }
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(workers_.size(), 3u);
  EXPECT_TRUE(IsClosed(clients_[0]));
}

TEST_F(WorkerTableTest, NotReadyInTimeIsEnded) {
  ASSERT_TRUE(Connect(1000).ok());
  RunAt(SteadyNow() + limits_.ready_timeout + absl::Seconds(1));
  Turn();
  ASSERT_GE(died_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(died_[0], "not ready within 10s")) << died_[0];
  EXPECT_EQ(workers_.size(), 2u);
}

TEST_F(WorkerTableTest, ThoseWhoWaitAreLimited) {
  limits_.max_waiting = 3;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Connect(1000).ok());
  const auto refused = Connect(1000);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "3 connections of uid 1000"));
  EXPECT_TRUE(Connect(2000).ok());
}

TEST_F(WorkerTableTest, WorkersAreLimited) {
  limits_.max_workers = 2;
  limits_.kept_for_operator = 0;
  ASSERT_TRUE(Connect(1).ok());
  ASSERT_TRUE(Connect(2).ok());
  const auto refused = Connect(3);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "2 workers"));
  EXPECT_TRUE(Connect(1).ok());
}

TEST_F(WorkerTableTest, SomeWorkersAreKeptForTheOperator) {
  limits_.max_workers = 3;
  limits_.kept_for_operator = 1;
  operator_uid_ = 7;
  ASSERT_TRUE(Connect(1).ok());
  ASSERT_TRUE(Connect(2).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Connect(3).status()));
  EXPECT_TRUE(Connect(7).ok());
}

TEST_F(WorkerTableTest, AStartThatFailsIsSaid) {
  start_fails_ = absl::ResourceExhaustedError("no processes left");
  EXPECT_EQ(Connect(1000).status(), start_fails_);
  start_fails_ = absl::OkStatus();
  EXPECT_TRUE(Connect(1000).ok());
}

TEST_F(WorkerTableTest, AnIdleWorkerIsToldToStopAndEnds) {
  const uint64_t connection = *Connect(1000);
  workers_[0]->worker.Ready();
  Turn();
  (void)workers_[0]->Connections();
  table().Disconnect(connection);
  workers_[0]->worker.Say(LinkType::kClosed, connection);
  Turn();
  RunAt(SteadyNow() + limits_.idle_timeout - absl::Seconds(1));
  EXPECT_EQ(workers_[0]->worker.Hear().size(), 1u) << "kDisconnect alone";
  RunAt(SteadyNow() + limits_.idle_timeout + absl::Seconds(1));
  const auto heard = workers_[0]->worker.Hear();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].type(), LinkType::kStop);
  // A connection meanwhile gets another worker.
  ASSERT_TRUE(Connect(1000).ok());
  EXPECT_EQ(workers_.size(), 2u);
  workers_[0]->End("exited with 0");
  Turn();
  EXPECT_TRUE(workers_[0]->gone);
  EXPECT_TRUE(died_.empty()) << "it was asked to";
  EXPECT_EQ(table().n_workers(), 1u);
}

TEST_F(WorkerTableTest, AWorkerThatDoesNotStopIsKilled) {
  const uint64_t connection = *Connect(1000);
  workers_[0]->worker.Ready();
  Turn();
  table().Disconnect(connection);
  workers_[0]->worker.Say(LinkType::kClosed, connection);
  Turn();
  RunAt(SteadyNow() + limits_.idle_timeout + absl::Seconds(1));
  EXPECT_FALSE(workers_[0]->how.has_value());
  RunAt(SteadyNow() + limits_.stop_timeout + absl::Seconds(1));
  EXPECT_TRUE(workers_[0]->how.has_value());
  Turn();
  EXPECT_EQ(table().n_workers(), 0u);
}

TEST_F(WorkerTableTest, DisconnectOfOneThatWaitsClosesIt) {
  const uint64_t a = *Connect(1000);
  const uint64_t b = *Connect(1000);
  table().Disconnect(a);
  EXPECT_TRUE(IsClosed(clients_[0]));
  table().Disconnect(a);
  workers_[0]->worker.Ready();
  Turn();
  EXPECT_EQ(workers_[0]->Connections(), std::vector<uint64_t>{b});
}

TEST_F(WorkerTableTest, StopAsksThenKills) {
  ASSERT_TRUE(Connect(1000).ok());
  workers_[0]->worker.Ready();
  Turn();
  const absl::Time before = SteadyNow();
  table().Stop(absl::Milliseconds(100));
  EXPECT_GE(SteadyNow() - before, absl::Milliseconds(90));
  EXPECT_TRUE(workers_[0]->gone);
  EXPECT_EQ(table().n_workers(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(Connect(1000).status()));
  EXPECT_TRUE(died_.empty());
}

}  // namespace
}  // namespace iris::server
