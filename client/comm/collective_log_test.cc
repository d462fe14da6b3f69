#include "client/comm/collective_log.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace iris::internal {
namespace {

using ccl::Operation;

CollectiveLog::Communicator Of(uint64_t offset_bytes, uint32_t n_members = 4) {
  return {.team_id = 3,
          .n_members = n_members,
          .workspace_offset_bytes = offset_bytes,
          .finished_at = 4,
          .waiting_at = 16};
}

TEST(CollectiveLogTest, TellsTheLastOperations) {
  wire::ControlPage page = {};
  CollectiveLog log(&page, Of(4096));
  const wire::CollectiveRecord& record = page.collectives[0];
  EXPECT_EQ(record.team_id, 3u);
  EXPECT_EQ(record.n_members, 4u);
  EXPECT_EQ(record.workspace_offset_bytes, 4096u);
  EXPECT_EQ(record.n_put, 0u);
  for (uint32_t i = 0; i < 7; ++i) log.Put(Operation::kAllReduce, 100 + i, 1);
  log.Put(Operation::kBroadcast, 5, 2);
  EXPECT_EQ(record.n_put, 8u);
  EXPECT_EQ(record.last[6 % wire::kCollectiveEntries].count, 106u);
  const wire::CollectiveEntry& last = record.last[7 % wire::kCollectiveEntries];
  EXPECT_EQ(last.count, 5u);
  EXPECT_EQ(last.call, static_cast<uint8_t>(Operation::kBroadcast));
  EXPECT_EQ(last.dtype, 2);
  EXPECT_NE(last.put_ms, 0u);
  EXPECT_EQ(record.version % 2, 0u);
  log.Clear();
  EXPECT_EQ(record.n_put, 0u);
}

TEST(CollectiveLogTest, GivesItsRecordBack) {
  wire::ControlPage page = {};
  {
    CollectiveLog first(&page, Of(4096));
    CollectiveLog moved = std::move(first);
    CollectiveLog second(&page, Of(8192));
    EXPECT_EQ(page.collectives[0].workspace_offset_bytes, 4096u);
    EXPECT_EQ(page.collectives[1].workspace_offset_bytes, 8192u);
    moved.Close();
    EXPECT_EQ(page.collectives[0].n_members, 0u);
    CollectiveLog third(&page, Of(12288));
    EXPECT_EQ(page.collectives[0].workspace_offset_bytes, 12288u);
  }
  for (const wire::CollectiveRecord& record : page.collectives) EXPECT_EQ(record.n_members, 0u);
}

TEST(CollectiveLogTest, WhatDoesNotFitIsNotTold) {
  wire::ControlPage page = {};
  std::vector<CollectiveLog> logs;
  for (uint32_t i = 0; i < wire::kCollectiveRecords + 2; ++i)
    logs.emplace_back(&page, Of(i * 4096));
  for (CollectiveLog& log : logs) log.Put(Operation::kBarrier, 0, 0);
  for (const wire::CollectiveRecord& record : page.collectives) EXPECT_EQ(record.n_put, 1u);
  EXPECT_EQ(page.kernel_waits[0].state, 0u);  // what follows the records
}

TEST(CollectiveLogTest, OfOneMemberTellsNothing) {
  wire::ControlPage page = {};
  CollectiveLog log(&page, Of(4096, 1));
  log.Put(Operation::kAllReduce, 1, 1);
  log.Forget();
  EXPECT_EQ(page.collectives[0].n_members, 0u);
  EXPECT_EQ(page.collectives[0].n_put, 0u);
}

}  // namespace
}  // namespace iris::internal
