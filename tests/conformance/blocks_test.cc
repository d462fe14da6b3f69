// What kernels that hide their communication are made of: tiles with signals and bulk copies, the
// barrier in two halves, and the ring between the warps of a block.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "iris/ring.h"
#include "iris/split_barrier.h"
#include "iris/tile_put.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint64_t kMillisecondNs = 1000 * 1000;

// Tiles with signals.

enum class Way { kStore, kPut, kBulk, kQueue };
constexpr uint64_t kRoom = 4096;  // elements of a side

struct TileCase {
  Tile tile;
  uint64_t far_at;   // where it begins, in elements
  uint64_t near_at;  // likewise, in shared memory
};

// Block 0 sends each tile with its signal, block 1 waits for it and keeps what it then sees of the
// whole side.
template <Way kWay, typename Coop, typename T>
IRIS_KERNEL void SendTiles(DeviceContext ctx, const TileCase* cases, uint32_t n, T* side, T* seen,
                           uint64_t* arrived, uint64_t* taken, uint32_t* failed) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  if (backend::BlockIndex() == 1) {
    for (uint32_t i = 0; i < n; ++i) {
      if (WaitUntil(ctx, arrived, Compare::kGe, i + 1, Block{}) != WaitResult::kOk) {
        if (backend::ThreadIndex() == 0) *failed = 1;
        return;
      }
      // What is told of late comes while others are under way: only behind the last one is quiet.
      if (kWay == Way::kQueue && i + 1 < n) continue;
      Copy(seen + i * kRoom, side, kRoom, Block{});
      backend::BlockSync();
      if (backend::ThreadIndex() == 0) SignalAdd(ctx, previous, taken, 1);
    }
    return;
  }
  T* const local = static_cast<T*>(backend::DynamicShared());
  BulkTileQueue<3> queue;
  for (uint32_t i = 0; i < n; ++i) {
    // Its reader has looked at the one before. The last ways are told of late.
    if (kWay != Way::kQueue && i > 0 &&
        WaitUntil(ctx, taken, Compare::kGe, i, Block{}) != WaitResult::kOk) {
      if (backend::ThreadIndex() == 0) *failed = 2;
      return;
    }
    const TileCase& c = cases[i];
    for (uint64_t k = backend::ThreadIndex(); k < kRoom; k += backend::BlockSize()) {
      local[k] = static_cast<T>(1000 * (i + 1) + 7 * ctx.rank + k);
    }
    backend::BulkPublishShared();
    backend::BlockSync();
    const bool first_set = backend::ThreadIndex() < impl::CoopSize(Coop{});
    T* const dst = side + c.far_at;
    const T* const from = local + c.near_at;
    const SignalTo signal = {arrived, 1, SignalOp::kAdd};
    if (first_set) {
      if (kWay == Way::kStore) StoreTileSignal(ctx, next, dst, c.tile, from, signal, Coop{});
      if (kWay == Way::kPut) {
        PutTileSignal(ctx, next, dst, c.tile, from, {c.tile.columns}, signal, Coop{});
      }
      if (kWay == Way::kBulk) BulkStoreTileSignal(ctx, next, dst, c.tile, from, signal, Coop{});
      if (kWay == Way::kQueue) {
        queue.Store(ctx, next, dst, c.tile, from, signal);
        queue.AwaitRead();
      }
    }
    backend::BlockSync();
  }
  if (kWay == Way::kQueue && backend::ThreadIndex() == 0) queue.Finish(ctx);
}

