#include "client/bench/commands.h"

#include <algorithm>
#include <iostream>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/absl_status.h"
#include "client/base/annotate.h"
#include "client/base/whole_file.h"
#include "client/bench/collectives.h"
#include "client/bench/device.h"
#include "device/base/bytes.h"
#include "iris/launcher.h"
#include "iris/types.h"

namespace iris::bench {
namespace {

// The limits of ccl, whose header needs a compiler of kernels.
constexpr uint32_t kMaxBlocks = SyncArea::kMaxBlocks;
constexpr uint32_t kMaxThreads = 512;
constexpr uint32_t kMaxUnroll = 2;
constexpr const char* kCompared[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                     kBarrier};

constexpr char kTuneFooter[] = R"(
Writes rules, one a line, that CommunicatorOptions::rules takes, and --rules of
collectives and compare: operation, up to members, up to bytes, variant, blocks,
threads, unroll. A table replaces the built-in one as a whole: an operation without a rule
goes the direct way.

GEMMs (--ops matmul_all_reduce and the other fused ones) have lines of another form:
operation, members, m, n, k, variant. Of the lines of these members whose numbers are within
4 times those of a call, the nearest decides. CommunicatorOptions::rules takes both forms in
one text; with only lines of GEMMs, collectives keep the built-in table.

In a job on several nodes, tune measures it, and writes lines between nodes alone: nodes,
up to so many, operation or any, setting of ccl::NodesConfig, value. They go with the other
lines in one text, those for fewer nodes first. It takes some minutes; fewer --ops and --sizes
take less.

Example:
  iris_bench tune --rank-counts 2,4 --output rules.txt
  iris-run --hosts a:8,b:8 --no-prefix -- iris_bench tune --output nodes.txt
  iris-run --hosts a:8,b:8 --no-prefix -- iris_bench collectives --rules nodes.txt
  iris_bench compare --rules rules.txt
  iris_bench tune --ops matmul_all_reduce --shapes 64x8192x8192,1024x4096x14336)";

constexpr char kCompareFooter[] = R"(
Peers print lines of JSON, for each figure one:
  {"lib": "other", "op": "all_reduce", "variant": "tree", "bytes": 1024, "n": 4, "us": 9.5}
"variant" may be missing. "bytes" is the size of the whole tensor, the larger of in
and out; "barrier" has none. "n" is the number of ranks. Other lines and other keys
are passed over. Peers run before the same rank count is measured here.

Example:
  iris_bench compare --peers-command 'mpirun -n {ranks} ./other_bench' --svg us.svg)";

constexpr char kMatmulFooter[] = R"(
Peers print lines of JSON, for each figure one:
  {"lib": "other", "op": "matmul_all_reduce", "shape": [8192, 4096, 14336], "n": 4, "us": 9.5}
"shape" is m, n and k over all ranks; "n" is the number of ranks; "us" is the time in a
graph. "variant" may follow. Other lines and other keys are passed over.

Example:
  iris_bench matmul --rank-counts 4 --peers-command './other_bench {ranks}' --fail-behind
  iris_bench matmul --share --cold --ops all_gather_matmul --shapes 64x4096x8192)";

template <typename T>
CLI::Option* AddList(CLI::App* app, const char* name, std::vector<T>* values,
                     const std::string& help) {
  return app->add_option(name, *values, help)->delimiter(',')->allow_extra_args(false);
}

void AddCommonOptions(CLI::App* app, AloneSettings* settings, const char* emulated_counts,
                      const char* operations, const char* variants) {
  AddList(app, "--rank-counts", &settings->rank_counts,
          absl::StrCat("Measured one after another, a device for each rank [of 2,4,8 those that "
                       "the machine has devices for; on the emulator ",
                       emulated_counts, "]"))
      ->check(CLI::Range(2u, kMaxTeamRanks));
  AddList(app, "--ops", &settings->operations, operations);
  if (variants != nullptr) AddList(app, "--variants", &settings->variants, variants);
}

void AddCollectiveSizes(CLI::App* app, AloneSettings* settings) {
  AddSizes(app, "--sizes", &settings->sizes, 2, kMaxCollectiveBytes,
           "size such as 64KiB, from 2 bytes to 64GiB",
           "Bytes of the larger of in and out [1KiB,8KiB,64KiB,256KiB,1MiB,4MiB,16MiB,128MiB,1GiB; "
           "on the emulator up to 1MiB; between nodes each fourth from 1KiB to 16MiB]")
      ->allow_extra_args(false);
}

void AddRulesOption(CLI::App* app, AloneSettings* settings) {
  app->add_option("--rules", settings->rules_path,
                  "A table that tune wrote, instead of the built-in one");
}

