// What host.h promises of the host's side: streams, copies, events, graphs, memory, errors.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/select.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using backend::BlockIndex;
using backend::BlockSize;
using backend::GridSize;
using backend::ThreadIndex;

#define EXPECT_OK(expression)                  \
  do {                                         \
    const Result result_ = (expression);       \
    EXPECT_TRUE(result_.ok()) << result_.what; \
  } while (false)

void OnOneRank(const std::function<void(Rank&)>& body) { World(1, 8 << 20).Run(body); }

backend::Stream NewStream() {
  backend::Stream stream;
  EXPECT_OK(backend::Stream::Create(&stream));
  return stream;
}

backend::Event NewEvent() {
  backend::Event event;
  EXPECT_OK(backend::Event::Create(&event));
  return event;
}

IRIS_KERNEL void Nothing() {}

IRIS_KERNEL void Append(uint32_t value, uint32_t* log, uint32_t* n) { log[(*n)++] = value; }

IRIS_KERNEL void AddOne(uint32_t* words, uint32_t n) {
  for (uint32_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < n;
       i += GridSize() * BlockSize()) {
    ++words[i];
  }
}

IRIS_KERNEL void WaitForGo(DeviceContext ctx, const uint32_t* go) {
  (void)WaitUntil(ctx, go, Compare::kNe, 0);
}

IRIS_KERNEL void UseShared(uint32_t* out) {
  uint32_t* words = static_cast<uint32_t*>(backend::DynamicShared());
  words[ThreadIndex()] = ThreadIndex();
  backend::BlockSync();
  out[ThreadIndex()] = words[BlockSize() - 1 - ThreadIndex()];
}

// Streams and copies.

TEST(StreamTest, LaunchesCopiesAndFillsRunInOrder) {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kWords = 5000;
    uint32_t* a = rank.New<uint32_t>(kWords);
    uint32_t* b = rank.New<uint32_t>(kWords);
    for (uint32_t round = 0; round < 20; ++round) {
      EXPECT_OK(backend::FillAsync(a, 0x01, kWords * 4, rank.stream));
      rank.Launch({1 + round % 5, 1 + round * 7 % 64}, AddOne, a, kWords);
      EXPECT_OK(backend::CopyAsync(b, a, kWords * 4, rank.stream));
      EXPECT_OK(backend::FillAsync(a, 0xff, kWords * 4, rank.stream));
      rank.Launch({3, 16}, AddOne, b, kWords);
    }
    EXPECT_EQ(rank.Read(b, kWords), std::vector<uint32_t>(kWords, 0x01010103));
    EXPECT_EQ(rank.Read(a, kWords), std::vector<uint32_t>(kWords, 0xffffffff));
  });
}

