#include "server/job/kept_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace iris::server {
namespace {

using Process = KeptMemory::Process;

constexpr Party kUser{7};

TEST(KeptMemoryTest, CountsUntilTheLastHolderIsGone) {
  KeptMemory kept;
  kept.Add(kUser, {{1, 5}, {2, 5}}, 100);
  kept.Add(kUser, {{1, 5}}, 10);
  EXPECT_EQ(kept.bytes(kUser), 110u);
  EXPECT_TRUE(kept.Holds(kUser, {2, 5}));
  kept.ProcessGone(kUser, {1, 5});
  EXPECT_EQ(kept.bytes(kUser), 100u);
  EXPECT_FALSE(kept.Holds(kUser, {1, 5}));
  kept.ProcessGone(kUser, {2, 5});
  EXPECT_EQ(kept.bytes(kUser), 0u);
  EXPECT_TRUE(kept.all().empty());
}

TEST(KeptMemoryTest, UsersAndProcessesThatUseAPidAgainAreApart) {
  KeptMemory kept;
  kept.Add(kUser, {{1, 5}}, 100);
  kept.Add(Party{8}, {{1, 5}}, 200);
  kept.ProcessGone(kUser, {1, 6});
  kept.ProcessGone(Party{9}, {1, 5});
  EXPECT_EQ(kept.bytes(kUser), 100u);
  kept.ProcessGone(kUser, {1, 5});
  EXPECT_EQ(kept.bytes(kUser), 0u);
  EXPECT_EQ(kept.bytes(Party{8}), 200u);
}

TEST(KeptMemoryTest, WhatNobodyHoldsOrIsNothingDoesNotCount) {
  KeptMemory kept;
  kept.Add(kUser, {}, 100);
  kept.Add(kUser, {{1, 5}}, 0);
  EXPECT_TRUE(kept.all().empty());
}

TEST(KeptMemoryTest, TheSameHoldersAgainTakeNoMorePlace) {
  KeptMemory kept;
  for (int i = 0; i < 10000; ++i) kept.Add(kUser, {{1, 5}, {2, 5}}, 1);
  EXPECT_EQ(kept.all().at(kUser).size(), 1u);
  EXPECT_EQ(kept.bytes(kUser), 10000u);
}

TEST(KeptMemoryTest, ManyDifferentHoldersAreBoundedAndNothingIsLost) {
  KeptMemory kept;
  for (int64_t pid = 1; pid <= 1000; ++pid) kept.Add(kUser, {{pid, 5}}, 1);
  EXPECT_EQ(kept.all().at(kUser).size(), KeptMemory::kMaxPartsPerUid);
  EXPECT_EQ(kept.bytes(kUser), 1000u);
  for (int64_t pid = 1; pid < 1000; ++pid) {
    EXPECT_TRUE(kept.Holds(kUser, {pid, 5}));
    kept.ProcessGone(kUser, {pid, 5});
  }
  EXPECT_GT(kept.bytes(kUser), 0u);
  kept.ProcessGone(kUser, {1000, 5});
  EXPECT_EQ(kept.bytes(kUser), 0u);
}

TEST(KeptMemoryTest, NamesSomeHolders) {
  KeptMemory kept;
  EXPECT_EQ(kept.Holders(kUser), "");
  kept.Add(kUser, {{1, 5}, {2, 5}}, 1);
  EXPECT_EQ(kept.Holders(kUser), "pid 1, pid 2");
  kept.Add(kUser, {{3, 5}, {4, 5}, {5, 5}, {6, 5}}, 1);
  EXPECT_EQ(kept.Holders(kUser), "pid 1, pid 2, pid 3, pid 4 and 2 more");
}

}  // namespace
}  // namespace iris::server
