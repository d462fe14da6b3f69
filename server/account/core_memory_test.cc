#include "server/account/core_memory.h"

#include <stdint.h>
#include <sys/resource.h>

#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/sandbox/sanitizers.h"

namespace iris::server {
namespace {

TEST(CoreMemoryTest, WhatIsTakenIsOfWhomTheThreadActsForUntilItIsGivenBack) {
  constexpr MemorySlot kFirst = 100, kSecond = 101;
  std::unique_ptr<std::string> first;
  std::vector<uint64_t> second;
  {
    const OnBehalfOf on_behalf(kFirst);
    first = std::make_unique<std::string>(100'000, 'x');
    {
      const OnBehalfOf inner(kSecond);
      second.resize(50'000);
    }
    EXPECT_EQ(OnBehalfOf::Current(), kFirst);
  }
  EXPECT_EQ(OnBehalfOf::Current(), kIrisdsSlot);
  EXPECT_GE(CoreMemory::Of(kFirst), 100'000u);
  EXPECT_LT(CoreMemory::Of(kFirst), 110'000u);
  EXPECT_GE(CoreMemory::Of(kSecond), 400'000u);
  EXPECT_GE(CoreMemory::Total(), 500'000u);
  std::thread([&first] {  // another thread, on nobody's behalf
    first.reset();
  })
      .join();
  EXPECT_EQ(CoreMemory::Of(kFirst), 0u);
  second = std::vector<uint64_t>();
  EXPECT_EQ(CoreMemory::Of(kSecond), 0u);
}

// Against sums of its own: blocks of every size and alignment, by every form of new.
TEST(CoreMemoryTest, BlocksAreAlignedAndWhollyTheirHoldersOwn) {
  constexpr MemorySlot kSlot = 200;
  struct Block {
    char* at;
    size_t bytes;
    size_t alignment;
    char mark;
  };
  std::vector<Block> blocks;
  blocks.reserve(2000);
  std::mt19937 random(7);
  {
    const OnBehalfOf on_behalf(kSlot);
    for (int i = 0; i < 2000; ++i) {
      Block block{nullptr, random() % 700, size_t{16} << (random() % 6), static_cast<char>(i)};
      if (i % 3 == 0) block.alignment = 16;
      block.at = static_cast<char*>(
          block.alignment == 16 ? ::operator new(block.bytes)
                                : ::operator new(block.bytes, std::align_val_t(block.alignment)));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block.at) % block.alignment, 0u);
      std::fill(block.at, block.at + block.bytes, block.mark);
      blocks.push_back(block);
    }
  }
  size_t asked = 0;
  for (const Block& block : blocks) asked += block.bytes;
  EXPECT_GE(CoreMemory::Of(kSlot), asked);
  for (const Block& block : blocks) {
    for (size_t i = 0; i < block.bytes; ++i) ASSERT_EQ(block.at[i], block.mark);
    if (block.alignment == 16) {
      ::operator delete(block.at);
    } else {
      ::operator delete(block.at, std::align_val_t(block.alignment));
    }
  }
  EXPECT_EQ(CoreMemory::Of(kSlot), 0u);
}

TEST(CoreMemoryTest, AddressSpaceBoundsWhatFits) {
  EXPECT_EQ(CoreMemory::Fitting(1 << 30), 1u << 30);
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (kSanitized) GTEST_SKIP() << "a sanitizer's address space is larger than any limit";
  const struct rlimit small = {1ull << 30, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  EXPECT_LT(CoreMemory::Fitting(1 << 30), 720u << 20);
  EXPECT_EQ(CoreMemory::Fitting(1 << 20), 1u << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

// Where the system has no more, the reserve is given up, and taken anew once there is some.
TEST(CoreMemoryTest, TheReserveIsGivenUpBeforeAnythingFails) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's address space is larger than any limit";
  CoreMemory::KeepReserve(64 << 20);
  ASSERT_FALSE(CoreMemory::InReserve());
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const struct rlimit small = {512ull << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  std::vector<std::unique_ptr<std::string>> held;
  while (!CoreMemory::InReserve() && held.size() < 1000) {
    held.push_back(std::make_unique<std::string>(1 << 20, 'x'));
  }
  EXPECT_TRUE(CoreMemory::InReserve());
  EXPECT_THROW(std::string(100 << 20, 'x'), std::bad_alloc);
  CoreMemory::RestoreReserve();
  EXPECT_TRUE(CoreMemory::InReserve());
  held.clear();
  CoreMemory::RestoreReserve();
  EXPECT_FALSE(CoreMemory::InReserve());
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace iris::server
