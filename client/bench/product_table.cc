#include "client/bench/product_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace iris::bench {
namespace {

constexpr uint64_t kMaxDimension = (uint64_t{1} << 31) - 1;
constexpr uint64_t kStep = 64;
constexpr char kAuto[] = "auto";

using Key = std::tuple<std::string, uint32_t, uint64_t, uint64_t, uint64_t>;

Key KeyOf(const std::string& operation, uint32_t ranks, const ProductShape& shape) {
  return {operation, ranks, shape.m, shape.n, shape.k};
}

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

Table ProductTable(const std::vector<ProductFigure>& ours, const std::vector<PeerFigure>& figures,
                   std::vector<std::string>* behind) {
  // By row and name. Of several of the same, the least: in doubt for the peer.
  std::map<Key, std::map<std::string, double>> rows;
  std::vector<std::string> names;
  size_t n_elsewhere = 0;
  for (const ProductFigure& f : ours) rows[KeyOf(f.operation, f.ranks, f.shape)];
  for (const PeerFigure& figure : figures) {
    const auto row = rows.find(KeyOf(figure.operation, figure.ranks, figure.shape));
    if (row == rows.end()) {
      ++n_elsewhere;
      continue;
    }
    if (std::find(names.begin(), names.end(), figure.name) == names.end()) {
      names.push_back(figure.name);
    }
    const auto [cell, fresh] = row->second.emplace(figure.name, figure.us);
    if (!fresh) cell->second = std::min(cell->second, figure.us);
  }

  std::vector<Table::Column> columns = {{"operation"},
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
                                        {"TFLOP/s", 1}};
  // JSON has cells by column: a peer with the name of another column would hide it.
  std::set<std::string> taken = {"best peer", "peer ratio"};
  for (const Table::Column& column : columns) taken.insert(column.name);
  for (std::string name : names) {
    while (!taken.insert(name).second) name += " (peer)";
    columns.push_back({name, 2});
  }
  columns.push_back({"best peer"});
  columns.push_back({"peer ratio", 3});
  Table table("matmul",
              "us of products of matrices with their communication in bf16; ratio: to the plain "
              "product of one rank; peer ratio: best peer / Iris, in graphs",
              columns);
  std::vector<std::string> slower;
  size_t n_compared = 0;
  for (const ProductFigure& f : ours) {
    std::vector<nlohmann::json> cells = {f.operation,
                                         f.ranks,
                                         f.shape.m,
                                         f.shape.n,
                                         f.shape.k,
                                         f.wanted,
                                         f.variant,
                                         f.multiplier,
                                         f.eager.us,
                                         f.graph.us,
                                         f.eager.product_us,
                                         f.graph.product_us,
                                         f.eager.ratio,
                                         f.graph.ratio,
                                         f.graph.communication_us,
                                         f.graph.hidden,
                                         f.tflops};
    const std::map<std::string, double>& row = rows[KeyOf(f.operation, f.ranks, f.shape)];
    for (const std::string& name : names) {
      const auto it = row.find(name);
      cells.push_back(it == row.end() ? nlohmann::json() : nlohmann::json(it->second));
    }
    const auto best = std::min_element(
        row.begin(), row.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == row.end() || f.graph.us <= 0) {
      cells.push_back(nlohmann::json());
      cells.push_back(nlohmann::json());
    } else {
      const double ratio = best->second / f.graph.us;
      cells.push_back(best->first);
      cells.push_back(ratio);
      if (f.wanted == kAuto) {
        ++n_compared;
        if (ratio < 1) {
          slower.push_back(absl::StrCat(f.operation, " on ", f.ranks, ", ", ShapeText(f.shape),
                                        absl::StrFormat(" (%.3f, %s)", ratio, best->first)));
        }
      }
    }
    table.Add(std::move(cells));
  }
  if (figures.empty()) {
    table.Note(
        "No peers: --peers FILE or --peers-command 'CMD {ranks}' puts theirs beside these; see "
        "--help.");
  } else {
    table.Note(absl::StrCat("Peer ratio of auto below 1.0: ", slower.size(), " of ", n_compared,
                            " rows", slower.empty() ? "" : ": ", absl::StrJoin(slower, "; "), "."));
  }
  if (n_elsewhere > 0) {
    table.Note(absl::StrCat(n_elsewhere,
                            " figures of peers are of operations, ranks or shapes that were not "
                            "measured here, and left out."));
  }
  if (behind != nullptr) *behind = std::move(slower);
  return table;
}

}  // namespace iris::bench
