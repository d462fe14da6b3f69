// CallShare: what the calls of one tenant's sessions take in irisd: how many are under way, and how
// many bytes of answers wait for a reader. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/limits.h"

namespace iris::server {

class CallShare {
 public:
  struct Limits {
    uint32_t max_calls = wire::kMaxCallsPerTenant;
    size_t max_unread_bytes = 32 << 20;
  };

  explicit CallShare(const Limits& limits) : limits_(limits) {}
  CallShare(const CallShare&) = delete;
  CallShare& operator=(const CallShare&) = delete;

  const Limits& limits() const { return limits_; }

  // One more call. False: there are as many as there may be.
  bool AddCall() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (calls_ >= limits_.max_calls) return false;
    ++calls_;
    return true;
  }
  void RemoveCalls(uint32_t n) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    calls_ -= n;
  }

  // So many more bytes wait, and with them what `tail` holds, if anything. However many answers
  // share a tail, it counts once: it is there once. False: they are more than may wait; they count
  // all the same.
  bool AddUnread(size_t bytes, const std::string* tail) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    unread_bytes_ += bytes;
    if (tail != nullptr && ++tails_[tail] == 1) unread_bytes_ += tail->size();
    return unread_bytes_ <= limits_.max_unread_bytes;
  }
  void RemoveUnread(size_t bytes, const std::string* tail) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    unread_bytes_ -= bytes;
    if (tail == nullptr || --tails_[tail] > 0) return;
    unread_bytes_ -= tail->size();
    tails_.erase(tail);
  }

  uint32_t calls() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return calls_;
  }
  size_t unread_bytes() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return unread_bytes_;
  }

 private:
  const Limits limits_;
  mutable absl::Mutex mu_;
  uint32_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  size_t unread_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<const std::string*, uint32_t> tails_
      ABSL_GUARDED_BY(mu_);  // in how many answers each is
};

}  // namespace iris::server
