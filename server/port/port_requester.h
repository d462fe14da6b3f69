// PortRequester: the host's side of one ring of a PortMemory, for one thread: it enqueues requests,
// wakes the port process, and waits for results. Borrows the memory and the eventfd.
#pragma once

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#include "device/iris/port_types.h"
#include "device/iris/status_code.h"

namespace iris::port {

class PortRequester {
 public:
  PortRequester(PortMemory* memory, int wake_fd, uint32_t ring = kPortHostRing)
      : memory_(memory), wake_fd_(wake_fd), ring_(ring) {}

  // Continues after the requests of an earlier object, which are all complete.
  void Resume() { posted_ = Completed(); }

  // Writes a request into the next slot, and returns its number. With `rows`, the slot after it
  // too. Waits for a free slot. The port process sees it with the next Wake.
  uint64_t Add(PortRequest request, const PortRows* rows = nullptr) {
    const uint64_t n = rows == nullptr ? 1 : 2;
    if (posted_ + n - Completed() > kPortSlots) Wake();
    while (posted_ + n - Completed() > kPortSlots) Pause();
    const uint64_t number = posted_;
    posted_ += n;
    if (rows != nullptr) {
      PortRows second = *rows;
      second.sequence = 0;
      Write(number + 1, second, number + 2);
    }
    Write(number, request, number + 1);
    return number;
  }

  // Lets the port process see the requests.
  void Wake() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&memory_->asleep, __ATOMIC_SEQ_CST) == 0) return;
    __atomic_store_n(&memory_->asleep, 0u, __ATOMIC_SEQ_CST);
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof(one));
  }

  uint64_t Post(const PortRequest& request, const PortRows* rows = nullptr) {
    const uint64_t number = Add(request, rows);
    Wake();
    return number;
  }

  // True once the request is complete; then *code and *value are its result.
  bool Done(uint64_t number, StatusCode* code, uint64_t* value = nullptr) const {
    const PortResult& result = memory_->rings[ring_].results[number % kPortSlots];
    const uint64_t done = __atomic_load_n(&result.done, __ATOMIC_ACQUIRE);
    if (done >> 8 != number + 1) return false;
    *code = static_cast<StatusCode>(done & 0xFF);
    if (value != nullptr) *value = __atomic_load_n(&result.value, __ATOMIC_RELAXED);
    return true;
  }

  // Waits for the result. kDeadlineExceeded after `timeout_ms`; the code of `stopped` if the port
  // process has ended in order.
  StatusCode Wait(uint64_t number, uint64_t* value = nullptr, int64_t timeout_ms = 20'000) const {
    StatusCode code = StatusCode::kOk;
    const int64_t end = NowNs() + timeout_ms * 1'000'000;
    for (uint32_t i = 0; !Done(number, &code, value); ++i) {
      if (i % 64 != 63) {
        Pause();
        continue;
      }
      const uint32_t stopped = __atomic_load_n(&memory_->words[ring_].stopped, __ATOMIC_ACQUIRE);
      if (stopped != 0) return static_cast<StatusCode>(stopped);
      if (NowNs() > end) return StatusCode::kDeadlineExceeded;
    }
    return code;
  }

  // Waits until all requests so far are complete. Returns false after `timeout_ms`.
  bool WaitAll(int64_t timeout_ms = 20'000) const {
    const int64_t end = NowNs() + timeout_ms * 1'000'000;
    while (Completed() < posted_) {
      if (NowNs() > end) return false;
      Pause();
    }
    return true;
  }

  uint64_t Completed() const {
    return __atomic_load_n(&memory_->words[ring_].completed, __ATOMIC_ACQUIRE);
  }
  uint64_t posted() const { return posted_; }

 private:
  static int64_t NowNs() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  }
  // Lets the port process run where CPUs are few.
  static void Pause() { sched_yield(); }

  template <typename Slot>
  void Write(uint64_t number, Slot slot, uint64_t sequence) {
    auto* const to = reinterpret_cast<Slot*>(&memory_->rings[ring_].slots[number % kPortSlots]);
    slot.sequence = to->sequence;  // the old one, until all else is there
    *to = slot;
    __atomic_store_n(&to->sequence, sequence, __ATOMIC_RELEASE);
  }

  PortMemory* const memory_;
  const int wake_fd_;
  const uint32_t ring_;
  uint64_t posted_ = 0;
};

}  // namespace iris::port
