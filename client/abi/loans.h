// Loans: counts the borrowers of memory that is freed once. Inside client/abi.
//
// Thread-safe: if a loan and a free come at the same time, one is refused.
#pragma once

#include <atomic>
#include <cstdint>

namespace iris::abi {

class Loans {
 public:
  // Begins a loan. Returns false if the memory is freed.
  bool Lend() {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    do {
      if ((seen & kFreed) != 0) return false;
    } while (!word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return true;
  }
  // Ends a loan. Any thread may call it.
  void Return() { word_.fetch_sub(1, std::memory_order_acq_rel); }

  // Returns true if this call frees the memory. Returns false if it was freed before (*n_lent is
  // 0), or if *n_lent loans have not ended.
  bool Free(uint64_t* n_lent) {
    uint64_t seen = 0;
    const bool freed = word_.compare_exchange_strong(seen, kFreed, std::memory_order_acq_rel,
                                                     std::memory_order_acquire);
    *n_lent = freed ? 0 : seen & ~kFreed;
    return freed;
  }
  // Undoes a Free of the caller that could not be carried out.
  void TakeBack() { word_.store(0, std::memory_order_release); }

  bool freed() const { return (word_.load(std::memory_order_acquire) & kFreed) != 0; }

 private:
  static constexpr uint64_t kFreed = uint64_t{1} << 63;
  std::atomic<uint64_t> word_{0};
};

}  // namespace iris::abi
