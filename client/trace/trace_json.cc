#include "client/trace/trace_json.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/base/utf8.h"
#include "client/base/whole_file.h"
#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "nlohmann/json.hpp"
#include "proto/wire/clock_drift.h"

namespace iris::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHostCalls[kTraceHostCalls] = {
    "allocate", "free", "barrier", "broadcast", "team", "launch", "synchronize", "open", "span"};

// Returns valid UTF-8: a byte that belongs to no character becomes the character of its number.
std::string TextOf(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = ReadUtf8(text).bytes;
    if (bytes == 0) {
      const auto byte = static_cast<uint8_t>(text[0]);
      out += {static_cast<char>(0xC0 | byte >> 6), static_cast<char>(0x80 | (byte & 0x3F))};
    }
    absl::StrAppend(&out, text.substr(0, bytes));
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

std::string InAscii(const Json& json) { return json.dump(-1, ' ', /*ensure_ascii=*/true); }

double Microseconds(uint64_t ns) { return static_cast<double>(ns) / 1000; }

bool IsHost(const TraceEvent& event) { return event.op >= static_cast<uint16_t>(TraceOp::kHost); }
bool IsCollective(const TraceEvent& event) {
  return !IsHost(event) && event.op >= static_cast<uint16_t>(TraceOp::kCollective);
}

const char* OperationOf(uint64_t number) {
  return ccl::OperationName(static_cast<ccl::Operation>(std::min<uint64_t>(number, 255)));
}

struct Named {
  std::string name;
  const char* category;
};
Named NameOf(const TraceEvent& event, const std::vector<std::string>& names) {
  if (IsHost(event)) {
    const uint32_t call = event.op - static_cast<uint32_t>(TraceOp::kHost);
    if (call == static_cast<uint32_t>(TraceHostCall::kSpan) && event.detail < names.size()) {
      return {names[event.detail], "user"};
    }
    std::string name = call < kTraceHostCalls ? kHostCalls[call] : "unknown";
    if (call == static_cast<uint32_t>(TraceHostCall::kLaunch)) {
      absl::StrAppend(&name, " ", OperationOf(event.detail));
    }
    return {name, "host"};
  }
  if (IsCollective(event)) {
    return {OperationOf(event.op - static_cast<uint64_t>(TraceOp::kCollective)), "collective"};
  }
  const auto op = static_cast<TraceOp>(event.op);
  if (op == TraceOp::kUser) return {absl::StrCat("user ", event.detail), "user"};
  constexpr struct {
    TraceOp op;
    const char* name;
    const char* category;
  } kCalls[] = {{TraceOp::kPut, "put", "rma"},
                {TraceOp::kGet, "get", "rma"},
                {TraceOp::kPutSignal, "put_signal", "rma"},
                {TraceOp::kWait, "wait", "wait"},
                {TraceOp::kBarrier, "barrier", "wait"},
                {TraceOp::kGridBarrier, "grid_barrier", "wait"}};
  for (const auto& call : kCalls) {
    if (op == call.op) return {call.name, call.category};
  }
  return {"unknown", "unknown"};
}

Json ArgumentsOf(const TraceEvent& event) {
  Json out = Json::object();
  if (event.peer != kNoTracePeer) out["peer"] = event.peer;
  if (IsCollective(event)) {
    const auto operation =
        static_cast<ccl::Operation>(event.op - static_cast<uint64_t>(TraceOp::kCollective));
    const uint64_t low = event.bytes & 0xffffffff, high = event.bytes >> 32;
    out["number"] = event.number;
    // The words of a call: iris/ops/call_record.h and those of moe and norm.
    auto type = static_cast<DType>(event.detail >> 8 & 0xf);
    if (ccl::IsMatmul(operation)) {
      out.update({{"m", low}, {"n", high}, {"dtype", DTypeName(type)}});
    } else if (ccl::IsMoe(operation)) {
      out.update({{"hidden", low},
                  {"experts", high & 0xffff},
                  {"top_k", high >> 16},
                  {"dtype", DTypeName(type)}});
    } else if (ccl::IsNorm(operation)) {
      out.update({{"rows", low}, {"hidden", high}, {"dtype", DTypeName(type)}});
    } else {
      type = static_cast<DType>(event.detail >> 8 & 0xff);
      out.update({{"elements", event.bytes},
                  {"dtype", DTypeName(type)},
                  {"bytes", event.bytes * DTypeBytes(type)}});
    }
    out["wait_us"] = Microseconds(event.wait_ns);
  } else if (event.bytes != 0) {
    out["bytes"] = event.bytes;
  }
  if (IsHost(event)) return out;
  const auto op = static_cast<TraceOp>(event.op);
  if (op == TraceOp::kWait || op == TraceOp::kPutSignal) out["value"] = event.detail;
  if (op == TraceOp::kBarrier || op == TraceOp::kGridBarrier) out["team"] = event.detail;
  out["block"] = event.block;
  out["multiprocessor"] = event.multiprocessor;
  return out;
}

// One box of the trace.
struct Slice {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  std::string name;
  const char* category = "";
  const TraceEvent* event = nullptr;  // whose arguments are shown; null: none
};

// The order of rows: the host's threads first, then blocks, and in a block the threads that call.
using Place = std::tuple<bool, uint32_t, uint32_t>;  // on a device, block or host thread, thread

// Divides the slices of one place into rows in which each slice follows the earlier ones or is
// inside them. There are several rows if kernels run at the same time.
std::vector<std::vector<const Slice*>> Rows(const std::vector<Slice>& slices) {
  std::vector<const Slice*> ordered;
  for (const Slice& slice : slices) ordered.push_back(&slice);
  std::sort(ordered.begin(), ordered.end(), [](const Slice* a, const Slice* b) {
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns;
    // The outer slice comes first; of two equal ones the one that was recorded first.
    return a->end_ns != b->end_ns ? a->end_ns > b->end_ns : a < b;
  });
  struct Row {
    std::vector<const Slice*> slices;
    std::vector<uint64_t> open;  // ends of those that the next one may be inside of
  };
  std::vector<Row> rows;
  for (const Slice* const slice : ordered) {
    Row* fits = nullptr;
    for (Row& row : rows) {
      while (!row.open.empty() && row.open.back() <= slice->start_ns) row.open.pop_back();
      if (fits == nullptr && (row.open.empty() || slice->end_ns <= row.open.back())) fits = &row;
    }
    if (fits == nullptr) fits = &rows.emplace_back();
    fits->slices.push_back(slice);
    fits->open.push_back(slice->end_ns);
  }
  std::vector<std::vector<const Slice*>> result;
  for (Row& row : rows) result.push_back(std::move(row.slices));
  return result;
}

std::map<Place, std::vector<Slice>> Slices(const RankTrace& rank) {
  std::map<Place, std::vector<Slice>> places;
  const auto add = [&](const TraceEvent& event, const auto& time) {
    const Named named = NameOf(event, rank.names);
    const Place place =
        IsHost(event) ? Place{false, event.number, 0} : Place{true, event.block, event.thread};
    std::vector<Slice>& slices = places[place];
    const uint64_t start = time(event.start_ns), end = time(event.end_ns);
    slices.push_back({start, end, named.name, named.category, &event});
    if (!IsCollective(event)) return;
    // The first round and the last one are inside.
    if (event.first_ns != 0) {
      const uint64_t until = std::min(end, time(event.start_ns + event.first_ns));
      slices.push_back({start, until, "first round", "wait"});
    }
    if (event.last_ns != 0) {
      const uint64_t last_ns = std::max(event.first_ns, event.last_ns);
      const uint64_t from = std::min(end, time(event.start_ns + last_ns));
      slices.push_back({from, end, "last round", "wait"});
    }
  };
  for (const TraceEvent& event : rank.events) {
    add(event, [&rank](uint64_t ns) { return HostTime(ns, rank.first, rank.last); });
  }
  for (const TraceEvent& event : rank.host_events) add(event, [](uint64_t ns) { return ns; });
  return places;
}

std::string PlaceName(const Place& place, size_t row) {
  const auto& [on_device, number, thread] = place;
  std::string name = absl::StrCat(on_device ? "block " : "host ", number);
  if (thread != 0) absl::StrAppend(&name, " thread ", thread);
  if (row != 0) absl::StrAppend(&name, " (", row + 1, ")");
  return name;
}

// The file's list of events, one per line.
class Lines {
 public:
  explicit Lines(uint64_t origin_ns) : origin_ns_(origin_ns) {}
  void Name(const char* what, uint32_t process, uint32_t thread, const std::string& name) {
    Add({{"ph", "M"},
         {"name", what},
         {"pid", process},
         {"tid", thread},
         {"args", {{"name", name}}}});
  }
  void Box(uint32_t process, uint32_t thread, const Slice& slice) {
    Add({{"ph", "X"},
         {"name", TextOf(slice.name)},
         {"cat", slice.category},
         {"pid", process},
         {"tid", thread},
         {"ts", Since(slice.start_ns)},
         {"dur", Microseconds(slice.end_ns - slice.start_ns)},
         {"args", slice.event == nullptr ? Json::object() : ArgumentsOf(*slice.event)}});
  }
  void Mark(const TraceMark& mark, uint32_t node) {
    Add({{"ph", "i"},
         {"s", "g"},
         {"name", TextOf(mark.name)},
         {"cat", kIrisdCategory},
         {"pid", kIrisdProcess + node},
         {"tid", 1},
         {"ts", Since(mark.host_ns)},
         {"args", {{"rank", mark.rank}, {"pid", mark.pid}, {"text", TextOf(mark.text)}}}});
  }
  const std::string& text() const { return text_; }

 private:
  double Since(uint64_t host_ns) const { return Microseconds(host_ns - origin_ns_); }
  void Add(const Json& line) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", InAscii(line)); }

  const uint64_t origin_ns_;
  std::string text_;
};

uint64_t Earliest(const TraceFile& file) {
  uint64_t earliest = ~uint64_t{0};
  for (const RankTrace& rank : file.ranks) {
    earliest = std::min(earliest, rank.first.host_ns);
    for (const TraceEvent& event : rank.events) {
      earliest = std::min(earliest, HostTime(event.start_ns, rank.first, rank.last));
    }
    for (const TraceEvent& event : rank.host_events) earliest = std::min(earliest, event.start_ns);
  }
  for (const TraceMark& mark : file.marks) earliest = std::min(earliest, mark.host_ns);
  return earliest;
}

Json JsonOf(const ClockSample& sample) {
  return {{"here_ns", absl::StrCat(sample.device_ns)},
          {"leader_ns", absl::StrCat(sample.host_ns)},
          {"error_ns", sample.error_ns}};
}

}  // namespace

