// iris-run: starts the ranks of a job, here or on several hosts, and ends them together (--help).
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
#include "client/base/launcher.h"
#include "client/base/whole_file.h"
#include "client/ctl/agent.h"
#include "client/ctl/host_list.h"
#include "client/ctl/rank_set.h"
#include "client/ctl/remote_ranks.h"
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

With --hosts or --hostfile, iris-run starts itself on each host by "RSH HOST COMMAND",
in the same folder; it must be at the same path there. Ranks get IRIS_N_LOCAL,
IRIS_RENDEZVOUS, a fresh IRIS_JOB_SECRET if none is set, and of iris-run's
environment IRIS_*, PATH, LD_LIBRARY_PATH, PYTHONPATH and what -x names. They end when
iris-run dies, or is stopped for a minute; the job ends when a host is lost.

Exit code: 0 if every rank ended with 0; otherwise that of the first that failed
(128 + number for a signal). 2: wrong usage. 124: timeout. 125: a host cannot be
reached, or is lost. 126, 127: the program cannot be executed, or is not found.

Examples:
  iris-run -n 4 --bind cores --env OMP_NUM_THREADS=1 -- build/train --epochs 10
  iris-run --hosts node1:8,node2:8 -x OMP_NUM_THREADS -- build/train --epochs 10)";

constexpr size_t kMaxHostfileBytes = 1 << 20;

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
  const std::string name = variable.substr(0, variable.find('='));
  const bool valid = !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return absl::ascii_isalnum(c) || c == '_';
                     });
  if (!valid) {
    return absl::StrCat("'", EscapeName(name),
                        "' is no name of a variable: letters, digits and _, no digit first");
  }
  for (const auto& [own, option] : kOwnVariables) {
    if (absl::StartsWith(name + "=", own))
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
    return absl::StrCat("\nUsage: ", name, " -n N [OPTIONS] -- PROGRAM [ARGS]...\n       ", name,
                        " --hosts HOST:N,... [OPTIONS] -- PROGRAM [ARGS]...\n");
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

// What the options say of hosts.
struct HostWords {
  std::string hosts;
  std::string hostfile;
  std::string rsh;
  std::string rendezvous = base::NamedRendezvous(internal::Environment).value_or("");
};

// Returns the hosts, their number of ranks and how to reach them.
absl::StatusOr<RemoteOptions> ReadHosts(const HostWords& words, int n_ranks) {
  const bool file = !words.hostfile.empty();
  absl::StatusOr<std::vector<HostRanks>> hosts;
  if (file) {
    const auto text = internal::ReadFile(words.hostfile, kMaxHostfileBytes);
    if (!text.ok()) return text.status();
    hosts = ParseHostfile(*text);
  } else {
    hosts = ParseHosts(words.hosts);
  }
  if (hosts.ok()) hosts = PlaceRanks(*std::move(hosts), n_ranks);
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file ? absl::StrCat("--hostfile ", words.hostfile) : "--hosts", ": ",
                     hosts.status().message()));
  }
  RemoteOptions remote;
  remote.hosts = *std::move(hosts);
  absl::StatusOr<std::vector<std::string>> rsh = ReadRemoteShell(words.rsh);
  if (!rsh.ok()) return rsh.status();
  remote.rsh = *std::move(rsh);
  remote.rendezvous = words.rendezvous;
  if (!remote.rendezvous.empty()) {
    absl::Status status = base::CheckRendezvous("--rendezvous", remote.rendezvous);
    if (!status.ok()) return status;
  } else if (remote.hosts.size() > 1 && IsLoopback(remote.hosts[0].name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks of other hosts cannot find rank 0 at ", remote.hosts[0].name,
                     "; give that host's own name, or --rendezvous HOST:PORT"));
  }
  return remote;
}

