#include "client/bench/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace iris::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CollectiveFigure Figure(const std::string& operation, uint32_t ranks, uint64_t bytes,
                        const std::string& variant, uint32_t blocks, uint32_t threads, double us) {
  CollectiveFigure figure;
  figure.what = {operation, bytes, variant, blocks, threads, /*as_rule=*/true};
  figure.ranks = ranks;
  figure.variant = variant;
  figure.blocks = blocks;
  figure.threads = threads;
  figure.us = us;
  return figure;
}

CollectiveFigure AllReduce(uint64_t bytes, const std::string& variant, uint32_t blocks, double us) {
  return Figure("all_reduce", 4, bytes, variant, blocks, 512, us);
}

std::vector<std::string> Texts(const std::vector<CollectiveFigure>& figures) {
  std::vector<std::string> texts;
  for (const CollectiveRule& rule : MakeRules(figures)) {
    const std::string bytes =
        rule.max_bytes == CollectiveRule::kAnyBytes ? "any" : absl::StrCat(rule.max_bytes);
    texts.push_back(absl::StrCat(rule.operation, " ", rule.max_members, " ", bytes, " ",
                                 rule.variant, " ", rule.blocks, " ", rule.threads));
  }
  return texts;
}

TEST(MakeRulesTest, NothingMeasured) { EXPECT_THAT(MakeRules({}), IsEmpty()); }

TEST(MakeRulesTest, ReachesToTheGeometricMiddle) {
  EXPECT_THAT(Texts({AllReduce(1024, "packets", 4, 3), AllReduce(1024, "two_shot", 4, 5),
                     AllReduce(65536, "packets", 4, 9), AllReduce(65536, "two_shot", 4, 7)}),
              ElementsAre("all_reduce 64 8192 packets 4 512", "all_reduce 64 any two_shot 4 512"));
}

TEST(MakeRulesTest, ConsecutiveEqualRulesAreOne) {
  EXPECT_THAT(Texts({AllReduce(4096, "packets", 4, 3), AllReduce(1024, "packets", 4, 3),
                     AllReduce(16384, "two_shot", 8, 9), AllReduce(65536, "two_shot", 8, 9)}),
              ElementsAre("all_reduce 64 8192 packets 4 512", "all_reduce 64 any two_shot 8 512"));
}

TEST(MakeRulesTest, OfNearlyEqualOnesTheSmallerWins) {
  EXPECT_THAT(Texts({AllReduce(1024, "two_shot", 64, 10.0), AllReduce(1024, "two_shot", 8, 10.19),
                     AllReduce(1024, "two_shot", 4, 10.21)}),
              ElementsAre("all_reduce 64 any two_shot 8 512"));
}

// The launched blocks decide between equal times; the requested ones become the rule.
TEST(MakeRulesTest, ARuleSaysWhatWasAskedFor) {
  CollectiveFigure by_size = AllReduce(1024, "packets", 2, 3);
  by_size.what.blocks = by_size.what.threads = 0;
  EXPECT_THAT(Texts({by_size, AllReduce(1024, "packets", 4, 3)}),
              ElementsAre("all_reduce 64 any packets 0 0"));
}

TEST(MakeRulesTest, TheUnrollIsPartOfTheDecision) {
  CollectiveFigure twice = AllReduce(65536, "two_shot", 4, 7);
  twice.what.unroll = 2;
  const auto rules = MakeRules({AllReduce(1024, "two_shot", 4, 3), twice});
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].unroll, 0u);
  EXPECT_EQ(rules[1].unroll, 2u);
}

TEST(MakeRulesTest, EachOperationAndRankCountHasItsOwn) {
  EXPECT_THAT(Texts({Figure("reduce", 8, 1024, "two_shot", 8, 64, 3),
                     Figure("gather", 2, 1024, "direct", 8, 64, 3),
                     Figure("reduce", 2, 1024, "packets", 8, 64, 3)}),
              ElementsAre("reduce 2 any packets 8 64", "reduce 64 any two_shot 8 64",
                          "gather 64 any direct 8 64"));
}

TEST(MakeRulesTest, BehindTheCopyEngineComesWhatWonWithoutIt) {
  EXPECT_THAT(
      Texts({AllReduce(1024, "packets", 1, 1),                                               //
             AllReduce(4096, "copy_engine", 64, 5), AllReduce(4096, "two_shot", 8, 6),       //
             AllReduce(16384, "copy_engine", 64, 9), AllReduce(16384, "two_phase", 16, 11),  //
             AllReduce(65536, "copy_engine", 64, 30), AllReduce(65536, "two_phase", 16, 20)}),
      ElementsAre("all_reduce 64 2048 packets 1 512", "all_reduce 64 32768 copy_engine 64 512",
                  "all_reduce 64 8192 two_shot 8 512", "all_reduce 64 any two_phase 16 512"));
}

TEST(MakeRulesTest, TheCopyEngineMayBeAllThatWasMeasured) {
  EXPECT_THAT(Texts({AllReduce(1024, "copy_engine", 1, 1)}),
              ElementsAre("all_reduce 64 any copy_engine 1 512"));
}

