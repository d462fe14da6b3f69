#include "client/ctl/waits_view.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/ctl/text.h"
#include "proto/wire/limits.h"

namespace iris::ctl {
namespace {

using Json = nlohmann::ordered_json;

std::string Word(absl::string_view enum_name, absl::string_view prefix) {
  absl::ConsumePrefix(&enum_name, prefix);
  return enum_name.empty() || enum_name == "UNSPECIFIED" ? "unknown"
                                                         : absl::AsciiStrToLower(enum_name);
}

// "rank 2", "ranks 0,1,3".
template <typename Members>
std::string Ranks(const Members& members) {
  return absl::StrCat(members.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(members, ",", [](std::string* out, const v1::WaitMember& each) {
                        absl::StrAppend(out, each.rank());
                      }));
}

// "rank 2 (pid 4711, stopped)".
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
  // irisd says an operation with its arguments: "allocate(bytes=8)".
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

Json MembersJson(const google::protobuf::RepeatedPtrField<v1::WaitMember>& members) {
  Json result = Json::array();
  for (const v1::WaitMember& member : members) {
    result.push_back({{"rank", member.rank()},
                      {"pid", member.pid()},
                      {"stopped", member.stopped()},
                      {"place", Word(v1::WaitPlace_Name(member.place()), "WAIT_PLACE_")}});
  }
  return result;
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

Json WaitsJson(const v1::ListWaitsReply& reply) {
  Json result = Json::array();
  for (const v1::Wait& wait : reply.waits()) {
    result.push_back({{"job_id", absl::StrCat(wait.job_id())},
                      {"job", wait.job()},
                      {"uid", wait.uid()},
                      {"kind", Word(v1::WaitKind_Name(wait.kind()), "WAIT_KIND_")},
                      {"team_id", wait.team_id()},
                      {"n_members", wait.n_members()},
                      {"call", wait.call()},
                      {"number", wait.number()},
                      {"bytes", wait.bytes()},
                      {"dtype", wait.dtype()},
                      {"waited_ms", wait.waited_ms()},
                      {"waiting", MembersJson(wait.waiting())},
                      {"missing", MembersJson(wait.missing())},
                      {"device_unknown", wait.device_unknown()},
                      {"block", wait.block()},
                      {"wanted", wait.wanted()},
                      {"seen", wait.seen()}});
  }
  return result;
}

}  // namespace iris::ctl
