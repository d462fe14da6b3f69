#include "client/ctl/views.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/base/printable.h"
#include "client/ctl/text.h"

namespace iris::ctl {
namespace {

using Json = nlohmann::ordered_json;
constexpr auto kRight = Table::Align::kRight;

// Ids as irisd's log and events write them.
std::string Id(uint64_t value) { return absl::StrCat(value); }
std::string Offset(uint64_t bytes) { return absl::StrFormat("0x%x", bytes); }

std::string Age(int64_t unix_ms, absl::Time now) {
  return unix_ms == 0 ? "" : HumanDuration(now - absl::FromUnixMillis(unix_ms));
}

std::string Word(absl::string_view enum_name, absl::string_view prefix) {
  absl::ConsumePrefix(&enum_name, prefix);
  return enum_name.empty() || enum_name == "UNSPECIFIED" ? "unknown"
                                                         : absl::AsciiStrToLower(enum_name);
}

std::string RanksOf(const v1::Job& job) {
  std::map<std::string, int> counts;
  for (const auto& rank : job.ranks()) ++counts[StateWord(rank.state())];
  if (counts.size() == 1 && counts.begin()->second == static_cast<int>(job.n_ranks())) {
    return absl::StrCat(job.n_ranks(), " ", counts.begin()->first);
  }
  std::vector<std::string> parts;
  for (const auto& [word, count] : counts) parts.push_back(absl::StrCat(count, " ", word));
  return absl::StrCat(job.n_ranks(), parts.empty() ? "" : ": ", absl::StrJoin(parts, ", "));
}

// How many devices, and whether ranks share one.
std::string DevicesOf(const v1::Job& job) {
  std::set<std::string> devices;
  int n_ranks = 0;
  for (const auto& rank : job.ranks()) {
    if (rank.device_uuid().empty()) continue;
    devices.insert(rank.device_uuid());
    ++n_ranks;
  }
  const bool shared = devices.size() < static_cast<size_t>(n_ranks);
  return absl::StrCat(devices.size(), shared ? " shared" : "");
}

// The same JSON with \uNNNN in place of characters that could steer a terminal. JSON itself demands
// that of those below U+0020 alone.
std::string PrintableJson(absl::string_view json) {
  std::string result;
  while (!json.empty()) {
    const size_t printable = base::PrintableCharacterBytes(json);
    size_t bytes = std::max<size_t>(printable, 1);
    if (printable > 0 || json[0] == '\n') {
      absl::StrAppend(&result, json.substr(0, bytes));
    } else {
      // None of them lies above U+FFFF, and nlohmann::json writes nothing but UTF-8.
      uint32_t code = static_cast<unsigned char>(json[0]);
      if (code >= 0x80) code &= code >= 0xe0 ? 0x0f : 0x1f;
      for (; bytes < json.size() && (json[bytes] & 0xc0) == 0x80; ++bytes) {
        code = code << 6 | (static_cast<unsigned char>(json[bytes]) & 0x3f);
      }
      absl::StrAppendFormat(&result, "\\u%04x", code);
    }
    json.remove_prefix(bytes);
  }
  return result;
}

void AddDevices(const v1::ListDevicesReply& reply, absl::Time /*now*/, Table* table) {
  for (const auto& device : reply.devices()) {
    table->Add({absl::StrCat(device.index()), EscapeName(device.uuid()),
                EscapeName(device.backend()), EscapeName(device.name()),
                HumanBytes(device.memory_bytes()), HumanBytes(device.used_bytes()),
                HumanBytes(device.granularity_bytes())});
  }
}

void AddJobs(const v1::ListJobsReply& reply, absl::Time now, Table* table) {
  for (const auto& job : reply.jobs()) {
    table->Add({EscapeName(job.job()), absl::StrCat(job.uid()), StateWord(job.state()),
                absl::StrCat(job.epoch()), RanksOf(job), HumanBytes(job.heap_bytes()),
                HumanBytes(job.allocated_bytes()), absl::StrCat(job.n_allocations()),
                absl::StrCat(job.n_teams()), DevicesOf(job), job.same_address() ? "yes" : "no",
                Age(job.created_unix_ms(), now)});
  }
}

void AddHeaps(const v1::ListHeapsReply& reply, absl::Time /*now*/, Table* table) {
  for (const auto& heap : reply.heaps()) {
    table->Add({EscapeName(heap.job()), absl::StrCat(heap.rank()), absl::StrCat(heap.pid()),
                StateWord(heap.state()), EscapeName(heap.device_uuid()),
                HumanBytes(heap.heap_bytes()), HumanBytes(heap.max_heap_bytes()),
                HumanBytes(heap.allocated_bytes()), HumanBytes(heap.largest_free_bytes()),
                absl::StrCat(heap.n_segments())});
  }
}

void AddAllocations(const v1::ListAllocationsReply& reply, absl::Time now, Table* table) {
  for (const auto& allocation : reply.allocations()) {
    table->Add({EscapeName(allocation.job()), EscapeName(allocation.name()),
                Offset(allocation.offset_bytes()), HumanBytes(allocation.bytes()),
                EscapeName(allocation.tensor().dtype()),
                absl::StrJoin(allocation.tensor().shape(), "x"), WhoseText(allocation),
                absl::StrCat(allocation.k()), Age(allocation.created_unix_ms(), now)});
  }
}

void AddSessions(const v1::ListSessionsReply& reply, absl::Time now, Table* table) {
  for (const auto& session : reply.sessions()) {
    const bool joined = !session.job().empty();
    table->Add({Id(session.session_id()), absl::StrCat(session.pid()), absl::StrCat(session.uid()),
                EscapeName(session.state()), EscapeName(session.job()),
                joined ? absl::StrCat(session.rank()) : "", Age(session.created_unix_ms(), now),
                EscapeName(session.command())});
  }
}

void AddTenants(const v1::ListTenantsReply& reply, absl::Time /*now*/, Table* table) {
  for (const auto& tenant : reply.tenants()) {
    table->Add({EscapeName(tenant.name()), absl::StrCat(tenant.sessions()),
                absl::StrCat(tenant.calls()), absl::StrCat(tenant.jobs()),
                absl::StrCat(tenant.teams()), absl::StrCat(tenant.allocations()),
                HumanBytes(tenant.heap_bytes()), absl::StrCat(tenant.descriptors()),
                HumanBytes(tenant.core_bytes()),
                absl::StrFormat("%.3f s", static_cast<double>(tenant.core_us()) * 1e-6)});
  }
}

}  // namespace

std::string WhoseText(const v1::Allocation& allocation) {
  if (!allocation.has_owner()) return absl::StrCat(allocation.team_id());
  std::string text = absl::StrCat("rank ", allocation.owner());
  if (allocation.registered()) absl::StrAppend(&text, ", registered");
  if (allocation.freed()) absl::StrAppend(&text, ", freed");
  if (allocation.n_open() > 0) absl::StrAppend(&text, ", open by ", allocation.n_open());
  return text;
}

std::string StateWord(v1::RankState state) {
  return Word(v1::RankState_Name(state), "RANK_STATE_");
}
std::string StateWord(v1::JobState state) { return Word(v1::JobState_Name(state), "JOB_STATE_"); }

std::string Dump(const Json& json, int indent) {
  return PrintableJson(json.dump(indent, ' ', false, Json::error_handler_t::replace)) + "\n";
}

// What becomes of the heaps when irisd ends.
std::string KeptText(const v1::GetStatusReply& status) {
  const v1::KeptForNext& kept = status.kept_for_next();
  if (!status.has_kept_for_next()) return "heaps are lost: nobody keeps its descriptors";
  if (!kept.lost_because().empty()) {
    return absl::StrCat("heaps are lost: ", EscapeName(kept.lost_because()));
  }
  if (kept.state_bytes() == 0) return "heaps are lost: its state cannot be stored now";
  return absl::StrCat("the next one goes on: ", HumanBytes(kept.state_bytes()), " of state and ",
                      kept.descriptors(), " of ", kept.max_descriptors(),
                      " descriptors are kept; this is generation ", kept.generation());
}

std::string StatusText(const v1::GetStatusReply& status, absl::Time now) {
  std::string text = absl::StrFormat("irisd %s%s, pid %d, up %s\n", EscapeName(status.version()),
                                     status.stopping() ? " (stopping)" : "", status.pid(),
                                     Age(status.start_time_unix_ms(), now));
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "  %-18s %s\n", name, value);
  };
  line("runtime directory", EscapeName(status.runtime_dir()));
  line("devices", absl::StrCat(status.n_devices()));
  line("jobs", absl::StrCat(status.n_jobs()));
  line("sessions", absl::StrCat(status.n_sessions(), " (", status.sessions_total(),
                                " since start, ", status.sessions_refused_total(), " refused)"));
  line("heap memory", HumanBytes(status.heap_bytes()));
  if (status.kept_bytes() > 0) {
    line("kept by processes", HumanBytes(status.kept_bytes()) + ", of jobs that they left");
  }
  line("irisd's memory", HumanBytes(status.rss_bytes()));
  line("open files", absl::StrCat(status.open_fds(), " of ", status.fd_limit()));
  line("when irisd ends", KeptText(status));
  if (status.descriptors_closing() > 0 || status.closing_troubles_total() > 0) {
    line("slow to close",
         absl::StrCat(status.descriptors_closing(), " descriptors of clients (",
                      status.closing_troubles_total(), " hung processes since start)"));
  }
  if (status.log_lines_left_out_total() > 0) {
    line("log", absl::StrCat(status.log_lines_left_out_total(),
                             " lines left out: nobody reads irisd's stderr in time"));
  }
  if (status.worker_troubles_total() > 0) {
    line("workers",
         absl::StrCat(status.worker_troubles_total(), " ended or did not start; the last: ",
                      EscapeName(status.last_worker_trouble())));
  }
  line("attestation", EscapeName(status.attestation()));
  for (const auto& backend : status.backends()) {
    line("backend",
         absl::StrCat(EscapeName(backend.backend()), backend.available() ? "" : " (not available)",
                      backend.detail().empty() ? "" : ": ", EscapeName(backend.detail())));
  }
  return text;
}

