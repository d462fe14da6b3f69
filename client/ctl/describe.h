// iris-ctl describe: all that irisd tells of one job, together. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

// A job and what belongs to it.
struct JobDescription {
  v1::Job job;
  v1::ListHeapsReply heaps;
  v1::ListAllocationsReply allocations;
  v1::ListSessionsReply sessions;
  std::vector<v1::Event> events;  // the oldest first
};

// Of listings that may tell of several jobs of that name, each of another user: one description for
// each of `jobs`. Events of that name that are older than a job are not its own.
std::vector<JobDescription> Describe(const v1::ListJobsReply& jobs, const v1::ListHeapsReply& heaps,
                                     const v1::ListAllocationsReply& allocations,
                                     const v1::ListSessionsReply& sessions,
                                     const std::vector<v1::Event>& events);

// So many of the last events are in the text; all are in JSON.
inline constexpr size_t kDescribedEvents = 20;

// `max_width`: see Table::set_max_width.
std::string DescriptionText(const JobDescription& description, absl::Time now, size_t max_width);

// The job as JobsJson has it. Its ranks have the fields of HeapsJson, too, and the process's
// command; "allocations" and "events" are lists.
nlohmann::ordered_json DescriptionJson(const JobDescription& description);

}  // namespace iris::ctl
