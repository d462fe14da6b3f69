// Litmus tests: small programs of two to four ranks with an outcome that the memory model forbids.
// They cannot prove that it never happens; they run the case many times, on words that are fresh
// each time, with the ranks side by side.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint32_t kRuns = 20000 / kSlower;

// Ranks go through the runs in steps of this many, so that they stay together.
constexpr uint32_t kStep = 200;

struct Words {
  uint32_t* x;  // all in the heap of rank 0
  uint32_t* y;
  uint32_t* seen_x;  // own
  uint32_t* seen_y;
};

template <Scope S, Order O>
IRIS_DEVICE void Put1(const DeviceContext& ctx, uint32_t* p) {
  AtomicStore<S, O>(ctx, 0, p, 1u);
}

template <Scope S, Order O>
IRIS_DEVICE uint32_t See(const DeviceContext& ctx, const uint32_t* p) {
  return AtomicLoad<S, O>(ctx, 0, p);
}

// Message passing: x = 1; release y = 1 || acquire y; x. Forbidden: y seen, x not.
template <Scope S>
struct MessagePassing {
  static constexpr uint32_t kRanks = 2;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    if (ctx.rank == 0) {
      Put1<S, Order::kRelaxed>(ctx, w.x + i);
      Put1<S, Order::kRelease>(ctx, w.y + i);
    } else {
      w.seen_y[i] = See<S, Order::kAcquire>(ctx, w.y + i);
      w.seen_x[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
    }
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return y[1][i] == 1 && x[1][i] == 0;
  }
};

// The same, ordered by fences around relaxed accesses.
template <Scope S>
struct MessagePassingByFence {
  static constexpr uint32_t kRanks = 2;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    if (ctx.rank == 0) {
      Put1<S, Order::kRelaxed>(ctx, w.x + i);
      Fence();
      Put1<S, Order::kRelaxed>(ctx, w.y + i);
    } else {
      w.seen_y[i] = See<S, Order::kRelaxed>(ctx, w.y + i);
      Fence();
      w.seen_x[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
    }
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return y[1][i] == 1 && x[1][i] == 0;
  }
};

// The same through a read-modify-write on either side.
template <Scope S>
struct MessagePassingByExchange {
  static constexpr uint32_t kRanks = 2;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    if (ctx.rank == 0) {
      Put1<S, Order::kRelaxed>(ctx, w.x + i);
      (void)AtomicExchange<S, Order::kRelease>(ctx, 0, w.y + i, 1u);
    } else {
      w.seen_y[i] = AtomicAdd<S, Order::kAcquire>(ctx, 0, w.y + i, 0u);
      w.seen_x[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
    }
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return y[1][i] == 1 && x[1][i] == 0;
  }
};

// Store buffering: x = 1; quiet; y || y = 1; quiet; x. Forbidden: neither seen.
template <Scope S>
struct StoreBuffering {
  static constexpr uint32_t kRanks = 2;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    uint32_t* mine = ctx.rank == 0 ? w.x : w.y;
    uint32_t* other = ctx.rank == 0 ? w.y : w.x;
    Put1<S, Order::kRelaxed>(ctx, mine + i);
    Quiet();
    w.seen_x[i] = See<S, Order::kRelaxed>(ctx, other + i);
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return x[0][i] == 0 && x[1][i] == 0;
  }
};

// The same without the quiet, where release and acquire allow that neither is seen: counted, to
// show that the test above could fail.
template <Scope S>
struct StoreBufferingWithoutQuiet {
  static constexpr uint32_t kRanks = 2;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    uint32_t* mine = ctx.rank == 0 ? w.x : w.y;
    uint32_t* other = ctx.rank == 0 ? w.y : w.x;
    Put1<S, Order::kRelease>(ctx, mine + i);
    w.seen_x[i] = See<S, Order::kAcquire>(ctx, other + i);
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return StoreBuffering<S>::Forbidden(x, y, i);
  }
};