TEST(StreamTest, CopiesAndFillsMoveExactlyTheBytes) {
  OnOneRank([](Rank& rank) {
    for (const uint64_t bytes : {0, 1, 7, 4096, 262145, 1000001}) {
      uint8_t* to = rank.New<uint8_t>(bytes + 2);
      uint8_t* from = rank.New<uint8_t>(bytes + 2);
      std::vector<uint8_t> pattern(bytes + 2);
      for (uint64_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<uint8_t>(i * 31 + 1);
      rank.Write(from, pattern);
      rank.Write(to, std::vector<uint8_t>(bytes + 2, 0xee));
      EXPECT_OK(backend::CopyAsync(to + 1, from + 1, bytes, rank.stream));
      std::vector<uint8_t> expected = pattern;
      expected.front() = expected.back() = 0xee;
      EXPECT_EQ(rank.Read(to, bytes + 2), expected) << bytes;
      EXPECT_OK(backend::FillAsync(to + 1, 0x3c, bytes, rank.stream));
      std::fill(expected.begin() + 1, expected.end() - 1, uint8_t{0x3c});
      EXPECT_EQ(rank.Read(to, bytes + 2), expected) << bytes;
    }
  });
}

TEST(StreamTest, AStreamDoesNotWaitForAnother) {
  OnOneRank([](Rank& rank) {
    uint32_t* go = static_cast<uint32_t*>(backend::MallocHost(4));
    *go = 0;
    uint32_t* words = rank.New<uint32_t>(100);
    backend::Stream blocked = NewStream();
    EXPECT_OK(backend::Launch({2, 4}, blocked, WaitForGo, rank.ctx, go));
    rank.Launch({2, 4}, AddOne, words, 100u);
    EXPECT_EQ(rank.Read(words, 100), std::vector<uint32_t>(100, 1));
    EXPECT_FALSE(blocked.Idle());
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    EXPECT_OK(blocked.Synchronize());
    EXPECT_TRUE(blocked.Idle());
    backend::FreeHost(go);
  });
}

TEST(StreamTest, MovesWithItsWork) {
  OnOneRank([](Rank& rank) {
    uint32_t* words = rank.New<uint32_t>(100);
    backend::Stream first = NewStream();
    EXPECT_OK(backend::Launch({1, 32}, first, AddOne, words, 100u));
    backend::Stream second = std::move(first);
    EXPECT_EQ(first.Synchronize().code,  // NOLINT(bugprone-use-after-move)
              StatusCode::kFailedPrecondition);
    EXPECT_OK(second.Synchronize());
    first = std::move(second);
    EXPECT_OK(backend::Launch({1, 32}, first, AddOne, words, 100u));
    first = NewStream();  // waits for what was there
    EXPECT_EQ(rank.Read(words, 100), std::vector<uint32_t>(100, 2));
  });
}

TEST(StreamTest, ABorrowedStreamIsTheSameStream) {
  OnOneRank([](Rank& rank) {
    uint32_t* log = rank.New<uint32_t>(4);
    uint32_t* n = rank.New<uint32_t>(1);
    {
      backend::Stream borrowed = backend::Stream::Borrow(rank.stream.native());
      rank.Launch({}, Append, 1u, log, n);
      EXPECT_OK(backend::Launch({}, borrowed, Append, 2u, log, n));
      rank.Launch({}, Append, 3u, log, n);
      EXPECT_OK(borrowed.Synchronize());
    }
    rank.Launch({}, Append, 4u, log, n);
    EXPECT_EQ(rank.Read(log, 4), (std::vector<uint32_t>{1, 2, 3, 4}));
  });
}

TEST(LaunchErrorTest, WhatCannotRunIsRefused) {
  OnOneRank([](Rank& rank) {
    const auto code = [&](const LaunchConfig& config) {
      return backend::Launch(config, rank.stream, Nothing).code;
    };
    EXPECT_EQ(code({0, 1}), StatusCode::kInvalidArgument);
    EXPECT_EQ(code({1, 0}), StatusCode::kInvalidArgument);
    EXPECT_EQ(code({1, 1025}), StatusCode::kInvalidArgument);
    EXPECT_EQ(code({1, 0xffffffff}), StatusCode::kInvalidArgument);
    EXPECT_EQ(code({1, 1, 0x7fffffff}), StatusCode::kInvalidArgument);
    void (*null)() = nullptr;
    EXPECT_EQ(backend::Launch({}, rank.stream, null).code, StatusCode::kInvalidArgument);
    backend::Stream none;
    EXPECT_EQ(backend::Launch({}, none, Nothing).code, StatusCode::kFailedPrecondition);
    EXPECT_EQ(none.Synchronize().code, StatusCode::kFailedPrecondition);
    uint8_t* byte = rank.New<uint8_t>(1);
    EXPECT_EQ(backend::CopyAsync(nullptr, byte, 1, rank.stream).code, StatusCode::kInvalidArgument);
    EXPECT_EQ(backend::CopyAsync(byte, nullptr, 1, rank.stream).code, StatusCode::kInvalidArgument);
    EXPECT_EQ(backend::FillAsync(nullptr, 0, 1, rank.stream).code, StatusCode::kInvalidArgument);
    // The stream is as good as before.
    EXPECT_OK(backend::Launch({}, rank.stream, Nothing));
    EXPECT_OK(rank.stream.Synchronize());
  });
}

TEST(PrepareKernelTest, ThenItMayUseMuchSharedMemory) {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kShared = 100 * 1024;
    uint32_t* out = rank.New<uint32_t>(64);
    EXPECT_OK(backend::PrepareKernel(UseShared, kShared));
    rank.Launch({1, 64, kShared}, UseShared, out);
    EXPECT_EQ(rank.Read(out), 63u);
    void (*null)() = nullptr;
    EXPECT_EQ(backend::PrepareKernel(null).code, StatusCode::kInvalidArgument);
  });
}

// Events.

