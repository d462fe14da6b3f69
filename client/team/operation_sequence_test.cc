#include "client/team/operation_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "client/session/testing/fake_control_plane.h"

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fake = FakeControlPlane;

constexpr absl::Duration kLong = absl::Seconds(60);

class OperationSequenceTest : public ::testing::Test {
 protected:
  absl::Status Run(Operation op = GrowOp{1}, absl::Duration timeout = kLong) {
    return sequence_.Run(std::move(op), timeout).status();
  }

  Fake plane_;
  HeapSize heap_;
  OperationSequence sequence_{&plane_, &heap_, 5, 3};
};

TEST_F(OperationSequenceTest, CallsAreNumberedAndNameJobAndTeam) {
  plane_.on_operate = [](const OperationCall& call) {
    EXPECT_EQ(call.job_id, 5u);
    EXPECT_EQ(call.team_id, 3u);
    EXPECT_EQ(call.timeout, kLong);
  };
  EXPECT_TRUE(Run().ok());
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u));
}

TEST_F(OperationSequenceTest, EveryOutcomeUsesUpItsNumber) {
  // The codes that were once taken for refusals are among them.
  plane_.Script({Fake::Decided(absl::FailedPreconditionError("the team has live allocations")),
                 Fake::Decided(absl::ResourceExhaustedError("the heap is full")),
                 Fake::Decided(absl::NotFoundError("no such allocation")),
                 Fake::Decided(absl::PermissionDeniedError("not yours"))});
  EXPECT_EQ(Run(), absl::FailedPreconditionError("the team has live allocations"));
  EXPECT_EQ(Run(), absl::ResourceExhaustedError("the heap is full"));
  EXPECT_EQ(Run(), absl::NotFoundError("no such allocation"));
  EXPECT_EQ(Run(), absl::PermissionDeniedError("not yours"));
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u, 2u, 3u, 4u));
}

TEST_F(OperationSequenceTest, RefusalUsesUpNothing) {
  plane_.Script({Fake::Refused(absl::InvalidArgumentError("what is that?")),
                 Fake::Refused(absl::ResourceExhaustedError("too many values"))});
  const absl::Status unknown = Run();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("older than this library"));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("what is that?"));
  EXPECT_EQ(Run(), absl::ResourceExhaustedError("too many values"));
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 0u, 0u));
}

TEST_F(OperationSequenceTest, CallWithoutAnAnswerIsAskedAgainWordForWord) {
  std::vector<uint64_t> grows;
  plane_.on_operate = [&](const OperationCall& call) {
    grows.push_back(std::get<GrowOp>(call.op).bytes);
  };
  plane_.Script({Fake::Decided(), Fake::Lost()});
  EXPECT_TRUE(Run(GrowOp{10}).ok());
  EXPECT_EQ(Run(GrowOp{20}), absl::UnavailableError("the session broke"));
  EXPECT_TRUE(Run(GrowOp{30}).ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u, 1u, 2u));
  EXPECT_THAT(grows, ElementsAre(10u, 20u, 20u, 30u));
}

TEST_F(OperationSequenceTest, WhileAnEarlierOutcomeIsUnknownNothingElseIsAsked) {
  plane_.Script({Fake::Lost(), Fake::Lost(absl::UnavailableError("still gone")),
                 // Says nothing of the copy that was sent first.
                 Fake::Refused(absl::ResourceExhaustedError("too many wait"))});
  EXPECT_FALSE(Run(GrowOp{1}).ok());
  EXPECT_EQ(Run(GrowOp{2}),
            absl::UnavailableError("the outcome of an earlier call is still unknown: still gone"));
  EXPECT_EQ(Run(GrowOp{3}), absl::ResourceExhaustedError(
                                "the outcome of an earlier call is still unknown: too many wait"));
  EXPECT_TRUE(Run(GrowOp{4}).ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 0u, 0u, 0u, 1u));
}

