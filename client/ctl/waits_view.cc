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

// Returns "rank 2", or "ranks 0,1,3".
template <typename Members>
std::string Ranks(const Members& members) {
  return absl::StrCat(members.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(members, ",", [](std::string* out, const v1::WaitMember& each) {
                        absl::StrAppend(out, each.rank());
                      }));
}

// Returns "rank 2 (pid 4711, stopped)".
std::string Missing(const v1::Wait& wait, const v1::WaitMember& member) {
  std::vector<std::string> facts;
  facts.push_back(member.pid() == 0 ? "no process" : absl::StrCat("pid ", member.pid()));
  if (member.stopped()) facts.push_back("stopped");
  if (wait.kind() == v1::WAIT_KIND_COLLECTIVE) {
    if (member.place() == v1::WAIT_PLACE_NOT_COME) facts.push_back("has not called");
    if (member.place() == v1::WAIT_PLACE_QUEUED) facts.push_back("has called");
    if (member.place() == v1::WAIT_PLACE_INSIDE) facts.push_back("is in it");
  }
  return absl::StrCat("rank ", member.rank(), " (", absl::StrJoin(facts, ", "), ")");
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
    absl::StrAppend(&text, absl::StrJoin(wait.missing(), ", ",
                                         [&wait](std::string* out, const v1::WaitMember& each) {
                                           absl::StrAppend(out, Missing(wait, each));
                                         }));
  }
  if (wait.waited_ms() >= 0) {
    absl::StrAppendFormat(&text, " since %.1f s", static_cast<double>(wait.waited_ms()) / 1000);
  }
  if (wait.device_unknown()) {
    absl::StrAppend(&text, " [by what is on the streams: how far the devices are cannot be read]");
  }
  return text + "\n";
}

}  // namespace iris::ctl
