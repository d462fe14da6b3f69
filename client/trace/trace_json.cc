#include "client/trace/trace_json.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/base/utf8.h"
#include "client/base/whole_file.h"
#include "iris/ccl_types.h"
#include "iris/dtype.h"

namespace iris::internal {
namespace {

constexpr const char* kHostCalls[kTraceHostCalls] = {
    "allocate", "free", "barrier", "broadcast", "team", "launch", "synchronize", "open", "span"};

// The number of the character that `text` begins with, which has so many bytes.
uint32_t CharacterAt(absl::string_view text, size_t bytes) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (bytes == 1) return first;
  uint32_t number = first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) number = number << 6 | (static_cast<uint8_t>(text[i]) & 0x3f);
  return number;
}

// All but plain characters by their numbers, so that the file is ASCII. A byte that is of no
// character stands for itself.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t bytes = std::max<size_t>(1, Utf8CharacterBytes(text));
    const uint32_t character = CharacterAt(text, bytes);
    text.remove_prefix(bytes);
    if (character == '"' || character == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, static_cast<char>(character)));
    } else if (character >= 0x20 && character < 0x7f) {
      out += static_cast<char>(character);
    } else if (character < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", character);
    } else {
      const uint32_t above = character - 0x10000;
      absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xd800 + (above >> 10),
                            0xdc00 + (above & 0x3ff));
    }
  }
  return out + "\"";
}

// Microseconds, with nanoseconds behind the point.
std::string Microseconds(uint64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

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
  switch (static_cast<TraceOp>(event.op)) {
    case TraceOp::kUser:
      return {absl::StrCat("user ", event.detail), "user"};
    case TraceOp::kPut:
      return {"put", "rma"};
    case TraceOp::kGet:
      return {"get", "rma"};
    case TraceOp::kPutSignal:
      return {"put_signal", "rma"};
    case TraceOp::kWait:
      return {"wait", "wait"};
    case TraceOp::kBarrier:
      return {"barrier", "wait"};
    case TraceOp::kGridBarrier:
      return {"grid_barrier", "wait"};
    default:
      return {"unknown", "unknown"};
  }
}

std::string ArgumentsOf(const TraceEvent& event) {
  std::string out;
  const auto add = [&out](const char* name, const std::string& value) {
    absl::StrAppend(&out, out.empty() ? "" : ",", "\"", name, "\":", value);
  };
  if (event.peer != kNoTracePeer) add("peer", absl::StrCat(event.peer));
  if (IsHost(event)) {
    if (event.bytes != 0) add("bytes", absl::StrCat(event.bytes));
    return out;
  }
  if (IsCollective(event)) {
    const auto type = static_cast<DType>(event.detail >> 8 & 0xff);
    add("number", absl::StrCat(event.number));
    const auto operation =
        static_cast<ccl::Operation>(event.op - static_cast<uint64_t>(TraceOp::kCollective));
    if (ccl::IsMatmul(operation)) {
      // The call's words are others: see iris/ops/call_record.h.
      add("m", absl::StrCat(event.bytes & 0xffffffff));
      add("n", absl::StrCat(event.bytes >> 32));
      add("dtype", Quoted(DTypeName(static_cast<DType>(event.detail >> 8 & 0xf))));
    } else if (ccl::IsMoe(operation)) {
      // See iris/moe/call_record.h.
      add("hidden", absl::StrCat(event.bytes & 0xffffffff));
      add("experts", absl::StrCat(event.bytes >> 32 & 0xffff));
      add("top_k", absl::StrCat(event.bytes >> 48));
      add("dtype", Quoted(DTypeName(static_cast<DType>(event.detail >> 8 & 0xf))));
    } else if (ccl::IsNorm(operation)) {
      // Likewise: see iris/norm/call_record.h.
      add("rows", absl::StrCat(event.bytes & 0xffffffff));
      add("hidden", absl::StrCat(event.bytes >> 32));
      add("dtype", Quoted(DTypeName(static_cast<DType>(event.detail >> 8 & 0xf))));
    } else {
      add("elements", absl::StrCat(event.bytes));
      add("dtype", Quoted(DTypeName(type)));
      add("bytes", absl::StrCat(event.bytes * DTypeBytes(type)));
    }
    add("wait_us", Microseconds(event.wait_ns));
  } else {
    if (event.bytes != 0) add("bytes", absl::StrCat(event.bytes));
    const auto op = static_cast<TraceOp>(event.op);
    if (op == TraceOp::kWait || op == TraceOp::kPutSignal) {
      add("value", absl::StrCat(event.detail));
    }
    if (op == TraceOp::kBarrier || op == TraceOp::kGridBarrier) {
      add("team", absl::StrCat(event.detail));
    }
  }
  add("block", absl::StrCat(event.block));
  add("multiprocessor", absl::StrCat(event.multiprocessor));
  return out;
}

