// iris-run: starts the ranks of a job on this node and ends them together. See --help.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/cpu_binding.h"
#include "client/ctl/rank_set.h"
#include "client/ctl/text.h"
#include "device/base/suggest.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace iris::ctl {
namespace {

constexpr char kFooter[] = R"(
A DURATION is a number of seconds, or has a unit: 5, 0.5, 500ms, 2m.

Each rank gets IRIS_RANK, IRIS_N_RANKS, IRIS_LOCAL_RANK and IRIS_JOB, the rest of
iris-run's own environment, /dev/null as its input, and its own process group.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to all ranks; the
second of the first four kills them. When a rank fails, iris-run says which and how.
The others then have the grace period to report what they know and to end; who still
runs gets SIGTERM, and SIGKILL after --kill-after. Nothing that a rank has started
stays.

Exit code: 0 if every rank ended with 0; otherwise that of the first that failed
(128 + number for a signal). 2: wrong usage. 124: timeout. 126, 127: the program
cannot be executed, or is not found.

Example:
  iris-run -n 4 --bind cores --env OMP_NUM_THREADS=1 -- build/train --epochs 10)";

// The variables that iris-run itself sets, and the option for each.
constexpr std::pair<const char*, const char*> kOwnVariables[] = {
    {"IRIS_RANK=", "-n"},
    {"IRIS_N_RANKS=", "-n"},
    {"IRIS_LOCAL_RANK=", "-n"},
    {"IRIS_JOB=", "--job"},
    {"IRIS_RUNTIME_DIR=", "--runtime-dir"}};

// Returns a name that is unique on this node: the pid, and a random number because pid namespaces
// reuse pids.
std::string UniqueJobName() {
  std::random_device random;
  return absl::StrFormat("run-%d-%04x", getpid(), random() & 0xffff);
}

bool WantsColour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(fd) != 0 && (no_colour == nullptr || *no_colour == '\0');
}

// Returns the error of an argument of --env, or an empty text.
std::string CheckVariable(const std::string& variable) {
  const size_t end = variable.find('=');
  if (end == std::string::npos) {
    return absl::StrCat("'", variable, "' has no value; write --env ", variable,
                        "=VALUE (what iris-run has in its environment, the ranks have anyway)");
  }
  const std::string name = variable.substr(0, end);
  const bool valid = !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return absl::ascii_isalnum(c) || c == '_';
                     });
  if (!valid) {
    return absl::StrCat("'", EscapeName(name),
                        "' is no name of a variable: letters, digits and _, no digit first");
  }
  for (const auto& [own, option] : kOwnVariables) {
    if (absl::StartsWith(variable, own))
      return absl::StrCat(name, " is set by iris-run itself; use ", option);
  }
  return "";
}

std::string CheckDuration(const std::string& text, bool positive) {
  absl::Duration duration;
  if (!ReadDuration(text, &duration)) {
    return absl::StrCat("'", text, "' is no time; write seconds, or a unit: 5, 500ms, 2m");
  }
  if (positive && duration == absl::ZeroDuration()) return "must be more than 0";
  return "";
}

CLI::Option* AddDuration(CLI::App& app, const char* name, absl::Duration* duration, bool positive,
                         const char* help) {
  return app
      .add_option_function<std::string>(
          name, [duration](const std::string& text) { ReadDuration(text, duration); }, help)
      ->check([positive](const std::string& text) { return CheckDuration(text, positive); })
      ->option_text("DURATION");
}

class Help : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string name) const override {
    return absl::StrCat("\nUsage: ", name, " -n N [OPTIONS] -- PROGRAM [ARGS]...\n");
  }
};

int UsageError(const std::string& text) {
  std::fprintf(stderr, "iris-run: %s\n", EscapeName(text).c_str());
  return kExitUsage;
}

// Cuts the command line into iris-run's own words and the program with its arguments. "--" stands
// between them, or the program is the first word that is neither an option nor an option's value.
// Returns 0, or the exit code after a message.
int Split(const CLI::App& app, int argc, char** argv, std::vector<std::string>* own,
          std::vector<std::string>* command) {
  int i = 1;
  while (i < argc) {
    std::string word = argv[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    if (word == "-np") word = "-n";  // as mpirun has it
    ++i;
    own->push_back(word);
    const bool is_long = word[1] == '-';
    const std::string name = is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option == nullptr) {
      std::vector<std::string> known;
      for (const CLI::Option* each : app.get_options()) {
        for (const std::string& long_name : each->get_lnames()) known.push_back("--" + long_name);
        for (const std::string& flag : each->get_fnames()) known.push_back("--" + flag);
      }
      const std::string meant = base::DidYouMean(name, known);
      return UsageError(absl::StrCat("unknown option ", name, meant, meant.empty() ? "." : "",
                                     " The program's own options follow --; see --help"));
    }
    const bool has_value = is_long ? name.size() < word.size() : word.size() > 2;
    if (option->get_items_expected_max() > 0 && !has_value && i < argc) own->push_back(argv[i++]);
  }
  command->assign(argv + i, argv + argc);
  return 0;
}

