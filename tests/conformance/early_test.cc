// Kernels that begin early (LaunchConfig::early): what they see of the kernel before them, here and
// through a relaxed flag at a peer. A litmus test: it cannot prove that nothing else ever happens.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "iris/impl/mutation.h"
#include "iris/impl/wait.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint32_t kBlocks = 8;
constexpr uint32_t kThreads = 128;
constexpr uint32_t kWords = kBlocks * kThreads * 4;
constexpr uint32_t kPairs = 20;  // in a graph
constexpr uint32_t kReplays = backend::Traits::kEmulated ? 4 : 1000;

// As the collectives announce what earlier kernels of the stream wrote.
constexpr Order kAnnounce =
    backend::Traits::kLaunchPublishes ? Order::kRelaxed : iris::impl::kPublishOrder;

struct Board {
  uint32_t round;
  uint32_t wrong;
  uint32_t flags[kBlocks];  // the round that the peer has announced
  uint32_t done[kBlocks];   // the round in which the peer has read everything
  uint32_t own[kWords];
  uint32_t from_peer[kWords];
};

IRIS_KERNEL void BeginRound(Board* board) { ++board->round; }

// Writes here and at the peer, and announces nothing.
IRIS_KERNEL void WriteWords(DeviceContext ctx, Board* board, bool slow) {
  backend::AwaitKernelBefore();
  backend::LetNextBegin();
  if (slow) {
    const uint64_t start = backend::ClockNanoseconds();
    while (backend::ClockNanoseconds() - start < 10000) backend::Pause();
  }
  const uint32_t round = backend::LoadPlain(&board->round);
  Board* other = Translate(ctx, 1 - ctx.rank, board);
  for (uint32_t i = backend::BlockIndex() * kThreads + backend::ThreadIndex(); i < kWords;
       i += kBlocks * kThreads) {
    backend::StorePlain(&board->own[i], round + i);
    backend::StorePlain(&other->from_peer[i], round ^ i);
  }
}

// Tells the peer's block of the same number, and waits for it. All threads of the block call it.
// The peer may be one round ahead.
IRIS_DEVICE bool Meet(const DeviceContext& ctx, uint32_t* word, uint32_t round) {
  bool met = true;
  backend::BlockSync();
  if (backend::ThreadIndex() == 0) {
    backend::Store<Scope::kSystem, kAnnounce>(Translate(ctx, 1 - ctx.rank, word), round);
    met = iris::impl::BoundedWait(ctx, 0, [word, round] {
            return backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word) >= round;
          }) == WaitResult::kOk;
  }
  backend::BlockSync();
  return met;
}

// Reads what the kernel before it wrote here, tells the peer that it is there, and reads what the
// peer's kernel before wrote, here and there.
IRIS_KERNEL void ReadWords(DeviceContext ctx, Board* board, bool waits) {
  if (waits) backend::AwaitKernelBefore();
  backend::LetNextBegin();
  const uint32_t block = backend::BlockIndex();
  const uint32_t round = backend::LoadPlain(&board->round);
  uint32_t wrong = 0;
  // Not what the thread of the same number wrote.
  const uint32_t first = (block + 3) % kBlocks * kThreads + kThreads - 1 - backend::ThreadIndex();
  for (uint32_t i = first; i < kWords; i += kBlocks * kThreads) {
    if (backend::LoadPlain(&board->own[i]) != round + i) ++wrong;
  }
  if (waits) {
    const Board* other = Translate(ctx, 1 - ctx.rank, board);
    if (!Meet(ctx, &board->flags[block], round)) ++wrong;
    for (uint32_t i = first; i < kWords; i += kBlocks * kThreads) {
      if (backend::LoadPlain(&board->from_peer[i]) != (round ^ i)) ++wrong;
      if (backend::LoadPlain(&other->own[i]) != round + i) ++wrong;
    }
    if (!Meet(ctx, &board->done[block], round)) ++wrong;
  }
  if (wrong == 0) return;
  (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(&board->wrong, wrong);
}

void Prepare() {
  for (const Result& result :
       {backend::PrepareKernel(BeginRound), backend::PrepareKernel(WriteWords),
        backend::PrepareKernel(ReadWords)}) {
    ASSERT_TRUE(result.ok()) << result.what;
  }
}

void LaunchPair(Rank& rank, Board* board, bool early, bool waits) {
  LaunchConfig launch = {kBlocks, kThreads, 0};
  launch.early = early;
  rank.Launch({1, 1}, BeginRound, board);
  rank.Launch(launch, WriteWords, rank.ctx, board, !waits);
  rank.Launch(launch, ReadWords, rank.ctx, board, waits);
}

// Many rounds, captured and not. Returns how many words were wrong.
uint32_t RunRounds(Rank& rank, bool early) {
  Board* board = rank.New<Board>(1);
  rank.HostBarrier();
  backend::Graph graph;
  EXPECT_TRUE(backend::BeginCapture(rank.stream).ok());
  for (uint32_t k = 0; k < kPairs; ++k) LaunchPair(rank, board, early, true);
  EXPECT_TRUE(backend::EndCapture(rank.stream, &graph).ok());
  for (uint32_t k = 0; k < kReplays; ++k) {
    EXPECT_TRUE(backend::LaunchGraph(graph, rank.stream).ok());
    if (k % 20 == 19) rank.Synchronize();
  }
  for (uint32_t k = 0; k < kPairs; ++k) LaunchPair(rank, board, early, true);
  rank.Synchronize();
  EXPECT_EQ(rank.Read(&board->round), kPairs * (1 + kReplays));
  return rank.Read(&board->wrong);
}

TEST(EarlyKernelsTest, SeeWhatTheKernelBeforeWroteHereAndAtAPeer) {
  World world(2, 4 << 20);
  world.Run([](Rank& rank) {
    Prepare();
    // One after another first, counted: in the first graph of a process such kernels were seen to
    // fail, too, on one machine. Stores to a peer arrived behind the relaxed flag.
    std::printf("rank %u: %u words were late when no kernel began early\n", rank.rank(),
                RunRounds(rank, false));
    EXPECT_EQ(RunRounds(rank, true), 0u);
  });
}

// Counted, to show that the test above could fail where kernels do begin early.
TEST(EarlyKernelsTest, WithoutTheWaitIsCounted) {
  if (backend::Traits::kEmulated) GTEST_SKIP() << "kernels of a stream run one after another";
  World world(2, 4 << 20);
  world.Run([](Rank& rank) {
    Board* board = rank.New<Board>(1);
    Prepare();
    rank.HostBarrier();
    for (uint32_t k = 0; k < 1000; ++k) LaunchPair(rank, board, true, false);
    std::printf("rank %u: %u words were read too early\n", rank.rank(), rank.Read(&board->wrong));
  });
}

}  // namespace
}  // namespace iris::conformance
