// OnlyThread: whether one thread alone has used a context. irisd judges the calls of such a rank
// (docs/protocol.md, "Calls that wait for each other"). Thread-safe.
#pragma once

#include <atomic>

namespace iris::internal {

class OnlyThread {
 public:
  // The first thread is the one that makes the context.
  OnlyThread() : first_(Self()) {}

  // Notes that the calling thread uses the context.
  void Use() {
    if (Self() != first_) many_.store(true, std::memory_order_relaxed);
  }
  // False: another thread has used it, too.
  bool alone() const { return !many_.load(std::memory_order_relaxed); }

 private:
  static const void* Self() {
    static thread_local char self = 0;
    return &self;
  }

  const void* const first_;
  std::atomic<bool> many_{false};
};

}  // namespace iris::internal
