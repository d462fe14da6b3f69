// Listings, as docs/protocol.md describes them. The cost of a page depends on the page, at most
// wire::kMaxListBytes, and not on how much irisd has. Each except ListWaits holds the daemon's
// mutex once. Commands of sessions are read from /proc after that. Thread-safe.
#pragma once

#include "absl/status/status.h"
#include "proto/iris/v1/admin.pb.h"
#include "server/host/daemon.h"
#include "server/job/job_machine.h"

namespace iris::server {

// Root and irisd's own user see everything; others only their own party's.
bool SeesAll(const Party& party);

// Selects the jobs that the caller may see, of that name if one is given.
JobQuery QueryOf(const CallerInfo& caller, const std::string& name);

// The error of a job that is not there, or that the caller may not see.
absl::Status NoSuchJob(const CallerInfo& caller, const std::string& name);

// Fill in one page each; the reply is empty at the start. kInvalidArgument if the token is of
// another listing. kNotFound for a first page of a job that does not exist, or that the caller may
// not see.
absl::Status ListDevices(const Daemon& daemon, const CallerInfo& caller,
                         const v1::ListDevicesRequest& request, v1::ListDevicesReply* reply);
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
// Locks the daemon once per job. Copies control pages, reads /proc and (where the host can) words
// of heaps without the lock.
absl::Status ListWaits(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListWaitsRequest& request, v1::ListWaitsReply* reply);

}  // namespace iris::server
