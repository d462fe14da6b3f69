// Runs collectives, tune, compare and matmul, once their options have been read.

#include <iostream>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/base/annotate.h"
#include "client/base/whole_file.h"
#include "client/bench/collectives.h"
#include "client/bench/commands.h"
#include "client/bench/compare.h"
#include "client/bench/device.h"
#include "client/bench/rules.h"
#include "iris/status.h"

namespace iris::bench {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kSizes[] = {kKiB,     8 * kKiB,  64 * kKiB,  256 * kKiB, kMiB,
                               4 * kMiB, 16 * kMiB, 128 * kMiB, 1024 * kMiB};
constexpr uint64_t kMaxEmulatedBytes = kMiB;  // by default
// More than this for a block is far from the best, and takes seconds.
constexpr uint64_t kMaxBytesOfABlock = 32 * kMiB;
// Below the limit of a line in a table of rules.
constexpr size_t kMaxCommentBytes = 200;
constexpr size_t kMaxRulesBytes = 1 << 20;
// Layers of language models, one of them of a few rows.
constexpr const char* kShapes[] = {"8192x4096x14336", "4096x8192x8192", "1024x4096x14336",
                                   "64x8192x8192", "8192x8192x28672"};
constexpr uint32_t kRandomShapes = 10;

template <typename T>
std::vector<T> Or(const std::vector<T>& given, const std::vector<T>& otherwise) {
  return given.empty() ? otherwise : given;
}

std::vector<uint64_t> Sizes(const AloneSettings& settings) {
  std::set<uint64_t> sizes(settings.sizes.begin(), settings.sizes.end());
  if (sizes.empty()) {
    for (const uint64_t bytes : kSizes) {
      if (!Device::Emulated() || bytes <= kMaxEmulatedBytes) sizes.insert(bytes);
    }
  }
  return {sizes.begin(), sizes.end()};
}

absl::StatusOr<std::vector<ProductShape>> Shapes(const AloneSettings& settings) {
  const Names usual =
      Device::Emulated() ? Names{"64x64x64"} : Names(std::begin(kShapes), std::end(kShapes));
  std::vector<ProductShape> shapes;
  for (const std::string& text : Or(settings.shapes, usual)) {
    const auto shape = ParseShape(text);
    if (!shape.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--shapes: ", shape.status().message()));
    }
    shapes.push_back(*shape);
  }
  return shapes;
}

struct Search {
  Names variants;
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> threads;
  std::vector<uint32_t> unrolls;
  bool as_rules = false;
  bool skip_slow = false;  // block counts that are far too few for a size
};

// Returns the variants to search that the operation has. Sets `*chosen` if the user named them.
Names VariantsFor(const std::string& operation, const Names& wanted, bool* chosen) {
  *chosen = false;
  if (operation == kBarrier || (wanted.size() == 1 && wanted[0] == kAuto)) return {kAuto};
  Names variants = CollectiveVariants(operation);
  if (wanted.size() == 1 && wanted[0] == kAll) return variants;
  *chosen = true;
  Names named;
  for (const std::string& name : wanted) {
    if (Has(variants, name)) named.push_back(name);
  }
  return named;
}

std::vector<CollectiveCase> Cases(const Names& operations, const std::vector<uint64_t>& sizes,
                                  const Search& search, uint32_t ranks) {
  std::vector<CollectiveCase> cases;
  for (const std::string& operation : operations) {
    bool chosen = false;
    const Names variants = VariantsFor(operation, search.variants, &chosen);
    for (const uint64_t bytes : operation == kBarrier ? std::vector<uint64_t>{0} : sizes) {
      for (const std::string& variant : variants) {
        CollectiveCase what = {operation, bytes, variant, 0, 0, search.as_rules};
        if (!chosen && variant != kAuto && !IsWorthMeasuring(what, ranks)) continue;
        if (search.as_rules) {
          // Without blocks and threads, the size chooses them. Pure copies have none to search.
          const bool copies_alone = variant == kCopyEngine && operation != "all_reduce";
          if (copies_alone) what.blocks = 1, what.threads = 32;
          cases.push_back(what);
          if (copies_alone) continue;
        }
        for (const uint32_t blocks : search.blocks) {
          if (search.skip_slow && bytes > blocks * kMaxBytesOfABlock) continue;
          for (const uint32_t threads : search.threads) {
            what.blocks = blocks;
            what.threads = threads;
            for (const uint32_t unroll : search.unrolls) {
              what.unroll = unroll;
              if (search.as_rules && unroll > 1 && !IsUnrolled(operation, variant)) continue;
              cases.push_back(what);
            }
          }
        }
      }
    }
  }
  return cases;
}

// Measures all rank counts. Peers' commands run before the same rank count is measured.
template <typename Figure, typename Measure>
absl::StatusOr<std::vector<Figure>> MeasureEach(const Alone& alone, std::vector<PeerFigure>* peers,
                                                const Measure& measure) {
  const AloneSettings& settings = alone.settings;
  if (peers != nullptr) {
    for (const std::string& path : settings.peers_paths) {
      IRIS_ASSIGN_OR_RETURN(const auto read, ReadPeers(path));
      peers->insert(peers->end(), read.begin(), read.end());
    }
  }
  std::vector<Figure> figures;
  for (const uint32_t ranks : alone.rank_counts) {
    if (peers != nullptr && !settings.peers_command.empty()) {
      IRIS_ASSIGN_OR_RETURN(
          const auto printed,
          RunPeers(settings.peers_command, ranks, absl::Seconds(settings.peers_timeout_seconds)));
      peers->insert(peers->end(), printed.begin(), printed.end());
    }
    IRIS_ASSIGN_OR_RETURN(const std::vector<Figure> measured, measure(ranks));
    figures.insert(figures.end(), measured.begin(), measured.end());
  }
  return figures;
}

absl::StatusOr<std::vector<CollectiveFigure>> MeasureCollectivesEach(
    const Alone& alone, const Names& operations, const Search& search, const std::string& rules,
    std::vector<PeerFigure>* peers) {
  const AloneSettings& settings = alone.settings;
  return MeasureEach<CollectiveFigure>(alone, peers, [&](uint32_t ranks) {
    const auto cases = Cases(operations, Sizes(settings), search, ranks);
    if (search.as_rules) {
      std::cerr << "tune: " << ranks << " ranks, " << cases.size() << " launches to try\n";
    }
    return MeasureCollectives({ranks, settings.samples, rules, settings.stage_bytes,
                               settings.packet_blocks, settings.trace},
                              cases);
  });
}

absl::Status WriteReport(const Alone& alone, Table table) {
  alone.report->Add(std::move(table));
  return WriteText(alone.settings.json ? alone.report->Json() : alone.report->Text(),
                   alone.settings.output);
}

std::string HowMeasured(const AloneSettings& settings) {
  return absl::StrCat("the largest of the ranks' medians of ", settings.samples,
                      " replays of a graph; Config::symmetric = true; ",
                      settings.rules_path.empty() ? std::string("the built-in table")
                                                  : absl::StrCat("rules of ", settings.rules_path));
}

absl::StatusOr<std::vector<ProductLine>> TuneProducts(const Alone& alone, const Names& operations,
                                                      const Names& wanted) {
  if (operations.empty()) return std::vector<ProductLine>();
  IRIS_ASSIGN_OR_RETURN(const auto shapes, Shapes(alone.settings));
  Names variants;
  for (const std::string& name : ProductVariants()) {
    if (name != kAuto && (Has(wanted, name) || wanted[0] == kAll)) variants.push_back(name);
  }
  if (variants.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tune --variants: ", absl::StrJoin(wanted, ","), " has no variant of GEMMs: name some of ",
        absl::StrJoin(ProductVariants(), ", "), " but auto, or leave out ",
        absl::StrJoin(operations, ", ")));
  }
  IRIS_ASSIGN_OR_RETURN(
      const auto figures, MeasureEach<ProductFigure>(alone, nullptr, [&](uint32_t ranks) {
        std::cerr << "tune: " << ranks << " ranks, " << shapes.size() << " shapes of "
                  << operations.size() << " GEMM operations to try\n";
        return MeasureProducts({ranks, alone.settings.samples}, operations, shapes, variants);
      }));
  std::vector<ProductLine> lines = MakeProductLines(figures);
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tune --variants: ", absl::StrJoin(variants, ","),
                     " has none of these GEMMs on this machine: name others"));
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::string> ReadRules(const std::string& path) {
  if (path.empty()) return std::string();
  const auto text = internal::ReadFile(path, kMaxRulesBytes);
  if (!text.ok()) return internal::Annotate(text.status(), "cannot read");
  if (absl::Status status = CheckRules(*text); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  }
  return text;
}