ListView<v1::ListDevicesReply> DevicesView() {
  return {"devices",
          Table({{"INDEX", kRight},
                 {"UUID"},
                 {"BACKEND"},
                 {"NAME"},
                 {"MEMORY", kRight},
                 {"USED", kRight},
                 {"GRANULARITY", kRight}}),
          AddDevices, DevicesJson};
}

ListView<v1::ListJobsReply> JobsView() {
  return {"jobs",
          Table({{"JOB"},
                 {"UID", kRight},
                 {"STATE"},
                 {"EPOCH", kRight},
                 {"RANKS"},
                 {"HEAP/RANK", kRight},
                 {"ALLOCATED", kRight},
                 {"ALLOCATIONS", kRight},
                 {"TEAMS", kRight},
                 {"DEVICES"},
                 {"SAME-ADDRESS"},
                 {"AGE", kRight}}),
          AddJobs, JobsJson};
}

ListView<v1::ListHeapsReply> HeapsView() {
  return {"heaps",
          Table({{"JOB"},
                 {"RANK", kRight},
                 {"PID", kRight},
                 {"STATE"},
                 {"DEVICE"},
                 {"HEAP", kRight},
                 {"MAX", kRight},
                 {"ALLOCATED", kRight},
                 {"LARGEST-FREE", kRight},
                 {"SEGMENTS", kRight}}),
          AddHeaps, HeapsJson};
}

