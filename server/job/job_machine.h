// JobMachine: decides which process is which rank of which job, and the outcome of every operation
// of a team. It is all of irisd's membership logic, without sockets, memory, threads or clock:
// every input returns the effects that the daemon must carry out, in order. The same inputs at the
// same times give the same effects. docs/architecture.md has the life of a job.
//
// Not thread-safe: the daemon holds one mutex around it. Owns the Ledger. Inputs never block and
// never fail: a refusal is a Reply effect with a status. Input is hostile until checked here
// (sizes, names, ranks, sequence numbers).
//
// A rank that leaves breaks nothing, but operations of its teams fail with kAborted. The last rank
// of a job breaks nothing by hanging up: no peer was notified, so it may Resume. SessionHungUp
// refuses calls and reports to peers; only ProcessGone, by the pidfd, or Leave frees the rank. A
// job's segments are dropped when it ends; its name is free again at once.
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
  // `ledger` has the devices, of which nothing is booked yet.
  JobMachine(const JobLimits& limits, Ledger ledger, UnusablePairs unusable = {});
  ~JobMachine();
  JobMachine(const JobMachine&) = delete;
  JobMachine& operator=(const JobMachine&) = delete;

  // Handles one input. `now.steady` never decreases.
  Effects Apply(const Input& input, Time now);

  // Returns when a Tick is due next; InfiniteFuture if never.
  absl::Time NextDeadline() const;

  const Ledger& ledger() const;
  std::vector<JobSnapshot> Jobs(const JobQuery& query = {}) const;
  AccountSnapshot AccountOf(const Party& account) const;
  const JobLimits& limits() const;
  size_t n_jobs() const;
  size_t n_sessions() const;
  // Counts memory that was given back, and stays on the accounts of users whose processes may have
  // it mapped.
  uint64_t kept_bytes() const;
  std::vector<SessionSnapshot> Sessions() const;
  std::vector<Segment> Segments() const;  // in order of id

  // Each lists the things that follow `after`, in order, until `visit` returns false. The cost
  // depends on the number of visits only; a query of one party does not look at jobs and sessions
  // of others.
  using VisitJob = absl::FunctionRef<bool(const JobSnapshot&)>;
  // Jobs come without allocations and without their ranks' segments. The two functions for ranks
  // and allocations get them without ranks, too.
  using VisitRank = absl::FunctionRef<bool(const JobSnapshot&, const RankSnapshot&)>;
  using VisitAllocation = absl::FunctionRef<bool(const JobSnapshot&, const AllocationSnapshot&)>;
  using VisitSession = absl::FunctionRef<bool(const SessionSnapshot&)>;
  // The job that has the id of `after` is visited again. Ranks have their segments.
  using VisitWait = absl::FunctionRef<bool(const JobSnapshot&, const WaitsSnapshot&)>;
  void VisitJobs(const JobQuery& query, ListPosition after, VisitJob visit) const;
  void VisitWaits(const JobQuery& query, ListPosition after, VisitWait visit) const;
  void VisitRanks(const JobQuery& query, ListPosition after, VisitRank visit) const;
  void VisitAllocations(const JobQuery& query, ListPosition after, VisitAllocation visit) const;
  void VisitSessions(const std::optional<Party>& party, ListPosition after,
                     VisitSession visit) const;

  // For tests and debug builds: checks every internal invariant. The message names the first one
  // that does not hold.
  absl::Status CheckInvariants() const;

  struct Impl;

 private:
  friend class MachineState;  // writes and reads all of it (server/state)
  Box<Impl> impl_;
};

}  // namespace iris::server
