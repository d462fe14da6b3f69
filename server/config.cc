#include "server/config.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "device/base/suggest.h"
#include "device/driver/open.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "toml++/toml.h"

namespace iris::server {
namespace {

enum class Kind { kNumber, kBytes, kDuration, kText };

struct Setting {
  std::string key;   // in the file: "section.name", or "name" at the top
  std::string flag;  // without the dashes
  Kind kind = Kind::kText;
  std::string help;
  std::function<absl::Status(const std::string&, Config*)> set;
  // Copies the value. False: the values were equal.
  std::function<bool(const Config& from, Config* to)> copy;
};

// Whether a running irisd can change the setting.
bool Reloads(const std::string& key) {
  static const std::set<std::string> kKeys = {"log.level",
                                              "core.memory",
                                              "sessions.max",
                                              "sessions.max_per_tenant",
                                              "sessions.max_unattested",
                                              "sessions.max_unattested_per_tenant"};
  return absl::StartsWith(key, "jobs.") || absl::StartsWith(key, "admin.") || kKeys.contains(key);
}

// `field(Config*)` is where the value is.
template <typename Field>
std::function<bool(const Config&, Config*)> Copy(Field field) {
  return [field](const Config& from, Config* to) {
    Config source = from;
    const bool differs = !(*field(to) == *field(&source));
    *field(to) = *field(&source);
    return differs;
  };
}

absl::Status Bad(const std::string& text, const std::string& want) {
  return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForLog(text, 64), "\" is not ", want));
}

Setting Number(const char* key, const char* flag, const char* help, uint32_t min, uint32_t max,
               std::function<uint32_t*(Config*)> field) {
  const auto set = [min, max, field](const std::string& text, Config* config) -> absl::Status {
    uint64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < min || value > max) {
      return Bad(text, absl::StrCat("a number from ", min, " to ", max));
    }
    *field(config) = static_cast<uint32_t>(value);
    return absl::OkStatus();
  };
  return {key, flag, Kind::kNumber, help, set, Copy(field)};
}

Setting Bytes(const char* key, const char* flag, const char* help, uint64_t min,
              std::function<uint64_t*(Config*)> field) {
  const auto set = [min, field](const std::string& text, Config* config) -> absl::Status {
    uint64_t value = 0;
    if (!base::ParseBytes(text, &value)) return Bad(text, base::kBytesGrammar);
    if (value < min) return Bad(text, absl::StrCat("at least ", base::SizeText(min)));
    *field(config) = value;
    return absl::OkStatus();
  };
  return {key, flag, Kind::kBytes, help, set, Copy(field)};
}

Setting Time(const char* key, const char* flag, const char* help,
             std::function<absl::Duration*(Config*)> field) {
  const auto set = [field](const std::string& text, Config* config) -> absl::Status {
    absl::Duration value;
    if (!absl::ParseDuration(text, &value) || value < absl::Milliseconds(1) ||
        value > absl::Hours(24 * 365)) {
      return Bad(text, "a duration from 1ms to a year, such as \"5s\" or \"1m30s\"");
    }
    *field(config) = value;
    return absl::OkStatus();
  };
  return {key, flag, Kind::kDuration, help, set, Copy(field)};
}

template <typename T>
Setting Choice(const char* key, const char* flag, const std::string& help,
               std::vector<std::pair<std::string, T>> choices, std::function<T*(Config*)> field) {
  const auto set = [choices = std::move(choices), field](const std::string& text,
                                                         Config* config) -> absl::Status {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices) {
      if (name == text) {
        *field(config) = value;
        return absl::OkStatus();
      }
      names.push_back(absl::StrCat("\"", name, "\""));
    }
    return Bad(text, absl::StrJoin(names, " or "));
  };
  return {key, flag, Kind::kText, help, set, Copy(field)};
}

absl::Status SetRecordFile(const std::string& text, Config* config) {
  if (!text.empty() && text[0] != '/') return Bad(text, "an absolute path");
  config->record_file = text;
  return absl::OkStatus();
}

absl::Status SetRuntimeDir(const std::string& text, Config* config) {
  const bool printable =
      std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (text.empty() || text[0] != '/' || !printable) return Bad(text, "an absolute path");
  config->runtime_dir.path = text;
  return absl::OkStatus();
}

