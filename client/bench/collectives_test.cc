#include "client/bench/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace iris::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

CollectiveOptions Two() {
  CollectiveOptions options;
  options.ranks = 2;
  options.samples = 2;
  return options;
}

std::string ErrorOf(const CollectiveOptions& options, const std::vector<CollectiveCase>& cases) {
  return std::string(MeasureCollectives(options, cases).status().message());
}

class CollectivesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (MostCollectiveRanks() < 2) GTEST_SKIP() << "two devices are needed";
  }
};

TEST_F(CollectivesTest, EachOperationGivesAFigure) {
  std::vector<CollectiveCase> cases;
  for (const std::string& operation : CollectiveOperations()) {
    CollectiveCase what;
    what.operation = operation;
    if (operation != "barrier") what.bytes = 3000;
    cases.push_back(what);
  }
  const auto figures = MeasureCollectives(Two(), cases);
  ASSERT_TRUE(figures.ok()) << figures.status();
  ASSERT_EQ(figures->size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const CollectiveFigure& figure = (*figures)[i];
    EXPECT_EQ(figure.what.operation, cases[i].operation);
    EXPECT_EQ(figure.ranks, 2u);
    EXPECT_GT(figure.us, 0) << figure.what.operation;
    EXPECT_GT(figure.host_us, 0) << figure.what.operation;
    EXPECT_GE(figure.blocks, 1u) << figure.what.operation;
    // With two ranks, half the bytes go over a link, all if the operation has no rows, and twice
    // half for all_reduce.
    const std::string& name = figure.what.operation;
    const bool whole = name == "all_reduce" || name == "broadcast" || name == "reduce";
    const double bytes = name == "barrier" ? 0 : whole ? 3000 : 1500;
    EXPECT_NEAR(figure.bus_gb_per_s * figure.us * 1000, bytes, 1e-6) << name;
  }
}

TEST_F(CollectivesTest, OverridesThePlan) {
  const auto figures =
      MeasureCollectives(Two(), {{"all_reduce", 65536, "two_shot", 2, 32, false, 2},
                                 {"all_reduce", 65536, "two_shot", 2, 32}});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ((*figures)[0].unroll, 2u);
  EXPECT_EQ((*figures)[1].unroll, 1u);
  EXPECT_EQ((*figures)[0].variant, "two_shot");
  EXPECT_EQ((*figures)[0].blocks, 2u);
  EXPECT_EQ((*figures)[0].threads, 32u);
}

TEST_F(CollectivesTest, FollowsATableOfRules) {
  CollectiveOptions options = Two();
  options.rules = "all_reduce any 1KiB direct 2 64\nall_reduce any any two_shot 1 32\n";
  const auto figures =
      MeasureCollectives(options, {{"all_reduce", 1024}, {"all_reduce", 2048}, {"reduce", 64}});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ((*figures)[0].variant, "direct");
  EXPECT_EQ((*figures)[0].blocks, 2u);
  EXPECT_EQ((*figures)[1].variant, "two_shot");
  EXPECT_EQ((*figures)[1].threads, 32u);
  EXPECT_EQ((*figures)[2].variant, "two_shot");  // no rule, and a reduction has no kDirect
}

// 256 bytes have no words for more than one block of packets.
TEST_F(CollectivesTest, RulesThatLaunchTheSameAreMeasuredOnce) {
  const auto figures = MeasureCollectives(Two(), {{"all_reduce", 256, "packets", 1, 64, true},
                                                  {"all_reduce", 256, "packets", 2, 64, true},
                                                  {"all_reduce", 256, "two_shot", 1, 64, true},
                                                  {"all_reduce", 256, "two_shot", 2, 64, true},
                                                  {"all_reduce", 512, "packets", 2, 64, true}});
  ASSERT_TRUE(figures.ok()) << figures.status();
  std::vector<std::string> launched;
  for (const CollectiveFigure& f : *figures) {
    launched.push_back(std::to_string(f.what.bytes) + " " + f.variant + " " +
                       std::to_string(f.what.blocks));
  }
  EXPECT_THAT(launched,
              ElementsAre("256 packets 1", "256 two_shot 1", "256 two_shot 2", "512 packets 2"));
}