void AddSearchOptions(CLI::App* app, AloneSettings* settings, const char* blocks,
                      const char* threads, const char* unrolls) {
  AddList(app, "--blocks", &settings->blocks, blocks)->check(CLI::Range(1u, kMaxBlocks));
  AddList(app, "--threads", &settings->threads, threads)->check(CLI::Range(1u, kMaxThreads));
  AddList(app, "--unrolls", &settings->unrolls, unrolls)->check(CLI::Range(1u, kMaxUnroll));
}

void AddPeersOptions(CLI::App* app, AloneSettings* settings) {
  app->add_option("--peers", settings->peers_paths,
                  "A file with what peers printed, for any rank counts; may be repeated")
      ->allow_extra_args(false);
  app->add_option(
      "--peers-command", settings->peers_command,
      "A command for /bin/sh that prints figures of a rank count, which replaces {ranks}");
  app->add_option("--peers-timeout", settings->peers_timeout_seconds,
                  "Seconds that the command may take [600]")
      ->check(CLI::Range(1.0, 86400.0));
}

absl::StatusOr<std::vector<uint32_t>> RankCounts(const std::string& command,
                                                 const AloneSettings& settings) {
  const uint32_t most = settings.share ? kMaxTeamRanks : MostCollectiveRanks();
  std::vector<uint32_t> counts = settings.rank_counts;
  const uint32_t usual = !Device::Emulated() ? 8 : command == kMatmul ? 2 : 4;
  for (uint32_t n = 2; settings.rank_counts.empty() && n <= std::min(usual, most); n *= 2) {
    counts.push_back(n);
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

absl::Status CheckNames(const char* option, const Names& names, const Names& known,
                        const std::string& more) {
  for (const std::string& name : names) {
    if (Has(known, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": \"", name, "\" is none of ", absl::StrJoin(known, ", "), more));
  }
  return absl::OkStatus();
}

absl::StatusOr<Names> Operations(const std::string& command, const AloneSettings& settings) {
  Names known = command == kMatmul ? ProductOperations() : CollectiveOperations();
  if (command == kTune) {  // a barrier has nothing to choose
    known.erase(std::remove(known.begin(), known.end(), kBarrier), known.end());
  }
  const Names usual = known;
  if (command == kTune) {
    for (std::string& name : ProductOperations()) known.push_back(std::move(name));
  }
  absl::Status status = CheckNames("--ops", settings.operations, known, " for " + command);
  if (!status.ok()) return status;
  if (!settings.operations.empty()) return settings.operations;
  return command == kCompare ? Names(std::begin(kCompared), std::end(kCompared)) : usual;
}

// A name is a mistake if no operation has it.
absl::Status CheckVariants(const std::string& command, const Names& wanted) {
  if (command == kMatmul) return CheckNames("--variants", wanted, ProductVariants(), "");
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
  return CheckNames("--variants", wanted, {known.begin(), known.end()},
                    ", nor `all` or `auto` alone");
}

}  // namespace

absl::Status WriteText(const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::cout << text << std::flush;
    return std::cout.good() ? absl::OkStatus() : absl::InternalError("cannot write to stdout");
  }
  return internal::Annotate(internal::WriteFile(path, text), "cannot write");
}

CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t* bytes,
                     const std::string& help) {
  return app->add_option_function<std::string>(
      name,
      [bytes, name](const std::string& text) {
        if (base::ParseBytes(text, bytes)) return;
        throw CLI::ValidationError(name, "\"" + text + "\" is no size such as 64KiB");
      },
      help);
}

CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>* sizes,
                      uint64_t least, uint64_t most, const std::string& what,
                      const std::string& help) {
  return app
      ->add_option_function<Names>(
          name,
          [=](const Names& texts) {
            sizes->clear();
            for (const std::string& text : texts) {
              uint64_t bytes = 0;
              if (!base::ParseBytes(text, &bytes) || bytes < least || bytes > most) {
                throw CLI::ValidationError(name, "\"" + text + "\" is no " + what);
              }
              sizes->push_back(bytes);
            }
          },
          help)
      ->delimiter(',');
}

