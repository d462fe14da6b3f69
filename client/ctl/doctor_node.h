// iris-ctl doctor --node: what a job between this node and another one would get. A rank on each
// node forms a job through both irisds, as any job does; the rank on this node measures.
//
// CheckNode runs the job: it starts the rank of the other node as iris-run does (remote_ranks.h),
// and that of this node without a remote shell. RunNodeRank is one of these ranks, in a process of
// its own. What the other node says is checked, and its texts are shown only by FindingsText.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/ctl/doctor.h"

namespace iris::ctl {

// The word with which iris-ctl becomes a rank of the job.
inline constexpr char kNodeRankFlag[] = "--doctor-rank";

struct NodeWish {
  std::string host;         // as the remote shell takes it
  std::string rsh;          // the remote shell, with its options
  std::string rendezvous;   // HOST:PORT on the other node; empty: a free port of it
  std::string runtime_dir;  // of irisd, on both nodes; empty: as for other commands
};

// Returns the findings, after a minute and a half at most. Call it before any threads are started.
std::vector<Finding> CheckNode(const NodeWish& wish);

// Is rank 0, on the other node, or rank 1. Writes findings to stdout, one line of JSON each.
// Returns the exit code.
int RunNodeRank();

// Returns the findings that a rank has written as lines of JSON; other lines are appended to
// *noise. `suffix` is appended to the names of the checks.
std::vector<Finding> ReadFindings(absl::string_view lines, const std::string& suffix,
                                  std::string* noise);

}  // namespace iris::ctl
