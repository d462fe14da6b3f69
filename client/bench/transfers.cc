// bandwidth, sweep and atomics.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/base/annotate.h"
#include "client/base/whole_file.h"
#include "client/bench/sections.h"

namespace iris::bench {
namespace {

constexpr size_t kNTransfers = std::size(kTransferNames);
constexpr size_t kFirstCopy = static_cast<size_t>(Transfer::kGet);

double GbPerSecond(uint64_t bytes, double nanoseconds) {
  return nanoseconds > 0 ? static_cast<double>(bytes) / nanoseconds : 0;
}

// Returns the number of blocks, by default a power of two that divides the bytes: with a few
// blocks more, some threads would need one more round, for which all wait.
uint32_t DefaultGrid(const BenchOptions& options) {
  if (options.grid != 0) return options.grid;
  uint32_t grid = 1;
  while (2 * grid <= Device::MultiprocessorCount()) grid *= 2;
  return grid;
}

const char* NameOf(Transfer transfer) { return kTransferNames[static_cast<size_t>(transfer)]; }

TransferSpec SpecOf(const Run& run, Transfer transfer, uint32_t peer) {
  TransferSpec spec;
  spec.transfer = transfer;
  spec.peer = peer;
  spec.remote = run.areas.target;
  spec.local = run.areas.source;
  spec.bytes = run.options.bytes;
  spec.grid = DefaultGrid(run.options);
  spec.block = run.options.block;
  spec.chunk_bytes = run.options.chunk_bytes;
  spec.samples = run.options.samples;
  return spec;
}

}  // namespace

absl::Status Bandwidth(const Run& run) {
  const uint32_t n = run.rank.n_ranks(), me = run.rank.rank();
  // The median GB/s of this rank's transfers, by peer and transfer.
  std::vector<double> mine(n * kNTransfers, 0);
  uint32_t left_out = 0;
  for (uint32_t a = 0; a < n; ++a) {
    for (uint32_t b = 0; b < n; ++b) {
      if (a == b && n > 1) continue;
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      if (!time_left) {
        ++left_out;
        continue;
      }
      if (me == a) {
        // Loads and stores reach mapped memory alone.
        for (size_t t = run.rank.Reaches(b) ? 0 : kFirstCopy; t < kNTransfers; ++t) {
          IRIS_ASSIGN_OR_RETURN(const auto samples, run.rank.device().RunTransfer(
                                                        SpecOf(run, static_cast<Transfer>(t), b)));
          mine[b * kNTransfers + t] = GbPerSecond(run.options.bytes, SpreadOf(samples).p50);
        }
      }
      if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
    }
  }
  IRIS_ASSIGN_OR_RETURN(const auto all, run.rank.AllGather(mine));
  const auto rate = [&](uint32_t a, uint32_t b, size_t t) { return all[a][b * kNTransfers + t]; };

  const std::string how =
      absl::StrFormat("%s a transfer, %u blocks x %u threads, one pair at a time, medians of %u",
                      BytesText(run.options.bytes), DefaultGrid(run.options), run.options.block,
                      run.options.samples);
  Table summary("bandwidth", absl::StrCat("GB/s over all pairs; ", how),
                {{"transfer"},
                 {"worst GB/s", 1},
                 {"worst pair"},
                 {"median GB/s", 1},
                 {"best GB/s", 1},
                 {"of copy engine, worst", 3},
                 {"of copy engine, median", 3}});
  // The link's rate is that of the copy engine in this run, on the same pair.
  const size_t reference = kNTransfers - 1;
  for (size_t t = 0; t < kNTransfers; ++t) {
    std::vector<double> rates, fractions;
    double worst = std::numeric_limits<double>::infinity();
    std::string worst_pair;
    for (uint32_t a = 0; a < n; ++a) {
      for (uint32_t b = 0; b < n; ++b) {
        if (rate(a, b, t) == 0) continue;
        rates.push_back(rate(a, b, t));
        fractions.push_back(rate(a, b, t) / rate(a, b, reference));
        if (rates.back() < worst) {
          worst = rates.back();
          worst_pair = absl::StrCat(a, "->", b);
        }
      }
    }
    if (rates.empty()) continue;
    const Spread spread = SpreadOf(rates), fraction = SpreadOf(fractions);
    summary.Add({kTransferNames[t], spread.min, worst_pair, spread.p50, spread.max, fraction.min,
                 fraction.p50});
  }
  summary.Note("a->b: rank a runs the transfer on the memory of rank b.");
  if (left_out > 0) summary.Note(absl::StrCat(left_out, " pairs left out: the time was over."));
  run.report->Add(std::move(summary));

  for (size_t t = 0; t < kNTransfers && n > 1; ++t) {
    bool measured = false;
    std::vector<Table::Column> columns = {{"rank"}};
    for (uint32_t b = 0; b < n; ++b) columns.push_back({absl::StrCat("->", b), 1});
    std::string name = kTransferNames[t];
    std::replace(name.begin(), name.end(), ' ', '_');
    Table matrix(absl::StrCat("bandwidth_", name), absl::StrCat(kTransferNames[t], ", GB/s"),
                 std::move(columns));
    for (uint32_t a = 0; a < n; ++a) {
      std::vector<nlohmann::json> row = {absl::StrCat(a)};
      for (uint32_t b = 0; b < n; ++b) {
        row.push_back(CellIf(rate(a, b, t) != 0, rate(a, b, t)));
        measured |= rate(a, b, t) != 0;
      }
      matrix.Add(std::move(row));
    }
    if (measured) run.report->Add(std::move(matrix));
  }
  return absl::OkStatus();
}

absl::Status Sweep(const Run& run) {
  constexpr uint64_t kSmallest = 4096;
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = kSmallest; bytes <= run.options.bytes; bytes *= 4) sizes.push_back(bytes);
  if (sizes.empty()) sizes.push_back(run.options.bytes);
  const uint32_t peer = run.rank.n_ranks() > 1 ? 1 : 0;

