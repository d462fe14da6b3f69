// OperationSequence: this rank's operations on one team, numbered k = 0, 1, 2, ... as every member
// numbers them.
//
// A k is used up exactly when an outcome of it has come back, whatever the outcome says. A call
// that irisd refuses uses up nothing. A call whose answer never came keeps its k: it is asked
// again, word for word, before anything else of the team.
//
// Thread-safe: calls take turns. Borrows the control plane and the heap's size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/membership/heap_size.h"
#include "client/session/control_plane.h"
#include "client/team/only_thread.h"
#include "client/team/turn.h"
#include "client/wire/operation.h"

namespace iris::internal {

class OperationSequence {
 public:
  // `threads` says who has used the context; null: perhaps several threads.
  OperationSequence(ControlPlane* plane, HeapSize* heap, uint64_t job_id, uint32_t team_id,
                    const OnlyThread* threads = nullptr)
      : plane_(plane), heap_(heap), job_id_(job_id), team_id_(team_id), threads_(threads) {}

  // Asks irisd for the team's next operation and waits for its outcome. An error is the outcome's,
  // or irisd's refusal of the call, or says that irisd was not reached or did not answer in time.
  absl::StatusOr<OperationResult> Run(Operation op, absl::Duration timeout);
  // The same for two that belong together: `then` does what is between them, and says which the
  // second one is. No other call on the team comes between. Not called if the first one fails. The
  // result is the first one's, of which the second one says only whether it stands: `undo` takes
  // back what `then` did if it does not, before another call on the team begins.
  absl::StatusOr<OperationResult> RunBoth(Operation first, absl::Duration timeout,
                                          absl::FunctionRef<Operation(const OperationResult&)> then,
                                          absl::FunctionRef<void(const OperationResult&)> undo);

 private:
  // A call that irisd may have taken and whose outcome is not known here. `value` is what its
  // broadcast borrows.
  struct Unanswered {
    OperationCall call;
    std::string value;
  };

  // As Run, by who has the turn.
  absl::StatusOr<OperationResult> RunNext(Operation op, absl::Duration timeout,
                                          absl::Time reach_deadline);
  // Sends the call, and notes what came of it.
  absl::StatusOr<Outcome> Ask(const OperationCall& call, absl::Time reach_deadline);
  void Keep(const OperationCall& call);

  ControlPlane* const plane_;
  HeapSize* const heap_;
  const uint64_t job_id_;
  const uint32_t team_id_;
  const OnlyThread* const threads_;

  Turns turns_;
  // Used by who has the turn.
  uint64_t next_k_ = 0;
  std::optional<Unanswered> unanswered_;  // with next_k_
};

}  // namespace iris::internal
