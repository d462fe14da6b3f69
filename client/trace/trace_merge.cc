#include "client/trace/trace_merge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/whole_file.h"
#include "client/trace/trace_json.h"
#include "nlohmann/json.hpp"

namespace iris::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFileBytesMax = size_t{1} << 30;
// Times up to 52 days, which doubles hold to the nanosecond.
constexpr double kMicrosecondsMax = 4.5e12;
constexpr uint64_t kApartNsMax = 4'500'000'000'000'000;

struct Parsed {
  const std::string* name = nullptr;
  Json json;
  uint64_t origin_ns = 0;
  std::map<int64_t, uint64_t> n_marks;  // of each irisd
  bool spans_nodes = false;
  std::string run;  // empty: the leader's clock is not known
  // The file's clock, in place of a device's, and the merged file's.
  ClockSample first = {}, last = {};

  // Converts a time of the file.
  uint64_t Converted(double us) const {
    const auto since_ns = static_cast<int64_t>(std::llround(us * 1000));
    return HostTime(origin_ns + static_cast<uint64_t>(since_ns), first, last);
  }
};

absl::Status Wrong(const Parsed& file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(*file.name, ": ", what));
}

// Returns null if there is no member of this name and type.
const Json* Member(const Json& of, const char* name, Json::value_t type) {
  const auto found = of.find(name);
  return found != of.end() && found->type() == type ? &*found : nullptr;
}

bool Whole(const Json& of, const char* name) {
  const auto found = of.find(name);
  return found != of.end() && found->is_number_integer();
}

// Returns 0 if there is no such number.
double Number(const Json& of, const char* name) {
  const auto found = of.find(name);
  return found != of.end() && found->is_number() ? found->get<double>() : 0;
}

bool ReadSample(const Json& clock, const char* name, ClockSample* sample) {
  const Json* const from = Member(clock, name, Json::value_t::object);
  if (from == nullptr) return false;
  const Json* const here = Member(*from, "here_ns", Json::value_t::string);
  const Json* const leader = Member(*from, "leader_ns", Json::value_t::string);
  return here != nullptr && leader != nullptr &&
         absl::SimpleAtoi(here->get<std::string>(), &sample->device_ns) &&
         absl::SimpleAtoi(leader->get<std::string>(), &sample->host_ns);
}

uint64_t Apart(uint64_t a, uint64_t b) { return std::max(a, b) - std::min(a, b); }

// Reads how the file's clock compares with the leader's. False if that cannot be.
bool ReadClock(const Json& other, Parsed* file) {
  file->first = file->last = {file->origin_ns, file->origin_ns, 0};
  file->spans_nodes = other.contains("nodes");
  if (!other.contains("leader_clock")) return true;
  const Json* const clock = Member(other, "leader_clock", Json::value_t::object);
  if (clock == nullptr || !file->spans_nodes) return false;
  const Json* const run = Member(*clock, "run", Json::value_t::string);
  if (run == nullptr || run->get<std::string>().empty() ||
      !ReadSample(*clock, "first", &file->first) || !ReadSample(*clock, "last", &file->last)) {
    return false;
  }
  file->run = *run;
  // HostTime relies on bounds. Comparisons in short intervals differ by their errors.
  const uint64_t here_ns = file->last.device_ns - file->first.device_ns;
  const uint64_t leader_ns = file->last.host_ns - file->first.host_ns;
  return here_ns <= kApartNsMax && Apart(here_ns, leader_ns) <= 100 * (here_ns + 1'000'000) &&
         Apart(file->first.device_ns, file->origin_ns) <= kApartNsMax;
}

