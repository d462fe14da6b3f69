#include "server/account/accounts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"

namespace iris::server {

std::shared_ptr<Account> Accounts::Open(const Party& tenant, bool is_operator) {
  absl::MutexLock lock(&mu_);
  std::weak_ptr<Account>& known = by_tenant_[tenant];
  if (std::shared_ptr<Account> account = known.lock(); account != nullptr) return account;
  const OnBehalfOf irisd(kIrisdsSlot);
  std::shared_ptr<Account> account(
      new Account(this, tenant, is_operator, FreeSlot(), ++last_number_),
      [this](Account* ended) { Close(ended); });
  known = account;
  if (account->slot != kOthersSlot) by_slot_[account->slot] = account.get();
  return account;
}

void Accounts::Close(Account* account) {
  {
    absl::MutexLock lock(&mu_);
    // Another account may have been opened for the tenant meanwhile.
    const auto found = by_tenant_.find(account->tenant);
    if (found != by_tenant_.end() && found->second.expired()) by_tenant_.erase(found);
    by_slot_.erase(account->slot);
  }
  delete account;
}

// Returns a slot for a new account. A slot that still counts bytes is not used again: irisd may
// keep a little data of a tenant that is gone, such as events for the operator.
MemorySlot Accounts::FreeSlot() {
  for (size_t tried = kOthersSlot + 1; tried < kMemorySlots; ++tried) {
    last_slot_ = last_slot_ + 1 < static_cast<int>(kMemorySlots)
                     ? static_cast<MemorySlot>(last_slot_ + 1)
                     : static_cast<MemorySlot>(kOthersSlot + 1);
    if (!by_slot_.contains(last_slot_) && CoreMemory::Of(last_slot_) == 0) return last_slot_;
  }
  return kOthersSlot;
}

absl::Status Accounts::Room() const {
  const uint64_t limit = limit_bytes();
  const uint64_t usable = limit / 5 * 4;
  const uint64_t total = CoreMemory::Total();
  CoreMemory::RestoreReserve();  // a past shortage must not refuse a tenant
  if (total < usable && !CoreMemory::InReserve()) return absl::OkStatus();
  const MemorySlot slot = OnBehalfOf::Current();
  const uint64_t mine = CoreMemory::Of(slot);
  absl::MutexLock lock(&mu_);
  const auto account = by_slot_.find(slot);
  if (slot == kIrisdsSlot) return absl::OkStatus();
  const bool is_operator = account != by_slot_.end() && account->second->is_operator;
  const uint64_t part = usable / std::max<uint64_t>(by_slot_.size(), 1);
  if (!CoreMemory::InReserve() && (is_operator || (mine < part && total < limit / 20 * 19))) {
    return absl::OkStatus();
  }
  const std::string who =
      account == by_slot_.end() ? "a user among very many" : account->second->tenant.Text();
  return absl::ResourceExhaustedError(absl::StrCat(
      "irisd is short of memory: it has ", base::SizeText(total), " for all users",
      CoreMemory::InReserve() ? ", the system gives it no more" : "", " (core.memory is ",
      base::SizeText(limit), "), ", base::SizeText(mine), " of it for ", who, ", whose part is ",
      base::SizeText(part),
      ": free allocations, destroy teams or end jobs, or have the operator raise core.memory"));
}

std::vector<std::shared_ptr<const Account>> Accounts::List() const {
  std::vector<std::shared_ptr<const Account>> accounts;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [tenant, account] : by_tenant_) {
      if (auto open = account.lock(); open != nullptr) accounts.push_back(std::move(open));
    }
  }
  std::sort(accounts.begin(), accounts.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  return accounts;
}

Account::Account(const Accounts* all, const Party& t, bool op, MemorySlot s, uint64_t n)
    : tenant(t), is_operator(op), slot(s), number(n), calls(all->limits_of_calls()), all_(all) {}

bool Account::MayRun() {
  if (const uint64_t rounds = all_->round() - round_; rounds > 0) {
    round_ = all_->round();
    credit_ = std::min(credit_ + kQuantum * rounds, kQuantum);
  }
  return credit_ > absl::ZeroDuration();
}

void Account::Ran(absl::Duration time) {
  time = std::clamp(time, absl::ZeroDuration(), kMostOfOneCall);
  credit_ -= time;
  spent_ns_.fetch_add(absl::ToInt64Nanoseconds(time), std::memory_order_relaxed);
}

AtWork::AtWork(Account* account)
    : account_(account != nullptr && account->slot == OnBehalfOf::Current() ? nullptr : account),
      on_behalf_(account == nullptr ? OnBehalfOf::Current() : account->slot),
      began_(std::chrono::steady_clock::now()) {}

AtWork::~AtWork() {
  if (account_ == nullptr) return;
  account_->Ran(absl::FromChrono(std::chrono::steady_clock::now() - began_));
}

}  // namespace iris::server
