#include "client/bench/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "iris/types.h"

namespace iris::bench {
namespace {

constexpr double kNearlyEqual = 1.02;
// Between nodes, what is not the default, or does not scale as rails do, has to win by this.
constexpr double kClearlyFaster = 1.05;
constexpr double kHarmful = 1.1;

// The figures of one operation, rank count and size.
using Figures = std::vector<const CollectiveFigure*>;

uint64_t GeometricMiddle(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
}

uint64_t Threads(const CollectiveFigure& figure) {
  return static_cast<uint64_t>(figure.blocks) * figure.threads;
}

const CollectiveFigure* Best(const Figures& figures, bool without_copy_engine) {
  const auto counts = [&](const CollectiveFigure& f) {
    return !without_copy_engine || f.variant != kCopyEngine;
  };
  const CollectiveFigure* fastest = nullptr;
  for (const CollectiveFigure* f : figures) {
    if (counts(*f) && (fastest == nullptr || f->us < fastest->us)) fastest = f;
  }
  const CollectiveFigure* best = fastest;
  for (const CollectiveFigure* f : figures) {
    if (!counts(*f) || f->us > kNearlyEqual * fastest->us) continue;
    if (Threads(*f) < Threads(*best)) best = f;
  }
  return best;
}

// Adds a rule for `figure` up to `max_bytes`. If it equals the rule before, that rule is extended.
void AddRule(const CollectiveFigure& figure, uint32_t max_members, uint64_t max_bytes,
             std::vector<CollectiveRule>* rules) {
  const CollectiveRule rule = {figure.what.operation, max_members,        max_bytes,
                               figure.variant,        figure.what.blocks, figure.what.threads,
                               figure.what.unroll};
  if (!rules->empty()) {
    CollectiveRule& last = rules->back();
    if (std::tie(last.operation, last.max_members, last.variant, last.blocks, last.threads,
                 last.unroll) == std::tie(rule.operation, rule.max_members, rule.variant,
                                          rule.blocks, rule.threads, rule.unroll)) {
      last.max_bytes = max_bytes;
      return;
    }
  }
  rules->push_back(rule);
}

}  // namespace

std::vector<CollectiveRule> MakeRules(const std::vector<CollectiveFigure>& figures) {
  std::vector<std::string> operations;
  std::map<std::string, std::map<uint32_t, std::map<uint64_t, Figures>>> sorted;
  for (const CollectiveFigure& figure : figures) {
    const std::string& operation = figure.what.operation;
    if (sorted.find(operation) == sorted.end()) operations.push_back(operation);
    sorted[operation][figure.ranks][figure.what.bytes].push_back(&figure);
  }
  std::vector<CollectiveRule> rules;
  for (const std::string& operation : operations) {
    const auto& by_ranks = sorted[operation];
    for (const auto& [ranks, by_bytes] : by_ranks) {
      const uint32_t max_members = ranks == by_ranks.rbegin()->first ? kMaxTeamRanks : ranks;
      struct Size {
        const CollectiveFigure* best;
        const CollectiveFigure* fallback;  // null: as `best`, or there is none
        uint64_t max_bytes;
      };
      std::vector<Size> sizes;
      for (auto it = by_bytes.begin(); it != by_bytes.end(); ++it) {
        const auto next = std::next(it);
        const uint64_t max_bytes = next == by_bytes.end() ? CollectiveRule::kAnyBytes
                                                          : GeometricMiddle(it->first, next->first);
        const CollectiveFigure* best = Best(it->second, /*without_copy_engine=*/false);
        const bool copies = best->variant == kCopyEngine;
        sizes.push_back({best, copies ? Best(it->second, true) : nullptr, max_bytes});
      }
      // The copy engine's rules of neighbouring sizes, and then their fallbacks.
      for (size_t i = 0; i < sizes.size();) {
        size_t end = i;
        while (end < sizes.size() && sizes[end].best->variant == kCopyEngine) ++end;
        end = std::max(end, i + 1);
        for (size_t k = i; k < end; ++k) {
          AddRule(*sizes[k].best, max_members, sizes[k].max_bytes, &rules);
        }
        for (; i < end; ++i) {
          if (sizes[i].fallback == nullptr) continue;
          AddRule(*sizes[i].fallback, max_members, sizes[i].max_bytes, &rules);
        }
      }
    }
  }
  return rules;
}

std::vector<ProductLine> MakeProductLines(const std::vector<ProductFigure>& figures) {
  struct Score {
    std::string variant;
    size_t shapes = 0;
    double log_ratio = 0;  // the sum over the shapes
  };
  struct Entry {
    ProductLine line;
    std::vector<Score> scores;
  };
  std::vector<Entry> entries;
  for (const ProductFigure& figure : figures) {
    if (figure.wanted == kAuto || figure.graph.us <= 0) continue;
    double best_us = figure.graph.us;
    for (const ProductFigure& other : figures) {
      if (other.wanted != kAuto && other.graph.us > 0 && other.operation == figure.operation &&
          other.ranks == figure.ranks && other.shape == figure.shape) {
        best_us = std::min(best_us, other.graph.us);
      }
    }
    ProductLine line = {figure.operation, figure.ranks, figure.shape, ""};
    if (line.operation == "matmul_all_reduce" || line.operation == "matmul_reduce_scatter") {
      line.shape.k = 0;
    }
    if (line.operation == "all_gather_matmul") line.shape.n = 0;
    auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
      return e.line.operation == line.operation && e.line.members == line.members &&
             e.line.shape == line.shape;
    });
    if (entry == entries.end()) entry = entries.insert(entries.end(), {line, {}});
    auto score = std::find_if(entry->scores.begin(), entry->scores.end(),
                              [&](const Score& s) { return s.variant == figure.wanted; });
    if (score == entry->scores.end()) {
      score = entry->scores.insert(entry->scores.end(), {figure.wanted});
    }
    ++score->shapes;
    score->log_ratio += std::log(figure.graph.us / best_us);
  }
  std::vector<ProductLine> lines;
  for (Entry& entry : entries) {
    const Score* best = &entry.scores[0];
    for (const Score& score : entry.scores) {
      const bool more = score.shapes > best->shapes;
      if (more || (score.shapes == best->shapes && score.log_ratio < best->log_ratio)) {
        best = &score;
      }
    }
    entry.line.variant = best->variant;
    lines.push_back(entry.line);
  }
  return lines;
}

