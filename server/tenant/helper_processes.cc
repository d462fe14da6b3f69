#include "server/tenant/helper_processes.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include "absl/strings/str_cat.h"
#include "server/link/pass_descriptor.h"

namespace iris::server {

absl::StatusOr<Poller::Watched> WatchExit(Poller* poller, const RunningWorker& process,
                                          std::function<void()> on_exit) {
  wire::UniqueFd pidfd(fcntl(process.pidfd(), F_DUPFD_CLOEXEC, 0));
  return poller->Watch(&pidfd, EPOLLIN, [on_exit = std::move(on_exit)](uint32_t) { on_exit(); });
}

absl::Status HelperProcesses::Work(int* link, bool* made) {
  if (made != nullptr) *made = current_ == nullptr;
  if (current_ == nullptr) {
    absl::Status started = Start();
    if (!started.ok()) {
      Trouble(started);
      return started;
    }
  }
  *link = current_->link.get();
  return absl::OkStatus();
}

void HelperProcesses::Drop(bool hangs) {
  Process* const last = std::exchange(current_, nullptr);
  if (last == nullptr) return;
  last->link.Reset();
  last->running->Kill();
  if (!hangs) return;
  Trouble(absl::DeadlineExceededError(
      absl::StrCat("process ", last->running->pid(), ", which ", work_,
                   " for irisd, hung over what clients sent, and was killed")));
}

absl::Status HelperProcesses::Start() {
  if (processes_.size() >= kMaxProcesses) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "none of ", processes_.size(), " processes, each of which ", work_,
        " for irisd, ends: the kernel waits for what clients sent (see /proc/PID/stack)"));
  }
  absl::StatusOr<std::unique_ptr<RunningWorker>> started = setup_.start();
  if (!started.ok()) return started.status();
  Process* const process = &processes_.emplace_back();
  process->running = *std::move(started);
  process->link = process->running->TakeLink();
  absl::StatusOr<Poller::Watched> exit =
      WatchExit(poller_, *process->running, [this, process] { OnExit(process); });
  if (!exit.ok()) {
    processes_.pop_back();
    return exit.status();
  }
  process->exit = *std::move(exit);
  current_ = process;
  return absl::OkStatus();
}

bool HelperProcesses::HandOver(int socket) {
  // If the helper has ended, or hangs, another one follows, which has room.
  for (int i = 0; i < 2; ++i) {
    int link = -1;
    if (!Work(&link).ok()) return false;
    constexpr char kByte = 0;
    const Passed passed = PassDescriptor(link, &kByte, sizeof(kByte), socket);
    if (passed == Passed::kYes) return true;
    if (passed == Passed::kNotNow) return false;
    Drop(/*hangs=*/passed == Passed::kFull);
  }
  return false;
}

void HelperProcesses::OnExit(Process* process) {
  if (!process->running->Reap().has_value()) return;
  if (current_ == process) current_ = nullptr;
  processes_.remove_if([process](const Process& each) { return &each == process; });
}

void HelperProcesses::Trouble(const absl::Status& why) {
  if (setup_.trouble != nullptr) setup_.trouble(++n_troubles_, why);
}

}  // namespace iris::server
