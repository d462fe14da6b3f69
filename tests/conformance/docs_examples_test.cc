// The examples of docs/programming_model.md, run. The last test compares: each block of code there
// is a piece of this file.
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "device/collective/collective.h"
#include "device/collective/tile.h"
#include "device/iris/iris.h"
#include "gtest/gtest.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

// clang-format off
// A kernel.

IRIS_KERNEL void Scale(float* x, float factor, uint64_t n) {
  const uint64_t first = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
  const uint64_t step = backend::GridSize() * backend::BlockSize();
  for (uint64_t i = first; i < n; i += step) x[i] *= factor;
}

Result ScaleOnStream(float* x, uint64_t n, backend::Stream& stream) {
  return backend::Launch({/*grid=*/4, /*block=*/128}, stream, Scale, x, 0.5f, n);
}

TEST(DocsTest, Kernel) {
  World world(1);
  world.Run([](Rank& rank) {
    float* x = rank.New<float>(1000);
    rank.Write(x, std::vector<float>(1000, 3.0f));
    EXPECT_TRUE(ScaleOnStream(x, 1000, rank.stream).ok());
    EXPECT_EQ(rank.Read(x, 1000), std::vector<float>(1000, 1.5f));
  });
}

// Shared memory, warps and blocks.

IRIS_KERNEL void BlockSum(const float* x, float* sums) {
  IRIS_SHARED(float[kMaxBlockThreads], part);   // one per warp is enough
  float sum = x[backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex()];
  for (uint32_t delta = backend::WarpSize() / 2; delta > 0; delta /= 2) {
    const float other = backend::ShuffleDown(sum, delta);
    // A lane outside the warp gives back the own value: do not count it.
    if (backend::LaneIndex() + delta < backend::WarpSize()) sum += other;
  }
  if (backend::LaneIndex() == 0) part[backend::WarpIndex()] = sum;
  backend::BlockSync();   // all parts are written
  if (backend::ThreadIndex() == 0) {
    float total = 0;
    for (uint32_t w = 0; w < backend::BlockSize() / backend::WarpSize(); ++w) total += part[w];
    sums[backend::BlockIndex()] = total;
  }
}

TEST(DocsTest, SharedMemory) {
  World world(1);
  world.Run([](Rank& rank) {
    const uint32_t n = 2 * backend::WarpSize();
    float* x = rank.New<float>(3 * n);
    float* sums = rank.New<float>(3);
    rank.Write(x, std::vector<float>(3 * n, 2.0f));
    rank.Launch({3, n}, BlockSum, static_cast<const float*>(x), sums);
    EXPECT_EQ(rank.Read(sums, 3), std::vector<float>(3, 2.0f * static_cast<float>(n)));
  });
}

// Reaching a peer.

IRIS_KERNEL void RotateValues(DeviceContext ctx, const int* mine, int* theirs) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  Store(ctx, next, theirs, Load(ctx, ctx.rank, mine));        // one value
}

IRIS_KERNEL void RotateRange(DeviceContext ctx, const float* mine, float* theirs, uint64_t n) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  Put(ctx, next, theirs, mine, n * sizeof(float), Block{});   // many, by the whole block
}

TEST(DocsTest, Reach) {
  World world(3);
  world.Run([](Rank& rank) {
    int* mine = rank.New<int>(1);
    int* theirs = rank.New<int>(1);
    float* a = rank.New<float>(77);
    float* b = rank.New<float>(77);
    rank.Write(mine, static_cast<int>(rank.rank()));
    rank.Write(a, std::vector<float>(77, static_cast<float>(rank.rank())));
    rank.HostBarrier();
    rank.Launch({}, RotateValues, rank.ctx, static_cast<const int*>(mine), theirs);
    rank.Launch({1, 64}, RotateRange, rank.ctx, static_cast<const float*>(a), b, uint64_t{77});
    rank.Synchronize();
    rank.HostBarrier();
    const uint32_t before = (rank.rank() + 2) % 3;
    EXPECT_EQ(rank.Read(theirs), static_cast<int>(before));
    EXPECT_EQ(rank.Read(b, 77), std::vector<float>(77, static_cast<float>(before)));
  });
}

