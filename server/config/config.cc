#include "server/config/config.h"

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
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "device/base/suggest.h"
#include "device/driver/open.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "toml++/toml.h"

namespace iris::server {
namespace {

enum class Kind { kNumber, kBytes, kDuration, kText, kTexts };

struct Setting {
  std::string key;   // in the file: "section.name", or "name" at the top
  std::string flag;  // without the dashes
  Kind kind = Kind::kText;
  std::string help;
  std::function<absl::Status(const std::string&, Config*)> set;
  // Copies the value. Returns false if the values were equal.
  std::function<bool(const Config& from, Config* to)> copy;
};

// Returns true if a running irisd can change the setting.
bool Reloads(const std::string& key) {
  static const std::set<std::string> kKeys = {"log.level",
                                              "core.memory",
                                              "sessions.max",
                                              "sessions.max_per_tenant",
                                              "sessions.max_unattested",
                                              "sessions.max_unattested_per_tenant"};
  return absl::StartsWith(key, "jobs.") || absl::StartsWith(key, "admin.") || kKeys.contains(key);
}

absl::Status Bad(const std::string& text, const std::string& want) {
  return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForLog(text, 64), "\" is not ", want));
}

// Returns a setting whose value is at `field(config)`.
template <typename T>
Setting Make(const char* key, const char* flag, Kind kind, const std::string& help,
             std::function<absl::StatusOr<T>(const std::string&)> parse,
             std::function<T*(Config*)> field) {
  const auto set = [parse, field](const std::string& text, Config* config) {
    absl::StatusOr<T> value = parse(text);
    if (value.ok()) *field(config) = *std::move(value);
    return value.status();
  };
  const auto copy = [field](const Config& from, Config* to) {
    Config source = from;
    const bool differs = !(*field(to) == *field(&source));
    *field(to) = *field(&source);
    return differs;
  };
  return {key, flag, kind, help, set, copy};
}

Setting Number(const char* key, const char* flag, const char* help,
               std::function<uint32_t*(Config*)> field, uint32_t max = 1 << 20) {
  const auto parse = [max](const std::string& text) -> absl::StatusOr<uint32_t> {
    uint32_t value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= 1 && value <= max) return value;
    return Bad(text, absl::StrCat("a number from 1 to ", max));
  };
  return Make<uint32_t>(key, flag, Kind::kNumber, help, parse, field);
}

Setting Bytes(const char* key, const char* flag, const char* help, uint64_t min,
              std::function<uint64_t*(Config*)> field) {
  const auto parse = [min](const std::string& text) -> absl::StatusOr<uint64_t> {
    uint64_t value = 0;
    if (!base::ParseBytes(text, &value)) return Bad(text, base::kBytesGrammar);
    if (value < min) return Bad(text, absl::StrCat("at least ", base::SizeText(min)));
    return value;
  };
  return Make<uint64_t>(key, flag, Kind::kBytes, help, parse, field);
}

Setting Time(const char* key, const char* flag, const char* help,
             std::function<absl::Duration*(Config*)> field) {
  const auto parse = [](const std::string& text) -> absl::StatusOr<absl::Duration> {
    absl::Duration value;
    if (absl::ParseDuration(text, &value) && value >= absl::Milliseconds(1) &&
        value <= absl::Hours(24 * 365)) {
      return value;
    }
    return Bad(text, "a duration from 1ms to a year, such as \"5s\" or \"1m30s\"");
  };
  return Make<absl::Duration>(key, flag, Kind::kDuration, help, parse, field);
}

template <typename T>
Setting Choice(const char* key, const char* flag, const std::string& help,
               std::vector<std::pair<std::string, T>> choices, std::function<T*(Config*)> field) {
  const auto parse = [choices](const std::string& text) -> absl::StatusOr<T> {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices) {
      if (name == text) return value;
      names.push_back(absl::StrCat("\"", name, "\""));
    }
    return Bad(text, absl::StrJoin(names, " or "));
  };
  return Make<T>(key, flag, Kind::kText, help, parse, field);
}

