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
  for (const auto& follower : followers_) follower->Push(event);
}

void EventLog::Read(const std::shared_ptr<EventFollower>& follower, bool follow) {
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
  std::vector<std::shared_ptr<EventFollower>> ended;  // let go of after the lock is released
  absl::MutexLock lock(&mu_);
  closed_ = true;
  for (const auto& follower : followers_) follower->End();
  ended.swap(followers_);
}

void EventLog::Unfollow(const EventFollower* follower) {
  std::shared_ptr<EventFollower> gone;  // let go of after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = std::find_if(followers_.begin(), followers_.end(),
                               [follower](const auto& f) { return f.get() == follower; });
  if (it == followers_.end()) return;
  gone = std::move(*it);
  followers_.erase(it);
}

}  // namespace iris::server
