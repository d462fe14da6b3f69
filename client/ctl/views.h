// The answers of the admin service as tables for people and as JSON for programs. Pure functions.
//
// JSON: one object per thing, fields as in proto/iris/v1/admin.proto; numbers are numbers (session
// and job ids are strings, because JavaScript's numbers end at 2^53), states are words
// ("ready").
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/ctl/text.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

std::string StatusText(const v1::GetStatusReply& status, absl::Time now);
std::string EventText(const v1::Event& event, absl::TimeZone zone);  // one line

// How the pages of a listing are shown.
template <typename Reply>
struct ListView {
  const char* things = "";  // "jobs"
  Table table;
  void (*add_rows)(const Reply& page, absl::Time now, Table* table) = nullptr;
  nlohmann::ordered_json (*json)(const Reply& page) = nullptr;  // an array
};
ListView<v1::ListDevicesReply> DevicesView();
ListView<v1::ListJobsReply> JobsView();
ListView<v1::ListHeapsReply> HeapsView();
ListView<v1::ListAllocationsReply> AllocationsView();
ListView<v1::ListSessionsReply> SessionsView();
ListView<v1::ListTenantsReply> TenantsView();
// What one tenant and all together may have; lines.
std::string TenantLimitsText(const v1::ListTenantsReply& reply);

nlohmann::ordered_json StatusJson(const v1::GetStatusReply& status);
nlohmann::ordered_json DevicesJson(const v1::ListDevicesReply& reply);
nlohmann::ordered_json JobsJson(const v1::ListJobsReply& reply);
nlohmann::ordered_json HeapsJson(const v1::ListHeapsReply& reply);
nlohmann::ordered_json AllocationsJson(const v1::ListAllocationsReply& reply);
nlohmann::ordered_json SessionsJson(const v1::ListSessionsReply& reply);
nlohmann::ordered_json TenantsJson(const v1::ListTenantsReply& reply);
nlohmann::ordered_json EventJson(const v1::Event& event);

// A JSON array that is written part by part; all of it together is what Dump(array, 2) gives. One
// that was not ended is no JSON, so that nobody takes a part of a listing for the whole.
class JsonList {
 public:
  std::string Add(const nlohmann::ordered_json& items);  // an array
  std::string End() const;

 private:
  bool empty_ = true;
};

// One listing, as a table or as JSON, page by page.
template <typename Reply>
class ListPrinter {
 public:
  ListPrinter(ListView<Reply> view, bool as_json) : view_(std::move(view)), as_json_(as_json) {}

  // What the page adds to the text.
  std::string Page(const Reply& page, absl::Time now) {
    if (as_json_) return json_.Add(view_.json(page));
    view_.add_rows(page, now, &view_.table);
    return view_.table.Take();
  }
  // After the last page.
  std::string End() const {
    if (as_json_) return json_.End();
    return view_.table.rows() > 0 ? "" : std::string("no ") + view_.things + "\n";
  }

 private:
  ListView<Reply> view_;
  const bool as_json_;
  JsonList json_;
};

// Text of a JSON value; bytes that are not UTF-8 become U+FFFD. `indent` < 0: one line.
std::string Dump(const nlohmann::ordered_json& json, int indent);

// Whose an allocation is: the number of the team; of what a rank has allocated alone, "rank 1",
// with how many have it open.
std::string WhoseText(const v1::Allocation& allocation);

// "ready", "dead", ...; "unknown" for a number of a newer irisd.
std::string StateWord(v1::RankState state);
std::string StateWord(v1::JobState state);

}  // namespace iris::ctl