// A name or a list for another program.
absl::StatusOr<std::string> Line(const std::string& text) {
  constexpr size_t kMostBytes = 4096;
  const auto breaks = [](unsigned char c) { return absl::ascii_iscntrl(c); };
  if (text.size() <= kMostBytes && std::none_of(text.begin(), text.end(), breaks)) return text;
  return Bad(text, "at most 4096 bytes without control characters");
}

absl::StatusOr<std::string> RecordFile(const std::string& text) {
  if (!text.empty() && text[0] != '/') return Bad(text, "an absolute path");
  return Line(text);
}

absl::StatusOr<PortRange> Ports(const std::string& text) {
  if (text.empty()) return PortRange();
  PortRange range;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  if (absl::SimpleAtoi(parts.first, &range.min) && absl::SimpleAtoi(parts.second, &range.max) &&
      range.min >= 1024 && range.min <= range.max && range.max <= 65535) {
    return range;
  }
  return Bad(text, "a range of ports from 1024 to 65535, such as \"20000-20999\"");
}

absl::StatusOr<std::vector<std::string>> Endpoints(const std::string& text) {
  constexpr size_t kMaxEndpoints = 16, kMaxBytes = 300;
  const std::vector<std::string> endpoints = absl::StrSplit(text, ',', absl::SkipEmpty());
  if (endpoints.size() > kMaxEndpoints) {
    return Bad(text, absl::StrCat("a list of at most ", kMaxEndpoints, " members of etcd"));
  }
  for (const std::string& each : endpoints) {
    const size_t colon = each.rfind(':');
    const absl::string_view host = absl::string_view(each).substr(0, colon);
    const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
    uint32_t port = 0;
    if (colon == each.npos || host.empty() || each.size() > kMaxBytes ||
        host.find_first_of("/ ") != host.npos || (!bracketed && host.find(':') != host.npos) ||
        !absl::SimpleAtoi(each.substr(colon + 1), &port) || port == 0 || port > 65535) {
      return Bad(each, "a member of etcd: HOST:PORT or [ADDRESS]:PORT, such as \"10.0.0.1:2379\"");
    }
  }
  return endpoints;
}

absl::StatusOr<std::string> RuntimeDirectory(const std::string& text) {
  const bool printable =
      std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (text.empty() || text[0] != '/' || !printable) return Bad(text, "an absolute path");
  return text;
}

absl::StatusOr<uint32_t> SocketMode(const std::string& text) {
  uint32_t mode = 0;
  const bool octal =
      !text.empty() && text.size() <= 4 && text.find_first_not_of("01234567") == std::string::npos;
  for (const char c : text) mode = mode * 8 + static_cast<uint32_t>(c - '0');
  if (octal && mode <= 0777 && (mode & 0600) == 0600) return mode;
  return Bad(text, "an octal mode that lets the owner in, such as \"0660\"");
}

absl::StatusOr<std::optional<uint32_t>> SocketGroup(const std::string& text) {
  uint32_t number = 0;
  if (text.empty()) return std::nullopt;
  if (absl::SimpleAtoi(text, &number)) return number;
  const struct group* const group = getgrnam(text.c_str());
  if (group == nullptr) return Bad(text, "a group of this system");
  return group->gr_gid;
}

#define IRIS_AT(path) [](Config* c) { return &c->path; }

