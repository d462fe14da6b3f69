// The one bounded wait that every poll of the device layer goes through.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/types.h"

namespace iris::impl {

inline constexpr uint64_t kDefaultTimeoutNs = 60ull * 1000 * 1000 * 1000;

// Polls before the first look at the clock: most waits end within them, and reading a device's
// clock costs about as much as a poll. Polls between two looks after that, and time between two
// looks at the abort word, which lies in host memory and costs as much as a whole barrier.
inline constexpr uint32_t kPollsBeforeClock = 64;
inline constexpr uint32_t kPollsPerClock = 8;
inline constexpr uint64_t kAbortPeriodNs = 100 * 1000;

// How polls are compiled. kFast: as the compiler likes it, which unrolls them, so that a wait is
// some kilobytes of code. kSmall: as a loop, for kernels with many waits. Their code is fetched
// from memory, and that takes longer the more there is; in small kernels kFast is 0.1 us faster.
enum class Polls { kFast, kSmall };

// True as soon as `done()` is, which is asked `kCount` times at most.
template <Polls kPolls, uint32_t kCount, typename Done>
IRIS_DEVICE inline bool PollSome(Done done) {
  if constexpr (kPolls == Polls::kSmall) {
    IRIS_UNROLL(1)
    for (uint32_t i = 0; i < kCount; ++i) {
      if (done()) return true;
    }
  } else {
    for (uint32_t i = 0; i < kCount; ++i) {
      if (done()) return true;
    }
  }
  return false;
}

// How long a wait lasts that was given `timeout_ns`.
IRIS_HOST_DEVICE inline uint64_t TimeoutOf(const DeviceContext& ctx, uint64_t timeout_ns) {
  if (timeout_ns == 0) timeout_ns = ctx.timeout_ns;
  return timeout_ns != 0 ? timeout_ns : kDefaultTimeoutNs;
}

// Calls `done()` until it says true (kOk), `timeout_ns` have passed (kTimeout; 0: the context's
// timeout), or the abort word is not 0 (kAborted). `done` acquires, and has the last word: what
// arrived in time is never reported as missing.
//
// `called_off()` is asked as seldom as the abort word, for a caller that knows a reason of its own
// to give up: true ends the wait as the abort word does.
template <Polls kPolls, typename Done, typename CalledOff>
IRIS_DEVICE inline WaitResult BoundedWait(const DeviceContext& ctx, uint64_t timeout_ns, Done done,
                                          CalledOff called_off) {
  const auto done_then_pause = [&done] {
    if (done()) return true;
    backend::Pause();
    return false;
  };
  if (PollSome<kPolls, kPollsBeforeClock>(done_then_pause)) return WaitResult::kOk;
  timeout_ns = TimeoutOf(ctx, timeout_ns);
  const uint64_t start = backend::ClockNanoseconds();
  uint64_t abort_polled = start;
  for (;;) {
    if (PollSome<kPolls, kPollsPerClock>(done_then_pause)) return WaitResult::kOk;
    const uint64_t now = backend::ClockNanoseconds();
    const bool late = now - start >= timeout_ns;
    if (late || now - abort_polled >= kAbortPeriodNs) {
      abort_polled = now;
      if ((ctx.abort_word != nullptr &&
           backend::Load<Scope::kSystem, Order::kAcquire>(ctx.abort_word) != 0) ||
          called_off()) {
        return done() ? WaitResult::kOk : WaitResult::kAborted;
      }
    }
    if (late) return done() ? WaitResult::kOk : WaitResult::kTimeout;
  }
}
template <typename Done, typename CalledOff>
IRIS_DEVICE inline WaitResult BoundedWait(const DeviceContext& ctx, uint64_t timeout_ns, Done done,
                                          CalledOff called_off) {
  return BoundedWait<Polls::kFast>(ctx, timeout_ns, done, called_off);
}
template <typename Done>
IRIS_DEVICE inline WaitResult BoundedWait(const DeviceContext& ctx, uint64_t timeout_ns,
                                          Done done) {
  return BoundedWait(ctx, timeout_ns, done, [] { return false; });
}

// True if `seen` is `wanted` or later, for epochs less than half the range of T apart.
template <typename T>
IRIS_HOST_DEVICE constexpr bool Reached(T seen, T wanted) {
  return static_cast<T>(seen - wanted) < (static_cast<T>(1) << (8 * sizeof(T) - 1));
}

}  // namespace iris::impl
