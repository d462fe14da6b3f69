#include "server/host/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"

namespace iris::server {
namespace {

TEST(WorkerPoolTest, RunsWhatIsPosted) {
  WorkerPool pool(2);
  absl::Notification ran;
  pool.Post([&ran] { ran.Notify(); });
  ran.WaitForNotification();
}

TEST(WorkerPoolTest, OneStuckTaskDoesNotHoldUpAnother) {
  absl::Notification release, ran;
  WorkerPool pool(2);
  pool.Post([&release] { release.WaitForNotification(); });
  pool.Post([&ran] { ran.Notify(); });
  ran.WaitForNotification();
  release.Notify();
}

TEST(WorkerPoolTest, StopFinishesWhatWasPosted) {
  std::atomic<int> n{0};
  WorkerPool pool(1);
  for (int i = 0; i < 100; ++i) pool.Post([&n] { ++n; });
  pool.Stop();
  EXPECT_EQ(n, 100);
}

TEST(WorkerPoolTest, WorkPostedAfterStopIsDestroyed) {
  WorkerPool pool(1);
  pool.Stop();
  auto held = std::make_shared<int>(1);
  pool.Post([held] {});
  EXPECT_EQ(held.use_count(), 1);
  pool.Stop();
}

TEST(WorkerPoolTest, TasksMayPostTasks) {
  absl::Notification ran;
  WorkerPool pool(1);
  pool.Post([&pool, &ran] { pool.Post([&ran] { ran.Notify(); }); });
  ran.WaitForNotification();
}

}  // namespace
}  // namespace iris::server