TEST_F(OperationSequenceTest, EarlierOutcomeIsNotTheLaterCalls) {
  plane_.Script({Fake::Lost(), Fake::Decided(absl::ResourceExhaustedError("the heap is full")),
                 Fake::Decided(absl::OkStatus(), {.offset_bytes = 4096})});
  EXPECT_FALSE(sequence_.Run(AllocateOptions{}, kLong).ok());
  auto second = sequence_.Run(AllocateOptions{}, kLong);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->offset_bytes, 4096u);
}

TEST_F(OperationSequenceTest, ValueOfALostBroadcastIsKept) {
  std::vector<std::string> values;
  plane_.on_operate = [&](const OperationCall& call) {
    if (const auto* op = std::get_if<BroadcastOp>(&call.op)) values.emplace_back(op->value);
  };
  plane_.Script({Fake::Lost()});
  {
    std::string value = "the caller's, and gone when it is asked again";
    EXPECT_FALSE(Run(BroadcastOp{0, value}).ok());
    value.assign(value.size(), 'x');
  }
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(values, ElementsAre("the caller's, and gone when it is asked again",
                                  "the caller's, and gone when it is asked again"));
}

TEST_F(OperationSequenceTest, OutcomeOfAnotherNumberIsNotTaken) {
  plane_.Script({{Outcome{7, absl::OkStatus(), {}}}});
  const absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("#0 of team 3 with the outcome of #7"));
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 0u, 1u));
}

TEST_F(OperationSequenceTest, HeapIsAsLargeAsTheLargestOutcomeSays) {
  plane_.Script({Fake::Decided(absl::OkStatus(), {.heap_bytes = 200}),
                 Fake::Decided(absl::OkStatus(), {.heap_bytes = 100})});
  EXPECT_TRUE(Run().ok());
  EXPECT_TRUE(Run().ok());
  EXPECT_EQ(heap_.bytes(), 200u);
}

TEST_F(OperationSequenceTest, CallsTakeTurnsUntilTheirDeadline) {
  absl::Notification inside;
  absl::Notification go_on;
  plane_.on_operate = [&](const OperationCall& call) {
    if (call.k != 0) return;
    inside.Notify();
    go_on.WaitForNotification();
  };
  std::thread first([&] { EXPECT_TRUE(Run().ok()); });
  inside.WaitForNotification();
  const absl::Status late = Run(GrowOp{1}, absl::Milliseconds(20));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("another thread's call"));
  std::thread third([&] { EXPECT_TRUE(Run().ok()); });
  go_on.Notify();
  first.join();
  third.join();
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u));
}

// The first of two operations is undone before any other call, and only then.
TEST_F(OperationSequenceTest, OfTwoThatBelongTogetherTheFirstIsUndoneInItsTurn) {
  int n_undone = 0;
  const auto run_both = [&] {
    return sequence_
        .RunBoth(
            GrowOp{1}, absl::Seconds(60), [](const OperationResult&) { return GrowOp{2}; },
            [&](const OperationResult& first) {
              ++n_undone;
              EXPECT_EQ(first.heap_bytes, 100u);
              absl::Status other;
              std::thread([&] { other = Run(GrowOp{1}, absl::Milliseconds(20)); }).join();
              EXPECT_EQ(other.code(), absl::StatusCode::kDeadlineExceeded) << "it got the turn";
            })
        .status();
  };
  const auto grown = Fake::Decided(absl::OkStatus(), {.heap_bytes = 100});
  plane_.Script({Fake::Decided(absl::AbortedError("no"))});
  EXPECT_EQ(run_both().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(n_undone, 0) << "there is nothing to undo";
  plane_.Script({grown, Fake::Decided(absl::AbortedError("no"))});
  EXPECT_EQ(run_both().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(n_undone, 1);
  plane_.Script({grown, Fake::Decided()});
  EXPECT_TRUE(run_both().ok());
  EXPECT_EQ(n_undone, 1);
}

}  // namespace
}  // namespace iris::internal
