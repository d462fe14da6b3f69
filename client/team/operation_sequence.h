// OperationSequence: this rank's operations on one team, numbered k = 0, 1, 2, ... as every member
// numbers them.
//
// A k is consumed exactly when its outcome, a failure included, has come back. A call that irisd
// refuses consumes nothing. A call whose answer never came keeps its k: the same call is repeated
// before any other call of the team.
//
// Thread-safe: calls come one after the other. Borrows the control plane and the heap's size.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/membership/heap_size.h"
#include "client/session/control_plane.h"
#include "client/team/timed_lock.h"
#include "client/wire/operation.h"

namespace iris::internal {

// OnlyThread: knows if only one thread has used a context. irisd judges the calls of such a rank
// (docs/protocol.md, "Calls that wait for each other"). Thread-safe.
class OnlyThread {
 public:
  // The constructor runs on the thread that makes the context, which counts as the first one.
  OnlyThread() : first_(Self()) {}

  // Notes that the calling thread uses the context.
  void Use() {
    if (Self() != first_) many_.store(true, std::memory_order_relaxed);
  }
  // Returns false if another thread has used it too.
  bool alone() const { return !many_.load(std::memory_order_relaxed); }

 private:
  static const void* Self() {
    static thread_local char self = 0;
    return &self;
  }

  const void* const first_;
  std::atomic<bool> many_{false};
};

class OperationSequence {
 public:
  // `threads` knows which threads have used the context. If it is null, several may have.
  OperationSequence(ControlPlane* plane, HeapSize* heap, uint64_t job_id, uint32_t team_id,
                    const OnlyThread* threads = nullptr)
      : plane_(plane), heap_(heap), job_id_(job_id), team_id_(team_id), threads_(threads) {}

  // Requests the team's next operation and waits for its outcome. An error is the outcome's, or
  // irisd's refusal of the call, or says that irisd was not reached or did not answer in time.
  absl::StatusOr<OperationResult> Run(Operation op, absl::Duration timeout);
  // Runs two operations with no other call on the team between them. `then`, which runs if the
  // first one succeeds, gives the second one. The result is that of the first one. If the second
  // one fails, `undo` takes back the effects of `then`, before another call on the team begins.
  absl::StatusOr<OperationResult> RunBoth(Operation first, absl::Duration timeout,
                                          absl::FunctionRef<Operation(const OperationResult&)> then,
                                          absl::FunctionRef<void(const OperationResult&)> undo);

 private:
  // A call that irisd may have taken and whose outcome is not known here. Its broadcast borrows
  // `value`.
  struct Unanswered {
    OperationCall call;
    std::string value;
  };

  // Does the work of Run for the thread that holds the lock.
  absl::StatusOr<OperationResult> RunNext(Operation op, absl::Duration timeout,
                                          absl::Time reach_deadline);
  // Sends the call, and records its outcome, or that it is unanswered.
  absl::StatusOr<Outcome> Ask(const OperationCall& call, absl::Time reach_deadline);

  ControlPlane* const plane_;
  HeapSize* const heap_;
  const uint64_t job_id_;
  const uint32_t team_id_;
  const OnlyThread* const threads_;

  TimedMutex mutex_;
  // Used by the thread that holds the lock.
  uint64_t next_k_ = 0;
  std::optional<Unanswered> unanswered_;  // with next_k_
};

}  // namespace iris::internal