ListView<v1::ListAllocationsReply> AllocationsView() {
  return {"allocations",
          Table({{"JOB"},
                 {"NAME"},
                 {"OFFSET", kRight},
                 {"SIZE", kRight},
                 {"DTYPE"},
                 {"SHAPE"},
                 {"TEAM", kRight},
                 {"K", kRight},
                 {"AGE", kRight}}),
          AddAllocations, AllocationsJson};
}

ListView<v1::ListSessionsReply> SessionsView() {
  return {"sessions",
          Table({{"SESSION"},
                 {"PID", kRight},
                 {"UID", kRight},
                 {"STATE"},
                 {"JOB"},
                 {"RANK", kRight},
                 {"AGE", kRight},
                 {"COMMAND", Table::Align::kLeft, /*may_be_cut=*/true}}),
          AddSessions, SessionsJson};
}

ListView<v1::ListTenantsReply> TenantsView() {
  return {"tenants",
          Table({{"TENANT"},
                 {"SESSIONS", kRight},
                 {"CALLS", kRight},
                 {"JOBS", kRight},
                 {"TEAMS", kRight},
                 {"ALLOCATIONS", kRight},
                 {"HEAP", kRight},
                 {"DESCRIPTORS", kRight},
                 {"CORE MEMORY", kRight},
                 {"CORE TIME", kRight}}),
          AddTenants, TenantsJson};
}

std::string TenantLimitsText(const v1::ListTenantsReply& reply) {
  const v1::Tenant& one = reply.limits();
  const v1::Tenant& all = reply.limits_of_all();
  return absl::StrCat(
      "a tenant may have ", one.sessions(), " sessions, ", one.calls(), " calls, ", one.jobs(),
      " jobs",
      one.heap_bytes() == 0 ? "" : absl::StrCat(", ", HumanBytes(one.heap_bytes()), " of heaps"),
      "; all together ", all.sessions(), " sessions, ", all.jobs(), " jobs, ", all.descriptors(),
      " descriptors of memory\nirisd's own memory: ", HumanBytes(reply.core_bytes()), " of ",
      HumanBytes(all.core_bytes()), " (core.memory)\n");
}

