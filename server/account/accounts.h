// Accounts: one for each tenant that is connected, with its share of irisd's memory and of the
// core's time.
//
// Memory. All of irisd's heap is to stay within `core.memory`. From four fifths of that on irisd is
// short: a tenant that has more than an equal part of the four fifths is refused calls that would
// make irisd keep more, and the last twentieth is the operator's.
//
// Time. Tenants share the core by deficit round robin (M. Shreedhar, G. Varghese: Efficient Fair
// Queueing Using Deficit Round Robin, 1995): in each round of the session thread an account may
// spend its credit, and the time that a call took beyond it is missing in later rounds.
//
// Accounts is thread-safe, except for the rounds, which belong to the session thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/limits.h"
#include "server/account/core_memory.h"
#include "server/account/party.h"

namespace iris::server {

// The calls of one tenant's sessions: how many are under way, and how many bytes of answers wait
// for a reader. Thread-safe.
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

  // Counts one more call. Returns false if there are as many as there may be.
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

  // Counts more bytes that wait, and those of `tail`, if any, once however many answers share it.
  // Returns false if these are more than may wait; they count all the same.
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

// The connections and calls that a tenant has, or may have.
struct DoorUse {
  uint64_t sessions = 0;
  uint64_t admin_connections = 0;
  uint64_t calls = 0;
  uint64_t unread_bytes = 0;
  uint64_t descriptors_in_flight = 0;
};

class Accounts;

class Account {
 public:
  // The core's time in each round; nobody saves up more.
  static constexpr absl::Duration kQuantum = absl::Microseconds(100);
  // The most that a call counts: a thread that had no CPU meanwhile has spent nothing.
  static constexpr absl::Duration kMostOfOneCall = absl::Milliseconds(20);

  const Party tenant;
  const bool is_operator = false;
  const MemorySlot slot = kIrisdsSlot;
  const uint64_t number = 0;  // in the order in which accounts were opened; never used again
  CallShare calls;

  uint64_t core_bytes() const { return CoreMemory::Of(slot); }
  // Returns the core's time that its calls took since it was opened.
  absl::Duration core_time() const {
    return absl::Nanoseconds(spent_ns_.load(std::memory_order_relaxed));
  }

  // Returns false if input in the account's sockets is to wait for a later round.
  bool MayRun();
  void Ran(absl::Duration time);

 private:
  friend class Accounts;
  Account(const Accounts* all, const Party& t, bool op, MemorySlot s, uint64_t n);

  const Accounts* const all_;
  std::atomic<int64_t> spent_ns_{0};
  // The session thread's.
  uint64_t round_ = 0;  // the last round in which MayRun was called
  absl::Duration credit_;
};

class Accounts {
 public:
  explicit Accounts(uint64_t core_memory_bytes, const CallShare::Limits& of_calls = {})
      : of_calls_(of_calls), limit_bytes_(core_memory_bytes) {}
  Accounts(const Accounts&) = delete;
  Accounts& operator=(const Accounts&) = delete;

  // Returns the tenant's account, which is open as long as anybody holds it. The Accounts outlive
  // it.
  std::shared_ptr<Account> Open(const Party& tenant, bool is_operator) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns OK if irisd may keep more for the account of the calling thread. kResourceExhausted if
  // irisd is short of memory, and the account has its part or more.
  absl::Status Room() const ABSL_LOCKS_EXCLUDED(mu_);

  void SetLimit(uint64_t core_memory_bytes) {
    limit_bytes_.store(core_memory_bytes, std::memory_order_relaxed);
  }
  const CallShare::Limits& limits_of_calls() const { return of_calls_; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }

  // Begins the next round.
  void NextRound() { ++round_; }
  uint64_t round() const { return round_; }

  // Returns the open ones in order of their numbers.
  std::vector<std::shared_ptr<const Account>> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Close(Account* account) ABSL_LOCKS_EXCLUDED(mu_);
  MemorySlot FreeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallShare::Limits of_calls_;
  std::atomic<uint64_t> limit_bytes_;
  uint64_t round_ = 1;  // the session thread's
  mutable absl::Mutex mu_;
  std::map<Party, std::weak_ptr<Account>> by_tenant_ ABSL_GUARDED_BY(mu_);
  std::map<MemorySlot, const Account*> by_slot_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  MemorySlot last_slot_ ABSL_GUARDED_BY(mu_) = kOthersSlot;
};

// While it lives, the thread that made it acts for the account: its memory and time are the
// account's. The time counts once where the thread acts for the account already. With null it does
// nothing.
class AtWork {
 public:
  explicit AtWork(Account* account);
  ~AtWork();
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  Account* const account_;
  const OnBehalfOf on_behalf_;
  const std::chrono::steady_clock::time_point began_;
};

}  // namespace iris::server
