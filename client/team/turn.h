// Turn: calls that go one after the other, each with a deadline for its turn to come.
//
//   Turn turn(&turns, deadline);
//   if (!turn.taken()) return ...;  // somebody else had it all the time
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/base/clock.h"

namespace iris::internal {

// Who has the turn. Thread-safe.
class Turns {
 public:
  // Waits until it is free. False: the deadline came first.
  bool Take(absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    const auto is_free = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !busy_; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_free), deadline - Now())) return false;
    busy_ = true;
    return true;
  }
  void GiveBack() {
    absl::MutexLock lock(&mu_);
    busy_ = false;
  }

 private:
  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
};

// Holds it while it lives, if it was taken.
class Turn {
 public:
  Turn(Turns* turns, absl::Time deadline) : turns_(turns), taken_(turns->Take(deadline)) {}
  ~Turn() {
    if (taken_) turns_->GiveBack();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool taken() const { return taken_; }

 private:
  Turns* const turns_;
  const bool taken_;
};

}  // namespace iris::internal
