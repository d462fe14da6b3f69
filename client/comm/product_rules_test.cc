#include "client/comm/product_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace iris::internal {
namespace {

using ccl::Operation;
using ops::Variant;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ProductRules Read(const std::string& text) {
  std::string others;
  auto rules = ProductRules::Take(text, &others);
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *std::move(rules) : ProductRules();
}

Variant Choose(const ProductRules& rules, uint64_t m, uint64_t n, uint64_t k,
               Operation operation = Operation::kMatmulAllGather, uint32_t members = 2) {
  ops::Problem problem;
  problem.operation = operation;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  return rules.Choose(problem, members);
}

TEST(ProductRulesTest, TakesItsLinesAndLeavesTheOthers) {
  const std::string text =
      "# of a machine\r\n"
      "all_reduce any any two_shot 0 0\n"
      " matmul_all_reduce\t4 64  8192 any pair # measured\n"
      "\n"
      "all_gather_matmul any any any 7 persistent";
  std::string others;
  const auto rules = ProductRules::Take(text, &others);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(others, "# of a machine\r\nall_reduce any any two_shot 0 0\n\n\n");
  ASSERT_EQ(rules->rules().size(), 2u);
  const ops::Rule& first = rules->rules()[0];
  EXPECT_EQ(first.operation, Operation::kMatmulAllReduce);
  EXPECT_EQ(first.members, 4u);
  EXPECT_EQ(first.m, 64u);
  EXPECT_EQ(first.n, 8192u);
  EXPECT_EQ(first.k, 0u);
  EXPECT_EQ(first.variant, Variant::kPair);
  EXPECT_EQ(rules->rules()[1].members, 0u);
  EXPECT_EQ(rules->rules()[1].k, 7u);
  EXPECT_EQ(rules->rules()[1].variant, Variant::kPersistent);
}

TEST(ProductRulesTest, ATextWithoutProductsStaysAsItIs) {
  for (const std::string& text :
       {std::string(), std::string("\n\n"), std::string("# x"),
        std::string("all_reduce any\n\x01\xff zzz"), std::string(100000, 'x'),
        std::string("matmul\nmatmul_fast 1\n")}) {
    std::string others = "old";
    const auto rules = ProductRules::Take(text, &others);
    ASSERT_TRUE(rules.ok()) << rules.status();
    EXPECT_TRUE(rules->empty());
    EXPECT_EQ(others, text);
  }
}

TEST(ProductRulesTest, WrongLinesAreToldWithTheirNumberAndTheRemedy) {
  const std::string good = "matmul_all_reduce 2 8 8 any pair\n";
  const std::pair<std::string, const char*> wrong[] = {
      {"matmul_all_reduce", "has 1 words, and a line of it has six: operation members m n k"},
      {"matmul_all_reduce 2 8 8 any pair 1", "has 7 words"},
      {"matmul_all_reduce 0 8 8 any pair", "the members are \"0\": write `any`, or a number"},
      {"matmul_all_reduce 65 8 8 any pair", "the members are \"65\""},
      {"matmul_all_reduce 2 -8 8 any pair", "m is \"-8\": write `any`"},
      {"matmul_all_reduce 2 +8 8 any pair", "m is \"+8\""},
      {"matmul_all_reduce 2 8 0 any pair", "n is \"0\""},
      {"matmul_all_reduce 2 8 8KiB any pair", "n is \"8KiB\""},
      {"matmul_all_gather 2 8 8 2147483648 pair", "k is \"2147483648\""},
      {"matmul_all_gather 2 8 8 99999999999999999999999 pair", "k is \"99999999999999"},
      {"matmul_all_gather 2 8 8 \x01\xff pair", "k is \"\?\?\""},
      {"matmul_all_reduce 2 8 8 8 pair", "may differ in k, and must not choose different variants"},
      {"matmul_reduce_scatter 2 8 8 8 pair", "may differ in k"},
      {"all_gather_matmul 2 8 8 8 pair", "may differ in n"},
      {"matmul_all_scatter 2 8 8 8 auto", "\"auto\" is no variant of products: write fused"},
      {"matmul_all_scatter 2 8 8 8 two_shot", "\"two_shot\" is no variant of products"},
      {"matmul_all_scatter 2 8 8 8 pair #" + std::string(300, 'x'), "longer than 256 bytes"}};
  for (const auto& [line, text] : wrong) {
    std::string others;
    const auto rules = ProductRules::Take(good + "\n" + line + "\n" + good, &others);
    ASSERT_FALSE(rules.ok()) << line;
    EXPECT_EQ(rules.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rules.status().message()), StartsWith("line 3 of the rules: "));
    EXPECT_THAT(std::string(rules.status().message()), HasSubstr(text));
  }
  std::string many, others;
  for (size_t i = 0; i < ProductRules::kMaxRules; ++i) many += good;
  EXPECT_TRUE(ProductRules::Take(many, &others).ok());
  EXPECT_THAT(std::string(ProductRules::Take(many + good, &others).status().message()),
              HasSubstr("line 1025 of the rules: more than 1024 lines of products"));
}

