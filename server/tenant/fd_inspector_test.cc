#include "server/tenant/fd_inspector.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "server/job/clock.h"
#include "server/link/drop_unread.h"
#include "server/session/testing/slow_socket.h"
#include "server/tenant/worker_program.h"
#include "server/worker/helper_work.h"

namespace iris::server {
namespace {

constexpr Party kAlice{1000};

wire::UniqueFd Memfd() { return wire::UniqueFd(memfd_create("test", MFD_CLOEXEC)); }
wire::UniqueFd Open(const char* path) { return wire::UniqueFd(open(path, O_RDONLY | O_CLOEXEC)); }

class FdInspectorTest : public ::testing::Test {
 protected:
  // The times are real ones: a test that waits for neither has them long.
  void Make(absl::Duration answers_within = absl::Seconds(600),
            absl::Duration gives_up_after = absl::Seconds(600)) {
    WorkerSettings settings;
    settings.program = "server/irisd-worker";
    program_ = std::make_unique<WorkerProgram>(*WorkerProgram::Open(settings));
    poller_ = *Poller::Create();
    FdInspector::Setup setup;
    setup.processes.start = [this]() -> WorkerProgram::Started {
      if (!start_fails_.ok()) return start_fails_;
      WorkerProgram::Started started = program_->StartLooking(limits_);
      if (!started.ok()) return started;
      pids_.push_back((*started)->pid());
      // Before it has answered anything.
      if (stops_ && pids_.size() == 1) kill(pids_.back(), SIGSTOP);
      return started;
    };
    setup.processes.trouble = [this](uint64_t, const absl::Status& why) {
      troubles_.push_back(why);
    };
    setup.closing = [this](uint32_t n) { n_closing_ = n; };
    setup.room = [this](const Party&) { return room_; };
    setup.room_within = room_within_;
    setup.answers_within = answers_within;
    setup.gives_up_after = gives_up_after;
    inspector_ = std::make_unique<FdInspector>(poller_.get(), std::move(setup));
  }

  // Connections by which descriptors come: `ours` is irisd's end.
  struct Pair {
    wire::UniqueFd ours, theirs;
  };
  static Pair Connect() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    return {wire::UniqueFd(pair[0]), wire::UniqueFd(pair[1])};
  }
  static Pair Sent(int fd) {
    Pair pair = Connect();
    testing::SendFd(pair.theirs.get(), fd);
    return pair;
  }
  template <typename F>
  bool Until(const F& done) {
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end;) {
      if (done()) return true;
      poller_->Wait(std::min(absl::Milliseconds(20), inspector_->deadline() - SteadyNow()));
      inspector_->RunDeadlines(SteadyNow());
    }
    return false;
  }
  absl::Status Look(int socket, const Party& tenant = kAlice) {
    std::optional<absl::Status> answer;
    inspector_->Look(socket, tenant, [&answer](const absl::Status& status) { answer = status; });
    EXPECT_TRUE(Until([&answer] { return answer.has_value(); }));
    return answer.value_or(absl::UnknownError("no answer"));
  }
  absl::Status LookAt(const wire::UniqueFd& fd, const Party& tenant = kAlice) {
    return Look(Sent(fd.get()).ours.get(), tenant);
  }

  LookingLimits limits_;
  std::unique_ptr<WorkerProgram> program_;
  std::unique_ptr<Poller> poller_;
  absl::Status start_fails_;
  absl::Status room_;
  absl::Duration room_within_ = absl::Seconds(600);
  bool stops_ = false;
  std::vector<pid_t> pids_;
  std::vector<absl::Status> troubles_;
  uint32_t n_closing_ = 0;
  std::unique_ptr<FdInspector> inspector_;
};

TEST_F(FdInspectorTest, OnlyWhatLivesInMemoryIsGood) {
  Make();
  EXPECT_TRUE(LookAt(Memfd()).ok());
  std::vector<wire::UniqueFd> bad;
  bad.push_back(Connect().ours);
  bad.push_back(Open("/"));
  bad.push_back(Open("/dev/null"));
  for (const wire::UniqueFd& fd : bad) {
    const absl::Status status = LookAt(fd);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "send memfds")) << status;
  }
  EXPECT_EQ(pids_.size(), 1u) << "one looks at all";
  EXPECT_TRUE(troubles_.empty());
}

TEST_F(FdInspectorTest, TheKindOfTheDevicesIsGoodToo) {
  limits_.device_memory = KindOf(Open("/dev/null").get());
  ASSERT_TRUE(limits_.device_memory.has_value());
  Make();
  const absl::Status null = LookAt(Open("/dev/null"));
  EXPECT_TRUE(null.ok()) << null;
  EXPECT_FALSE(LookAt(Open("/dev/zero")).ok());
  EXPECT_FALSE(LookAt(Open("/")).ok());
}

TEST_F(FdInspectorTest, WhatWasLookedAtIsStillThere) {
  Make();
  const Pair sent = Sent(Memfd().get());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Look(sent.ours.get()).ok());
  EXPECT_EQ(NextOf(sent.ours.get()), Next::kDescriptors);
}