template <Way kWay, typename Coop, typename T>
void CheckTiles(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint64_t>(random() % n); };
  std::vector<TileCase> cases;
  for (uint32_t i = 0; i < 24 / (kSlower > 4 ? 4 : kSlower); ++i) {
    TileCase c;
    const bool aligned = i % 2 == 0;  // bulk copies, and stores of 16 bytes
    c.tile.rows = below(12);
    c.tile.columns = aligned ? 16 * below(4) : below(40);
    c.tile.row_stride = aligned ? c.tile.columns + 16 * below(2) : c.tile.columns + below(9);
    if (below(8) == 0 && c.tile.columns < 40) {
      c.tile.row_stride = 1, c.tile.column_stride = c.tile.rows + 1;
    }
    if (below(3) == 0) c.tile.valid_rows = below(16);
    if (below(3) == 0) c.tile.valid_columns = aligned ? 16 * below(4) : below(42);
    c.far_at = aligned ? 16 * below(3) : below(30);
    c.near_at = aligned ? 16 * below(3) : below(30);
    cases.push_back(c);
  }
  World(3, 4 << 20).Run([&](Rank& rank) {
    const uint32_t n = static_cast<uint32_t>(cases.size());
    TileCase* given = rank.New<TileCase>(n);
    T* side = rank.New<T>(kRoom);
    T* seen = rank.New<T>(kRoom * n);
    uint64_t* words = rank.New<uint64_t>(2);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(given, cases);
    rank.HostBarrier();
    LaunchConfig config = {2, 40};
    config.shared_bytes = kRoom * sizeof(T);
    rank.Launch(config, SendTiles<kWay, Coop, T>, rank.ctx, static_cast<const TileCase*>(given), n,
                side, seen, words, words + 1, failed);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(failed), 0u);
    const std::vector<T> got = rank.Read(seen, kRoom * n);
    const uint32_t from = (rank.rank() + rank.n() - 1) % rank.n();
    std::vector<T> expected(kRoom);
    for (uint32_t i = 0; i < n; ++i) {
      const TileCase& c = cases[i];
      for (uint64_t r = 0; r < c.tile.rows && r < c.tile.valid_rows; ++r) {
        for (uint64_t k = 0; k < c.tile.columns && k < c.tile.valid_columns; ++k) {
          expected[c.far_at + r * c.tile.row_stride + k * c.tile.column_stride] =
              static_cast<T>(1000 * (i + 1) + 7 * from + c.near_at + r * c.tile.columns + k);
        }
      }
      // What is told of late may have been overtaken by tiles behind it, but for the last one.
      if (kWay == Way::kQueue && i + 1 < n) continue;
      ASSERT_EQ(std::vector<T>(got.begin() + i * kRoom, got.begin() + (i + 1) * kRoom), expected)
          << "tile " << i;
    }
    rank.HostBarrier();
  });
}

TEST(TileSignalTest, StoreByThread) { CheckTiles<Way::kStore, Thread, uint32_t>(1); }
TEST(TileSignalTest, StoreByBlock) { CheckTiles<Way::kStore, Block, uint16_t>(2); }
TEST(TileSignalTest, PutByWarp) { CheckTiles<Way::kPut, Warp, uint32_t>(3); }
TEST(TileSignalTest, PutByBlock) { CheckTiles<Way::kPut, Block, uint64_t>(4); }
TEST(TileSignalTest, BulkByThread) { CheckTiles<Way::kBulk, Thread, uint32_t>(5); }
TEST(TileSignalTest, BulkByWarp) { CheckTiles<Way::kBulk, Warp, uint16_t>(6); }
TEST(TileSignalTest, BulkByBlock) { CheckTiles<Way::kBulk, Block, uint32_t>(7); }
TEST(TileSignalTest, ManyUnderWay) { CheckTiles<Way::kQueue, Thread, uint32_t>(8); }

// The barrier in two halves.

// Each set of threads writes, arrives, works on what is its own, waits, and reads what its
// counterparts wrote. A second barrier at another slot keeps the fast from overwriting what the
// slow read. kSame: Barrier of barrier.h at the same slots, in turn.
template <typename Coop, bool kMixed>
IRIS_KERNEL void ExchangeInHalves(DeviceContext ctx, DeviceTeam team, uint32_t* x, uint32_t rounds,
                                  uint64_t* bad) {
  const uint32_t size = impl::CoopSize(Coop{});
  const uint32_t set = (backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex()) /
                       (std::is_same_v<Coop, Warp>    ? backend::WarpSize()
                        : std::is_same_v<Coop, Block> ? backend::BlockSize()
                                                      : 1);
  const uint32_t at = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
  const uint32_t mirrored = at - impl::CoopIndex(Coop{}) + size - 1 - impl::CoopIndex(Coop{});
  const uint32_t slot = kMixed ? backend::BlockIndex() : 2 * set;
  for (uint32_t k = 1; k <= rounds; ++k) {
    x[at] = k * 1000 + team.index;
    const BarrierToken token = BarrierArrive(ctx, team, slot, Coop{});
    uint32_t work = 0;
    for (uint32_t i = 0; i < k * 10; ++i) work = work * 5 + i;
    if (BarrierWait(ctx, team, token, Coop{}) != WaitResult::kOk) {
      *bad = ~0ull - work % 2;
      return;
    }
    for (uint32_t m = 0; m < team.size; ++m) {
      if (Load(ctx, team.members[m], x + mirrored) != k * 1000 + m) {
        (void)AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, ctx.rank, bad, 1);
      }
    }
    const WaitResult again =
        kMixed ? Barrier(ctx, team)
               : BarrierWait(ctx, team, BarrierArrive(ctx, team, slot + 1, Coop{}), Coop{});
    if (again != WaitResult::kOk) {
      *bad = ~0ull;
      return;
    }
  }
}

