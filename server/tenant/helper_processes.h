// HelperProcesses: processes of one kind, each of which does for irisd what the kernel may take as
// long over as clients like. One of them works; where it hangs, it is killed and followed by
// another. If the kernel does not let one end, nobody waits for it, and there are at most
// kMaxProcesses that have not ended.
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
#include "server/tenant/running_worker.h"

namespace iris::server {

class HelperProcesses {
 public:
  static constexpr size_t kMaxProcesses = 8;

  struct Setup {
    // Starts one.
    std::function<absl::StatusOr<std::unique_ptr<RunningWorker>>()> start;
    // One hung and was killed, or none could be started: so many times since irisd has started.
    std::function<void(uint64_t times, const absl::Status& why)> trouble;
  };
  // `work`: what they do, for messages ("closes connections").
  HelperProcesses(Poller* poller, Setup setup, std::string work)
      : poller_(poller), setup_(std::move(setup)), work_(std::move(work)) {}
  // Kills those that run.
  ~HelperProcesses() = default;
  HelperProcesses(const HelperProcesses&) = delete;
  HelperProcesses& operator=(const HelperProcesses&) = delete;

  // Starts one if none works, and sets *link to its link, which stays its own; *made if it was
  // started now. An error is told as trouble.
  absl::Status Work(int* link, bool* made = nullptr);
  // The one that works is to take nothing more: it has ended, or hangs, which is trouble.
  void Drop(bool hangs);

  // Those that have not ended.
  size_t n_processes() const { return processes_.size(); }

 private:
  struct Process {
    std::unique_ptr<RunningWorker> running;
    Poller::Watched exit;  // a duplicate of its pidfd
    wire::UniqueFd link;   // until it takes nothing any more
  };

  absl::Status Start();
  void OnExit(Process* process);
  void Trouble(const absl::Status& why);

  Poller* const poller_;
  const Setup setup_;
  const std::string work_;
  std::list<Process> processes_;
  Process* current_ = nullptr;  // that works
  uint64_t n_troubles_ = 0;
};

}  // namespace iris::server