// Gives a value to each variable without one: that of iris-run, for ranks on other hosts.
absl::Status FillVariables(bool remote, std::vector<std::string>* variables) {
  for (std::string& each : *variables) {
    if (absl::StrContains(each, '=')) continue;
    if (!remote) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env: '", each, "' has no value; write --env ", each,
                       "=VALUE (what iris-run has in its environment, the ranks have anyway)"));
    }
    const char* const value = std::getenv(each.c_str());
    if (value == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env ", each, ": it is not set; set it, or write --env ", each, "=VALUE"));
    }
    absl::StrAppend(&each, "=", value);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string(kAgentFlag)) return RunAgent();
  CLI::App app("Starts N ranks of a program as one Iris job, and ends them together.", "iris-run");
  app.formatter(std::make_shared<Help>());
  RunOptions options;
  std::string bind = "none";
  bool verbose = false;
  options.n_ranks = 0;
  app.add_option("-n,--ranks,--np", options.n_ranks,
                 "Number of ranks; also -np N\n[with --hosts: as many as there is room for]")
      ->option_text("N")
      ->check(CLI::Range(1, static_cast<int>(wire::kMaxWorldRanks)));
  HostWords words;
  words.rsh = DefaultRemoteShell();
  auto* const hosts_option =
      app.add_option("--hosts", words.hosts, "Hosts, in the order of ranks, and ranks on each [1]")
          ->option_text("HOST[:N],...");
  app.add_option("--hostfile", words.hostfile, "The same, with HOST[:N] or HOST slots=N on a line")
      ->option_text("FILE")
      ->excludes(hosts_option);
  app.add_option("--rsh", words.rsh,
                 "Remote shell, with its options\n[IRIS_RUN_RSH, else ssh -o BatchMode=yes]")
      ->option_text("COMMAND");
  app.add_option("--rendezvous", words.rendezvous,
                 "Where the hosts meet\n[IRIS_RENDEZVOUS, else a free port of the first host]")
      ->option_text("HOST:PORT");
  absl::Duration connect_timeout = absl::Seconds(30);
  AddDuration(app, "--connect-timeout", &connect_timeout, /*positive=*/true,
              "Until all hosts have answered [30s]");
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
  app.add_option("-x,--env", options.environment,
                 "A variable for the ranks; may be given several times.\n"
                 "With --hosts, also NAME alone, which has a value here")
      ->option_text("NAME[=VALUE]")
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
  const bool remote = !words.hosts.empty() || !words.hostfile.empty();
  if (const auto status = FillVariables(remote, &options.environment); !status.ok()) {
    return UsageError(std::string(status.message()));
  }
  absl::StatusOr<RemoteOptions> hosts;
  if (remote) {
    hosts = ReadHosts(words, options.n_ranks);
    if (!hosts.ok()) return UsageError(std::string(hosts.status().message()));
    options.n_ranks = 0;
    for (const HostRanks& host : hosts->hosts) options.n_ranks += host.n_ranks;
  } else if (options.n_ranks < 1 || options.n_ranks > static_cast<int>(wire::kMaxRanks)) {
    return UsageError(absl::StrCat("give the number of ranks on this node, 1 to ", wire::kMaxRanks,
                                   ", by -n, or hosts by --hosts"));
  }
  options.n_local = options.n_ranks;
  if (options.job.empty()) options.job = UniqueJobName();
  if (verbose) {
    std::fprintf(stderr, "iris-run: job %s, %d ranks of %s\n", EscapeName(options.job).c_str(),
                 options.n_ranks, EscapeName(options.command[0]).c_str());
  }
  options.prefix = options.capture = !no_prefix;
  options.colour_stdout = WantsColour(STDOUT_FILENO);
  options.colour_stderr = WantsColour(STDERR_FILENO);
  if (remote) {
    hosts->connect_timeout = connect_timeout;
    hosts->bind = bind == "cores";
    hosts->verbose = verbose;
    return RemoteRanks(std::move(options), *std::move(hosts)).Run();
  }
  if (bind == "cores") {
    const auto text = BindCores(verbose, &options);
    if (!text.ok()) return UsageError(std::string(text.status().message()));
    std::fputs(text->c_str(), stderr);
  }
  return RankSet(std::move(options)).Run();
}

}  // namespace
}  // namespace iris::ctl

int main(int argc, char** argv) { return iris::ctl::Main(argc, argv); }
