// Futexes on words of shared pages: wake, and wait until any of several words changes. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace iris::internal {

// A word and the value that it had when the caller decided to wait.
struct FutexWord {
  const uint32_t* word = nullptr;
  uint32_t seen = 0;
};

inline constexpr uint32_t kMaxFutexWords = 128;

// Wakes all waits on `word`, in any process.
void FutexWakeAll(const uint32_t* word);

// Returns when one of `words` (1 to kMaxFutexWords) no longer holds `seen`, when one was woken, or
// after `timeout`: the caller looks again in any case. Works on words that this process can only
// read. On kernels without futex_waitv (before 5.16), waits only on the first word, for at most a
// millisecond.
void FutexWaitAny(absl::Span<const FutexWord> words, absl::Duration timeout);

// Makes FutexWaitAny work without futex_waitv, as on an old kernel.
void ForceFutexFallbackForTesting(bool force);

}  // namespace iris::internal
