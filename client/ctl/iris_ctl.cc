// iris-ctl: shows what irisd owns. See --help. One thread.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/base/launcher.h"
#include "client/base/runtime_dir.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/commands.h"
#include "client/ctl/doctor.h"
#include "client/ctl/doctor_node.h"
#include "client/ctl/host_list.h"
#include "client/ctl/peek.h"
#include "client/ctl/remote_ranks.h"
#include "client/ctl/text.h"
#include "client/ctl/trace.h"
#include "client/ctl/views.h"
#include "client/trace/trace_merge.h"
#include "device/base/bytes.h"
#include "device/base/suggest.h"
#include "device/driver/pair_check.h"
#include "proto/wire/version.h"

namespace iris::ctl {

extern const char kBashCompletion[];  // the text of deploy/completions/iris-ctl.bash

namespace {

enum ExitCode {
  kExitOk = 0,
  kExitError = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitNotFound = 4,
  kExitPermission = 5,
};

constexpr char kFooter[] = R"(
iris-ctl COMMAND --help shows the options of a command. The options above may stand
before it, too.

Exit codes:
  0  done
  1  irisd answered with an error; the doctor found something that fails;
     or a trace that was taken could not be written
  2  wrong usage; with --merge, also a file that cannot be read, merged or written
  3  irisd cannot be reached, or does not answer
  4  no such job, rank or allocation
  5  permission denied

Examples:
  iris-ctl jobs --watch             every 2 seconds, until interrupted
  iris-ctl describe train           one job with its ranks, memory and events
  iris-ctl waits train              who waits for whom in it
  iris-ctl nodes train              its nodes, if it spans several
  iris-ctl peek train 0 weights     the first values of an allocation
  iris-ctl trace train -o a.json    what its kernels do, for 5 seconds
  iris-ctl doctor                   what is wrong here, and what to do
  iris-ctl doctor --node b          and between this node and b)";

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kPermissionDenied:
      return kExitPermission;
    default:
      return kExitError;
  }
}

void Say(absl::string_view text) {
  std::fprintf(stderr, "iris-ctl: %s\n", EscapeName(text).c_str());
}

int Report(const absl::Status& status) {
  if (!status.ok()) Say(status.message());
  return ExitCodeOf(status);
}

// Writes and flushes, for the reader of a pipe. Returns false if the reader is gone.
bool Write(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

absl::StatusOr<std::unique_ptr<AdminClient>> Connect(const Options& options,
                                                     absl::Duration wait = absl::Seconds(2)) {
  return AdminClient::Connect(internal::RuntimeDirs(options.runtime_dir), absl::Seconds(5), wait);
}

int RunEvents(const Options& options) {
  const auto client = Connect(options);
  if (!client.ok()) return Report(client.status());
  const absl::TimeZone zone = absl::LocalTimeZone();
  return Report((*client)->Events(options.follow, [&](const v1::Event& event) {
    if (!options.job.empty() && event.job() != options.job) return true;
    return Write(options.json ? Dump(MessageJson(event), -1) : EventText(event, zone));
  }));
}

int RunDoctorCommand(const Options& options) {
  const std::vector<Finding> findings = options.node.host.empty()
                                            ? RunDoctor(internal::RuntimeDirs(options.runtime_dir))
                                            : CheckNode(options.node);
  Write(options.json ? Dump(FindingsJson(findings), 2) : FindingsText(findings));
  return AnyFailed(findings) ? kExitError : kExitOk;
}

volatile sig_atomic_t g_interrupted = 0;

int RunTrace(const Options& options, const TraceWish& wish) {
  const auto client = Connect(options);
  if (!client.ok()) return Report(client.status());
  for (const int number : {SIGINT, SIGTERM}) {
    signal(number, [](int) { g_interrupted = 1; });
  }
  const absl::StatusOr<std::string> taken = TakeTrace(
      wish, **client, [] { return g_interrupted != 0; },
      [](const std::string& line) { Say(line); });
  if (!taken.ok()) return Report(WithNearJobs(options, **client, taken.status()));
  return Write(*taken) ? kExitOk : kExitError;
}

// With --watch each round makes its own connection: irisd may start or be replaced meanwhile.
int Run(const Options& options, const Command& command) {
  for (;;) {
    std::string head;
    if (options.watch_seconds > 0) {
      if (isatty(STDOUT_FILENO) != 0) head = "\033[H\033[2J";
      if (!options.json) {
        absl::StrAppendFormat(&head, "iris-ctl %s, every %gs, %s\n\n", command.name,
                              options.watch_seconds,
                              absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone()));
      }
    }
    bool read = true;
    const auto write = [&](const std::string& text) {
      read = read && Write(std::exchange(head, "") + text);
      return read;
    };
    // A shell that completes a word does not wait for an irisd.
    const auto client = Connect(options, options.names ? absl::ZeroDuration() : absl::Seconds(2));
    absl::Status status = client.status();
    if (client.ok()) {
      status = WithNearJobs(options, **client, command.show(options, **client, write));
    }
    if (!read) return kExitError;
    if (options.watch_seconds <= 0) return Report(status);
    if (!write(status.ok() ? "" : EscapeName(status.message()) + "\n")) return kExitError;
    absl::SleepFor(absl::Seconds(options.watch_seconds));
  }
}