std::vector<Setting> MakeSettings() {
  std::vector<std::pair<std::string, std::string>> backends;
  for (const char* name : driver::kBackendChoices) backends.emplace_back(name, name);
  const std::vector<std::pair<std::string, bool>> on_off = {{"on", true}, {"off", false}};
  return {
      Make<std::string>(
          "runtime_dir", "runtime-dir", Kind::kText,
          "directory of the sockets and the lock ($IRIS_RUNTIME_DIR, else /run/iris for root, "
          "else $XDG_RUNTIME_DIR/iris)",
          RuntimeDirectory, IRIS_AT(runtime_dir.path)),
      Make<uint32_t>("socket_mode", "socket-mode", Kind::kText,
                     "mode of both sockets, octal: who may connect (0660)", SocketMode,
                     IRIS_AT(runtime_dir.socket_mode)),
      Make<std::optional<uint32_t>>("socket_group", "socket-group", Kind::kText,
                                    "group of both sockets, name or number (irisd's own)",
                                    SocketGroup, IRIS_AT(runtime_dir.socket_group)),
      Make<std::string>(
          "record", "record", Kind::kText,
          "record every input of the job machine in this new file, for iris-replay (no file)",
          RecordFile, IRIS_AT(record_file)),
      Choice<std::string>(
          "backend", "backend",
          absl::StrCat("whose devices: ", absl::StrJoin(driver::kBackendChoices, ", "),
                       " (auto: a vendor's if it has any, else emulated ones)"),
          backends, IRIS_AT(backend)),
      Choice<bool>("self_check", "self-check",
                   "on: prove every pair of devices before serving, and keep jobs off those "
                   "that fail; off (on)",
                   on_off, IRIS_AT(self_check)),
      Choice<bool>("seccomp", "seccomp",
                   "on: irisd and its workers give up the system calls that they do not "
                   "need; off (on)",
                   on_off, IRIS_AT(workers.seccomp)),
      Number("emu.devices", "emu-devices", "number of emulated devices (8)", IRIS_AT(emu_devices),
             1024),
      Bytes("emu.memory", "emu-memory", "memory of each emulated device (4GiB)",
            driver::kEmuGranularityBytes, IRIS_AT(emu_memory_bytes)),
      Make<std::string>("emu.fabric", "emu-fabric", Kind::kText,
                        "name of the fabric domain that emulated devices of irisds on one machine "
                        "share, for tests (none)",
                        Line, IRIS_AT(emu_fabric)),
      Bytes("core.memory", "core-memory",
            "memory that irisd may take for what it keeps for all users; from four fifths "
            "of it, users with more than an equal part get no more (1GiB)",
            64 << 20, IRIS_AT(core_memory_bytes)),
      Choice<LogLevel>("log.level", "log-level", "debug, info, warn or error (info)",
                       {{"debug", LogLevel::kDebug},
                        {"info", LogLevel::kInfo},
                        {"warn", LogLevel::kWarn},
                        {"error", LogLevel::kError}},
                       IRIS_AT(log_level)),
      Choice<LogFormat>("log.format", "log-format", "kv (key=value) or json (kv)",
                        {{"kv", LogFormat::kKeyValue}, {"json", LogFormat::kJson}},
                        IRIS_AT(log_format)),
      Choice<Attestation>("sessions.attestation", "attestation",
                          "auto (the kernel's SO_PEERPIDFD, else a nonce) or nonce (auto)",
                          {{"auto", Attestation::kAuto}, {"nonce", Attestation::kNonce}},
                          IRIS_AT(sessions.attestation)),
      Time("sessions.handshake_timeout", "handshake-timeout",
           "a connection must finish its handshake within this time (5s)",
           IRIS_AT(sessions.handshake_timeout)),
      Number("sessions.max", "max-sessions",
             "sessions in total (4096; fewer where descriptors are short)",
             IRIS_AT(sessions.limits.max_sessions)),
      Number("sessions.max_per_tenant", "max-sessions-per-tenant",
             "sessions of one tenant: a user, or a container of his (1024)",
             IRIS_AT(sessions.limits.max_sessions_per_tenant)),
      Number("sessions.max_unattested", "max-unattested",
             "connections in the handshake at a time; beyond it the oldest of the tenant "
             "that has most goes (1024; fewer where descriptors are short)",
             IRIS_AT(sessions.limits.max_unattested)),
      Number("sessions.max_unattested_per_tenant", "max-unattested-per-tenant",
             "those of one tenant; beyond it its own oldest goes (512)",
             IRIS_AT(sessions.limits.max_unattested_per_tenant)),
      Number("sessions.max_in_flight", "max-in-flight",
             "descriptors sent to clients that these have not received (4096; at most an "
             "eighth of RLIMIT_NOFILE)",
             IRIS_AT(sessions.limits.max_in_flight)),
      Number("sessions.max_in_flight_per_tenant", "max-in-flight-per-tenant",
             "those of one tenant (2048)", IRIS_AT(sessions.limits.max_in_flight_per_tenant)),
      Number("sessions.max_closing", "max-closing",
             "descriptors of clients that do not close; beyond it nothing more is read "
             "from tenants that have their part of them (4096; at most a sixteenth of "
             "RLIMIT_NOFILE)",
             IRIS_AT(sessions.limits.max_closing)),
      Number("sessions.max_closing_per_tenant", "max-closing-per-tenant",
             "those of one tenant; beyond it nothing more is read from it; where so many "
             "of registered memory wait to be closed, it waits (2048; at most half of all)",
             IRIS_AT(sessions.limits.max_closing_per_tenant)),
      Time("sessions.send_timeout", "send-timeout",
           "a session whose descriptors cannot be sent for so long is ended (30s)",
           IRIS_AT(sessions.send_timeout)),
      Number("admin.max", "max-admin-connections", "connections on irisd.sock in total (256)",
             IRIS_AT(sessions.limits.max_admin_connections)),
      Number("admin.max_per_tenant", "max-admin-connections-per-tenant",
             "connections of one tenant on irisd.sock (64)",
             IRIS_AT(sessions.limits.max_admin_connections_per_tenant)),
      Make<std::string>("workers.user", "worker-user", Kind::kText,
                        "user that workers become if irisd is root; \"\": they stay root (nobody)",
                        Line, IRIS_AT(workers.user)),
      Bytes("workers.memory", "worker-memory", "memory that one worker may take (512MiB)", 64 << 20,
            IRIS_AT(workers.memory_bytes)),
      Time("workers.idle_timeout", "worker-idle-timeout",
           "a worker without a connection is ended after this time (10s)",
           IRIS_AT(worker_idle_timeout)),
      Make<std::string>("network.interface", "network-interface", Kind::kText,
                        "network interface, or its address, of jobs that span several nodes "
                        "(that of the way to the rendezvous or etcd)",
                        Line, IRIS_AT(network.interface)),
      Make<PortRange>("network.ports", "network-ports", Kind::kText,
                      "ports on which their port processes listen besides the rendezvous (any)",
                      Ports, IRIS_AT(network.ports)),
      Make<std::string>("network.ucx", "network-ucx", Kind::kText,
                        "UCX's libucp.so.0, 1.20 or later (searched)", RecordFile,
                        IRIS_AT(network.ucx)),
      Make<std::string>("network.transports", "network-transports", Kind::kText,
                        "UCX's transports, as UCX_TLS has them (tcp)", Line,
                        IRIS_AT(network.transports)),
      Make<std::string>("network.devices", "network-devices", Kind::kText,
                        "UCX's devices, as UCX_NET_DEVICES has them (the interface)", Line,
                        IRIS_AT(network.devices)),
      Choice<bool>("network.direct", "network-direct",
                   "on: nodes write and read each other's heaps by RDMA; off: they send messages "
                   "(off)",
                   on_off, IRIS_AT(network.direct)),
      Make<std::vector<std::string>>(
          "network.etcd", "network-etcd", Kind::kTexts,
          "members of an etcd, HOST:PORT each, by commas, where the nodes of jobs without a "
          "rendezvous meet, the same on all nodes (none: these jobs are refused)",
          Endpoints, IRIS_AT(network.etcd)),
      Make<std::string>(
          "network.etcd_ca", "network-etcd-ca", Kind::kText,
          "file of PEM certificates: authorities of etcd's certificate, whose connections are then "
          "TLS (none: plain text)",
          RecordFile, IRIS_AT(network.etcd_ca)),
      Make<std::string>("network.etcd_certificate", "network-etcd-certificate", Kind::kText,
                        "file with the certificate (PEM) that etcd wants of its clients (none)",
                        RecordFile, IRIS_AT(network.etcd_certificate)),
      Make<std::string>("network.etcd_key", "network-etcd-key", Kind::kText,
                        "file with its private key (PEM), irisd's own, mode 0600 (none)",
                        RecordFile, IRIS_AT(network.etcd_key)),
      Make<std::string>("network.secret_file", "network-secret-file", Kind::kText,
                        "file with the secret of jobs that bring none, 16 to 64 bytes, the same on "
                        "all nodes (none: these jobs are refused)",
                        RecordFile, IRIS_AT(network.secret_file)),
      Time("network.silence", "network-silence",
           "a node that says nothing for so long is lost (5s)", IRIS_AT(network.silence)),
      Choice<bool>("network.fabric", "network-fabric",
                   "auto: ranks of nodes that share a fabric map each "
                   "other's memory; off: they use the network (auto)",
                   {{"auto", true}, {"off", false}}, IRIS_AT(network.fabric)),
      Number("jobs.max", "max-jobs", "jobs in total (1024)", IRIS_AT(jobs.max_jobs)),
      Number("jobs.max_per_uid", "max-jobs-per-uid", "jobs of one user (256)",
             IRIS_AT(jobs.max_jobs_per_uid)),
      Bytes("jobs.max_heap_per_uid", "max-heap-per-uid",
            "heap bytes of one user, over all ranks and jobs; 0 is no quota (0)", 0,
            IRIS_AT(jobs.max_heap_bytes_per_uid)),
      Time("jobs.join_timeout", "join-timeout",
           "a join waits this long for the other ranks, unless it says (1m)",
           IRIS_AT(jobs.join_timeout_default)),
      Time("jobs.join_timeout_max", "join-timeout-max", "the longest it may say (1h)",
           IRIS_AT(jobs.join_timeout_max)),
      Time("jobs.map_timeout", "map-timeout", "every rank must map its peers within this time (1m)",
           IRIS_AT(jobs.map_timeout)),
      Time("jobs.operation_timeout", "operation-timeout",
           "an operation of a team waits this long, unless it says (1m)",
           IRIS_AT(jobs.operation_timeout_default)),
      Time("jobs.operation_timeout_max", "operation-timeout-max", "the longest it may say (1h)",
           IRIS_AT(jobs.operation_timeout_max)),
      Time("jobs.grow_timeout", "grow-timeout",
           "every rank must map a growth within this time (30s)", IRIS_AT(jobs.grow_timeout)),
  };
}

