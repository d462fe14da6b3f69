#include "client/ctl/doctor_node.h"

#include <gtest/gtest.h>

#include <string>

namespace iris::ctl {
namespace {

TEST(ReadFindingsTest, TakesWhatARankHasWrittenAndNothingElse) {
  Finding finding = Warn("round trip", "8 bytes: \033[2J", "look");
  finding.numbers = {{"median_us", 31.5}, {"p99_us", 60}};
  std::string lines;
  for (const Finding& each : {finding, Ok("put", ""), Fail("fetch-add", "no", "do")}) {
    lines += FindingsJson({each})[0].dump() + "\n";
  }
  const std::string noise =
      "hello\n[]\n7\n{\"check\":\n{\"check\":\"x\",\"verdict\":\"ok\",\"detail\":\"\"}\n"
      "{\"check\":\"x\",\"verdict\":\"good\",\"detail\":\"\",\"remedy\":\"\"}\n"
      "{\"check\":1,\"verdict\":\"ok\",\"detail\":\"\",\"remedy\":\"\"}\n";
  std::string left;
  const std::vector<Finding> read = ReadFindings(lines + noise, " on b", &left);
  EXPECT_EQ(left, noise);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].check, "round trip on b");
  EXPECT_EQ(read[0].verdict, Verdict::kWarn);
  EXPECT_EQ(read[0].detail, finding.detail);
  EXPECT_EQ(read[0].remedy, "look");
  EXPECT_EQ(read[0].numbers, finding.numbers);
  EXPECT_EQ(FindingsJson({read[0]})[0]["median_us"], 31.5);
  EXPECT_EQ(read[1].verdict, Verdict::kOk);
  EXPECT_EQ(read[2].verdict, Verdict::kFail);
  EXPECT_EQ(FindingsText(read).find('\033'), std::string::npos);
}

}  // namespace
}  // namespace iris::ctl
