// Daemon: the job machine in the real world. It holds the mutex around the machine and carries out
// its effects: answers calls, creates and frees memory on worker threads, writes status pages,
// queues descriptors and watch events, keeps the event log, and wakes the machine at its deadlines.
//
// Thread-safe. Borrows the driver, the clock, the logger and the session output; all outlive it.
// Effects are queued in order under the mutex; what may call foreign code (answers, stream writes,
// log lines) runs after it is released.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "device/driver/gpu_driver.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "server/event_log.h"
#include "server/heap/ledger.h"
#include "server/job/clock.h"
#include "server/job/job_machine.h"
#include "server/job_pages.h"
#include "server/log.h"
#include "server/session/outbox.h"
#include "server/worker_pool.h"

namespace iris::server {

// What the daemon asks of the session side. Implementations queue, and never call back into the
// daemon from here.
class SessionOutput {
 public:
  virtual ~SessionOutput() = default;
  virtual void SendDescriptors(SessionId session, std::vector<OutgoingDescriptor> descriptors) = 0;
  // Tells the session's client `reason` and ends the session.
  virtual void EndSession(SessionId session, const absl::Status& reason) = 0;
};

struct WatchEstablished {};
struct WatchStopping {
  std::string reason;
};
using WatchItem =
    std::variant<WatchEstablished, RankChanged, SegmentsAdded, GrowDone, WatchStopping>;

// One watch stream. Push queues (called in order, under the daemon's mutex); Kick sends what is
// queued.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // False: the reader is too slow, the queue is full.
  virtual bool Push(const WatchItem& item) = 0;
  virtual void Kick() = 0;
  // Ends the stream after what is queued. Idempotent.
  virtual void Close(const absl::Status& status) = 0;
};

struct DaemonOptions {
  JobLimits limits;
  UnusablePairs unusable;  // what a self-check found; what the driver denies is added
  int n_workers = 2;
};

class Daemon {
 public:
  Daemon(const DaemonOptions& options, driver::GpuDriver* driver, const Clock* clock,
         const Logger* logger);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Before the first session. Null: descriptors go nowhere.
  void SetSessionOutput(SessionOutput* output) ABSL_LOCKS_EXCLUDED(mu_);

