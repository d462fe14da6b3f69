// HeapService: the calls of a session. Thread-safe. Borrows the daemon and the calls.
#pragma once

#include <memory>

#include "server/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/calls.h"

namespace iris::server {

class HeapService {
 public:
  HeapService(Daemon* daemon, Calls* calls) : daemon_(daemon), calls_(calls) {}

  // As Services::Serve.
  std::shared_ptr<ActiveCall> Join(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Mapped(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Operate(const IncomingCall& call);
  std::shared_ptr<ActiveCall> GrowMapped(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Leave(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Resume(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Watch(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Borrow(const IncomingCall& call);
  std::shared_ptr<ActiveCall> AwaitBarrier(const IncomingCall& call);

 private:
  Daemon* const daemon_;
  Calls* const calls_;
};

}  // namespace iris::server