TEST(EventTest, AStreamWaitsForAnother) {
  OnOneRank([](Rank& rank) {
    uint32_t* go = static_cast<uint32_t*>(backend::MallocHost(4));
    *go = 0;
    uint32_t* log = rank.New<uint32_t>(2);
    uint32_t* n = rank.New<uint32_t>(1);
    backend::Stream first = NewStream();
    backend::Event event = NewEvent();
    EXPECT_OK(backend::Launch({}, first, WaitForGo, rank.ctx, go));
    EXPECT_OK(backend::Launch({}, first, Append, 1u, log, n));
    EXPECT_OK(backend::Record(event, first));
    EXPECT_OK(backend::WaitEvent(rank.stream, event));
    rank.Launch({}, Append, 2u, log, n);
    EXPECT_FALSE(rank.stream.Idle());
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    EXPECT_EQ(rank.Read(log, 2), (std::vector<uint32_t>{1, 2}));
    backend::FreeHost(go);
  });
}

IRIS_KERNEL void Spin(uint64_t nanoseconds) {
  const uint64_t start = backend::ClockNanoseconds();
  while (backend::ClockNanoseconds() - start < nanoseconds) backend::Pause();
}

TEST(EventTest, MeasuresTheTimeBetween) {
  OnOneRank([](Rank& rank) {
    backend::Event from = NewEvent();
    backend::Event to = NewEvent();
    uint64_t elapsed = 0;
    EXPECT_EQ(backend::ElapsedNanoseconds(from, to, &elapsed).code,
              StatusCode::kFailedPrecondition);
    EXPECT_OK(backend::Record(from, rank.stream));
    rank.Launch({}, Spin, uint64_t{3 * 1000 * 1000});
    EXPECT_OK(backend::Record(to, rank.stream));
    EXPECT_OK(backend::ElapsedNanoseconds(from, to, &elapsed));
    EXPECT_GE(elapsed, 2900000u);
  });
}

// Graphs.

TEST(StreamGraphTest, ReplaysFreshDataAThousandTimes) {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kWords = 300;
    uint32_t* in = rank.New<uint32_t>(kWords);
    uint32_t* copy = rank.New<uint32_t>(kWords);
    EXPECT_OK(backend::BeginCapture(rank.stream));
    EXPECT_OK(backend::FillAsync(copy, 0xff, kWords * 4, rank.stream));
    EXPECT_OK(backend::CopyAsync(copy, in, kWords * 4, rank.stream));
    rank.Launch({2, 32}, AddOne, copy, kWords);
    EXPECT_EQ(rank.stream.Synchronize().code, StatusCode::kFailedPrecondition);
    backend::Graph graph;
    EXPECT_OK(backend::EndCapture(rank.stream, &graph));
    EXPECT_EQ(rank.Read(copy, kWords), std::vector<uint32_t>(kWords, 0)) << "nothing has run";
    for (uint32_t k = 0; k < 1000 / kSlower; ++k) {
      rank.Write(in, std::vector<uint32_t>(kWords, k * 5));
      EXPECT_OK(backend::LaunchGraph(graph, rank.stream));
      ASSERT_EQ(rank.Read(copy, kWords), std::vector<uint32_t>(kWords, k * 5 + 1)) << k;
    }
  });
}

TEST(StreamGraphTest, TakesTheBranchOfAnotherStream) {
  OnOneRank([](Rank& rank) {
    uint32_t* log = rank.New<uint32_t>(8);
    uint32_t* n = rank.New<uint32_t>(1);
    backend::Stream other = NewStream();
    backend::Event fork = NewEvent();
    backend::Event join = NewEvent();
    EXPECT_OK(backend::BeginCapture(rank.stream));
    rank.Launch({}, Append, 1u, log, n);
    EXPECT_OK(backend::Record(fork, rank.stream));
    EXPECT_OK(backend::WaitEvent(other, fork));
    EXPECT_OK(backend::Launch({}, other, Append, 2u, log, n));
    EXPECT_OK(backend::Record(join, other));
    EXPECT_OK(backend::WaitEvent(rank.stream, join));
    rank.Launch({}, Append, 3u, log, n);
    backend::Graph graph;
    EXPECT_OK(backend::EndCapture(rank.stream, &graph));
    EXPECT_OK(backend::LaunchGraph(graph, rank.stream));
    backend::Graph moved = std::move(graph);
    EXPECT_OK(backend::LaunchGraph(moved, rank.stream));
    EXPECT_EQ(rank.Read(n), 6u);
    EXPECT_EQ(rank.Read(log, 6), (std::vector<uint32_t>{1, 2, 3, 1, 2, 3}));
    EXPECT_EQ(backend::LaunchGraph(graph, rank.stream).code,  // NOLINT(bugprone-use-after-move)
              StatusCode::kFailedPrecondition);
  });
}

