// The answers of the admin service as tables for people and as JSON for programs. Pure functions.
//
// JSON: one object per message, with the fields of proto/iris/v1/admin.proto. Numbers are numbers,
// ids (fixed64) are strings because JavaScript's numbers end at 2^53, states are words ("ready"),
// and an optional field that is not set is null. The fields of a tensor are those of its
// allocation, and the name of a tenant is "tenant".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/ctl/text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

using Json = nlohmann::ordered_json;
using google::protobuf::Message;

Json MessageJson(const Message& message);
template <typename Messages>
Json ArrayJson(const Messages& messages) {
  Json array = Json::array();
  for (const Message& message : messages) array.push_back(MessageJson(message));
  return array;
}

// Returns the text of a JSON value; bytes that are not UTF-8 become U+FFFD. `indent` < 0: one line.
std::string Dump(const Json& json, int indent);

// Return "ready", "dead", ...; "unknown" for a number of a newer irisd.
std::string StateWord(v1::RankState state);
std::string StateWord(v1::JobState state);

std::string StatusText(const v1::GetStatusReply& status, absl::Time now);
std::string EventText(const v1::Event& event, absl::TimeZone zone);  // one line
// Returns "job train  all_reduce #17 of 4 ranks (1 MiB, f32)  ranks 0,1,3 wait for rank 2 (pid
// 4711, stopped) since 12.3 s". It is always one line.
std::string WaitText(const v1::Wait& wait);
// Returns the number of ranks in each state: "4: 1 dead, 3 ready".
std::string RankStates(const v1::Job& job);
// Says how long ago `unix_ms` was; empty for 0, which stands for no time.
std::string Age(int64_t unix_ms, absl::Time now);

// A view shows the things of a listing as rows of a table, or as lines.
struct View {
  struct Column {
    const char* heading;
    // A field of the thing, whose type says how the cell is written and aligned, or null if `text`
    // writes the cell.
    const char* field = nullptr;
    std::string (*text)(const Message& thing) = nullptr;
    Table::Align align = Table::Align::kLeft;
    bool may_be_cut = false;
  };
  const char* none;  // the text of an empty listing: "no jobs"
  const google::protobuf::Descriptor* things;
  std::vector<Column> columns;
  std::string (*line)(const Message& thing) = nullptr;  // without columns

  Table MakeTable() const;
  void AddRow(const Message& thing, absl::Time now, Table* table) const;
};
View DevicesView();
View JobsView();
View HeapsView();
View AllocationsView();
View SessionsView();
View TenantsView();
View WaitsView();
View NodesView();
// Returns lines with the limits of one tenant and of all tenants together.
std::string TenantLimitsText(const v1::ListTenantsReply& reply);

// Prints one listing as text or as JSON, page by page. The JSON of all pages together is that of
// Dump for all things. Without End it is invalid, so that a part is not taken for the listing.
class ListPrinter {
 public:
  // `max_width`: see Table::set_max_width.
  ListPrinter(View view, bool as_json, size_t max_width = 0);

  // Returns the text that a page adds.
  std::string Page(const Message& page, absl::Time now);
  // Returns the text after the last page.
  std::string End() const;

 private:
  const View view_;
  const bool as_json_;
  Table table_;
  bool empty_ = true;
};

// A job at one moment, and its events until then.
struct JobDescription {
  v1::JobDescription at;
  std::vector<v1::Event> events;  // the oldest first
};

// Selects the events of each job: those of its name that are neither older than the job nor later
// than its description. Several users may have a job of that name.
std::vector<JobDescription> Describe(const v1::DescribeJobsReply& reply,
                                     const std::vector<v1::Event>& events);

// The number of events in the text, which has the last ones. JSON has all events.
inline constexpr size_t kDescribedEvents = 20;

// `max_width`: see Table::set_max_width.
std::string DescriptionText(const JobDescription& description, absl::Time now, size_t max_width);

// Returns the job, with the fields of its heap, and with the command of its process in each rank;
// "allocations" and "events" are lists.
Json DescriptionJson(const JobDescription& description);

}  // namespace iris::ctl
