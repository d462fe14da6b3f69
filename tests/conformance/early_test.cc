// Kernels that begin early (LaunchConfig::early), and kernels one after another: what they see of
// the kernel before them, here and at a peer. A litmus test: it cannot prove that nothing else ever
// happens. The kernel that announces what the kernel before it wrote does so by a flag that is
// released, as ccl::Barrier does. A relaxed flag is counted beside it: it announces what a kernel
// wrote here (Traits::kLaunchPublishes), but stores to a peer were seen to arrive behind it.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
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
constexpr uint32_t kPairs = kSlower == 1 ? 20 : 5;  // in a graph
constexpr uint32_t kReplays = backend::Traits::kEmulated ? 4 : 1000;

// A flag that is relaxed where a launch publishes what was written here.
constexpr Order kRelaxedFlag =
    backend::Traits::kLaunchPublishes ? Order::kRelaxed : iris::impl::kPublishOrder;

// Words that were not what the kernel before had made of them.
struct Wrong {
  uint32_t own;        // written here, read here
  uint32_t from_peer;  // stored by the peer, read here
  uint32_t at_peer;    // written by the peer in its own memory, read from here
  uint32_t waits;      // that ended without the flag
};

struct Board {
  uint32_t round;
  Wrong wrong;
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
IRIS_DEVICE bool Meet(const DeviceContext& ctx, uint32_t* word, uint32_t round, bool releases) {
  bool met = true;
  backend::BlockSync();
  if (backend::ThreadIndex() == 0) {
    uint32_t* const there = Translate(ctx, 1 - ctx.rank, word);
    if (releases) {
      backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(there, round);
    } else {
      backend::Store<Scope::kSystem, kRelaxedFlag>(there, round);
    }
    met = iris::impl::BoundedWait(ctx, 0, [word, round] {
            return backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word) >= round;
          }) == WaitResult::kOk;
  }
  backend::BlockSync();
  return met;
}