template <typename Coop, bool kMixed = false>
void CheckHalves(uint32_t ranks, const LaunchConfig& config) {
  World(ranks).Run([&](Rank& rank) {
    uint32_t* x = rank.New<uint32_t>(config.grid * config.block);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    for (const uint32_t rounds : {20u / kSlower + 1, 3u}) {
      rank.Launch(config, ExchangeInHalves<Coop, kMixed>, rank.ctx, rank.ctx.world, x, rounds, bad);
      EXPECT_EQ(rank.Read(bad), 0u);
    }
    rank.HostBarrier();
  });
}

TEST(SplitBarrierTest, ByBlock) {
  CheckHalves<Block>(1, {2, 40});
  CheckHalves<Block>(4, {3, 64});
  CheckHalves<Block>(5, {2, 3});  // fewer threads than members
}
TEST(SplitBarrierTest, ByWarp) {
  CheckHalves<Warp>(2, {2, 64});
  CheckHalves<Warp>(5, {1, 72});  // the last warp is short
  CheckHalves<Warp>(4, {1, 3});   // so is the only one
}
TEST(SplitBarrierTest, ByThread) { CheckHalves<Thread>(3, {2, 4}); }
TEST(SplitBarrierTest, InTurnWithTheWholeOne) { CheckHalves<Block, true>(4, {3, 40}); }

// Rank 0 arrives first, and then lets the others come: an arrival waits for nobody. Two slots, for
// which a block waits in the other order.
IRIS_KERNEL void ArriveThenHelp(DeviceContext ctx, uint64_t* go, uint32_t* results) {
  uint32_t failed = 0;
  for (uint64_t round = 1; round <= 5; ++round) {
    if (ctx.rank != 0 && WaitUntil(ctx, go, Compare::kGe, round, Block{}) != WaitResult::kOk) {
      failed = 1;
    }
    const BarrierToken a = BarrierArrive(ctx, ctx.world, 7, Block{});
    const BarrierToken b = BarrierArrive(ctx, ctx.world, SyncArea::kMaxBlocks - 1, Block{});
    if (ctx.rank == 0 && backend::ThreadIndex() == 0) {
      if (BarrierTest(ctx, ctx.world, a)) failed = 2;  // nobody else can have come
      for (uint32_t peer = 1; peer < ctx.n_ranks; ++peer) SignalSet(ctx, peer, go, round);
    }
    if (BarrierWait(ctx, ctx.world, b, Block{}) != WaitResult::kOk) failed = 3;
    if (BarrierWait(ctx, ctx.world, a, Block{}) != WaitResult::kOk) failed = 4;
    if (!BarrierTest(ctx, ctx.world, a) || !BarrierTest(ctx, ctx.world, b)) failed = 5;
  }
  if (failed != 0) *results = failed;
}

TEST(SplitBarrierTest, AnArrivalWaitsForNobody) {
  World(3).Run([](Rank& rank) {
    uint64_t* go = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(1);
    rank.HostBarrier();
    rank.Launch({1, 40}, ArriveThenHelp, rank.ctx, go, results);
    EXPECT_EQ(rank.Read(results), 0u);
    rank.HostBarrier();
  });
}

template <typename Coop>
IRIS_KERNEL void ArriveAndWait(DeviceContext ctx, uint64_t timeout_ns, uint32_t* results,
                               uint32_t* missing) {
  const BarrierToken token = BarrierArrive(ctx, ctx.world, 3, Coop{});
  uint32_t who = 77;
  results[backend::ThreadIndex()] =
      static_cast<uint32_t>(BarrierWait(ctx, ctx.world, token, Coop{}, timeout_ns, &who));
  missing[backend::ThreadIndex()] = who;
}

template <typename Coop>
void CheckMissing(uint32_t threads) {
  World(3).Run([threads](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(threads);
    uint32_t* missing = rank.New<uint32_t>(threads);
    rank.HostBarrier();
    if (rank.rank() != 1) {
      rank.Launch({1, threads}, ArriveAndWait<Coop>, rank.ctx, 5 * kMillisecondNs, results,
                  missing);
      EXPECT_EQ(rank.Read(results, threads), std::vector<uint32_t>(threads, 1));  // kTimeout
      EXPECT_EQ(rank.Read(missing, threads), std::vector<uint32_t>(threads, 1));
    }
    rank.HostBarrier();
    // The late one passes, and then all meet.
    for (uint32_t k = rank.rank() == 1 ? 0 : 1; k < 3; ++k) {
      rank.Launch({1, threads}, ArriveAndWait<Coop>, rank.ctx, uint64_t{0}, results, missing);
      EXPECT_EQ(rank.Read(results, threads), std::vector<uint32_t>(threads, 0));
      EXPECT_EQ(rank.Read(missing, threads), std::vector<uint32_t>(threads, 77));
    }
    rank.HostBarrier();
  });
}

