// iris_bench: measures Iris on this machine's devices. See --help.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/base/environment.h"
#include "client/base/printable.h"
#include "client/bench/commands.h"
#include "client/bench/rank.h"
#include "client/bench/report.h"
#include "client/bench/sections.h"
#include "device/driver/open.h"

namespace iris::bench {
namespace {

constexpr char kFooter[] = R"(
Sizes are numbers of bytes, or such as 64KiB, 256MiB, 1GiB. Several sub-commands may
be given, but collectives, tune, compare and matmul: each of these goes alone, makes its ranks
itself, as threads, and has options of its own (COMMAND --help). In a job on several nodes,
collectives and tune measure the job. Rank 0 prints each table as soon as it is measured;
--json and --output wait for the end.

Examples:
  iris-run -n 8 -- iris_bench bandwidth pingpong barrier
  iris-run -n 8 --no-prefix -- iris_bench all --budget 300 --json
  iris-run -n 2 -- iris_bench sweep --svg bandwidth.svg
  iris-run --hosts a:1,b:1 -- iris_bench bandwidth pingpong
  iris_bench --in-process 4 barrier
  iris_bench tune --output rules.txt
  iris_bench compare --rules rules.txt --peers-command './other_bench {ranks}')";

// The last measurement that begins within the budget may take this long.
constexpr absl::Duration kLongestMeasurement = absl::Minutes(10);

// Returns options with which transfers, waits and barriers take a few seconds on two busy CPUs.
BenchOptions EmulatedDefaults() {
  BenchOptions options;
  options.bytes = 4 << 20;
  options.block = 64;
  options.grids = {1, 2, 4};
  options.samples = 3;
  options.rounds = 20;
  options.heaps = {64 << 20};
  options.grow_bytes = 16 << 20;
  options.norm_pairs = 4;
  options.norm_hidden = 1024;
  return options;
}

struct Settings {
  BenchOptions bench;
  bool json = false;
  std::string output;
  uint32_t in_process = 0;
  double budget_seconds = 600;
  std::vector<std::string> commands;
};

using Section = absl::Status (*)(const Run&);
struct Command {
  const char* name;
  const char* help;
  Section section;
  const char* of_irisd = nullptr;  // "irisd" or what else it measures that threads do not have
  // Why "all" leaves it out, if it does: what jobs of several nodes lack. Null: nothing.
  const char* (*lacks)(Rank&) = [](Rank&) -> const char* { return nullptr; };
};

const char* LacksMappedHeaps(Rank& rank) {
  return rank.Reaches(0) && rank.Reaches(rank.n_ranks() - 1)
             ? nullptr
             : "left out: it needs ranks whose heaps are mapped";
}
// Two jobs cannot meet at one rendezvous at the same time.
const char* LacksRendezvous(Rank& rank) {
  return rank.context() == nullptr || rank.context()->n_local() == rank.n_ranks()
             ? nullptr
             : "left out: it makes jobs of its own, which need a rendezvous of their own";
}

constexpr Command kCommands[] = {
    {"bandwidth", "Load, store, get, put and copy engine over all pairs of ranks", Bandwidth},
    {"sweep", "Put and get by block count and size; --svg draws it", Sweep},
    {"atomics", "Remote atomics on 1, 32 and 4,096 addresses", Atomics},
    {"pingpong", "Round trip of a flag between two ranks, and put_signal", PingPong},
    {"barrier", "Barrier of all ranks, inside a kernel and as one", Barriers},
    {"create", "From Context::Create to a usable heap", Create, "irisd", LacksRendezvous},
    {"allocate", "Allocate and free", Allocate, "irisd"},
    {"grow", "Growth of all heaps", Grow, "irisd", LacksRendezvous},
    {"fill", "Values of tensors by kind and type, with the device's fill of bytes", Fill,
     "what a context makes"},
    {"moe", "Dispatch and combine of a mixture of experts", Moe, "what a context makes",
     LacksMappedHeaps},
    {"norm", "All_reduces with an RMS norm after each, as two calls and as one", NormSteps,
     "what a context makes", LacksMappedHeaps},
};

void AddMachine(BenchReport* report) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  report->Fact("host", host);
  driver::OpenOptions options;
  options.backend = Device::BackendName();
  const auto opened = driver::OpenDriver(options);
  report->Fact("backend", Device::BackendName());
  if (!opened.ok()) {
    report->Fact("device", std::string(opened.status().message()));
    return;
  }
  // "8 x NAME", by name.
  std::map<std::string, int> names;
  for (const driver::DeviceInfo& device : opened->driver->devices()) ++names[device.name];
  std::string text;
  for (const auto& [name, n] : names) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", n, " x ", name);
  }
  if (text.empty()) text = absl::StrCat(Device::MultiprocessorCount(), " emulated multiprocessors");
  report->Fact("device", text);
  for (const driver::BackendReport& backend : opened->reports) {
    if (backend.backend == options.backend) report->Fact("driver", backend.detail);
  }
}

