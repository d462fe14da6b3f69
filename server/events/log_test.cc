#include "server/events/log.h"

#include <gtest/gtest.h>

#include <string>

namespace iris::server {
namespace {

TEST(LogTest, KeyValueLinesQuoteWhatNeedsIt) {
  EXPECT_EQ(FormatLogBody(LogFormat::kKeyValue, "session opened",
                          {{"pid", 7}, {"job", "train"}, {"text", "two words"}, {"empty", ""}}),
            "msg=\"session opened\" pid=7 job=train text=\"two words\" empty=\"\"");
}

TEST(LogTest, JsonKeepsNumbersNumbers) {
  EXPECT_EQ(FormatLogBody(LogFormat::kJson, "x", {{"pid", 7}, {"job", "7"}}),
            "\"msg\":\"x\",\"pid\":7,\"job\":\"7\"");
}

TEST(LogTest, AValueCannotStartAnotherLineOrField) {
  const std::string hostile = "a\nmsg=\"fake\" pid=1\"\\\x1b[31m\xff";
  EXPECT_EQ(FormatLogBody(LogFormat::kKeyValue, "x", {{"job", hostile}}),
            "msg=\"x\" job=\"a\\x0amsg=\\\"fake\\\" pid=1\\\"\\\\\\x1b[31m\\xff\"");
  EXPECT_EQ(FormatLogBody(LogFormat::kJson, "x", {{"job", hostile}}),
            "\"msg\":\"x\",\"job\":\"a\\u000amsg=\\\"fake\\\" pid=1\\\"\\\\\\u001b[31m\\u00ff\"");
}

TEST(LogTest, LongValuesAreCut) {
  const std::string body =
      FormatLogBody(LogFormat::kKeyValue, "x", {{"job", std::string(1 << 20, 'n')}});
  EXPECT_LT(body.size(), 600u);
  EXPECT_LT(FormatLogBody(LogFormat::kJson, "x", {{"job", std::string(1 << 20, 'n')}}).size(),
            600u);
}

TEST(LogTest, FormatsNegativeAndLargeNumbers) {
  EXPECT_EQ(FormatLogBody(LogFormat::kKeyValue, "x", {{"rank", -1}, {"id", ~uint64_t{0}}}),
            "msg=\"x\" rank=-1 id=18446744073709551615");
}

TEST(LogTest, EscapeCutsAndMarksIt) {
  EXPECT_EQ(EscapeForLog("abcdef", 3), "abc...");
  EXPECT_EQ(EscapeForLog("abc", 3), "abc");
}

}  // namespace
}  // namespace iris::server
