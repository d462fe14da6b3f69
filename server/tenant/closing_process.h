// ClosingProcess: a process that closes connections for irisd, and that may hang over it. What has
// been handed over is no descriptor of irisd's any more.
//
// It is started when there is something to close, and ends by itself when there was nothing for a
// while. Where it takes nothing any more, because it hangs, it is killed, and another one started.
// A process that is killed does not linger over connections, and what was on its way to it was
// never in its table of descriptors, so that no file system is asked. If one hangs all the same,
// nobody waits for it; and there are at most kMaxProcesses that have not ended.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/session/poller.h"
#include "server/tenant/running_worker.h"

namespace iris::server {

class ClosingProcess {
 public:
  static constexpr size_t kMaxProcesses = 8;

  struct Setup {
    // Starts one, which takes descriptors from its link, one with each byte.
    std::function<absl::StatusOr<std::unique_ptr<RunningWorker>>()> start;
    // One hung and was killed, or none could be started: so many times since irisd has started.
    std::function<void(uint64_t times, const absl::Status& why)> trouble;
  };
  ClosingProcess(Poller* poller, Setup setup) : poller_(poller), setup_(std::move(setup)) {}
  // Kills those that run.
  ~ClosingProcess() = default;
  ClosingProcess(const ClosingProcess&) = delete;
  ClosingProcess& operator=(const ClosingProcess&) = delete;

  // Has the socket closed there, too; the caller still closes its own. False: not now.
  bool HandOver(int socket);

  // For tests: those that have not ended.
  size_t n_processes() const { return processes_.size(); }

 private:
  struct Process {
    std::unique_ptr<RunningWorker> running;
    Poller::Watched exit;  // a duplicate of its pidfd
    wire::UniqueFd link;   // until it takes nothing any more
  };
  enum class Sent { kYes, kHangs, kHasEnded, kNotNow };

  absl::Status Start();
  static Sent Send(int link, int socket);
  void OnExit(Process* process);
  void Trouble(const absl::Status& why);

  Poller* const poller_;
  const Setup setup_;
  std::list<Process> processes_;
  Process* current_ = nullptr;  // that takes connections
  uint64_t n_troubles_ = 0;
};

}  // namespace iris::server
