#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"
#include "proto/wire/limits.h"

namespace iris::ctl {
namespace {

// Returns "on node b (from rank 2)": host names may be the same on several nodes.
std::string NodeText(const v1::WaitMember& member) {
  if (member.node().empty()) return "on another node";
  return absl::StrCat(
      "on node ", EscapeName(member.node()),
      member.has_node_rank() ? absl::StrCat(" (from rank ", member.node_rank(), ")") : "");
}

bool AreOnOneNode(const v1::WaitMember& a, const v1::WaitMember& b) {
  return a.has_node() == b.has_node() && a.node() == b.node() && a.node_rank() == b.node_rank();
}

// Calls `add` for each series of members that are on one node, with "rank 2", or "ranks 0,1,3".
template <typename Members, typename Add>
void ByNode(const Members& members, Add add) {
  for (auto each = members.begin(); each != members.end();) {
    const v1::WaitMember& first = *each;
    std::vector<uint32_t> ranks;
    for (; each != members.end() && AreOnOneNode(*each, first); ++each) {
      ranks.push_back(each->rank());
    }
    add(first, absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ",")));
  }
}

// Returns "ranks 0,1,3", or "ranks 0,1, ranks 2,3 on node b (from rank 2)".
template <typename Members>
std::string Ranks(const Members& members) {
  std::vector<std::string> parts;
  ByNode(members, [&](const v1::WaitMember& first, const std::string& ranks) {
    parts.push_back(
        absl::StrCat(ranks, first.has_node() ? " " : "", first.has_node() ? NodeText(first) : ""));
  });
  return absl::StrJoin(parts, ", ");
}

// Returns true for a rank on another node whose place this irisd does not know.
bool IsUnknown(const v1::WaitMember& member) {
  return member.has_node() && member.place() == v1::WAIT_PLACE_UNSPECIFIED;
}

// Returns "rank 2 (pid 4711, stopped)", or "rank 2 (pid 4711 on node b (from rank 2))".
std::string Missing(const v1::Wait& wait, const v1::WaitMember& member) {
  std::vector<std::string> facts;
  const std::string pid = absl::StrCat("pid ", member.pid());
  if (member.has_node()) {
    facts.push_back(
        absl::StrCat(member.pid() == 0 ? "" : absl::StrCat(pid, " "), NodeText(member)));
  } else {
    facts.push_back(member.pid() == 0 ? "no process" : pid);
  }
  if (member.stopped()) facts.push_back("stopped");
  if (wait.kind() == v1::WAIT_KIND_COLLECTIVE) {
    if (member.place() == v1::WAIT_PLACE_NOT_COME) facts.push_back("has not called");
    if (member.place() == v1::WAIT_PLACE_QUEUED) facts.push_back("has called");
    if (member.place() == v1::WAIT_PLACE_INSIDE) facts.push_back("is in it");
  }
  return absl::StrCat("rank ", member.rank(), " (", absl::StrJoin(facts, ", "), ")");
}

// Returns one text for each rank, but one for the ranks of another node of which no more is known.
std::string WhoIsMissing(const v1::Wait& wait) {
  const auto is_plain = [&wait](const v1::WaitMember& member) {
    return IsUnknown(member) ||
           (member.has_node() && member.pid() == 0 && wait.kind() != v1::WAIT_KIND_COLLECTIVE);
  };
  std::vector<std::string> parts;
  for (int i = 0; i < wait.missing_size();) {
    const v1::WaitMember& first = wait.missing(i);
    std::vector<v1::WaitMember> alike = {first};
    for (++i; i < wait.missing_size() && is_plain(first) && is_plain(wait.missing(i)) &&
              AreOnOneNode(wait.missing(i), first);
         ++i) {
      alike.push_back(wait.missing(i));
    }
    parts.push_back(alike.size() == 1 ? Missing(wait, first) : Ranks(alike));
  }
  return absl::StrJoin(parts, ", ");
}

std::string WhatIsCalled(const v1::Wait& wait) {
  if (wait.kind() == v1::WAIT_KIND_KERNEL) {
    return absl::StrCat(EscapeName(wait.call()), " (block ", wait.block(), ", has to be ",
                        wait.wanted(), " and was ", wait.seen(), ")");
  }
  // irisd names an operation with its arguments: "allocate(bytes=8)".
  const absl::string_view call = wait.call();
  const absl::string_view arguments = call.substr(std::min(call.find('('), call.size()));
  std::string text = EscapeName(call.substr(0, call.size() - arguments.size()));
  const bool numbered = wait.kind() != v1::WAIT_KIND_JOIN && wait.kind() != v1::WAIT_KIND_MAP;
  if (numbered) absl::StrAppend(&text, " #", wait.number());
  absl::StrAppend(&text, " of ", wait.n_members(), " ranks");
  std::vector<std::string> facts;
  if (arguments.size() > 2) {
    facts.push_back(EscapeName(arguments.substr(1, arguments.size() - 2)));
  }
  if (wait.bytes() > 0) facts.push_back(HumanBytes(wait.bytes()));
  if (!wait.dtype().empty()) facts.push_back(EscapeName(wait.dtype()));
  if (wait.team_id() >= wire::kFirstOwnTeam) {
    facts.push_back(absl::StrCat("rank ", wait.team_id() - wire::kFirstOwnTeam, " alone"));
  } else if (wait.team_id() != 0) {
    facts.push_back(absl::StrCat("team ", wait.team_id()));
  }
  if (!facts.empty()) absl::StrAppend(&text, " (", absl::StrJoin(facts, ", "), ")");
  return text;
}

}  // namespace

std::string WaitText(const v1::Wait& wait) {
  std::string text = absl::StrCat("job ", EscapeName(wait.job()), "  ", WhatIsCalled(wait), "  ",
                                  wait.waiting().empty() ? "nobody" : Ranks(wait.waiting()));
  if (wait.missing().empty()) {
    absl::StrAppend(&text, wait.kind() == v1::WAIT_KIND_GROWTH
                               ? " have asked, and the heap has to grow first"
                               : " are in it, and nobody is missing");
  } else {
    absl::StrAppend(&text, wait.waiting().size() == 1 ? " waits for " : " wait for ");
    if (wait.kind() == v1::WAIT_KIND_GROWTH) absl::StrAppend(&text, "the memory of ");
    absl::StrAppend(&text, WhoIsMissing(wait));
  }
  if (wait.waited_ms() >= 0) {
    absl::StrAppendFormat(&text, " since %.1f s", static_cast<double>(wait.waited_ms()) / 1000);
  }
  const bool unknown = std::any_of(wait.missing().begin(), wait.missing().end(), IsUnknown);
  const bool leader_knows = wait.kind() != v1::WAIT_KIND_HOST_BARRIER &&
                            wait.kind() != v1::WAIT_KIND_COLLECTIVE &&
                            wait.kind() != v1::WAIT_KIND_KERNEL;
  if (unknown && wait.has_leader() && leader_knows) {
    absl::StrAppend(&text, " [iris-ctl waits on ",
                    wait.leader().empty()
                        ? "the node of rank 0"
                        : absl::StrCat("node ", EscapeName(wait.leader()), " (from rank 0)"),
                    " says who has called there]");
  } else if (unknown) {
    absl::StrAppend(&text, " [iris-ctl waits on their node says more]");
  }
  if (wait.device_unknown()) {
    absl::StrAppend(&text, " [by what is on the streams: how far the devices are cannot be read]");
  }
  return text + "\n";
}

}  // namespace iris::ctl
