// Graphs, events, and streams that are borrowed.
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

Stream NewStream() {
  Stream stream;
  EXPECT_TRUE(Stream::Create(&stream).ok());
  return stream;
}

Event NewEvent() {
  Event event;
  EXPECT_TRUE(Event::Create(&event).ok());
  return event;
}

IRIS_KERNEL IRIS_KERNEL_BOUNDS(64, 2) void AddTo(uint32_t* out, const uint32_t* in, uint32_t n) {
  for (uint32_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < n;
       i += GridSize() * BlockSize()) {
    out[i] += in[i];
  }
}

IRIS_KERNEL void Append(uint32_t value, uint32_t* log, uint32_t* n) { log[(*n)++] = value; }

IRIS_KERNEL void WaitForGo(const uint32_t* go) {
  while (Load<Scope::kSystem, Order::kAcquire>(go) == 0) Pause();
}

TEST(GraphTest, CaptureRunsNothing) {
  Stream stream = NewStream();
  uint32_t log[4] = {};
  uint32_t n = 0;
  ASSERT_TRUE(BeginCapture(stream).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 7u, log, &n).ok());
  Graph graph;
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(n, 0u);
  ASSERT_TRUE(LaunchGraph(graph, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(n, 1u);
  EXPECT_EQ(log[0], 7u);
}

TEST(GraphTest, ReplaysInOrderAmongLaunches) {
  Stream stream = NewStream();
  std::vector<uint32_t> log(16);
  uint32_t n = 0;
  ASSERT_TRUE(BeginCapture(stream).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 1u, log.data(), &n).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 2u, log.data(), &n).ok());
  Graph graph;
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 9u, log.data(), &n).ok());
  ASSERT_TRUE(LaunchGraph(graph, stream).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 8u, log.data(), &n).ok());
  Graph moved = std::move(graph);
  ASSERT_TRUE(LaunchGraph(moved, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  log.resize(n);
  EXPECT_EQ(log, (std::vector<uint32_t>{9, 1, 2, 8, 1, 2}));
}

TEST(GraphTest, ReplaysFreshDataAThousandTimes) {
  constexpr uint32_t kWords = 100;
  const uint32_t replays = kSlow ? 50 : 1000;
  Stream stream = NewStream();
  std::vector<uint32_t> in(kWords), copy(kWords), sum(kWords), out(kWords);
  ASSERT_TRUE(BeginCapture(stream).ok());
  ASSERT_TRUE(FillAsync(copy.data(), 0xff, kWords * 4, stream).ok());
  ASSERT_TRUE(CopyAsync(copy.data(), in.data(), kWords * 4, stream).ok());
  ASSERT_TRUE(
      Launch({2, 32}, stream, &AddTo, sum.data(), static_cast<const uint32_t*>(copy.data()), kWords)
          .ok());
  ASSERT_TRUE(CopyAsync(out.data(), sum.data(), kWords * 4, stream).ok());
  Graph graph;
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
  std::vector<uint32_t> expected(kWords);
  for (uint32_t r = 0; r < replays; ++r) {
    for (uint32_t i = 0; i < kWords; ++i) expected[i] += in[i] = r * 31 + i;
    ASSERT_TRUE(LaunchGraph(graph, stream).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
    ASSERT_EQ(out, expected) << "replay " << r;
  }
}

TEST(GraphTest, ManyReplaysWithoutAWaitBetween) {
  Stream stream = NewStream();
  uint32_t counted = 0;
  ASSERT_TRUE(BeginCapture(stream).ok());
  ASSERT_TRUE(Launch(
                  {2, 3}, stream, +[](uint32_t* n) { CountUp(n); }, &counted)
                  .ok());
  Graph graph;
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
  const uint32_t replays = kSlow ? 50 : 1000;
  for (uint32_t r = 0; r < replays; ++r) ASSERT_TRUE(LaunchGraph(graph, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(counted, replays * 6);
}

TEST(GraphTest, MayGoWhileItRuns) {
  Stream stream = NewStream();
  uint32_t go = 0;
  uint32_t counted = 0;
  {
    Graph graph;
    ASSERT_TRUE(BeginCapture(stream).ok());
    ASSERT_TRUE(Launch({}, stream, &WaitForGo, static_cast<const uint32_t*>(&go)).ok());
    ASSERT_TRUE(Launch(
                    {1, 4}, stream, +[](uint32_t* n) { CountUp(n); }, &counted)
                    .ok());
    ASSERT_TRUE(EndCapture(stream, &graph).ok());
    ASSERT_TRUE(LaunchGraph(graph, stream).ok());
  }
  Store<Scope::kSystem, Order::kRelease>(&go, 1u);
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(counted, 4u);
}

TEST(GraphTest, TakesTheBranchOfAnotherStream) {
  Stream stream = NewStream();
  Stream other = NewStream();
  Event fork = NewEvent();
  Event join = NewEvent();
  std::vector<uint32_t> log(8);
  uint32_t n = 0;
  ASSERT_TRUE(BeginCapture(stream).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 1u, log.data(), &n).ok());
  ASSERT_TRUE(Record(fork, stream).ok());
  ASSERT_TRUE(WaitEvent(other, fork).ok());
  ASSERT_TRUE(Launch({}, other, &Append, 2u, log.data(), &n).ok());
  ASSERT_TRUE(Record(join, other).ok());
  ASSERT_TRUE(WaitEvent(stream, join).ok());
  ASSERT_TRUE(Launch({}, stream, &Append, 3u, log.data(), &n).ok());
  Graph graph;
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
  // Both streams run again.
  ASSERT_TRUE(Launch({}, other, &Append, 7u, log.data(), &n).ok());
  ASSERT_TRUE(other.Synchronize().ok());
  ASSERT_TRUE(LaunchGraph(graph, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  log.resize(n);
  EXPECT_EQ(log, (std::vector<uint32_t>{7, 1, 2, 3}));
}

TEST(GraphErrorTest, WrongOrderIsRefused) {
  Stream stream = NewStream();
  Graph graph;
  EXPECT_EQ(LaunchGraph(graph, stream).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(EndCapture(stream, &graph).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(BeginCapture(stream).ok());
  EXPECT_EQ(BeginCapture(stream).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(stream.Synchronize().code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(Launch(
                {0, 1}, stream, +[] {})
                .code,
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
  EXPECT_TRUE(LaunchGraph(graph, stream).ok());  // of nothing
  EXPECT_TRUE(stream.Synchronize().ok());
  Stream none;
  EXPECT_EQ(BeginCapture(none).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(EndCapture(none, &graph).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(LaunchGraph(graph, none).code, StatusCode::kFailedPrecondition);
}

TEST(EventTest, AStreamWaitsForAnother) {
  Stream first = NewStream();
  Stream second = NewStream();
  Event event = NewEvent();
  uint32_t go = 0;
  uint32_t log[4] = {};
  uint32_t n = 0;
  ASSERT_TRUE(Launch({}, first, &WaitForGo, static_cast<const uint32_t*>(&go)).ok());
  ASSERT_TRUE(Launch({}, first, &Append, 1u, log, &n).ok());
  ASSERT_TRUE(Record(event, first).ok());
  ASSERT_TRUE(WaitEvent(second, event).ok());
  ASSERT_TRUE(Launch({}, second, &Append, 2u, log, &n).ok());
  EXPECT_FALSE(second.Idle());
  Store<Scope::kSystem, Order::kRelease>(&go, 1u);
  ASSERT_TRUE(second.Synchronize().ok());
  EXPECT_EQ(n, 2u);
  EXPECT_EQ(log[0], 1u);
  EXPECT_EQ(log[1], 2u);
}

TEST(EventTest, MeasuresTheTimeBetween) {
  Stream stream = NewStream();
  Event from = NewEvent();
  Event to = NewEvent();
  const uint64_t before = ClockNanoseconds();
  ASSERT_TRUE(Record(from, stream).ok());
  uint64_t inside = 0;
  ASSERT_TRUE(Launch(
                  {}, stream,
                  +[](uint64_t* spent) {
                    const uint64_t start = ClockNanoseconds();
                    while (ClockNanoseconds() - start < 100000) Pause();
                    *spent = ClockNanoseconds() - start;
                  },
                  &inside)
                  .ok());
  ASSERT_TRUE(Record(to, stream).ok());
  uint64_t elapsed = 0;
  ASSERT_TRUE(ElapsedNanoseconds(from, to, &elapsed).ok());  // waits
  EXPECT_GE(elapsed, inside);
  EXPECT_LE(elapsed, ClockNanoseconds() - before);
  ASSERT_TRUE(stream.Synchronize().ok());
}

TEST(EventTest, IsRecordedAgain) {
  Stream stream = NewStream();
  Event event = NewEvent();
  Event last = NewEvent();
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Record(event, stream).ok());
    ASSERT_TRUE(WaitEvent(stream, event).ok());
  }
  ASSERT_TRUE(Record(last, stream).ok());
  uint64_t elapsed = 0;
  EXPECT_TRUE(ElapsedNanoseconds(event, last, &elapsed).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
}

TEST(EventTest, MayGoBeforeItHappens) {
  Stream stream = NewStream();
  uint32_t go = 0;
  {
    Event event = NewEvent();
    ASSERT_TRUE(Launch({}, stream, &WaitForGo, static_cast<const uint32_t*>(&go)).ok());
    ASSERT_TRUE(Record(event, stream).ok());
  }
  Store<Scope::kSystem, Order::kRelease>(&go, 1u);
  ASSERT_TRUE(stream.Synchronize().ok());
}

TEST(EventErrorTest, WhatWasNotCreatedOrRecorded) {
  Stream stream = NewStream();
  Stream no_stream;
  Event none;
  Event event = NewEvent();
  uint64_t elapsed = 0;
  EXPECT_EQ(Record(none, stream).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(Record(event, no_stream).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(WaitEvent(stream, none).code, StatusCode::kFailedPrecondition);
  EXPECT_TRUE(WaitEvent(stream, event).ok());  // nothing to wait for
  EXPECT_EQ(ElapsedNanoseconds(event, event, &elapsed).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Record(event, stream).ok());
  Graph graph;
  ASSERT_TRUE(BeginCapture(stream).ok());
  EXPECT_EQ(WaitEvent(stream, event).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Record(event, stream).ok());
  EXPECT_EQ(ElapsedNanoseconds(event, event, &elapsed).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(EndCapture(stream, &graph).ok());
}

TEST(BorrowTest, TheSameStreamTwice) {
  Stream owner = NewStream();
  uint32_t log[4] = {};
  uint32_t n = 0;
  {
    Stream borrowed = Stream::Borrow(owner.native());
    ASSERT_TRUE(Launch({}, owner, &Append, 1u, log, &n).ok());
    ASSERT_TRUE(Launch({}, borrowed, &Append, 2u, log, &n).ok());
    ASSERT_TRUE(borrowed.Synchronize().ok());
    EXPECT_EQ(n, 2u);
  }
  ASSERT_TRUE(Launch({}, owner, &Append, 3u, log, &n).ok());
  ASSERT_TRUE(owner.Synchronize().ok());
  EXPECT_EQ(n, 3u);
}

TEST(BorrowTest, NothingIsAStreamThatWasNotCreated) {
  Stream stream = Stream::Borrow(nullptr);
  EXPECT_EQ(stream.native(), nullptr);
  EXPECT_EQ(Launch(
                {}, stream, +[] {})
                .code,
            StatusCode::kFailedPrecondition);
}

TEST(DeviceTest, ThereIsOne) {
  EXPECT_EQ(DeviceCount(), 1u);
  EXPECT_TRUE(SetDevice(0).ok());
}

TEST(PrepareKernelTest, ChecksTheSharedMemory) {
  EXPECT_TRUE(PrepareKernel(&WaitForGo).ok());
  EXPECT_TRUE(PrepareKernel(&WaitForGo, Traits::kMaxDynamicSharedBytes).ok());
  EXPECT_EQ(PrepareKernel(&WaitForGo, Traits::kMaxDynamicSharedBytes + 1).code,
            StatusCode::kInvalidArgument);
  void (*none)(uint32_t) = nullptr;
  EXPECT_EQ(PrepareKernel(none).code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace iris::backend