absl::Status SetSocketMode(const std::string& text, Config* config) {
  uint32_t mode = 0;
  const bool octal =
      !text.empty() && text.size() <= 4 && text.find_first_not_of("01234567") == std::string::npos;
  for (const char c : text) mode = mode * 8 + static_cast<uint32_t>(c - '0');
  if (!octal || mode > 0777 || (mode & 0600) != 0600) {
    return Bad(text, "an octal mode that lets the owner in, such as \"0660\"");
  }
  config->runtime_dir.socket_mode = mode;
  return absl::OkStatus();
}

absl::Status SetSocketGroup(const std::string& text, Config* config) {
  if (text.empty()) {
    config->runtime_dir.socket_group.reset();
    return absl::OkStatus();
  }
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number)) {
    config->runtime_dir.socket_group = number;
    return absl::OkStatus();
  }
  const struct group* const group = getgrnam(text.c_str());
  if (group == nullptr) return Bad(text, "a group of this system");
  config->runtime_dir.socket_group = group->gr_gid;
  return absl::OkStatus();
}

std::vector<Setting> MakeSettings() {
  std::vector<Setting> s;
  s.push_back({"runtime_dir", "runtime-dir", Kind::kText,
               "directory of the sockets and the lock ($IRIS_RUNTIME_DIR, else /run/iris for root, "
               "else $XDG_RUNTIME_DIR/iris)",
               SetRuntimeDir, Copy([](Config* c) { return &c->runtime_dir.path; })});
  s.push_back({"socket_mode", "socket-mode", Kind::kText,
               "mode of both sockets, octal: who may connect (0660)", SetSocketMode,
               Copy([](Config* c) { return &c->runtime_dir.socket_mode; })});
  s.push_back({"socket_group", "socket-group", Kind::kText,
               "group of both sockets, name or number (irisd's own)", SetSocketGroup,
               Copy([](Config* c) { return &c->runtime_dir.socket_group; })});
  s.push_back({"record", "record", Kind::kText,
               "record every input of the job machine in this new file, for iris-replay (no file)",
               SetRecordFile, Copy([](Config* c) { return &c->record_file; })});
  std::vector<std::pair<std::string, std::string>> backends;
  for (const char* name : driver::kBackendChoices) backends.emplace_back(name, name);
  s.push_back(Choice<std::string>(
      "backend", "backend",
      absl::StrCat("whose devices: ", absl::StrJoin(driver::kBackendChoices, ", "),
                   " (auto: a vendor's if it has any, else emulated ones)"),
      backends, [](Config* c) { return &c->backend; }));
  s.push_back(
      Choice<bool>("self_check", "self-check",
                   "on: prove every pair of devices before serving, and keep jobs off those "
                   "that fail; off (on)",
                   {{"on", true}, {"off", false}}, [](Config* c) { return &c->self_check; }));
  s.push_back(Choice<bool>("seccomp", "seccomp",
                           "on: irisd and its workers give up the system calls that they do not "
                           "need; off (on)",
                           {{"on", true}, {"off", false}},
                           [](Config* c) { return &c->workers.seccomp; }));
  s.push_back(Number("emu.devices", "emu-devices", "number of emulated devices (8)", 1, 1024,
                     [](Config* c) { return &c->emu_devices; }));
  s.push_back(Bytes("emu.memory", "emu-memory", "memory of each emulated device (4GiB)",
                    driver::kEmuGranularityBytes, [](Config* c) { return &c->emu_memory_bytes; }));
  s.push_back(Bytes("core.memory", "core-memory",
                    "memory that irisd may take for what it keeps for all users; from four fifths "
                    "of it, users with more than an equal part get no more (1GiB)",
                    64 << 20, [](Config* c) { return &c->core_memory_bytes; }));
  s.push_back(Choice<LogLevel>("log.level", "log-level", "debug, info, warn or error (info)",
                               {{"debug", LogLevel::kDebug},
                                {"info", LogLevel::kInfo},
                                {"warn", LogLevel::kWarn},
                                {"error", LogLevel::kError}},
                               [](Config* c) { return &c->log_level; }));
  s.push_back(Choice<LogFormat>("log.format", "log-format", "kv (key=value) or json (kv)",
                                {{"kv", LogFormat::kKeyValue}, {"json", LogFormat::kJson}},
                                [](Config* c) { return &c->log_format; }));
  s.push_back(Choice<Attestation>("sessions.attestation", "attestation",
                                  "auto (the kernel's SO_PEERPIDFD, else a nonce) or nonce (auto)",
                                  {{"auto", Attestation::kAuto}, {"nonce", Attestation::kNonce}},
                                  [](Config* c) { return &c->sessions.attestation; }));
  s.push_back(Time("sessions.handshake_timeout", "handshake-timeout",
                   "a connection must finish its handshake within this time (5s)",
                   [](Config* c) { return &c->sessions.handshake_timeout; }));
  s.push_back(Number("sessions.max", "max-sessions",
                     "sessions in total (4096; fewer where descriptors are short)", 1, 1 << 20,
                     [](Config* c) { return &c->sessions.limits.max_sessions; }));
  s.push_back(Number("sessions.max_per_tenant", "max-sessions-per-tenant",
                     "sessions of one tenant: a user, or a container of his (1024)", 1, 1 << 20,
                     [](Config* c) { return &c->sessions.limits.max_sessions_per_tenant; }));
  s.push_back(Number("sessions.max_unattested", "max-unattested",
                     "connections in the handshake at a time; beyond it the oldest of the tenant "
                     "that has most goes (1024; fewer where descriptors are short)",
                     1, 1 << 20, [](Config* c) { return &c->sessions.limits.max_unattested; }));
  s.push_back(Number("sessions.max_unattested_per_tenant", "max-unattested-per-tenant",
                     "those of one tenant; beyond it its own oldest goes (512)", 1, 1 << 20,
                     [](Config* c) { return &c->sessions.limits.max_unattested_per_tenant; }));
  s.push_back(Number("sessions.max_in_flight", "max-in-flight",
                     "descriptors sent to clients that these have not received (4096; at most an "
                     "eighth of RLIMIT_NOFILE)",
                     1, 1 << 20, [](Config* c) { return &c->sessions.limits.max_in_flight; }));
  s.push_back(Number("sessions.max_in_flight_per_tenant", "max-in-flight-per-tenant",
                     "those of one tenant (2048)", 1, 1 << 20,
                     [](Config* c) { return &c->sessions.limits.max_in_flight_per_tenant; }));
  s.push_back(Number("sessions.max_closing", "max-closing",
                     "descriptors of clients that do not close; beyond it nothing more is read "
                     "from tenants that have their part of them (4096; at most a sixteenth of "
                     "RLIMIT_NOFILE)",
                     1, 1 << 20, [](Config* c) { return &c->sessions.limits.max_closing; }));
  s.push_back(Number("sessions.max_closing_per_tenant", "max-closing-per-tenant",
                     "those of one tenant; beyond it nothing more is read from it; where so many "
                     "of registered memory wait to be closed, it waits (2048; at most half of all)",
                     1, 1 << 20,
                     [](Config* c) { return &c->sessions.limits.max_closing_per_tenant; }));
  s.push_back(Time("sessions.send_timeout", "send-timeout",
                   "a session whose descriptors cannot be sent for so long is ended (30s)",
                   [](Config* c) { return &c->sessions.send_timeout; }));
  s.push_back(Number("admin.max", "max-admin-connections",
                     "connections on irisd.sock in total (256)", 1, 1 << 20,
                     [](Config* c) { return &c->sessions.limits.max_admin_connections; }));
  s.push_back(Number("admin.max_per_tenant", "max-admin-connections-per-tenant",
                     "connections of one tenant on irisd.sock (64)", 1, 1 << 20, [](Config* c) {
                       return &c->sessions.limits.max_admin_connections_per_tenant;
                     }));
  s.push_back({"workers.user", "worker-user", Kind::kText,
               "user that workers become if irisd is root; \"\": they stay root (nobody)",
               [](const std::string& text, Config* config) {
                 config->workers.user = text;
                 return absl::OkStatus();
               },
               Copy([](Config* c) { return &c->workers.user; })});
  s.push_back(Bytes("workers.memory", "worker-memory", "memory that one worker may take (512MiB)",
                    64 << 20, [](Config* c) { return &c->workers.memory_bytes; }));
  s.push_back(Time("workers.idle_timeout", "worker-idle-timeout",
                   "a worker without a connection is ended after this time (10s)",
                   [](Config* c) { return &c->worker_idle_timeout; }));
  s.push_back(Number("jobs.max", "max-jobs", "jobs in total (1024)", 1, 1 << 20,
                     [](Config* c) { return &c->jobs.max_jobs; }));
  s.push_back(Number("jobs.max_per_uid", "max-jobs-per-uid", "jobs of one user (256)", 1, 1 << 20,
                     [](Config* c) { return &c->jobs.max_jobs_per_uid; }));
  s.push_back(Bytes("jobs.max_heap_per_uid", "max-heap-per-uid",
                    "heap bytes of one user, over all ranks and jobs; 0 is no quota (0)", 0,
                    [](Config* c) { return &c->jobs.max_heap_bytes_per_uid; }));
  s.push_back(Time("jobs.join_timeout", "join-timeout",
                   "a join waits this long for the other ranks, unless it says (1m)",
                   [](Config* c) { return &c->jobs.join_timeout_default; }));
  s.push_back(Time("jobs.join_timeout_max", "join-timeout-max", "the longest it may say (1h)",
                   [](Config* c) { return &c->jobs.join_timeout_max; }));
  s.push_back(Time("jobs.map_timeout", "map-timeout",
                   "every rank must map its peers within this time (1m)",
                   [](Config* c) { return &c->jobs.map_timeout; }));
  s.push_back(Time("jobs.operation_timeout", "operation-timeout",
                   "an operation of a team waits this long, unless it says (1m)",
                   [](Config* c) { return &c->jobs.operation_timeout_default; }));
  s.push_back(Time("jobs.operation_timeout_max", "operation-timeout-max",
                   "the longest it may say (1h)",
                   [](Config* c) { return &c->jobs.operation_timeout_max; }));
  s.push_back(Time("jobs.grow_timeout", "grow-timeout",
                   "every rank must map a growth within this time (30s)",
                   [](Config* c) { return &c->jobs.grow_timeout; }));
  return s;
}

