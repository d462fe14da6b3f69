#include "client/session/irisd_control_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/testing/fake_irisd.h"
#include "tests/cc/require.h"

namespace iris::internal {
namespace {

using iris::testing::Require;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Events {
  void Take(const WatchEvent& event) {
    if (const auto* change = std::get_if<RankChange>(&event)) {
      EXPECT_EQ(change->state, wire::PageRankState::kEnding);
      EXPECT_EQ(change->reason, "hung up");
      ++rank_changes;
    } else if (const auto* added = std::get_if<SegmentsAdded>(&event)) {
      absl::MutexLock lock(&mu);
      last_added = *added;
    } else if (const auto* done = std::get_if<GrowDone>(&event)) {
      grown = done->grow_id;
    } else if (const auto* stopping = std::get_if<Stopping>(&event)) {
      EXPECT_EQ(stopping->reason, "update");
      ++stops;
    }
  }
  absl::Mutex mu;
  SegmentsAdded last_added ABSL_GUARDED_BY(mu);
  std::atomic<uint64_t> grown{0};
  std::atomic<int> stops{0};
  std::atomic<int> rank_changes{0};
};

class IrisdControlPlaneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/iris-cp-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    irisd_ = std::make_unique<FakeIrisd>(dir_);
    plane_ = Require(IrisdControlPlane::Connect({{dir_}, absl::Seconds(10)}));
  }
  void TearDown() override {
    plane_.reset();
    irisd_.reset();
    rmdir(dir_.c_str());
  }
  void Watch() {
    plane_->StartWatching(
        {5, 6, "job", 3}, [this](const WatchEvent& event) { events_.Take(event); }, [] {});
  }

  absl::StatusOr<Outcome> Operate(uint64_t k, absl::Duration reach = absl::Seconds(60),
                                  absl::Duration answer = absl::Seconds(60)) {
    OperationCall call;
    call.k = k;
    return plane_->Operate(call, absl::Now() + reach, absl::Now() + answer, &unanswered_);
  }

  std::string dir_;
  std::unique_ptr<FakeIrisd> irisd_;
  Events events_;
  std::unique_ptr<IrisdControlPlane> plane_;
  bool unanswered_ = false;
};

const absl::Status kBreak = absl::UnavailableError("break");

