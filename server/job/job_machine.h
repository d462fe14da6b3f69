// JobMachine: decides which process is which rank of which job, and the outcome of every operation
// of a team. It is all of irisd's membership logic, without sockets, memory, threads or clock:
// every input returns the effects that the daemon must carry out, in order. The same inputs at the
// same times have the same effects. docs/architecture.md describes the life of a job.
//
// Not thread-safe: the daemon holds one mutex around it. Owns the Ledger. Inputs never block and
// never fail: a refusal is a Reply effect with a status. Input is hostile until the machine has
// checked it (sizes, names, ranks, sequence numbers).
//
// A rank that leaves breaks no job, but operations of its teams fail with kAborted. If the last
// rank of a job hangs up, the job does not break: no peer was notified, so the rank may Resume.
// SessionHungUp refuses calls and reports to peers; only ProcessGone, by the pidfd, or Leave frees
// the rank. A job's segments are dropped when the job ends; its name is free again at once.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/heap/ledger.h"
#include "server/job/effects.h"
#include "server/job/inputs.h"
#include "server/job/snapshots.h"
#include "server/job/tracked.h"

namespace iris::server {

class JobMachine {
 public:
  // `ledger` has the devices, and nothing is booked in it.
  JobMachine(const JobLimits& limits, Ledger ledger, UnusablePairs unusable = {});
  ~JobMachine();
  JobMachine(const JobMachine&) = delete;
  JobMachine& operator=(const JobMachine&) = delete;

  // Handles one input. `now.steady` never decreases.
  Effects Apply(const Input& input, Time now);

  // Returns when the next Tick is due, or InfiniteFuture if none is.
  absl::Time NextDeadline() const;

  const Ledger& ledger() const;
  std::vector<JobSnapshot> Jobs(const JobQuery& query = {}) const;
  AccountSnapshot AccountOf(const Party& account) const;
  const JobLimits& limits() const;
  size_t n_jobs() const;
  size_t n_sessions() const;
  // Returns the bytes of memory that was given back, but stays on the accounts of users whose
  // processes may have it mapped.
  uint64_t kept_bytes() const;
  std::vector<SessionSnapshot> Sessions() const;
  std::vector<Segment> Segments() const;  // in order of id

  // Each function visits the entries that follow `after`, in order, until `visit` returns false.
  // The cost depends only on the number of visits; a query of one party does not look at jobs and
  // sessions of other parties.
  using VisitJob = absl::FunctionRef<bool(const JobSnapshot&)>;
  // JobSnapshots have neither allocations nor their ranks' segments. Those that VisitRank,
  // VisitAllocation and VisitNode get have no ranks, either.
  using VisitRank = absl::FunctionRef<bool(const JobSnapshot&, const RankSnapshot&)>;
  using VisitAllocation = absl::FunctionRef<bool(const JobSnapshot&, const AllocationSnapshot&)>;
  using VisitNode = absl::FunctionRef<bool(const JobSnapshot&, const NodeSnapshot&)>;
  using VisitSession = absl::FunctionRef<bool(const SessionSnapshot&)>;
  // The job with the id of `after` is visited again. Ranks have their segments.
  using VisitWait = absl::FunctionRef<bool(const JobSnapshot&, const WaitsSnapshot&)>;
  void VisitJobs(const JobQuery& query, ListPosition after, VisitJob visit) const;
  void VisitWaits(const JobQuery& query, ListPosition after, VisitWait visit) const;
  void VisitRanks(const JobQuery& query, ListPosition after, VisitRank visit) const;
  void VisitAllocations(const JobQuery& query, ListPosition after, VisitAllocation visit) const;
  // Visits the nodes of jobs that span several, and ranks whose node is not known yet.
  void VisitNodes(const JobQuery& query, ListPosition after, VisitNode visit) const;
  void VisitSessions(const std::optional<Party>& party, ListPosition after,
                     VisitSession visit) const;

  // For tests and debug builds: checks every internal invariant. The message names the first one
  // that does not hold.
  absl::Status CheckInvariants() const;

  struct Impl;

 private:
  friend class MachineState;  // writes and reads all fields (server/state)
  Box<Impl> impl_;
};

}  // namespace iris::server