std::string Comments(const std::string& facts) {
  std::string out, line;
  for (const char c : facts + "\n") {
    if (c == '\n') {
      if (!line.empty()) absl::StrAppend(&out, "# ", line, "\n");
      line.clear();
    } else if (line.size() < kMaxCommentBytes) {
      line.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
    }
  }
  return out;
}

absl::Status Collectives(const Alone& alone) {
  const AloneSettings& settings = alone.settings;
  IRIS_ASSIGN_OR_RETURN(const std::string rules, ReadRules(settings.rules_path));
  const Search search = {Or(settings.variants, {kAuto}), Or(settings.blocks, {0u}),
                         Or(settings.threads, {0u}), Or(settings.unrolls, {0u})};
  IRIS_ASSIGN_OR_RETURN(const auto figures, MeasureCollectivesEach(alone, alone.operations, search,
                                                                   rules, /*peers=*/nullptr));
  Table table(kCollectives, "us of collectives in bf16; bytes of the larger of in and out",
              {{"operation"},
               {"ranks"},
               {"bytes"},
               {"variant"},
               {"blocks"},
               {"threads"},
               {"unroll"},
               {"us", 2},
               {"GB/s bus"},
               {"host us", 2}});
  for (const CollectiveFigure& f : figures) {
    const bool sized = f.what.operation != kBarrier;
    table.Add({f.what.operation, f.ranks, CellIf(sized, f.what.bytes), CellIf(sized, f.variant),
               f.blocks, f.threads, f.unroll, f.us, CellIf(sized, f.bus_gb_per_s), f.host_us});
  }
  table.Note(HowMeasured(settings) + ". host us: what a call outside of a graph costs its thread.");
  return WriteReport(alone, std::move(table));
}