TEST(SplitBarrierTest, WhoIsMissingIsNamedToEachThread) {
  CheckMissing<Block>(40);
  CheckMissing<Warp>(20);
  CheckMissing<Thread>(1);
}

TEST(SplitBarrierTest, AnAbortEndsTheWait) {
  World world(2);
  world.Run([&](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(40);
    uint32_t* missing = rank.New<uint32_t>(40);
    rank.HostBarrier();
    if (rank.rank() == 1) {
      world.Abort();
    } else {
      rank.Launch({1, 40}, ArriveAndWait<Block>, rank.ctx, uint64_t{0}, results, missing);
      EXPECT_EQ(rank.Read(results, 40), std::vector<uint32_t>(40, 2));  // kAborted
    }
    rank.HostBarrier();
  });
}

TEST(SplitBarrierTest, EpochsWrap) {
  for (const uint32_t first : {0xfffffffdu, 0x7ffffffdu}) {
    World(3).Run([first](Rank& rank) {
      uint32_t* x = rank.New<uint32_t>(2 * 16);
      uint64_t* bad = rank.New<uint64_t>(1);
      std::vector<SyncArea::Slot> slots(SyncArea::kMaxBlocks);
      for (SyncArea::Slot& slot : slots) {
        slot = {};
        for (uint32_t& word : slot.inbox) word = first;
        slot.epoch = first;
      }
      rank.Write(AtOffset<SyncArea::Slot>(rank.ctx, rank.rank(), rank.ctx.world.sync_offset_bytes),
                 slots);
      rank.HostBarrier();
      rank.Launch({2, 16}, ExchangeInHalves<Block, false>, rank.ctx, rank.ctx.world, x, 10u, bad);
      EXPECT_EQ(rank.Read(bad), 0u);
      rank.HostBarrier();
    });
  }
}

// The ring.

constexpr uint32_t kItemWords = 48;

struct RingShape {
  uint32_t makers;     // warps
  uint32_t takers;     // warps
  bool make_together;  // each warp makes a part of each item
  bool take_together;  // each warp takes each item
};

// Warps make items, others send them to the next rank; the block of index 1 of the receiver has
// nothing to do but to wait.
template <uint32_t kSlots>
IRIS_KERNEL void MakeAndSend(DeviceContext ctx, RingShape shape, uint32_t n_items, uint32_t* inbox,
                             uint64_t* arrived, uint32_t* results) {
  IRIS_SHARED(RingWords<kSlots>[1], words);
  IRIS_SHARED(uint32_t[kSlots * kItemWords], items);
  InitRing(&words[0]);
  Ring<kSlots> ring(ctx, &words[0], shape.make_together ? shape.makers : 1,
                    shape.take_together ? shape.takers : 1);
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const uint32_t warp = backend::WarpIndex(), lane = backend::LaneIndex();
  WaitResult result = WaitResult::kOk;
  if (warp < shape.makers) {
    const uint32_t step = shape.make_together ? 1 : shape.makers;
    result = Produce(ring, shape.make_together ? 0 : warp, n_items, step, Warp{},
                     [&](uint64_t item, uint32_t slot) {
                       const uint32_t sharers = shape.make_together ? shape.makers : 1;
                       const uint32_t mine = shape.make_together ? warp : 0;
                       for (uint32_t i = mine * backend::WarpSize() + lane; i < kItemWords;
                            i += sharers * backend::WarpSize()) {
                         items[slot * kItemWords + i] =
                             static_cast<uint32_t>(item) * 100 + i + 1000000 * ctx.rank;
                       }
                     });
  } else {
    const uint32_t taker = warp - shape.makers;
    const uint32_t parts = shape.take_together ? shape.takers : 1;
    const uint64_t part_words = kItemWords / parts;
    result = Consume(
        ring, shape.take_together ? 0 : taker, n_items, shape.take_together ? 1 : shape.takers,
        Warp{}, [&](uint64_t item, uint32_t slot) {
          const uint64_t at = shape.take_together ? taker * part_words : 0;
          const Tile tile = {1, part_words, part_words, 1};
          StoreTileSignal(ctx, next, inbox + item * kItemWords + at, tile,
                          &items[slot * kItemWords + at], {arrived, 1, SignalOp::kAdd}, Warp{});
        });
  }
  if (lane == 0) results[warp] = static_cast<uint32_t>(result);
  backend::BlockSync();
  const uint64_t signals = uint64_t{n_items} * (shape.take_together ? shape.takers : 1);
  const WaitResult all = WaitUntil(ctx, arrived, Compare::kGe, signals, Block{});
  if (all != WaitResult::kOk && backend::ThreadIndex() == 0) results[0] = 9;
}

