#include "client/trace/trace_merge.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "client/base/whole_file.h"
#include "client/trace/trace_json.h"
#include "nlohmann/json.hpp"

namespace iris::internal {
namespace {

using Json = nlohmann::json;

TraceFile FileOf(uint32_t rank, uint64_t origin_ns) {
  TraceFile file;
  file.job = "job";
  file.host = "here";
  RankTrace trace;
  trace.rank = rank;
  trace.first = trace.last = {origin_ns, origin_ns, 0};
  TraceEvent event = {};
  event.op = static_cast<uint16_t>(TraceOp::kUser);
  event.detail = rank;
  event.peer = kNoTracePeer;
  event.start_ns = origin_ns + 1001;
  event.end_ns = origin_ns + 2003;
  trace.events.push_back(event);
  file.ranks.push_back(trace);
  return file;
}

TraceMark MarkAt(uint64_t host_ns) {
  TraceMark mark;
  mark.host_ns = host_ns;
  mark.name = "allocated";
  mark.text = "\xc3\xa9";
  return mark;
}

TraceText TextOf(const char* name, const TraceFile& file) { return {name, TraceJson(file)}; }

TEST(TraceMergeTest, MovesEachFileToTheEarliestOrigin) {
  const auto merged = MergeTraces(
      {TextOf("b", FileOf(1, 5'000'000'000'123)), TextOf("a", FileOf(0, 5'000'000'000))});
  ASSERT_TRUE(merged.ok()) << merged.status();
  const Json json = Json::parse(merged->json);
  EXPECT_EQ(json["otherData"]["origin_ns"], "5000000000");
  ASSERT_EQ(json["otherData"]["ranks"].size(), 2u);
  EXPECT_EQ(json["otherData"]["ranks"][0]["rank"], 0);
  EXPECT_EQ(json["otherData"]["ranks"][1]["rank"], 1);
  int boxes = 0;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++boxes;
    EXPECT_DOUBLE_EQ(event["dur"], 1.002);
    EXPECT_DOUBLE_EQ(event["ts"], event["pid"] == 0 ? 1.001 : 4'995'000'001.124);
  }
  EXPECT_EQ(boxes, 2);
}

TEST(TraceMergeTest, OneFileStaysWhatItIsAndAMergedOneIsAFile) {
  const TraceText one = TextOf("a", FileOf(0, 1000));
  const auto again = MergeTraces({one});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(Json::parse(again->json), Json::parse(one.json));
  const auto merged =
      MergeTraces({{"m", again->json}, TextOf("b", FileOf(1, 3000)), TextOf("c", FileOf(2, 2000))});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(Json::parse(merged->json)["otherData"]["ranks"].size(), 3u);
}

TEST(TraceMergeTest, TakesTheEventsOfIrisdOnce) {
  TraceFile a = FileOf(0, 1000), b = FileOf(1, 2000);
  a.marks = {MarkAt(1500)};
  b.marks = {MarkAt(2500), MarkAt(3500)};
  b.marks_error_ns = 1'000'000;
  const auto merged = MergeTraces({TextOf("a", a), TextOf("b", b)});
  ASSERT_TRUE(merged.ok());
  for (const char c : merged->json) EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 0x7f));
  const Json json = Json::parse(merged->json);
  std::vector<double> marks;
  int named = 0;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "i") {
      marks.push_back(event["ts"]);
      EXPECT_EQ(event["args"]["text"], "\xc3\xa9");
    }
    if (event["ph"] == "M" && event["args"]["name"] == "irisd") ++named;
  }
  EXPECT_EQ(marks, (std::vector<double>{1.5, 2.5}));
  EXPECT_EQ(named, 1);
  EXPECT_DOUBLE_EQ(json["otherData"]["irisd_error_us"], 1000);
}

// A file of a node whose clock is `ahead_ns` before the leader's at the beginning, which is its
// time `origin_ns`, and 10 us more after a second.
TraceFile FileOfNode(uint32_t node, uint64_t origin_ns, int64_t ahead_ns, uint64_t error_ns) {
  TraceFile file = FileOf(node, origin_ns);
  const uint64_t leader_ns = origin_ns - static_cast<uint64_t>(ahead_ns);
  constexpr uint64_t kSecond = 1'000'000'000;
  file.node = TraceNode{node, "host", 77, ClockSample{origin_ns, leader_ns, error_ns},
                        ClockSample{origin_ns + kSecond, leader_ns + kSecond - 10'000, 5000}};
  if (node == 0) file.node->first = file.node->last = ClockSample{origin_ns, origin_ns, 0};
  return file;
}

TEST(TraceMergeTest, ConvertsTheTimesOfNodesToTheLeadersClock) {
  TraceFile leader = FileOfNode(0, 9'000'000'000, 0, 0);
  // Its clock began two hours earlier, and another boot has another name.
  constexpr int64_t kAhead = 7'200'000'000'000;
  TraceFile other = FileOfNode(2, 7'209'000'000'000, kAhead, 20'000);
  other.host = "there";
  TraceEvent& event = other.ranks[0].events[0];
  event.start_ns = 7'209'500'000'000;  // in the middle
  event.end_ns = event.start_ns + 100'000'000;
  leader.marks = {MarkAt(9'000'000'500)};
  other.marks = {MarkAt(7'209'000'000'500), MarkAt(7'209'000'000'600)};
  const auto merged = MergeTraces({TextOf("b", other), TextOf("a", leader)});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->nodes_error_us, 20.0);
  const Json json = Json::parse(merged->json);
  EXPECT_EQ(json["otherData"]["host"], "here");
  EXPECT_EQ(json["otherData"]["origin_ns"], "9000000000");
  EXPECT_EQ(json["otherData"]["nodes"].size(), 2u);
  EXPECT_EQ(json["otherData"]["nodes"][0]["clock_error_us"], 0);
  EXPECT_EQ(json["otherData"]["nodes"][1]["clock_error_us"], 20);
  std::map<int, int> marks;
  for (const Json& each : json["traceEvents"]) {
    if (each["ph"] == "i") ++marks[each["pid"].get<int>() - static_cast<int>(kIrisdProcess)];
    if (each["ph"] != "X" || each["pid"] != 2) continue;
    EXPECT_DOUBLE_EQ(each["ts"], 499'995);
    EXPECT_DOUBLE_EQ(each["dur"], 99'999);
  }
  EXPECT_EQ(marks, (std::map<int, int>{{0, 1}, {2, 2}}));
  // A merged file is one of the leader's clock.
  const auto again =
      MergeTraces({{"m", merged->json}, TextOf("c", FileOfNode(4, 3000, 3000, 30'000))});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->nodes_error_us, 30.0);
  EXPECT_EQ(Json::parse(again->json)["otherData"]["nodes"].size(), 3u);
}

TEST(TraceMergeTest, AnEventBeforeTheComparisonHasTheErrorOfDrift) {
  TraceFile file = FileOfNode(1, 50'000'000'000, 0, 7);
  EXPECT_EQ(NodeErrorNs(file), 5000u);
  file.ranks[0].first.host_ns -= 20'000'000'000;
  EXPECT_EQ(NodeErrorNs(file), 5000u + 20 * 30'000);
  file.node->first = file.node->last = std::nullopt;
  EXPECT_EQ(NodeErrorNs(file), std::nullopt);
  EXPECT_EQ(NodeErrorNs(FileOf(0, 1000)), std::nullopt);
}

TEST(TraceMergeTest, RefusesClocksThatWereNotComparedAndWrongComparisons) {
  const TraceText a = TextOf("a.json", FileOfNode(0, 5000, 0, 0));
  TraceFile unknown = FileOfNode(1, 6000, 0, 0), other_run = unknown;
  unknown.node->first = unknown.node->last = std::nullopt;
  other_run.node->run = 78;
  for (const auto& [file, says] :
       {std::pair(unknown, "the clock of the job's leader was not known on both"),
        std::pair(other_run, "it is of another run of the job than a.json"),
        std::pair(FileOf(1, 6000), "its clock is that of another machine")}) {
    const auto merged = MergeTraces({a, TextOf("b.json", file)});
    ASSERT_FALSE(merged.ok()) << says;
    EXPECT_NE(merged.status().message().find(says), std::string::npos) << merged.status();
  }
  const std::string good = TextOf("b", FileOfNode(1, 6000, 0, 7)).json;
  for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
           {"\"1000006000\"", "\"6000000000000000000\""},
           {"\"1000006000\"", "\"5999\""},
           {"\"999996000\",", "\"-1\","},
           {"\"999996000\",", "\"600000000000\","},
           {"\"run\":\"77\"", "\"run\":\"\""},
           {"\"run\":\"77\"", "\"run\":77"},
           {"\"first\"", "\"worst\""},
           {"\"leader_clock\":{", "\"leader_clock\":7,\"x\":{"},
           {"\"nodes\":[", "\"nodes\":[7,"},
           {"\"nodes\":[", "\"nodes\":7,\"x\":["}}) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << good;
    text.replace(at, std::string(from).size(), to);
    EXPECT_FALSE(MergeTraces({{"bad", text}}).ok()) << to;
  }
  EXPECT_TRUE(MergeTraces({{"good", good}}).ok());
}

TEST(TraceMergeTest, RefusesWhatDoesNotBelongTogether) {
  TraceFile other_job = FileOf(1, 1000), other_host = FileOf(1, 1000);
  other_job.job = "another";
  other_host.host = "there";
  const TraceText a = TextOf("a.json", FileOf(0, 1000));
  const struct {
    std::vector<TraceText> traces;
    const char* says;
  } cases[] = {
      {{}, "give 1 to 4096 files"},
      {{a, TextOf("b.json", other_job)}, "b.json: it is of job \"another\", and a.json of job"},
      {{a, TextOf("b.json", other_host)}, "b.json: its clock is that of another machine"},
      {{a, TextOf("b.json", FileOf(0, 9000))}, "b.json: rank 0 is in a.json, too"},
      {{a, TextOf("b.json", FileOf(1, ~uint64_t{0} - 10000))},
       "b.json: it is of more than 52 days"},
  };
  for (const auto& each : cases) {
    const auto merged = MergeTraces(each.traces);
    ASSERT_FALSE(merged.ok()) << each.says;
    EXPECT_NE(merged.status().message().find(each.says), std::string::npos)
        << merged.status().message();
  }
}

TEST(TraceMergeTest, RefusesWhatIsNoTrace) {
  const std::string good = TextOf("a", FileOf(0, 1000)).json;
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string bad[] = {"",
                             "[]",
                             "7",
                             "{}",
                             "null",
                             good.substr(0, good.size() / 2),
                             std::string(100000, '['),
                             with("\"iris\"", "\"sari\""),
                             with("\"iris\"", "7"),
                             with("\"1000\"", "\"-1000\""),
                             with("\"1000\"", "1000"),
                             with("\"ranks\":[{\"rank\":0", "\"ranks\":[7,{\"rank\":0"),
                             with("\"rank\":0", "\"rank\":0.5"),
                             with("\"traceEvents\":[", "\"traceEvents\":[7,"),
                             with("\"pid\":0,\"tid\":1,\"ts\"", "\"pid\":\"0\",\"tid\":1,\"ts\""),
                             with("\"ts\":1.001", "\"ts\":\"1.001\""),
                             with("\"ts\":1.001", "\"ts\":1e300")};
  for (const std::string& text : bad) {
    const auto merged = MergeTraces({{"bad.json", text}});
    ASSERT_FALSE(merged.ok()) << text.substr(0, 300);
    EXPECT_EQ(merged.status().message().substr(0, 10), "bad.json: ") << merged.status();
  }
}

TEST(TraceMergeTest, FilesThatCannotBeReadOrWrittenAreNamed) {
  const std::string folder = ::testing::TempDir();
  const std::string path = folder + "/one.json", out = folder + "/out.json";
  ASSERT_TRUE(WriteFile(path, TraceJson(FileOf(0, 1000))).ok());
  EXPECT_TRUE(MergeTraceFiles({path}, out).ok());
  EXPECT_TRUE(ReadFile(out, 1 << 20).ok());
  EXPECT_EQ(MergeTraceFiles({path, folder + "/none.json"}, out).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(MergeTraceFiles({path}, folder + "/none/out.json").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(WriteFile("/dev/full", "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadFile(path, 10).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadFile(folder, 10).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace iris::internal
