#include "client/bench/product_commands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/base/absl_status.h"
#include "client/bench/collectives.h"
#include "client/bench/commands.h"
#include "client/bench/compare.h"
#include "client/bench/device.h"
#include "client/bench/product_table.h"
#include "client/bench/products.h"
#include "iris/launcher.h"
#include "iris/types.h"

namespace iris::bench {
namespace {

constexpr char kMatmul[] = "matmul";
// Layers of language models, one of them of a few rows.
constexpr const char* kShapes[] = {"8192x4096x14336", "4096x8192x8192", "1024x4096x14336",
                                   "64x8192x8192", "8192x8192x28672"};
constexpr const char* kEmulatedShapes[] = {"64x64x64"};
constexpr uint32_t kRandomShapes = 10;
constexpr uint64_t kLargestRandom = 8192;
constexpr uint64_t kLargestEmulated = 64;

constexpr char kFooter[] = R"(
Peers print lines of JSON, for each figure one:
  {"lib": "other", "op": "matmul_all_reduce", "shape": [8192, 4096, 14336], "n": 4, "us": 9.5}
"shape" is m, n and k over all ranks; "n" is the number of ranks; "us" is the time in a
graph. "variant" may follow. Other lines and other keys are passed over.

Example:
  iris_bench matmul --rank-counts 4 --peers-command './other_bench {ranks}' --fail-behind)";

absl::Status CheckNames(const char* option, const std::vector<std::string>& names,
                        const std::vector<std::string>& known) {
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": \"", name, "\" is none of ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ProductShape>> ReadShapes(const std::vector<std::string>& given) {
  std::vector<std::string> texts = given;
  if (texts.empty()) {
    texts = Device::Emulated()
                ? std::vector<std::string>(std::begin(kEmulatedShapes), std::end(kEmulatedShapes))
                : std::vector<std::string>(std::begin(kShapes), std::end(kShapes));
  }
  std::vector<ProductShape> shapes;
  for (const std::string& text : texts) {
    const auto shape = ParseShape(text);
    if (!shape.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--shapes: ", shape.status().message()));
    }
    shapes.push_back(*shape);
  }
  return shapes;
}

void AddProductCommand(CLI::App* app, ProductSettings* settings) {
  CLI::App* matmul = app->add_subcommand(
      kMatmul, "Alone, in no job: products of matrices with their communication");
  matmul
      ->add_option("--rank-counts", settings->rank_counts,
                   "Measured one after another, a device for each rank [of 2,4,8 those that the "
                   "machine has devices for; on the emulator 2]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(2u, kMaxTeamRanks));
  matmul->add_option("--ops", settings->operations, "Operations [all]")
      ->delimiter(',')
      ->allow_extra_args(false);
  matmul
      ->add_option("--shapes", settings->shapes,
                   "m, n and k over all ranks [8192x4096x14336,4096x8192x8192,1024x4096x14336,"
                   "64x8192x8192,8192x8192x28672; on the emulator 64x64x64]")
      ->delimiter(',')
      ->allow_extra_args(false);
  matmul
      ->add_option(
          "--random", settings->random,
          "So many more shapes, always the same for a seed [10; none if --shapes is given, "
          "or on the emulator]")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}));
  matmul->add_option("--seed", settings->seed, "Of the random shapes [1]");
  matmul->add_option("--variants", settings->variants, "Variants [all, and what auto chooses]")
      ->delimiter(',')
      ->allow_extra_args(false);
  matmul
      ->add_option("--peers", settings->peers_paths,
                   "A file with what peers printed, for any rank counts; may be repeated")
      ->allow_extra_args(false);
  matmul->add_option(
      "--peers-command", settings->peers_command,
      "A command for /bin/sh that prints figures of a rank count, which replaces {ranks}");
  matmul
      ->add_option("--peers-timeout", settings->peers_timeout_seconds,
                   "Seconds that the command may take [600]")
      ->check(CLI::Range(1.0, 86400.0));
  matmul->add_flag("--fail-behind", settings->fail_behind,
                   "Exit with 1 if what auto chooses is slower than the best peer, in any row");
  matmul->footer(kFooter);
}

