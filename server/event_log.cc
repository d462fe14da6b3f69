#include "server/event_log.h"

#include <algorithm>
#include <utility>

#include "server/job/event_text.h"

namespace iris::server {

EventRecord Render(const Event& event, absl::Time time) {
  EventRecord record;
  record.time = time;
  record.severity = SeverityOf(event);
  record.kind = std::string(KindOf(event));
  record.job = event.job;
  record.rank = event.rank;
  record.pid = event.pid;
  record.uid = event.uid;
  record.text = TextOf(event);
  return record;
}

void EventLog::Add(EventRecord event) {
  absl::MutexLock lock(&mu_);
  event.sequence = next_sequence_++;
  events_.emplace(event.sequence, Kept{event, users_.Add(Tenant{event.uid}, event.sequence)});
  if (events_.size() > kEventsKept) {
    const auto oldest = users_.OldestOfMost();
    const auto it = events_.find(oldest->key);
    users_.Remove(oldest->tenant, it->second.ticket);
    events_.erase(it);
  }
  for (EventFollower* follower : followers_) follower->Push(event);
}

void EventLog::Read(EventFollower* follower, bool follow) {
  absl::MutexLock lock(&mu_);
  for (const auto& [sequence, kept] : events_) follower->Push(kept.event);
  if (!follow) return;
  if (closed_) {
    follower->End();
  } else {
    followers_.push_back(follower);
  }
}

void EventLog::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  for (EventFollower* follower : followers_) follower->End();
  followers_.clear();
}

void EventLog::Unfollow(EventFollower* follower) {
  absl::MutexLock lock(&mu_);
  followers_.erase(std::remove(followers_.begin(), followers_.end(), follower), followers_.end());
}

}  // namespace iris::server
