// create, allocate and grow: measures operations that go through irisd.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/base/absl_status.h"
#include "client/bench/sections.h"

namespace iris::bench {
namespace {

using base::ToAbsl;

// All processes of the node read the same clock.
double MonotonicMilliseconds() {
  struct timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Returns the time from the first rank's start, its value 0, to the last one's end, its value 1.
double Span(const std::vector<std::vector<double>>& all) {
  double first = all[0][0], last = all[0][1];
  for (const std::vector<double>& of_rank : all) {
    first = std::min(first, of_rank[0]);
    last = std::max(last, of_rank[1]);
  }
  return last - first;
}

// Creates one more context for the same ranks.
absl::StatusOr<Context> Another(Context& main, const std::string& suffix, uint64_t heap_bytes,
                                uint64_t max_heap_bytes) {
  ContextOptions options;
  options.job = absl::StrCat(main.job().substr(0, 64), "-", suffix);
  options.rank = static_cast<int>(main.rank());
  options.n_ranks = static_cast<int>(main.n_ranks());
  options.device_uuid = main.device_uuid();
  options.heap_bytes = heap_bytes;
  options.max_heap_bytes = max_heap_bytes;
  return ToAbsl(Context::Create(options));
}

}  // namespace

absl::Status Create(const Run& run) {
  Context& main = *run.rank.context();
  Table table("create",
              absl::StrFormat("ms from Context::Create to a usable heap, %u ranks at once, devices "
                              "already in use; total: first call to last return",
                              main.n_ranks()),
              {{"heap"},
               {"total p50", 2},
               {"total min", 2},
               {"total max", 2},
               {"connect", 2},
               {"join", 2},
               {"irisd create", 2},
               {"irisd export", 2},
               {"map", 2},
               {"client import", 2},
               {"client map", 2},
               {"client access", 2},
               {"commit", 2},
               {"n"}});
  for (const uint64_t heap_bytes : run.options.heaps) {
    std::vector<double> totals;
    std::vector<std::vector<double>> parts(9);
    for (uint32_t i = 0; i < run.options.samples; ++i) {
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      if (!time_left) break;
      if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
      const double start = MonotonicMilliseconds();
      const auto made =
          Another(main, absl::StrCat("create-", heap_bytes, "-", i), heap_bytes, heap_bytes);
      const double end = MonotonicMilliseconds();
      if (!made.ok()) return made.status();
      const CreateTimings timings = made->create_timings();
      std::vector<double> mine = {start, end};
      for (const std::chrono::nanoseconds part :
           {timings.connect, timings.join, timings.create, timings.export_fds, timings.map,
            timings.import, timings.map_memory, timings.set_access, timings.commit}) {
        mine.push_back(static_cast<double>(part.count()) / 1e6);
      }
      IRIS_ASSIGN_OR_RETURN(const auto all, run.rank.AllGather(mine));
      totals.push_back(Span(all));
      for (size_t part = 0; part < parts.size(); ++part) {
        for (const auto& of_rank : all) parts[part].push_back(of_rank[2 + part]);
      }
    }
    if (totals.empty()) {
      table.Note(absl::StrCat(BytesText(heap_bytes), " left out: the time was over."));
      continue;
    }
    const Spread total = SpreadOf(totals);
    std::vector<nlohmann::json> row = {BytesText(heap_bytes), total.p50, total.min, total.max};
    for (const auto& part : parts) row.push_back(SpreadOf(part).p50);
    row.push_back(totals.size());
    table.Add(std::move(row));
  }
  table.Note(
      "Parts: medians over ranks. join, of which irisd's two are part, and commit include waiting "
      "for the slowest rank; map has the client's three.");
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

absl::Status Allocate(const Run& run) {
  Context& context = *run.rank.context();
  const uint32_t n = std::max(run.options.rounds / 10, 2u);
  std::vector<double> allocate_us, free_us;
  for (uint32_t i = 0; i < n; ++i) {
    if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
    const double start = MonotonicMilliseconds();
    const auto allocation = context.Allocate<uint8_t>(64 << 10);
    const double between = MonotonicMilliseconds();
    if (!allocation.ok()) return ToAbsl(allocation.status());
    if (Status freed = context.Free(*allocation); !freed.ok()) return ToAbsl(freed);
    allocate_us.push_back((between - start) * 1e3);
    free_us.push_back((MonotonicMilliseconds() - between) * 1e3);
  }
  Table table("allocate", absl::StrFormat("us, %u ranks together", context.n_ranks()),
              {{"what"}, {"p50", 1}, {"min", 1}, {"max", 1}, {"n"}});
  for (const auto& [what, mine] :
       {std::pair("allocate 64 KiB", &allocate_us), std::pair("free", &free_us)}) {
    IRIS_ASSIGN_OR_RETURN(const auto samples, AllSamples(run.rank, *mine));
    const Spread spread = SpreadOf(samples);
    table.Add({what, spread.p50, spread.min, spread.max, samples.size()});
  }
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

absl::Status Grow(const Run& run) {
  Context& main = *run.rank.context();
  const uint64_t step = run.options.grow_bytes;
  const uint32_t n = run.options.samples;
  IRIS_ASSIGN_OR_RETURN(Context grown, Another(main, "grow", step, step * (n + 2)));
  std::vector<double> totals;
  for (uint32_t i = 0; i < n; ++i) {
    if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
    const double start = MonotonicMilliseconds();
    if (Status status = grown.Grow(step); !status.ok()) return ToAbsl(status);
    IRIS_ASSIGN_OR_RETURN(const auto all, run.rank.AllGather({start, MonotonicMilliseconds()}));
    totals.push_back(Span(all));
  }
  const Spread spread = SpreadOf(totals);
  Table table("grow",
              absl::StrFormat("ms until %u heaps are larger, and all ranks have mapped all of it",
                              main.n_ranks()),
              {{"by"}, {"p50", 2}, {"min", 2}, {"max", 2}, {"n"}});
  table.Add({BytesText(step), spread.p50, spread.min, spread.max, n});
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

}  // namespace iris::bench