bool IsProductCommand(const std::string& name) { return name == kMatmul; }

absl::Status RunProductCommand(const ProductSettings& settings, BenchReport* report) {
  const auto launcher = ReadLauncher();
  if (!launcher.ok()) return base::ToAbsl(launcher.status());
  if (launcher->n_ranks > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "matmul makes its ranks itself, as threads: start it once, not as ", launcher->n_ranks,
        " processes by ", launcher->launcher == "iris" ? "iris-run" : launcher->launcher.c_str()));
  }
  const bool emulated = Device::Emulated();
  const uint32_t most = MostCollectiveRanks();
  std::vector<uint32_t> counts = settings.rank_counts;
  for (const uint32_t n : emulated ? std::vector<uint32_t>{2} : std::vector<uint32_t>{2, 4, 8}) {
    if (settings.rank_counts.empty() && n <= most) counts.push_back(n);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  const uint32_t largest = counts.empty() ? 2 : counts.back();
  if (largest > most) {
    return absl::FailedPreconditionError(
        absl::StrCat(largest, " ranks need a device each, and this machine has ", most,
                     " of backend ", Device::BackendName(), ": see --rank-counts"));
  }
  const std::vector<std::string> operations =
      settings.operations.empty() ? ProductOperations() : settings.operations;
  const std::vector<std::string> variants =
      settings.variants.empty() ? ProductVariants() : settings.variants;
  if (absl::Status s = CheckNames("--ops", operations, ProductOperations()); !s.ok()) return s;
  if (absl::Status s = CheckNames("--variants", variants, ProductVariants()); !s.ok()) return s;
  auto shapes = ReadShapes(settings.shapes);
  if (!shapes.ok()) return shapes.status();
  const uint32_t n_random = settings.random >= 0 ? static_cast<uint32_t>(settings.random)
                            : settings.shapes.empty() && !emulated ? kRandomShapes
                                                                   : 0;
  for (const ProductShape& shape :
       RandomShapes(n_random, settings.seed, emulated ? kLargestEmulated : kLargestRandom)) {
    shapes->push_back(shape);
  }
  report->Fact("rank counts", counts);
  report->Fact("ranks are", "threads");

  std::vector<PeerFigure> peers;
  for (const std::string& path : settings.peers_paths) {
    const auto read = ReadPeers(path);
    if (!read.ok()) return read.status();
    peers.insert(peers.end(), read->begin(), read->end());
  }
  std::vector<ProductFigure> figures;
  for (const uint32_t ranks : counts) {
    if (!settings.peers_command.empty()) {
      const auto run =
          RunPeers(settings.peers_command, ranks, absl::Seconds(settings.peers_timeout_seconds));
      if (!run.ok()) return run.status();
      peers.insert(peers.end(), run->begin(), run->end());
    }
    ProductOptions options;
    options.ranks = ranks;
    options.samples = settings.samples;
    const auto measured = MeasureProducts(options, operations, *shapes, variants);
    if (!measured.ok()) return measured.status();
    figures.insert(figures.end(), measured->begin(), measured->end());
  }
  std::vector<std::string> behind;
  Table table = ProductTable(figures, peers, &behind);
  table.Note(absl::StrCat("The slowest rank, medians of ", settings.samples,
                          " batches; the variants, the plain product and the collective alone take "
                          "turns. TFLOP/s are of one rank, in graphs; hidden: the part of the "
                          "collective's time that goes beside the product."));
  report->Add(std::move(table));
  absl::Status written =
      WriteText(settings.json ? report->Json() : report->Text(), settings.output);
  if (!written.ok()) return written;
  if (settings.fail_behind && !behind.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(behind.size(), behind.size() == 1 ? " row is" : " rows are",
                     " slower than the best peer: ", absl::StrJoin(behind, "; ")));
  }
  return absl::OkStatus();
}

}  // namespace iris::bench
