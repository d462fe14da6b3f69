#include "device/base/suggest.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kCommands = {"status",   "devices", "jobs", "heaps", "allocations",
                                            "sessions", "events",  "peek", "doctor"};

TEST(SuggestTest, OneLetterTooManyTooFewOrWrong) {
  for (const char* word : {"jobs", "job", "jobss", "jobz", "jbos", "JOBS", "obs"}) {
    EXPECT_THAT(NearNames(word, kCommands, 1), ElementsAre("jobs")) << word;
  }
}

TEST(SuggestTest, ABeginningIsEnough) {
  EXPECT_THAT(NearNames("alloc", kCommands, 1), ElementsAre("allocations"));
  EXPECT_THAT(NearNames("dev", kCommands, 3), ElementsAre("devices"));
}

TEST(SuggestTest, ANameThatGoesOnIsNearerThanTwoChanges) {
  EXPECT_THAT(NearNames("--keep", {"--help", "--keep-going"}, 1), ElementsAre("--keep-going"));
  EXPECT_THAT(NearNames("--hep", {"--heap-bytes", "--help"}, 1), ElementsAre("--help"));
}

TEST(SuggestTest, WhatIsLikeNothingGetsNothing) {
  for (const char* word : {"", "x", "zz", "restart", "qqqqqqqqqqqqqqqqqqqq"}) {
    EXPECT_THAT(NearNames(word, kCommands, 3), IsEmpty()) << word;
  }
  EXPECT_EQ(DidYouMean("restart", kCommands), "");
}

TEST(SuggestTest, TheNearestComesFirstAndEachOnce) {
  const std::vector<std::string> names = {"weights.bias", "weight", "weights2", "weight", "bias"};
  EXPECT_THAT(NearNames("weights", names, 4), ElementsAre("weight", "weights2", "weights.bias"));
  EXPECT_THAT(NearNames("weights", names, 2), ElementsAre("weight", "weights2"));
}

TEST(SuggestTest, LongNamesCostNoMoreThanTheirBeginnings) {
  const std::string longest(1 << 20, 'a');
  EXPECT_THAT(NearNames(longest + "b", {longest}, 1), ElementsAre(longest));
}

TEST(SuggestTest, TheSentence) {
  EXPECT_EQ(DidYouMean("jbos", kCommands), "; did you mean 'jobs'?");
  EXPECT_EQ(DidYouMean("two lines", {"two\nlines"}), "; did you mean 'two\nlines'?");
}

}  // namespace
}  // namespace iris::base
