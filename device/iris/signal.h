// Signals: words in the heap by which one rank reports to another, and the waits on them.
//
// A signal is a uint64_t, aligned to 8 bytes, that starts at 0. Setting it releases; waits and
// tests acquire. PutSignal sends data and then a signal.
//
//   producer:  PutSignal(ctx, peer, dst, src, count, {ready, round}, Block{});
//   consumer:  if (!AwaitSignal(ctx, producer, ready, round, report, Block{})) return;
//
// Every wait is bounded by `timeout_ns` (0: DeviceContext::timeout_ns) and by the abort word, and
// may be made again. Nothing resets a signal: count upward, and wait for kGe or an epoch.
// AwaitSignal reports a missing rank to the host; the other waits leave that to the kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/impl/copy.h"
#include "iris/impl/mutation.h"
#include "iris/impl/port.h"
#include "iris/impl/trace.h"
#include "iris/impl/wait.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris {

namespace impl {

// Sends a signal to a rank of this node.
template <typename Heaps>
IRIS_DEVICE inline void SignalMapped(const Heaps& ctx, uint32_t peer, uint64_t* signal,
                                     uint64_t value, SignalOp op) {
  uint64_t* const word =
      OfPeer<8>(ctx, peer, signal, 8, op == SignalOp::kSet ? "SignalSet" : "SignalAdd");
  if (op == SignalOp::kSet) {
    backend::Store<Scope::kSystem, kPublishOrder>(word, value);
  } else {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, kPublishOrder>(word, value);
  }
}

// Sends a signal to any rank.
template <typename Heaps>
IRIS_DEVICE inline void SendSignal(const Heaps& ctx, uint32_t peer, uint64_t* signal,
                                   uint64_t value, SignalOp op) {
  if (OnPort(ctx, peer)) {
    return PortSignal(ctx, peer, signal, value, op,
                      op == SignalOp::kSet ? "SignalSet" : "SignalAdd");
  }
  SignalMapped(ctx, peer, signal, value, op);
}

}  // namespace impl

// Sets the signal in the heap of `peer`, which may be on another node: the signal is then ordered
// after earlier puts and signals to that rank, and not after those to other ranks (fence.h).
// Releases this thread's earlier accesses, and after a BlockSync those of the block.
template <typename Heaps, typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void SignalSet(const Heaps& ctx, uint32_t peer, uint64_t* signal,
                                  uint64_t value) {
  impl::SendSignal(ctx, peer, signal, value, SignalOp::kSet);
}

// Adds, with the release of SignalSet. Seeing the sum of several calls acquires from all callers.
template <typename Heaps, typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void SignalAdd(const Heaps& ctx, uint32_t peer, uint64_t* signal,
                                  uint64_t value) {
  impl::SendSignal(ctx, peer, signal, value, SignalOp::kAdd);
}

// Puts, then signals. All threads of `coop` call it. After the return all threads have copied, and
// `src` may be used again. {word, value} sets the word, {word, value, SignalOp::kAdd} adds to it.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void PutSignal(const Heaps& ctx, uint32_t peer, T* dst,
                                  const typename impl::NotDeduced<T>::Type* src, uint64_t count,
                                  const SignalTo& signal, Coop coop = Coop{}) {
  const uint64_t bytes = impl::BytesOf<T>(count);
  const impl::SpanOf<Coop, Heaps> span(ctx, TraceOp::kPutSignal, peer, bytes, signal.value, coop);
  if (impl::OnPort(ctx, peer)) {
    impl::CoopSyncBeforePublish(coop);
    if (impl::CoopIndex(coop) == 0) {
      impl::PortPut(ctx, peer, dst, src, bytes, signal.word, signal.value, signal.op, "PutSignal");
    }
    (void)impl::CoopBroadcast(coop, 0);  // no thread overwrites the source before
    return;
  }
  impl::CopyBytes<H>(impl::OfPeer<1>(ctx, peer, dst, bytes, "PutSignal"),
                     impl::AnyAddress(ctx, src, bytes, "PutSignal"), bytes, coop);
  impl::CoopSyncBeforePublish(coop);
  if (impl::CoopIndex(coop) != 0) return;
  impl::SignalMapped(ctx, peer, signal.word, signal.value, signal.op);
}

