#include "server/worker/worker_options.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace iris::server {

std::vector<std::string> ToArguments(const WorkerOptions& options) {
  std::vector<std::string> arguments = {
      absl::StrCat("--tenant=", options.tenant),
      absl::StrCat("--memory=", options.memory_bytes),
      absl::StrCat("--seccomp=", options.seccomp ? 1 : 0),
      absl::StrCat("--json-log=", options.json_log ? 1 : 0),
  };
  if (options.closing) arguments.push_back("--closing=1");
  if (options.port) arguments.push_back("--port=1");
  if (options.looking.has_value()) {
    const LookingLimits& limits = *options.looking;
    arguments.push_back("--looking=1");
    arguments.push_back(absl::StrCat("--max-closing=", limits.max_closing));
    arguments.push_back(absl::StrCat("--max-closing-per-tenant=", limits.max_closing_per_tenant));
    if (limits.device_memory.has_value()) {
      arguments.push_back(absl::StrCat("--memory-type=", limits.device_memory->type));
      arguments.push_back(absl::StrCat("--memory-device=", limits.device_memory->device));
    }
  }
  if (options.ids.has_value()) {
    arguments.push_back(absl::StrCat("--uid=", options.ids->uid));
    arguments.push_back(absl::StrCat("--gid=", options.ids->gid));
  }
  return arguments;
}

absl::StatusOr<WorkerOptions> FromArguments(const std::vector<std::string>& arguments) {
  WorkerOptions options;
  LookingLimits looking;
  std::optional<uint64_t> memory, seccomp, json_log, closing, port, looks, most_of_one, most, type,
      device, uid, gid;
  const std::map<absl::string_view, std::optional<uint64_t>*> numbers = {
      {"--memory", &memory},
      {"--seccomp", &seccomp},
      {"--json-log", &json_log},
      {"--closing", &closing},
      {"--port", &port},
      {"--looking", &looks},
      {"--max-closing-per-tenant", &most_of_one},
      {"--max-closing", &most},
      {"--memory-type", &type},
      {"--memory-device", &device},
      {"--uid", &uid},
      {"--gid", &gid},
  };
  for (const std::string& argument : arguments) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const auto& [name, value] = parts;
    if (name == "--tenant") {
      options.tenant = std::string(value);
      continue;
    }
    uint64_t number = 0;
    const auto known = numbers.find(name);
    const bool is_id = name == "--uid" || name == "--gid";
    if (known == numbers.end() || !absl::SimpleAtoi(value, &number) ||
        (is_id && (number == 0 || number >= UINT32_MAX)) ||
        (name == "--memory-type" && number > UINT32_MAX)) {
      return absl::InvalidArgumentError(
          absl::StrCat("irisd does not start a worker with \"", argument, "\""));
    }
    *known->second = number;
  }
  if (!memory.has_value()) {
    return absl::InvalidArgumentError("irisd starts a worker with --memory=BYTES");
  }
  if (uid.has_value() != gid.has_value()) {
    return absl::InvalidArgumentError("irisd gives a worker --uid and --gid, or neither");
  }
  if (type.has_value() != device.has_value()) {
    return absl::InvalidArgumentError(
        "irisd gives a worker --memory-type and --memory-device, or neither");
  }
  options.memory_bytes = *memory;
  options.seccomp = seccomp.value_or(1) != 0;
  options.json_log = json_log.value_or(0) != 0;
  options.closing = closing.value_or(0) != 0;
  options.port = port.value_or(0) != 0;
  looking.max_closing_per_tenant = most_of_one.value_or(looking.max_closing_per_tenant);
  looking.max_closing = most.value_or(looking.max_closing);
  if (type.has_value()) looking.device_memory = FileKind{static_cast<uint32_t>(*type), *device};
  if (looks.value_or(0) != 0) options.looking = looking;
  if (uid.has_value()) options.ids = {static_cast<uid_t>(*uid), static_cast<gid_t>(*gid)};
  return options;
}

}  // namespace iris::server
