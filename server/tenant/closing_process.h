// ClosingProcess: a process that closes connections for irisd, and that may hang over it. What has
// been handed over is no descriptor of irisd's any more.
//
// It is started when there is something to close, and ends by itself when there was nothing for a
// while. Where it takes nothing any more, because it hangs, it is killed, and another one started.
// A process that is killed does not linger over connections, and what was on its way to it was
// never in its table of descriptors, so that no file system is asked.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller.
#pragma once

#include <cstddef>
#include <utility>

#include "server/session/poller.h"
#include "server/tenant/helper_processes.h"

namespace iris::server {

class ClosingProcess {
 public:
  static constexpr size_t kMaxProcesses = HelperProcesses::kMaxProcesses;

  // `start` starts one, which takes descriptors from its link, one with each byte.
  using Setup = HelperProcesses::Setup;
  ClosingProcess(Poller* poller, Setup setup)
      : processes_(poller, std::move(setup), "closes connections") {}

  // Has the socket closed there, too; the caller still closes its own. False: not now.
  bool HandOver(int socket);

  // For tests: those that have not ended.
  size_t n_processes() const { return processes_.n_processes(); }

 private:
  HelperProcesses processes_;
};

}  // namespace iris::server
