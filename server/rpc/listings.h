// Listings, which docs/protocol.md describes. The cost of a page depends on the page, of at most
// wire::kMaxListBytes, and not on how much irisd has. Each function except ListWaits holds the
// daemon's mutex once, and reads commands of sessions from /proc after that. Thread-safe.
#pragma once

#include "absl/status/status.h"
#include "proto/iris/v1/admin.pb.h"
#include "server/host/daemon.h"
#include "server/job/job_machine.h"

namespace iris::server {

// Returns true for root and irisd's own user. Others see only what belongs to their own party.
bool SeesAll(const Party& party);

// Selects the jobs that the caller may see; if `name` is not empty, only those of that name.
JobQuery QueryOf(const CallerInfo& caller, const std::string& name);

// Returns the error for a job that does not exist, or that the caller may not see.
absl::Status NoSuchJob(const CallerInfo& caller, const std::string& name);

// Fill one page each, in a reply that is empty. Return kInvalidArgument if the token belongs to
// another listing. Return kNotFound for the first page of a job that does not exist, or that the
// caller may not see.
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
// Also passes jobs of one node, and all nodes of a job that it lists.
absl::Status ListNodes(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListNodesRequest& request, v1::ListNodesReply* reply);
// Fills a page with jobs as they were at one moment.
absl::Status DescribeJobs(const Daemon& daemon, const CallerInfo& caller,
                          const v1::DescribeJobsRequest& request, v1::DescribeJobsReply* reply);
// Locks the daemon once per job. Without the lock it copies control pages, and reads /proc and (if
// the host can) words of heaps.
absl::Status ListWaits(const Daemon& daemon, const CallerInfo& caller,
                       const v1::ListWaitsRequest& request, v1::ListWaitsReply* reply);

}  // namespace iris::server
