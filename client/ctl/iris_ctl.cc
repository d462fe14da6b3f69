// iris-ctl: shows what irisd owns. See --help. One thread.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/completion.h"
#include "client/ctl/doctor.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"
#include "client/internal/runtime_dir.h"
#include "device/base/bytes.h"
#include "device/driver/pair_check.h"
#include "proto/wire/version.h"

namespace iris::ctl {
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
Exit codes:
  0  done
  1  irisd answered with an error; or the doctor found something that fails
  2  wrong usage
  3  irisd cannot be reached, or does not answer
  4  no such job or rank
  5  permission denied

Examples:
  iris-ctl jobs --watch             every 2 seconds, until interrupted
  iris-ctl heaps --job train --format json
  iris-ctl peek train 0 0x400 --bytes 256
  iris-ctl doctor                   what is wrong here, and what to do)";

struct Options {
  std::string runtime_dir;
  bool json = false;
  double watch_seconds = 0;  // 0: once
  std::string job;
  bool names = false;
  bool follow = false;
  uint32_t rank = 0;
  std::string offset_text;
  std::string bytes_text = "256";
};

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

int Report(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "iris-ctl: %s\n", EscapeName(status.message()).c_str());
  }
  return ExitCodeOf(status);
}

// Takes a part of what a command says. False: nobody reads it any more.
using Output = absl::FunctionRef<bool(const std::string&)>;

// What one command says, once. Listings say it page by page.
using Command = std::function<absl::Status(AdminClient&, Output)>;

absl::Status Status(const Options& options, AdminClient& client, Output write) {
  const auto reply = client.GetStatus();
  if (!reply.ok()) return reply.status();
  write(options.json ? Dump(StatusJson(*reply), 2) : StatusText(*reply, absl::Now()));
  return absl::OkStatus();
}

// Shows what `list(take)` lists.
template <typename Reply, typename List>
absl::Status Show(ListView<Reply> view, bool json, Output write, List list) {
  ListPrinter<Reply> printer(std::move(view), json);
  const absl::Status listed =
      list([&](const Reply& page) { return write(printer.Page(page, absl::Now())); });
  if (listed.ok()) write(printer.End());
  return listed;
}

absl::Status Devices(const Options& options, AdminClient& client, Output write) {
  return Show(DevicesView(), options.json, write,
              [&](auto take) { return client.ListDevices(take); });
}

// For the completion: one a line, those that need no quotes.
std::string PlainNames(const v1::ListJobsReply& page) {
  std::string names;
  for (const auto& job : page.jobs()) {
    const bool plain = std::all_of(job.job().begin(), job.job().end(), [](unsigned char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':' || c == '/';
    });
    if (plain) absl::StrAppend(&names, job.job(), "\n");
  }
  return names;
}

absl::Status Jobs(const Options& options, AdminClient& client, Output write) {
  if (options.names) {
    return client.ListJobs(options.job,
                           [&](const v1::ListJobsReply& page) { return write(PlainNames(page)); });
  }
  return Show(JobsView(), options.json, write,
              [&](auto take) { return client.ListJobs(options.job, take); });
}

absl::Status Heaps(const Options& options, AdminClient& client, Output write) {
  return Show(HeapsView(), options.json, write,
              [&](auto take) { return client.ListHeaps(options.job, take); });
}

absl::Status Allocations(const Options& options, AdminClient& client, Output write) {
  return Show(AllocationsView(), options.json, write,
              [&](auto take) { return client.ListAllocations(options.job, take); });
}