// Write to read causality: x = 1 || see x; release y = 1 || acquire y; x. Forbidden: rank 1 saw x,
// rank 2 saw y and not x.
template <Scope S>
struct WriteToReadCausality {
  static constexpr uint32_t kRanks = 3;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    if (ctx.rank == 0) {
      Put1<S, Order::kRelaxed>(ctx, w.x + i);
    } else if (ctx.rank == 1) {
      w.seen_x[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
      if (w.seen_x[i] == 1) Put1<S, Order::kRelease>(ctx, w.y + i);
    } else {
      w.seen_y[i] = See<S, Order::kAcquire>(ctx, w.y + i);
      w.seen_x[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
    }
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return x[1][i] == 1 && y[2][i] == 1 && x[2][i] == 0;
  }
};

// Independent reads of independent writes: two writers, two readers that disagree on the order.
// Forbidden with a quiet between.
template <Scope S>
struct IndependentReads {
  static constexpr uint32_t kRanks = 4;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    switch (ctx.rank) {
      case 0:
        return Put1<S, Order::kRelaxed>(ctx, w.x + i);
      case 1:
        return Put1<S, Order::kRelaxed>(ctx, w.y + i);
      case 2:
        w.seen_x[i] = See<S, Order::kAcquire>(ctx, w.x + i);
        Quiet();
        w.seen_y[i] = See<S, Order::kAcquire>(ctx, w.y + i);
        return;
      default:
        w.seen_y[i] = See<S, Order::kAcquire>(ctx, w.y + i);
        Quiet();
        w.seen_x[i] = See<S, Order::kAcquire>(ctx, w.x + i);
        return;
    }
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return x[2][i] == 1 && y[2][i] == 0 && y[3][i] == 1 && x[3][i] == 0;
  }
};