ProductFigure Product(const std::string& operation, uint32_t ranks, ProductShape shape,
                      const std::string& wanted, double us) {
  ProductFigure figure;
  figure.operation = operation;
  figure.ranks = ranks;
  figure.shape = shape;
  figure.wanted = wanted;
  figure.variant = wanted == "auto" ? "pair" : wanted;
  figure.graph.us = us;
  return figure;
}

std::vector<std::string> ProductTexts(const std::vector<ProductFigure>& figures) {
  std::vector<std::string> texts;
  for (const ProductLine& line : MakeProductLines(figures)) texts.push_back(ProductLineText(line));
  return texts;
}

TEST(MakeProductLinesTest, OfEachShapeTheFastest) {
  EXPECT_THAT(MakeProductLines({}), IsEmpty());
  EXPECT_THAT(ProductTexts({Product("matmul_all_gather", 2, {8, 16, 32}, "auto", 1),
                            Product("matmul_all_gather", 2, {8, 16, 32}, "fused", 3),
                            Product("matmul_all_gather", 2, {8, 16, 32}, "pair", 2),
                            Product("matmul_all_gather", 2, {8, 16, 64}, "pair", 3),
                            Product("matmul_all_gather", 2, {8, 16, 64}, "fused", 2),
                            Product("matmul_all_gather", 4, {8, 16, 64}, "persistent", 2)}),
              ElementsAre("matmul_all_gather       2      8     16     32  pair",
                          "matmul_all_gather       2      8     16     64  fused",
                          "matmul_all_gather       4      8     16     64  persistent"));
  EXPECT_THAT(MakeProductLines({Product("matmul_all_gather", 2, {8, 16, 32}, "auto", 1)}),
              IsEmpty());
}

// Members may differ in the k of a sum and in the n of all_gather_matmul.
TEST(MakeProductLinesTest, ShapesThatALineCannotTellApartAreOne) {
  EXPECT_THAT(ProductTexts({Product("matmul_all_reduce", 2, {8, 16, 32}, "fused", 10),
                            Product("matmul_all_reduce", 2, {8, 16, 32}, "pair", 11),
                            Product("matmul_all_reduce", 2, {8, 16, 64}, "fused", 300),
                            Product("matmul_all_reduce", 2, {8, 16, 64}, "pair", 100),
                            Product("all_gather_matmul", 2, {8, 16, 32}, "pair", 1),
                            Product("all_gather_matmul", 2, {8, 32, 32}, "pair", 1),
                            Product("all_gather_matmul", 2, {8, 32, 32}, "persistent", 0.1)}),
              ElementsAre("matmul_all_reduce       2      8     16    any  pair",
                          "all_gather_matmul       2      8    any     32  pair"));
}

TEST(LeadersMostBytesTest, EndsInTheMiddleWhereRailsBecomeFaster) {
  EXPECT_EQ(LeadersMostBytes({{1024, 1, 2}, {4096, 1, 2}, {16384, 4, 2}}), 8192u);
  // One wrong measurement decides nothing.
  EXPECT_EQ(LeadersMostBytes({{1024, 1, 2}, {4096, 2.1, 2}, {16384, 3, 4}, {65536, 9, 5}}), 32768u);
}

TEST(LeadersMostBytesTest, LeadersHaveToWinClearly) {
  EXPECT_EQ(LeadersMostBytes({{1024, 1, 2}, {4096, 2, 2.09}}), 2048u);
  EXPECT_EQ(LeadersMostBytes({{1024, 1, 2}, {4096, 2, 2.11}}), 4096u);  // not beyond what was seen
}

TEST(LeadersMostBytesTest, NeverAndUnmeasured) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(LeadersMostBytes({{1024, 3, 2}, {4096, kInfinite, 2}}), 1u);
  EXPECT_EQ(LeadersMostBytes({{1024, 1, 2}, {4096, kInfinite, 2}}), 2048u);
  EXPECT_EQ(LeadersMostBytes({}), 1u);
}

TEST(BestCandidateTest, TheFirstOfNearlyEqualOnes) {
  EXPECT_EQ(BestCandidate({{3, 2, 1}}), 2u);
  EXPECT_EQ(BestCandidate({{10.19, 10}, {20, 20.3}}), 0u);
  EXPECT_EQ(BestCandidate({{10.5, 10}, {20, 20.1}}), 0u);
  EXPECT_EQ(BestCandidate({{12, 10}, {20, 20.1}}), 1u);
  EXPECT_EQ(BestCandidate({{9, std::numeric_limits<double>::infinity()}, {9, 1}}), 0u);
}

TEST(BestCandidateTest, NoneThatIsSlowerThanTheDefaultInSomeCase) {
  EXPECT_EQ(BestCandidate({{10, 11.1, 10.9}, {10, 5, 6}}), 2u);
  EXPECT_EQ(BestCandidate({{10, 11.1, 10.9}, {10, 5, 10}}), 0u);
}

TEST(SizeWordTest, HasTheLargestUnit) {
  EXPECT_EQ(SizeWord(1), "1");
  EXPECT_EQ(SizeWord(1023), "1023");
  EXPECT_EQ(SizeWord(3 << 10), "3KiB");
  EXPECT_EQ(SizeWord(16 << 20), "16MiB");
}

}  // namespace
}  // namespace iris::bench
