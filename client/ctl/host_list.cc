#include "client/ctl/host_list.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/base/printable.h"
#include "proto/wire/limits.h"

namespace iris::ctl {
namespace {

constexpr size_t kMaxNameBytes = 253;  // of a name in the DNS

absl::Status Wrong(absl::string_view entry, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", base::Printable(entry.substr(0, 64)), "\": ", why));
}

// The name goes to the remote shell as an argument, which must not look like an option.
bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && absl::ascii_isalnum(name[0]) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

// Returns true for an IPv6 address, with or without the name of an interface.
bool IsAddress(absl::string_view text) {
  const auto [address, scope] = std::pair<absl::string_view, absl::string_view>(
      absl::StrSplit(text, absl::MaxSplits('%', 1)));
  return address.size() >= 2 && address.find(':') != address.npos &&
         std::all_of(
             address.begin(), address.end(),
             [](unsigned char c) { return absl::ascii_isxdigit(c) || c == ':' || c == '.'; }) &&
         (scope.empty() ? text.find('%') == text.npos : IsName(scope));
}

absl::Status Add(absl::string_view entry, std::vector<HostRanks>* hosts) {
  absl::string_view name = entry, number;
  if (entry.find(' ') != entry.npos) {
    return Wrong(entry, "write commas, without spaces, between hosts");
  }
  const size_t colon = entry.rfind(':');
  if (colon != entry.npos && (entry[0] != '[' || entry[colon - 1] == ']')) {
    name = entry.substr(0, colon);
    number = entry.substr(colon + 1);
    if (number.empty()) return Wrong(entry, "no number of ranks follows the colon");
  }
  const bool bracketed = absl::ConsumePrefix(&name, "[") && absl::ConsumeSuffix(&name, "]");
  if (!bracketed && name.find(':') != name.npos) {
    return Wrong(entry, "write an IPv6 address in brackets: [ADDRESS]:RANKS");
  }
  if (bracketed ? !IsAddress(name) : !IsName(name)) {
    return Wrong(entry,
                 "is no host: HOST, HOST:RANKS or [ADDRESS]:RANKS, of letters, digits, "
                 "'.', '-' and '_'");
  }
  int n_ranks = 1;
  const bool digits = std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
  if (!number.empty() && (!digits || !absl::SimpleAtoi(number, &n_ranks) || n_ranks < 1)) {
    return Wrong(entry, "the number of ranks must be 1 or more");
  }
  auto host = std::find_if(hosts->begin(), hosts->end(),
                           [&](const HostRanks& each) { return each.name == name; });
  if (host == hosts->end()) host = hosts->insert(host, {std::string(name), 0});
  constexpr int kMax = static_cast<int>(wire::kMaxRanks);
  if (n_ranks > kMax || host->n_ranks + n_ranks > kMax) {
    return Wrong(entry, absl::StrCat("a host has at most ", kMax, " ranks of a job"));
  }
  host->n_ranks += n_ranks;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostRanks>> ParseHosts(absl::string_view text) {
  std::vector<HostRanks> hosts;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    if (absl::Status status = Add(entry, &hosts); !status.ok()) return status;
    if (hosts.size() > wire::kMaxWorldRanks) return Wrong(entry, "there are too many hosts");
  }
  return hosts;
}

absl::StatusOr<std::vector<HostRanks>> ParseHostfile(absl::string_view text) {
  std::vector<HostRanks> hosts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    absl::string_view slots;
    if (words.size() > 1) slots = words[1];
    absl::Status status;
    if (words.size() > 2 || (words.size() == 2 && !absl::ConsumePrefix(&slots, "slots="))) {
      status = Wrong(line, "write HOST, HOST:RANKS or HOST slots=RANKS");
    } else {
      status = Add(words.size() == 2 ? absl::StrCat(words[0], ":", slots) : std::string(words[0]),
                   &hosts);
    }
    if (status.ok() && hosts.size() > wire::kMaxWorldRanks) {
      status = Wrong(line, "there are too many hosts");
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  if (hosts.empty()) return absl::InvalidArgumentError("it names no host");
  return hosts;
}

absl::StatusOr<std::vector<HostRanks>> PlaceRanks(std::vector<HostRanks> hosts, int n_ranks) {
  int room = 0;
  for (const HostRanks& host : hosts) room += host.n_ranks;
  if (n_ranks > room) {
    return absl::InvalidArgumentError(absl::StrCat("the hosts have room for ", room,
                                                   " ranks, and -n asks for ", n_ranks,
                                                   "; write HOST:RANKS for each host"));
  }
  if (n_ranks == 0) n_ranks = room;
  if (n_ranks > static_cast<int>(wire::kMaxWorldRanks)) {
    return absl::InvalidArgumentError(
        absl::StrCat(n_ranks, " ranks; a job has at most ", wire::kMaxWorldRanks));
  }
  for (size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].n_ranks = std::min(hosts[i].n_ranks, n_ranks);
    n_ranks -= hosts[i].n_ranks;
    if (n_ranks == 0) hosts.resize(i + 1);
  }
  return hosts;
}

bool IsLoopback(absl::string_view name) {
  return absl::EqualsIgnoreCase(name, "localhost") || absl::StartsWith(name, "127.") ||
         name == "::1";
}

std::string ShellQuote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

}  // namespace iris::ctl