// Partitions the cores, and reports the result if the user asked for it or it is surprising.
int Bind(bool verbose, RunOptions* options) {
  const absl::StatusOr<std::vector<Core>> cores = AllowedCores();
  if (!cores.ok()) return UsageError(absl::StrCat("--bind: ", cores.status().message()));
  options->cpus = SpreadCores(*cores, options->n_ranks);
  if (cores->size() < static_cast<size_t>(options->n_ranks)) {
    std::fprintf(stderr, "iris-run: --bind cores: %d ranks share %d core%s\n", options->n_ranks,
                 static_cast<int>(cores->size()), cores->size() == 1 ? "" : "s");
  }
  for (int rank = 0; verbose && rank < options->n_ranks; ++rank) {
    std::fprintf(stderr, "iris-run: rank %d is bound to CPUs %s\n", rank,
                 CpuList(options->cpus[static_cast<size_t>(rank)]).c_str());
  }
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Starts N ranks of a program as one Iris job, and ends them together.", "iris-run");
  app.formatter(std::make_shared<Help>());
  RunOptions options;
  std::string bind = "none";
  bool verbose = false;
  app.add_option("-n,--ranks,--np", options.n_ranks, "Number of ranks; also -np N")
      ->option_text("N")
      ->required()
      ->check(CLI::Range(1, static_cast<int>(wire::kMaxRanks)));
  app.add_option("--job", options.job, "Name of the job [a unique one]")
      ->option_text("NAME")
      ->check([](const std::string& name) {
        return name.empty() || name.size() > wire::kMaxJobNameBytes
                   ? absl::StrCat("a job's name has 1 to ", wire::kMaxJobNameBytes, " bytes")
                   : std::string();
      });
  app.add_option("--runtime-dir", options.runtime_dir,
                 "irisd's directory: IRIS_RUNTIME_DIR of the ranks")
      ->option_text("DIR");
  app.add_option("--env", options.environment,
                 "A variable for the ranks; may be given several times")
      ->option_text("NAME=VALUE")
      ->check(CheckVariable)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--bind", bind,
                 "cores: distribute the cores of iris-run over the ranks,\n"
                 "neighbours and all threads of a core together [none]")
      ->option_text("none|cores")
      ->check(CLI::IsMember({"none", "cores"}));
  bool no_prefix = false;
  app.add_flag("--no-prefix", no_prefix, "Do not begin each line of output with its rank");
  app.add_flag("--prefix", options.prefix, "The default, which may be said")->group("");
  AddDuration(app, "--timeout", &options.timeout, /*positive=*/true,
              "End all ranks after this time");
  const CLI::Option* const grace =
      AddDuration(app, "--grace", &options.grace, /*positive=*/false,
                  "After a failure, the time that the others have to report\nand end [5s]");
  AddDuration(app, "--kill-after", &options.kill_after, /*positive=*/false,
              "Between SIGTERM and SIGKILL [5s]");
  app.add_flag("--keep-going", options.keep_going, "A failure does not end the other ranks");
  app.add_flag("--verbose", verbose, "Say the job's name, and to which CPUs each rank is bound");
  app.set_version_flag("--version", std::string("iris-run ") + wire::kIrisVersion);
  app.footer(kFooter);

  std::vector<std::string> own;
  if (const int code = Split(app, argc, argv, &own, &options.command); code != 0) return code;
  try {
    app.parse(std::vector<std::string>(own.rbegin(), own.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (options.command.empty()) {
    return UsageError("no program to run; write: iris-run -n N -- PROGRAM [ARGS]...");
  }
  if (options.keep_going && grace->count() > 0) {
    return UsageError("--keep-going ends nobody after a failure, and --grace says when; give one");
  }
  if (options.job.empty()) options.job = UniqueJobName();
  if (verbose) {
    std::fprintf(stderr, "iris-run: job %s, %d ranks of %s\n", EscapeName(options.job).c_str(),
                 options.n_ranks, EscapeName(options.command[0]).c_str());
  }
  if (bind == "cores") {
    if (const int code = Bind(verbose, &options); code != 0) return code;
  }
  options.prefix = !no_prefix;
  options.colour_stdout = WantsColour(STDOUT_FILENO);
  options.colour_stderr = WantsColour(STDERR_FILENO);
  return RankSet(std::move(options)).Run();
}

}  // namespace
}  // namespace iris::ctl

int main(int argc, char** argv) { return iris::ctl::Main(argc, argv); }
