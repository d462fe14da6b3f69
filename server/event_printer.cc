#include "server/event_printer.h"

#include <utility>

namespace iris::server {
namespace {

LogLevel LevelOf(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
      return LogLevel::kDebug;
    case Severity::kInfo:
      return LogLevel::kInfo;
    case Severity::kWarning:
      return LogLevel::kWarn;
  }
  return LogLevel::kWarn;
}

}  // namespace

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
  for (const EventRecord& event : events) {
    logger_->Log(LevelOf(event.severity), "event",
                 {{"kind", event.kind},
                  {"job", event.job},
                  {"rank", event.rank},
                  {"pid", event.pid},
                  {"uid", event.uid},
                  {"text", event.text}});
  }
}

}  // namespace iris::server
