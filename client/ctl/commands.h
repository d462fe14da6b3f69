// The commands of iris-ctl. One thread; they own nothing.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/doctor_node.h"
#include "client/ctl/peek.h"

namespace iris::ctl {

struct Options {
  std::string runtime_dir;
  bool json = false;
  double watch_seconds = 0;  // 0: once
  std::string job;           // listings: empty means all
  bool names = false;
  bool follow = false;
  PeekWish peek;
  NodeWish node;  // of doctor; no host: this node is checked
};

// Takes a part of the answer. Returns false if the output is closed.
using Output = absl::FunctionRef<bool(const std::string&)>;

struct Command {
  const char* name;
  const char* help;
  const char* example;     // the words after "iris-ctl"
  bool takes_job = false;  // has --job
  // Writes the answer of irisd once; listings write it page by page. It is null if the command is
  // of another kind and has no --watch.
  absl::Status (*show)(const Options&, AdminClient&, Output) = nullptr;
};
absl::Span<const Command> Commands();

// Returns the status of a command. If no job has the requested name, the text lists jobs with
// similar names.
absl::Status WithNearJobs(const Options& options, AdminClient& client, const absl::Status& status);

}  // namespace iris::ctl
