// Teams: the sequence of operations of each team, and the host barriers in which ranks wait. Each
// (team, k) has exactly one outcome, which is the same for every rank and is kept for retries.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/operations/operation.h"
#include "server/job/segments.h"

namespace iris::server {

// Functions of any operation: each calls the operation's own function, or uses the default
// (operation_spec.h).
std::string What(const Operation& op, const Team& team);  // "allocate #3 (team 0): "
std::string Describe(const Operation& op);
absl::Status Check(const Operation& op, const Team& team);
uint64_t HeldBytes(const Operation& op);

// A rank that makes no other call before its present one ends: a single thread has used its
// context, and waits in a call that needs other ranks.
struct Blocked {
  Rank rank = 0;
  std::vector<Rank> needs;  // ranks that have yet to make the same call; it needs all of them
};

// Returns the ranks among `blocked` that wait for each other without end, in order and once each.
// Pure.
//
// The rule never fails a rank whose call may still end: a blocked rank is stuck if a rank that it
// needs is stuck. A rank is not stuck if all ranks that it needs are computing, have several
// threads, or are in calls that can end.
std::vector<Rank> FindStuck(const std::vector<Blocked>& blocked);

struct Teams : Segments {
  using Segments::Segments;
  virtual ~Teams() = default;

  // team_calls.cc defines the following functions.
  void On(const OperateCall& in);
  void OperationTimedOut(Job& job, Team& team);
  // Asks on behalf of a rank, whose next operation this is. `call` is zero for a rank of another
  // node.
  void Ask(Job& job, Team& team, size_t index, CallId call, const OperationSpec& spec);
  // Carries out the leader's decision. Returns an error if the outcome is another one here.
  absl::Status Follow(Job& job, const OperationDecided& decided);
  // Called when all ranks have asked, or when the growth that the operation needed is published.
  void Execute(Job& job, Team& team);
  void Conclude(Job& job, Team& team, absl::Status status, OperationResult result = {});
  // Concludes every operation of the job that can no longer succeed, and answers the calls about
  // barriers that can no longer end.
  void ConcludeDeadTeams(Job& job);
  // Starts the growth that the team's operation needs (Growths).
  virtual void RequestGrowth(Job& job, Team& team, const NeedsGrowth& needs) = 0;

  // awaited_barriers.cc defines the following functions.
  void On(const AwaitBarrierCall& in);
  // Answers the calls of a session that no longer speaks for the rank.
  void RefuseBarriers(Job& job, Rank rank, const absl::Status& why);

 private:
  // An operation that rank `first`, an index in the team, is the first to ask for.
  PendingOp NewPending(const Team& team, Operation op, size_t first) const;
  void WaitFor(Job& job, Team& team, size_t index, CallId call);
  void ReplyWith(const Team& team, size_t index, CallId call, const Outcome& outcome);

  void AnswerBarrier(Job& job, Rank rank, CallId call, BarrierAnswer answer);
  // Called after the loss of a rank. The answer means that the status page has the state of these
  // barriers, and that no earlier answer is on its way (client/team/host_barrier.h).
  void AnswerBarriersOfDeadTeams(Job& job);
  // Describes, for error messages, the calls that the ranks are in, if irisd knows.
  static std::string WhereAre(const Job& job, const std::vector<Rank>& ranks);
  // Finds calls that wait for each other without end, and fails them.
  void LookForStuck(Job& job);

  // operations/memory_of_ranks.cc defines the following functions.
  // Carries out the result of a register operation, and concludes it.
  void Adopt(Job& job, Team& team, Adopts adopts);
  // Keeps the descriptors that came with the present call, if it is of a rank of this node. They
  // have no range of the heap yet.
  absl::StatusOr<GivenMemory> TakePieces(Job& job, Rank rank, const RegisterOp& op);
  // Takes the pieces of a register operation. Other operations have none.
  absl::Status TakeGiven(Job& job, Team& team, size_t index, const Operation& op);
  // The same on a node that follows. The leader hears an error with the operation.
  void TakeForLeader(Job& job, Team& team, size_t index, Operation* op);
  // Returns an error unless what ranks of this node have given fits what the leader has decided.
  static absl::Status CheckGiven(const Job& job, const Team& team, const Operation& op);
  static std::vector<Given> GivenBy(const Job& job, const Team& team);
  // Frees memory that must not outlast a failed operation.
  void FreeFailed(Job& job, Team& team, const Operation& op);
};

}  // namespace iris::server