std::string JsonList::Add(const Json& items) {
  std::string text;
  for (const Json& item : items) {
    const std::string lines =
        PrintableJson(item.dump(2, ' ', false, Json::error_handler_t::replace));
    absl::StrAppend(&text, empty_ ? "[\n  " : ",\n  ",
                    absl::StrReplaceAll(lines, {{"\n", "\n  "}}));
    empty_ = false;
  }
  return text;
}

std::string JsonList::End() const { return empty_ ? "[]\n" : "\n]\n"; }

std::string EventText(const v1::Event& event, absl::TimeZone zone) {
  std::string text;
  if (event.dropped() > 0) absl::StrAppend(&text, "(", event.dropped(), " events lost)\n");
  absl::StrAppend(&text,
                  absl::FormatTime("%H:%M:%E3S", absl::FromUnixMillis(event.time_unix_ms()), zone),
                  absl::StrFormat("  %-20s", EscapeName(event.kind())));
  if (!event.job().empty()) absl::StrAppend(&text, "  job=", EscapeName(event.job()));
  if (event.rank() >= 0) absl::StrAppend(&text, "  rank=", event.rank());
  if (event.pid() > 0) absl::StrAppend(&text, "  pid=", event.pid());
  if (!event.text().empty()) absl::StrAppend(&text, "  ", EscapeName(event.text()));
  return text + "\n";
}

Json StatusJson(const v1::GetStatusReply& status) {
  Json backends = Json::array();
  for (const auto& backend : status.backends()) {
    backends.push_back({{"backend", backend.backend()},
                        {"available", backend.available()},
                        {"detail", backend.detail()}});
  }
  Json kept;  // null: nothing is
  if (status.has_kept_for_next()) {
    kept = {{"generation", status.kept_for_next().generation()},
            {"descriptors", status.kept_for_next().descriptors()},
            {"max_descriptors", status.kept_for_next().max_descriptors()},
            {"state_bytes", status.kept_for_next().state_bytes()},
            {"lost_because", status.kept_for_next().lost_because()}};
  }
  return {{"version", status.version()},
          {"pid", status.pid()},
          {"start_time_unix_ms", status.start_time_unix_ms()},
          {"runtime_dir", status.runtime_dir()},
          {"n_devices", status.n_devices()},
          {"n_jobs", status.n_jobs()},
          {"n_sessions", status.n_sessions()},
          {"heap_bytes", status.heap_bytes()},
          {"kept_bytes", status.kept_bytes()},
          {"kept_for_next", kept},
          {"rss_bytes", status.rss_bytes()},
          {"open_fds", status.open_fds()},
          {"fd_limit", status.fd_limit()},
          {"sessions_total", status.sessions_total()},
          {"sessions_refused_total", status.sessions_refused_total()},
          {"descriptors_closing", status.descriptors_closing()},
          {"closing_troubles_total", status.closing_troubles_total()},
          {"log_lines_left_out_total", status.log_lines_left_out_total()},
          {"worker_troubles_total", status.worker_troubles_total()},
          {"last_worker_trouble", status.last_worker_trouble()},
          {"attestation", status.attestation()},
          {"stopping", status.stopping()},
          {"backends", backends}};
}

Json DevicesJson(const v1::ListDevicesReply& reply) {
  Json result = Json::array();
  for (const auto& device : reply.devices()) {
    result.push_back({{"index", device.index()},
                      {"uuid", device.uuid()},
                      {"backend", device.backend()},
                      {"name", device.name()},
                      {"memory_bytes", device.memory_bytes()},
                      {"used_bytes", device.used_bytes()},
                      {"granularity_bytes", device.granularity_bytes()}});
  }
  return result;
}

