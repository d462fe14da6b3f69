#include "server/worker/worker_options.h"

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
  std::optional<uint32_t> uid, gid, memory_type;
  std::optional<uint64_t> memory_device;
  LookingLimits looking;
  bool has_memory = false, looks = false;
  for (const std::string& argument : arguments) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const auto& [name, value] = parts;
    uint64_t number = 0;
    const bool is_number = absl::SimpleAtoi(value, &number);
    const bool is_id = is_number && number > 0 && number < UINT32_MAX;
    if (name == "--tenant") {
      options.tenant = std::string(value);
    } else if (name == "--memory" && is_number) {
      options.memory_bytes = number;
      has_memory = true;
    } else if (name == "--seccomp" && is_number) {
      options.seccomp = number != 0;
    } else if (name == "--json-log" && is_number) {
      options.json_log = number != 0;
    } else if (name == "--closing" && is_number) {
      options.closing = number != 0;
    } else if (name == "--looking" && is_number) {
      looks = number != 0;
    } else if (name == "--max-closing" && is_number) {
      looking.max_closing = number;
    } else if (name == "--max-closing-per-tenant" && is_number) {
      looking.max_closing_per_tenant = number;
    } else if (name == "--memory-type" && is_number && number <= UINT32_MAX) {
      memory_type = static_cast<uint32_t>(number);
    } else if (name == "--memory-device" && is_number) {
      memory_device = number;
    } else if (name == "--uid" && is_id) {
      uid = static_cast<uint32_t>(number);
    } else if (name == "--gid" && is_id) {
      gid = static_cast<uint32_t>(number);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("irisd does not start a worker with \"", argument, "\""));
    }
  }
  if (!has_memory) return absl::InvalidArgumentError("irisd starts a worker with --memory=BYTES");
  if (uid.has_value() != gid.has_value()) {
    return absl::InvalidArgumentError("irisd gives a worker --uid and --gid, or neither");
  }
  if (memory_type.has_value() != memory_device.has_value()) {
    return absl::InvalidArgumentError(
        "irisd gives a worker --memory-type and --memory-device, or neither");
  }
  if (memory_type.has_value()) looking.device_memory = FileKind{*memory_type, *memory_device};
  if (looks) options.looking = looking;
  if (uid.has_value()) options.ids = WorkerIds{*uid, *gid};
  return options;
}

}  // namespace iris::server
