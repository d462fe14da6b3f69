#include "client/team/operation_sequence.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"

namespace iris::internal {
namespace {

absl::Status AnotherCall() {
  return absl::DeadlineExceededError("another thread's call on the same team did not end in time");
}

}  // namespace

absl::StatusOr<OperationResult> OperationSequence::Run(Operation op, absl::Duration timeout) {
  const absl::Time reach_deadline = DeadlineIn(timeout);
  TimedLock lock(&mutex_, reach_deadline);
  if (!lock.held()) return AnotherCall();
  return RunNext(std::move(op), timeout, reach_deadline);
}

absl::StatusOr<OperationResult> OperationSequence::RunBoth(
    Operation first, absl::Duration timeout,
    absl::FunctionRef<Operation(const OperationResult&)> then,
    absl::FunctionRef<void(const OperationResult&)> undo) {
  const absl::Time reach_deadline = DeadlineIn(timeout);
  TimedLock lock(&mutex_, reach_deadline);
  if (!lock.held()) return AnotherCall();
  absl::StatusOr<OperationResult> result = RunNext(std::move(first), timeout, reach_deadline);
  if (!result.ok()) return result;
  const absl::StatusOr<OperationResult> second =
      RunNext(then(*result), timeout, DeadlineIn(timeout));
  if (second.ok()) return result;
  undo(*result);
  return second.status();
}

absl::StatusOr<OperationResult> OperationSequence::RunNext(Operation op, absl::Duration timeout,
                                                           absl::Time reach_deadline) {
  const bool only_thread = threads_ != nullptr && threads_->alone();
  if (unanswered_.has_value()) {
    unanswered_->call.only_thread = only_thread;
    // Other ranks may have the outcome of the unanswered call already, so it is repeated first.
    const absl::StatusOr<Outcome> earlier = Ask(unanswered_->call, reach_deadline);
    if (!earlier.ok()) {
      return Annotate(earlier.status(), "the outcome of an earlier call is still unknown");
    }
  }
  absl::StatusOr<Outcome> outcome =
      Ask({job_id_, team_id_, next_k_, timeout, std::move(op), only_thread}, reach_deadline);
  if (absl::IsInvalidArgument(outcome.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("irisd refuses the request, so it may be older than this library: update it: ",
                     outcome.status().message()));
  }
  if (!outcome.ok()) return outcome.status();
  if (!outcome->status.ok()) return outcome->status;
  return std::move(outcome->result);
}

absl::StatusOr<Outcome> OperationSequence::Ask(const OperationCall& call,
                                               absl::Time reach_deadline) {
  bool unanswered = unanswered_.has_value();
  absl::StatusOr<Outcome> outcome =
      plane_->Operate(call, reach_deadline, reach_deadline + kAnswerSlack, &unanswered);
  if (outcome.ok() && outcome->k != call.k) {
    unanswered = true;
    outcome = absl::InternalError(absl::StrCat("irisd answered operation #", call.k, " of team ",
                                               team_id_, " with the outcome of #", outcome->k));
  }
  if (outcome.ok()) {
    ++next_k_;
    if (outcome->status.ok()) heap_->AtLeast(outcome->result.heap_bytes);
    unanswered_.reset();  // last: `call` may lie in it
  } else if (unanswered && !unanswered_.has_value()) {
    unanswered_.emplace();
    unanswered_->call = call;
    if (auto* broadcast = std::get_if<BroadcastOp>(&unanswered_->call.op)) {
      unanswered_->value = std::string(broadcast->value);
      broadcast->value = unanswered_->value;
    }
  }
  return outcome;
}

}  // namespace iris::internal
