// DeadlineQueue: holds the next deadline of each key. Not thread-safe; pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "server/job/ids.h"
#include "server/job/tracked.h"

namespace iris::server {

struct DeadlineKey {
  enum class Kind : uint32_t { kJoin, kMap, kOperation, kGrow, kWithdraw, kResume };
  static constexpr Kind kLastKind = Kind::kResume;
  JobId job;
  Kind kind = Kind::kJoin;
  uint32_t index = 0;  // the rank of kJoin, kWithdraw and kResume; the team of kOperation
  friend auto operator<=>(const DeadlineKey&, const DeadlineKey&) = default;
};

class DeadlineQueue {
 public:
  // Replaces the key's earlier deadline, if any.
  void Set(const DeadlineKey& key, absl::Time when) {
    Clear(key);
    by_key_[key] = when;
    by_time_.insert({when, key});
  }

  void Clear(const DeadlineKey& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return;
    by_time_.erase({found->second, key});
    by_key_.erase(key);
  }

  std::optional<absl::Time> Get(const DeadlineKey& key) const {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return std::nullopt;
    return found->second;
  }

  absl::Time Next() const {
    return by_time_.empty() ? absl::InfiniteFuture() : by_time_.begin()->first;
  }

  // Removes and returns the earliest deadline that is not after `now`, if there is one.
  std::optional<DeadlineKey> PopDue(absl::Time now) {
    if (by_time_.empty() || by_time_.begin()->first > now) return std::nullopt;
    const DeadlineKey key = by_time_.begin()->second;
    Clear(key);
    return key;
  }

  size_t size() const { return by_key_.size(); }
  const Tracked<std::map<DeadlineKey, absl::Time>>& all() const { return by_key_; }
  void ClearMarks() { by_key_.ClearMarks(); }

 private:
  Tracked<std::map<DeadlineKey, absl::Time>> by_key_;
  std::set<std::pair<absl::Time, DeadlineKey>> by_time_;
};

}  // namespace iris::server
