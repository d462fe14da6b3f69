#include "client/trace/trace_json.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "nlohmann/json.hpp"

namespace iris::internal {
namespace {

using Json = nlohmann::json;

TraceEvent Event(TraceOp op, uint64_t start_ns, uint64_t end_ns) {
  TraceEvent event = {};
  event.op = static_cast<uint16_t>(op);
  event.peer = kNoTracePeer;
  event.start_ns = start_ns;
  event.end_ns = end_ns;
  return event;
}

// The boxes of a trace of one rank whose clock is the host's.
std::vector<Json> Boxes(const std::vector<TraceEvent>& events) {
  TraceFile file;
  RankTrace rank;
  rank.events = events;
  rank.first = rank.last = {1000, 1000, 0};
  file.ranks.push_back(rank);
  const Json json = Json::parse(TraceJson(file));
  std::vector<Json> boxes;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "X") boxes.push_back(event);
  }
  return boxes;
}

TEST(HostTimeTest, MovesByTheOffset) {
  const ClockSample sample = {5000, 105000, 10};
  EXPECT_EQ(HostTime(5000, sample, sample), 105000u);
  EXPECT_EQ(HostTime(7000, sample, sample), 107000u);
  EXPECT_EQ(HostTime(4000, sample, sample), 104000u);
}

TEST(HostTimeTest, FollowsTheDriftBetweenTheSamplesAndBeyond) {
  // The host's clock runs a tenth faster.
  const ClockSample first = {1000000000, 50000000000, 10};
  const ClockSample last = {2000000000, 51100000000, 10};
  EXPECT_EQ(HostTime(1000000000, first, last), 50000000000u);
  EXPECT_EQ(HostTime(1500000000, first, last), 50550000000u);
  EXPECT_EQ(HostTime(2000000000, first, last), 51100000000u);
  EXPECT_EQ(HostTime(3000000000, first, last), 52200000000u);
  EXPECT_EQ(HostTime(900000000, first, last), 49890000000u);
}

TEST(HostTimeTest, SamplesThatAreCloseSayNothingOfTheDrift) {
  EXPECT_EQ(HostTime(1500, {1000, 9000, 100}, {1100, 9300, 100}), 9500u);
}

TEST(TraceJsonTest, ACollectiveHasItsRoundsInside) {
  TraceEvent event = Event(static_cast<TraceOp>(static_cast<uint32_t>(TraceOp::kCollective) +
                                                static_cast<uint32_t>(ccl::Operation::kAllReduce)),
                           2000, 5000);
  event.bytes = 100;
  event.detail =
      static_cast<uint64_t>(ccl::Operation::kAllReduce) | static_cast<uint64_t>(DType::kF32) << 8;
  event.first_ns = 500;
  event.last_ns = 2500;
  event.wait_ns = 1001;
  event.number = 3;
  event.block = 2;
  const std::vector<Json> boxes = Boxes({event});
  ASSERT_EQ(boxes.size(), 3u);
  EXPECT_EQ(boxes[0]["name"], "all_reduce");
  EXPECT_EQ(boxes[0]["cat"], "collective");
  EXPECT_DOUBLE_EQ(boxes[0]["ts"], 1.0);
  EXPECT_DOUBLE_EQ(boxes[0]["dur"], 3.0);
  EXPECT_EQ(boxes[0]["args"], Json({{"number", 3},
                                    {"elements", 100},
                                    {"dtype", "f32"},
                                    {"bytes", 400},
                                    {"wait_us", 1.001},
                                    {"block", 2},
                                    {"multiprocessor", 0}}));
  EXPECT_EQ(boxes[1]["name"], "first round");
  EXPECT_DOUBLE_EQ(boxes[1]["dur"], 0.5);
  EXPECT_EQ(boxes[2]["name"], "last round");
  EXPECT_DOUBLE_EQ(boxes[2]["ts"], 3.5);
}

TEST(TraceJsonTest, WhatOverlapsGetsARowOfItsOwn) {
  // In a block: a, b inside a, c next to b, and d, which begins in a and ends after it.
  const std::vector<Json> boxes =
      Boxes({Event(TraceOp::kUser, 2000, 5000), Event(TraceOp::kPut, 2000, 3000),
             Event(TraceOp::kGet, 3000, 5000), Event(TraceOp::kWait, 4000, 6000)});
  ASSERT_EQ(boxes.size(), 4u);
  EXPECT_EQ(boxes[0]["tid"], boxes[1]["tid"]);
  EXPECT_EQ(boxes[0]["tid"], boxes[2]["tid"]);
  EXPECT_EQ(boxes[3]["name"], "wait");
  EXPECT_NE(boxes[0]["tid"], boxes[3]["tid"]);
}