// What /proc says of a process; empty if it says nothing.
std::string ReadProc(int64_t pid, const char* what) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", what), std::ios::binary);
  std::string text(size_t{512}, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// irisd tells a process's name alone. The whole command line of this user's own processes can be
// read here: where a process of that number has that name, it is the same one.
v1::ListSessionsReply WithCommandLines(v1::ListSessionsReply page) {
  for (v1::Session& session : *page.mutable_sessions()) {
    if (session.uid() != geteuid() || ReadProc(session.pid(), "comm") != session.command())
      continue;
    const std::string line = ReadProc(session.pid(), "cmdline");
    if (!line.empty()) session.set_command(line);
  }
  return page;
}

absl::Status Sessions(const Options& options, AdminClient& client, Output write) {
  return Show(SessionsView(), options.json, write, [&](auto take) {
    return client.ListSessions(
        [&](const v1::ListSessionsReply& page) { return take(WithCommandLines(page)); });
  });
}

absl::Status Peek(const Options& options, AdminClient& client, Output write) {
  uint64_t offset_bytes = 0, bytes = 0;
  base::ParseBytes(options.offset_text, &offset_bytes);
  base::ParseBytes(options.bytes_text, &bytes);
  const auto data = client.Peek(options.job, options.rank, offset_bytes, bytes);
  if (!data.ok()) return data.status();
  if (!options.json) {
    write(HexDump(*data, offset_bytes));
    return absl::OkStatus();
  }
  std::string hex;
  for (const char byte : *data)
    absl::StrAppendFormat(&hex, "%02x", static_cast<unsigned char>(byte));
  write(Dump({{"job", options.job},
              {"rank", options.rank},
              {"offset_bytes", offset_bytes},
              {"bytes", data->size()},
              {"data_hex", hex}},
             2));
  return absl::OkStatus();
}

// Flushed at once, so that what reads us through a pipe is up to date. False: the reader is gone.
bool Write(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

int RunEvents(const Options& options) {
  absl::StatusOr<std::unique_ptr<AdminClient>> client =
      AdminClient::Connect(internal::RuntimeDirs(options.runtime_dir));
  if (!client.ok()) return Report(client.status());
  const absl::TimeZone zone = absl::LocalTimeZone();
  return Report((*client)->Events(options.follow, [&](const v1::Event& event) {
    if (!options.job.empty() && event.job() != options.job) return true;
    return Write(options.json ? Dump(EventJson(event), -1) : EventText(event, zone));
  }));
}

int RunDoctorCommand(const Options& options) {
  const std::vector<Finding> findings = RunDoctor(internal::RuntimeDirs(options.runtime_dir));
  Write(options.json ? Dump(FindingsJson(findings), 2) : FindingsText(findings));
  return AnyFailed(findings) ? kExitError : kExitOk;
}

// Each turn has a connection of its own: irisd may come, go and be replaced meanwhile.
int Run(const Options& options, const std::string& name, const Command& command) {
  for (;;) {
    std::string head;
    if (options.watch_seconds > 0) {
      if (isatty(STDOUT_FILENO) != 0) head = "\033[H\033[2J";
      if (!options.json) {
        absl::StrAppendFormat(&head, "iris-ctl %s, every %gs, %s\n\n", name, options.watch_seconds,
                              absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone()));
      }
    }
    bool read = true;
    const auto write = [&](const std::string& text) {
      read = read && Write(std::exchange(head, "") + text);
      return read;
    };
    absl::StatusOr<std::unique_ptr<AdminClient>> client =
        AdminClient::Connect(internal::RuntimeDirs(options.runtime_dir));
    const absl::Status status = client.ok() ? command(**client, write) : client.status();
    if (!read) return kExitError;
    if (options.watch_seconds <= 0) return Report(status);
    if (!write(status.ok() ? "" : EscapeName(status.message()) + "\n")) return kExitError;
    absl::SleepFor(absl::Seconds(options.watch_seconds));
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Shows what irisd, the daemon of the symmetric heaps on this node, owns.",
               "iris-ctl");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", std::string("iris-ctl ") + wire::kIrisVersion);
  app.footer(kFooter);

  Options options;
  std::string format = "table";
  std::vector<std::string> watch;
  app.add_option("--runtime-dir", options.runtime_dir,
                 "irisd's directory [IRIS_RUNTIME_DIR, /run/iris, $XDG_RUNTIME_DIR/iris]");
  app.add_option("--format", format, "table or json")->check(CLI::IsMember({"table", "json"}));
  CLI::Option* watch_option =
      app.add_option("--watch", watch, "Again every so many seconds [2], until interrupted")
          ->expected(0, 1)
          ->type_name("[SECONDS]");

  app.add_subcommand("status", "irisd itself: version, memory, descriptors, counts");
  app.add_subcommand("devices", "Devices, their memory and what is in use");
  CLI::App* jobs = app.add_subcommand("jobs", "Jobs, their state and their ranks");
  CLI::App* heaps = app.add_subcommand("heaps", "The heap of each rank");
  CLI::App* allocations =
      app.add_subcommand("allocations", "Every live allocation: name, offset, size, shape");
  app.add_subcommand("sessions", "Processes that are connected");
  CLI::App* events = app.add_subcommand("events", "What has happened");
  CLI::App* peek = app.add_subcommand("peek", "Bytes of a rank's heap, as a hex dump");
  app.add_subcommand("doctor",
                     "Checks this machine, every pair of devices and irisd, and says what to do");
  CLI::App* completion =
      app.add_subcommand("completion", "Prints the completion script of a shell");

  for (CLI::App* list : {jobs, heaps, allocations, events}) {
    list->add_option("--job", options.job, "Only this job");
  }
  jobs->add_flag("--names", options.names, "Only the names, one a line");
  events->add_flag("--follow", options.follow, "Then wait for more, until interrupted");
  const CLI::Validator is_bytes(
      [](std::string& text) {
        uint64_t bytes = 0;
        return base::ParseBytes(text, &bytes)
                   ? ""
                   : absl::StrCat("'", text, "' is not ", base::kBytesGrammar);
      },
      "");
  peek->add_option("JOB", options.job, "Name of the job")->required();
  peek->add_option("RANK", options.rank, "Rank in the job")->required();
  peek->add_option("OFFSET", options.offset_text, "Offset in the heap: 1024, 0x400, 1KiB")
      ->required()
      ->check(is_bytes);
  peek->add_option("--bytes", options.bytes_text, "How many [256]")->check(is_bytes);
  std::string shell;
  completion->add_option("SHELL", shell, "bash")->required()->check(CLI::IsMember({"bash"}));

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  options.json = format == "json";
  const std::string name = app.get_subcommands().front()->get_name();
  if (watch_option->count() > 0) {
    options.watch_seconds = 2;
    if (!watch.empty() && !watch[0].empty() && watch[0] != "true" &&
        (!absl::SimpleAtod(watch[0], &options.watch_seconds) || options.watch_seconds < 0.1 ||
         options.watch_seconds > 86400)) {
      std::fprintf(stderr, "iris-ctl: --watch takes 0.1 to 86400 seconds, not '%s'\n",
                   watch[0].c_str());
      return kExitUsage;
    }
  }
  signal(SIGPIPE, SIG_IGN);

  if (name == "completion") return Write(kBashCompletion) ? kExitOk : kExitError;
  if (name == "doctor") return RunDoctorCommand(options);
  if (name == "events") return RunEvents(options);
  using Function = absl::Status (*)(const Options&, AdminClient&, Output);
  const std::pair<const char*, Function> functions[] = {
      {"status", Status},           {"devices", Devices},   {"jobs", Jobs}, {"heaps", Heaps},
      {"allocations", Allocations}, {"sessions", Sessions}, {"peek", Peek}};
  for (const auto& [each, function] : functions) {
    if (name != each) continue;
    return Run(options, name, std::bind_front(function, std::cref(options)));
  }
  return kExitUsage;
}

}  // namespace
}  // namespace iris::ctl

int main(int argc, char** argv) {
  if (iris::driver::IsPairCheckChild(argc, argv)) return iris::driver::RunPairCheckChild(argv);
  return iris::ctl::Main(argc, argv);
}