// One value of the file, as the text that its setting parses.
absl::StatusOr<std::string> TextOf(const toml::node& node, Kind kind) {
  if (kind == Kind::kNumber || kind == Kind::kBytes) {
    if (const auto* number = node.as_integer()) return absl::StrCat(number->get());
  }
  if (kind == Kind::kNumber) return absl::InvalidArgumentError("must be a whole number");
  if (const auto* text = node.as_string()) return text->get();
  switch (kind) {
    case Kind::kBytes:
      return absl::InvalidArgumentError("must be a size: \"4GiB\", or a whole number of bytes");
    case Kind::kDuration:
      return absl::InvalidArgumentError("must be a duration in quotes, such as \"5s\"");
    default:
      return absl::InvalidArgumentError("must be a text in quotes");
  }
}

// By line of the file.
using Mistakes = std::multimap<uint32_t, std::string>;

void ApplyTable(const toml::table& table, const std::string& prefix, const std::string& file,
                const std::vector<Setting>& settings, Config* config, Mistakes* mistakes) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const uint32_t line = key.source().begin.line;
    const auto add = [&](const std::string& what) {
      mistakes->emplace(line, absl::StrCat(file, ":", line, ": ", what));
    };
    const auto setting = std::find_if(settings.begin(), settings.end(),
                                      [&](const Setting& s) { return s.key == name; });
    if (setting != settings.end()) {
      absl::StatusOr<std::string> text = TextOf(node, setting->kind);
      absl::Status status = text.ok() ? setting->set(*text, config) : text.status();
      if (!status.ok()) add(absl::StrCat(name, ": ", status.message()));
      continue;
    }
    const bool section = std::any_of(settings.begin(), settings.end(), [&](const Setting& s) {
      return absl::StartsWith(s.key, name + ".");
    });
    if (section && node.is_table()) {
      ApplyTable(*node.as_table(), name + ".", file, settings, config, mistakes);
      continue;
    }
    if (section) {
      add(absl::StrCat(name, " is a section: write [", name, "]"));
      continue;
    }
    std::vector<std::string> known;
    for (const Setting& s : settings) {
      if (node.is_table()) {
        const size_t dot = s.key.find('.');
        if (dot != std::string::npos) known.push_back(absl::StrCat("[", s.key.substr(0, dot), "]"));
      } else {
        known.push_back(s.key);
      }
    }
    const std::string shown = node.is_table() ? absl::StrCat("[", name, "]") : name;
    add(absl::StrCat(node.is_table() ? "unknown section " : "unknown key ", EscapeForLog(shown, 64),
                     base::DidYouMean(shown, known, /*quote=*/"")));
  }
}

