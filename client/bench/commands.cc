#include "client/bench/commands.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/base/absl_status.h"
#include "client/bench/collectives.h"
#include "client/bench/compare.h"
#include "client/bench/device.h"
#include "client/bench/product_commands.h"
#include "client/bench/products.h"
#include "client/bench/rules.h"
#include "client/internal/annotate.h"
#include "client/internal/whole_file.h"
#include "device/base/bytes.h"
#include "iris/launcher.h"
#include "iris/types.h"

namespace iris::bench {
namespace {

constexpr char kCollectives[] = "collectives";
constexpr char kTune[] = "tune";
constexpr char kCompare[] = "compare";
constexpr char kBarrier[] = "barrier";
constexpr char kAuto[] = "auto";
constexpr char kAll[] = "all";
constexpr char kCopyEngine[] = "copy_engine";

// As of ccl, which only a compiler of kernels can include.
constexpr uint32_t kMaxBlocks = SyncArea::kMaxBlocks;
constexpr uint32_t kMaxThreads = 512;
constexpr uint32_t kMaxUnroll = 2;
constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kSizes[] = {kKiB,     8 * kKiB,  64 * kKiB,  256 * kKiB, kMiB,
                               4 * kMiB, 16 * kMiB, 128 * kMiB, 1024 * kMiB};
constexpr uint64_t kMaxEmulatedBytes = kMiB;  // by default
// More than this for a block is far from the best, and takes seconds.
constexpr uint64_t kMaxBytesOfABlock = 32 * kMiB;
constexpr const char* kCompared[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                     kBarrier};
// A line of a table of rules may have some more.
constexpr size_t kMaxCommentBytes = 200;
constexpr size_t kMaxRulesBytes = 1 << 20;

constexpr char kTuneFooter[] = R"(
Writes rules, one a line, that Config::rules takes (ccl::ParseRules) and --rules of
collectives and compare: operation, up to members, up to bytes, variant, blocks,
threads, unroll. A table replaces the built-in one as a whole: an operation without a rule
goes the direct way.

Products of matrices (--ops matmul_all_reduce and its fellows) have lines of another form:
operation, members, m, n, k, variant. Of the lines of these members whose numbers are within
4 times those of a call, the nearest decides. CommunicatorOptions::rules takes both forms in
one text; with lines of products alone, collectives keep the built-in table.

Example:
  iris_bench tune --rank-counts 2,4 --output rules.txt
  iris_bench compare --rules rules.txt
  iris_bench tune --ops matmul_all_reduce --shapes 64x8192x8192,1024x4096x14336)";

constexpr char kCompareFooter[] = R"(
Peers print lines of JSON, for each figure one:
  {"lib": "other", "op": "all_reduce", "variant": "tree", "bytes": 1024, "n": 4, "us": 9.5}
"variant" may be missing. "bytes" is the size of the whole tensor, the larger of in
and out; "barrier" has none. "n" is the number of ranks. Other lines and other keys
are passed over. Peers run before the same rank count is measured here, not beside it.

Example:
  iris_bench compare --peers-command 'mpirun -n {ranks} ./other_bench' --svg us.svg)";

bool Emulated() { return Device::Emulated(); }

// Options.

void AddSizes(CLI::App* app, const char* name, std::vector<uint64_t>* sizes, const char* help) {
  app->add_option_function<std::vector<std::string>>(
         name,
         [sizes, name](const std::vector<std::string>& texts) {
           sizes->clear();
           for (const std::string& text : texts) {
             uint64_t bytes = 0;
             if (!base::ParseBytes(text, &bytes) || bytes < 2 || bytes > kMaxCollectiveBytes) {
               throw CLI::ValidationError(
                   name, "\"" + text + "\" is no size such as 64KiB, from 2 bytes to 64GiB");
             }
             sizes->push_back(bytes);
           }
         },
         help)
      ->delimiter(',')
      ->allow_extra_args(false);
}