// The texts of options that Options has in another form.
struct Words {
  std::string format = "table";
  std::vector<std::string> watch;
  std::string shell;
};

// Adds options that most commands share. Each is added twice, before and after the command, so that
// the help of a command shows those that apply.
void AddFormat(CLI::App& app, Words& words) {
  app.add_option("--format", words.format, "How to write it [table]")
      ->option_text("table|json")
      ->check(CLI::IsMember({"table", "json"}));
}
void AddWatch(CLI::App& app, Words& words) {
  app.add_option("--watch", words.watch, "Again every so many seconds [2], until interrupted")
      ->option_text("[SECONDS]")
      ->expected(0, 1);
}
void AddRuntimeDir(CLI::App& app, Options& options) {
  app.add_option("--runtime-dir", options.runtime_dir,
                 "irisd's directory [IRIS_RUNTIME_DIR, /run/iris,\n$XDG_RUNTIME_DIR/iris]")
      ->option_text("DIR");
}

CLI::Validator IsBytes() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t bytes = 0;
        return base::ParseBytes(text, &bytes)
                   ? ""
                   : absl::StrCat("'", text, "' is not ", base::kBytesGrammar);
      },
      "");
}

CLI::Validator IsCount() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t count = 0;
        return absl::SimpleAtoi(text, &count)
                   ? std::string()
                   : absl::StrCat("'", text, "' is no whole number from 0 on");
      },
      "");
}

void AddPeek(CLI::App& peek, Options& options) {
  peek.add_option("JOB", options.job, "Name of the job")->option_text(" ")->required();
  peek.add_option("RANK", options.peek.rank, "Rank in the job")
      ->option_text(" ")
      ->required()
      ->check(IsCount());
  peek.add_option("PLACE", options.peek.place,
                  "Name of an allocation, or offset in the heap:\n1024, 0x400, 1KiB")
      ->option_text(" ")
      ->required()
      ->check([](const std::string& place) {
        return place.empty() || place[0] == '-'
                   ? absl::StrCat("'", place, "' is no name, and not ", base::kBytesGrammar)
                   : std::string();
      });
  peek.add_option("--dtype", options.peek.dtype,
                  "Type of the values, or hex for bytes\n[the allocation's own, else hex]")
      ->option_text("TYPE")
      ->check([](const std::string& name) {
        std::vector<std::string> known = ElementTypeNames();
        known.push_back("hex");
        if (name == "hex" || FindElementType(name) != nullptr) return std::string();
        return absl::StrCat("unknown type '", name, "'", base::DidYouMean(name, known),
                            " Known are: ", absl::StrJoin(known, ", "));
      });
  peek.add_option("--count", options.peek.count, "How many values [64, or all]")
      ->option_text("N")
      ->check(IsCount());
  peek.add_option_function<std::string>(
          "--bytes",
          [&options](const std::string& text) {
            uint64_t bytes = 0;
            base::ParseBytes(text, &bytes);
            options.peek.bytes = bytes;
          },
          "How much, instead of --count [256, or all]")
      ->option_text("SIZE")
      ->check(IsBytes());
  peek.add_option("--from", options.peek.first_element,
                  "Number of the first value, or byte, counted from\nPLACE [0]")
      ->option_text("N")
      ->check(IsCount());
}

