// Shared parts of the calls of a communicator.
#pragma once

#include <atomic>

#include "client/abi/objects.h"

namespace iris::abi {

// One call at a time on a communicator.
class Turn {
 public:
  explicit Turn(CommObject& object) : object_(object) {
    mine_ = !object.busy.exchange(true, std::memory_order_acquire);
  }
  ~Turn() {
    if (mine_) object_.busy.store(false, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  absl::Status status() const {
    if (mine_) return object_.state->host->Usable();
    return absl::FailedPreconditionError(
        "another thread is in a call of this communicator: make one call at a time, or a "
        "communicator for each thread");
  }

 private:
  CommObject& object_;
  bool mine_ = false;
};

template <typename Body>
iris_code OnComm(iris_comm* comm, Body body) noexcept {
  return With<CommObject>(comm, [&](CommObject& object) -> absl::Status {
    const Turn turn(object);
    IRIS_ABI_TRY(turn.status());
    return body(*object.comm);
  });
}

}  // namespace iris::abi
