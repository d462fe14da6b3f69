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
  events_.push_back(std::move(event));
  if (events_.size() > kEventsKept) events_.pop_front();
  for (EventFollower* follower : followers_) follower->Push(events_.back());
}

void EventLog::Read(EventFollower* follower, bool follow) {
  absl::MutexLock lock(&mu_);
  for (const EventRecord& event : events_) follower->Push(event);
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
