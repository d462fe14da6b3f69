// Config: irisd's settings, from a TOML file and flags; a flag overrides the file. Values are
// checked when they are read, so that an error names the place and the valid values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/events/log.h"
#include "server/job/job_machine.h"
#include "server/session/runtime_dir.h"
#include "server/session/session_server.h"
#include "server/tenant/worker_program.h"

namespace iris::server {

// The range of ports on which port processes listen, besides the rendezvous. Zeros: any.
struct PortRange {
  uint32_t min = 0;
  uint32_t max = 0;
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// How jobs that span several nodes use the network.
struct NetworkSettings {
  std::string interface;  // name or address; empty: that of the way to the rendezvous or etcd
  PortRange ports;
  std::string ucx;                // path of libucp.so.0; empty: searched
  std::string transports;         // as UCX_TLS; empty: chosen
  std::string devices;            // as UCX_NET_DEVICES; empty: the interface
  bool direct = false;            // nodes write and read each other's heaps by UCX's put and get
  std::vector<std::string> etcd;  // HOST:PORT of each member; empty: none
  // Files of PEM texts: authorities of etcd's certificate, with which connections are TLS, and the
  // certificate and key of irisd's node. Empty: none.
  std::string etcd_ca, etcd_certificate, etcd_key;
  std::string secret_file;  // of jobs that bring no secret; empty: they are refused
  absl::Duration silence = absl::Seconds(5);
  bool fabric = true;  // nodes of one fabric domain map each other's memory
};

struct Config {
  RuntimeDirOptions runtime_dir;
  std::string backend = "auto";  // one of driver::kBackendChoices
  uint32_t emu_devices = 8;
  uint64_t emu_memory_bytes = 4ull << 30;   // per device; touching a page allocates it
  std::string emu_fabric;                   // name of the emulated fabric domain; empty: none
  uint64_t core_memory_bytes = 1ull << 30;  // what irisd keeps for all users
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kKeyValue;
  SessionOptions sessions;
  WorkerSettings workers;
  absl::Duration worker_idle_timeout = absl::Seconds(10);
  JobLimits jobs;
  NetworkSettings network;
  std::string record_file;  // empty: nothing is recorded
  bool self_check = true;   // prove the device pairs before serving
};

struct CommandLine {
  Config config;
  bool supervise = false;    // be the supervisor, which starts irisd with the other flags
  std::string state;         // `irisd state COMMAND`: check, dump or stat; serves nothing
  bool check_state = false;  // check if this irisd can continue with the stored state, and exit
  bool exit = false;         // --help, --version, --check-config: print `output` and exit with 0
  std::string output;        // for stdout
};

// Reads flags (without argv[0]), the file that --config names, and IRIS_RUNTIME_DIR if neither
// names the runtime directory. Returns kInvalidArgument with a line for each mistake, which has the
// flag or file:line, and the nearest name for an unknown one. TOML that does not parse is one
// mistake.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args);

// Applies the TOML text of `file` (a name for messages) to `config`. Returns kInvalidArgument as
// above; settings without a mistake are then set.
absl::Status ApplyToml(const std::string& text, const std::string& file, Config* config);

struct Reload {
  Config config;                     // `next` if a running irisd can change it, else `running`
  std::vector<std::string> changed;  // keys of the settings that change
  std::vector<std::string> kept;     // keys of settings that differ and need a restart
};
Reload PlanReload(const Config& running, const Config& next);

}  // namespace iris::server