absl::Status Tune(const Alone& alone) {
  const AloneSettings& settings = alone.settings;
  const Names all_products = ProductOperations();
  Names operations, products;
  for (const std::string& name : alone.operations) {
    (Has(all_products, name) ? products : operations).push_back(name);
  }
  if (products.empty() && !settings.shapes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tune --shapes is for GEMMs: name some with --ops, of ",
                     absl::StrJoin(all_products, ", ")));
  }
  using Counts = std::vector<uint32_t>;
  const Counts blocks =
      Device::Emulated() ? Counts{1, 2, 4, 8} : Counts{1, 2, 4, 8, 16, 24, 32, 64, 128};
  const Search search = {Or(settings.variants, {kAll}),
                         Or(settings.blocks, blocks),
                         Or(settings.threads, Device::Emulated() ? Counts{64} : Counts{256, 512}),
                         Or(settings.unrolls, Device::Emulated() ? Counts{0} : Counts{1, 2}),
                         /*as_rules=*/true,
                         /*skip_slow=*/settings.blocks.empty()};
  if (search.variants[0] == kAuto) {
    return absl::InvalidArgumentError("tune --variants: auto is what the table is for");
  }
  IRIS_ASSIGN_OR_RETURN(const auto lines, TuneProducts(alone, products, search.variants));
  std::vector<CollectiveFigure> figures;
  if (!operations.empty()) {
    IRIS_ASSIGN_OR_RETURN(figures, MeasureCollectivesEach(alone, operations, search, "", nullptr));
  }
  std::string text = absl::StrCat(Comments(alone.report->Text()), "#\n");
  if (!operations.empty()) {
    absl::StrAppend(
        &text,
        "# operation  members  bytes  variant  blocks  threads  unroll: the first that fits\n");
  }
  for (const CollectiveRule& rule : MakeRules(figures)) {
    IRIS_ASSIGN_OR_RETURN(const std::string line, RuleText(rule));
    absl::StrAppend(&text, line, "\n");
  }
  if (!lines.empty()) {
    absl::StrAppend(&text, "# operation  members  m  n  k  variant: the nearest, up to 4 times\n");
  }
  for (const ProductLine& line : lines) absl::StrAppend(&text, ProductLineText(line), "\n");
  if (absl::Status status = CheckRules(text); !status.ok()) {
    return absl::InternalError(absl::StrCat("tune made no table: ", status.message()));
  }
  return WriteText(text, settings.output);
}

