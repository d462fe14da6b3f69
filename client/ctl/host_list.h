// The list of hosts of iris-run --hosts, and quoting for their shell. Pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace iris::ctl {

struct HostRanks {
  std::string name;  // an IPv6 address has no brackets
  int n_ranks = 1;
  bool here = false;  // it needs no remote shell
};

// Reads "a:8,b,[fd00::1]:2". A host without a number has room for one rank; a host that is listed
// again adds to its first entry. kInvalidArgument names the entry and what is wrong with it, also
// if a host has more ranks than a node may have.
absl::StatusOr<std::vector<HostRanks>> ParseHosts(absl::string_view text);

// Reads a file with one host a line, as "a:8", "a slots=8" or "a"; # begins a comment.
// kInvalidArgument names the line.
absl::StatusOr<std::vector<HostRanks>> ParseHostfile(absl::string_view text);

// Returns the hosts, in order, that `n_ranks` ranks fill; all of them if it is 0. kInvalidArgument
// if there is not enough room, or if a job may not have so many ranks.
absl::StatusOr<std::vector<HostRanks>> PlaceRanks(std::vector<HostRanks> hosts, int n_ranks);

// Returns true for a name by which only the host itself is reached, such as "localhost".
bool IsLoopback(absl::string_view name);

// Returns the text as one word of a POSIX shell, which csh and fish read alike.
std::string ShellQuote(absl::string_view text);

}  // namespace iris::ctl