void AddDoctor(CLI::App& doctor, NodeWish& wish) {
  wish.rsh = DefaultRemoteShell();
  CLI::Option* const node =
      doctor
          .add_option("--node", wish.host,
                      "What a job of this node and that one would get:\nlatency, bandwidth, MTU, "
                      "transport, clocks; and\nwhat is wrong between them")
          ->option_text("HOST")
          ->check([](const std::string& host) {
            return host.empty() || host[0] == '-' || IsLoopback(host)
                       ? absl::StrCat("'", host, "' is no name or address of another node")
                       : std::string();
          });
  doctor
      .add_option("--rsh", wish.rsh,
                  "Remote shell to that node, with its options\n[IRIS_RUN_RSH, else ssh -o "
                  "BatchMode=yes]")
      ->option_text("COMMAND")
      ->needs(node);
  doctor
      .add_option("--rendezvous", wish.rendezvous, "Where the job meets on that node [a free port]")
      ->option_text("HOST:PORT")
      ->needs(node)
      ->check([](const std::string& text) {
        return std::string(base::CheckRendezvous("--rendezvous", text).message());
      });
}

void AddTrace(CLI::App& trace, Options& options, TraceWish& wish) {
  CLI::Option* const job =
      trace.add_option("JOB", options.job, "Name of the job")->option_text(" ");
  trace
      .add_option("--seconds", wish.seconds,
                  "For how long; 0: what was told before [5].\nCtrl-C ends it early")
      ->option_text("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  trace.add_option("-o,--output", wish.file, "The file [trace.json]")->option_text("FILE");
  trace.add_option("--rank", wish.rank, "Only this rank")->option_text("RANK")->check(IsCount());
  CLI::Option* const merge =
      trace
          .add_option("--merge", wish.merge,
                      "Nothing is traced: these files, which ranks of one\njob wrote, become one")
          ->option_text("FILE...")
          ->excludes(job);
  trace.final_callback([job, merge] {
    if (job->count() == 0 && merge->count() == 0) throw CLI::RequiredError("JOB");
  });
}

void AddCommands(CLI::App& app, Options& options, Words& words, TraceWish& wish) {
  for (const Command& each : Commands()) {
    CLI::App& command = *app.add_subcommand(each.name, each.help);
    command.footer(absl::StrCat("\nExample:\n  iris-ctl ", each.example));
    const std::string name = each.name;
    if (each.takes_job) {
      command.add_option("--job", options.job, "Only this job")->option_text("NAME");
    }
    if (name == "jobs") command.add_flag("--names", options.names, "Only the names, one a line");
    if (name == "describe") {
      command.add_option("JOB", options.job, "Name of the job")->option_text(" ")->required();
    }
    if (name == "waits" || name == "nodes") {
      command.add_option("JOB", options.job, "The same as --job")->option_text(" ");
    }
    if (name == "events") {
      command.add_flag("--follow", options.follow, "Then wait for more, until interrupted");
    }
    if (name == "peek") AddPeek(command, options);
    if (name == "trace") AddTrace(command, options, wish);
    if (name == "doctor") AddDoctor(command, options.node);
    if (name == "completion") {
      command.add_option("SHELL", words.shell, "bash")
          ->option_text(" ")
          ->required()
          ->check(CLI::IsMember({"bash"}));
      continue;
    }
    if (each.show != nullptr) AddWatch(command, words);
    if (name != "trace") AddFormat(command, words);
    AddRuntimeDir(command, options);
  }
}

int UsageError(const std::string& text) {
  Say(text);
  return kExitUsage;
}

// Merges traces. It needs no irisd, so every error is about the files.
int MergeTraces(const TraceWish& wish) {
  const auto merged = internal::MergeTraceFiles(wish.merge, wish.file);
  if (!merged.ok()) return UsageError(std::string(merged.status().message()));
  const std::string error =
      merged->nodes_error_us.has_value()
          ? absl::StrFormat(", that of the node of rank 0, within %.3f us", *merged->nodes_error_us)
          : "";
  return Write(
             absl::StrCat(wish.file, ": ", wish.merge.size(), " traces on one clock", error, "\n"))
             ? kExitOk
             : kExitError;
}

// Returns the error for a word that is neither a command nor an option.
std::string NotUnderstood(const CLI::App& app, const std::string& word) {
  const auto commands = app.get_subcommands();
  const CLI::App& where = commands.empty() ? app : *commands.front();
  const std::string name =
      commands.empty() ? "iris-ctl" : absl::StrCat("iris-ctl ", where.get_name());
  std::vector<std::string> known;
  std::string what = "unknown option";
  std::string meant;
  const bool is_option = absl::StartsWith(word, "-");
  const std::string bare = is_option ? word.substr(0, word.find('=')) : word;
  if (is_option) {
    for (const CLI::Option* option : where.get_options()) {
      for (const std::string& each : option->get_lnames()) known.push_back("--" + each);
    }
    meant = base::DidYouMean(bare, known);
  } else if (commands.empty()) {
    what = "unknown command";
    for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(each->get_name());
    }
    meant = base::DidYouMean(bare, known);
  } else {
    what = "unexpected word";
    if (where.get_option_no_throw("--job") != nullptr) {
      meant = absl::StrCat("; did you mean '--job ", bare, "'?");
    }
  }
  return absl::StrCat(what, " '", bare, "'", meant.empty() ? "." : meant, " See ", name, " --help");
}