absl::Status Compare(const Alone& alone) {
  const AloneSettings& settings = alone.settings;
  IRIS_ASSIGN_OR_RETURN(const std::string rules, ReadRules(settings.rules_path));
  std::vector<PeerFigure> peers;
  IRIS_ASSIGN_OR_RETURN(
      const auto ours,
      MeasureCollectivesEach(alone, alone.operations, {{kAuto}, {0}, {0}, {0}}, rules, &peers));
  Table table = CompareTable(ours, peers);
  table.Note(absl::StrCat("Iris: what Variant::kAuto chose; ", HowMeasured(settings), "."));
  if (!settings.svg_path.empty()) {
    absl::Status written = WriteText(Svg(ComparePlots(ours, peers)), settings.svg_path);
    if (!written.ok()) return written;
  }
  return WriteReport(alone, std::move(table));
}

absl::Status Matmul(const Alone& alone) {
  const AloneSettings& settings = alone.settings;
  IRIS_ASSIGN_OR_RETURN(std::vector<ProductShape> shapes, Shapes(settings));
  const uint32_t n_random = settings.random >= 0 ? static_cast<uint32_t>(settings.random)
                            : settings.shapes.empty() && !Device::Emulated() ? kRandomShapes
                                                                             : 0;
  for (const ProductShape& shape :
       RandomShapes(n_random, settings.seed, Device::Emulated() ? 64 : 8192)) {
    shapes.push_back(shape);
  }
  std::vector<PeerFigure> peers;
  IRIS_ASSIGN_OR_RETURN(
      const auto figures, MeasureEach<ProductFigure>(alone, &peers, [&](uint32_t ranks) {
        return MeasureProducts({ranks, settings.samples, settings.cold, !settings.no_early},
                               alone.operations, shapes, Or(settings.variants, ProductVariants()));
      }));
  Names behind;
  Table table = ProductTable(figures, peers, &behind);
  table.Note(absl::StrCat("The slowest rank, medians of ", settings.samples,
                          " batches; the variants, the plain GEMM and the collective alone "
                          "alternate. TFLOP/s are of one rank, in graphs; hidden: the part of the "
                          "collective's time that overlaps with the GEMM."));
  if (settings.cold) table.Note("Each call has another B than the one before it.");
  if (absl::Status status = WriteReport(alone, std::move(table)); !status.ok()) return status;
  if (!settings.fail_behind || behind.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(behind.size(), behind.size() == 1 ? " row is" : " rows are",
                   " slower than the best peer: ", absl::StrJoin(behind, "; ")));
}

}  // namespace iris::bench
