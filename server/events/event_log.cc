#include "server/events/event_log.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/job/events.h"

namespace iris::server {
namespace {

constexpr auto kSettleEvery = absl::Seconds(10);

LogLevel LevelOf(Severity severity) {
  if (severity == Severity::kDebug) return LogLevel::kDebug;
  return severity == Severity::kInfo ? LogLevel::kInfo : LogLevel::kWarn;
}

}  // namespace

EventRecord Render(const Event& event, absl::Time time) {
  EventRecord record;
  record.time = time;
  record.severity = SeverityOf(event);
  record.kind = std::string(KindOf(event));
  record.job = event.job;
  record.rank = event.rank;
  record.pid = event.pid;
  record.party = event.party;
  record.text = TextOf(event);
  return record;
}

EventLog::Kept::Kept(const EventRecord& event, TenantQueue::Ticket whose)
    : time(event.time),
      ticket(whose),
      pid(event.pid),
      party(event.party),
      rank(event.rank),
      severity(event.severity),
      kind_bytes(static_cast<uint32_t>(event.kind.size())),
      job_bytes(static_cast<uint32_t>(event.job.size())),
      text_bytes(static_cast<uint32_t>(event.text.size())) {
  const std::string all = absl::StrCat(event.kind, event.job, event.text);
  const size_t here = std::min(all.size(), sizeof(texts));
  std::memcpy(texts, all.data(), here);
  rest = all.substr(here);
}

EventRecord EventLog::Kept::Record(uint64_t sequence) const {
  const size_t n_bytes = size_t{kind_bytes} + job_bytes + text_bytes;
  std::string all(texts, std::min(n_bytes, sizeof(texts)));
  all += rest;
  EventRecord record;
  record.sequence = sequence;
  record.time = time;
  record.severity = severity;
  record.kind = all.substr(0, kind_bytes);
  record.job = all.substr(kind_bytes, job_bytes);
  record.rank = rank;
  record.pid = pid;
  record.party = party;
  record.text = all.substr(size_t{kind_bytes} + job_bytes);
  return record;
}

void EventLog::Add(EventRecord event) {
  absl::MutexLock lock(&mu_);
  event.sequence = next_sequence_++;
  events_.try_emplace(event.sequence, event, users_.Add(event.party.Account(), event.sequence));
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
  for (const auto& [sequence, kept] : events_) follower->Push(kept.Record(sequence));
  if (!follow) return;
  if (closed_) {
    follower->End();
  } else {
    followers_.push_back(follower);
  }
}

uint64_t EventLog::last() const {
  absl::MutexLock lock(&mu_);
  return next_sequence_ - 1;
}

void EventLog::Close() {
  std::vector<std::shared_ptr<EventFollower>> ended;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  closed_ = true;
  for (const auto& follower : followers_) follower->End();
  ended.swap(followers_);
}

void EventLog::Unfollow(const EventFollower* follower) {
  std::shared_ptr<EventFollower> gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = std::find_if(followers_.begin(), followers_.end(),
                               [follower](const auto& f) { return f.get() == follower; });
  if (it == followers_.end()) return;
  gone = std::move(*it);
  followers_.erase(it);
}

void EventPrinter::Push(EventRecord event) {
  absl::MutexLock lock(&queue_mu_);
  queue_.push_back(std::move(event));
}

void EventPrinter::Print() {
  absl::MutexLock print(&print_mu_);
  std::deque<EventRecord> events;
  {
    absl::MutexLock lock(&queue_mu_);
    events.swap(queue_);
  }
  for (const EventRecord& event : events) Print(event);
  if (!events.empty()) Settle(events.back().time);
}

void EventPrinter::Print(const EventRecord& event) {
  const LogLevel level = LevelOf(event.severity);
  if (!logger_->WouldLog(level)) return;
  const std::optional<uint64_t> left_out = budget_.Take(event.party.Account(), event.time);
  if (!left_out.has_value()) return;
  if (*left_out > 0) {
    logger_->Warn("events of a user were left out of the log",
                  {{"uid", event.party.uid}, {"lines", *left_out}});
  }
  logger_->Log(level, "event",
               {{"kind", event.kind},
                {"job", event.job},
                {"rank", event.rank},
                {"pid", event.pid},
                {"uid", event.party.uid},
                {"text", event.text}});
}

void EventPrinter::Settle(absl::Time now) {
  if (now - settled_ < kSettleEvery && now >= settled_) return;
  settled_ = now;
  const LogBudget::LeftOut left_out = budget_.Settle(now);
  if (left_out.lines == 0) return;
  logger_->Warn("events were left out of the log", {{"lines", left_out.lines},
                                                    {"tenants", left_out.n_tenants},
                                                    {"one_of_them", left_out.one.Text()}});
}

}  // namespace iris::server