// Checks everything on which the merge relies.
absl::Status Check(Parsed* file) {
  const auto no_trace = [file] { return Wrong(*file, "this is no trace that Iris wrote"); };
  if (!file->json.is_object()) return no_trace();
  const Json* const other = Member(file->json, "otherData", Json::value_t::object);
  const Json* const events = Member(file->json, "traceEvents", Json::value_t::array);
  if (other == nullptr || events == nullptr) return no_trace();
  const Json* const ranks = Member(*other, "ranks", Json::value_t::array);
  for (const char* const text : {"program", "job", "host", "origin_ns"}) {
    if (Member(*other, text, Json::value_t::string) == nullptr) return no_trace();
  }
  if (ranks == nullptr || (*other)["program"] != "iris" ||
      !absl::SimpleAtoi((*other)["origin_ns"].get<std::string>(), &file->origin_ns)) {
    return no_trace();
  }
  if (!ReadClock(*other, file)) return no_trace();
  for (const Json& rank : *ranks) {
    if (!rank.is_object() || !Whole(rank, "rank")) return no_trace();
  }
  if (file->spans_nodes) {
    const Json* const nodes = Member(*other, "nodes", Json::value_t::array);
    if (nodes == nullptr) return no_trace();
    for (const Json& node : *nodes) {
      if (!node.is_object() || !Whole(node, "node")) return no_trace();
    }
  }
  for (const Json& event : *events) {
    if (!event.is_object() || !Whole(event, "pid")) return no_trace();
    for (const char* const time : {"ts", "dur"}) {
      const auto at = event.find(time);
      if (at == event.end()) continue;
      if (!at->is_number() || !(std::abs(at->get<double>()) < kMicrosecondsMax)) return no_trace();
    }
    const Json* const category = Member(event, "cat", Json::value_t::string);
    if (event.contains("ts") && category != nullptr && *category == kIrisdCategory) {
      ++file->n_marks[event["pid"].get<int64_t>()];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Parsed> Parse(const TraceText& text) {
  Parsed file;
  file.name = &text.name;
  file.json = Json::parse(text.json, nullptr, /*allow_exceptions=*/false);
  if (file.json.is_discarded()) return Wrong(file, "this is no JSON, or only a part of it");
  if (absl::Status status = Check(&file); !status.ok()) return status;
  return file;
}

double Microseconds(uint64_t ns) { return static_cast<double>(static_cast<int64_t>(ns)) / 1000; }

bool IsIrisds(const Json& event) { return event["pid"] >= kIrisdProcess; }

// Writes ASCII, like TraceJson.
std::string Dump(const Json& json) { return json.dump(-1, ' ', /*ensure_ascii=*/true); }

// Returns a line for each event, as TraceJson writes them.
std::string Lines(const Json& events) {
  return absl::StrJoin(events, ",\n",
                       [](std::string* out, const Json& event) { out->append(Dump(event)); });
}

}  // namespace

absl::StatusOr<MergedTrace> MergeTraces(const std::vector<TraceText>& traces) {
  if (traces.empty() || traces.size() > kMergedFilesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("merge ", traces.size(), " traces: give 1 to ", kMergedFilesMax, " files"));
  }
  std::vector<Parsed> files;
  for (const TraceText& text : traces) {
    auto parsed = Parse(text);
    if (!parsed.ok()) return parsed.status();
    files.push_back(*std::move(parsed));
  }
  uint64_t origin_ns = ~uint64_t{0};
  const Json& first = files[0].json["otherData"];
  Json other = first;
  double marks_error_us = 0;
  std::map<int64_t, const Parsed*> of_rank, marked;  // by rank, and by irisd's process
  std::map<int64_t, Json> ranks, nodes;
  MergedTrace merged;
  for (const Parsed& file : files) {
    const Json& its = file.json["otherData"];
    if (its["job"] != first["job"]) {
      return Wrong(file, absl::StrCat("it is of job ", Dump(its["job"]), ", and ", *files[0].name,
                                      " of job ", Dump(first["job"])));
    }
    if (file.run != files[0].run && !file.run.empty() && !files[0].run.empty()) {
      return Wrong(file, absl::StrCat("it is of another run of the job than ", *files[0].name));
    }
    // With a run, both clocks have been compared with the leader's.
    if (file.run != files[0].run || (file.run.empty() && its["host"] != first["host"])) {
      return Wrong(file, absl::StrCat("its clock is that of another machine, or of another boot, "
                                      "than that of ",
                                      *files[0].name,
                                      file.spans_nodes ? ", and the clock of the job's leader was "
                                                         "not known on both: take the traces with "
                                                         "iris-ctl trace on each node while the "
                                                         "nodes are connected (iris-ctl nodes)"
                                                       : ""));
    }
    if (file.spans_nodes) {
      for (const Json& node : its["nodes"]) {
        const int64_t number = node["node"].get<int64_t>();
        const double error_us = Number(node, "clock_error_us");
        Json& known = nodes[number];
        if (known.is_null() || error_us > Number(known, "clock_error_us")) known = node;
        if (!file.run.empty()) {
          merged.nodes_error_us = std::max(merged.nodes_error_us.value_or(0), error_us);
        }
        if (number == 0) other["host"] = its["host"];
      }
    }
    for (const Json& rank : its["ranks"]) {
      const int64_t number = rank["rank"].get<int64_t>();
      const auto [known, added] = of_rank.emplace(number, &file);
      if (!added) {
        return Wrong(file, absl::StrCat("rank ", number, " is in ", *known->second->name, ", too"));
      }
      ranks.emplace(number, rank);
    }
    origin_ns = std::min(origin_ns, file.Converted(0));
    for (const auto& [irisd, n_marks] : file.n_marks) {
      const Parsed*& most = marked[irisd];
      if (most == nullptr || n_marks > most->n_marks.at(irisd)) most = &file;
    }
    marks_error_us = std::max(marks_error_us, Number(its, "irisd_error_us"));
  }
  Json events = Json::array();
  for (Parsed& file : files) {
    if (file.Converted(0) - origin_ns > kApartNsMax) {
      return Wrong(file, "it is of more than 52 days later");
    }
    for (Json& event : file.json["traceEvents"]) {
      if (IsIrisds(event)) {
        const auto most = marked.find(event["pid"].get<int64_t>());
        if (most == marked.end() || most->second != &file) continue;
      }
      if (const auto at = event.find("ts"); at != event.end()) {
        const double start_us = at->get<double>();
        const uint64_t start_ns = file.Converted(start_us);
        *at = Microseconds(start_ns - origin_ns);
        if (const auto lasts = event.find("dur"); lasts != event.end()) {
          *lasts = Microseconds(file.Converted(start_us + lasts->get<double>()) - start_ns);
        }
      }
      events.push_back(std::move(event));
    }
  }
  if (!files[0].run.empty()) {
    other["clock"] = "CLOCK_MONOTONIC of the node of rank 0";
    // A merged file has the leader's clock.
    const Json sample = {{"here_ns", absl::StrCat(origin_ns)},
                         {"leader_ns", absl::StrCat(origin_ns)},
                         {"error_ns", 0}};
    other["leader_clock"]["first"] = other["leader_clock"]["last"] = sample;
  }
  if (!nodes.empty()) other["nodes"] = Json::array();
  for (auto& [number, node] : nodes) other["nodes"].push_back(std::move(node));
  other["origin_ns"] = absl::StrCat(origin_ns);
  other["irisd_error_us"] = marks_error_us;
  other["ranks"] = Json::array();
  for (auto& [number, rank] : ranks) other["ranks"].push_back(std::move(rank));
  merged.json = absl::StrCat("{\"displayTimeUnit\":\"ns\",\"otherData\":", Dump(other),
                             ",\n\"traceEvents\":[\n", Lines(events), "\n]}\n");
  return merged;
}

absl::StatusOr<MergedTrace> MergeTraceFiles(const std::vector<std::string>& paths,
                                            const std::string& out) {
  std::vector<TraceText> traces;
  for (const std::string& path : paths) {
    auto text = ReadFile(path, kFileBytesMax);
    if (!text.ok()) return text.status();
    traces.push_back({path, *std::move(text)});
  }
  absl::StatusOr<MergedTrace> merged = MergeTraces(traces);
  if (!merged.ok()) return merged.status();
  const absl::Status written = WriteFile(out, std::exchange(merged->json, ""));
  if (!written.ok()) return written;
  return merged;
}

}  // namespace iris::internal
