// The trace of a rank on emulated devices: what kernels write, against a model.
#include "iris/trace.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "device/iris/backend/emu/testing/test_util.h"
#include "gtest/gtest.h"
#include "iris/device.h"

namespace iris {
namespace {

using backend::RunKernel;

constexpr uint64_t kForEver = ~uint64_t{0};

// An area with room for `capacity` events, and an event after them that must stay untouched. The
// context is of two ranks that share one heap.
class Area {
 public:
  explicit Area(uint64_t capacity)
      : words_(TraceAreaBytes(capacity + 1) / sizeof(uint64_t), 0),
        area_(new (words_.data()) TraceArea()) {
    area_->capacity = static_cast<uint32_t>(capacity);
    area_->generation = 7;
    ctx_.n_ranks = 2;
    ctx_.trace = area_;
  }
  TraceArea& operator*() { return *area_; }
  TraceArea* operator->() { return area_; }
  const DeviceContext& ctx() const { return ctx_; }

  TraceEvent At(uint64_t slot) const {
    TraceEvent event;
    std::memcpy(&event, words_.data() + (sizeof(TraceArea) + slot * sizeof(event)) / 8,
                sizeof(event));
    return event;
  }
  // Returns the generation of an event's trace, if the event is complete.
  static uint32_t GenerationOf(const TraceEvent& event) {
    uint32_t words[sizeof(event) / sizeof(uint32_t)];
    std::memcpy(words, &event, sizeof(words));
    uint32_t folded = 0;
    for (const uint32_t word : words) folded ^= word;
    return folded;
  }
  // Returns the complete events.
  std::vector<TraceEvent> Events() const {
    std::vector<TraceEvent> events;
    for (uint64_t slot = 0; slot < area_->capacity; ++slot) {
      if (GenerationOf(At(slot)) == area_->generation) events.push_back(At(slot));
    }
    return events;
  }
  bool Overrun() const { return At(area_->capacity).ready != 0; }

 private:
  std::vector<uint64_t> words_;
  TraceArea* const area_;
  DeviceContext ctx_;
};

// `n` spans of each block, whose tags tell block and number apart.
IRIS_KERNEL void Tell(DeviceContext ctx, uint64_t first_tag, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    const TraceSpan span(ctx, first_tag + backend::BlockIndex() * uint64_t{n} + i, Block{}, 1, i);
  }
}

IRIS_KERNEL void TellAsWarpsAndThreads(DeviceContext ctx) {
  { const TraceSpan span(ctx, 100, Warp{}); }
  backend::WarpSync();
  { const TraceSpan span(ctx, 200 + backend::ThreadIndex(), Thread{}); }
}

// Calls of the device API, by a block, a warp, and single threads, which are not recorded.
IRIS_KERNEL void Call(DeviceContext ctx, uint8_t* bytes, uint64_t* signal) {
  Put(ctx, 1, bytes, bytes + 64, 16, Block{});
  backend::BlockSync();
  Get(ctx, 1, bytes, bytes + 64, 32, Warp{});
  backend::BlockSync();
  PutSignal(ctx, 1, bytes, bytes + 64, 48, {signal, 5}, Block{});
  (void)WaitUntil(ctx, signal, Compare::kGe, 5, Block{});
  (void)WaitEpoch(ctx, signal, 4, Warp{});
  Put(ctx, 1, bytes + backend::ThreadIndex(), bytes + 64, 1);
  (void)WaitUntil(ctx, signal, Compare::kGe, 5);
}

TEST(TraceTest, NothingIsTakenWithoutAnAreaNorWhileItIsOff) {
  RunKernel({2, 32}, &Tell, DeviceContext(), 0, 3);
  Area area(10);
  RunKernel({2, 32}, &Tell, area.ctx(), 0, 3);
  area->until_ns = 1;  // long ago
  RunKernel({2, 32}, &Tell, area.ctx(), 0, 3);
  EXPECT_EQ(area->position, 0u);
}

TEST(TraceTest, ASpanOfABlock) {
  Area area(10);
  area->until_ns = kForEver;
  const uint64_t before = backend::ClockNanoseconds();
  RunKernel({2, 64}, &Tell, area.ctx(), 1000, 1);
  const uint64_t after = backend::ClockNanoseconds();
  ASSERT_EQ(area.Events().size(), 2u);
  EXPECT_EQ(area->position, 2u);
  for (const TraceEvent& event : area.Events()) {
    EXPECT_LE(before, event.start_ns);
    EXPECT_LE(event.start_ns, event.end_ns);
    EXPECT_LE(event.end_ns, after);
    EXPECT_EQ(event.op, static_cast<uint16_t>(TraceOp::kUser));
    EXPECT_EQ(event.detail, 1000u + event.block);
    EXPECT_EQ(event.peer, 1u);
    EXPECT_EQ(event.bytes, 0u);
    EXPECT_EQ(event.thread, 0u);
    EXPECT_LT(event.multiprocessor, backend::MultiprocessorCount());
  }
}

TEST(TraceTest, SpansOfWarpsAndThreads) {
  Area area(200);
  area->until_ns = kForEver;
  RunKernel({1, 70}, &TellAsWarpsAndThreads, area.ctx());
  std::multiset<uint64_t> tags;
  std::set<uint32_t> warps;
  for (const TraceEvent& event : area.Events()) {
    tags.insert(event.detail);
    EXPECT_EQ(event.peer, kNoTracePeer);
    if (event.detail == 100) {
      warps.insert(event.thread);
    } else {
      EXPECT_EQ(event.detail, 200u + event.thread);
    }
  }
  EXPECT_EQ(tags.size(), 3u + 70u);
  EXPECT_EQ(warps, (std::set<uint32_t>{0, 32, 64}));
}

TEST(TraceTest, CallsOfBlocksAndWarps) {
  Area area(100);
  area->until_ns = kForEver;
  uint8_t bytes[128] = {};
  uint64_t signal = 0;
  RunKernel({1, 32}, &Call, area.ctx(), &bytes[0], &signal);
  std::vector<TraceEvent> events = area.Events();
  const struct {
    TraceOp op;
    uint32_t peer;
    uint64_t bytes;
    uint64_t detail;
  } expected[] = {{TraceOp::kPut, 1, 16, 0},
                  {TraceOp::kGet, 1, 32, 0},
                  {TraceOp::kPutSignal, 1, 48, 5},
                  {TraceOp::kWait, kNoTracePeer, 0, 5},
                  {TraceOp::kWait, kNoTracePeer, 0, 4}};
  ASSERT_EQ(events.size(), std::size(expected));
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].op, static_cast<uint16_t>(expected[i].op)) << i;
    EXPECT_EQ(events[i].peer, expected[i].peer) << i;
    EXPECT_EQ(events[i].bytes, expected[i].bytes) << i;
    EXPECT_EQ(events[i].detail, expected[i].detail) << i;
  }
}

