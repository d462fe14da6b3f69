// Listings: the pages of ListDevices, ListJobs, ListHeaps, ListAllocations, ListSessions, ListWaits
// and DescribeJobs, as docs/protocol.md describes them. A page costs what it has in it, at most
// wire::kMaxListBytes, and never what irisd has.
//
// Pure but for the daemon that they look at, whose mutex each but ListWaits holds once, and for the
// command lines of sessions, which are read from /proc after that. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/iris/v1/admin.pb.h"
#include "server/daemon.h"
#include "server/job/job_machine.h"

namespace iris::server {

// Root and irisd's own user see everybody's; all others what is theirs.
bool SeesAll(const Party& party);

// What the machine is asked for: what the caller may see, of the job of that name if one is given.
JobQuery QueryOf(const CallerInfo& caller, const std::string& name);

// The error of a job that is not there, or that the caller may not see.
absl::Status NoSuchJob(const CallerInfo& caller, const std::string& name);

// The jobs that the caller may see, of that name if one is given. kNotFound if one is given and
// there is none.
absl::StatusOr<std::vector<JobSnapshot>> VisibleJobs(const Daemon& daemon, const CallerInfo& caller,
                                                     const std::string& name);

// One page each; the reply is empty at the start. kInvalidArgument: the token is none of this
// listing. kNotFound: a first page, of a job that is not there or that the caller may not see.
absl::Status ListDevices(const Daemon& daemon, const v1::ListDevicesRequest& request,
                         v1::ListDevicesReply* reply);
absl::Status ListJobs(const Daemon& daemon, const CallerInfo& caller,
                      const v1::ListJobsRequest& request, v1::ListJobsReply* reply);
absl::Status ListHeaps(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListHeapsRequest& request, v1::ListHeapsReply* reply);
absl::Status ListAllocations(const Daemon& daemon, const CallerInfo& caller,
                             const v1::ListAllocationsRequest& request,
                             v1::ListAllocationsReply* reply);
absl::Status ListSessions(const Daemon& daemon, const CallerInfo& caller,
                          const v1::ListSessionsRequest& request, v1::ListSessionsReply* reply);
// Each page holds jobs as they were at one moment.
absl::Status DescribeJobs(const Daemon& daemon, const CallerInfo& caller,
                          const v1::DescribeJobsRequest& request, v1::DescribeJobsReply* reply);
// Also copies the control pages of the jobs that it looks at, and reads /proc and, where the host
// can, words of heaps; that without the daemon's mutex, which it holds once for each of those jobs.
absl::Status ListWaits(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListWaitsRequest& request, v1::ListWaitsReply* reply);

}  // namespace iris::server