TEST_F(IrisdControlPlaneTest, CallsCarryTheSession) {
  auto reply = Require(
      plane_->Join({{.join_timeout = std::chrono::seconds(60)}}, absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(reply.job_id, 101u);
}

TEST_F(IrisdControlPlaneTest, AJoinIsMadeAgainAtTheNextIrisd) {
  irisd_->BreakJoins(true);
  std::thread next([this] {
    EXPECT_TRUE(irisd_->WaitFor([this] { return irisd_->joins() > 0; }));
    irisd_.reset();
    irisd_ = std::make_unique<FakeIrisd>(dir_, /*daemon_id=*/2);
  });
  const auto reply =
      plane_->Join({{.join_timeout = std::chrono::seconds(60)}}, absl::Now() + absl::Seconds(60));
  next.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(irisd_->joins(), 1);
  EXPECT_EQ(plane_->daemon_id(), 2u);
}

TEST_F(IrisdControlPlaneTest, AJoinIsNotMadeAgainAtTheSameIrisd) {
  irisd_->BreakJoins(true);
  const auto reply =
      plane_->Join({{.join_timeout = std::chrono::seconds(60)}}, absl::Now() + absl::Seconds(60));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(reply.status().message(), HasSubstr("the session with irisd at " + dir_ + " ended"));
  EXPECT_EQ(irisd_->joins(), 1);
}

TEST_F(IrisdControlPlaneTest, AJoinWaitsNoLongerThanItsTimeForTheNextIrisd) {
  irisd_->BreakJoins(true);
  std::thread gone([this] {
    EXPECT_TRUE(irisd_->WaitFor([this] { return irisd_->joins() > 0; }));
    irisd_.reset();
  });
  HostContextOptions options;
  options.join_timeout = std::chrono::seconds(1);
  const absl::Time start = absl::Now();
  const auto reply = plane_->Join(options, start + absl::Seconds(120));
  gone.join();
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(reply.status().message(), HasSubstr("cannot reach irisd"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_F(IrisdControlPlaneTest, AnswersKeepCodeAndText) {
  irisd_->AnswerOperations({absl::AlreadyExistsError("name in use")});
  Watch();
  EXPECT_EQ(Operate(0).status(), absl::AlreadyExistsError("name in use"));
  EXPECT_FALSE(unanswered_);
}

TEST_F(IrisdControlPlaneTest, BrokenConnectionIsResumedAndTheCallRepeatedWithItsK) {
  Watch();
  irisd_->AnswerOperations({kBreak});
  auto reply = Require(Operate(7));
  EXPECT_EQ(reply.k, 7u);
  EXPECT_THAT(irisd_->ks(), ElementsAre(7u, 7u));
  EXPECT_EQ(irisd_->resumes(), 1);
  EXPECT_FALSE(unanswered_);
}

TEST_F(IrisdControlPlaneTest, BreaksAgainAndAgain) {
  Watch();
  irisd_->AnswerOperations({kBreak, kBreak, kBreak});
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_EQ(irisd_->resumes(), 3);
}

TEST_F(IrisdControlPlaneTest, StoppingDaemonIsAskedAgain) {
  Watch();
  irisd_->AnswerOperations({absl::UnavailableError("irisd is stopping")});
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_THAT(irisd_->ks(), ElementsAre(1u, 1u));
  EXPECT_EQ(irisd_->resumes(), 0);
}

TEST_F(IrisdControlPlaneTest, WithoutWatchingABreakEndsTheCall) {
  irisd_->AnswerOperations({kBreak});
  EXPECT_EQ(Operate(1, absl::Seconds(5)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(IrisdControlPlaneTest, GoneDaemonIsNamedAfterTheDeadline) {
  Watch();
  irisd_.reset();
  const absl::Status status = Operate(1, absl::Milliseconds(600)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot reach irisd at " + dir_));
}

TEST_F(IrisdControlPlaneTest, DaemonThatComesBackWithTheJobIsResumed) {
  Watch();
  irisd_.reset();
  irisd_ = std::make_unique<FakeIrisd>(dir_, 2);  // a later version of irisd keeps jobs
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_TRUE(plane_->lost().ok());
}

TEST_F(IrisdControlPlaneTest, DaemonThatForgotTheJobIsFinal) {
  Watch();
  irisd_.reset();
  irisd_ = std::make_unique<FakeIrisd>(dir_, 2, absl::NotFoundError("no such job"));
  const absl::Status status = Operate(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("restarted and no longer knows job \"job\""));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("mapped memory stays valid, create a new Context"));
  // At once, not after a deadline.
  EXPECT_EQ(Operate(2).status(), status);
  EXPECT_EQ(plane_->lost(), status);
}

TEST_F(IrisdControlPlaneTest, SameDaemonThatDoesNotTakeTheRankBackIsNotCalledRestarted) {
  Watch();
  irisd_->AnswerResume(absl::PermissionDeniedError("another process"));
  irisd_->HangUp();
  const absl::Status status = Operate(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another process"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("restarted")));
}

TEST_F(IrisdControlPlaneTest, RankWhoseJobBrokeCanStillLeave) {
  Watch();
  irisd_->AnswerResume(absl::AbortedError("the job is broken"));
  irisd_->HangUp();
  EXPECT_EQ(Operate(1).status().code(), absl::StatusCode::kAborted);
  plane_->StopWatching();
  EXPECT_TRUE(plane_->Leave(5, absl::Now() + absl::Seconds(60)).ok());
}

TEST_F(IrisdControlPlaneTest, ResumeIsRepeatedWhileIrisdIsNotReady) {
  Watch();
  irisd_->AnswerResume(absl::UnavailableError("not yet"));
  irisd_->HangUp();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->resumes() >= 2; }));
  irisd_->AnswerResume(absl::OkStatus());
  EXPECT_TRUE(Operate(1).ok());
}

TEST_F(IrisdControlPlaneTest, SilentDaemonEndsTheCallAtItsDeadline) {
  Watch();
  irisd_->AnswerOperations({absl::DataLossError("hang")});
  const absl::Status status = Operate(1, absl::Seconds(60), absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not answer"));
  EXPECT_TRUE(unanswered_);
}

TEST_F(IrisdControlPlaneTest, RefusalOfARetryLeavesTheFirstRequestUnanswered) {
  Watch();
  irisd_->AnswerOperations({kBreak, absl::ResourceExhaustedError("too many wait")});
  EXPECT_EQ(Operate(3).status(), absl::ResourceExhaustedError("too many wait"));
  EXPECT_TRUE(unanswered_);
  EXPECT_TRUE(Operate(3).ok());
  EXPECT_FALSE(unanswered_);
}

TEST_F(IrisdControlPlaneTest, FailedOperationIsAnAnswerOfTheCall) {
  Watch();
  v1::Outcome failed;
  failed.set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  failed.set_text("live allocations come first");
  irisd_->AnswerWithOutcome(failed);
  const auto outcome = Require(Operate(4));
  EXPECT_EQ(outcome.status, absl::FailedPreconditionError("live allocations come first"));
  EXPECT_EQ(outcome.k, 4u);
}

TEST_F(IrisdControlPlaneTest, LastWordsBecomeTheErrorOfWhatWaits) {
  // Not watching yet, as during a join: there is nothing to go back to.
  irisd_->SayLastWords(absl::PermissionDeniedError("this uid is not welcome"));
  irisd_->HangUp();
  const absl::Status status =
      plane_->Join({{.join_timeout = std::chrono::seconds(60)}}, absl::Now() + absl::Seconds(60))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this uid is not welcome"));
}

TEST_F(IrisdControlPlaneTest, EventsArriveAlsoAfterAReconnection) {
  Watch();
  v1::WatchEvent event;
  event.mutable_rank_changed()->set_rank(1);
  event.mutable_rank_changed()->set_state(v1::RANK_STATE_ENDING);
  event.mutable_rank_changed()->set_reason("hung up");
  irisd_->SendEvent(event);
  ASSERT_TRUE(irisd_->WaitFor([&] { return events_.rank_changes == 1; }));
  irisd_->HangUp();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() >= 2; }));
  irisd_->SendEvent(event);
  EXPECT_TRUE(irisd_->WaitFor([&] { return events_.rank_changes == 2; }));
}

TEST_F(IrisdControlPlaneTest, EventsBecomePlainValues) {
  Watch();
  v1::WatchEvent event;
  auto* added = event.mutable_segments_added();
  added->set_grow_id(9);
  added->set_heap_bytes(4096);
  added->set_timeout_ms(1500);
  v1::Segment* segment = added->add_segments();
  segment->set_segment_id(5);
  segment->set_rank(1);
  segment->set_offset_bytes(2048);
  segment->set_bytes(2048);
  irisd_->SendEvent(event);
  event.mutable_grow_done()->set_grow_id(9);
  irisd_->SendEvent(event);
  event.mutable_stopping()->set_reason("update");
  irisd_->SendEvent(event);
  ASSERT_TRUE(irisd_->WaitFor([&] { return events_.stops == 1; }));
  EXPECT_EQ(events_.grown, 9u);
  absl::MutexLock lock(&events_.mu);
  EXPECT_EQ(events_.last_added.grow_id, 9u);
  EXPECT_EQ(events_.last_added.heap_bytes, 4096u);
  EXPECT_EQ(events_.last_added.timeout, absl::Milliseconds(1500));
  ASSERT_EQ(events_.last_added.segments.size(), 1u);
  const Segment& got = events_.last_added.segments[0];
  EXPECT_EQ(got.segment_id, 5u);
  EXPECT_EQ(got.rank, 1u);
  EXPECT_EQ(got.offset_bytes, 2048u);
  EXPECT_EQ(got.bytes, 2048u);
}

TEST_F(IrisdControlPlaneTest, EndedWatchIsOpenedAgainOnTheSameSession) {
  Watch();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() == 1; }));
  irisd_->EndWatch();
  EXPECT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() == 2; }));
  EXPECT_EQ(irisd_->resumes(), 0);
}

