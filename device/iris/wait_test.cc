// The bounded wait, called from the host: it needs the backend's clock and pause alone.
#include "iris/impl/wait.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "iris/device.h"

namespace iris {
namespace {

using impl::BoundedWait;
using impl::Holds;
using impl::Reached;

TEST(ReachedTest, EqualAndLater) {
  EXPECT_TRUE(Reached<uint32_t>(5, 5));
  EXPECT_TRUE(Reached<uint32_t>(6, 5));
  EXPECT_FALSE(Reached<uint32_t>(4, 5));
}

TEST(ReachedTest, AcrossTheWrap) {
  EXPECT_TRUE(Reached<uint32_t>(0, 0xffffffff));
  EXPECT_TRUE(Reached<uint32_t>(2, 0xfffffffd));
  EXPECT_FALSE(Reached<uint32_t>(0xfffffffd, 2));
}

TEST(ReachedTest, HalfTheRangeApart) {
  EXPECT_TRUE(Reached<uint32_t>(0x7fffffff, 0));
  EXPECT_FALSE(Reached<uint32_t>(0x80000000, 0));
}

TEST(ReachedTest, SixtyFourBits) {
  EXPECT_TRUE(Reached<uint64_t>(1, ~0ull));
  EXPECT_FALSE(Reached<uint64_t>(~0ull, 1));
  EXPECT_TRUE(Reached<uint64_t>(1ull << 40, 1));
}

TEST(HoldsTest, Unsigned) {
  EXPECT_TRUE(Holds<uint64_t>(~0ull, Compare::kGt, 1));
  EXPECT_FALSE(Holds<uint64_t>(~0ull, Compare::kLt, 1));
}

TEST(HoldsTest, SignedComparesSigned) {
  EXPECT_TRUE(Holds<int64_t>(-1, Compare::kLt, 1));
  EXPECT_FALSE(Holds<int64_t>(-1, Compare::kGe, 1));
}

TEST(HoldsTest, EveryComparison) {
  EXPECT_TRUE(Holds<uint32_t>(2, Compare::kEq, 2));
  EXPECT_FALSE(Holds<uint32_t>(2, Compare::kEq, 3));
  EXPECT_TRUE(Holds<uint32_t>(2, Compare::kNe, 3));
  EXPECT_FALSE(Holds<uint32_t>(2, Compare::kNe, 2));
  EXPECT_TRUE(Holds<uint32_t>(3, Compare::kGt, 2));
  EXPECT_FALSE(Holds<uint32_t>(2, Compare::kGt, 2));
  EXPECT_TRUE(Holds<uint32_t>(2, Compare::kGe, 2));
  EXPECT_FALSE(Holds<uint32_t>(1, Compare::kGe, 2));
  EXPECT_TRUE(Holds<uint32_t>(1, Compare::kLt, 2));
  EXPECT_FALSE(Holds<uint32_t>(2, Compare::kLt, 2));
  EXPECT_TRUE(Holds<uint32_t>(2, Compare::kLe, 2));
  EXPECT_FALSE(Holds<uint32_t>(3, Compare::kLe, 2));
}

constexpr uint64_t kMillisecondNs = 1000 * 1000;

TEST(BoundedWaitTest, TrueAtOnceNeedsNoClock) {
  EXPECT_EQ(BoundedWait(DeviceContext{}, 1, [] { return true; }), WaitResult::kOk);
}

TEST(BoundedWaitTest, EndsWhenDone) {
  int polls = 0;
  EXPECT_EQ(BoundedWait(DeviceContext{}, 0, [&] { return ++polls == 100; }), WaitResult::kOk);
  EXPECT_EQ(polls, 100);
}

TEST(BoundedWaitTest, TimesOutNotBeforeItsTime) {
  const uint64_t start = backend::ClockNanoseconds();
  EXPECT_EQ(BoundedWait(DeviceContext{}, 20 * kMillisecondNs, [] { return false; }),
            WaitResult::kTimeout);
  EXPECT_GE(backend::ClockNanoseconds() - start, 20 * kMillisecondNs);
}

TEST(BoundedWaitTest, TheContextsTimeoutCountsWhenNoneIsGiven) {
  DeviceContext ctx;
  ctx.timeout_ns = 5 * kMillisecondNs;
  EXPECT_EQ(BoundedWait(ctx, 0, [] { return false; }), WaitResult::kTimeout);
}

TEST(BoundedWaitTest, AGivenTimeoutCountsBeforeTheContexts) {
  DeviceContext ctx;
  ctx.timeout_ns = ~0ull;
  EXPECT_EQ(BoundedWait(ctx, 5 * kMillisecondNs, [] { return false; }), WaitResult::kTimeout);
}

TEST(BoundedWaitTest, AnEndlessTimeoutDoesNotOverflow) {
  int polls = 0;
  EXPECT_EQ(BoundedWait(DeviceContext{}, ~0ull, [&] { return ++polls == 1000; }), WaitResult::kOk);
}

TEST(BoundedWaitTest, AbortEndsIt) {
  const uint32_t abort_word = 7;
  DeviceContext ctx;
  ctx.abort_word = &abort_word;
  EXPECT_EQ(BoundedWait(ctx, 0, [] { return false; }), WaitResult::kAborted);
}

TEST(BoundedWaitTest, AnAbortWordOfZeroDoesNot) {
  const uint32_t abort_word = 0;
  DeviceContext ctx;
  ctx.abort_word = &abort_word;
  EXPECT_EQ(BoundedWait(ctx, 5 * kMillisecondNs, [] { return false; }), WaitResult::kTimeout);
}

TEST(BoundedWaitTest, WhatIsThereIsNotAborted) {
  const uint32_t abort_word = 1;
  DeviceContext ctx;
  ctx.abort_word = &abort_word;
  EXPECT_EQ(BoundedWait(ctx, 0, [] { return true; }), WaitResult::kOk);
}

TEST(BoundedWaitTest, WhatComesTogetherWithTheAbortCounts) {
  uint32_t abort_word = 0;
  DeviceContext ctx;
  ctx.abort_word = &abort_word;
  bool seen_abort = false;
  // The word is set and the condition becomes true between two polls: the last poll sees it.
  EXPECT_EQ(BoundedWait(ctx, 0,
                        [&] {
                          if (abort_word != 0 && seen_abort) return true;
                          if (abort_word != 0) seen_abort = true;
                          abort_word = 1;
                          return false;
                        }),
            WaitResult::kOk);
}

}  // namespace
}  // namespace iris
