// Config: irisd's settings. A TOML file and flags set the same things; a flag wins. Every value is
// checked where it is read, so that an error names its place and what would have been right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/job_machine.h"
#include "server/log.h"
#include "server/session/runtime_dir.h"
#include "server/session/session_server.h"
#include "server/tenant/worker_process.h"

namespace iris::server {

struct Config {
  RuntimeDirOptions runtime_dir;
  std::string backend = "auto";  // one of driver::kBackendChoices
  uint32_t emu_devices = 8;
  uint64_t emu_memory_bytes = 4ull << 30;  // of each device; pages are taken when they are touched
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kKeyValue;
  SessionOptions sessions;
  WorkerSettings workers;
  absl::Duration worker_idle_timeout = absl::Seconds(10);
  JobLimits jobs;
  std::string record_file;  // empty: nothing is recorded
  bool self_check = true;   // prove the device pairs before serving
};

// What a command line asks for.
struct CommandLine {
  Config config;
  bool exit = false;   // --help, --version, --check-config: print `output` and exit with 0
  std::string output;  // for stdout
};

// Reads flags (without argv[0]) and the file that --config names.
// kInvalidArgument: the message has the flag, or file:line, and the nearest name for an unknown
// one.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args);

// Applies the TOML text of `file` (a name for messages) to `config`.
absl::Status ApplyToml(const std::string& text, const std::string& file, Config* config);

}  // namespace iris::server
