// iris-run: starts the ranks of a job on this node and ends them together. See --help.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/rank_set.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace {

constexpr char kFooter[] = R"(
Each rank gets IRIS_RANK, IRIS_N_RANKS, IRIS_LOCAL_RANK and IRIS_JOB, /dev/null as
its input, and its own process group. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
SIGUSR2 are passed on to all ranks; the second of the first four kills them. When a
rank fails, the others get SIGTERM, and SIGKILL after the grace period. Nothing that
a rank has started stays.

Exit code: 0 if every rank ended with 0; otherwise that of the first that failed
(128 + number for a signal). 2: wrong usage. 124: timeout. 126, 127: the program
cannot be executed, or is not found.

Example:
  iris-run -n 4 -- build/train --epochs 10)";

// Unique among the jobs of this node: the pid, and something random because pid namespaces count
// alike.
std::string UniqueJobName() {
  std::random_device random;
  return absl::StrFormat("run-%d-%04x", getpid(), random() & 0xffff);
}

bool WantsColour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(fd) != 0 && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "iris-run -n N [OPTIONS] -- PROGRAM [ARGS]...\n"
      "Starts N ranks of a program as one Iris job, and ends them together.",
      "iris-run");
  iris::ctl::RunOptions options;
  double timeout_seconds = 0;
  double grace_seconds = 5;
  app.add_option("-n,--ranks", options.n_ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, static_cast<int>(iris::wire::kMaxRanks)));
  app.add_option("--job", options.job, "Name of the job [a unique one]")
      ->check([](const std::string& name) {
        return name.empty() || name.size() > iris::wire::kMaxJobNameBytes
                   ? absl::StrCat("a job's name has 1 to ", iris::wire::kMaxJobNameBytes, " bytes")
                   : std::string();
      });
  app.add_option("--runtime-dir", options.runtime_dir,
                 "irisd's directory: IRIS_RUNTIME_DIR of the ranks");
  app.add_flag("--prefix,!--no-prefix", options.prefix,
               "Begin each line of output with its rank (the default)");
  app.add_option("--timeout", timeout_seconds, "End all ranks after so many seconds")
      ->check(CLI::PositiveNumber);
  app.add_option("--grace", grace_seconds, "Seconds between SIGTERM and SIGKILL [5]")
      ->check(CLI::NonNegativeNumber);
  app.set_version_flag("--version", std::string("iris-run ") + iris::wire::kIrisVersion);
  app.prefix_command();
  app.footer(kFooter);

  // What follows "--" belongs to the program, unread.
  std::vector<std::string> own(argv + 1, argv + argc);
  std::vector<std::string> after;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] != "--") continue;
    after.assign(own.begin() + static_cast<std::ptrdiff_t>(i), own.end());
    own.resize(i);
    break;
  }
  try {
    app.parse(std::vector<std::string>(own.rbegin(), own.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : iris::ctl::kExitUsage;
  }
  options.command = app.remaining();
  if (options.command.empty() && !after.empty()) after.erase(after.begin());
  options.command.insert(options.command.end(), after.begin(), after.end());
  if (options.command.empty()) {
    std::fputs("iris-run: no program to run; write: iris-run -n N -- PROGRAM [ARGS]...\n", stderr);
    return iris::ctl::kExitUsage;
  }
  if (options.command[0].rfind('-', 0) == 0 && after.size() != options.command.size()) {
    std::fprintf(stderr, "iris-run: unknown option %s; see iris-run --help\n",
                 options.command[0].c_str());
    return iris::ctl::kExitUsage;
  }
  if (options.job.empty()) options.job = UniqueJobName();
  if (timeout_seconds > 0) options.timeout = absl::Seconds(timeout_seconds);
  options.grace = absl::Seconds(grace_seconds);
  options.colour_stdout = WantsColour(STDOUT_FILENO);
  options.colour_stderr = WantsColour(STDERR_FILENO);
  return iris::ctl::RankSet(std::move(options)).Run();
}