template <uint32_t kSlots>
void CheckRing(const RingShape& shape, uint32_t n_items) {
  World(2, 4 << 20).Run([&](Rank& rank) {
    const uint32_t warps = shape.makers + shape.takers;
    uint32_t* inbox = rank.New<uint32_t>(n_items * kItemWords);
    uint64_t* arrived = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(warps);
    rank.HostBarrier();
    rank.Launch({1, warps * backend::WarpSize()}, MakeAndSend<kSlots>, rank.ctx, shape, n_items,
                inbox, arrived, results);
    EXPECT_EQ(rank.Read(results, warps), std::vector<uint32_t>(warps, 0));
    std::vector<uint32_t> expected;
    for (uint32_t item = 0; item < n_items; ++item) {
      for (uint32_t i = 0; i < kItemWords; ++i) {
        expected.push_back(item * 100 + i + 1000000 * rank.next());  // of two ranks the other one
      }
    }
    EXPECT_EQ(rank.Read(inbox, n_items * kItemWords), expected);
    rank.HostBarrier();
  });
}

constexpr uint32_t kItems = 48 / (kSlower > 4 ? 4 : kSlower);
TEST(BlockRingTest, OneProducerOneSender) { CheckRing<4>({1, 1, false, false}, kItems); }
TEST(BlockRingTest, OneSlot) { CheckRing<1>({1, 1, false, false}, kItems); }
TEST(BlockRingTest, EachWarpItsOwnItems) { CheckRing<4>({3, 2, false, false}, kItems); }
TEST(BlockRingTest, WarpsShareEachItem) { CheckRing<2>({3, 2, true, true}, kItems); }
TEST(BlockRingTest, MoreSendersThanSlots) { CheckRing<2>({1, 4, false, false}, kItems); }

// The consumer stops after two items: it cancels, or goes away.
IRIS_KERNEL void GiveUp(DeviceContext ctx, uint32_t cancel, uint64_t timeout_ns,
                        uint32_t* results) {
  IRIS_SHARED(RingWords<2>[1], words);
  InitRing(&words[0]);
  Ring<2> ring(ctx, &words[0], 1, 1);
  ctx.timeout_ns = timeout_ns;
  const uint32_t warp = backend::WarpIndex();
  WaitResult result = WaitResult::kOk;
  if (warp == 0) {
    result = Produce(ring, 0, 100, 1, Warp{}, [](uint64_t, uint32_t) {});
  } else if (warp == 1) {
    result = Consume(ring, 0, 2, 1, Warp{}, [](uint64_t, uint32_t) {});
    if (cancel != 0 && backend::LaneIndex() == 0) ring.Cancel();
  } else {
    // Waits for an item that is never made: the failure of the others ends it, too.
    ctx.timeout_ns = 100 * timeout_ns;
    result = ring.ConsumerWait(99, Warp{});
  }
  results[backend::ThreadIndex()] = static_cast<uint32_t>(result);
}

TEST(BlockRingTest, WhoGivesUpEndsTheWaitsOfAll) {
  World(1).Run([](Rank& rank) {
    const uint32_t warp = backend::WarpSize();
    uint32_t* results = rank.New<uint32_t>(3 * warp);
    for (const uint32_t cancel : {1u, 0u}) {
      rank.Launch({1, 3 * warp}, GiveUp, rank.ctx, cancel,
                  cancel != 0 ? 60'000 * kMillisecondNs : 20 * kMillisecondNs, results);
      std::vector<uint32_t> expected(3 * warp, 2);                    // kAborted
      for (uint32_t i = 0; i < warp; ++i) expected[i] = 2 - !cancel;  // or kTimeout
      for (uint32_t i = warp; i < 2 * warp; ++i) expected[i] = 0;
      EXPECT_EQ(rank.Read(results, 3 * warp), expected);
    }
  });
}

}  // namespace
}  // namespace iris::conformance
