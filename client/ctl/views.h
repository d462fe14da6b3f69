// The answers of the admin service as tables for people and as JSON for programs. Pure functions.
//
// JSON: one object per thing, fields as in proto/iris/v1/admin.proto; numbers are numbers (session
// and job ids are strings, because JavaScript's numbers end at 2^53), states are words
// ("ready").
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

std::string StatusText(const v1::GetStatusReply& status, absl::Time now);
std::string DevicesText(const v1::ListDevicesReply& reply);
std::string JobsText(const v1::ListJobsReply& reply, absl::Time now);
std::string HeapsText(const v1::ListHeapsReply& reply);
std::string AllocationsText(const v1::ListAllocationsReply& reply, absl::Time now);
std::string SessionsText(const v1::ListSessionsReply& reply, absl::Time now);
std::string EventText(const v1::Event& event, absl::TimeZone zone);  // one line

nlohmann::ordered_json StatusJson(const v1::GetStatusReply& status);
nlohmann::ordered_json DevicesJson(const v1::ListDevicesReply& reply);
nlohmann::ordered_json JobsJson(const v1::ListJobsReply& reply);
nlohmann::ordered_json HeapsJson(const v1::ListHeapsReply& reply);
nlohmann::ordered_json AllocationsJson(const v1::ListAllocationsReply& reply);
nlohmann::ordered_json SessionsJson(const v1::ListSessionsReply& reply);
nlohmann::ordered_json EventJson(const v1::Event& event);

// Text of a JSON value; bytes that are not UTF-8 become U+FFFD. `indent` < 0: one line.
std::string Dump(const nlohmann::ordered_json& json, int indent);

// "ready", "dead", ...; "unknown" for a number of a newer irisd.
std::string StateWord(v1::RankState state);
std::string StateWord(v1::JobState state);

}  // namespace iris::ctl
