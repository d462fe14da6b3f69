// iris-ctl describe: all that irisd tells of one job, together. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/ctl/views.h"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

// A job at one moment, and what had happened to it by then.
struct JobDescription {
  v1::JobDescription at;
  std::vector<v1::Event> events;  // the oldest first
};

// Picks for each job its own of `events`: those of its name that are not older than the job, nor
// later than the moment of its description. Several users may have a job of that name.
std::vector<JobDescription> Describe(const v1::DescribeJobsReply& reply,
                                     const std::vector<v1::Event>& events);

// So many of the last events are in the text; all are in JSON.
inline constexpr size_t kDescribedEvents = 20;

// `max_width`: see Table::set_max_width.
std::string DescriptionText(const JobDescription& description, absl::Time now, size_t max_width);

// The job with the fields of its heap and the process's command in each rank; "allocations" and
// "events" are lists.
Json DescriptionJson(const JobDescription& description);

}  // namespace iris::ctl