TEST_F(IrisdControlPlaneTest, StopEndsCallsThatWaitForASession) {
  Watch();
  irisd_.reset();
  absl::Status status;
  std::thread caller([&] { status = Operate(1, absl::Seconds(600)).status(); });
  absl::SleepFor(absl::Milliseconds(50));
  plane_->StopWatching();
  caller.join();
  EXPECT_FALSE(status.ok());
}

TEST_F(IrisdControlPlaneTest, StopIsQuickWhateverTheThreadDoes) {
  Watch();
  plane_->StopWatching();
  plane_->StopWatching();
}

TEST_F(IrisdControlPlaneTest, LeaveWithoutASessionSaysWhy) {
  Watch();
  irisd_.reset();
  // The end of the session is noticed by a thread.
  absl::Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    status = plane_->Leave(5, absl::Now() + absl::Seconds(5));
  } while (status.ok() && absl::Now() < deadline);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(IrisdControlPlaneTest, CallThatNobodyWaitsForIsCancelled) {
  Watch();
  irisd_->AnswerOperations({absl::DataLossError("hang")});
  EXPECT_FALSE(Operate(1, absl::Seconds(60), absl::Milliseconds(50)).ok());
  EXPECT_TRUE(irisd_->WaitFor([&] { return irisd_->cancels() == 1; }));
}