TEST_F(CollectivesTest, RefusesWhatCannotBeMeasured) {
  EXPECT_EQ(ErrorOf(Two(), {{"all_reduces", 64}}),
            "\"all_reduces\" is no operation such as all_reduce");
  EXPECT_EQ(ErrorOf(Two(), {{"all_gather", 64, "two_shot"}}),
            "all_gather has no variant \"two_shot\"");
  EXPECT_EQ(ErrorOf(Two(), {{"reduce", 64, "quick"}}), "reduce has no variant \"quick\"");
  EXPECT_THAT(ErrorOf(Two(), {{"reduce", 0}}), HasSubstr("reduce of 0 bytes"));
  EXPECT_THAT(ErrorOf(Two(), {{"reduce", kMaxCollectiveBytes + 1}}), HasSubstr("to 64 GiB"));
  CollectiveOptions options = Two();
  options.rules = "reduce any any two_shot 1 1\nreduce\n";
  EXPECT_THAT(ErrorOf(options, {{"reduce", 64}}),
              HasSubstr("line 2 of the rules: fewer than six words"));
  options = Two();
  options.packet_blocks = 4096;
  EXPECT_THAT(ErrorOf(options, {{"reduce", 64}}), HasSubstr("4096 blocks of packets"));
  options = Two();
  options.ranks = MostCollectiveRanks() + 1;
  EXPECT_THAT(ErrorOf(options, {{"reduce", 64}}), HasSubstr("ranks need a device each"));
}

// Launches of all ranks fail, or the others would wait for good.
TEST_F(CollectivesTest, AFailureOfARankEndsTheRun) {
  EXPECT_THAT(ErrorOf(Two(), {{"reduce", 64}, {"reduce", 64, "two_shot", 1, 100000}}),
              HasSubstr("reduce of 64 bytes, variant two_shot, 1 blocks of 100000 threads, 2 "
                        "ranks: rank "));
}

TEST(CollectiveVariantsTest, AreThoseOfTheOperation) {
  EXPECT_THAT(CollectiveVariants("all_reduce"), Contains("two_phase"));
  EXPECT_THAT(CollectiveVariants("all_gather"), Not(Contains("two_phase")));
  EXPECT_THAT(CollectiveVariants("barrier"), IsEmpty());
  EXPECT_THAT(CollectiveVariants("nothing"), IsEmpty());
}

TEST(CheckRulesTest, NamesTheLine) {
  EXPECT_TRUE(CheckRules("# a table\nreduce any any two_shot 0 0\n").ok());
  EXPECT_EQ(CheckRules("#\nreduce any any auto 0 0").message(),
            "line 2 of the rules: no such variant: \"auto\"");
  EXPECT_EQ(CheckRules("# nothing\n").message(), "there is no rule");
  EXPECT_THAT(std::string(CheckRules(std::string("reduce\0", 7)).message()),
              HasSubstr("a zero byte"));
}

TEST(RuleTextTest, IsOfATable) {
  const auto text = RuleText({"all_reduce", 64, CollectiveRule::kAnyBytes, "two_shot", 16, 256});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(CheckRules(*text).ok());
  EXPECT_THAT(*text, HasSubstr("any     any  two_shot"));
  EXPECT_FALSE(RuleText({"all_reduce", 64, 1024, "auto", 16, 256}).ok());
  EXPECT_FALSE(RuleText({"all_reduce", 64, 1024, "two_shot", 16, 2560}).ok());
  EXPECT_FALSE(RuleText({"nothing", 64, 1024, "two_shot", 16, 256}).ok());
}

}  // namespace
}  // namespace iris::bench
