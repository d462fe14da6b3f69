#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/views.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
constexpr int64_t kMinuteAgoMs = (1'000'000 - 60) * 1000ll;

struct Listings {
  v1::DescribeJobsReply reply;
  std::vector<v1::Event> events;

  std::vector<JobDescription> Describe() const { return ctl::Describe(reply, events); }

  // A job of two ranks; the second has no heap and no session yet.
  void AddJob(uint64_t job_id, uint32_t uid) {
    v1::JobDescription* at = reply.add_jobs();
    at->set_last_event(~uint64_t{0});
    v1::Job* job = at->mutable_job();
    job->set_job_id(job_id);
    job->set_job("train");
    job->set_uid(uid);
    job->set_state(v1::JOB_STATE_FORMING);
    job->set_n_ranks(2);
    job->set_n_teams(2);
    job->set_n_allocations(2);
    job->set_heap_bytes(64 << 20);
    job->set_created_unix_ms(kMinuteAgoMs);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::JobRank* entry = job->add_ranks();
      entry->set_rank(rank);
      entry->set_pid(100 + rank);
      entry->set_state(v1::RANK_STATE_READY);
      entry->set_session_id(job_id * 10 + rank);
    }
    v1::Heap* heap = at->add_heaps();
    heap->set_job_id(job_id);
    heap->set_heap_bytes(uint64_t{job_id} << 20);
    v1::Session* session = at->add_sessions();
    session->set_session_id(job_id * 10);
    session->set_command(absl::StrCat("./train --of ", job_id));
    AddAllocation("weights", 0);
    AddAllocation("iris.sync.3", 0);
  }
  // Adds to the last job.
  void AddAllocation(const char* name, uint32_t team_id) {
    v1::Allocation* allocation = reply.mutable_jobs()->rbegin()->add_allocations();
    allocation->set_name(name);
    allocation->set_team_id(team_id);
    allocation->set_bytes(1536);
    allocation->set_created_unix_ms(kMinuteAgoMs);
  }
  void AddEvent(const char* job, int64_t time_unix_ms, const std::string& text) {
    v1::Event event;
    event.set_job(job);
    event.set_kind("allocated");
    event.set_rank(-1);
    event.set_time_unix_ms(time_unix_ms);
    event.set_text(text);
    events.push_back(event);
  }
};

TEST(DescribeTest, EventsOfAnEarlierJobOfThatNameAreNotItsOwn) {
  Listings all;
  all.AddJob(1, 0);
  all.AddEvent("train", kMinuteAgoMs - 1, "before");
  all.AddEvent("other", kMinuteAgoMs + 1, "another's");
  all.AddEvent("train", kMinuteAgoMs, "own");
  const auto descriptions = all.Describe();
  ASSERT_EQ(descriptions[0].events.size(), 1u);
  EXPECT_EQ(descriptions[0].events[0].text(), "own");
}

TEST(DescribeTest, EventsAfterTheMomentAreLeftOut) {
  Listings all;
  all.AddJob(1, 0);
  for (uint64_t sequence : {7, 8}) {
    all.AddEvent("train", kMinuteAgoMs, absl::StrCat("<", sequence, ">"));
    all.events.back().set_sequence(sequence);
  }
  all.reply.mutable_jobs(0)->set_last_event(7);
  const auto descriptions = all.Describe();
  ASSERT_EQ(descriptions[0].events.size(), 1u);
  EXPECT_EQ(descriptions[0].events[0].text(), "<7>");
}

TEST(DescribeTest, SaysHowManyAllocationsAreNotShown) {
  Listings all;
  all.AddJob(1, 0);
  all.reply.mutable_jobs(0)->mutable_job()->set_n_allocations(5000);
  EXPECT_THAT(DescriptionText(all.Describe()[0], kNow, 0),
              HasSubstr("\nAllocations (the first 2 of 5000):\n"));
}

TEST(DescribeTest, Text) {
  Listings all;
  all.AddJob(1, 0);
  all.AddEvent("train", kMinuteAgoMs, "team=0");
  const std::string text = DescriptionText(all.Describe()[0], kNow, 0);
  EXPECT_THAT(text, HasSubstr("Name:           train\n"
                              "State:          forming\n"
                              "User:           root (uid 0)\n"));
  EXPECT_THAT(text, HasSubstr(", 1m 0s ago\n"
                              "Ranks:          2: 2 ready\n"
                              "Heap per rank:  64 MiB, 0 B in 2 allocations\n"
                              "Same address:   no\n"
                              "Teams:          2: team 0 with 1 allocation, team 3 with 0\n"));
  EXPECT_THAT(text, HasSubstr("\nRanks:\n  RANK  STATE  PID  DEVICE   HEAP  MAX"));
  EXPECT_THAT(text, ContainsRegex("\n     0  ready  100  -       1 MiB  0 B .* 10  ./train --of 1\n"
                                  "     1  ready  101  -           -    - .* 11  -\n"));
  EXPECT_THAT(text, HasSubstr("\nAllocations:\n  NAME         OFFSET      SIZE"));
  EXPECT_THAT(text, HasSubstr("\nEvents:\n    AGE  EVENT      RANK  PID  TEXT\n"
                              "  1m 0s  allocated     -    -  team=0\n"));
}

