#include "client/team/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>

namespace iris::internal {
namespace {

// Becomes false once a call has found that the kernel lacks futex_waitv.
std::atomic<bool> have_waitv{true};
std::atomic<bool> force_fallback{false};

void WaitOne(const FutexWord& word, absl::Duration timeout) {
  const struct timespec relative = absl::ToTimespec(timeout);
  // Shared (not FUTEX_PRIVATE): the pages are mapped by several processes. EAGAIN, EINTR and
  // ETIMEDOUT all mean: look again.
  syscall(SYS_futex, word.word, FUTEX_WAIT, word.seen, &relative, nullptr, 0);
}

}  // namespace

void FutexWakeAll(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void FutexWaitAny(absl::Span<const FutexWord> words, absl::Duration timeout) {
  if (words.empty() || timeout <= absl::ZeroDuration()) return;
  if (have_waitv.load(std::memory_order_relaxed) &&
      !force_fallback.load(std::memory_order_relaxed)) {
    struct futex_waitv waiters[kMaxFutexWords];
    const size_t n = std::min<size_t>(words.size(), kMaxFutexWords);
    for (size_t i = 0; i < n; ++i) {
      waiters[i].val = words[i].seen;
      waiters[i].uaddr = reinterpret_cast<uintptr_t>(words[i].word);
      waiters[i].flags = FUTEX_32;
      waiters[i].__reserved = 0;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const struct timespec until =
        absl::ToTimespec(absl::DurationFromTimespec(now) + std::min(timeout, absl::Hours(1)));
    if (syscall(SYS_futex_waitv, waiters, n, 0, &until, CLOCK_MONOTONIC) >= 0) return;
    if (errno != ENOSYS && errno != EPERM) return;
    have_waitv.store(false, std::memory_order_relaxed);
  }
  WaitOne(words.front(), std::min(timeout, absl::Milliseconds(1)));
}

void ForceFutexFallbackForTesting(bool force) { force_fallback.store(force); }

}  // namespace iris::internal