  std::vector<Table::Column> columns = {{"transfer"}, {"blocks"}};
  for (const uint64_t bytes : sizes) columns.push_back({BytesText(bytes), 1});
  Table table("sweep",
              absl::StrFormat("GB/s from rank 0 to rank %u (get: the other way), blocks of %u "
                              "threads, one operation after another; medians of %u",
                              peer, run.options.block, run.options.samples),
              std::move(columns));
  std::vector<Plot> plots;
  bool cut = false;
  for (const Transfer transfer : {Transfer::kPut, Transfer::kGet}) {
    Plot plot;
    plot.title = absl::StrFormat("%s, rank 0 and rank %u", NameOf(transfer), peer);
    plot.y_title = "GB/s";
    std::pair<double, uint32_t> best = {}, best_of_few = {};  // GB/s, blocks
    // A grid of 0 stands for the copy engine.
    std::vector<uint32_t> grids = run.options.grids;
    grids.push_back(0);
    for (const uint32_t grid : grids) {
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      if (!time_left) {
        cut = true;
        continue;
      }
      const Transfer by =
          grid != 0 ? transfer
                    : (transfer == Transfer::kPut ? Transfer::kCopyPut : Transfer::kCopyGet);
      std::vector<nlohmann::json> row = {NameOf(by), CellIf(grid != 0, grid)};
      Plot::Line line;
      line.name = grid == 0 ? "copy engine" : absl::StrCat(grid, grid == 1 ? " block" : " blocks");
      if (run.rank.rank() == 0) {
        for (const uint64_t bytes : sizes) {
          TransferSpec spec = SpecOf(run, by, peer);
          spec.bytes = bytes;
          spec.grid = std::max(grid, 1u);
          spec.per_sample =
              static_cast<uint32_t>(std::clamp<uint64_t>(run.options.bytes / 16 / bytes, 1, 64));
          IRIS_ASSIGN_OR_RETURN(const auto samples, run.rank.device().RunTransfer(spec));
          const double rate = GbPerSecond(bytes, SpreadOf(samples).p50);
          row.push_back(rate);
          line.points.emplace_back(bytes, rate);
          if (grid != 0 && rate > best.first) best = {rate, grid};
          if (grid != 0 && grid <= 16 && rate > best_of_few.first) best_of_few = {rate, grid};
        }
      }
      table.Add(std::move(row));
      plot.lines.push_back(std::move(line));
      if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
    }
    table.Note(absl::StrFormat(
        "%s: %.1f GB/s at best (%u blocks); with at most 16 blocks %.1f (%u)", NameOf(transfer),
        best.first, best.second, best_of_few.first, best_of_few.second));
    plots.push_back(std::move(plot));
  }
  if (cut) table.Note("Some block counts left out: the time was over.");
  run.report->Add(std::move(table));
  if (run.rank.rank() == 0 && !run.options.svg_path.empty()) {
    return internal::Annotate(internal::WriteFile(run.options.svg_path, Svg(plots)),
                              "cannot write the plot");
  }
  return absl::OkStatus();
}

absl::Status Atomics(const Run& run) {
  const uint32_t next = (run.rank.rank() + 1) % run.rank.n_ranks();
  AtomicSpec spec;
  spec.peer = next;
  spec.words = run.areas.words;
  spec.grid = DefaultGrid(run.options);
  spec.rounds = 20;
  spec.samples = std::min(run.options.samples, 5u);
  const double n_operations = static_cast<double>(spec.grid) * spec.block * spec.rounds;
  Table table("atomics",
              absl::StrFormat("million a second and device, 8 bytes, system scope, relaxed; every "
                              "rank on the next one's words at once; %u blocks x %u threads",
                              spec.grid, spec.block),
              {{"operation"}, {"addresses"}, {"p50", 1}, {"min", 1}, {"max", 1}});
  for (size_t kind = 0; kind < std::size(kAtomicNames); ++kind) {
    for (const uint32_t n_words : {1u, 32u, 4096u}) {
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      if (!time_left) continue;
      spec.kind = static_cast<AtomicKind>(kind);
      spec.n_words = n_words;
      IRIS_ASSIGN_OR_RETURN(const auto samples, run.rank.device().RunAtomics(spec));
      IRIS_ASSIGN_OR_RETURN(std::vector<double> rates, AllSamples(run.rank, samples));
      for (double& rate : rates) rate = n_operations / rate * 1e3;
      const Spread spread = SpreadOf(rates);
      table.Add({kAtomicNames[kind], n_words, spread.p50, spread.min, spread.max});
    }
  }
  table.Note("add: the old value is not used. Addresses are neighbours, thread i uses i mod n.");
  run.report->Add(std::move(table));
  return absl::OkStatus();
}

}  // namespace iris::bench