int RefuseWords(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error) == 0 ? kExitOk : kExitUsage;
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  // CLI11's own text says more about a value of the wrong kind.
  const bool of_words = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                        dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (of_words && !words.empty()) return UsageError(NotUnderstood(app, words.front()));
  app.exit(error);
  return kExitUsage;
}

int Main(int argc, char** argv) {
  CLI::App app("Shows what irisd, the daemon of the symmetric heaps on this node, owns.",
               "iris-ctl");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("iris-ctl ") + wire::kIrisVersion);
  app.footer(kFooter);
  Options options;
  Words words;
  AddRuntimeDir(app, options);
  AddFormat(app, words);
  AddWatch(app, words);
  TraceWish wish;
  AddCommands(app, options, words, wish);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return RefuseWords(app, error);
  }
  CLI::App* const chosen = app.get_subcommands().front();
  const std::string name = chosen->get_name();
  options.json = words.format == "json";
  bool watches = false;
  for (const char* option : {"--watch", "--format", "--runtime-dir"}) {
    const CLI::Option* const own = chosen->get_option_no_throw(option);
    const bool before = app.get_option(option)->count() > 0;
    if (before && own == nullptr) {
      return UsageError(absl::StrCat(name, " has no ", option, "; see iris-ctl ", name, " --help"));
    }
    if (absl::string_view(option) == "--watch") {
      watches = before || (own != nullptr && own->count() > 0);
    }
  }
  if (watches) {
    options.watch_seconds = 2;
    const std::string seconds = words.watch.empty() ? "" : words.watch[0];
    if (!seconds.empty() && seconds != "true" &&
        (!absl::SimpleAtod(seconds, &options.watch_seconds) || !(options.watch_seconds >= 0.1) ||
         options.watch_seconds > 86400)) {
      return UsageError(absl::StrCat("--watch takes 0.1 to 86400 seconds, not '", seconds, "'"));
    }
  }
  options.peek.job = options.job;
  options.node.runtime_dir = options.runtime_dir;
  wish.job = options.job;
  signal(SIGPIPE, SIG_IGN);

  if (name == "completion") return Write(kBashCompletion) ? kExitOk : kExitError;
  if (name == "doctor") return RunDoctorCommand(options);
  if (name == "events") return RunEvents(options);
  if (name == "trace") return wish.merge.empty() ? RunTrace(options, wish) : MergeTraces(wish);
  const auto commands = Commands();
  return Run(options, *std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& each) { return name == each.name; }));
}

}  // namespace
}  // namespace iris::ctl

int main(int argc, char** argv) {
  if (iris::driver::IsPairCheckChild(argc, argv)) return iris::driver::RunPairCheckChild(argv);
  if (argc == 2 && argv[1] == std::string(iris::ctl::kNodeRankFlag)) {
    return iris::ctl::RunNodeRank();
  }
  return iris::ctl::Main(argc, argv);
}
