// The agent of iris-run on a host: it starts the ranks of its host as iris-run there tells it, and
// ends them when iris-run is gone. It runs in a remote shell, whose input and output are the
// AgentChannel.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/ctl/rank_set.h"

namespace iris::ctl {

// The word with which iris-run becomes an agent.
inline constexpr char kAgentFlag[] = "--agent";

// What an agent does.
struct HostJob {
  RunOptions options;  // of the ranks of this host; what ends the job is iris-run's matter
  std::string folder;  // working directory
  bool bind = false;   // to cores
  bool verbose = false;
};

std::string EncodeJob(const HostJob& job);
// kInvalidArgument if the text is not one that EncodeJob makes.
absl::StatusOr<HostJob> DecodeJob(absl::string_view text);

// Serves iris-run on descriptors 0 and 1 until all ranks have ended. Returns the exit code.
int RunAgent();

}  // namespace iris::ctl
