// HeapSize: the size of every rank's heap, as this rank knows it. It only grows. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace iris::internal {

class HeapSize {
 public:
  uint64_t bytes() const { return bytes_.load(); }

  // Takes a size if it is the largest so far, because answers of irisd may arrive out of order.
  void AtLeast(uint64_t bytes) {
    uint64_t before = bytes_.load();
    while (bytes > before && !bytes_.compare_exchange_weak(before, bytes)) {
    }
  }

 private:
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace iris::internal