void AddAloneCommands(CLI::App* app, AloneSettings* settings) {
  CLI::App* collectives = app->add_subcommand(
      kCollectives,
      "Alone, in no job: times of the collectives, replayed from graphs. Or in a job on several\n"
      "nodes: its times, with and without --rules in turns");
  AddCommonOptions(collectives, settings, "2,4", "Operations [all]",
                   "auto, all, or names: those that the operation has [auto]");
  AddCollectiveSizes(collectives, settings);
  AddSearchOptions(collectives, settings, "Block counts instead of what the table says",
                   "Threads of a block, likewise",
                   "1, or 2 for twice as many loads at a time, likewise");
  AddRulesOption(collectives, settings);
  AddSize(collectives, "--stage", &settings->stage_bytes,
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
      app->add_subcommand(kTune,
                          "Alone, in no job: measures a table of rules for this machine. Or in a "
                          "job on several\nnodes: lines of such a table between them");
  AddCommonOptions(tune, settings, "2,4", "Operations, GEMMs too [all collectives but barrier]",
                   "all, or names: those that the operation has [all]");
  AddCollectiveSizes(tune, settings);
  AddList(tune, "--shapes", &settings->shapes,
          "m, n and k of GEMMs, over all ranks [those of matmul, without random ones]");
  AddSearchOptions(
      tune, settings,
      "Block counts to try, with the one for the size [1,2,4,8,16,24,32,64,128; on the "
      "emulator 1,2,4,8]",
      "Threads of a block to try [256,512; on the emulator 64]",
      "1, 2 or both: loads that a thread has under way [1,2; on the emulator 1]");
  tune->footer(kTuneFooter);

  CLI::App* compare =
      app->add_subcommand(kCompare, "Alone, in no job: collectives, with those of other libraries");
  AddCommonOptions(compare, settings, "2,4",
                   "Operations [all_reduce,all_gather,reduce_scatter,all_to_all,barrier]", nullptr);
  AddCollectiveSizes(compare, settings);
  AddRulesOption(compare, settings);
  AddPeersOptions(compare, settings);
  compare->footer(kCompareFooter);

  CLI::App* matmul =
      app->add_subcommand(kMatmul, "Alone, in no job: GEMMs with their communication");
  AddCommonOptions(matmul, settings, "2", "Operations [all]",
                   "Variants [all, and what auto chooses]");
  AddList(matmul, "--shapes", &settings->shapes,
          "m, n and k over all ranks [8192x4096x14336,4096x8192x8192,1024x4096x14336,"
          "64x8192x8192,8192x8192x28672; on the emulator 64x64x64]");
  matmul
      ->add_option(
          "--random", settings->random,
          "So many more shapes, always the same for a seed [10; none if --shapes is given, "
          "or on the emulator]")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}));
  matmul->add_option("--seed", settings->seed, "Of the random shapes [1]");
  matmul->add_flag("--share", settings->share,
                   "Ranks share devices where there are fewer; each then has a part of one");
  matmul->add_flag("--cold", settings->cold,
                   "Each call has another B than the one before it, so that B comes from memory "
                   "and not from a cache");
  matmul->add_flag("--no-early", settings->no_early,
                   "No kernel begins before the one before it has ended (Config::early)");
  AddPeersOptions(matmul, settings);
  matmul->add_flag("--fail-behind", settings->fail_behind,
                   "Exit with 1 if what auto chooses is slower than the best peer, in any row");
  matmul->footer(kMatmulFooter);
}

bool IsAloneCommand(const std::string& name) {
  return name == kCollectives || name == kTune || name == kCompare || name == kMatmul;
}

absl::Status RunAloneCommand(const std::string& name, const AloneSettings& settings,
                             BenchReport* report) {
  if (name == kTune && settings.json) {
    return absl::InvalidArgumentError("tune writes a table of rules as text: leave out --json");
  }
  const auto launcher = ReadLauncher();
  if (!launcher.ok()) return base::ToAbsl(launcher.status());
  const bool of_nodes = launcher->n_local != 0 && launcher->n_local < launcher->n_ranks;
  if (of_nodes && (name == kCollectives || name == kTune)) {
    IRIS_ASSIGN_OR_RETURN(const Names operations, Operations(name, settings));
    return RunOnNodes(name, settings, operations, report);
  }
  if (launcher->n_ranks > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " makes its ranks itself, as threads: start it once, not as ", launcher->n_ranks,
        " processes by ", launcher->launcher == "iris" ? "iris-run" : launcher->launcher.c_str()));
  }
  IRIS_ASSIGN_OR_RETURN(const auto rank_counts, RankCounts(name, settings));
  IRIS_ASSIGN_OR_RETURN(const Names operations, Operations(name, settings));
  if (absl::Status status = CheckVariants(name, settings.variants); !status.ok()) return status;
  report->Fact("rank counts", rank_counts);
  report->Fact("ranks are", "threads");
  const Alone alone = {settings, rank_counts, operations, report};
  if (name == kCollectives) return Collectives(alone);
  if (name == kTune) return Tune(alone);
  return name == kCompare ? Compare(alone) : Matmul(alone);
}

}  // namespace iris::bench
