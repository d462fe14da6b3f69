// Bugs of kernels end the process, and say which.
#include <cstdint>
#include <stdexcept>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

class TrapDeathTest : public testing::Test {
 protected:
  // A forked child has no workers: start a new process instead.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void TrapInOneThread() {
  if (BlockIndex() == 2 && ThreadIndex() == 5) Trap("the answer is wrong");
  BlockSync();
}

TEST_F(TrapDeathTest, TrapNamesBlockThreadAndReason) {
  EXPECT_DEATH(RunKernel({4, 32, 0}, &TrapInOneThread),
               "iris: trap in block 2, thread 5: the answer is wrong");
}

void MixedSyncs() {
  if (ThreadIndex() == 0) {
    BlockSync();
  } else {
    WarpSync();
  }
}

TEST_F(TrapDeathTest, ThreadsThatWaitInDifferentSyncsAreADeadlock) {
  EXPECT_DEATH(RunKernel({1, 8, 0}, &MixedSyncs),
               "no thread of the block can go on: 1 threads wait in BlockSync and 7 in WarpSync");
}

void ShuffleWithoutTheOthers(uint32_t* out) {
  if (ThreadIndex() == 0) {
    *out = Shuffle(1u, 0);
  } else {
    BlockSync();
  }
}

TEST_F(TrapDeathTest, AShuffleThatTheWarpDoesNotJoinIsADeadlock) {
  uint32_t out = 0;
  EXPECT_DEATH(RunKernel({1, 32, 0}, &ShuffleWithoutTheOthers, &out),
               "31 threads wait in BlockSync and 1 in WarpSync or a shuffle");
}

void Overflow(int depth, volatile char* from_caller) {
  volatile char frame[512];
  frame[0] = from_caller[0];
  frame[511] = 1;
  if (depth > 0) Overflow(depth - 1, frame);
  frame[1] = frame[511];
}

// Only this thread is left, so no other uses the stacks that it overwrites below.
void OverflowAndReturn(int depth) {
  if (ThreadIndex() != 40) return;
  volatile char first[1] = {1};
  Overflow(depth, first);
}

TEST_F(TrapDeathTest, AStackThatOverflowsAndComesBackIsNoticed) {
  // Some kilobytes below the end, whatever a compiler adds to a frame.
#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
  const int depth = 480;
#else
  const int depth = 128;
#endif
  EXPECT_DEATH(RunKernel({1, 64, 0}, &OverflowAndReturn, depth), "");
}

__attribute__((noinline)) void SyncOnALargeFrame() {
  char frame[300 * 1024];
  asm volatile("" ::"r"(frame) : "memory");  // or a compiler finds out that nobody needs it
  BlockSync();
  asm volatile("" ::"r"(frame) : "memory");
}

// It jumps over the guard.
void LargeFrameInOneThread() {
  if (ThreadIndex() == 40) {
    SyncOnALargeFrame();
  } else {
    BlockSync();
  }
}

TEST_F(TrapDeathTest, ASwitchBelowTheStackIsNoticed) {
#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
  const char* message = "";
#else
  const char* message = "block 0, thread 40: a kernel's thread overflowed its stack \\(64 KiB\\)";
#endif
  EXPECT_DEATH(RunKernel({1, 64, 0}, &LargeFrameInOneThread), message);
}

void RecurseForEver(int depth, volatile char* from_caller) {
  volatile char frame[1024];
  frame[0] = from_caller[0];
  if (depth < 1000000000) RecurseForEver(depth + 1, frame);
  frame[1] = frame[0];
}

void RunAway() {
  volatile char first[1] = {1};
  RecurseForEver(0, first);
}

TEST_F(TrapDeathTest, EndlessRecursionEndsAtTheGuard) {
#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
  const char* message = "";
#else
  const char* message = "RunAway, block 0, thread 0: it overflowed its stack \\(64 KiB\\)";
#endif
  EXPECT_DEATH(RunKernel({1, 1, 0}, &RunAway), message);
}

void TooMuchShared() {
  IRIS_SHARED(uint8_t[60000], large);
  IRIS_SHARED(uint8_t[60000], too_large);
  large[0] = too_large[0] = 1;
}

TEST_F(TrapDeathTest, TooManySharedVariablesAreABug) {
  EXPECT_DEATH(RunKernel({1, 1, 0}, &TooMuchShared),
               "more shared variables than a block has memory for");
}

TEST_F(TrapDeathTest, BlockSyncOutsideOfAKernelIsABug) {
  EXPECT_DEATH(BlockSync(), "called outside of a kernel");
}

TEST_F(TrapDeathTest, SharedMemoryOutsideOfAKernelIsABug) {
  EXPECT_DEATH(DynamicShared(), "called outside of a kernel");
}

void Throw() { throw std::runtime_error("out of a kernel"); }

TEST_F(TrapDeathTest, AnExceptionDoesNotLeaveAKernel) {
  EXPECT_DEATH(RunKernel({1, 1, 0}, &Throw), "out of a kernel");
}

void ThrowAndCatch(uint32_t* caught) {
  for (int i = 0; i < 3; ++i) {
    try {
      throw std::runtime_error("inside");
    } catch (const std::runtime_error&) {
      ++*caught;
    }
    Pause();
  }
}

TEST(ExceptionTest, MayBeThrownAndCaughtBetweenTwoSwitches) {
  uint32_t caught[1] = {};
  RunKernel({1, 1, 0}, &ThrowAndCatch, &caught[0]);
  EXPECT_EQ(caught[0], 3u);
}

#ifdef IRIS_ASAN
void OverrunShared(uint32_t index) {
  IRIS_SHARED(uint8_t[10], first);
  IRIS_SHARED(uint8_t[10], second);
  second[0] = 1;
  uint8_t* volatile bytes = first;  // as a pointer, so that no other sanitizer speaks first
  bytes[index] = 1;
}

TEST_F(TrapDeathTest, AddressSanitizerSeesAnOverrunOfASharedVariable) {
  EXPECT_DEATH(RunKernel({1, 1, 0}, &OverrunShared, 12u), "AddressSanitizer");
}

void OverrunDynamic(uint32_t index) { static_cast<uint8_t*>(DynamicShared())[index] = 1; }

TEST_F(TrapDeathTest, AddressSanitizerSeesAnOverrunOfDynamicShared) {
  EXPECT_DEATH(RunKernel({1, 1, 100}, &OverrunDynamic, 100u), "AddressSanitizer");
}

void OverrunLocal(uint32_t index, uint32_t* out) {
  uint8_t local[16] = {};
  uint8_t* volatile bytes = local;
  BlockSync();
  bytes[index] = 1;
  *out = local[0];
}

TEST_F(TrapDeathTest, AddressSanitizerSeesAnOverrunOnAThreadsStack) {
  uint32_t out = 0;
  EXPECT_DEATH(RunKernel({1, 1, 0}, &OverrunLocal, 16u, &out),
               "AddressSanitizer: stack-buffer-overflow");
}
#endif

}  // namespace
}  // namespace iris::backend