void AddCommonOptions(CLI::App* app, CollectiveSettings* settings, const char* operations) {
  app->add_option("--rank-counts", settings->rank_counts,
                  "Measured one after another, a device for each rank [of 2,4,8 those that the "
                  "machine has devices for; on the emulator 2,4]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(2u, kMaxTeamRanks));
  app->add_option("--ops", settings->operations, operations)
      ->delimiter(',')
      ->allow_extra_args(false);
  AddSizes(app, "--sizes", &settings->sizes,
           "Bytes of the larger of in and out [1KiB,8KiB,64KiB,256KiB,1MiB,4MiB,16MiB,128MiB,1GiB; "
           "on the emulator up to 1MiB]");
}

void AddRulesOption(CLI::App* app, CollectiveSettings* settings) {
  app->add_option("--rules", settings->rules_path,
                  "A table that tune wrote, instead of the built-in one");
}

void AddSearchOptions(CLI::App* app, CollectiveSettings* settings, const char* variants,
                      const char* blocks, const char* threads, const char* unrolls) {
  app->add_option("--variants", settings->variants, variants)
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--blocks", settings->blocks, blocks)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, kMaxBlocks));
  app->add_option("--threads", settings->threads, threads)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, kMaxThreads));
  app->add_option("--unrolls", settings->unrolls, unrolls)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, kMaxUnroll));
}

// What to measure.

absl::StatusOr<std::vector<uint32_t>> RankCounts(const CollectiveSettings& settings) {
  const uint32_t most = MostCollectiveRanks();
  std::vector<uint32_t> counts = settings.rank_counts;
  if (counts.empty()) {
    for (const uint32_t n :
         Emulated() ? std::vector<uint32_t>{2, 4} : std::vector<uint32_t>{2, 4, 8}) {
      if (n <= most) counts.push_back(n);
    }
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  const uint32_t largest = counts.empty() ? 2 : counts.back();
  if (largest > most) {
    return absl::FailedPreconditionError(
        absl::StrCat(largest, " ranks need a device each, and this machine has ", most,
                     " of backend ", Device::BackendName(), ": see --rank-counts"));
  }
  return counts;
}

absl::StatusOr<std::vector<std::string>> Operations(const std::string& command,
                                                    const CollectiveSettings& settings) {
  std::vector<std::string> known = CollectiveOperations();
  if (command == kTune) {  // a barrier has nothing to choose
    known.erase(std::remove(known.begin(), known.end(), kBarrier), known.end());
  }
  const std::vector<std::string> usual = known;
  if (command == kTune) {
    for (std::string& name : ProductOperations()) known.push_back(std::move(name));
  }
  for (const std::string& name : settings.operations) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--ops: \"", name, "\" is none of ",
                                                     absl::StrJoin(known, ", "), " for ", command));
    }
  }
  if (!settings.operations.empty()) return settings.operations;
  if (command == kCompare) {
    return std::vector<std::string>(std::begin(kCompared), std::end(kCompared));
  }
  return usual;
}

bool IsProduct(const std::string& operation) {
  const std::vector<std::string> all = ProductOperations();
  return std::find(all.begin(), all.end(), operation) != all.end();
}

std::vector<uint64_t> Sizes(const CollectiveSettings& settings) {
  std::set<uint64_t> sizes(settings.sizes.begin(), settings.sizes.end());
  if (sizes.empty()) {
    for (const uint64_t bytes : kSizes) {
      if (!Emulated() || bytes <= kMaxEmulatedBytes) sizes.insert(bytes);
    }
  }
  return {sizes.begin(), sizes.end()};
}

// The variants of `wanted` that the operation has. *chosen: named one by one.
absl::StatusOr<std::vector<std::string>> VariantsFor(const std::string& operation,
                                                     const std::vector<std::string>& wanted,
                                                     bool* chosen) {
  *chosen = false;
  std::vector<std::string> all = CollectiveVariants(operation);
  if (operation == kBarrier || (wanted.size() == 1 && wanted[0] == kAuto)) {
    return std::vector<std::string>{kAuto};
  }
  if (wanted.size() == 1 && wanted[0] == kAll) return all;
  *chosen = true;
  std::vector<std::string> variants;
  for (const std::string& name : wanted) {
    if (std::find(all.begin(), all.end(), name) != all.end()) variants.push_back(name);
  }
  return variants;
}

