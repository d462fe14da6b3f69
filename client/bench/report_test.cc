#include "client/bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/base/bytes.h"

namespace iris::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SpreadTest, OfAnyOrderAndParity) {
  const Spread odd = SpreadOf({5, 1, 9});
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.p50, 5);
  EXPECT_EQ(odd.max, 9);
  EXPECT_EQ(SpreadOf({4, 1, 2, 9}).p50, 3);
  EXPECT_EQ(SpreadOf({7}).p50, 7);
}

TEST(BytesTextTest, LargestUnitThatDivides) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(4096), "4 KiB");
  EXPECT_EQ(BytesText(1536), "1536 B");
  EXPECT_EQ(BytesText(64ull << 30), "64 GiB");
}

TEST(BytesTextTest, ReadsWhatItWrites) {
  for (const uint64_t bytes : {0ull, 1ull, 4096ull, 3ull << 20, 64ull << 30}) {
    uint64_t read = 1;
    ASSERT_TRUE(base::ParseBytes(BytesText(bytes), &read)) << BytesText(bytes);
    EXPECT_EQ(read, bytes);
  }
}

Table Sample() {
  Table table("bandwidth", "what a link gives", {{"what"}, {"GB/s", 2}, {"n"}});
  table.Add({"put", 365.125, 10});
  table.Add({"get all", nullptr, 3});
  table.Note("a note");
  return table;
}

TEST(TableTest, TextIsAligned) {
  EXPECT_EQ(Sample().Text(),
            "== bandwidth: what a link gives\n"
            "what       GB/s   n\n"
            "put      365.12  10\n"
            "get all       -   3\n"
            "a note\n");
}

TEST(TableTest, JsonHasRowsByColumn) {
  const nlohmann::json json = Sample().Json();
  EXPECT_EQ(json["rows"][0]["GB/s"], 365.125);
  EXPECT_EQ(json["rows"][0]["what"], "put");
  EXPECT_TRUE(json["rows"][1]["GB/s"].is_null());
  EXPECT_EQ(json["notes"][0], "a note");
}

TEST(BenchReportTest, JsonHasFactsAndTables) {
  BenchReport report;
  report.Fact("ranks", 8);
  report.Add(Sample());
  const nlohmann::json json = nlohmann::json::parse(report.Json());
  EXPECT_EQ(json["benchmark"], "iris_bench");
  EXPECT_EQ(json["ranks"], 8);
  EXPECT_EQ(json["tables"]["bandwidth"]["rows"].size(), 2u);
  EXPECT_THAT(report.Text(), HasSubstr("ranks: 8\n\n== bandwidth"));
}

TEST(SvgTest, DrawsALineForEachSeriesThatHasPoints) {
  Plot plot;
  plot.title = "put <fast>";
  plot.y_title = "GB/s";
  plot.lines = {{"8 blocks", {{4096, 1}, {1 << 20, 350}}}, {"nothing", {}}};
  const std::string svg = Svg({plot, plot});
  EXPECT_THAT(svg, HasSubstr("put &lt;fast&gt;"));
  EXPECT_THAT(svg, HasSubstr("<polyline points=\"60.0,"));
  EXPECT_THAT(svg, HasSubstr("4 KiB"));
  EXPECT_THAT(svg, HasSubstr("8 blocks"));
  EXPECT_THAT(svg, Not(HasSubstr("nothing")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SvgTest, LogarithmicAxisHasPowersOfTen) {
  Plot plot;
  plot.log_y = true;
  plot.lines = {{"time", {{1024, 3}, {4096, 0}, {1 << 20, 300}}}};
  const std::string svg = Svg({plot});
  // From 1 to 1000 over 310 points: 3 and 300 are 0.477 decades above 1 and 100.
  EXPECT_THAT(svg, HasSubstr("<polyline points=\"60.0,300.7 440.0,94.0\""));
  for (const char* label : {">1</text>", ">10</text>", ">100</text>", ">1000</text>"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgTest, NothingMeasuredIsAnEmptyPlot) { EXPECT_THAT(Svg({Plot{}}), HasSubstr("</svg>")); }

}  // namespace
}  // namespace iris::bench
