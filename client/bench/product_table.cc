#include "client/bench/product_table.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace iris::bench {
namespace {

constexpr uint64_t kMaxDimension = (uint64_t{1} << 31) - 1;
constexpr uint64_t kStep = 64;
constexpr char kAuto[] = "auto";

}  // namespace

absl::StatusOr<ProductShape> ParseShape(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, 'x');
  uint64_t dimensions[3] = {};
  bool good = words.size() == 3;
  for (size_t i = 0; good && i < 3; ++i) {
    good = !words[i].empty() && words[i].size() <= 10 &&
           words[i].find_first_not_of("0123456789") == std::string::npos &&
           absl::SimpleAtoi(words[i], &dimensions[i]) && dimensions[i] >= 1 &&
           dimensions[i] <= kMaxDimension;
  }
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is no shape such as 8192x4096x14336 (m, n, k; each from 1 to 2^31 - 1)"));
  }
  return ProductShape{dimensions[0], dimensions[1], dimensions[2]};
}

std::string ShapeText(const ProductShape& shape) {
  return absl::StrCat(shape.m, "x", shape.n, "x", shape.k);
}

std::vector<ProductShape> RandomShapes(uint32_t count, uint64_t seed, uint64_t largest) {
  std::mt19937_64 random(seed);
  // By hand: the distributions of the library differ from one to the next.
  const auto dimension = [&] {
    const double part = static_cast<double>(random() >> 11) / static_cast<double>(1ull << 53);
    const double most = static_cast<double>(std::max(largest, kStep)) / kStep;
    const uint64_t steps = static_cast<uint64_t>(std::exp(part * std::log(most)) + 0.5);
    return std::max<uint64_t>(1, steps) * kStep;
  };
  std::vector<ProductShape> shapes;
  for (uint32_t i = 0; i < count; ++i) {
    ProductShape shape;
    shape.m = dimension();
    shape.n = dimension();
    shape.k = dimension();
    shapes.push_back(shape);
  }
  return shapes;
}

Table ProductTable(const std::vector<ProductFigure>& ours, const std::vector<PeerFigure>& peers,
                   std::vector<std::string>* behind) {
  std::vector<OurRow> rows;
  for (const ProductFigure& f : ours) {
    rows.push_back(
        {{f.operation, f.ranks, f.shape.m, f.shape.n, f.shape.k, f.wanted, f.variant, f.multiplier,
          f.eager.us, f.graph.us, f.eager.product_us, f.graph.product_us, f.eager.ratio,
          f.graph.ratio, f.graph.communication_us, f.graph.hidden, f.tflops},
         {"", f.operation, 0, f.ranks, f.graph.us, f.shape},
         absl::StrCat(f.operation, " on ", f.ranks, ", ", ShapeText(f.shape)),
         f.wanted == kAuto});
  }
  return PeerTable({"matmul",
                    "us of products of matrices with their communication in bf16; ratio: to the "
                    "plain product of one rank; peer ratio: best peer / Iris, in graphs",
                    "peer ratio", 3, "Peer ratio of auto", "shapes"},
                   {{"operation"},
                    {"ranks"},
                    {"m"},
                    {"n"},
                    {"k"},
                    {"wanted"},
                    {"variant"},
                    {"multiplier"},
                    {"us", 2},
                    {"graph us", 2},
                    {"product us", 2},
                    {"graph product us", 2},
                    {"ratio", 3},
                    {"graph ratio", 3},
                    {"communication us", 2},
                    {"hidden", 3},
                    {"TFLOP/s", 1}},
                   rows, peers, behind);
}

}  // namespace iris::bench