// All of a file, or of a pipe that ends and whose writer does not pause. kInvalidArgument names it.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  constexpr size_t kMaxBytes = 1 << 20;
  constexpr int kPauseMs = 5000;
  const auto cannot = [&path](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the configuration file ", EscapeForLog(path), ": ", why));
  };
  const wire::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat opened = {};
  if (!fd.valid() || fstat(fd.get(), &opened) != 0) return cannot(strerror(errno));
  if (!S_ISREG(opened.st_mode) && !S_ISFIFO(opened.st_mode)) {
    return cannot("it is neither a regular file nor a pipe");
  }
  std::string text;
  for (char piece[1 << 14];;) {
    struct pollfd readable = {fd.get(), POLLIN, 0};
    if (base::Retry([&] { return poll(&readable, 1, kPauseMs); }) == 0) {
      return cannot(absl::StrCat("it is a pipe to which nobody has written for ", kPauseMs, " ms"));
    }
    const ssize_t n = base::Retry([&] { return read(fd.get(), piece, sizeof(piece)); });
    if (n < 0) return cannot(strerror(errno));
    if (n == 0) return text;
    text.append(piece, static_cast<size_t>(n));
    if (text.size() > kMaxBytes) {
      return cannot(absl::StrCat("it has more than ", base::SizeText(kMaxBytes)));
    }
  }
}