std::optional<uint64_t> NodeErrorNs(const TraceFile& file) {
  if (!file.node.has_value() || !file.node->first.has_value()) return std::nullopt;
  const ClockSample &first = *file.node->first, &last = *file.node->last;
  const uint64_t earliest = Earliest(file);
  const uint64_t before_ns = earliest < first.device_ns ? first.device_ns - earliest : 0;
  const bool leads = file.node->node == 0;
  return std::max(first.error_ns, last.error_ns) + (leads ? 0 : wire::ClockDriftNs(before_ns));
}

uint64_t HostTime(uint64_t device_ns, const ClockSample& first, const ClockSample& last) {
  const auto since = static_cast<int64_t>(device_ns - first.device_ns);
  const auto device = static_cast<int64_t>(last.device_ns - first.device_ns);
  const auto host = static_cast<int64_t>(last.host_ns - first.host_ns);
  // Samples that are close together do not show the drift of the clocks.
  constexpr int64_t kApartNs = 1000 * 1000;
  if (device < kApartNs || host < kApartNs) return first.host_ns + static_cast<uint64_t>(since);
  const auto drift =
      static_cast<int64_t>(static_cast<double>(host - device) *
                           (static_cast<double>(since) / static_cast<double>(device)));
  return first.host_ns + static_cast<uint64_t>(since + drift);
}