uint64_t LeadersMostBytes(const std::vector<PathFigure>& figures) {
  // The sum of logarithms if the first `n` sizes take leaders.
  const auto cost = [&figures](size_t n) {
    double sum = 0;
    for (size_t i = 0; i < figures.size(); ++i) {
      sum += std::log(i < n ? figures[i].leaders : figures[i].rails);
    }
    return sum;
  };
  double least = cost(0);
  for (size_t n = 1; n <= figures.size(); ++n) least = std::min(least, cost(n));
  size_t best = 0;
  while (cost(best) > least + std::log(kClearlyFaster)) ++best;
  if (best == 0) return 1;
  const uint64_t last = figures[best - 1].bytes;
  return best == figures.size() ? last : GeometricMiddle(last, figures[best].bytes);
}

size_t BestCandidate(const std::vector<std::vector<double>>& times) {
  std::vector<double> means(times[0].size());
  for (const std::vector<double>& of_case : times) {
    for (size_t i = 0; i < means.size(); ++i) {
      const bool harms = of_case[i] > kHarmful * of_case[0];
      means[i] += harms ? std::numeric_limits<double>::infinity()
                        : std::log(of_case[i]) / static_cast<double>(times.size());
    }
  }
  const double most = *std::min_element(means.begin(), means.end()) + std::log(kClearlyFaster);
  return std::find_if(means.begin(), means.end(), [most](double m) { return m <= most; }) -
         means.begin();
}

std::string SizeWord(uint64_t bytes) {
  if (bytes == 0 || bytes % 1024 != 0) return absl::StrCat(bytes);
  return bytes % (1 << 20) == 0 ? absl::StrCat(bytes >> 20, "MiB")
                                : absl::StrCat(bytes >> 10, "KiB");
}

std::string ProductLineText(const ProductLine& line) {
  const auto word = [](uint64_t number) {
    return number == 0 ? std::string("any") : absl::StrCat(number);
  };
  return absl::StrFormat("%-21s %3s %6s %6s %6s  %s", line.operation, word(line.members),
                         word(line.shape.m), word(line.shape.n), word(line.shape.k), line.variant);
}

}  // namespace iris::bench