TEST_F(IrisdControlPlaneTest, StopEndsACallUnderWay) {
  Watch();
  irisd_->AnswerOperations({absl::DataLossError("hang")});
  absl::Status status;
  std::thread caller([&] { status = Operate(1, absl::Seconds(600), absl::Seconds(600)).status(); });
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->ks().size() == 1; }));
  plane_->StopWatching();
  caller.join();
  EXPECT_EQ(status, absl::FailedPreconditionError("this context has left the job"));
}

TEST_F(IrisdControlPlaneTest, LeavesAfterTheWatchHasStopped) {
  Watch();
  plane_->StopWatching();
  EXPECT_TRUE(plane_->Leave(5, absl::Now() + absl::Seconds(60)).ok());
}

TEST_F(IrisdControlPlaneTest, EveryEventThatWasReadIsAcknowledged) {
  Watch();
  v1::WatchEvent event;
  event.mutable_grow_done()->set_grow_id(9);
  for (int i = 0; i < 20; ++i) irisd_->SendEvent(event);
  EXPECT_TRUE(irisd_->WaitFor([&] { return irisd_->takens() == 20; }));
}

TEST_F(IrisdControlPlaneTest, AResumeWhoseAnswerIsLostIsRepeatedOnTheNewSession) {
  Watch();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() == 1; }));
  irisd_->BreakResumes(1);
  irisd_->HangUp();
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_EQ(irisd_->resumes(), 2);
  EXPECT_TRUE(plane_->lost().ok());
}

TEST_F(IrisdControlPlaneTest, ARestartIsNoEndOfTheSessionAndTheCallIsRepeatedWithItsK) {
  Watch();
  irisd_->AnswerOperations({absl::DataLossError("killed before it has answered")});
  absl::StatusOr<Outcome> outcome;
  std::thread caller([&] { outcome = Operate(7); });
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->ks().size() == 1; }));
  irisd_->Restart();
  caller.join();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->k, 7u);
  EXPECT_FALSE(unanswered_);
  EXPECT_THAT(irisd_->ks(), ElementsAre(7u, 7u));
  EXPECT_EQ(irisd_->seen(), 1);
  EXPECT_EQ(irisd_->resumes(), 0);
  EXPECT_EQ(irisd_->cancels(), 0);
  EXPECT_TRUE(plane_->lost().ok());
}

TEST_F(IrisdControlPlaneTest, ARestartSendsTheDescriptorsOfARegistrationAgain) {
  Watch();
  irisd_->AnswerOperations({absl::DataLossError("killed before it has answered")});
  OperationCall call;
  RegisterOp op;
  op.options.bytes = 4096;
  op.piece_bytes = {4096, 4096};
  for (int i = 0; i < 2; ++i) {
    op.descriptors.push_back(
        std::make_shared<const wire::UniqueFd>(memfd_create("mine", MFD_CLOEXEC)));
  }
  call.op = op;
  absl::StatusOr<Outcome> outcome;
  std::thread caller([&] {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    outcome = plane_->Operate(call, deadline, deadline, &unanswered_);
  });
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->ks().size() == 1; }));
  irisd_->Restart();
  caller.join();
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(irisd_->descriptors(), ElementsAre(2u, 2u));
}