// Waits, queries and allocations beside a capture, as a program's other threads make them.
void WorkBesideACapture(backend::Stream& other, uint32_t* word, uint32_t expected) {
  EXPECT_OK(backend::Launch({}, other, AddOne, word, 1u));
  EXPECT_OK(other.Synchronize());
  EXPECT_TRUE(other.Idle());
  uint32_t seen = 0;
  void* const host = backend::MallocHost(64);
  void* const device = backend::MallocDevice(64);
  EXPECT_NE(host, nullptr);
  EXPECT_NE(device, nullptr);
  EXPECT_OK(backend::CopyAsync(host, word, sizeof(seen), other));
  backend::Event from = NewEvent(), to = NewEvent();
  EXPECT_OK(backend::Record(from, other));
  EXPECT_OK(backend::Record(to, other));
  uint64_t elapsed = 0;
  EXPECT_OK(backend::ElapsedNanoseconds(from, to, &elapsed));
  memcpy(&seen, host, sizeof(seen));
  EXPECT_EQ(seen, expected);
  backend::FreeHost(host);
  backend::FreeDevice(device);
  backend::Stream third = NewStream();
  EXPECT_OK(third.Synchronize());
}

TEST(StreamGraphTest, HostCallsBesideACaptureLeaveItAlone) {
  OnOneRank([](Rank& rank) {
    uint32_t* word = rank.New<uint32_t>(1);
    uint32_t* captured = rank.New<uint32_t>(1);
    backend::Stream other = NewStream();
    EXPECT_OK(backend::BeginCapture(rank.stream));
    rank.Launch({}, AddOne, captured, 1u);
    WorkBesideACapture(other, word, 1);  // the thread that captures
    std::thread([&] {
      EXPECT_OK(backend::SetDevice(rank.device()));
      WorkBesideACapture(other, word, 2);
      // The captured stream itself cannot be waited for, which is said and spoils nothing.
      EXPECT_EQ(rank.stream.Synchronize().code, StatusCode::kFailedPrecondition);
      EXPECT_TRUE(rank.stream.Idle());
    }).join();
    rank.Launch({}, AddOne, captured, 1u);
    backend::Graph graph;
    EXPECT_OK(backend::EndCapture(rank.stream, &graph));
    EXPECT_EQ(rank.Read(captured), 0u);
    EXPECT_OK(backend::LaunchGraph(graph, rank.stream));
    EXPECT_EQ(rank.Read(captured), 2u);
    EXPECT_EQ(rank.Read(word), 2u);
  });
}

TEST(StreamGraphTest, WrongOrderIsRefused) {
  OnOneRank([](Rank& rank) {
    backend::Graph graph;
    EXPECT_EQ(backend::LaunchGraph(graph, rank.stream).code, StatusCode::kFailedPrecondition);
    EXPECT_EQ(backend::EndCapture(rank.stream, &graph).code, StatusCode::kFailedPrecondition);
    EXPECT_OK(backend::BeginCapture(rank.stream));
    EXPECT_EQ(backend::BeginCapture(rank.stream).code, StatusCode::kFailedPrecondition);
    rank.Launch({}, Nothing);
    EXPECT_OK(backend::EndCapture(rank.stream, &graph));
    EXPECT_OK(backend::LaunchGraph(graph, rank.stream));
    EXPECT_OK(rank.stream.Synchronize());
  });
}

// Ranks that meet inside their graphs: each replay goes on from the epochs of the one before.
IRIS_KERNEL void GatherRound(DeviceContext ctx, const uint32_t* mine, uint32_t* all,
                             uint32_t* failed) {
  const uint32_t i = BlockIndex() * BlockSize() + ThreadIndex();
  const uint32_t n = GridSize() * BlockSize();
  for (uint32_t p = 0; p < ctx.n_ranks; ++p) Store(ctx, p, all + ctx.rank * n + i, mine[i]);
  if (Barrier(ctx, ctx.world) != WaitResult::kOk) *failed = 1;
}

