#include "client/ctl/views.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/base/printable.h"
#include "google/protobuf/reflection.h"

namespace iris::ctl {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;
constexpr auto kRight = Table::Align::kRight;

std::string Word(const EnumDescriptor& type, int value) {
  // The first value is RANK_STATE_UNSPECIFIED, and the others begin like it.
  const auto* const named = type.FindValueByNumber(value);
  if (value == 0 || named == nullptr) return "unknown";
  absl::string_view prefix = type.FindValueByNumber(0)->name();
  absl::ConsumeSuffix(&prefix, "UNSPECIFIED");
  return absl::AsciiStrToLower(absl::StripPrefix(named->name(), prefix));
}

Json FieldJson(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if (field->is_repeated()) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return ArrayJson(reflection.GetRepeatedFieldRef<Message>(message, field));
    }
    const auto numbers = reflection.GetRepeatedFieldRef<uint64_t>(message, field);
    return std::vector<uint64_t>(numbers.begin(), numbers.end());
  }
  if (field->has_presence() && !reflection.HasField(message, field)) return nullptr;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Word(*field->enum_type(), reflection.GetEnumValue(message, field));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64: {
      const uint64_t value = reflection.GetUInt64(message, field);
      if (field->type() == FieldDescriptor::TYPE_FIXED64) return absl::StrCat(value);
      if (field->name() == "base") return absl::StrFormat("0x%x", value);
      return value;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(reflection.GetMessage(message, field));
    default:
      return nullptr;  // admin.proto has no other types
  }
}

std::string FieldText(const Message& message, const FieldDescriptor* field, absl::Time now) {
  const Json value = FieldJson(message, field);
  const std::string& name = field->name();
  if (value.is_string()) return EscapeName(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (name == "offset_bytes") return absl::StrFormat("0x%x", value.get<uint64_t>());
  if (absl::EndsWith(name, "bytes")) return HumanBytes(value.get<uint64_t>());
  if (absl::EndsWith(name, "_unix_ms")) return Age(value.get<int64_t>(), now);
  if (name == "core_us") return absl::StrFormat("%.3f s", value.get<double>() * 1e-6);
  return value.dump();
}

// Returns "4 ready" if all ranks have one state, else the number in each state.
std::string RanksOf(const v1::Job& job) {
  const auto& ranks = job.ranks();
  const bool alike = !ranks.empty() && ranks.size() == static_cast<int>(job.n_ranks()) &&
                     std::all_of(ranks.begin(), ranks.end(), [&](const v1::JobRank& rank) {
                       return rank.state() == ranks[0].state();
                     });
  const auto elsewhere = std::count_if(ranks.begin(), ranks.end(),
                                       [](const v1::JobRank& rank) { return rank.has_node(); });
  return absl::StrCat(
      alike ? absl::StrCat(job.n_ranks(), " ", StateWord(ranks[0].state())) : RankStates(job),
      elsewhere == 0 ? "" : absl::StrCat(" (", elsewhere, " on other nodes)"));
}

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

// Puts \uNNNN in place of characters that could control a terminal. JSON itself requires this only
// for those below U+0020.
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

// Names the team of an allocation, or the rank that has allocated it alone.
std::string WhoseText(const v1::Allocation& allocation) {
  if (!allocation.has_owner()) return absl::StrCat(allocation.team_id());
  std::string text = absl::StrCat("rank ", allocation.owner());
  if (allocation.registered()) absl::StrAppend(&text, ", registered");
  if (allocation.freed()) absl::StrAppend(&text, ", freed");
  if (allocation.n_open() > 0) absl::StrAppend(&text, ", open by ", allocation.n_open());
  return text;
}

std::string DtypeText(const v1::Allocation& allocation) {
  return EscapeName(allocation.tensor().dtype());
}
std::string ShapeText(const v1::Allocation& allocation) {
  return absl::StrJoin(allocation.tensor().shape(), "x");
}
std::string RankText(const v1::Session& session) {
  return session.job().empty() ? "" : absl::StrCat(session.rank());
}

// Returns "2-3"; "2-" if their number is not known yet.
std::string RanksOfNode(const v1::JobNode& node) {
  if (node.n_ranks() == 1) return absl::StrCat(node.node());
  return absl::StrCat(node.node(), "-",
                      node.n_ranks() == 0 ? "" : absl::StrCat(node.node() + node.n_ranks() - 1));
}
std::string RoleText(const v1::JobNode& node) {
  return absl::StrCat(node.leads() ? "leads" : "follows", node.here() ? ", this node" : "");
}
std::string StateText(const v1::JobNode& node) {
  return Word(*v1::NodeState_descriptor(), node.state());
}
std::string HeardText(const v1::JobNode& node) {
  return node.has_heard_ms()
             ? absl::StrFormat("%.1f s", static_cast<double>(node.heard_ms()) / 1000)
             : "";
}
std::string RttText(const v1::JobNode& node) {
  return node.has_rtt_us() ? absl::StrFormat("%.3f ms", static_cast<double>(node.rtt_us()) / 1000)
                           : "";
}
// Counts what came from nobody of the job: only the port process of this node knows.
std::string RefusedText(const v1::JobNode& node) {
  return node.here() ? absl::StrCat(node.refused_messages() + node.refused_connections()) : "";
}

// "mapped" are nodes whose ranks' memory this node's ranks map.
std::string FabricText(const v1::JobNode& node) {
  return absl::StrCat(node.mapped() && !node.here() ? "mapped: " : "", EscapeName(node.fabric()));
}

// Makes `text` a function of any message.
template <typename Thing, std::string (*text)(const Thing&)>
std::string Of(const Message& thing) {
  return text(static_cast<const Thing&>(thing));
}

}  // namespace

