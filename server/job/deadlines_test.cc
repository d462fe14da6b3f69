#include "server/job/deadlines.h"

#include "gtest/gtest.h"

namespace iris::server {
namespace {

DeadlineKey Key(uint32_t index) { return {JobId{1}, DeadlineKey::Kind::kJoin, index}; }
absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(DeadlineQueue, EmptyIsNeverDue) {
  DeadlineQueue queue;
  EXPECT_EQ(queue.Next(), absl::InfiniteFuture());
  EXPECT_FALSE(queue.PopDue(absl::InfiniteFuture()).has_value());
}

TEST(DeadlineQueue, PopsInOrderAndOnlyWhatIsDue) {
  DeadlineQueue queue;
  queue.Set(Key(1), At(20));
  queue.Set(Key(2), At(10));
  EXPECT_EQ(queue.Next(), At(10));
  EXPECT_FALSE(queue.PopDue(At(9)).has_value());
  EXPECT_EQ(queue.PopDue(At(10)), Key(2));
  EXPECT_FALSE(queue.PopDue(At(19)).has_value());
  EXPECT_EQ(queue.PopDue(At(30)), Key(1));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(DeadlineQueue, SettingAgainReplaces) {
  DeadlineQueue queue;
  queue.Set(Key(1), At(10));
  queue.Set(Key(1), At(20));
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.Get(Key(1)), At(20));
  EXPECT_FALSE(queue.PopDue(At(15)).has_value());
}

TEST(DeadlineQueue, ClearForgets) {
  DeadlineQueue queue;
  queue.Set(Key(1), At(10));
  queue.Clear(Key(1));
  queue.Clear(Key(2));
  EXPECT_EQ(queue.Next(), absl::InfiniteFuture());
  EXPECT_FALSE(queue.Get(Key(1)).has_value());
}

TEST(DeadlineQueue, EqualTimesAreKeptApart) {
  DeadlineQueue queue;
  queue.Set(Key(1), At(10));
  queue.Set(Key(2), At(10));
  EXPECT_EQ(queue.PopDue(At(10)), Key(1));
  EXPECT_EQ(queue.PopDue(At(10)), Key(2));
}

}  // namespace
}  // namespace iris::server
