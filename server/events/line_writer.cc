#include "server/events/line_writer.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace iris::server {

struct LineWriter::Shared {
  int fd = -1;
  std::function<std::string(uint64_t)> left_out;

  absl::Mutex mu;
  std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  size_t queued_bytes ABSL_GUARDED_BY(mu) = 0;
  uint64_t n_unsaid ABSL_GUARDED_BY(mu) = 0;  // left out, and in no line yet
  uint64_t n_left_out ABSL_GUARDED_BY(mu) = 0;
  std::thread thread ABSL_GUARDED_BY(mu);
  bool writing ABSL_GUARDED_BY(mu) = false;
  bool ending ABSL_GUARDED_BY(mu) = false;

  void LeaveOut(uint64_t n) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    n_unsaid += n;
    n_left_out += n;
  }
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu) { return ending || !lines.empty(); }
  bool IsDone() const ABSL_SHARED_LOCKS_REQUIRED(mu) { return lines.empty() && !writing; }

  void Run() ABSL_LOCKS_EXCLUDED(mu);
  // False: not all was written. Waits while the descriptor takes nothing.
  bool WriteAll(const std::string& line) const;
};

bool LineWriter::Shared::WriteAll(const std::string& line) const {
  for (size_t written = 0; written < line.size();) {
    const ssize_t n = write(fd, line.data() + written, line.size() - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      struct pollfd takes = {fd, POLLOUT, 0};  // another process has made it not block
      (void)poll(&takes, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

void LineWriter::Shared::Run() {
  while (true) {
    std::vector<std::string> taken;
    uint64_t n_after = 0;  // left out after the last of `taken`
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Shared::HasWork));
      if (lines.empty()) return;
      taken.swap(lines);
      queued_bytes = 0;
      n_after = std::exchange(n_unsaid, 0);
      writing = true;
    }
    uint64_t n_failed = 0;
    for (const std::string& line : taken) n_failed += WriteAll(line) ? 0 : 1;
    const bool said = n_after == 0 || WriteAll(left_out(n_after));
    absl::MutexLock lock(&mu);
    LeaveOut(n_failed);
    if (!said) n_unsaid += n_after;
    writing = false;
  }
}

LineWriter::LineWriter(int fd, std::function<std::string(uint64_t)> left_out)
    : shared_(std::make_shared<Shared>()) {
  shared_->fd = fd;
  shared_->left_out = std::move(left_out);
}

LineWriter::~LineWriter() {
  const bool done = Flush(kEndWithin);
  std::thread thread;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->ending = true;
    thread.swap(shared_->thread);
  }
  if (!thread.joinable()) return;
  done ? thread.join() : thread.detach();
}

void LineWriter::Write(std::string line) {
  absl::MutexLock lock(&shared_->mu);
  if (shared_->queued_bytes + line.size() > kMaxQueuedBytes) return shared_->LeaveOut(1);
  if (!shared_->thread.joinable()) {
    try {
      shared_->thread = std::thread([shared = shared_] { shared->Run(); });
    } catch (const std::system_error&) {
      // Without a thread, what the descriptor takes at once. The next line tries again.
      struct pollfd takes = {shared_->fd, POLLOUT, 0};
      if (poll(&takes, 1, 0) != 1 || !shared_->WriteAll(line)) shared_->LeaveOut(1);
      return;
    }
  }
  shared_->queued_bytes += line.size();
  shared_->lines.push_back(std::move(line));
}

bool LineWriter::Flush(absl::Duration within) const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->mu.AwaitWithTimeout(absl::Condition(shared_.get(), &Shared::IsDone), within);
}

uint64_t LineWriter::n_left_out() const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->n_left_out;
}

}  // namespace iris::server