TEST(ProductRulesTest, TheNearestLineThatReachesDecides) {
  const ProductRules rules = Read(
      "matmul_all_gather 2 64 64 64 pair\n"
      "matmul_all_gather 2 256 64 64 fused\n"
      "matmul_all_gather 2 256 64 64 persistent\n");
  EXPECT_EQ(Choose(rules, 64, 64, 64), Variant::kPair);
  EXPECT_EQ(Choose(rules, 256, 64, 64), Variant::kFused);
  EXPECT_EQ(Choose(rules, 127, 64, 64), Variant::kPair);
  EXPECT_EQ(Choose(rules, 128, 64, 64), Variant::kPair);  // as near to both: the first
  EXPECT_EQ(Choose(rules, 129, 64, 64), Variant::kFused);
  // As far as four times, and a quarter, of each number.
  EXPECT_EQ(Choose(rules, 1024, 256, 16), Variant::kFused);
  EXPECT_EQ(Choose(rules, 1025, 256, 16), Variant::kAuto);
  EXPECT_EQ(Choose(rules, 1024, 257, 16), Variant::kAuto);
  EXPECT_EQ(Choose(rules, 1024, 256, 15), Variant::kAuto);
  EXPECT_EQ(Choose(rules, 16, 64, 64), Variant::kPair);
  EXPECT_EQ(Choose(rules, 15, 64, 64), Variant::kAuto);
  EXPECT_EQ(Choose(rules, 0, 64, 64), Variant::kAuto);
  EXPECT_EQ(Choose(rules, ~uint64_t{0}, 64, 64), Variant::kAuto);
  // Of another operation, or of other members.
  EXPECT_EQ(Choose(rules, 64, 64, 64, Operation::kMatmulAllScatter), Variant::kAuto);
  EXPECT_EQ(Choose(rules, 64, 64, 64, Operation::kMatmulAllGather, 4), Variant::kAuto);
}

TEST(ProductRulesTest, MoreNumbersGoBeforeFewer) {
  const ProductRules rules = Read(
      "matmul_all_gather any any any any pair\n"
      "matmul_all_gather any 64 any any persistent\n"
      "matmul_all_gather any 128 64 any fused\n");
  EXPECT_EQ(Choose(rules, 9999, 64, 64), Variant::kPair);
  EXPECT_EQ(Choose(rules, 64, 9999, 64), Variant::kPersistent);
  EXPECT_EQ(Choose(rules, 64, 64, 1), Variant::kFused);
  EXPECT_EQ(Choose(rules, 64, 64, 1, Operation::kMatmulAllGather, 64), Variant::kFused);
}

// The members may differ in these, and choose the same.
TEST(ProductRulesTest, WhatMembersMayDifferInDecidesNothing) {
  const ProductRules rules = Read(
      "matmul_all_reduce 2 64 64 any pair\n"
      "all_gather_matmul 2 64 any 64 pair\n");
  for (const uint64_t own : {uint64_t{1}, uint64_t{1000000}}) {
    EXPECT_EQ(Choose(rules, 64, 64, own, Operation::kMatmulAllReduce), Variant::kPair);
    EXPECT_EQ(Choose(rules, 64, own, 64, Operation::kAllGatherMatmul), Variant::kPair);
  }
}

}  // namespace
}  // namespace iris::internal
