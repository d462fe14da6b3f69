// Accounts: one for each tenant that is connected. An account has the tenant's part of irisd's
// memory and of the core's time.
//
// Memory. All of irisd's heap together is to stay within `core.memory`. From four fifths of that on
// irisd is short: who has more than an equal part of the four fifths is refused what would make
// irisd keep more, and the last twentieth is the operator's.
//
// Time. Tenants take turns at the core by deficit round robin (M. Shreedhar, G. Varghese: Efficient
// Fair Queueing Using Deficit Round Robin, 1995): in each turn of the session thread an account may
// spend what its credit allows, and what a call took beyond that is missing in the turns after.
//
// Accounts is thread-safe, but for the turns, which belong to the session thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/account/call_share.h"
#include "server/account/core_memory.h"
#include "server/account/party.h"

namespace iris::server {

// What a tenant has at the doors of irisd, or may have.
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
  // Of the core's time in each turn; nobody saves more than that up.
  static constexpr absl::Duration kQuantum = absl::Microseconds(100);
  // A call counts for no more: a thread that had no CPU meanwhile has spent nothing.
  static constexpr absl::Duration kMostOfOneCall = absl::Milliseconds(20);

  const Party tenant;
  const bool is_operator = false;
  const MemorySlot slot = kIrisdsSlot;
  const uint64_t number = 0;  // in the order in which accounts were opened; never used again
  CallShare calls;

  uint64_t core_bytes() const { return CoreMemory::Of(slot); }
  // What its calls took of the core's time since it was opened.
  absl::Duration core_time() const {
    return absl::Nanoseconds(spent_ns_.load(std::memory_order_relaxed));
  }

  // False: what the account has in its sockets is to wait for a later turn.
  bool MayRun();
  void Ran(absl::Duration time);

 private:
  friend class Accounts;
  Account(const Accounts* all, const Party& t, bool op, MemorySlot s, uint64_t n);

  const Accounts* const all_;
  std::atomic<int64_t> spent_ns_{0};
  // The session thread's.
  uint64_t turn_ = 0;  // in which it was last asked for
  absl::Duration credit_;
};

class Accounts {
 public:
  explicit Accounts(uint64_t core_memory_bytes, const CallShare::Limits& of_calls = {})
      : of_calls_(of_calls), limit_bytes_(core_memory_bytes) {}
  Accounts(const Accounts&) = delete;
  Accounts& operator=(const Accounts&) = delete;

  // The tenant's account, which is open as long as anybody holds it. The Accounts outlive it.
  std::shared_ptr<Account> Open(const Party& tenant, bool is_operator) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the account that the calling thread acts for may have irisd keep more.
  // kResourceExhausted: irisd is short of memory, and the account has its part or more.
  absl::Status Room() const ABSL_LOCKS_EXCLUDED(mu_);

  void SetLimit(uint64_t core_memory_bytes) {
    limit_bytes_.store(core_memory_bytes, std::memory_order_relaxed);
  }
  const CallShare::Limits& limits_of_calls() const { return of_calls_; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }

  // The next turn begins.
  void NextTurn() { ++turn_; }
  uint64_t turn() const { return turn_; }

  // Those that are open, in order of their numbers.
  std::vector<std::shared_ptr<const Account>> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Close(Account* account) ABSL_LOCKS_EXCLUDED(mu_);
  MemorySlot FreeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallShare::Limits of_calls_;
  std::atomic<uint64_t> limit_bytes_;
  uint64_t turn_ = 1;  // the session thread's
  mutable absl::Mutex mu_;
  std::map<Party, std::weak_ptr<Account>> by_tenant_ ABSL_GUARDED_BY(mu_);
  std::map<MemorySlot, const Account*> by_slot_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  MemorySlot last_slot_ ABSL_GUARDED_BY(mu_) = kOthersSlot;
};

// Acts on behalf of an account from its making to its end: what the thread takes is the account's,
// and so is the time, which counts once where the thread acts for the account already. Null: on
// behalf of nobody.
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
