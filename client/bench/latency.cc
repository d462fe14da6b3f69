// pingpong and barrier.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/bench/sections.h"

namespace iris::bench {
namespace {

constexpr double kNsPerUs = 1e3;

}  // namespace

absl::StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParsePairs(const std::string& text,
                                                                      uint32_t n_ranks) {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  if (text == "first" || text == "all") {
    for (uint32_t a = 0; a < (text == "all" ? n_ranks : 1); ++a) {
      for (uint32_t b = a + 1; b < n_ranks; ++b) pairs.emplace_back(a, b);
    }
    return pairs;
  }
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(item, '-');
    uint32_t a = 0, b = 0;
    if (!absl::SimpleAtoi(ends.first, &a) || !absl::SimpleAtoi(ends.second, &b)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", item, "\" is no pair of ranks: --pairs first, all, or 0-1,2-3"));
    }
    if (a == b || a >= n_ranks || b >= n_ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pair ", item, ": two different ranks from 0 to ", n_ranks - 1, " are needed"));
    }
    pairs.emplace_back(a, b);
  }
  return pairs;
}

absl::Status PingPong(const Run& run) {
  const uint32_t n = run.rank.n_ranks(), me = run.rank.rank();
  IRIS_ASSIGN_OR_RETURN(const auto pairs, ParsePairs(run.options.pairs, n));
  Table table("pingpong",
              absl::StrFormat("us; flag: round trip of one thread, by signal set and wait; "
                              "put_signal: one way, half a round trip; samples of %u rounds",
                              run.options.rounds),
              {{"ranks"},
               {"flag p50", 2},
               {"flag min", 2},
               {"flag max", 2},
               {"put_signal 8 B", 2},
               {"put_signal 1 KiB", 2},
               {"put_signal 64 KiB", 2}});
  std::vector<double> flag_times;
  for (const auto& [a, b] : pairs) {
    IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
    if (!time_left) {
      table.Note(absl::StrCat(a, "-", b, " left out: the time was over."));
      continue;
    }
    std::vector<double> mine;
    PingPongSpec spec;
    spec.peer = me == a ? b : a;
    spec.first = me == a;
    spec.flag = run.areas.flags + a * kMaxTeamRanks + b;
    spec.payload = run.areas.payload;
    struct Kind {
      uint64_t bytes;
      uint32_t block;
      uint32_t fewer;  // rounds are divided by it
    };
    for (const Kind kind :
         {Kind{0, 1, 1}, Kind{8, 32, 2}, Kind{1024, 64, 2}, Kind{Areas::kPayloadBytes, 512, 4}}) {
      spec.payload_bytes = kind.bytes;
      spec.block = kind.block;
      spec.rounds = std::max(run.options.rounds / kind.fewer, 1u);
      spec.samples = run.options.samples;
      if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
      if (me == a || me == b) {
        IRIS_ASSIGN_OR_RETURN(const auto samples, run.rank.device().RunPingPong(spec));
        const Spread spread = SpreadOf(samples);
        mine.insert(mine.end(), {spread.p50, spread.min, spread.max});
      }
      spec.base += Device::PingPongRounds(spec);
    }
    IRIS_ASSIGN_OR_RETURN(const auto all, run.rank.AllGather(mine));
    const std::vector<double>& seen = all[a];
    flag_times.push_back(seen[0] / kNsPerUs);
    table.Add({absl::StrCat(a, "-", b), seen[0] / kNsPerUs, seen[1] / kNsPerUs, seen[2] / kNsPerUs,
               seen[3] / kNsPerUs / 2, seen[6] / kNsPerUs / 2, seen[9] / kNsPerUs / 2});
  }
  if (flag_times.empty()) {
    table.Note("Nothing to measure: it takes two ranks.");
  } else {
    const Spread spread = SpreadOf(flag_times);
    table.Note(absl::StrFormat("flag, medians over the pairs: %.2f to %.2f us, p50 %.2f",
                               spread.min, spread.max, spread.p50));
  }
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

absl::Status Barriers(const Run& run) {
  Table table("barrier",
              absl::StrFormat("us a barrier of %u ranks; in a kernel: %u rounds in a loop; as a "
                              "kernel: one launch each, replayed as a graph",
                              run.rank.n_ranks(), run.options.rounds),
              {{"how"}, {"blocks"}, {"threads"}, {"p50", 2}, {"min", 2}, {"max", 2}});
  struct Shape {
    uint32_t grid, block;
  };
  for (const bool in_kernel : {true, false}) {
    for (const Shape shape :
         {Shape{1, 32}, Shape{1, run.options.block}, Shape{16, run.options.block}}) {
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      if (!time_left) {
        table.Note("Some shapes left out: the time was over.");
        continue;
      }
      KernelSpec spec;
      spec.grid = shape.grid;
      spec.block = shape.block;
      // A graph of a thousand nodes would take longer to make than to run.
      spec.rounds = in_kernel ? run.options.rounds : std::max(run.options.rounds / 5, 2u);
      spec.samples = run.options.samples;
      if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
      IRIS_ASSIGN_OR_RETURN(const auto mine, in_kernel ? run.rank.device().RunBarriersInKernel(spec)
                                                       : run.rank.device().RunBarrierKernels(spec));
      IRIS_ASSIGN_OR_RETURN(const auto samples, AllSamples(run.rank, mine));
      const Spread spread = SpreadOf(samples);
      table.Add({in_kernel ? "in a kernel" : "as a kernel", shape.grid, shape.block,
                 spread.p50 / kNsPerUs, spread.min / kNsPerUs, spread.max / kNsPerUs});
    }
  }
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

}  // namespace iris::bench
