// HelperProcesses: processes of one kind, which do for irisd what the kernel may take as long over
// as clients like. One of them works. It is started when there is work, and ends by itself when
// there was none for a while. One that hangs is killed, and another follows. irisd waits for none
// that the kernel does not let end; at most kMaxProcesses have not ended.
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

// Runs `on_exit` each time that the poller sees the process ended.
absl::StatusOr<Poller::Watched> WatchExit(Poller* poller, const RunningWorker& process,
                                          std::function<void()> on_exit);

class HelperProcesses {
 public:
  static constexpr size_t kMaxProcesses = 8;

  struct Setup {
    std::function<absl::StatusOr<std::unique_ptr<RunningWorker>>()> start;
    // Called when one hung and was killed, or none could be started. `times` counts since irisd has
    // started.
    std::function<void(uint64_t times, const absl::Status& why)> trouble;
  };
  // `work` says in messages what one does ("closes connections").
  HelperProcesses(Poller* poller, Setup setup, std::string work)
      : poller_(poller), setup_(std::move(setup)), work_(std::move(work)) {}
  HelperProcesses(const HelperProcesses&) = delete;
  HelperProcesses& operator=(const HelperProcesses&) = delete;

  // Starts a helper if none is usable. Sets `*link` to its link, which it keeps, and `*made` to
  // whether it was started now. Reports an error as trouble.
  absl::Status Work(int* link, bool* made = nullptr);
  // Stops giving work to the current helper: it has ended or, if `hangs`, does not answer, which is
  // trouble.
  void Drop(bool hangs);

  // Has a helper close the socket, which the caller still closes, too. The helper receives a
  // descriptor with each byte of its link, and if the close hangs, it hangs there. A killed helper
  // does not linger over connections, and descriptors still on their way were never in its table,
  // so no file system is asked. Returns false if that fails now.
  bool HandOver(int socket);

  // Counts those that have not ended. For tests.
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
  Process* current_ = nullptr;  // the one that works
  uint64_t n_troubles_ = 0;
};

}  // namespace iris::server