void CheckTogether(const Config& config, std::vector<std::string>* mistakes) {
  if (config.jobs.join_timeout_default > config.jobs.join_timeout_max) {
    mistakes->push_back("jobs.join_timeout is longer than jobs.join_timeout_max");
  }
  if (config.jobs.operation_timeout_default > config.jobs.operation_timeout_max) {
    mistakes->push_back("jobs.operation_timeout is longer than jobs.operation_timeout_max");
  }
}

}  // namespace

absl::Status ApplyToml(const std::string& text, const std::string& file, Config* config) {
  const toml::parse_result parsed = toml::parse(text, file);
  if (!parsed) {
    return absl::InvalidArgumentError(absl::StrCat(file, ":", parsed.error().source().begin.line,
                                                   ": ",
                                                   std::string(parsed.error().description())));
  }
  Mistakes mistakes;
  ApplyTable(parsed.table(), "", file, MakeSettings(), config, &mistakes);
  if (mistakes.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(
      mistakes, "\n",
      [](std::string* out, const auto& mistake) { absl::StrAppend(out, mistake.second); }));
}

Reload PlanReload(const Config& running, const Config& next) {
  Reload reload;
  reload.config = next;
  for (const Setting& setting : MakeSettings()) {
    if (Reloads(setting.key)) {
      Config config = running;
      if (setting.copy(next, &config)) reload.changed.push_back(setting.key);
    } else if (setting.copy(running, &reload.config)) {
      reload.kept.push_back(setting.key);
    }
  }
  return reload;
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args) {
  const std::vector<Setting> settings = MakeSettings();
  CLI::App app(
      "irisd owns the symmetric heaps of this node and lends them to the processes of "
      "jobs.\nSizes: 4GiB, 512M, 0x400. Durations: 5s, 1m30s. Every flag but --config, --supervise "
      "and those that exit is also a key of the configuration file; a flag wins.\nSIGHUP: read the "
      "file "
      "again, and change what "
      "can change while irisd runs (docs/operations.md).",
      "irisd");
  CommandLine line;
  std::string config_file;
  bool check = false, version = false, no_self_check = false;
  app.add_option("--config", config_file, "configuration file (TOML)");
  app.add_flag("--check-config", check, "check the configuration and exit");
  app.add_flag(
         "--check-state", line.check_state,
         "say whether this irisd, with these flags, can go on with the state that another one "
         "has stored, and exit: 0 if it can or there is none, else 1. Nothing is opened but "
         "the state, so the other one may run")
      ->disable_flag_override();
  app.add_flag("--version", version, "print the version and exit");
  app.add_flag("--no-self-check", no_self_check, "as --self-check off");
  app.add_flag("--supervise", line.supervise,
               "run irisd under a parent process, which starts it again when it dies and keeps its "
               "descriptors meanwhile. For systems without systemd (docs/operations.md)")
      ->disable_flag_override();
  std::vector<std::string> values(settings.size());
  std::vector<CLI::Option*> options;
  std::vector<std::string> flags = {"--config", "--check-config",  "--check-state", "--version",
                                    "--help",   "--no-self-check", "--supervise"};
  for (size_t i = 0; i < settings.size(); ++i) {
    options.push_back(app.add_option("--" + settings[i].flag, values[i], settings[i].help));
    flags.push_back("--" + settings[i].flag);
  }
  CLI::App* const state = app.add_subcommand(
      "state", "Look at the state that irisd stores for the next irisd, also while it runs");
  state->require_subcommand(1)->fallthrough();
  for (const auto& [name, help] :
       {std::pair("check", "Say whether the stored state is whole and can be read: exit 0, or 1"),
        std::pair("dump", "Print the stored state as text of a protocol buffer"),
        std::pair("stat",
                  "Print who wrote the state, how long it is, and how much there is in it: "
                  "a line \"key: value\" each")}) {
    state->add_subcommand(name, help)
        ->fallthrough()
        ->callback([&line, command = std::string(name)] { line.state = command; });
  }
  std::vector<std::string> mistakes;                              // a line each
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants them
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    line.exit = true;
    line.output = app.help();
    return line;
  } catch (const CLI::ExtrasError&) {
    for (const std::string& arg : args) {
      const std::string name = arg.substr(0, arg.find('='));
      if (std::find(flags.begin(), flags.end(), name) != flags.end()) continue;
      if (absl::StartsWith(arg, "-")) {
        mistakes.push_back(absl::StrCat("unknown flag ", EscapeForLog(name, 64),
                                        base::DidYouMean(name, flags, /*quote=*/""),
                                        " (see --help)"));
      }
    }
    if (mistakes.empty()) {
      mistakes.push_back(state->parsed()
                             ? "irisd state takes one of check, dump or stat (see --help)"
                             : "irisd takes flags and the command state only (see --help)");
    }
    return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  } catch (const CLI::ParseError& error) {
    if (state->parsed()) {
      return absl::InvalidArgumentError(
          "irisd state takes one of check, dump or stat (see --help)");
    }
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  if (version) {
    line.exit = true;
    line.output = absl::StrCat("irisd ", wire::kIrisVersion, "\n");
    return line;
  }
  if (!config_file.empty()) {
    const absl::StatusOr<std::string> text = ReadConfigFile(config_file);
    if (!text.ok()) return text.status();
    const absl::Status status = ApplyToml(*text, EscapeForLog(config_file), &line.config);
    if (!status.ok()) mistakes.push_back(std::string(status.message()));
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    if (options[i]->count() == 0) continue;
    const absl::Status status = settings[i].set(values[i], &line.config);
    if (!status.ok()) {
      mistakes.push_back(absl::StrCat("--", settings[i].flag, ": ", status.message()));
    }
  }
  if (no_self_check) line.config.self_check = false;
  const char* const dir = secure_getenv("IRIS_RUNTIME_DIR");
  if (line.config.runtime_dir.path.empty() && dir != nullptr && *dir != '\0') {
    const absl::Status status = SetRuntimeDir(dir, &line.config);
    if (!status.ok()) mistakes.push_back(absl::StrCat("IRIS_RUNTIME_DIR: ", status.message()));
  }
  CheckTogether(line.config, &mistakes);
  if (!mistakes.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  if (check) {
    line.exit = true;
    line.output = absl::StrCat("configuration ok",
                               config_file.empty() ? "" : absl::StrCat(": ", config_file), "\n");
  }
  return line;
}

}  // namespace iris::server
