#include "server/job/events.h"

#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/job/states.h"

namespace iris::server {
namespace {

std::string Who(const Event& event) {
  return absl::StrCat("rank ", event.rank, " (pid ", event.pid, ")");
}

// Returns the team, or the rank, that asked.
std::string By(TeamId team) {
  return IsOwnTeam(team) ? absl::StrCat("rank=", OwnerOf(team)) : absl::StrCat("team=", team);
}

// Each kind of event has its text here. Kinds that have only a reason, a session or nothing to
// report share the first function.

template <typename Detail>
std::string Text(const Event&, const Detail& e) {
  if constexpr (requires { e.reason; }) {
    return e.reason;
  } else if constexpr (requires { e.session; }) {
    return absl::StrCat("session=", e.session.value);
  } else {
    static_assert(std::is_empty_v<Detail>, "this kind of event needs a text of its own");
    return "";
  }
}

std::string Text(const Event&, const event::JobForming& e) {
  return absl::StrCat("n_ranks=", e.n_ranks, " heap_bytes=", e.heap_bytes,
                      " stride_bytes=", e.stride_bytes);
}
std::string Text(const Event&, const event::NodeConnected& e) {
  return absl::StrCat("node ", e.host, " (from rank ", e.node, ")");
}
std::string Text(const Event&, const event::NodeLost& e) {
  return absl::StrCat("node ", e.host, " (from rank ", e.node, "): ", e.reason);
}
std::string Text(const Event&, const event::RankJoined& e) {
  return absl::StrCat(e.n_joined, " of ", e.n_ranks, " ranks");
}
std::string Text(const Event&, const event::JobMapping& e) {
  return absl::StrCat("epoch=", e.epoch);
}
std::string Text(const Event&, const event::DeviceShared& e) {
  std::string text =
      absl::StrCat(e.n_ranks, " ranks share ", e.n_devices_used, " of ", e.n_devices, " devices");
  for (const event::DeviceShared::Device& device : e.shared) {
    absl::StrAppend(&text, "; device ", device.index, ": ranks ",
                    absl::StrJoin(device.ranks, ", "));
  }
  return text;
}
std::string Text(const Event&, const event::JobReady& e) {
  return absl::StrCat("epoch=", e.epoch, " same_address=", e.same_address ? "true" : "false");
}
std::string Text(const Event& event, const event::RankHungUp&) {
  return absl::StrCat(Who(event), " ", kHungUp);
}
std::string Text(const Event& event, const event::RankDead&) {
  return absl::StrCat(Who(event), " died");
}
std::string Text(const Event& event, const event::RankLeft&) {
  return absl::StrCat(Who(event), " has left the job");
}
std::string Text(const Event&, const event::Allocated& e) {
  return absl::StrCat(By(e.team), " #", e.k, " offset_bytes=", e.offset_bytes, " bytes=", e.bytes,
                      " name='", e.name, "'");
}
std::string Text(const Event&, const event::Freed& e) {
  return absl::StrCat(By(e.team), " #", e.k, " offset_bytes=", e.offset_bytes);
}
std::string Text(const Event&, const event::GrowthStarted& e) {
  return absl::StrCat("grow=", e.grow.value, " bytes=", e.bytes, " heap_bytes=", e.heap_bytes);
}
std::string Text(const Event&, const event::HeapGrown& e) {
  return absl::StrCat("grow=", e.grow.value, " heap_bytes=", e.heap_bytes);
}
std::string Text(const Event&, const event::Recovered& e) {
  return absl::StrCat("generation=", e.generation, " jobs=", e.n_jobs, " sessions=", e.n_sessions,
                      " lost=", e.n_lost);
}
std::string Text(const Event&, const event::OrphanClosed& e) { return e.what; }
std::string Text(const Event&, const event::TeamCreated& e) {
  return absl::StrCat("team=", e.team, " slot=", e.slot, " ranks=[", absl::StrJoin(e.ranks, ","),
                      "]");
}
std::string Text(const Event&, const event::TeamDestroyed& e) {
  return absl::StrCat("team=", e.team);
}
std::string Text(const Event&, const event::RecordingFull& e) {
  return absl::StrCat("the recording ", e.file, " takes no more after ", e.bytes,
                      " bytes: what follows is not recorded");
}
std::string Text(const Event&, const event::WorkerEnded& e) {
  return absl::StrCat("the worker of ", e.tenant, " ended: ", e.reason);
}

}  // namespace

absl::string_view KindOf(const Event& event) {
  return std::visit([](const auto& detail) { return detail.kKind.word; }, event.detail);
}

Severity SeverityOf(const Event& event) {
  return std::visit([](const auto& detail) { return detail.kKind.severity; }, event.detail);
}

std::string TextOf(const Event& event) {
  return std::visit([&event](const auto& detail) { return Text(event, detail); }, event.detail);
}

}  // namespace iris::server