TEST(DescribeTest, RanksOnOtherNodesAreShownWithTheirNode) {
  Listings all;
  all.AddJob(1, 0);
  v1::JobRank* rank = all.reply.mutable_jobs(0)->mutable_job()->mutable_ranks(1);
  rank->set_node("host-b\n");
  EXPECT_THAT(DescriptionText(all.Describe()[0], kNow, 0),
              ContainsRegex("\n     0  ready +100 .*\n"
                            "     1  ready on host-b\\\\n +101"));
  EXPECT_EQ(DescriptionJson(all.Describe()[0])["ranks"][0]["node"], nullptr);
  rank->set_node("");
  rank->set_state(v1::RANK_STATE_UNSPECIFIED);
  EXPECT_THAT(DescriptionText(all.Describe()[0], kNow, 0), HasSubstr("unknown on another node"));
}

TEST(DescribeTest, WhatARankAllocatedAloneIsNoTeams) {
  Listings all;
  all.AddJob(1, 0);
  v1::Allocation* own = all.reply.mutable_jobs(0)->add_allocations();
  own->set_name("inbox");
  own->set_team_id(0xFFFF0001u);
  own->set_owner(1);
  EXPECT_THAT(DescriptionText(all.Describe()[0], kNow, 0),
              HasSubstr("team 0 with 1 allocation, team 3 with 0, rank 1 alone with 1\n"));
}

TEST(DescribeTest, SaysWhatThereIsNoneOf) {
  Listings all;
  all.reply.add_jobs()->mutable_job()->set_job("empty");
  const std::string text = DescriptionText(all.Describe()[0], kNow, 0);
  EXPECT_THAT(text, HasSubstr("\nRanks: none has joined\n"));
  EXPECT_THAT(text, HasSubstr("\nAllocations: none\n"));
  EXPECT_THAT(text, HasSubstr("\nEvents: none that irisd still has\n"));
}

TEST(DescribeTest, OfManyEventsTheLastAreInTheTextAndAllInJson) {
  Listings all;
  all.AddJob(1, 0);
  for (int i = 0; i < 25; ++i) all.AddEvent("train", kMinuteAgoMs + i, absl::StrCat("<", i, ">"));
  const JobDescription description = all.Describe()[0];
  const std::string text = DescriptionText(description, kNow, 0);
  EXPECT_THAT(text, HasSubstr("Events (the last 20 of 25):"));
  EXPECT_THAT(text, Not(HasSubstr("<4>")));
  EXPECT_THAT(text, HasSubstr("<5>"));
  EXPECT_THAT(text, HasSubstr("<24>"));
  EXPECT_EQ(DescriptionJson(description)["events"].size(), 25u);
}

TEST(DescribeTest, OnANarrowTerminalCommandsAreCutAndNamesAreNot) {
  Listings all;
  all.AddJob(1, 0);
  all.reply.mutable_jobs(0)->mutable_sessions(0)->set_command(std::string(300, 'x'));
  all.AddAllocation("a.name.that.is.longer.than.the.terminal.is.wide", 0);
  const std::string text = DescriptionText(all.Describe()[0], kNow, 40);
  EXPECT_THAT(text, Not(HasSubstr(std::string(300, 'x'))));
  EXPECT_THAT(text, HasSubstr("xxxxxx..\n"));
  EXPECT_THAT(text, HasSubstr("  a.name.that.is.longer.than.the.terminal.is.wide  "));
  EXPECT_THAT(DescriptionText(all.Describe()[0], kNow, 0), HasSubstr(std::string(300, 'x')));
}

TEST(DescribeTest, JsonHasEverythingOfARankTogether) {
  Listings all;
  all.AddJob(7, 0);
  const auto json = DescriptionJson(all.Describe()[0]);
  EXPECT_EQ(json["job"], "train");
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][0]["pid"], 100);
  EXPECT_EQ(json["ranks"][0]["heap_bytes"], 7 << 20);
  EXPECT_EQ(json["ranks"][0]["command"], "./train --of 7");
  EXPECT_EQ(json["ranks"][1].count("heap_bytes"), 0u);
  EXPECT_EQ(json["ranks"][1]["command"], "");
  EXPECT_EQ(json["allocations"][0]["name"], "weights");
  EXPECT_EQ(json["allocations"][0]["bytes"], 1536);
}

}  // namespace
}  // namespace iris::ctl
