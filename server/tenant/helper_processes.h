// HelperProcesses: processes of one kind that do work for irisd which clients can block in the
// kernel for as long as they like. One of them works. It is started when there is work, and ends by
// itself after a while without work. A process that hangs is killed and replaced. irisd does not
// wait for processes that the kernel does not let end; at most kMaxProcesses have not ended.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/session/poller.h"
#include "server/tenant/worker_program.h"

namespace iris::server {

// Runs `on_exit` each time that the poller reports the end of the process.
absl::StatusOr<Poller::Watched> WatchExit(Poller* poller, const RunningWorker& process,
                                          std::function<void()> on_exit);

class HelperProcesses {
 public:
  static constexpr size_t kMaxProcesses = 8;

  struct Setup {
    std::function<absl::StatusOr<std::unique_ptr<RunningWorker>>()> start;
    // Called when a process hung and was killed, or when none could be started. `times` counts such
    // calls since irisd's start.
    std::function<void(uint64_t times, const absl::Status& why)> trouble;
  };
  // `work` is what a process does, for messages ("closes connections").
  HelperProcesses(Poller* poller, Setup setup, std::string work)
      : poller_(poller), setup_(std::move(setup)), work_(std::move(work)) {}
  HelperProcesses(const HelperProcesses&) = delete;
  HelperProcesses& operator=(const HelperProcesses&) = delete;

  // Starts a helper if none is usable. Sets `*link` to its link, which it keeps, and `*made` to
  // whether it was started now. Reports an error to `trouble`.
  absl::Status Work(int* link, bool* made = nullptr);
  // Stops using the current helper. It has ended or, if `hangs`, does not answer, which is reported
  // to `trouble`.
  void Drop(bool hangs);

  // Has a helper close the socket, which the caller also closes. The helper receives a descriptor
  // with each byte of its link, so a close that hangs does so before the next descriptor. A killed
  // helper does not linger over connections, and descriptors still in its link were never in its
  // table, so no file system is asked. Returns false if the handover fails now.
  bool HandOver(int socket);

  // Returns the number of processes that have not ended. For tests.
  size_t n_processes() const { return processes_.size(); }

 private:
  struct Process {
    std::unique_ptr<RunningWorker> running;
    Poller::Watched exit;  // a duplicate of its pidfd
    wire::UniqueFd link;   // valid until the process takes nothing any more
  };

  absl::Status Start();
  void OnExit(Process* process);
  void Trouble(const absl::Status& why);

  Poller* const poller_;
  const Setup setup_;
  const std::string work_;
  std::list<Process> processes_;
  Process* current_ = nullptr;  // the one that works
  uint64_t n_troubles_ = 0;
};

}  // namespace iris::server