Json JobsJson(const v1::ListJobsReply& reply) {
  Json result = Json::array();
  for (const auto& job : reply.jobs()) {
    Json ranks = Json::array();
    for (const auto& rank : job.ranks()) {
      ranks.push_back({{"rank", rank.rank()},
                       {"state", StateWord(rank.state())},
                       {"pid", rank.pid()},
                       {"session_id", Id(rank.session_id())},
                       {"device_uuid", rank.device_uuid()},
                       {"base", Offset(rank.base())}});
    }
    result.push_back({{"job_id", Id(job.job_id())},
                      {"job", job.job()},
                      {"uid", job.uid()},
                      {"state", StateWord(job.state())},
                      {"epoch", job.epoch()},
                      {"n_ranks", job.n_ranks()},
                      {"heap_bytes", job.heap_bytes()},
                      {"stride_bytes", job.stride_bytes()},
                      {"same_address", job.same_address()},
                      {"n_teams", job.n_teams()},
                      {"n_allocations", job.n_allocations()},
                      {"allocated_bytes", job.allocated_bytes()},
                      {"created_unix_ms", job.created_unix_ms()},
                      {"ranks", ranks}});
  }
  return result;
}

Json HeapsJson(const v1::ListHeapsReply& reply) {
  Json result = Json::array();
  for (const auto& heap : reply.heaps()) {
    result.push_back({{"job_id", Id(heap.job_id())},
                      {"job", heap.job()},
                      {"uid", heap.uid()},
                      {"rank", heap.rank()},
                      {"pid", heap.pid()},
                      {"state", StateWord(heap.state())},
                      {"device_uuid", heap.device_uuid()},
                      {"heap_bytes", heap.heap_bytes()},
                      {"max_heap_bytes", heap.max_heap_bytes()},
                      {"allocated_bytes", heap.allocated_bytes()},
                      {"largest_free_bytes", heap.largest_free_bytes()},
                      {"n_segments", heap.n_segments()}});
  }
  return result;
}

Json AllocationsJson(const v1::ListAllocationsReply& reply) {
  Json result = Json::array();
  for (const auto& allocation : reply.allocations()) {
    result.push_back({{"job_id", Id(allocation.job_id())},
                      {"job", allocation.job()},
                      {"uid", allocation.uid()},
                      {"name", allocation.name()},
                      {"offset_bytes", allocation.offset_bytes()},
                      {"bytes", allocation.bytes()},
                      {"alignment_bytes", allocation.alignment_bytes()},
                      {"dtype", allocation.tensor().dtype()},
                      {"shape", std::vector<uint64_t>(allocation.tensor().shape().begin(),
                                                      allocation.tensor().shape().end())},
                      {"team_id", allocation.team_id()},
                      {"owner", allocation.has_owner() ? Json(allocation.owner()) : Json()},
                      {"n_open", allocation.n_open()},
                      {"freed", allocation.freed()},
                      {"registered", allocation.registered()},
                      {"k", allocation.k()},
                      {"created_unix_ms", allocation.created_unix_ms()}});
  }
  return result;
}

Json SessionsJson(const v1::ListSessionsReply& reply) {
  Json result = Json::array();
  for (const auto& session : reply.sessions()) {
    result.push_back({{"session_id", Id(session.session_id())},
                      {"pid", session.pid()},
                      {"uid", session.uid()},
                      {"gid", session.gid()},
                      {"command", session.command()},
                      {"state", session.state()},
                      {"job", session.job()},
                      {"rank", session.rank()},
                      {"created_unix_ms", session.created_unix_ms()}});
  }
  return result;
}

Json TenantsJson(const v1::ListTenantsReply& reply) {
  Json result = Json::array();
  for (const auto& tenant : reply.tenants()) {
    result.push_back({{"tenant", tenant.name()},
                      {"uid", tenant.uid()},
                      {"container", tenant.container()},
                      {"sessions", tenant.sessions()},
                      {"admin_connections", tenant.admin_connections()},
                      {"calls", tenant.calls()},
                      {"unread_bytes", tenant.unread_bytes()},
                      {"descriptors_in_flight", tenant.descriptors_in_flight()},
                      {"jobs", tenant.jobs()},
                      {"teams", tenant.teams()},
                      {"allocations", tenant.allocations()},
                      {"registered_pieces", tenant.registered_pieces()},
                      {"value_bytes", tenant.value_bytes()},
                      {"descriptors", tenant.descriptors()},
                      {"heap_bytes", tenant.heap_bytes()},
                      {"core_bytes", tenant.core_bytes()},
                      {"core_us", tenant.core_us()}});
  }
  return result;
}

Json EventJson(const v1::Event& event) {
  return {{"sequence", event.sequence()}, {"time_unix_ms", event.time_unix_ms()},
          {"kind", event.kind()},         {"job", event.job()},
          {"rank", event.rank()},         {"pid", event.pid()},
          {"text", event.text()},         {"dropped", event.dropped()}};
}

}  // namespace iris::ctl
