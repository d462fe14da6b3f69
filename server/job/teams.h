// Teams: the sequence of operations of each team, and the host barriers in which ranks wait. Each
// (team, k) has exactly one outcome, the same for every rank, kept for retries.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/operations/operation.h"
#include "server/job/segments.h"

namespace iris::server {

// Functions of any operation: each calls that of the operation itself, or has the default
// (operation_spec.h).
std::string What(const Operation& op, const Team& team);  // "allocate #3 (team 0): "
std::string Describe(const Operation& op);
absl::Status Check(const Operation& op, const Team& team);
uint64_t HeldBytes(const Operation& op);

// A rank that makes no other call before its present one has ended: a single thread has used its
// context, and waits in a call that needs other ranks.
struct Blocked {
  Rank rank = 0;
  std::vector<Rank> needs;  // ranks that have not come to its call; all of them must
};

// Returns the ranks among `blocked` that wait for each other without end, in order. Each rank
// appears there once. Pure.
//
// The rule never fails a rank that may still come: a blocked rank is stuck if a rank that it needs
// is stuck. A rank that needs only ranks that compute, have several threads, or are in calls that
// can end, may be served by them.
std::vector<Rank> FindStuck(const std::vector<Blocked>& blocked);

struct Teams : Segments {
  using Segments::Segments;
  virtual ~Teams() = default;

  // team_calls.cc defines these.
  void On(const OperateCall& in);
  void OperationTimedOut(Job& job, Team& team);
  // Called when all ranks have asked, or when the growth that the operation needed is published.
  void Execute(Job& job, Team& team);
  void Conclude(Job& job, Team& team, absl::Status status, OperationResult result = {});
  // Concludes every operation of the job that can no longer succeed, and answers the questions
  // about barriers that cannot.
  void ConcludeDeadTeams(Job& job);
  // Starts the growth that the team's operation needs (Growths).
  virtual void RequestGrowth(Job& job, Team& team, const NeedsGrowth& needs) = 0;

  // awaited_barriers.cc defines these.
  void On(const AwaitBarrierCall& in);
  // Answers the calls of a session that no longer speaks for the rank.
  void RefuseBarriers(Job& job, Rank rank, const absl::Status& why);

 private:
  void Ask(Job& job, Team& team, size_t index, CallId call, const OperationSpec& spec);
  void WaitFor(Job& job, Team& team, size_t index, CallId call);
  void ReplyWith(const Team& team, size_t index, CallId call, const Outcome& outcome);

  void AnswerBarrier(Job& job, Rank rank, CallId call, BarrierAnswer answer);
  // Called after the loss of a rank. The status page says what happened to these barriers, and the
  // answer says that no earlier one is on its way (client/team/host_barrier.h).
  void AnswerBarriersOfDeadTeams(Job& job);
  // Describes the calls in which the ranks are, as far as irisd knows; for errors.
  static std::string WhereAre(const Job& job, const std::vector<Rank>& ranks);
  // Fails calls that wait for each other without end.
  void LookForStuck(Job& job);

  // registered.cc defines these.
  // Carries out the result of a register operation, and concludes it.
  void Adopt(Job& job, Team& team, Adopts adopts);
  // Keeps the descriptors that came with the present call. They have no place in the heap yet.
  absl::StatusOr<GivenMemory> TakePieces(Job& job, Rank rank, const RegisterOp& op);
  // Takes the pieces of a register that several ranks make together. Other operations have none.
  absl::Status TakeGiven(Job& job, Team& team, size_t index, const Operation& op);
  std::vector<Given> GivenBy(const Team& team) const;
  // Frees memory that must not outlast an operation that fails.
  void FreeFailed(Job& job, Team& team, const Operation& op);
};

}  // namespace iris::server