// What is shown as one box.
struct Slice {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  std::string name;
  const char* category = "";
  std::string arguments;
};

// Where it stands: the host's threads first, then blocks, and in a block the threads that call.
using Place = std::tuple<bool, uint32_t, uint32_t>;  // on a device, block or host thread, thread

// Slices of one place, in rows in which each is beside or inside the ones before. There is more
// than one row where kernels run at the same time.
std::vector<std::vector<const Slice*>> Rows(const std::vector<Slice>& slices) {
  std::vector<const Slice*> ordered;
  for (const Slice& slice : slices) ordered.push_back(&slice);
  std::sort(ordered.begin(), ordered.end(), [](const Slice* a, const Slice* b) {
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns;
    // What is around comes first, and of two that are alike the one that was told first.
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
    slices.push_back({start, end, named.name, named.category, ArgumentsOf(event)});
    if (!IsCollective(event)) return;
    // The first round and the last one are inside.
    if (event.first_ns != 0) {
      const uint64_t until = std::min(end, time(event.start_ns + event.first_ns));
      slices.push_back({start, until, "first round", "wait", ""});
    }
    if (event.last_ns != 0) {
      const uint64_t last_ns = std::max(event.first_ns, event.last_ns);
      const uint64_t from = std::min(end, time(event.start_ns + last_ns));
      slices.push_back({from, end, "last round", "wait", ""});
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

// Lines of the file's list of events.
class Lines {
 public:
  explicit Lines(uint64_t origin_ns) : origin_ns_(origin_ns) {}
  void Name(const char* what, uint32_t process, uint32_t thread, const std::string& name) {
    Add(absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", what,
                        process, thread, Quoted(name)));
  }
  void Box(uint32_t process, uint32_t thread, const Slice& slice) {
    Add(absl::StrFormat(
        R"({"ph":"X","name":%s,"cat":"%s","pid":%d,"tid":%d,"ts":%s,"dur":%s,"args":{%s}})",
        Quoted(slice.name), slice.category, process, thread, Since(slice.start_ns),
        Microseconds(slice.end_ns - slice.start_ns), slice.arguments));
  }
  void Mark(uint32_t process, const TraceMark& mark) {
    Add(absl::StrFormat(
        R"({"ph":"i","s":"g","name":%s,"cat":"%s","pid":%d,"tid":1,"ts":%s,"args":{"rank":%d,)"
        R"("pid":%d,"text":%s}})",
        Quoted(mark.name), kIrisdCategory, process, Since(mark.host_ns), mark.rank, mark.pid,
        Quoted(mark.text)));
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string Since(uint64_t host_ns) const { return Microseconds(host_ns - origin_ns_); }
  void Add(const std::string& line) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", line); }

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

}  // namespace

uint64_t HostTime(uint64_t device_ns, const ClockSample& first, const ClockSample& last) {
  const auto since = static_cast<int64_t>(device_ns - first.device_ns);
  const auto device = static_cast<int64_t>(last.device_ns - first.device_ns);
  const auto host = static_cast<int64_t>(last.host_ns - first.host_ns);
  // Samples that are close together say nothing of how the clocks drift.
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
  std::string ranks;
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
    absl::StrAppendFormat(
        &ranks,
        R"(%s{"rank":%d,"pid":%d,"events":%d,"capacity":%d,"dropped":%d,"unfinished":%d,)"
        R"("clock_error_us":%s,"clock_offset_ns":%d,"clock_drift_known":%s})",
        ranks.empty() ? "" : ",", rank.rank, rank.pid, rank.events.size() + rank.host_events.size(),
        rank.capacity, rank.dropped + rank.host_dropped, rank.unfinished,
        Microseconds(std::max(rank.first.error_ns, rank.last.error_ns)),
        static_cast<int64_t>(rank.first.host_ns - rank.first.device_ns),
        rank.drift_known ? "true" : "false");
  }
  if (!file.marks.empty()) {
    lines.Name("process_name", kIrisdProcess, 0, "irisd");
    for (const TraceMark& mark : file.marks) lines.Mark(kIrisdProcess, mark);
  }
  return absl::StrFormat(
      "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"program\":\"iris\",\"job\":%s,"
      "\"clock\":\"CLOCK_MONOTONIC of the host\",\"host\":%s,\"origin_ns\":\"%d\","
      "\"irisd_error_us\":%s,\"ranks\":[%s]},\n\"traceEvents\":[\n%s\n]}\n",
      Quoted(file.job), Quoted(file.host), origin, Microseconds(file.marks_error_ns), ranks,
      lines.Take());
}

std::string HostId() {
  const auto text = ReadFile("/proc/sys/kernel/random/boot_id", 64);
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

}  // namespace iris::internal
