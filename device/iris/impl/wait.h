// The one bounded wait that every poll of the device layer goes through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/types.h"

namespace iris::impl {

inline constexpr uint64_t kDefaultTimeoutNs = 60ull * 1000 * 1000 * 1000;

// Most waits end before the first look at the clock, which costs about as much as a poll. The abort
// word lies in host memory and costs as much as a whole barrier.
inline constexpr uint32_t kPollsBeforeClock = 64;
inline constexpr uint32_t kPollsPerClock = 8;
inline constexpr uint64_t kAbortPeriodNs = 100 * 1000;

// kFast: polls unrolled to some kilobytes of code. kSmall: a loop, for kernels with many waits,
// whose code takes long to fetch; in small kernels kFast is 0.1 us faster.
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

template <typename CalledOff>
IRIS_DEVICE inline bool IsCalledOff(CalledOff& called_off, uint64_t waited_ns) {
  if constexpr (std::is_invocable_v<CalledOff&, uint64_t>) {
    return called_off(waited_ns);
  } else {
    return called_off();
  }
}

// Calls `done()` until it says true (kOk), `timeout_ns` have passed (kTimeout; 0: the context's
// timeout), or the abort word is not 0 (kAborted). `done` acquires, and decides in the end.
//
// `called_off()`, asked as seldom as the abort word, may end the wait likewise. It may take how
// long the wait has lasted, in nanoseconds.
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
          IsCalledOff(called_off, now - start)) {
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

// A wait is noted once it has lasted 2^this nanoseconds, 1.07 s, and its note is updated as often.
inline constexpr uint32_t kNotePeriodLog2 = 30;

// Keeps a note of a long wait for rank `from` (WaitNote) until the end of the scope.
class NotedWait {
 public:
  IRIS_DEVICE NotedWait(const DeviceContext& ctx, uint32_t from) : ctx_(ctx), from_(from) {}
  IRIS_DEVICE ~NotedWait() {
    if (noted_) backend::Store<Scope::kSystem, Order::kRelease>(&Note()->state, kFree);
  }
  NotedWait(const NotedWait&) = delete;
  NotedWait& operator=(const NotedWait&) = delete;

  // Call it from time to time during the wait. `signal` is at least `wanted` at its end.
  IRIS_DEVICE void Look(uint64_t waited_ns, const uint64_t* signal, uint64_t wanted) {
    const uint32_t period = static_cast<uint32_t>(waited_ns >> kNotePeriodLog2);
    if (period == period_ || ctx_.wait_notes == nullptr) return;
    period_ = period;
    WaitNote* const note = Note();
    // Another wait of this rank may use the same note: the first of them has it until it ends.
    const bool is_new = !noted_;
    if (is_new && backend::CompareExchange<Scope::kSystem, Order::kAcquire>(
                      &note->state, kFree, uint32_t{WaitNote::kClaimed}) != kFree) {
      return;
    }
    noted_ = true;
    Set(&note->from, from_);
    Set(&note->block, backend::BlockIndex());
    Set(&note->waited_ms, static_cast<uint32_t>(waited_ns / (1000 * 1000)));
    Set(&note->wanted, wanted);
    Set(&note->seen, backend::Load<Scope::kSystem, Order::kRelaxed>(signal));
    if (is_new) {
      backend::Store<Scope::kSystem, Order::kRelease>(&note->state, uint32_t{WaitNote::kNoted});
    }
  }

 private:
  static constexpr uint32_t kFree = WaitNote::kFree;

  IRIS_DEVICE WaitNote* Note() const { return ctx_.wait_notes + from_ % kWaitNotes; }
  // Relaxed, since irisd reads the page meanwhile.
  template <typename T>
  IRIS_DEVICE static void Set(T* word, T value) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(word, value);
  }

  const DeviceContext& ctx_;
  const uint32_t from_;
  uint32_t period_ = 0;  // of the last look
  bool noted_ = false;
};

// True if `seen` is `wanted` or later, for epochs less than half the range of T apart.
template <typename T>
IRIS_HOST_DEVICE constexpr bool Reached(T seen, T wanted) {
  return static_cast<T>(seen - wanted) < (static_cast<T>(1) << (8 * sizeof(T) - 1));
}

}  // namespace iris::impl
