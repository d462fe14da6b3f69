// Services: every method that a worker can relay, by its number. Thread-safe. Borrows the daemon.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "server/daemon.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/calls.h"
#include "server/rpc/heap_service.h"
#include "server/rpc/incoming_call.h"

namespace iris::server {

class Services {
 public:
  Services(Daemon* daemon, DaemonFacts facts)
      : calls_(daemon), heap_(daemon, &calls_), admin_(daemon, &calls_, std::move(facts)) {}

  // Answers the call, now or later. Null if it has been answered.
  std::shared_ptr<ActiveCall> Serve(const IncomingCall& call);

  // Waits until no call is under way: every answer is on its way to its worker. False: the timeout
  // came first.
  bool Drain(absl::Duration timeout) { return calls_.Drain(timeout); }

 private:
  Calls calls_;
  HeapService heap_;
  AdminService admin_;
};

}  // namespace iris::server
