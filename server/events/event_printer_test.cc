// Lines of the log come in the order of the events, whichever threads the events happened on.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/events/event_log.h"

namespace iris::server {
namespace {

TEST(EventPrinterTest, KeepsTheOrderOfManyThreads) {
  constexpr int kThreads = 8, kEach = 200;
  const Logger logger(LogLevel::kInfo, LogFormat::kKeyValue);
  EventPrinter printer(&logger);
  absl::Mutex mu;  // as the daemon's: events happen under it
  int next = 0;
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        {
          absl::MutexLock lock(&mu);
          EventRecord event;
          event.kind = "job_ended";
          event.text = absl::StrCat("n", next++, ".");
          printer.Push(event);
        }
        std::this_thread::yield();
        printer.Print();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(logger.Flush(absl::Seconds(60)));
  std::istringstream log(testing::internal::GetCapturedStderr());
  int n = 0;
  for (std::string line; std::getline(log, line); ++n) {
    ASSERT_TRUE(absl::StrContains(line, absl::StrCat("n", n, "."))) << n << ": " << line;
  }
  EXPECT_EQ(n, kThreads * kEach);
}

TEST(EventPrinterTest, OneUsersFloodIsBoundedAndSaidAndAnothersEventsAreWritten) {
  const Logger logger(LogLevel::kInfo, LogFormat::kKeyValue);
  EventPrinter printer(&logger);
  testing::internal::CaptureStderr();
  EventRecord event;
  event.kind = "job_forming";
  event.party = {1000};
  for (int i = 0; i < 100'000; ++i) printer.Push(event);
  event.party = {1001};
  printer.Push(event);
  printer.Print();
  event.party = {1000};
  event.time += absl::Seconds(1);
  printer.Push(event);
  printer.Print();
  ASSERT_TRUE(logger.Flush(absl::Seconds(60)));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LT(log.size(), 512u << 10);
  EXPECT_TRUE(absl::StrContains(log, "uid=1001")) << log.substr(log.size() - 1000);
  EXPECT_TRUE(absl::StrContains(log, "left out of the log\" uid=1000 lines=98000"))
      << log.substr(log.size() - 1000);
}

TEST(EventPrinterTest, SeverityIsTheLevel) {
  const Logger logger(LogLevel::kInfo, LogFormat::kKeyValue);
  EventPrinter printer(&logger);
  testing::internal::CaptureStderr();
  for (const EventDetail& detail : {EventDetail(event::Allocated{}), EventDetail(event::JobEnded{}),
                                    EventDetail(event::JobBroken{"rank 1 (pid 7) died"})}) {
    printer.Push(Render({.job = "train", .detail = detail}, absl::UnixEpoch()));
  }
  printer.Print();
  ASSERT_TRUE(logger.Flush(absl::Seconds(60)));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(absl::StrContains(log, "kind=allocated")) << log;  // it happens often
  EXPECT_TRUE(absl::StrContains(log, "level=info msg=\"event\" kind=job_ended job=train")) << log;
  EXPECT_TRUE(absl::StrContains(log, "level=warning msg=\"event\" kind=job_broken")) << log;
}

}  // namespace
}  // namespace iris::server