// A name that no operation knows is a mistake; one that some operation does not know is not.
absl::Status CheckVariants(const std::string& command, const std::vector<std::string>& wanted) {
  if (wanted.size() == 1 && (wanted[0] == kAll || wanted[0] == kAuto)) return absl::OkStatus();
  std::set<std::string> known;
  for (const std::string& operation : CollectiveOperations()) {
    for (std::string& name : CollectiveVariants(operation)) known.insert(std::move(name));
  }
  if (command == kTune) {
    for (const std::string& name : ProductVariants()) {
      if (name != kAuto) known.insert(name);
    }
  }
  for (const std::string& name : wanted) {
    if (known.count(name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--variants: \"", name, "\" is none of ",
                                                     absl::StrJoin(known, ", "),
                                                     ", nor `all` or `auto` alone"));
    }
  }
  return absl::OkStatus();
}

struct Search {
  std::vector<std::string> variants;
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> threads;
  std::vector<uint32_t> unrolls;
  bool as_rules = false;
  bool skip_slow = false;  // block counts that are far too few for a size
};

absl::StatusOr<std::vector<CollectiveCase>> Cases(const std::vector<std::string>& operations,
                                                  const std::vector<uint64_t>& sizes,
                                                  const Search& search, uint32_t ranks) {
  std::vector<CollectiveCase> cases;
  for (const std::string& operation : operations) {
    bool chosen = false;
    const auto variants = VariantsFor(operation, search.variants, &chosen);
    if (!variants.ok()) return variants.status();
    for (const uint64_t bytes : operation == kBarrier ? std::vector<uint64_t>{0} : sizes) {
      for (const std::string& variant : *variants) {
        CollectiveCase what = {operation, bytes, variant, 0, 0, search.as_rules};
        if (!chosen && variant != kAuto && !IsWorthMeasuring(what, ranks)) continue;
        if (search.as_rules) {
          // By size; and kernels alone have blocks.
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

absl::StatusOr<std::string> ReadRules(const std::string& path) {
  if (path.empty()) return std::string();
  const auto text = ReadText(path, kMaxRulesBytes);
  if (!text.ok()) return text.status();
  if (absl::Status status = CheckRules(*text); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  }
  return *text;
}

absl::StatusOr<std::vector<CollectiveFigure>> MeasureFor(const CollectiveSettings& settings,
                                                         const std::string& rules, uint32_t ranks,
                                                         const std::vector<CollectiveCase>& cases) {
  CollectiveOptions options;
  options.ranks = ranks;
  options.samples = settings.samples;
  options.rules = rules;
  options.stage_bytes = settings.stage_bytes;
  options.trace = settings.trace;
  options.packet_blocks = settings.packet_blocks;
  return MeasureCollectives(options, cases);
}

// The sub-commands.

std::string Text(const BenchReport& report, const CollectiveSettings& settings) {
  return settings.json ? report.Json() : report.Text();
}

std::string HowMeasured(const CollectiveSettings& settings) {
  return absl::StrCat("the largest of the ranks' medians of ", settings.samples,
                      " replays of a graph; Config::symmetric = true; ",
                      settings.rules_path.empty() ? std::string("the built-in table")
                                                  : absl::StrCat("rules of ", settings.rules_path));
}

absl::StatusOr<std::string> Collectives(const CollectiveSettings& settings,
                                        const std::vector<uint32_t>& rank_counts,
                                        const std::vector<std::string>& operations,
                                        BenchReport* report) {
  const auto rules = ReadRules(settings.rules_path);
  if (!rules.ok()) return rules.status();
  Search search = {settings.variants, settings.blocks, settings.threads, settings.unrolls};
  if (search.variants.empty()) search.variants = {kAuto};
  if (search.blocks.empty()) search.blocks = {0};
  if (search.threads.empty()) search.threads = {0};
  if (search.unrolls.empty()) search.unrolls = {0};
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
  for (const uint32_t ranks : rank_counts) {
    const auto cases = Cases(operations, Sizes(settings), search, ranks);
    if (!cases.ok()) return cases.status();
    const auto figures = MeasureFor(settings, *rules, ranks, *cases);
    if (!figures.ok()) return figures.status();
    for (const CollectiveFigure& f : *figures) {
      const bool barrier = f.what.operation == kBarrier;
      table.Add(
          {f.what.operation, f.ranks, barrier ? nlohmann::json() : nlohmann::json(f.what.bytes),
           barrier ? nlohmann::json() : nlohmann::json(f.variant), f.blocks, f.threads, f.unroll,
           f.us, barrier ? nlohmann::json() : nlohmann::json(f.bus_gb_per_s), f.host_us});
    }
  }
  table.Note(HowMeasured(settings) + ". host us: what a call outside of a graph costs its thread.");
  report->Add(std::move(table));
  return Text(*report, settings);
}

// Facts of the run as comments: without line feeds, and no longer than a line may be.
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

// The part of tune that measures products.
absl::StatusOr<std::vector<ProductLine>> TuneProducts(const CollectiveSettings& settings,
                                                      const std::vector<uint32_t>& rank_counts,
                                                      const std::vector<std::string>& operations,
                                                      const std::vector<std::string>& wanted) {
  if (operations.empty()) return std::vector<ProductLine>();
  const auto shapes = ReadShapes(settings.shapes);
  if (!shapes.ok()) return shapes.status();
  std::vector<std::string> variants;
  for (const std::string& name : ProductVariants()) {
    const bool named = std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    if (name != kAuto && (named || wanted[0] == kAll)) variants.push_back(name);
  }
  if (variants.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tune --variants: ", absl::StrJoin(wanted, ","),
        " has no variant of products: name some of ", absl::StrJoin(ProductVariants(), ", "),
        " but auto, or leave out ", absl::StrJoin(operations, ", ")));
  }
  std::vector<ProductFigure> figures;
  for (const uint32_t ranks : rank_counts) {
    std::cerr << "tune: " << ranks << " ranks, " << shapes->size() << " shapes of "
              << operations.size() << " products to try\n";
    ProductOptions options;
    options.ranks = ranks;
    options.samples = settings.samples;
    const auto measured = MeasureProducts(options, operations, *shapes, variants);
    if (!measured.ok()) return measured.status();
    figures.insert(figures.end(), measured->begin(), measured->end());
  }
  std::vector<ProductLine> lines = MakeProductLines(figures);
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tune --variants: ", absl::StrJoin(variants, ","),
                     " has none of these products on this machine: name others"));
  }
  return lines;
}