TEST_F(IrisdControlPlaneTest, EventsArriveAlsoAfterARestart) {
  Watch();
  v1::WatchEvent event;
  event.mutable_grow_done()->set_grow_id(9);
  irisd_->SendEvent(event);
  ASSERT_TRUE(irisd_->WaitFor([&] { return events_.grown == 9u && irisd_->takens() == 1; }));
  irisd_->Restart();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() == 2; }));
  event.mutable_grow_done()->set_grow_id(10);
  irisd_->SendEvent(event);
  EXPECT_TRUE(irisd_->WaitFor([&] { return events_.grown == 10u && irisd_->takens() == 2; }));
  EXPECT_EQ(irisd_->resumes(), 0);
}

TEST_F(IrisdControlPlaneTest, WhatAnIrisdThatDiedHasLentIsBorrowedAgain) {
  Watch();
  irisd_->LendAfterRestart(4);
  absl::StatusOr<std::vector<ControlPlane::Lent>> lent;
  std::thread caller([&] {
    lent = plane_->Borrow({"job", 1, 0, 4096}, absl::Now() + absl::Seconds(60));
  });
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->borrows() == 1; }));
  irisd_->Restart();
  caller.join();
  ASSERT_TRUE(lent.ok()) << lent.status();
  ASSERT_EQ(lent->size(), 1u);
  EXPECT_EQ(lent->front().segment.segment_id, 4u);
  EXPECT_TRUE(lent->front().fd.valid());
  EXPECT_EQ(irisd_->borrows(), 2);
}

TEST_F(IrisdControlPlaneTest, ALoanThatARestartLostEndsAtItsDeadline) {
  Watch();
  irisd_->LendAfterRestart(4);
  absl::Status status;
  std::thread caller([&] {
    status = plane_->Borrow({"job", 1, 0, 4096}, absl::Now() + absl::Milliseconds(300)).status();
  });
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->borrows() == 1; }));
  irisd_->Restart(/*deaf=*/true);
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_F(IrisdControlPlaneTest, AQuestionAboutABarrierIsAskedAgainAfterARestart) {
  Watch();
  irisd_->KnowBarriersAfterRestart();
  const auto question = plane_->AskOfBarrier({});
  ASSERT_NE(question, nullptr);
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->barriers() == 1; }));
  EXPECT_FALSE(question().has_value());
  irisd_->Restart();
  std::optional<absl::StatusOr<BarrierAnswer>> answer;
  ASSERT_TRUE(irisd_->WaitFor([&] { return (answer = question()).has_value(); }));
  ASSERT_TRUE(answer->ok()) << answer->status();
  EXPECT_EQ((*answer)->text, "they wait for each other");
  EXPECT_EQ(irisd_->barriers(), 2);
}

TEST_F(IrisdControlPlaneTest, CallsOfManyThreadsSurviveManyRestarts) {
  Watch();
  constexpr int kThreads = 4, kCalls = 100;
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.emplace_back([&, t] {
      for (uint64_t i = 0; i < kCalls; ++i) {
        OperationCall call;
        call.k = t * kCalls + i;
        bool unanswered = false;
        const absl::Time deadline = absl::Now() + absl::Seconds(60);
        const auto outcome = plane_->Operate(call, deadline, deadline, &unanswered);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_EQ(outcome->k, call.k);
      }
      ++done;
    });
  }
  int restarts = 0;
  while (done < kThreads) {
    irisd_->Restart(/*deaf=*/restarts % 2 == 0);
    ++restarts;
    absl::SleepFor(absl::Milliseconds(3));
    irisd_->Hear();
    absl::SleepFor(absl::Milliseconds(7));
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(irisd_->resumes(), 0);
  EXPECT_TRUE(irisd_->WaitFor([&] { return irisd_->seen() >= restarts; }));
}

}  // namespace
}  // namespace iris::internal
