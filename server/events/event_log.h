// EventLog: the last events of irisd, and their followers. Thread-safe.
//
// When the log is full, it drops the oldest event of the user who has most. A follower that reads
// slowly loses events, and gets their number; it never delays others.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/account/log_budget.h"
#include "server/account/tenant_queue.h"
#include "server/events/log.h"
#include "server/job/events.h"

namespace iris::server {

// A memory resource that gets pages from the kernel, as upstream of a pool. Long-lived objects
// among many short-lived ones would hold pages of the heap that are otherwise free. Thread-safe.
class PageResource : public std::pmr::memory_resource {
 private:
  static size_t Round(size_t bytes) {
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }

  void* do_allocate(size_t bytes, size_t /*alignment*/) override {
    void* const pages =
        mmap(nullptr, Round(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    return pages;
  }
  void do_deallocate(void* pages, size_t bytes, size_t /*alignment*/) override {
    munmap(pages, Round(bytes));
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

inline constexpr size_t kEventsKept = 1024;
inline constexpr size_t kEventsQueuedPerFollower = 256;

struct EventRecord {
  uint64_t sequence = 0;
  absl::Time time;
  Severity severity = Severity::kInfo;
  std::string kind;
  std::string job;
  int32_t rank = -1;
  int64_t pid = 0;
  Party party;
  std::string text;
};

EventRecord Render(const Event& event, absl::Time time);

// One reader's queue. The log calls Push in order of sequence, from any thread, with its lock held,
// so Push only queues.
class EventFollower {
 public:
  virtual ~EventFollower() = default;
  virtual void Push(const EventRecord& event) = 0;
  // Reports that irisd is stopping. Called like Push.
  virtual void End() = 0;
};

class EventLog {
 public:
  // Numbers the event, keeps it, and passes it to the followers.
  void Add(EventRecord event) ABSL_LOCKS_EXCLUDED(mu_);

  // Passes the kept events to `follower`. If `follow`, the log holds `follower` and passes it later
  // events until Unfollow.
  void Read(const std::shared_ptr<EventFollower>& follower, bool follow) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the sequence number of the last event, or 0 if there was none.
  uint64_t last() const ABSL_LOCKS_EXCLUDED(mu_);

  // Ends every follower, and each later one immediately.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // After it has returned, `follower` is not called any more. No-op if `follower` does not follow.
  void Unfollow(const EventFollower* follower) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mu_) = 1;
  // A record with its texts one after another. All records have one size, so that a new one fits in
  // the memory of an old one.
  struct Kept {
    Kept(const EventRecord& event, TenantQueue::Ticket whose);

    EventRecord Record(uint64_t sequence) const;

    absl::Time time;
    TenantQueue::Ticket ticket;
    int64_t pid;
    Party party;
    int32_t rank;
    Severity severity;
    uint32_t kind_bytes, job_bytes, text_bytes;
    char texts[384];
    std::string rest;  // the end of texts that do not fit
  };
  // Kept events are not on the heap: among the short-lived memory of many clients, each event would
  // hold a page.
  PageResource pages_;
  std::pmr::unsynchronized_pool_resource memory_ ABSL_GUARDED_BY(mu_){
      std::pmr::pool_options{.max_blocks_per_chunk = 32, .largest_required_pool_block = 1024},
      &pages_};
  std::pmr::map<uint64_t, Kept> events_ ABSL_GUARDED_BY(mu_){&memory_};  // by sequence number
  TenantQueue users_ ABSL_GUARDED_BY(mu_){&memory_};                     // the users of the events
  std::vector<std::shared_ptr<EventFollower>> followers_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// Writes events of all threads to the log, in the order in which they happened, at a bounded rate
// for each user and for all (LogBudget). Thread-safe. Borrows the logger.
class EventPrinter {
 public:
  explicit EventPrinter(const Logger* logger) : logger_(logger) {}

  // Queues the event, and never waits for the log.
  void Push(EventRecord event) ABSL_LOCKS_EXCLUDED(queue_mu_);

  // Passes the queue to the logger. When Print returns, the logger has all earlier events.
  void Print() ABSL_LOCKS_EXCLUDED(print_mu_, queue_mu_);

 private:
  void Print(const EventRecord& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(print_mu_);
  void Settle(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(print_mu_);

  const Logger* const logger_;
  absl::Mutex print_mu_ ABSL_ACQUIRED_BEFORE(queue_mu_);  // one thread at a time, to keep order
  LogBudget budget_ ABSL_GUARDED_BY(print_mu_){kEventLogRates};
  absl::Time settled_ ABSL_GUARDED_BY(print_mu_) = absl::InfinitePast();
  absl::Mutex queue_mu_;
  std::deque<EventRecord> queue_ ABSL_GUARDED_BY(queue_mu_);
};

}  // namespace iris::server