TEST(TraceJsonTest, SaysWhoseClockIsHowGoodAndWhatWasDropped) {
  TraceFile file;
  file.job = "a \"job\"\n\xc3";
  RankTrace rank;
  rank.rank = 3;
  rank.pid = 4711;
  rank.capacity = 10;
  rank.dropped = 5;
  rank.host_dropped = 2;
  rank.unfinished = 1;
  rank.first = {1000, 9000, 1500};
  rank.last = {1000, 9000, 700};
  file.ranks.push_back(rank);
  TraceMark mark;
  mark.host_ns = 10000;
  mark.name = "rank_dead";
  mark.text = "killed";
  mark.rank = 3;
  file.marks.push_back(mark);
  const Json json = Json::parse(TraceJson(file));
  EXPECT_EQ(json["otherData"]["origin_ns"], "9000");
  const Json& told = json["otherData"]["ranks"][0];
  EXPECT_EQ(told["rank"], 3);
  EXPECT_EQ(told["pid"], 4711);
  EXPECT_EQ(told["dropped"], 7);
  EXPECT_EQ(told["unfinished"], 1);
  EXPECT_DOUBLE_EQ(told["clock_error_us"], 1.5);
  EXPECT_EQ(told["clock_offset_ns"], 8000);
  const Json& last = json["traceEvents"].back();
  EXPECT_EQ(last["ph"], "i");
  EXPECT_EQ(last["name"], "rank_dead");
  EXPECT_DOUBLE_EQ(last["ts"], 1.0);
}

TEST(TraceJsonTest, NumbersThatNobodyKnowsAreToldAsSuch) {
  const std::vector<Json> boxes = Boxes({Event(static_cast<TraceOp>(50), 2000, 2001),
                                         Event(static_cast<TraceOp>(100), 2000, 2001),
                                         Event(static_cast<TraceOp>(500), 2000, 2001)});
  ASSERT_EQ(boxes.size(), 3u);
  for (const Json& box : boxes) EXPECT_EQ(box["name"], "unknown");
}

TEST(TraceJsonTest, RoundsBeyondTheEndStayInside) {
  TraceEvent event = Event(static_cast<TraceOp>(static_cast<uint32_t>(TraceOp::kCollective) +
                                                static_cast<uint32_t>(ccl::Operation::kAllReduce)),
                           2000, 5000);
  event.first_ns = event.wait_ns = ~uint32_t{0};
  for (const uint32_t last : {1u, 2000u, ~0u}) {
    event.last_ns = last;
    for (const Json& box : Boxes({event})) {
      EXPECT_GE(box["ts"], 1.0);
      EXPECT_LE(box["ts"].get<double>() + box["dur"].get<double>(), 4.0) << box;
    }
  }
}

TEST(TraceJsonTest, SpansOfTheProgramHaveNames) {
  TraceFile file;
  RankTrace rank;
  rank.first = rank.last = {1000, 1000, 0};
  rank.names = {"forward", "\xc3\xa9 \xf0\x9f\x98\x80 \xff\""};
  for (const uint64_t name : {0, 1, 2}) {
    rank.host_events.push_back(
        Event(static_cast<TraceOp>(static_cast<uint32_t>(TraceOp::kHost) +
                                   static_cast<uint32_t>(TraceHostCall::kSpan)),
              1000 + name, 2000 + name));
    rank.host_events.back().detail = name;
  }
  file.ranks.push_back(rank);
  const Json json = Json::parse(TraceJson(file));
  std::vector<std::string> names;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "X") names.push_back(event["name"]);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names,
            (std::vector<std::string>{"forward", "span", "\xc3\xa9 \xf0\x9f\x98\x80 \xc3\xbf\""}));
}

TEST(TraceJsonTest, AnEmptyTraceIsAFileToo) {
  EXPECT_TRUE(Json::parse(TraceJson({}))["traceEvents"].empty());
}

}  // namespace
}  // namespace iris::internal
