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
  uint64_t n_marks = 0;
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
  for (const Json& rank : *ranks) {
    if (!rank.is_object() || !Whole(rank, "rank")) return no_trace();
  }
  for (const Json& event : *events) {
    if (!event.is_object() || !Whole(event, "pid")) return no_trace();
    const auto at = event.find("ts");
    if (at == event.end()) continue;
    if (!at->is_number() || !(std::abs(at->get<double>()) < kMicrosecondsMax)) return no_trace();
    const Json* const category = Member(event, "cat", Json::value_t::string);
    if (category != nullptr && *category == kIrisdCategory) ++file->n_marks;
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

bool IsIrisds(const Json& event) { return event["pid"] == kIrisdProcess; }

// Writes ASCII, like TraceJson.
std::string Dump(const Json& json) { return json.dump(-1, ' ', /*ensure_ascii=*/true); }

// Returns a line for each event, as TraceJson writes them.
std::string Lines(const Json& events) {
  return absl::StrJoin(events, ",\n",
                       [](std::string* out, const Json& event) { out->append(Dump(event)); });
}

}  // namespace

absl::StatusOr<std::string> MergeTraces(const std::vector<TraceText>& traces) {
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
  const Parsed* marked = &files[0];
  double marks_error_us = 0;
  std::map<int64_t, const Parsed*> of_rank;
  std::map<int64_t, Json> ranks;
  const Json& first = files[0].json["otherData"];
  for (const Parsed& file : files) {
    const Json& other = file.json["otherData"];
    if (other["job"] != first["job"]) {
      return Wrong(file, absl::StrCat("it is of job ", Dump(other["job"]), ", and ", *files[0].name,
                                      " of job ", Dump(first["job"])));
    }
    if (other["host"] != first["host"]) {
      return Wrong(file, absl::StrCat("its clock is that of another machine, or of another boot, "
                                      "than that of ",
                                      *files[0].name));
    }
    for (const Json& rank : other["ranks"]) {
      const int64_t number = rank["rank"].get<int64_t>();
      const auto [known, added] = of_rank.emplace(number, &file);
      if (!added) {
        return Wrong(file, absl::StrCat("rank ", number, " is in ", *known->second->name, ", too"));
      }
      ranks.emplace(number, rank);
    }
    origin_ns = std::min(origin_ns, file.origin_ns);
    if (file.n_marks > marked->n_marks) marked = &file;
    const auto error = other.find("irisd_error_us");
    if (error != other.end() && error->is_number()) {
      marks_error_us = std::max(marks_error_us, error->get<double>());
    }
  }
  Json events = Json::array();
  for (Parsed& file : files) {
    const uint64_t later_ns = file.origin_ns - origin_ns;
    if (later_ns > kApartNsMax) return Wrong(file, "it is of more than 52 days later");
    for (Json& event : file.json["traceEvents"]) {
      if (IsIrisds(event) && &file != marked) continue;
      if (const auto at = event.find("ts"); at != event.end()) {
        *at = (std::round(at->get<double>() * 1000) + static_cast<double>(later_ns)) / 1000;
      }
      events.push_back(std::move(event));
    }
  }
  Json other = first;
  other["origin_ns"] = absl::StrCat(origin_ns);
  other["irisd_error_us"] = marks_error_us;
  other["ranks"] = Json::array();
  for (auto& [number, rank] : ranks) other["ranks"].push_back(std::move(rank));
  return absl::StrCat("{\"displayTimeUnit\":\"ns\",\"otherData\":", Dump(other),
                      ",\n\"traceEvents\":[\n", Lines(events), "\n]}\n");
}

absl::Status MergeTraceFiles(const std::vector<std::string>& paths, const std::string& out) {
  std::vector<TraceText> traces;
  for (const std::string& path : paths) {
    auto text = ReadFile(path, kFileBytesMax);
    if (!text.ok()) return text.status();
    traces.push_back({path, *std::move(text)});
  }
  const absl::StatusOr<std::string> merged = MergeTraces(traces);
  return merged.ok() ? WriteFile(out, *merged) : merged.status();
}

}  // namespace iris::internal