IRIS_KERNEL void SumRound(DeviceContext ctx, const uint32_t* all, uint32_t* sum, uint32_t* failed) {
  const uint32_t i = BlockIndex() * BlockSize() + ThreadIndex();
  const uint32_t n = GridSize() * BlockSize();
  uint32_t total = 0;
  for (uint32_t p = 0; p < ctx.n_ranks; ++p) total += all[p * n + i];
  sum[i] = total;
  if (Barrier(ctx, ctx.world) != WaitResult::kOk) *failed = 1;
}

class StreamRanksTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StreamRanksTest, testing::Values(1, 2, 4, 8));

TEST_P(StreamRanksTest, GraphsMeetAThousandTimesAcrossTheWrapOfTheirEpochs) {
  World(GetParam()).Run([](Rank& rank) {
    constexpr uint32_t kWords = 64;
    uint32_t* mine = rank.New<uint32_t>(kWords);
    uint32_t* all = rank.New<uint32_t>(kWords * rank.n());
    uint32_t* sum = rank.New<uint32_t>(kWords);
    uint32_t* failed = rank.New<uint32_t>(1);
    std::vector<SyncArea::Slot> slots(2);
    for (SyncArea::Slot& slot : slots) {
      slot = {};
      for (uint32_t& word : slot.inbox) word = 0xfffffffd;
      slot.epoch = 0xfffffffd;
    }
    rank.Write(AtOffset<SyncArea::Slot>(rank.ctx, rank.rank(), 0), slots);
    EXPECT_OK(backend::BeginCapture(rank.stream));
    rank.Launch({2, 32}, GatherRound, rank.ctx, mine, all, failed);
    rank.Launch({2, 32}, SumRound, rank.ctx, all, sum, failed);
    backend::Graph graph;
    EXPECT_OK(backend::EndCapture(rank.stream, &graph));
    rank.HostBarrier();
    for (uint32_t k = 0; k < 1000 / kSlower / rank.n(); ++k) {
      rank.Write(mine, std::vector<uint32_t>(kWords, k * 11 + rank.rank()));
      EXPECT_OK(backend::LaunchGraph(graph, rank.stream));
      const uint32_t expected = rank.n() * k * 11 + rank.n() * (rank.n() - 1) / 2;
      ASSERT_EQ(rank.Read(sum, kWords), std::vector<uint32_t>(kWords, expected)) << k;
    }
    // And without a look between.
    for (uint32_t k = 0; k < 1000 / kSlower; ++k) {
      EXPECT_OK(backend::LaunchGraph(graph, rank.stream));
    }
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

// Memory.

TEST(MemoryTest, DeviceAndHostMemory) {
  OnOneRank([](Rank& rank) {
    for (const uint64_t bytes : {1, 100, 1 << 20}) {
      void* device = backend::MallocDevice(bytes);
      uint8_t* host = static_cast<uint8_t*>(backend::MallocHost(bytes));
      ASSERT_NE(device, nullptr);
      ASSERT_NE(host, nullptr);
      EXPECT_EQ(reinterpret_cast<uint64_t>(device) % 256, 0u);
      EXPECT_EQ(reinterpret_cast<uint64_t>(host) % 16, 0u);
      EXPECT_OK(backend::FillAsync(device, 0x11, bytes, rank.stream));
      EXPECT_OK(backend::CopyAsync(host, device, bytes, rank.stream));
      EXPECT_OK(rank.stream.Synchronize());
      EXPECT_EQ(host[bytes - 1], 0x11);
      backend::FreeDevice(device);
      backend::FreeHost(host);
    }
    backend::FreeDevice(nullptr);
    backend::FreeHost(nullptr);
  });
}

TEST(MemoryTest, KernelsReachHostMemory) {
  OnOneRank([](Rank& rank) {
    uint32_t* host = static_cast<uint32_t*>(backend::MallocHost(400));
    for (uint32_t i = 0; i < 100; ++i) host[i] = i;
    rank.Launch({1, 64}, AddOne, host, 100u);
    rank.Synchronize();
    for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(host[i], i + 1);
    backend::FreeHost(host);
  });
}

TEST(DeviceTest, AnIndexBeyondTheDevicesIsAnError) {
  ASSERT_GE(backend::DeviceCount(), 1u);
  EXPECT_OK(backend::SetDevice(0));
  if (backend::Traits::kEmulated) {
    GTEST_SKIP() << "emu takes every index";
  }
  EXPECT_FALSE(backend::SetDevice(backend::DeviceCount()).ok());
  EXPECT_OK(backend::SetDevice(0));
}

}  // namespace
}  // namespace iris::conformance