namespace impl {

// Compares signed types as signed.
template <typename T>
IRIS_HOST_DEVICE constexpr bool Holds(T seen, Compare compare, T value) {
  switch (compare) {
    case Compare::kEq:
      return seen == value;
    case Compare::kNe:
      return seen != value;
    case Compare::kGt:
      return seen > value;
    case Compare::kGe:
      return seen >= value;
    case Compare::kLt:
      return seen < value;
    case Compare::kLe:
      return seen <= value;
  }
  return false;
}

template <typename T>
IRIS_DEVICE inline T LoadSignal(const T* word) {
  static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "a signal is an integer of 4 or 8 bytes");
  return backend::Load<Scope::kSystem, kConsumeOrder>(Polled(word, "Test or Wait"));
}

IRIS_DEVICE inline bool HasFailed(const WaitReport& report) {
  return report.failure != nullptr && backend::Load<Scope::kSystem, Order::kRelaxed>(
                                          &report.failure->state) != WaitFailure::kNone;
}

// Reports a failed wait from one waiting thread. Stores only the first failure, `state` last.
IRIS_DEVICE inline void ReportWait(const DeviceContext& ctx, const WaitReport& report,
                                   WaitResult result, uint32_t from, uint64_t timeout_ns,
                                   uint64_t wanted, uint64_t seen) {
  WaitFailure* const failure = report.failure;
  if (failure == nullptr) return;
  if (backend::CompareExchange<Scope::kSystem, Order::kRelaxed>(
          &failure->state, uint32_t{WaitFailure::kNone}, uint32_t{WaitFailure::kClaimed}) !=
      WaitFailure::kNone) {
    return;
  }
  backend::StorePlain(&failure->result, result);
  backend::StorePlain(&failure->from, from);
  backend::StorePlain(&failure->block, backend::BlockIndex());
  backend::StorePlain(&failure->waited_ns, TimeoutOf(ctx, timeout_ns));
  backend::StorePlain(&failure->wanted, wanted);
  backend::StorePlain(&failure->seen, seen);
  backend::Store<Scope::kSystem, Order::kRelease>(&failure->state, uint32_t{WaitFailure::kTold});
}

}  // namespace impl

// Returns true if the comparison holds now. Acquires. T is any 4- or 8-byte integer.
template <typename T>
IRIS_DEVICE inline bool Test(const T* word, Compare compare,
                             typename impl::NotDeduced<T>::Type value) {
  return impl::Holds(impl::LoadSignal(word), compare, value);
}

// Waits until the comparison of `*word`, an address that the caller can read, holds. All threads of
// `coop` call it, one polls, and all get the same answer and acquire.
template <typename T, typename Coop, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline WaitResult WaitUntil(const DeviceContext& ctx, const T* word, Compare compare,
                                        typename impl::NotDeduced<T>::Type value, Coop coop,
                                        uint64_t timeout_ns = 0) {
  const impl::SpanOf<Coop> span(ctx, TraceOp::kWait, kNoTracePeer, 0, static_cast<uint64_t>(value),
                                coop);
  WaitResult result = WaitResult::kOk;
  if (impl::CoopIndex(coop) == 0) {
    result = impl::BoundedWait(ctx, timeout_ns, [&] { return Test(word, compare, value); });
  }
  return static_cast<WaitResult>(impl::CoopBroadcast(coop, static_cast<uint32_t>(result)));
}

// Waits in the calling thread only.
template <typename T>
IRIS_DEVICE inline WaitResult WaitUntil(const DeviceContext& ctx, const T* word, Compare compare,
                                        typename impl::NotDeduced<T>::Type value,
                                        uint64_t timeout_ns = 0) {
  return WaitUntil(ctx, word, compare, value, Thread{}, timeout_ns);
}

// Waits until `*signal`, in this rank's heap and raised by rank `from`, is at least `value`. All
// threads of `coop` call it, one polls, and all get the same answer. On true they acquire; on false
// the kernel should clean up and return.
//
// The first failure is reported to the host, whose WaitMonitor returns an error that names the
// rank. From then on all waits that report to the same monitor give up after a moment. iris-ctl
// waits lists a wait that has lasted a second.
template <typename Coop = Thread, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline bool AwaitSignal(const DeviceContext& ctx, uint32_t from, const uint64_t* signal,
                                    uint64_t value, const WaitReport& report, Coop coop = Coop{},
                                    uint64_t timeout_ns = 0) {
  const impl::SpanOf<Coop> span(ctx, TraceOp::kWait, from, 0, value, coop);
  WaitResult result = WaitResult::kOk;
  if (impl::CoopIndex(coop) == 0) {
    impl::NotedWait noted(ctx, from);
    result = impl::BoundedWait(
        ctx, timeout_ns, [&] { return Test(signal, Compare::kGe, value); },
        [&](uint64_t waited_ns) {
          noted.Look(waited_ns, signal, value);
          return impl::HasFailed(report);
        });
    if (result != WaitResult::kOk) {
      impl::ReportWait(ctx, report, result, from, timeout_ns, value, impl::LoadSignal(signal));
    }
  }
  return impl::CoopBroadcast(coop, static_cast<uint32_t>(result)) ==
         static_cast<uint32_t>(WaitResult::kOk);
}