std::string TraceJson(const TraceFile& file) {
  const uint64_t origin = Earliest(file);
  Lines lines(origin);
  Json ranks = Json::array();
  for (const RankTrace& rank : file.ranks) {
    lines.Name("process_name", rank.rank, 0,
               absl::StrCat("rank ", rank.rank, " (pid ", rank.pid, ")"));
    uint32_t thread = 0;
    for (const auto& [place, slices] : Slices(rank)) {
      const auto rows = Rows(slices);
      for (size_t row = 0; row < rows.size(); ++row) {
        lines.Name("thread_name", rank.rank, ++thread, PlaceName(place, row));
        for (const Slice* const slice : rows[row]) lines.Box(rank.rank, thread, *slice);
      }
    }
    ranks.push_back(
        {{"rank", rank.rank},
         {"pid", rank.pid},
         {"events", rank.events.size() + rank.host_events.size()},
         {"capacity", rank.capacity},
         {"dropped", rank.dropped + rank.host_dropped},
         {"unfinished", rank.unfinished},
         {"clock_error_us", Microseconds(std::max(rank.first.error_ns, rank.last.error_ns))},
         {"clock_offset_ns", static_cast<int64_t>(rank.first.host_ns - rank.first.device_ns)},
         {"clock_drift_known", rank.drift_known}});
  }
  const uint32_t node = file.node.has_value() ? file.node->node : 0;
  if (!file.marks.empty()) {
    lines.Name(
        "process_name", kIrisdProcess + node, 0,
        file.node.has_value() ? absl::StrCat("irisd of ", TextOf(file.node->name)) : "irisd");
  }
  for (const TraceMark& mark : file.marks) lines.Mark(mark, node);
  Json other = {{"program", "iris"},
                {"job", TextOf(file.job)},
                {"clock", "CLOCK_MONOTONIC of the host"},
                {"host", TextOf(file.host)},
                {"origin_ns", absl::StrCat(origin)},
                {"irisd_error_us", Microseconds(file.marks_error_ns)},
                {"ranks", std::move(ranks)}};
  if (file.node.has_value()) {
    const std::optional<uint64_t> error_ns = NodeErrorNs(file);
    other["nodes"] = Json::array({{{"node", node}, {"name", TextOf(file.node->name)}}});
    if (error_ns.has_value()) {
      other["nodes"][0]["clock_error_us"] = Microseconds(*error_ns);
      other["leader_clock"] = {{"run", absl::StrCat(file.node->run)},
                               {"first", JsonOf(*file.node->first)},
                               {"last", JsonOf(*file.node->last)}};
    }
  }
  return absl::StrCat("{\"displayTimeUnit\":\"ns\",\"otherData\":", InAscii(other),
                      ",\n\"traceEvents\":[\n", lines.text(), "\n]}\n");
}

std::string HostId() {
  const auto text = ReadFile("/proc/sys/kernel/random/boot_id", 64);
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

}  // namespace iris::internal