// Coherence: two reads of one word by one rank never go back.
template <Scope S>
struct ReadReadCoherence {
  static constexpr uint32_t kRanks = 2;
  IRIS_DEVICE static void Run(const DeviceContext& ctx, const Words& w, uint32_t i) {
    if (ctx.rank == 0) {
      Put1<S, Order::kRelaxed>(ctx, w.x + i);
    } else {
      w.seen_x[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
      w.seen_y[i] = See<S, Order::kRelaxed>(ctx, w.x + i);
    }
  }
  static bool Forbidden(const std::vector<std::vector<uint32_t>>& x,
                        const std::vector<std::vector<uint32_t>>& y, uint32_t i) {
    return x[1][i] == 1 && y[1][i] == 0;
  }
};

template <typename Program>
IRIS_KERNEL void RunProgram(DeviceContext ctx, Words w, uint32_t runs) {
  for (uint32_t i = 0; i < runs; ++i) {
    if (i % kStep == 0 && Barrier(ctx, ctx.world) != WaitResult::kOk) return;
    Program::Run(ctx, w, i);
  }
}

// How often the forbidden outcome came.
template <typename Program>
uint32_t Count() {
  std::vector<std::vector<uint32_t>> x(Program::kRanks);
  std::vector<std::vector<uint32_t>> y(Program::kRanks);
  World(Program::kRanks).Run([&](Rank& rank) {
    const Words w = {rank.New<uint32_t>(kRuns), rank.New<uint32_t>(kRuns),
                     rank.New<uint32_t>(kRuns), rank.New<uint32_t>(kRuns)};
    rank.HostBarrier();
    rank.Launch({}, RunProgram<Program>, rank.ctx, w, kRuns);
    x[rank.rank()] = rank.Read(w.seen_x, kRuns);
    y[rank.rank()] = rank.Read(w.seen_y, kRuns);
  });
  uint32_t forbidden = 0;
  for (uint32_t i = 0; i < kRuns; ++i) forbidden += Program::Forbidden(x, y, i) ? 1 : 0;
  return forbidden;
}

template <typename Program>
void Check() {
  EXPECT_EQ(Count<Program>(), 0u) << "of " << kRuns;
}

void Report(uint32_t count) {
  testing::Test::RecordProperty("neither_seen", static_cast<int>(count));
  std::printf("neither store was seen in %u of %u runs\n", count, kRuns);
}

TEST(LitmusSystemTest, MessagePassing) { Check<MessagePassing<Scope::kSystem>>(); }
TEST(LitmusSystemTest, MessagePassingByFence) { Check<MessagePassingByFence<Scope::kSystem>>(); }
TEST(LitmusSystemTest, MessagePassingByExchange) {
  Check<MessagePassingByExchange<Scope::kSystem>>();
}
TEST(LitmusSystemTest, StoreBuffering) { Check<StoreBuffering<Scope::kSystem>>(); }
TEST(LitmusSystemTest, StoreBufferingWithoutQuietIsCounted) {
  Report(Count<StoreBufferingWithoutQuiet<Scope::kSystem>>());
}
TEST(LitmusSystemTest, WriteToReadCausality) { Check<WriteToReadCausality<Scope::kSystem>>(); }
TEST(LitmusSystemTest, IndependentReadsOfIndependentWrites) {
  Check<IndependentReads<Scope::kSystem>>();
}
TEST(LitmusSystemTest, ReadReadCoherence) { Check<ReadReadCoherence<Scope::kSystem>>(); }

// The same between the blocks of one rank, at device scope: block b plays the part of rank b. All
// words are in its own heap.
template <typename Program>
IRIS_KERNEL void RunInBlocks(DeviceContext ctx, Words w, uint32_t runs, uint32_t* arrived) {
  const uint32_t block = backend::BlockIndex();
  ctx.rank = block;
  ctx.stride_bytes = 0;  // every "rank" has the one heap
  w.seen_x += block * runs;
  w.seen_y += block * runs;
  for (uint32_t i = 0; i < runs; ++i) {
    if (i % kStep == 0) {
      const uint32_t all = (i / kStep + 1) * backend::GridSize();
      (void)AtomicAdd<Scope::kDevice, Order::kAcqRel>(ctx, 0, arrived, 1u);
      if (WaitEpoch(ctx, arrived, all) != WaitResult::kOk) return;
    }
    Program::Run(ctx, w, i);
  }
}

// The same between the warps of one block, at block scope: the first lane of warp w plays the part
// of rank w.
template <typename Program>
IRIS_KERNEL void RunInWarps(DeviceContext ctx, Words w, uint32_t runs) {
  const uint32_t warp = backend::WarpIndex();
  ctx.rank = warp;
  ctx.stride_bytes = 0;
  w.seen_x += warp * runs;
  w.seen_y += warp * runs;
  for (uint32_t i = 0; i < runs; ++i) {
    if (i % kStep == 0) backend::BlockSync();
    if (backend::LaneIndex() == 0) Program::Run(ctx, w, i);
  }
}

IRIS_KERNEL void ReadWarpSize(uint32_t* out) { *out = backend::WarpSize(); }

template <typename Program>
uint32_t CountInside(Scope scope) {
  constexpr uint32_t kParts = Program::kRanks;
  std::vector<std::vector<uint32_t>> x(kParts);
  std::vector<std::vector<uint32_t>> y(kParts);
  World(1, 4 << 20).Run([&](Rank& rank) {
    const Words w = {rank.New<uint32_t>(kRuns), rank.New<uint32_t>(kRuns),
                     rank.New<uint32_t>(kRuns * kParts), rank.New<uint32_t>(kRuns * kParts)};
    uint32_t* word = rank.New<uint32_t>(1);
    if (scope == Scope::kDevice) {
      rank.Launch({kParts, 1}, RunInBlocks<Program>, rank.ctx, w, kRuns, word);
    } else {
      rank.Launch({}, ReadWarpSize, word);
      rank.Launch({1, kParts * rank.Read(word)}, RunInWarps<Program>, rank.ctx, w, kRuns);
    }
    for (uint32_t p = 0; p < kParts; ++p) {
      x[p] = rank.Read(w.seen_x + p * kRuns, kRuns);
      y[p] = rank.Read(w.seen_y + p * kRuns, kRuns);
    }
  });
  uint32_t forbidden = 0;
  for (uint32_t i = 0; i < kRuns; ++i) forbidden += Program::Forbidden(x, y, i) ? 1 : 0;
  return forbidden;
}

template <typename Program>
void CheckInBlocks() {
  EXPECT_EQ(CountInside<Program>(Scope::kDevice), 0u) << "of " << kRuns;
}

template <typename Program>
void CheckInWarps() {
  EXPECT_EQ(CountInside<Program>(Scope::kBlock), 0u) << "of " << kRuns;
}

TEST(LitmusDeviceTest, MessagePassing) { CheckInBlocks<MessagePassing<Scope::kDevice>>(); }
TEST(LitmusDeviceTest, MessagePassingByFence) {
  CheckInBlocks<MessagePassingByFence<Scope::kDevice>>();
}
TEST(LitmusDeviceTest, MessagePassingByExchange) {
  CheckInBlocks<MessagePassingByExchange<Scope::kDevice>>();
}
TEST(LitmusDeviceTest, StoreBuffering) { CheckInBlocks<StoreBuffering<Scope::kDevice>>(); }
TEST(LitmusDeviceTest, StoreBufferingWithoutQuietIsCounted) {
  Report(CountInside<StoreBufferingWithoutQuiet<Scope::kDevice>>(Scope::kDevice));
}
TEST(LitmusDeviceTest, WriteToReadCausality) {
  CheckInBlocks<WriteToReadCausality<Scope::kDevice>>();
}
TEST(LitmusDeviceTest, IndependentReadsOfIndependentWrites) {
  CheckInBlocks<IndependentReads<Scope::kDevice>>();
}
TEST(LitmusDeviceTest, ReadReadCoherence) { CheckInBlocks<ReadReadCoherence<Scope::kDevice>>(); }

TEST(LitmusBlockTest, MessagePassing) { CheckInWarps<MessagePassing<Scope::kBlock>>(); }
TEST(LitmusBlockTest, MessagePassingByFence) {
  CheckInWarps<MessagePassingByFence<Scope::kBlock>>();
}
TEST(LitmusBlockTest, MessagePassingByExchange) {
  CheckInWarps<MessagePassingByExchange<Scope::kBlock>>();
}
TEST(LitmusBlockTest, StoreBuffering) { CheckInWarps<StoreBuffering<Scope::kBlock>>(); }
TEST(LitmusBlockTest, StoreBufferingWithoutQuietIsCounted) {
  Report(CountInside<StoreBufferingWithoutQuiet<Scope::kBlock>>(Scope::kBlock));
}
TEST(LitmusBlockTest, WriteToReadCausality) { CheckInWarps<WriteToReadCausality<Scope::kBlock>>(); }
TEST(LitmusBlockTest, IndependentReadsOfIndependentWrites) {
  CheckInWarps<IndependentReads<Scope::kBlock>>();
}
TEST(LitmusBlockTest, ReadReadCoherence) { CheckInWarps<ReadReadCoherence<Scope::kBlock>>(); }

// Plain data behind a flag within a block: one thread writes data and flag, another waits. Block
// scope.
IRIS_KERNEL void PassInBlock(DeviceContext ctx, uint32_t* data, uint32_t* flags, uint32_t runs,
                             uint32_t* bad) {
  const uint32_t thread = backend::ThreadIndex();
  for (uint32_t i = 0; i < runs; ++i) {
    if (thread == 0) {
      data[i] = i + 1;
      AtomicStore<Scope::kBlock, Order::kRelease>(ctx, 0, flags + i, 1u);
    } else {
      const WaitResult result = impl::BoundedWait(ctx, 0, [&] {
        return AtomicLoad<Scope::kBlock, Order::kAcquire>(ctx, 0, flags + i) == 1;
      });
      if (result != WaitResult::kOk || data[i] != i + 1) bad[thread] = i + 1;
    }
  }
}

TEST(LitmusBlockTest, PlainDataBehindAFlag) {
  World(1).Run([](Rank& rank) {
    uint32_t* data = rank.New<uint32_t>(2000);
    uint32_t* flags = rank.New<uint32_t>(2000);
    uint32_t* bad = rank.New<uint32_t>(40);
    rank.Launch({1, 40}, PassInBlock, rank.ctx, data, flags, 2000 / kSlower, bad);
    EXPECT_EQ(rank.Read(bad, 40), std::vector<uint32_t>(40, 0));
  });
}

}  // namespace
}  // namespace iris::conformance
