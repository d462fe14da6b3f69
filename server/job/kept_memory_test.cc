#include "server/job/kept_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace iris::server {
namespace {

using Process = KeptMemory::Process;

constexpr uint32_t kUid = 7;

TEST(KeptMemoryTest, CountsUntilTheLastHolderIsGone) {
  KeptMemory kept;
  kept.Add(kUid, {{1, 5}, {2, 5}}, 100);
  kept.Add(kUid, {{1, 5}}, 10);
  EXPECT_EQ(kept.bytes(kUid), 110u);
  EXPECT_TRUE(kept.Holds(kUid, {2, 5}));
  kept.ProcessGone(kUid, {1, 5});
  EXPECT_EQ(kept.bytes(kUid), 100u);
  EXPECT_FALSE(kept.Holds(kUid, {1, 5}));
  kept.ProcessGone(kUid, {2, 5});
  EXPECT_EQ(kept.bytes(kUid), 0u);
  EXPECT_TRUE(kept.all().empty());
}

TEST(KeptMemoryTest, UsersAndProcessesThatUseAPidAgainAreApart) {
  KeptMemory kept;
  kept.Add(kUid, {{1, 5}}, 100);
  kept.Add(kUid + 1, {{1, 5}}, 200);
  kept.ProcessGone(kUid, {1, 6});
  kept.ProcessGone(kUid + 2, {1, 5});
  EXPECT_EQ(kept.bytes(kUid), 100u);
  kept.ProcessGone(kUid, {1, 5});
  EXPECT_EQ(kept.bytes(kUid), 0u);
  EXPECT_EQ(kept.bytes(kUid + 1), 200u);
}

TEST(KeptMemoryTest, WhatNobodyHoldsOrIsNothingDoesNotCount) {
  KeptMemory kept;
  kept.Add(kUid, {}, 100);
  kept.Add(kUid, {{1, 5}}, 0);
  EXPECT_TRUE(kept.all().empty());
}

TEST(KeptMemoryTest, TheSameHoldersAgainTakeNoMorePlace) {
  KeptMemory kept;
  for (int i = 0; i < 10000; ++i) kept.Add(kUid, {{1, 5}, {2, 5}}, 1);
  EXPECT_EQ(kept.all().at(kUid).size(), 1u);
  EXPECT_EQ(kept.bytes(kUid), 10000u);
}

TEST(KeptMemoryTest, ManyDifferentHoldersAreBoundedAndNothingIsLost) {
  KeptMemory kept;
  for (int64_t pid = 1; pid <= 1000; ++pid) kept.Add(kUid, {{pid, 5}}, 1);
  EXPECT_EQ(kept.all().at(kUid).size(), KeptMemory::kMaxPartsPerUid);
  EXPECT_EQ(kept.bytes(kUid), 1000u);
  for (int64_t pid = 1; pid < 1000; ++pid) {
    EXPECT_TRUE(kept.Holds(kUid, {pid, 5}));
    kept.ProcessGone(kUid, {pid, 5});
  }
  EXPECT_GT(kept.bytes(kUid), 0u);
  kept.ProcessGone(kUid, {1000, 5});
  EXPECT_EQ(kept.bytes(kUid), 0u);
}

TEST(KeptMemoryTest, NamesSomeHolders) {
  KeptMemory kept;
  EXPECT_EQ(kept.Holders(kUid), "");
  kept.Add(kUid, {{1, 5}, {2, 5}}, 1);
  EXPECT_EQ(kept.Holders(kUid), "pid 1, pid 2");
  kept.Add(kUid, {{3, 5}, {4, 5}, {5, 5}, {6, 5}}, 1);
  EXPECT_EQ(kept.Holders(kUid), "pid 1, pid 2, pid 3, pid 4 and 2 more");
}

}  // namespace
}  // namespace iris::server
