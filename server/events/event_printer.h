// EventPrinter: writes events of all threads to the log, in the order in which they happened, at a
// bounded rate for each user and for all (LogBudget). Thread-safe. Borrows the logger.
#pragma once

#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/events/event_log.h"
#include "server/events/log.h"
#include "server/session/log_budget.h"

namespace iris::server {

class EventPrinter {
 public:
  explicit EventPrinter(const Logger* logger) : logger_(logger) {}

  // Queues; never waits for the log.
  void Push(EventRecord event) ABSL_LOCKS_EXCLUDED(queue_mu_);

  // Passes the queue to the logger, which has all earlier events when Print returns.
  void Print() ABSL_LOCKS_EXCLUDED(print_mu_, queue_mu_);

 private:
  void Print(const EventRecord& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(print_mu_);
  void Settle(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(print_mu_);

  const Logger* const logger_;
  absl::Mutex print_mu_ ABSL_ACQUIRED_BEFORE(queue_mu_);  // one writes at a time: so order is kept
  LogBudget budget_ ABSL_GUARDED_BY(print_mu_){kEventLogRates};
  absl::Time settled_ ABSL_GUARDED_BY(print_mu_) = absl::InfinitePast();
  absl::Mutex queue_mu_;
  std::deque<EventRecord> queue_ ABSL_GUARDED_BY(queue_mu_);
};

}  // namespace iris::server