absl::StatusOr<std::string> Tune(const CollectiveSettings& settings,
                                 const std::vector<uint32_t>& rank_counts,
                                 const std::vector<std::string>& all, BenchReport* report) {
  std::vector<std::string> operations, products;
  for (const std::string& name : all) (IsProduct(name) ? products : operations).push_back(name);
  if (products.empty() && !settings.shapes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tune --shapes is for products: name some with --ops, of ",
                     absl::StrJoin(ProductOperations(), ", ")));
  }
  if (settings.json) {
    return absl::InvalidArgumentError("tune writes a table of rules as text: leave out --json");
  }
  Search search = {settings.variants, settings.blocks, settings.threads, settings.unrolls,
                   /*as_rules=*/true};
  if (search.variants.empty()) search.variants = {kAll};
  if (search.variants[0] == kAuto) {
    return absl::InvalidArgumentError("tune --variants: auto is what the table is for");
  }
  if (search.blocks.empty()) {
    search.skip_slow = true;
    search.blocks = Emulated() ? std::vector<uint32_t>{1, 2, 4, 8}
                               : std::vector<uint32_t>{1, 2, 4, 8, 16, 24, 32, 64, 128};
  }
  if (search.threads.empty()) {
    search.threads = Emulated() ? std::vector<uint32_t>{64} : std::vector<uint32_t>{256, 512};
  }
  if (search.unrolls.empty()) {
    search.unrolls = Emulated() ? std::vector<uint32_t>{0} : std::vector<uint32_t>{1, 2};
  }
  std::vector<CollectiveFigure> figures;
  const auto lines = TuneProducts(settings, rank_counts, products, search.variants);
  if (!lines.ok()) return lines.status();
  for (const uint32_t ranks : operations.empty() ? std::vector<uint32_t>() : rank_counts) {
    const auto cases = Cases(operations, Sizes(settings), search, ranks);
    if (!cases.ok()) return cases.status();
    std::cerr << "tune: " << ranks << " ranks, " << cases->size() << " launches to try\n";
    const auto measured = MeasureFor(settings, "", ranks, *cases);
    if (!measured.ok()) return measured.status();
    figures.insert(figures.end(), measured->begin(), measured->end());
  }
  std::string text = absl::StrCat(Comments(report->Text()), "#\n");
  if (!operations.empty()) {
    absl::StrAppend(
        &text,
        "# operation  members  bytes  variant  blocks  threads  unroll: the first that fits\n");
  }
  for (const CollectiveRule& rule : MakeRules(figures)) {
    const auto line = RuleText(rule);
    if (!line.ok()) return line.status();
    absl::StrAppend(&text, *line, "\n");
  }
  if (!lines->empty()) {
    absl::StrAppend(&text, "# operation  members  m  n  k  variant: the nearest, up to 4 times\n");
  }
  for (const ProductLine& line : *lines) absl::StrAppend(&text, ProductLineText(line), "\n");
  if (absl::Status status = CheckRules(text); !status.ok()) {
    return absl::InternalError(absl::StrCat("tune made no table: ", status.message()));
  }
  return text;
}

