// HeapSize: how large every rank's heap is, as far as this rank knows. It only grows. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace iris::internal {

class HeapSize {
 public:
  uint64_t bytes() const { return bytes_.load(); }

  // Answers of irisd may arrive out of order, so the largest counts.
  void AtLeast(uint64_t bytes) {
    uint64_t before = bytes_.load();
    while (bytes > before && !bytes_.compare_exchange_weak(before, bytes)) {
    }
  }

 private:
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace iris::internal
