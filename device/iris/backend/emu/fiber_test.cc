#include "iris/backend/emu/fiber.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace iris::backend::emu {
namespace {

size_t CountMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) ++n;
  return n;
}

TEST(StackPoolTest, GivesDifferentStacksThatDoNotOverlap) {
  StackPool pool;
  std::vector<uint8_t*> stacks;
  for (size_t i = 0; i < kStacksPerSlab + 10; ++i) stacks.push_back(pool.Take());
  std::sort(stacks.begin(), stacks.end());
  for (size_t i = 1; i < stacks.size(); ++i) {
    ASSERT_NE(stacks[i], nullptr);
    ASSERT_GE(stacks[i] - stacks[i - 1], static_cast<ptrdiff_t>(kStackBytes));
  }
  EXPECT_EQ(pool.slab_count(), 2u);
  for (uint8_t* stack : stacks) pool.Give(stack);
}

TEST(StackPoolTest, UsesAStackAgainBeforeItMapsMore) {
  StackPool pool;
  std::set<uint8_t*> seen;
  for (int i = 0; i < 10000; ++i) {
    uint8_t* stack = pool.Take();
    stack[kStackBytes - 1] = 1;
    seen.insert(stack);
    pool.Give(stack);
  }
  EXPECT_EQ(seen.size(), 1u);
  EXPECT_EQ(pool.slab_count(), 1u);
}

TEST(StackPoolTest, TakesABoundedNumberOfMappings) {
  [[maybe_unused]] const size_t before = CountMappings();
  StackPool pool;
  std::vector<uint8_t*> stacks;
  for (size_t i = 0; i < 8 * kStacksPerSlab; ++i) stacks.push_back(pool.Take());
#ifndef IRIS_TSAN  // which has mappings of its own
  // At worst, each stack and each guard is one: still a small part of what a process may have.
  EXPECT_LE(CountMappings(), before + 2 * 8 * kStacksPerSlab + 16);
#endif
  for (uint8_t* stack : stacks) pool.Give(stack);
}

TEST(StackPoolTest, GuardsByMappingAreBoundedToo) {
  [[maybe_unused]] const size_t before = CountMappings();
  StackPool pool(true);
  std::vector<uint8_t*> stacks;
  for (size_t i = 0; i < (kGuardedSlabs + 8) * kStacksPerSlab; ++i) stacks.push_back(pool.Take());
#ifndef IRIS_TSAN
  EXPECT_LE(CountMappings(), before + 2 * kGuardedSlabs * kStacksPerSlab + 8 * 2 + 16);
#endif
  for (uint8_t* stack : stacks) stack[kStackBytes - 1] = 1;
  for (uint8_t* stack : stacks) pool.Give(stack);
}

TEST(StackPoolTest, UnmapsWhatItMapped) {
  const size_t before = CountMappings();
  {
    StackPool pool;
    for (int i = 0; i < 3; ++i) pool.Give(pool.Take());
  }
  EXPECT_LE(CountMappings(), before + 2);
}

TEST(StackPoolTest, StacksBeyondTheWarmOnesGiveTheirPagesBack) {
  StackPool pool;
  std::vector<uint8_t*> stacks;
  for (size_t i = 0; i < kWarmStacks + 1; ++i) {
    stacks.push_back(pool.Take());
    stacks.back()[kStackBytes - 1] = 0x5a;
  }
  const size_t already_free = pool.free_count();
  for (size_t i = already_free; i < kWarmStacks; ++i) {
    pool.Give(stacks.back());
    stacks.pop_back();
  }
  uint8_t* cold = stacks.back();
  stacks.pop_back();
  pool.Give(cold);
  EXPECT_EQ(cold[kStackBytes - 1], 0);
  for (uint8_t* stack : stacks) pool.Give(stack);
}

struct Steps {
  Fiber fiber;
  int seen[8] = {};  // and no container: its functions are ThreadSanitizer's in other files
  int n_seen = 0;
  int until = 0;
};

void TakeSteps(void* argument) noexcept {
  Steps* steps = static_cast<Steps*>(argument);
  for (int i = 0; i < steps->until; ++i) {
    steps->seen[steps->n_seen++] = i;
    steps->fiber.SwitchOut();
  }
}

TEST(FiberTest, RunsInStepsAndFinishes) {
  StackPool pool;
  Steps steps;
  steps.until = 3;
  steps.fiber.Prepare(pool.Take(), &TakeSteps, &steps);
  for (int i = 0; i < 3; ++i) {
    steps.fiber.SwitchIn();
    EXPECT_FALSE(steps.fiber.finished());
    EXPECT_TRUE(steps.fiber.StackIsWhole());
    EXPECT_EQ(steps.n_seen, i + 1);
  }
  steps.fiber.SwitchIn();
  EXPECT_TRUE(steps.fiber.finished());
  pool.Give(steps.fiber.Release());
}

TEST(FiberTest, CanBePreparedAgain) {
  StackPool pool;
  Steps steps;
  for (int round = 0; round < 100; ++round) {
    steps.until = 0;
    steps.fiber.Prepare(pool.Take(), &TakeSteps, &steps);
    steps.fiber.SwitchIn();
    ASSERT_TRUE(steps.fiber.finished());
    pool.Give(steps.fiber.Release());
  }
  EXPECT_EQ(steps.n_seen, 0);
}

TEST(FiberTest, ManyTakeTurns) {
  StackPool pool;
  std::vector<Steps> all(500);
  for (Steps& steps : all) {
    steps.until = 5;
    steps.fiber.Prepare(pool.Take(), &TakeSteps, &steps);
  }
  for (int round = 0; round < 6; ++round) {
    for (Steps& steps : all) steps.fiber.SwitchIn();
  }
  for (Steps& steps : all) {
    EXPECT_TRUE(steps.fiber.finished());
    EXPECT_EQ(steps.n_seen, 5);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(steps.seen[i], i);
    pool.Give(steps.fiber.Release());
  }
}

void WriteBelow(void* argument) noexcept {
  uint8_t* stack = *static_cast<uint8_t**>(argument);
  stack[kGuardBytes + 3] = 1;
}

TEST(FiberTest, NoticesAWriteToTheEndOfItsStack) {
  StackPool pool;
  Fiber fiber;
  uint8_t* stack = pool.Take();
  fiber.Prepare(stack, &WriteBelow, &stack);
  fiber.SwitchIn();
  EXPECT_TRUE(fiber.finished());
  EXPECT_FALSE(fiber.StackIsWhole());
  stack[kGuardBytes + 3] = 0;
  pool.Give(fiber.Release());
}

// The stack that is used first, and one in the middle of its slab.
class GuardDeathTest : public testing::TestWithParam<std::pair<bool, size_t>> {};
INSTANTIATE_TEST_SUITE_P(Stacks, GuardDeathTest,
                         testing::Values(std::pair(false, 0), std::pair(false, 100),
                                         std::pair(true, 0), std::pair(true, 100)));

TEST_P(GuardDeathTest, ATouchBelowTheStackEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto [guard_by_mapping, index] = GetParam();
  StackPool pool(guard_by_mapping);
  std::vector<uint8_t*> stacks;
  for (size_t i = 0; i < kStacksPerSlab; ++i) stacks.push_back(pool.Take());
  volatile uint8_t* guard = stacks[index] + kGuardBytes - 1;
  EXPECT_DEATH(*guard = 1, "");
}

}  // namespace
}  // namespace iris::backend::emu
