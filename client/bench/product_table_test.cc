#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "client/bench/compare.h"

namespace iris::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ProductFigure Figure(const std::string& wanted, double us) {
  ProductFigure figure;
  figure.operation = "matmul_all_reduce";
  figure.shape = {64, 128, 256};
  figure.ranks = 4;
  figure.wanted = wanted;
  figure.variant = "fused";
  figure.multiplier = "iris";
  figure.graph.us = us;
  figure.eager.us = 2 * us;
  return figure;
}

constexpr char kPeers[] = R"(begins
{"lib": "a", "op": "matmul_all_reduce", "shape": [64, 128, 256], "n": 4, "us": 20}
{"lib": "b", "op": "matmul_all_reduce", "variant": "two", "shape": [64, 128, 256], "n": 4, "us": 9}
{"lib": "b", "op": "matmul_all_reduce", "variant": "two", "shape": [64, 128, 256], "n": 4, "us": 8}
{"lib": "a", "op": "matmul_all_reduce", "shape": [64, 128, 257], "n": 4, "us": 1}
{"lib": "a", "op": "matmul_all_reduce", "shape": [64, 128], "n": 4, "us": 1}
{"lib": "a", "op": "matmul_all_reduce", "shape": [64, 128, 0], "n": 4, "us": 1}
{"lib": "a", "op": "matmul_all_reduce", "shape": [64, 128, -1], "n": 4, "us": 1}
{"lib": "a", "op": "matmul_all_reduce", "shape": "64x128x256", "n": 4, "us": 1}
{"lib": "a", "op": "matmul_all_reduce", "n": 4, "us": 1}
)";

TEST(ProductTableTest, PeersStandBesideAndTheBestDecides) {
  const std::vector<PeerFigure> peers = ParsePeers(kPeers);
  ASSERT_EQ(peers.size(), 4u);
  EXPECT_EQ(peers[1].name, "b two");
  EXPECT_EQ(peers[1].shape.k, 256u);
  std::vector<std::string> behind;
  const nlohmann::json table =
      ProductTable({Figure("auto", 10), Figure("pair", 4)}, peers, &behind).Json();
  ASSERT_EQ(table["rows"].size(), 2u);
  const nlohmann::json& row = table["rows"][0];
  EXPECT_EQ(row["a"], 20.0);
  EXPECT_EQ(row["b two"], 8.0);  // of two the least
  EXPECT_EQ(row["best peer"], "b two");
  EXPECT_EQ(row["peer ratio"], 0.8);
  EXPECT_EQ(row["k"], 256);
  EXPECT_EQ(table["rows"][1]["peer ratio"], 2.0);
  // A variant that was requested by name does not count.
  EXPECT_THAT(behind, ElementsAre("matmul_all_reduce on 4, 64x128x256 (0.800, b two)"));
  EXPECT_THAT(table["notes"].dump(), HasSubstr("below 1.0: 1 of 1 rows"));
  EXPECT_THAT(table["notes"].dump(), HasSubstr("1 figures of peers are of"));
}

TEST(ProductTableTest, WithoutPeers) {
  std::vector<std::string> behind = {"old"};
  const nlohmann::json table = ProductTable({Figure("auto", 10)}, {}, &behind).Json();
  EXPECT_TRUE(behind.empty());
  EXPECT_TRUE(table["rows"][0]["best peer"].is_null());
  EXPECT_THAT(table["notes"].dump(), HasSubstr("No peers"));
}

TEST(ShapeTest, TextAndBack) {
  const auto shape = ParseShape("8192x4096x14336");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(ShapeText(*shape), "8192x4096x14336");
  for (const char* text : {"", "1x2", "1x2x3x4", "0x1x1", "-1x1x1", "1x1x2147483648", "ax1x1",
                           "1x1x1 ", "+1x1x1", "99999999999999999999x1x1"}) {
    EXPECT_THAT(std::string(ParseShape(text).status().message()), HasSubstr("is no shape such as"))
        << text;
  }
}

TEST(ShapeTest, RandomOnesAreTheSameForASeed) {
  const auto shapes = RandomShapes(50, 7, 8192);
  std::set<std::string> texts;
  for (const ProductShape& shape : shapes) {
    for (const uint64_t dimension : {shape.m, shape.n, shape.k}) {
      EXPECT_EQ(dimension % 64, 0u);
      EXPECT_GE(dimension, 64u);
      EXPECT_LE(dimension, 8192u);
    }
    texts.insert(ShapeText(shape));
  }
  EXPECT_GT(texts.size(), 40u);
  EXPECT_EQ(ShapeText(RandomShapes(50, 7, 8192)[49]), ShapeText(shapes[49]));
  EXPECT_NE(ShapeText(RandomShapes(50, 8, 8192)[49]), ShapeText(shapes[49]));
}

}  // namespace
}  // namespace iris::bench
