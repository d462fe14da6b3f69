#include "client/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace iris::log {
namespace {

std::string Printed(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST(LogTest, LevelsByName) {
  EXPECT_EQ(ParseLevel("debug", Level::kOff), Level::kDebug);
  EXPECT_EQ(ParseLevel("info", Level::kOff), Level::kInfo);
  EXPECT_EQ(ParseLevel("warning", Level::kOff), Level::kWarning);
  EXPECT_EQ(ParseLevel("error", Level::kOff), Level::kError);
  EXPECT_EQ(ParseLevel("off", Level::kDebug), Level::kOff);
  EXPECT_EQ(ParseLevel("DEBUG", Level::kOff), Level::kDebug);
}

TEST(LogTest, UnknownNameIsTheFallback) {
  EXPECT_EQ(ParseLevel("loud", Level::kWarning), Level::kWarning);
  EXPECT_EQ(ParseLevel("", Level::kError), Level::kError);
}

TEST(LogTest, AWrongLevelIsRefused) {
  const auto check = [](const char* value) {
    return CheckLevel([value](const char*) { return std::optional<std::string>(value); });
  };
  for (const char* level : {"", "debug", "warn", "off", "Error"}) {
    EXPECT_TRUE(check(level).ok()) << level;
  }
  EXPECT_EQ(check("loud\x1b").message(),
            "environment variable IRIS_LOG_LEVEL=\"loud\\x1b\" is not debug, info, warning, error "
            "or off");
}

TEST(LogTest, TextCannotSteerATerminal) {
  SetLevel(Level::kWarning);
  EXPECT_EQ(Printed([] { Warning("a\x1b[2J\n[iris] error: b"); }),
            "[iris] warning: a\\x1b[2J\\n[iris] error: b\n");
}

TEST(LogTest, BelowTheLevelNothingIsPrinted) {
  SetLevel(Level::kWarning);
  EXPECT_EQ(Printed([] { Info("quiet"); }), "");
}

TEST(LogTest, OffPrintsNothingAtAll) {
  SetLevel(Level::kOff);
  EXPECT_EQ(Printed([] { Error("quiet"); }), "");
  SetLevel(Level::kWarning);
}

TEST(LogTest, LinesCarryLevelAndText) {
  SetLevel(Level::kWarning);
  EXPECT_EQ(Printed([] { std::thread([] { Warning("lost ", 3, " things"); }).join(); }),
            "[iris] warning: lost 3 things\n");
}

TEST(LogTest, TextIsNoFormat) {
  SetLevel(Level::kWarning);
  EXPECT_THAT(Printed([] { Warning("{} {:d} %s"); }), ::testing::HasSubstr("{} {:d} %s"));
}

TEST(LogTest, PrefixIsTheRankOfTheThreadElseOfTheProcess) {
  SetLevel(Level::kInfo);
  SetRank(2, 4);
  EXPECT_EQ(Printed([] { Info("a"); }), "[iris] [2/4] info: a\n");
  std::thread([] {
    EXPECT_EQ(Printed([] { Info("b"); }), "[iris] [2/4] info: b\n");
    SetRank(3, 4);
    EXPECT_EQ(Printed([] { Info("c"); }), "[iris] [3/4] info: c\n");
  }).join();
  EXPECT_EQ(Printed([] { Info("d"); }), "[iris] [2/4] info: d\n");
  SetLevel(Level::kWarning);
}

}  // namespace
}  // namespace iris::log