  // Sessions.
  void OpenSession(SessionId session, const CallerInfo& caller) ABSL_LOCKS_EXCLUDED(mu_);
  // The session's sockets are closed. Returns true if the session still holds a rank and must be
  // kept until Gone; else the daemon has forgotten it.
  bool HangUp(SessionId session, const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);
  void Gone(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls.
  // `answer` runs exactly once, with no lock held, perhaps before the call returns; never after
  // Cancel returned true.
  using Answer = std::function<void(const Reply&)>;
  CallId NewCall();
  void Join(SessionId session, CallId call, const JoinSpec& spec, Answer answer)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Mapped(SessionId session, CallId call, JobId job, uint64_t epoch, uint64_t base,
              const std::string& error, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);
  void Operate(SessionId session, CallId call, const OperationSpec& spec, Answer answer)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GrowMapped(SessionId session, CallId call, JobId job, GrowId grow, const std::string& error,
                  Answer answer) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(SessionId session, CallId call, JobId job, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);
  void Resume(SessionId session, CallId call, JobId job, const std::string& name, int32_t rank,
              uint64_t epoch, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);
  // True: the call was pending and its answer will not run. False: it was answered, or is just
  // being answered.
  // A Join is withdrawn a moment later: when a process dies, its calls can be cancelled before its
  // session hangs up, and then its peers are to hear of the death.
  bool Cancel(CallId call) ABSL_LOCKS_EXCLUDED(mu_);

  // Watch streams.
  // On success the first event queued is WatchEstablished. Replaces the session's earlier stream.
  absl::Status Watch(SessionId session, JobId job, std::shared_ptr<WatchSink> sink)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The stream has ended by itself.
  void Unwatch(SessionId session, const WatchSink* sink) ABSL_LOCKS_EXCLUDED(mu_);

  // What iris-ctl asks.
  std::vector<JobSnapshot> Jobs(const JobQuery& query = {}) const ABSL_LOCKS_EXCLUDED(mu_);
  size_t n_jobs() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<SessionSnapshot> Sessions() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Ledger::DeviceAccount> Accounts() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Span<const driver::DeviceInfo> devices() const { return driver_->devices(); }
  std::string_view backend() const { return driver_->backend(); }
  // Of the piece of each device that a Join sends along; 0: none is.
  uint64_t link_bytes() const { return links_.empty() ? 0 : driver_->link_bytes(); }
  // Copies bytes of a segment. kNotFound: no such segment.
  absl::Status ReadSegment(SegmentId segment, uint64_t offset_bytes, absl::Span<uint8_t> out) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // How long it took to make a segment; zeros if it does not exist.
  driver::CreateTimes TimesOf(SegmentId segment) const ABSL_LOCKS_EXCLUDED(mu_);
  EventLog& events() { return events_; }
  // Notes something that happened outside the machine.
  void AddEvent(const EmitEvent& event) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives free memory back to the system, on a worker: after a crowd of sessions has gone.
  void TrimMemory();

  // Answers every pending and later call with kUnavailable, tells and ends every watch stream.
  // Idempotent.
  void Stop(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

 private:
  class HeldMemory;
  struct Segment {
    bool creating = true;
    bool drop = false;  // asked for while creating
    uint32_t device_index = 0;
    std::shared_ptr<HeldMemory> memory;
  };
  // What runs after the mutex is released.
  struct Deferred {
    std::vector<std::pair<Answer, Reply>> answers;
    std::vector<std::shared_ptr<WatchSink>> kicks;
    std::vector<std::pair<std::shared_ptr<WatchSink>, absl::Status>> closes;
    std::vector<EmitEvent> logs;
  };

  // Runs one input of the machine and carries out what it asks.
  template <typename F>
  void Input(F&& input) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename F>
  void Call(CallId call, Answer answer, F&& input) ABSL_LOCKS_EXCLUDED(mu_);

  void Apply(Effects effects, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(Reply& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(CreatePages& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(DropPages& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(CreateSegment& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(DropSegment& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(SendDescriptors& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(SetRankState& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(NotifyWatch& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyOne(EmitEvent& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void PushWatch(SessionId session, const WatchItem& item, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseWatch(SessionId session, const absl::Status& status, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(Deferred deferred) ABSL_LOCKS_EXCLUDED(mu_);

  void CreateLinks();
  void CreateOnWorker(const CreateSegment& effect) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees memory on a worker, then reports it dropped. Callable with or without the mutex.
  void Retire(SegmentId segment, std::unique_ptr<driver::PhysicalMemory> memory);
  // What the driver says of a device's memory, for messages. Not on a thread that serves sessions.
  void AskDriverForFree(uint32_t device_index) ABSL_LOCKS_EXCLUDED(mu_);
  void WakeTimer();
  void RunTimer() ABSL_LOCKS_EXCLUDED(mu_);

  struct CancelledJoin {
    absl::Time due;
    SessionId session;
    CallId call;
  };
  // Tells the machine of cancelled joins that are due, or of all of one session.
  Effects WithdrawJoins(absl::Time now, SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  driver::GpuDriver* const driver_;
  // One per device, for as long as irisd runs; empty where the driver needs none.
  std::vector<std::shared_ptr<driver::PhysicalMemory>> links_;
  const Clock* const clock_;
  const Logger* const logger_;
  EventLog events_;
  std::atomic<uint64_t> next_call_{1};
  std::atomic<bool> stopping_{false};
  WorkerPool workers_;  // what takes long: reserving pages, freeing
  WorkerPool creator_;  // creating without reserving: quick, and must not wait for the others

  mutable absl::Mutex mu_;
  SessionOutput* output_ ABSL_GUARDED_BY(mu_) = nullptr;
  Ledger ledger_ ABSL_GUARDED_BY(mu_);
  JobMachine machine_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Answer> calls_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, SessionId> joins_ ABSL_GUARDED_BY(mu_);  // pending, by call
  std::vector<CancelledJoin> cancelled_joins_ ABSL_GUARDED_BY(mu_);     // in order of time
  std::map<uint64_t, Segment> segments_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::unique_ptr<JobPages>> pages_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::shared_ptr<WatchSink>> watches_ ABSL_GUARDED_BY(mu_);
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool timer_ends_ ABSL_GUARDED_BY(mu_) = false;
  wire::UniqueFd timer_wake_;  // an eventfd: the timer looks at its deadline again
  std::thread timer_;
};

}  // namespace iris::server
