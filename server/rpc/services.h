// Services: every method that a worker can relay, by its number. Thread-safe. Borrows the daemon.
//
// Calls of the heap service are handled by the thread that relays, in microseconds. Those of the
// admin service that are answered once have threads of their own: they read memory of devices and
// files of other processes, which may take long.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "server/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/calls.h"
#include "server/rpc/heap_service.h"
#include "server/worker_pool.h"

namespace iris::server {

class Services {
 public:
  Services(Daemon* daemon, DaemonFacts facts)
      : calls_(daemon), heap_(daemon, &calls_), admin_(daemon, &calls_, std::move(facts)) {}

  // Answers the call, now or later. Null if it has been answered, or cannot be cancelled.
  std::shared_ptr<ActiveCall> Serve(const IncomingCall& call);

  // Waits until no call is under way: every answer is on its way to its worker. False: the timeout
  // came first.
  bool Drain(absl::Duration timeout) { return calls_.Drain(timeout); }

  // Finishes what was asked and ends the threads, while the daemon is still there. Idempotent.
  void Stop() { readers_.Stop(); }

 private:
  std::shared_ptr<ActiveCall> Dispatch(const IncomingCall& call);

  Calls calls_;
  HeapService heap_;
  AdminService admin_;
  WorkerPool readers_{2};  // threads for the admin service
};

}  // namespace iris::server