absl::StatusOr<std::string> Compare(const CollectiveSettings& settings,
                                    const std::vector<uint32_t>& rank_counts,
                                    const std::vector<std::string>& operations,
                                    BenchReport* report) {
  const auto rules = ReadRules(settings.rules_path);
  if (!rules.ok()) return rules.status();
  std::vector<PeerFigure> peers;
  for (const std::string& path : settings.peers_paths) {
    const auto read = ReadPeers(path);
    if (!read.ok()) return read.status();
    peers.insert(peers.end(), read->begin(), read->end());
  }
  std::vector<CollectiveFigure> ours;
  for (const uint32_t ranks : rank_counts) {
    if (!settings.peers_command.empty()) {
      const auto run =
          RunPeers(settings.peers_command, ranks, absl::Seconds(settings.peers_timeout_seconds));
      if (!run.ok()) return run.status();
      peers.insert(peers.end(), run->begin(), run->end());
    }
    const auto cases = Cases(operations, Sizes(settings), {{kAuto}, {0}, {0}, {0}}, ranks);
    if (!cases.ok()) return cases.status();
    const auto measured = MeasureFor(settings, *rules, ranks, *cases);
    if (!measured.ok()) return measured.status();
    ours.insert(ours.end(), measured->begin(), measured->end());
  }
  Table table = CompareTable(ours, peers);
  table.Note(absl::StrCat("Iris: what Variant::kAuto chose; ", HowMeasured(settings), "."));
  report->Add(std::move(table));
  if (!settings.svg_path.empty()) {
    absl::Status written = WriteText(Svg(ComparePlots(ours, peers)), settings.svg_path);
    if (!written.ok()) return written;
  }
  return Text(*report, settings);
}

}  // namespace

absl::Status WriteText(const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::cout << text << std::flush;
    return std::cout.good() ? absl::OkStatus() : absl::InternalError("cannot write to stdout");
  }
  return internal::Annotate(internal::WriteFile(path, text), "cannot write");
}