void AddDate(BenchReport* report) {
  report->Fact("date", absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::Now(), absl::UTCTimeZone()));
}

absl::Status Measure(Rank& rank, const Settings& settings) {
  BenchReport report;
  const bool prints = rank.rank() == 0 && !settings.json && settings.output.empty();
  if (prints) report.PrintTo(stdout);
  AddDate(&report);
  if (rank.rank() == 0) AddMachine(&report);
  report.Fact("ranks", rank.n_ranks());
  report.Fact("ranks are", rank.context() != nullptr ? "processes" : "threads");
  IRIS_ASSIGN_OR_RETURN(const Areas areas, Areas::Allocate(rank, settings.bench.bytes));
  if (absl::Status met = rank.Barrier(); !met.ok()) return met;
  const absl::Time end = absl::Now() + absl::Seconds(settings.budget_seconds);
  const Run run = {rank, settings.bench, areas, end, &report};
  for (const Command& command : kCommands) {
    for (const std::string& name : settings.commands) {
      if (name != command.name && name != "all") continue;
      if (name == "all" && command.of_irisd != nullptr && rank.context() == nullptr) continue;
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      const char* left_out = time_left ? nullptr : "left out: the time was over";
      if (name == "all" && left_out == nullptr) left_out = command.lacks(rank);
      if (left_out != nullptr) {
        report.Add(Table(command.name, left_out, {}));
      } else if (command.of_irisd != nullptr && rank.context() == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat(command.name, " measures ", command.of_irisd,
                         ": run it under iris-run, without --in-process"));
      } else if (absl::Status status = command.section(run); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat(command.name, ": ", status.message()));
      }
      break;
    }
  }
  if (absl::Status met = rank.Barrier(); !met.ok()) return met;
  if (rank.rank() != 0) return absl::OkStatus();
  if (prints) {
    return std::ferror(stdout) == 0 ? absl::OkStatus()
                                    : absl::InternalError("cannot write to stdout");
  }
  return WriteText(settings.json ? report.Json() : report.Text(), settings.output);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", base::Printable(status.message()).c_str());
  return 1;
}

// Runs a sub-command that makes its ranks itself.
absl::Status RunAlone(const std::string& name, const Settings& settings, AloneSettings alone) {
  if (settings.commands.size() > 1) {
    std::vector<std::string> others = settings.commands;
    others.erase(std::find(others.begin(), others.end(), name));
    return absl::InvalidArgumentError(absl::StrCat(
        name, " goes alone: start iris_bench once more for ", absl::StrJoin(others, ", ")));
  }
  if (settings.in_process > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--in-process is not for ", name, ", which takes --rank-counts"));
  }
  alone.samples = settings.bench.samples;
  alone.json = settings.json;
  alone.output = settings.output;
  alone.svg_path = settings.bench.svg_path;
  BenchReport report;
  AddDate(&report);
  AddMachine(&report);
  return RunAloneCommand(name, alone, &report);
}

}  // namespace