// Signals.

// Every step, each rank sends its edge to the next and works on the edge that it got.
IRIS_KERNEL void Steps(DeviceContext ctx, float* edge, float* ghost, uint64_t n,
                       uint64_t* ready, uint64_t* taken, uint64_t steps, uint32_t* result) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  WaitResult wait = WaitResult::kOk;
  for (uint64_t step = 1; step <= steps && wait == WaitResult::kOk; ++step) {
    PutSignal(ctx, next, ghost, edge, n * sizeof(float), ready, step, SignalOp::kSet, Block{});
    wait = WaitUntil(ctx, ready, Compare::kGe, step, 0, Block{});
    if (wait != WaitResult::kOk) break;
    for (uint64_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) edge[i] += ghost[i];
    backend::BlockSync();   // the whole block has read the ghost, and written the edge
    if (backend::ThreadIndex() == 0) SignalSet(ctx, previous, taken, step);
    wait = WaitUntil(ctx, taken, Compare::kGe, step, 0, Block{});   // ready is not consumed
  }
  if (backend::ThreadIndex() == 0) *result = static_cast<uint32_t>(wait);
}

TEST(DocsTest, Signals) {
  World world(2);
  world.Run([](Rank& rank) {
    float* edge = rank.New<float>(50);
    float* ghost = rank.New<float>(50);
    uint64_t* ready = rank.New<uint64_t>(1);
    uint64_t* taken = rank.New<uint64_t>(1);
    uint32_t* result = rank.New<uint32_t>(1);
    rank.Write(edge, std::vector<float>(50, 1.0f));
    rank.Write(result, 9u);
    rank.HostBarrier();
    rank.Launch({1, 32}, Steps, rank.ctx, edge, ghost, uint64_t{50}, ready, taken, uint64_t{10},
                result);
    EXPECT_EQ(rank.Read(result), 0u);
    EXPECT_EQ(rank.Read(edge, 50), std::vector<float>(50, 1024.0f));  // both double each step
  });
}

// Atomics.

IRIS_KERNEL void TakeTickets(DeviceContext ctx, uint32_t* tickets, uint32_t* owner, uint32_t n) {
  for (;;) {
    // The counter of rank 0 gives each ticket to one thread of one rank.
    const uint32_t ticket = AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, 0, tickets, 1u);
    if (ticket >= n) return;
    Store(ctx, 0, owner + ticket, ctx.rank + 1);
  }
}

TEST(DocsTest, Atomics) {
  World world(3);
  world.Run([](Rank& rank) {
    uint32_t* tickets = rank.New<uint32_t>(1);
    uint32_t* owner = rank.New<uint32_t>(500);
    rank.HostBarrier();
    rank.Launch({2, 16}, TakeTickets, rank.ctx, tickets, owner, 500u);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() == 0) {
      for (uint32_t who : rank.Read(owner, 500)) ASSERT_TRUE(who >= 1 && who <= 3);
      EXPECT_EQ(rank.Read(tickets), 500u + 3 * 32);  // each thread looked once in vain
    }
  });
}

// The device barrier.

IRIS_KERNEL void AllMaximum(DeviceContext ctx, DeviceTeam team, float* value, float* maximum,
                            uint32_t* failed) {
  uint32_t missing = 0;
  if (Barrier(ctx, team, 0, &missing) != WaitResult::kOk) {
    if (backend::ThreadIndex() == 0) *failed = team.members[missing] + 1;
    return;
  }
  if (backend::ThreadIndex() == 0) {
    float largest = Load(ctx, team.members[0], value);
    for (uint32_t m = 1; m < team.size; ++m) {
      const float other = Load(ctx, team.members[m], value);
      if (other > largest) largest = other;
    }
    *maximum = largest;
  }
  // Nobody changes its value before all have read it. Ends all threads alike, also on failure.
  (void)Barrier(ctx, team);
}