IRIS_DEVICE void Count(uint32_t* to, uint32_t n) {
  if (n == 0) return;
  (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(to, n);
}

// Reads what the kernel before it wrote here, tells the peer that it is there, and reads what the
// peer's kernel before wrote, here and there.
IRIS_KERNEL void ReadWords(DeviceContext ctx, Board* board, bool waits, bool releases) {
  if (waits) backend::AwaitKernelBefore();
  backend::LetNextBegin();
  const uint32_t block = backend::BlockIndex();
  const uint32_t round = backend::LoadPlain(&board->round);
  Wrong wrong = {};
  // Not what the thread of the same number wrote.
  const uint32_t first = (block + 3) % kBlocks * kThreads + kThreads - 1 - backend::ThreadIndex();
  for (uint32_t i = first; i < kWords; i += kBlocks * kThreads) {
    if (backend::LoadPlain(&board->own[i]) != round + i) ++wrong.own;
  }
  if (waits) {
    const Board* other = Translate(ctx, 1 - ctx.rank, board);
    if (!Meet(ctx, &board->flags[block], round, releases)) ++wrong.waits;
    for (uint32_t i = first; i < kWords; i += kBlocks * kThreads) {
      if (backend::LoadPlain(&board->from_peer[i]) != (round ^ i)) ++wrong.from_peer;
      if (backend::LoadPlain(&other->own[i]) != round + i) ++wrong.at_peer;
    }
    if (!Meet(ctx, &board->done[block], round, releases)) ++wrong.waits;
  }
  Count(&board->wrong.own, wrong.own);
  Count(&board->wrong.from_peer, wrong.from_peer);
  Count(&board->wrong.at_peer, wrong.at_peer);
  Count(&board->wrong.waits, wrong.waits);
}

void Prepare() {
  for (const Result& result :
       {backend::PrepareKernel(BeginRound), backend::PrepareKernel(WriteWords),
        backend::PrepareKernel(ReadWords)}) {
    ASSERT_TRUE(result.ok()) << result.what;
  }
}

void LaunchPair(Rank& rank, Board* board, bool early, bool waits, bool releases) {
  LaunchConfig launch = {kBlocks, kThreads, 0};
  launch.early = early;
  rank.Launch({1, 1}, BeginRound, board);
  rank.Launch(launch, WriteWords, rank.ctx, board, !waits);
  rank.Launch(launch, ReadWords, rank.ctx, board, waits, releases);
}

// Many rounds, captured and not.
Wrong RunRounds(Rank& rank, bool early, bool releases) {
  Board* board = rank.New<Board>(1);
  rank.HostBarrier();
  backend::Graph graph;
  EXPECT_TRUE(backend::BeginCapture(rank.stream).ok());
  for (uint32_t k = 0; k < kPairs; ++k) LaunchPair(rank, board, early, true, releases);
  EXPECT_TRUE(backend::EndCapture(rank.stream, &graph).ok());
  for (uint32_t k = 0; k < kReplays; ++k) {
    EXPECT_TRUE(backend::LaunchGraph(graph, rank.stream).ok());
    if (k % 20 == 19) rank.Synchronize();
  }
  for (uint32_t k = 0; k < kPairs; ++k) LaunchPair(rank, board, early, true, releases);
  rank.Synchronize();
  EXPECT_EQ(rank.Read(&board->round), kPairs * (1 + kReplays));
  return rank.Read(&board->wrong);
}

void ExpectNone(const Wrong& wrong) {
  EXPECT_EQ(wrong.own, 0u);
  EXPECT_EQ(wrong.from_peer, 0u);
  EXPECT_EQ(wrong.at_peer, 0u);
  EXPECT_EQ(wrong.waits, 0u);
}

// The first graph of a process is that of kernels one after another, with a flag that is released:
// in a first graph, and in none after it, stores to a peer were seen to come behind a relaxed one.
TEST(EarlyKernelsTest, SeeWhatTheKernelBeforeWroteHereAndAtAPeer) {
  World(2, 4 << 20).Run([](Rank& rank) {
    Prepare();
    for (const bool early : {false, true}) {
      SCOPED_TRACE(early ? "early" : "one after another");
      ExpectNone(RunRounds(rank, early, /*releases=*/true));
    }
    if (!backend::Traits::kLaunchPublishes) return;  // then no flag is relaxed
    for (const bool early : {false, true}) {
      const Wrong wrong = RunRounds(rank, early, /*releases=*/false);
      EXPECT_EQ(wrong.own, 0u);
      EXPECT_EQ(wrong.at_peer, 0u);  // what Traits::kLaunchPublishes promises
      EXPECT_EQ(wrong.waits, 0u);
      std::printf("rank %u, %s: %u words of the peer were late behind a relaxed flag\n",
                  rank.rank(), early ? "early" : "one after another", wrong.from_peer);
    }
  });
}

// Without the wait nothing is promised where kernels begin early: what comes is counted, to show
// that the test above could fail. Emulated kernels of a stream run one after another all the same.
TEST(EarlyKernelsTest, WithoutTheWaitIsCounted) {
  static constexpr uint32_t kRounds = backend::Traits::kEmulated ? 20 : 1000;
  World(2, 4 << 20).Run([](Rank& rank) {
    Board* board = rank.New<Board>(1);
    Prepare();
    rank.HostBarrier();
    for (uint32_t k = 0; k < kRounds; ++k) LaunchPair(rank, board, true, false, true);
    const uint32_t early = rank.Read(&board->wrong).own;
    std::printf("rank %u: %u words were read too early\n", rank.rank(), early);
    if (backend::Traits::kEmulated) {
      EXPECT_EQ(early, 0u);
    }
    EXPECT_EQ(rank.Read(&board->round), kRounds);
  });
}

// How often a relaxed flag overtakes stores to a peer in the first graph of a process. So it runs
// in a process of its own: this program again, which the variable tells that it is that one.
TEST(EarlyKernelsTest, ARelaxedFlagInTheFirstGraphIsCounted) {
  if (!backend::Traits::kLaunchPublishes) {
    GTEST_SKIP() << "on this backend a launch does not publish what was written before it, so that "
                    "no kernel of Iris has a relaxed flag: there is none to count";
  }
  if (std::getenv("IRIS_EARLY_COUNT") == nullptr) {
    char self[4096] = {};
    ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
    const std::string command = "IRIS_EARLY_COUNT=1 '" + std::string(self) +
                                "' --gtest_filter='*ARelaxedFlagInTheFirstGraphIsCounted' 2>&1";
    std::fflush(stdout);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return;
  }
  World(2, 4 << 20).Run([](Rank& rank) {
    Prepare();
    const Wrong wrong = RunRounds(rank, false, /*releases=*/false);
    EXPECT_EQ(wrong.own, 0u);
    EXPECT_EQ(wrong.waits, 0u);
    std::printf("rank %u: %u words of the peer were late behind a relaxed flag, %u of its own\n",
                rank.rank(), wrong.from_peer, wrong.at_peer);
  });
}

}  // namespace
}  // namespace iris::conformance
