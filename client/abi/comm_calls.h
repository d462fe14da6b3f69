// Shared parts of the calls of a communicator.
#pragma once

#include <atomic>

#include "absl/cleanup/cleanup.h"
#include "client/abi/objects.h"

namespace iris::abi {

// Calls body() unless another call on the communicator is under way.
template <typename Body>
absl::Status InTurn(CommObject& object, Body body) {
  if (object.busy.exchange(true, std::memory_order_acquire)) {
    return absl::FailedPreconditionError(
        "another thread is in a call of this communicator: make one call at a time, or a "
        "communicator for each thread");
  }
  const absl::Cleanup end = [&object] { object.busy.store(false, std::memory_order_release); };
  IRIS_ABI_TRY(object.state->host->Usable());
  return body();
}

template <typename Body>
iris_code OnComm(iris_comm* comm, Body body) noexcept {
  return With<CommObject>(
      comm, [&](CommObject& object) { return InTurn(object, [&] { return body(*object.comm); }); });
}

// Calls body(communicator, stream), with both locked for this call.
template <typename Body>
iris_code Put(iris_comm* comm, iris_stream* stream, Body body) noexcept {
  return WithStream<CommObject>(comm, stream, [&](CommObject& object, StreamObject& on) {
    return InTurn(object, [&] { return body(*object.comm, *on); });
  });
}

}  // namespace iris::abi