void AddCollectiveCommands(CLI::App* app, CollectiveSettings* settings) {
  CLI::App* collectives = app->add_subcommand(
      kCollectives, "Alone, in no job: times of the collectives, replayed from graphs");
  AddCommonOptions(collectives, settings, "Operations [all]");
  AddSearchOptions(collectives, settings,
                   "auto, all, or names: those that the operation has [auto]",
                   "Block counts instead of what the table says", "Threads of a block, likewise",
                   "1, or 2 for twice as many loads at a time, likewise");
  AddRulesOption(collectives, settings);
  collectives->add_option_function<std::string>(
      "--stage",
      [settings](const std::string& text) {
        if (!base::ParseBytes(text, &settings->stage_bytes)) {
          throw CLI::ValidationError("--stage", "\"" + text + "\" is no size such as 64KiB");
        }
      },
      "Config::stage_bytes [what suits the backend]");
  collectives
      ->add_option("--packet-blocks", settings->packet_blocks,
                   "Config::packet_blocks [what suits the backend]")
      ->check(CLI::Range(1u, kMaxBlocks));
  collectives
      ->add_option("--trace", settings->trace,
                   "What a trace costs: none, off (there is one, not\nswitched on), or on [none]")
      ->check(CLI::IsMember({"none", "off", "on"}));

  CLI::App* tune =
      app->add_subcommand(kTune, "Alone, in no job: measures a table of rules for this machine");
  AddCommonOptions(tune, settings,
                   "Operations, products of matrices too [all collectives but barrier]");
  tune->add_option("--shapes", settings->shapes,
                   "m, n and k of products, over all ranks [those of matmul, without random ones]")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddSearchOptions(tune, settings, "all, or names: those that the operation has [all]",
                   "Block counts to try, beside what goes by size [1,2,4,8,16,24,32,64,128; on the "
                   "emulator 1,2,4,8]",
                   "Threads of a block to try [256,512; on the emulator 64]",
                   "1, 2 or both: loads that a thread has under way [1,2; on the emulator 1]");
  tune->footer(kTuneFooter);

  CLI::App* compare = app->add_subcommand(
      kCompare, "Alone, in no job: collectives beside those of other libraries");
  AddCommonOptions(compare, settings,
                   "Operations [all_reduce,all_gather,reduce_scatter,all_to_all,barrier]");
  AddRulesOption(compare, settings);
  compare
      ->add_option("--peers", settings->peers_paths,
                   "A file with what peers printed, for any rank counts; may be repeated")
      ->allow_extra_args(false);
  compare->add_option(
      "--peers-command", settings->peers_command,
      "A command for /bin/sh that prints figures of a rank count, which replaces {ranks}");
  compare
      ->add_option("--peers-timeout", settings->peers_timeout_seconds,
                   "Seconds that the command may take [600]")
      ->check(CLI::Range(1.0, 86400.0));
  compare->footer(kCompareFooter);
}

bool IsCollectiveCommand(const std::string& name) {
  return name == kCollectives || name == kTune || name == kCompare;
}

absl::StatusOr<std::string> RunCollectiveCommand(const std::string& name,
                                                 const CollectiveSettings& settings,
                                                 BenchReport* report) {
  const auto launcher = ReadLauncher();
  if (!launcher.ok()) return base::ToAbsl(launcher.status());
  if (launcher->n_ranks > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " makes its ranks itself, as threads: start it once, not as ", launcher->n_ranks,
        " processes by ", launcher->launcher == "iris" ? "iris-run" : launcher->launcher.c_str()));
  }
  const auto rank_counts = RankCounts(settings);
  if (!rank_counts.ok()) return rank_counts.status();
  const auto operations = Operations(name, settings);
  if (!operations.ok()) return operations.status();
  if (absl::Status status = CheckVariants(name, settings.variants); !status.ok()) return status;
  report->Fact("rank counts", *rank_counts);
  report->Fact("ranks are", "threads");
  if (name == kCollectives) return Collectives(settings, *rank_counts, *operations, report);
  if (name == kTune) return Tune(settings, *rank_counts, *operations, report);
  return Compare(settings, *rank_counts, *operations, report);
}

}  // namespace iris::bench