// Waits until the unsigned counter has reached `epoch`. This is wrap-safe while the two differ by
// less than half the range.
template <typename T, typename Coop, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline WaitResult WaitEpoch(const DeviceContext& ctx, const T* word,
                                        typename impl::NotDeduced<T>::Type epoch, Coop coop,
                                        uint64_t timeout_ns = 0) {
  static_assert(std::is_unsigned_v<T>, "epochs are unsigned");
  const impl::SpanOf<Coop> span(ctx, TraceOp::kWait, kNoTracePeer, 0, epoch, coop);
  WaitResult result = WaitResult::kOk;
  if (impl::CoopIndex(coop) == 0) {
    result = impl::BoundedWait(ctx, timeout_ns,
                               [&] { return impl::Reached<T>(impl::LoadSignal(word), epoch); });
  }
  return static_cast<WaitResult>(impl::CoopBroadcast(coop, static_cast<uint32_t>(result)));
}

template <typename T>
IRIS_DEVICE inline WaitResult WaitEpoch(const DeviceContext& ctx, const T* word,
                                        typename impl::NotDeduced<T>::Type epoch,
                                        uint64_t timeout_ns = 0) {
  return WaitEpoch(ctx, word, epoch, Thread{}, timeout_ns);
}

// Returns true if the counter at `word` has reached `epoch`. Acquires.
template <typename T>
IRIS_DEVICE inline bool TestEpoch(const T* word, typename impl::NotDeduced<T>::Type epoch) {
  static_assert(std::is_unsigned_v<T>, "epochs are unsigned");
  return impl::Reached<T>(impl::LoadSignal(word), epoch);
}

// The three functions below wait in the calling thread on `n` words. They ignore words whose
// skip[i] is not 0 (`skip` may be null). With no word to wait for they return kOk at once.

// Waits until the comparison has held for each word, each at some moment of the call.
template <typename T>
IRIS_DEVICE inline WaitResult WaitAll(const DeviceContext& ctx, const T* words, uint64_t n,
                                      const uint8_t* skip, Compare compare,
                                      typename impl::NotDeduced<T>::Type value,
                                      uint64_t timeout_ns = 0) {
  uint64_t next = 0;  // the comparison has held for all words before it
  return impl::BoundedWait(ctx, timeout_ns, [&] {
    while (next < n &&
           ((skip != nullptr && skip[next] != 0) || Test(words + next, compare, value))) {
      ++next;
    }
    return next == n;
  });
}

// Waits until the comparison holds for one word, and writes its index (n if none, or on failure) to
// `*index`. The search starts after the given `*index`, so that a loop is fair to all words.
template <typename T>
IRIS_DEVICE inline WaitResult WaitAny(const DeviceContext& ctx, const T* words, uint64_t n,
                                      const uint8_t* skip, Compare compare,
                                      typename impl::NotDeduced<T>::Type value, uint64_t* index,
                                      uint64_t timeout_ns = 0) {
  const uint64_t first = *index < n ? *index + 1 : 0;
  *index = n;
  return impl::BoundedWait(ctx, timeout_ns, [&] {
    bool waiting = false;
    for (uint64_t k = 0; k < n; ++k) {
      const uint64_t i = first + k < n ? first + k : first + k - n;
      if (skip != nullptr && skip[i] != 0) continue;
      waiting = true;
      if (Test(words + i, compare, value)) {
        *index = i;
        return true;
      }
    }
    return !waiting;
  });
}

// Waits until the comparison holds for some word. Writes the indices of all such words, ascending,
// to `indices`, which has room for n, and their number to `count`: 0 if there is none to wait for,
// or on failure.
template <typename T>
IRIS_DEVICE inline WaitResult WaitSome(const DeviceContext& ctx, const T* words, uint64_t n,
                                       const uint8_t* skip, Compare compare,
                                       typename impl::NotDeduced<T>::Type value, uint64_t* indices,
                                       uint64_t* count, uint64_t timeout_ns = 0) {
  *count = 0;
  return impl::BoundedWait(ctx, timeout_ns, [&] {
    bool waiting = false;
    for (uint64_t i = 0; i < n; ++i) {
      if (skip != nullptr && skip[i] != 0) continue;
      waiting = true;
      if (Test(words + i, compare, value)) indices[(*count)++] = i;
    }
    return !waiting || *count > 0;
  });
}

}  // namespace iris