TEST_F(FdInspectorTest, WhatCameBeforeAResetIsLookedAt) {
  Make();
  Pair sent = Connect();
  ASSERT_EQ(send(sent.ours.get(), "unread", 6, 0), 6);
  testing::SendFd(sent.theirs.get(), Open("/dev/null").get());
  sent.theirs.Reset();
  EXPECT_EQ(Look(sent.ours.get()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FdInspectorTest, WhereThereIsNothingNothingIsGood) {
  Make();
  const absl::Status status = Look(Connect().ours.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "linger")) << status;
}

// Memory that came along with a bad descriptor is closed at once, so it takes none of the tenant's
// room. The bad one is closed on a thread, which may be done before the answer.
TEST_F(FdInspectorTest, OnlyWhatMayNotCloseCounts) {
  limits_.max_closing_per_tenant = 2;
  Make();
  const wire::UniqueFd memory = Memfd();
  const wire::UniqueFd bad = Open("/dev/null");
  const Pair mixed = Connect();
  std::vector<int> fds(15, memory.get());
  fds.push_back(bad.get());
  ASSERT_TRUE(wire::SendEmptyFrame(mixed.theirs.get(), wire::FrameType::kAck, fds).ok());
  EXPECT_EQ(Look(mixed.ours.get()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LE(n_closing_, 1u);
  for (int i = 0; i < 20; ++i) {
    const absl::Status good = LookAt(memory);
    EXPECT_TRUE(good.ok()) << good;
  }
}

TEST_F(FdInspectorTest, GoodOnesWaitForRoomAndTheOldestHasItFirst) {
  Make();
  room_ = absl::ResourceExhaustedError("irisd closes much");
  std::vector<Pair> sent;
  std::vector<int> answered;
  for (int i = 0; i < 3; ++i) {
    sent.push_back(Sent(Memfd().get()));
    inspector_->Look(sent.back().ours.get(), kAlice, [this, &answered, i](const absl::Status& s) {
      EXPECT_TRUE(s.ok()) << s;
      answered.push_back(i);
      room_ = absl::ResourceExhaustedError("what has been received takes it");
    });
  }
  EXPECT_FALSE(LookAt(Open("/dev/null")).ok()) << "what is bad does not wait, and came last";
  EXPECT_TRUE(answered.empty());
  for (size_t n = 1; n <= 3; ++n) {
    room_ = absl::OkStatus();
    EXPECT_TRUE(Until([&] { return answered.size() >= n; }));
    EXPECT_EQ(answered.size(), n);
  }
  EXPECT_EQ(answered, (std::vector<int>{0, 1, 2}));
}

TEST_F(FdInspectorTest, WithoutRoomNobodyWaitsForEver) {
  room_within_ = absl::Milliseconds(50);
  room_ = absl::ResourceExhaustedError("irisd closes much");
  Make();
  EXPECT_EQ(LookAt(Memfd()), room_);
}

TEST_F(FdInspectorTest, WhatAKilledOneHasNotAnsweredAnotherDoes) {
  stops_ = true;
  Make();
  const Pair sent = Sent(Memfd().get());
  std::optional<absl::Status> answer;
  inspector_->Look(sent.ours.get(), kAlice, [&](const absl::Status& status) { answer = status; });
  ASSERT_EQ(pids_.size(), 1u);
  kill(pids_[0], SIGKILL);
  ASSERT_TRUE(Until([&] { return answer.has_value(); }));
  EXPECT_TRUE(answer->ok()) << *answer;
  EXPECT_EQ(pids_.size(), 2u);
}

TEST_F(FdInspectorTest, OneThatHangsIsFollowedByAnother) {
  stops_ = true;
  Make(/*answers_within=*/absl::Seconds(2));
  const Pair sent = Sent(Memfd().get());
  const absl::Status status = Look(sent.ours.get());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GE(pids_.size(), 2u);
  ASSERT_GE(troubles_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(troubles_[0].message(), "looks at descriptors")) << troubles_[0];
}

TEST_F(FdInspectorTest, WithoutAProcessNobodyWaitsForEver) {
  Make(/*answers_within=*/absl::Seconds(600), /*gives_up_after=*/absl::Milliseconds(300));
  start_fails_ = absl::ResourceExhaustedError("no process is left");
  const absl::Status status = LookAt(Memfd());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ASSERT_GE(troubles_.size(), 1u);
  EXPECT_EQ(troubles_[0], start_fails_);
}

TEST_F(FdInspectorTest, ForgottenLooksAreNotAnswered) {
  Make();
  const Pair sent = Sent(Memfd().get());
  bool answered = false;
  inspector_->Forget(
      inspector_->Look(sent.ours.get(), kAlice, [&](const absl::Status&) { answered = true; }));
  EXPECT_TRUE(LookAt(Memfd()).ok());
  EXPECT_FALSE(answered);
}

}  // namespace
}  // namespace iris::server
