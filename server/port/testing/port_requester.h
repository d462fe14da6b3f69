// PortRequester: the host's side of one ring of a PortMemory, for one thread: it enqueues requests,
// wakes the port process, and waits for results. Borrows the memory and the eventfd.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#include "device/iris/port_types.h"
#include "device/iris/status_code.h"
#include "proto/wire/unique_fd.h"

namespace iris::port {

// The memory of a rank's rings, mapped; null if the system provides none. *fd is for the port.
inline PortMemory* NewPortMemory(uint32_t rank, wire::UniqueFd* fd) {
  fd->Reset(memfd_create("port", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd->get(), sizeof(PortMemory)) != 0 ||
      fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return nullptr;
  }
  void* const at =
      mmap(nullptr, sizeof(PortMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const memory = static_cast<PortMemory*>(at);
  memory->magic = kPortMagic;
  memory->version = kPortVersion;
  memory->rank = rank;
  return memory;
}

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
    if (posted_ + n - Completed() > kPortSlots) {
      Wake();
      (void)WaitUntil([&] { return posted_ + n - Completed() <= kPortSlots; }, kForeverMs);
    }
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
    const PortRingWords& words = memory_->words[ring_];
    const bool in_time = WaitUntil(
        [&] {
          return Done(number, &code, value) || __atomic_load_n(&words.stopped, __ATOMIC_ACQUIRE);
        },
        timeout_ms);
    if (Done(number, &code, value)) return code;
    return in_time ? static_cast<StatusCode>(words.stopped) : StatusCode::kDeadlineExceeded;
  }

  // Waits until `n` requests are complete, respectively all so far. Return false after
  // `timeout_ms`.
  bool WaitFor(uint64_t n, int64_t timeout_ms = 20'000) const {
    return WaitUntil([&] { return Completed() >= n; }, timeout_ms);
  }
  bool WaitAll(int64_t timeout_ms = 20'000) const { return WaitFor(posted_, timeout_ms); }

  uint64_t Completed() const {
    return __atomic_load_n(&memory_->words[ring_].completed, __ATOMIC_ACQUIRE);
  }
  uint64_t posted() const { return posted_; }

 private:
  static constexpr int64_t kForeverMs = 1'000'000'000;

  static int64_t NowNs() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  }

  // Looks for `condition` for a while, then sleeps until the port process changes something.
  template <typename Condition>
  bool WaitUntil(Condition condition, int64_t timeout_ms) const {
    constexpr int kLooks = 100;
    for (int i = 0; i < kLooks; ++i) {
      if (condition()) return true;
      sched_yield();  // the port process may need this CPU
    }
    const int64_t end = NowNs() + timeout_ms * 1'000'000;
    uint32_t* const events = &memory_->words[ring_].events;
    for (;;) {
      __atomic_store_n(&memory_->waiting[ring_], 1u, __ATOMIC_SEQ_CST);
      const uint32_t seen = __atomic_load_n(events, __ATOMIC_SEQ_CST);
      if (condition()) return true;
      if (NowNs() > end) return false;
      const struct timespec at_most = {0, 10'000'000};
      (void)syscall(SYS_futex, events, FUTEX_WAIT, seen, &at_most, nullptr, 0);
    }
  }

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