TEST(DocsTest, DeviceBarrier) {
  World world(4);
  world.Run([](Rank& rank) {
    float* value = rank.New<float>(1);
    float* maximum = rank.New<float>(1);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(value, static_cast<float>(rank.rank() * 3 % 4));
    rank.HostBarrier();
    rank.Launch({1, 32}, AllMaximum, rank.ctx, rank.ctx.world, value, maximum, failed);
    EXPECT_EQ(rank.Read(maximum), 3.0f);
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

// Collectives.

Result MeanOfGradients(const ccl::Comm& comm, float* gradients, uint64_t n,
                       backend::Stream& stream) {
  const Result reduced = ccl::AllReduce(comm, gradients, gradients, n, ccl::DataType::kF32,
                                        ccl::ReduceOp::kSum, stream);
  if (!reduced.ok()) return reduced;
  const float factor = 1.0f / static_cast<float>(comm.team.size);
  return backend::Launch({4, 64}, stream, Scale, gradients, factor, n);   // behind it on the stream
}

TEST(DocsTest, Collectives) {
  World world(4);
  world.Run([](Rank& rank) {
    ccl::Config config;
    config.max_blocks = 2;
    const ccl::Comm comm = rank.NewComm(rank.ctx.world, config);
    float* gradients = rank.New<float>(3000);
    rank.Write(gradients, std::vector<float>(3000, static_cast<float>(rank.rank())));
    rank.HostBarrier();
    EXPECT_TRUE(MeanOfGradients(comm, gradients, 3000, rank.stream).ok());
    EXPECT_EQ(rank.Read(gradients, 3000), std::vector<float>(3000, 1.5f));
    EXPECT_TRUE(ccl::CheckError(comm).ok());
  });
}

// Each block works on a tile of its own, with the blocks of the same index elsewhere.
IRIS_KERNEL void NormalizeTiles(DeviceContext ctx, float* tiles, uint64_t n, uint32_t* failed) {
  float* tile = tiles + backend::BlockIndex() * n;
  for (uint64_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) tile[i] *= 0.5f;
  if (ccl::TileAllReduce(ctx, ctx.world, tile, tile, n, ccl::ReduceOp::kAvg) != WaitResult::kOk) {
    if (backend::ThreadIndex() == 0) *failed = 1;
  }
}

TEST(DocsTest, Tiles) {
  World world(3);
  world.Run([](Rank& rank) {
    float* tiles = rank.New<float>(3 * 70);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(tiles, std::vector<float>(3 * 70, static_cast<float>(2 * rank.rank())));
    rank.HostBarrier();
    rank.Launch({3, 64}, NormalizeTiles, rank.ctx, tiles, uint64_t{70}, failed);
    EXPECT_EQ(rank.Read(tiles, 3 * 70), std::vector<float>(3 * 70, 1.0f));
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}
// clang-format on

// The page says what is here.

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// One space for each run of white space.
std::string Squeeze(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) out += word + " ";
  return out;
}

TEST(DocsTest, EveryBlockOfCodeInThePageIsInThisFile) {
  const std::string page = FileText("docs/programming_model.md");
  const std::string code = Squeeze(FileText("tests/conformance/docs_examples_test.cc"));
  const std::string open = "```cpp\n";
  uint32_t blocks = 0;
  for (size_t at = page.find(open); at != std::string::npos; at = page.find(open, at)) {
    at += open.size();
    const size_t end = page.find("```", at);
    ASSERT_NE(end, std::string::npos);
    const std::string block = page.substr(at, end - at);
    EXPECT_NE(code.find(Squeeze(block)), std::string::npos) << block;
    ++blocks;
    at = end + 3;
  }
  EXPECT_GE(blocks, 7u);
}

}  // namespace
}  // namespace iris::conformance