#undef IRIS_AT

// Returns a value of the file as text for its setting.
absl::StatusOr<std::string> TextOf(const toml::node& node, Kind kind) {
  if (kind == Kind::kNumber || kind == Kind::kBytes) {
    if (const auto* number = node.as_integer()) return absl::StrCat(number->get());
  }
  if (kind == Kind::kNumber) return absl::InvalidArgumentError("must be a whole number");
  if (const auto* list = node.as_array(); list != nullptr && kind == Kind::kTexts) {
    std::vector<std::string> texts;
    for (const toml::node& each : *list) texts.push_back(each.value<std::string>().value_or(""));
    if (std::find(texts.begin(), texts.end(), "") == texts.end()) return absl::StrJoin(texts, ",");
  }
  if (const auto* text = node.as_string()) return text->get();
  switch (kind) {
    case Kind::kBytes:
      return absl::InvalidArgumentError("must be a size: \"4GiB\", or a whole number of bytes");
    case Kind::kDuration:
      return absl::InvalidArgumentError("must be a duration in quotes, such as \"5s\"");
    case Kind::kTexts:
      return absl::InvalidArgumentError("must be texts in quotes, such as [\"a\", \"b\"]");
    default:
      return absl::InvalidArgumentError("must be a text in quotes");
  }
}

// Messages, by line of the file.
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

// Reads a file, or a pipe whose writer does not pause. kInvalidArgument names the file.
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
  const NetworkSettings& network = config.network;
  if (network.etcd_certificate.empty() != network.etcd_key.empty() ||
      (network.etcd_ca.empty() && !network.etcd_key.empty())) {
    mistakes->push_back(
        "network.etcd_certificate and network.etcd_key need each other, and network.etcd_ca");
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
  for (size_t i = 0; i < settings.size(); ++i) {
    options.push_back(app.add_option("--" + settings[i].flag, values[i], settings[i].help));
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) flags.push_back(option->get_name());
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
    absl::StatusOr<std::string> path = RuntimeDirectory(dir);
    if (!path.ok()) {
      mistakes.push_back(absl::StrCat("IRIS_RUNTIME_DIR: ", path.status().message()));
    } else {
      line.config.runtime_dir.path = *std::move(path);
    }
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