Json MessageJson(const Message& message) {
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message.GetDescriptor()->field(i);
    if (field->name() == "tensor") {
      json.update(MessageJson(message.GetReflection()->GetMessage(message, field)));
    } else {
      const bool of_tenant = field->full_name() == "iris.v1.Tenant.name";
      json[of_tenant ? "tenant" : field->name()] = FieldJson(message, field);
    }
  }
  return json;
}

std::string Dump(const Json& json, int indent) {
  return PrintableJson(json.dump(indent, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string StateWord(v1::RankState state) { return Word(*v1::RankState_descriptor(), state); }
std::string StateWord(v1::JobState state) { return Word(*v1::JobState_descriptor(), state); }

std::string RankStates(const v1::Job& job) {
  std::map<std::string, int> counts;
  for (const v1::JobRank& rank : job.ranks()) ++counts[StateWord(rank.state())];
  return absl::StrCat(job.n_ranks(), counts.empty() ? "" : ": ",
                      absl::StrJoin(counts, ", ", [](std::string* out, const auto& word_and_count) {
                        absl::StrAppend(out, word_and_count.second, " ", word_and_count.first);
                      }));
}

std::string Age(int64_t unix_ms, absl::Time now) {
  return unix_ms == 0 ? "" : HumanDuration(now - absl::FromUnixMillis(unix_ms));
}

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

Table View::MakeTable() const {
  std::vector<Table::Column> made;
  for (const Column& column : columns) {
    Table::Align align = column.align;
    if (column.field != nullptr) {
      const FieldDescriptor& field = *things->FindFieldByName(column.field);
      const bool is_word = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
                           field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM ||
                           field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL ||
                           field.type() == FieldDescriptor::TYPE_FIXED64;
      align = is_word ? Table::Align::kLeft : kRight;
    }
    made.push_back({column.heading, align, column.may_be_cut});
  }
  return Table(std::move(made));
}

void View::AddRow(const Message& thing, absl::Time now, Table* table) const {
  std::vector<std::string> cells;
  for (const Column& column : columns) {
    cells.push_back(column.text != nullptr
                        ? column.text(thing)
                        : FieldText(thing, things->FindFieldByName(column.field), now));
  }
  table->Add(std::move(cells));
}

View DevicesView() {
  return {"no devices",
          v1::Device::descriptor(),
          {{"INDEX", "index"},
           {"UUID", "uuid"},
           {"BACKEND", "backend"},
           {"NAME", "name"},
           {"MEMORY", "memory_bytes"},
           {"USED", "used_bytes"},
           {"GRANULARITY", "granularity_bytes"}}};
}

View JobsView() {
  return {"no jobs",
          v1::Job::descriptor(),
          {{"JOB", "job"},
           {"UID", "uid"},
           {"STATE", "state"},
           {"EPOCH", "epoch"},
           {"RANKS", nullptr, Of<v1::Job, RanksOf>},
           {"HEAP/RANK", "heap_bytes"},
           {"ALLOCATED", "allocated_bytes"},
           {"ALLOCATIONS", "n_allocations"},
           {"TEAMS", "n_teams"},
           {"DEVICES", nullptr, Of<v1::Job, DevicesOf>},
           {"SAME-ADDRESS", "same_address"},
           {"AGE", "created_unix_ms"}}};
}

View HeapsView() {
  return {"no heaps",
          v1::Heap::descriptor(),
          {{"JOB", "job"},
           {"RANK", "rank"},
           {"PID", "pid"},
           {"STATE", "state"},
           {"DEVICE", "device_uuid"},
           {"HEAP", "heap_bytes"},
           {"MAX", "max_heap_bytes"},
           {"ALLOCATED", "allocated_bytes"},
           {"LARGEST-FREE", "largest_free_bytes"},
           {"SEGMENTS", "n_segments"}}};
}

View AllocationsView() {
  return {"no allocations",
          v1::Allocation::descriptor(),
          {{"JOB", "job"},
           {"NAME", "name"},
           {"OFFSET", "offset_bytes"},
           {"SIZE", "bytes"},
           {"DTYPE", nullptr, Of<v1::Allocation, DtypeText>},
           {"SHAPE", nullptr, Of<v1::Allocation, ShapeText>},
           {"TEAM", nullptr, Of<v1::Allocation, WhoseText>, kRight},
           {"K", "k"},
           {"AGE", "created_unix_ms"}}};
}

View SessionsView() {
  return {"no sessions",
          v1::Session::descriptor(),
          {{"SESSION", "session_id"},
           {"PID", "pid"},
           {"UID", "uid"},
           {"STATE", "state"},
           {"JOB", "job"},
           {"RANK", nullptr, Of<v1::Session, RankText>, kRight},
           {"AGE", "created_unix_ms"},
           {"COMMAND", "command", nullptr, Table::Align::kLeft, /*may_be_cut=*/true}}};
}

View TenantsView() {
  return {"no tenants",
          v1::Tenant::descriptor(),
          {{"TENANT", "name"},
           {"SESSIONS", "sessions"},
           {"CALLS", "calls"},
           {"JOBS", "jobs"},
           {"TEAMS", "teams"},
           {"ALLOCATIONS", "allocations"},
           {"HEAP", "heap_bytes"},
           {"DESCRIPTORS", "descriptors"},
           {"CORE MEMORY", "core_bytes"},
           {"CORE TIME", "core_us"}}};
}

View WaitsView() { return {"nobody waits", v1::Wait::descriptor(), {}, Of<v1::Wait, WaitText>}; }

View NodesView() {
  return {"no jobs of several nodes",
          v1::JobNode::descriptor(),
          {{"JOB", "job"},
           {"NODE", "node"},
           {"HOST", "name"},
           {"RANKS", nullptr, Of<v1::JobNode, RanksOfNode>},
           {"ROLE", nullptr, Of<v1::JobNode, RoleText>},
           {"STATE", nullptr, Of<v1::JobNode, StateText>},
           {"HEARD", nullptr, Of<v1::JobNode, HeardText>, kRight},
           {"RTT", nullptr, Of<v1::JobNode, RttText>, kRight},
           {"SENT", "sent_bytes"},
           {"RECEIVED", "received_bytes"},
           {"REFUSED", nullptr, Of<v1::JobNode, RefusedText>, kRight},
           {"TRANSPORT", "transport"},
           {"ADDRESS", "address"},
           {"REASON", "reason"},
           {"FABRIC", nullptr, Of<v1::JobNode, FabricText>}}};
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

ListPrinter::ListPrinter(View view, bool as_json, size_t max_width)
    : view_(std::move(view)), as_json_(as_json), table_(view_.MakeTable()) {
  table_.set_max_width(max_width);
}

std::string ListPrinter::Page(const Message& page, absl::Time now) {
  std::string text;
  for (const Message& thing :
       page.GetReflection()->GetRepeatedFieldRef<Message>(page, page.GetDescriptor()->field(0))) {
    if (as_json_) {
      std::string lines = Dump(MessageJson(thing), 2);
      lines.pop_back();
      absl::StrAppend(&text, empty_ ? "[\n  " : ",\n  ",
                      absl::StrReplaceAll(lines, {{"\n", "\n  "}}));
    } else if (view_.line != nullptr) {
      text += view_.line(thing);
    } else {
      view_.AddRow(thing, now, &table_);
    }
    empty_ = false;
  }
  return text + table_.Take();
}

std::string ListPrinter::End() const {
  if (as_json_) return empty_ ? "[]\n" : "\n]\n";
  return empty_ ? absl::StrCat(view_.none, "\n") : "";
}

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

}  // namespace iris::ctl