int Main(int argc, char** argv) {
  // Checks would slow the device down.
  setenv(internal::kCheckAccess, "0", /*replace=*/0);
  Settings settings;
  BenchOptions& bench = settings.bench;
  if (Device::Emulated()) bench = EmulatedDefaults();
  CLI::App app(
      "iris-run -n N -- iris_bench [OPTIONS] COMMAND...\n"
      "Measures what Iris does on the devices of this machine, or of several: medians, as a table "
      "or JSON.",
      "iris_bench");
  app.require_subcommand(1, 0);
  app.footer(kFooter);
  app.add_flag("--json", settings.json, "Print one JSON object instead of tables");
  app.add_option("--output", settings.output, "Write to a file instead of stdout");
  app.add_option("--svg", bench.svg_path,
                 "A file to draw into: sweep's bandwidth against size, compare's times");
  const auto add_count = [&app](const char* name, uint32_t* count, uint32_t most,
                                const char* help) {
    app.add_option(name, *count, help)->check(CLI::Range(1u, most));
  };
  add_count("--in-process", &settings.in_process, kMaxTeamRanks,
            "Ranks as so many threads of this process: no irisd, no launcher");
  app.add_option(
         "--budget", settings.budget_seconds,
         "Seconds; what does not fit is left out [600]; not of collectives, tune, compare, matmul")
      ->check(CLI::PositiveNumber);
  AddSize(&app, "--bytes", &bench.bytes,
          "Of a transfer of bandwidth, of fill, and the largest of sweep [256MiB; 4MiB on "
          "emulated devices]");
  add_count(
      "--grid", &bench.grid, 4096,
      "Blocks of bandwidth and atomics [the largest power of two that the multiprocessors are]");
  add_count("--block", &bench.block, kMaxBlockThreads,
            "Threads of a block [512; 64 on emulated devices]");
  AddSize(&app, "--chunk", &bench.chunk_bytes,
          "get and put: blocks take turns, so many bytes at a time; 0: a part each [0]");
  app.add_option("--grids", bench.grids,
                 "sweep: block counts [1,2,4,...,128; to 4 on emulated devices]")
      ->delimiter(',')
      ->check(CLI::Range(1u, 4096u));
  add_count(
      "--samples", &bench.samples, 10000,
      "Samples of each figure; 7 times as many of collectives and tune between nodes [10; 3 on "
      "emulated devices]");
  add_count("--rounds", &bench.rounds, 1000000,
            "pingpong, barrier: rounds of a sample [1000; 20 on emulated devices]");
  app.add_option("--pairs", bench.pairs, "pingpong: first (0 with each), all, or 0-1,2-3 [first]");
  AddSizes(&app, "--heaps", &bench.heaps, 1, UINT64_MAX, "size such as 1GiB",
           "create: heaps of each rank [1GiB; 64MiB on emulated devices]");
  add_count("--moe-tokens", &bench.moe_tokens, 1u << 20,
            "moe: tokens of each rank [4096; 16 on emulated devices]");
  add_count("--moe-hidden", &bench.moe_hidden, 1u << 20,
            "moe: columns of a row [7168; 256 on emulated devices]");
  add_count("--moe-experts", &bench.moe_experts, 4096, "moe: of all ranks together [64]");
  add_count("--moe-top-k", &bench.moe_top_k, 32, "moe: experts of a token [8]");
  app.add_option("--moe-peers-command", bench.moe_peers_command,
                 "moe: a command for /bin/sh that prints figures of peers, such as "
                 "'python3 tests/bench/moe_peer.py --ranks {ranks}'");
  app.add_option("--moe-peers-timeout", bench.moe_peers_timeout_seconds,
                 "moe: seconds that the command may take [600]")
      ->check(CLI::Range(1.0, 86400.0));
  AddSize(&app, "--grow-bytes", &bench.grow_bytes,
          "grow: bytes of a step [64MiB; 16MiB on emulated devices]");
  add_count("--norm-pairs", &bench.norm_pairs, 10000,
            "norm: all_reduces and norms in a graph [160; 4 on emulated devices]");
  app.add_option("--hidden", bench.norm_hidden, "norm: columns [8192; 1024 on emulated devices]")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20));
  for (const Command& command : kCommands) app.add_subcommand(command.name, command.help);
  app.add_subcommand("all", "Everything, as far as --budget goes");
  AloneSettings alone;
  AddAloneCommands(&app, &alone);
  for (CLI::App* command : app.get_subcommands({})) command->fallthrough();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> words = app.remaining();
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !words.empty()) {
      std::fprintf(stderr, "iris_bench: unknown command or option '%s'; see iris_bench --help\n",
                   words.front().c_str());
      return error.get_exit_code();
    }
    return app.exit(error);
  }
  for (const CLI::App* command : app.get_subcommands()) {
    settings.commands.push_back(command->get_name());
  }
  for (const std::string& name : settings.commands) {
    if (!IsAloneCommand(name)) continue;
    const absl::Status status = RunAlone(name, settings, alone);
    return status.ok() ? 0 : Fail(status);
  }
  bench.bytes = bench.bytes / sizeof(Bytes16) * sizeof(Bytes16);
  bench.chunk_bytes = bench.chunk_bytes / sizeof(Bytes16) * sizeof(Bytes16);
  if (bench.bytes == 0) return Fail(absl::InvalidArgumentError("--bytes: at least 16"));

  const uint64_t heap_bytes = Areas::HeapBytes(bench.bytes);
  if (settings.in_process > 0) {
    const absl::Status status = RunAsThreads(settings.in_process, heap_bytes,
                                             [&](Rank& rank) { return Measure(rank, settings); });
    return status.ok() ? 0 : Fail(status);
  }
  // Ranks that do not take part in a measurement wait for those that do.
  const absl::Duration patience = absl::Seconds(settings.budget_seconds) + kLongestMeasurement;
  auto rank = JoinAsProcess(heap_bytes, patience);
  if (!rank.ok()) return Fail(rank.status());
  absl::Status status = Measure(**rank, settings);
  if (absl::IsDeadlineExceeded(status)) {
    status = absl::DeadlineExceededError(
        absl::StrCat(status.message(), "; ranks of iris_bench wait for each other for ",
                     absl::FormatDuration(patience), ": --budget and ",
                     absl::FormatDuration(kLongestMeasurement)));
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
