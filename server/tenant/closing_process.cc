#include "server/tenant/closing_process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"

namespace iris::server {

bool ClosingProcess::HandOver(int socket) {
  // One that has ended, or hangs, is followed by another; that one has room.
  for (int i = 0; i < 2; ++i) {
    if (current_ == nullptr) {
      const absl::Status started = Start();
      if (!started.ok()) {
        Trouble(started);
        return false;
      }
    }
    const Sent sent = Send(current_->link.get(), socket);
    if (sent == Sent::kYes) return true;
    if (sent == Sent::kNotNow) return false;
    Process* const last = std::exchange(current_, nullptr);
    last->link.Reset();
    last->running->Kill();
    if (sent == Sent::kHangs) {
      Trouble(absl::DeadlineExceededError(absl::StrCat(
          "process ", last->running->pid(),
          ", which closes connections for irisd, hung over what clients sent, and was killed")));
    }
  }
  return false;
}

absl::Status ClosingProcess::Start() {
  if (processes_.size() >= kMaxProcesses) {
    return absl::ResourceExhaustedError(
        absl::StrCat(processes_.size(),
                     " processes that close connections for irisd do not end: the kernel waits for "
                     "what clients sent (see /proc/PID/stack)"));
  }
  absl::StatusOr<std::unique_ptr<RunningWorker>> started = setup_.start();
  if (!started.ok()) return started.status();
  Process* const process = &processes_.emplace_back();
  process->running = *std::move(started);
  process->link = process->running->TakeLink();
  wire::UniqueFd pidfd(fcntl(process->running->pidfd(), F_DUPFD_CLOEXEC, 0));
  absl::StatusOr<Poller::Watched> exit =
      poller_->Watch(&pidfd, EPOLLIN, [this, process](uint32_t) { OnExit(process); });
  if (!exit.ok()) {
    processes_.pop_back();
    return exit.status();
  }
  process->exit = *std::move(exit);
  current_ = process;
  return absl::OkStatus();
}

ClosingProcess::Sent ClosingProcess::Send(int link, int socket) {
  char byte = 0;
  struct iovec part = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  struct cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(rights), &socket, sizeof(socket));
  ssize_t n;
  do {
    n = sendmsg(link, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n == 1) return Sent::kYes;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Sent::kHangs;
  if (errno == EPIPE || errno == ECONNRESET) return Sent::kHasEnded;
  return Sent::kNotNow;  // too many descriptors are in flight, or there is no memory
}

void ClosingProcess::OnExit(Process* process) {
  if (!process->running->Reap().has_value()) return;
  if (current_ == process) current_ = nullptr;
  processes_.remove_if([process](const Process& each) { return &each == process; });
}

void ClosingProcess::Trouble(const absl::Status& why) {
  if (setup_.trouble != nullptr) setup_.trouble(++n_troubles_, why);
}

}  // namespace iris::server
