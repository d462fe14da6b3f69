// Accounts: one for each tenant that is connected, with its share of irisd's memory and of the
// core's time.
//
// Memory. irisd's heap is to stay within `core.memory`. Above four fifths of that, irisd is short:
// it refuses calls that would keep more memory if their tenant has an equal part of the four fifths
// or more. The last twentieth is reserved for the operator.
//
// Time. Tenants share the core by deficit round robin (M. Shreedhar, G. Varghese: Efficient Fair
// Queueing Using Deficit Round Robin, 1995): in each round of the session thread an account may
// spend its credit. Time that a call took beyond the credit is deducted from later rounds.
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

// Counts the calls of one tenant's sessions that are under way, and the bytes of answers that wait
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

  // Counts one more call. Returns false, and counts nothing, if max_calls are under way.
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

  // Counts `bytes` more unread bytes, and those of `tail`, if any, once for all answers that share
  // it. Returns false if more than max_unread_bytes wait; they are counted all the same.
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
      ABSL_GUARDED_BY(mu_);  // the number of answers that share each tail
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
  // The core's time that an account may spend in each round. Unspent time does not accumulate.
  static constexpr absl::Duration kQuantum = absl::Microseconds(100);
  // The most time that one call counts: a thread that waited for a CPU did not spend that time.
  static constexpr absl::Duration kMostOfOneCall = absl::Milliseconds(20);

  const Party tenant;
  const bool is_operator = false;
  const MemorySlot slot = kIrisdsSlot;
  const uint64_t number = 0;  // in the order in which accounts were opened; never used again
  CallShare calls;

  uint64_t core_bytes() const { return CoreMemory::Of(slot); }
  // Returns the core's time that the account's calls took since the account was opened.
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
  // Only the session thread uses the fields below.
  uint64_t round_ = 0;  // the last round in which MayRun was called
  absl::Duration credit_;
};

class Accounts {
 public:
  explicit Accounts(uint64_t core_memory_bytes, const CallShare::Limits& of_calls = {})
      : of_calls_(of_calls), limit_bytes_(core_memory_bytes) {}
  Accounts(const Accounts&) = delete;
  Accounts& operator=(const Accounts&) = delete;

  // Returns the tenant's account, which stays open while a pointer to it exists. The Accounts
  // outlive it.
  std::shared_ptr<Account> Open(const Party& tenant, bool is_operator) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns OK if irisd may keep more for the account of the calling thread. Returns
  // kResourceExhausted if irisd is short of memory, and the account has its part or more.
  absl::Status Room() const ABSL_LOCKS_EXCLUDED(mu_);

  void SetLimit(uint64_t core_memory_bytes) {
    limit_bytes_.store(core_memory_bytes, std::memory_order_relaxed);
  }
  const CallShare::Limits& limits_of_calls() const { return of_calls_; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }

  void NextRound() { ++round_; }
  uint64_t round() const { return round_; }

  // Returns the open accounts in order of their numbers.
  std::vector<std::shared_ptr<const Account>> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Close(Account* account) ABSL_LOCKS_EXCLUDED(mu_);
  MemorySlot FreeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallShare::Limits of_calls_;
  std::atomic<uint64_t> limit_bytes_;
  uint64_t round_ = 1;  // only the session thread uses it
  mutable absl::Mutex mu_;
  std::map<Party, std::weak_ptr<Account>> by_tenant_ ABSL_GUARDED_BY(mu_);
  std::map<MemorySlot, const Account*> by_slot_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  MemorySlot last_slot_ ABSL_GUARDED_BY(mu_) = kOthersSlot;
};

// While an AtWork lives, the memory and time that the constructing thread takes count for
// `account`. If the thread acts for this account already, the time counts once. With null, AtWork
// does nothing.
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
