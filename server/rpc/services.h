// Services: every method that a worker can relay, by its number. To add one: its messages in
// proto/iris/v1, its number in server/link/methods.h, its row in services.cc. Thread-safe. Borrows
// the daemon.
//
// The thread that relays handles calls of the heap service, in microseconds. Calls that look at
// jobs have threads of their own: they read memory of devices and files of other processes, which
// may take long.
#pragma once

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "server/host/daemon.h"
#include "server/host/threads.h"
#include "server/link/incoming_call.h"
#include "server/rpc/admin_calls.h"
#include "server/rpc/calls.h"

namespace iris::server {

class Services {
 public:
  Services(Daemon* daemon, DaemonFacts facts)
      : daemon_(daemon), facts_(std::move(facts)), calls_(daemon) {}

  // Answers the call, now or later. Null if it has been answered, or cannot be cancelled.
  std::shared_ptr<ActiveCall> Serve(const IncomingCall& call);

  // Waits until every answer is on its way to its worker. Returns false on a timeout.
  bool Drain(absl::Duration timeout) { return calls_.counter()->WaitForNone(timeout); }

  // Finishes the calls that were read and ends the threads. Idempotent.
  void Stop() { readers_.Stop(); }

 private:
  std::shared_ptr<ActiveCall> Dispatch(const IncomingCall& call);

  Daemon* const daemon_;
  const DaemonFacts facts_;
  Calls calls_;
  WorkerPool readers_{2};  // for calls that look at jobs
};

}  // namespace iris::server
