#include "server/events/event_log.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace iris::server {
namespace {

class Collector : public EventFollower {
 public:
  void Push(const EventRecord& event) override { sequences.push_back(event.sequence); }
  void End() override { ++ends; }
  int ends = 0;
  std::vector<uint64_t> sequences;
};

TEST(EventLogTest, NumbersEventsFromOne) {
  EventLog log;
  log.Add({});
  log.Add({});
  const auto reader = std::make_shared<Collector>();
  log.Read(reader, false);
  EXPECT_EQ(reader->sequences, (std::vector<uint64_t>{1, 2}));
}

TEST(EventLogTest, KeepsTheLastThousandTwentyFour) {
  EventLog log;
  for (size_t i = 0; i < kEventsKept + 10; ++i) log.Add({});
  const auto reader = std::make_shared<Collector>();
  log.Read(reader, false);
  ASSERT_EQ(reader->sequences.size(), kEventsKept);
  EXPECT_EQ(reader->sequences.front(), 11u);
}

TEST(EventLogTest, WhoMakesManyPushesOutHisOwn) {
  EventLog log;
  EventRecord rare, frequent;
  rare.party = {1000};
  frequent.party = {1001};
  for (int i = 0; i < 3; ++i) log.Add(rare);
  for (size_t i = 0; i < 5 * kEventsKept; ++i) log.Add(frequent);
  const auto reader = std::make_shared<Collector>();
  log.Read(reader, false);
  ASSERT_EQ(reader->sequences.size(), kEventsKept);
  EXPECT_EQ((std::vector<uint64_t>(reader->sequences.begin(), reader->sequences.begin() + 3)),
            (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(reader->sequences.back(), 5 * kEventsKept + 3);
}

TEST(EventLogTest, OnlyFollowersGetLaterEvents) {
  EventLog log;
  const auto once = std::make_shared<Collector>();
  const auto always = std::make_shared<Collector>();
  log.Read(once, false);
  log.Read(always, true);
  log.Add({});
  EXPECT_TRUE(once->sequences.empty());
  EXPECT_EQ(always->sequences, std::vector<uint64_t>{1});
}

TEST(EventLogTest, AfterUnfollowNothingComes) {
  EventLog log;
  const auto a = std::make_shared<Collector>();
  const auto b = std::make_shared<Collector>();
  log.Read(a, true);
  log.Read(b, true);
  log.Unfollow(a.get());
  log.Unfollow(a.get());
  log.Add({});
  EXPECT_TRUE(a->sequences.empty());
  EXPECT_EQ(b->sequences.size(), 1u);
}

TEST(EventLogTest, CloseEndsFollowersOnceAndLaterOnesAtOnce) {
  EventLog log;
  const auto early = std::make_shared<Collector>();
  const auto late = std::make_shared<Collector>();
  const auto once = std::make_shared<Collector>();
  log.Read(early, true);
  log.Close();
  log.Add({});
  log.Read(late, true);
  log.Read(once, false);
  EXPECT_EQ(early->ends, 1);
  EXPECT_TRUE(early->sequences.empty());
  EXPECT_EQ(late->ends, 1);
  EXPECT_EQ(late->sequences.size(), 1u);
  EXPECT_EQ(once->ends, 0);
}

}  // namespace
}  // namespace iris::server