// A block waits in a span while one trace ends and the next begins.
IRIS_KERNEL void TellLate(DeviceContext ctx, uint32_t* begun, uint32_t* go) {
  const TraceSpan span(ctx, 77, Block{});
  if (backend::ThreadIndex() == 0) {
    backend::Store<Scope::kSystem, Order::kRelease>(begun, 1u);
    while (backend::Load<Scope::kSystem, Order::kAcquire>(go) == 0) backend::Pause();
  }
}

TEST(TraceTest, AnEventOfAnEarlierTraceIsNoneOfTheNext) {
  Area area(10);
  area->until_ns = kForEver;
  backend::Stream stream;
  ASSERT_TRUE(backend::Stream::Create(&stream).ok());
  uint32_t begun = 0, go = 0;
  ASSERT_TRUE(backend::Launch({1, 32}, stream, &TellLate, area.ctx(), &begun, &go).ok());
  while (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
  // As MappedTrace::SwitchOn.
  __atomic_store_n(&area->until_ns, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&area->generation, 8, __ATOMIC_RELEASE);
  __atomic_store_n(&area->position, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&area->until_ns, kForEver, __ATOMIC_RELEASE);
  __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_TRUE(area.Events().empty());
  RunKernel({1, 32}, &Tell, area.ctx(), 500, 1);
  ASSERT_EQ(area.Events().size(), 1u);
  EXPECT_EQ(area.Events()[0].detail, 500u);
}

TEST(TraceTest, HalfAnEventAndAMixtureOfTwoAreNone) {
  Area area(2);
  area->until_ns = kForEver;
  RunKernel({2, 32}, &Tell, area.ctx(), 500, 1);
  ASSERT_EQ(area.Events().size(), 2u);
  TraceEvent whole[] = {area.At(0), area.At(1)};
  // The check is a sum of 32 bits, which two pairs of close times may share: these do not.
  for (uint64_t i = 0; i < 2; ++i) {
    whole[i].start_ns = 1000 + i;
    whole[i].end_ns = 5000 + 70 * i;
    whole[i].ready = 0;
    whole[i].ready = Area::GenerationOf(whole[i]) ^ area->generation;
    ASSERT_EQ(Area::GenerationOf(whole[i]), area->generation);
  }
  for (size_t k = 0; k < sizeof(TraceEvent); k += sizeof(uint64_t)) {
    for (const TraceEvent& other : {TraceEvent(), whole[1]}) {
      TraceEvent mixed = whole[0];
      auto* const bytes = reinterpret_cast<unsigned char*>(&mixed);
      const auto* const from = reinterpret_cast<const unsigned char*>(&other);
      if (std::memcmp(bytes + k, from + k, sizeof(uint64_t)) == 0) continue;
      std::memcpy(bytes + k, from + k, sizeof(uint64_t));
      EXPECT_NE(Area::GenerationOf(mixed), area->generation) << k;
    }
  }
}

TEST(TraceTest, LongTimesAreToldAsTheLongest) {
  EXPECT_EQ(impl::TraceTimeBetween(5, 5), 0u);
  EXPECT_EQ(impl::TraceTimeBetween(5, 7), 2u);
  EXPECT_EQ(impl::TraceTimeBetween(5, 5 + (uint64_t{1} << 32) - 2), ~0u - 1);
  EXPECT_EQ(impl::TraceTimeBetween(5, 5 + (uint64_t{1} << 32) - 1), ~0u);
  EXPECT_EQ(impl::TraceTimeBetween(5, 5 + (uint64_t{1} << 32)), ~0u);
  EXPECT_EQ(impl::TraceTimeBetween(5, kForEver), ~0u);
}

// Runs on one rank, whose heap has the barrier area in front.
IRIS_KERNEL void MeetAll(DeviceContext ctx) {
  (void)GridBarrier(ctx);
  (void)GridBarrier(ctx, ctx.world);
  if (backend::BlockIndex() == 0) (void)Barrier(ctx, ctx.world);
}

TEST(TraceTest, BarriersOfGridsAndTeams) {
  Area area(100);
  area->until_ns = kForEver;
  std::vector<uint64_t> heap(kSyncAreaBytes / sizeof(uint64_t) + 64, 0);
  DeviceContext ctx = area.ctx();
  ctx.n_ranks = 1;
  ctx.base = (reinterpret_cast<uint64_t>(heap.data()) + 255) / 256 * 256;
  ctx.stride_bytes = kSyncAreaBytes;
  ctx.world.size = 1;
  ctx.world.id = 3;
  RunKernel({2, 32}, &MeetAll, ctx);
  std::multiset<std::pair<TraceOp, uint32_t>> seen;
  for (const TraceEvent& event : area.Events()) {
    seen.emplace(static_cast<TraceOp>(event.op), event.block);
    EXPECT_EQ(event.detail, 3u);
  }
  // In the grid's barrier of a team, the first block meets the other ranks.
  EXPECT_EQ(seen, (std::multiset<std::pair<TraceOp, uint32_t>>{{TraceOp::kBarrier, 0},
                                                               {TraceOp::kBarrier, 0},
                                                               {TraceOp::kGridBarrier, 0},
                                                               {TraceOp::kGridBarrier, 0},
                                                               {TraceOp::kGridBarrier, 1},
                                                               {TraceOp::kGridBarrier, 1}}));
}

TEST(TraceTest, WhatDoesNotFitIsDroppedAndCounted) {
  Area area(10);
  area->until_ns = kForEver;
  RunKernel({4, 32}, &Tell, area.ctx(), 0, 5);
  EXPECT_EQ(area->position, 20u);
  EXPECT_EQ(area.Events().size(), 10u);
  EXPECT_FALSE(area.Overrun());
}

// Rounds in which the trace is on or off, with room or without, and several kernels run at the same
// time. Each event is there once and whole.
TEST(TraceTest, RandomRoundsAgainstAModel) {
  const uint32_t seed = 20261123;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (uint32_t round = 0; round < (backend::kSlow ? 5 : 40); ++round) {
    const uint64_t capacity = 1 + random() % 120;
    Area area(capacity);
    const bool on = random() % 5 != 0;
    area->until_ns = on ? kForEver : 0;
    area->generation = 1 + round;
    std::set<uint64_t> told;
    std::vector<backend::Stream> streams(1 + random() % 3);
    uint64_t tag = 1;
    for (backend::Stream& stream : streams) {
      ASSERT_TRUE(backend::Stream::Create(&stream).ok());
      const uint32_t blocks = 1 + random() % 4, n = random() % 9;
      ASSERT_TRUE(backend::Launch({blocks, 32}, stream, &Tell, area.ctx(), tag, n).ok());
      for (uint32_t i = 0; on && i < blocks * n; ++i) told.insert(tag + i);
      tag += blocks * n;
    }
    for (backend::Stream& stream : streams) ASSERT_TRUE(stream.Synchronize().ok());
    EXPECT_EQ(area->position, told.size());
    std::set<uint64_t> seen;
    for (const TraceEvent& event : area.Events()) {
      EXPECT_TRUE(seen.insert(event.detail).second) << event.detail << " is there twice";
      EXPECT_EQ(told.count(event.detail), 1u) << event.detail;
      EXPECT_EQ(event.op, static_cast<uint16_t>(TraceOp::kUser));
    }
    EXPECT_EQ(seen.size(), std::min<uint64_t>(capacity, told.size()));
    EXPECT_FALSE(area.Overrun());
  }
}

}  // namespace
}  // namespace iris
