// Daemon: holds the mutex around the job machine, feeds it inputs, and carries out its effects. It
// decides nothing.
//
// Thread-safe. Borrows the driver, the clock, the logger and the session output; all outlive it.
// Effects are queued in order under the mutex; answers, stream writes and log lines, which may call
// foreign code, run after the mutex is released.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/driver/gpu_driver.h"
#include "server/account/accounts.h"
#include "server/events/event_log.h"
#include "server/events/log.h"
#include "server/host/job_pages.h"
#include "server/host/limits.h"
#include "server/host/segment_store.h"
#include "server/host/threads.h"
#include "server/job/clock.h"
#include "server/job/effects.h"
#include "server/job/ids.h"
#include "server/job/inputs.h"
#include "server/job/job_machine.h"
#include "server/keep/descriptor_keeper.h"
#include "server/keep/inherited.h"
#include "server/recording/recorder.h"
#include "server/session/outbox.h"
#include "server/state/journal.h"

namespace iris::server {

// One watch stream. Push queues, in order, with the daemon's mutex held; Kick sends the queue.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // Returns false if the queue is full because the reader is too slow.
  virtual bool Push(const WatchItem& item) = 0;
  virtual void Kick() = 0;
  // Ends the stream after the queued items. Idempotent.
  virtual void Close(const absl::Status& status) = 0;
};

// Holds each session's watch stream, and streams that the machine has not accepted yet. Not
// thread-safe: the daemon locks.
class WatchStreams {
 public:
  using Sink = std::shared_ptr<WatchSink>;

  // Adds a stream that waits for the reply to `call`, which accepts or refuses it.
  void Offer(CallId call, SessionId session, Sink sink) {
    offered_[call] = {session, std::move(sink)};
  }
  // Returns the stream that `call` offered, or null if `call` is not a watch. An accepted stream
  // becomes its session's.
  Sink Answer(CallId call, bool accepted) {
    const auto found = offered_.extract(call);
    if (found.empty()) return nullptr;
    const auto& [session, sink] = found.mapped();
    if (accepted) streams_[session] = sink;
    return sink;
  }
  // Returns the session's stream, or null if it has none.
  Sink Find(SessionId session) const {
    const auto it = streams_.find(session);
    return it == streams_.end() ? nullptr : it->second;
  }
  // Removes and returns the session's stream, or null if it has none.
  Sink Take(SessionId session) {
    auto found = streams_.extract(session);
    return found.empty() ? nullptr : std::move(found.mapped());
  }

 private:
  std::map<CallId, std::pair<SessionId, Sink>> offered_;
  std::map<SessionId, Sink> streams_;
};

// Carries the daemon's commands to sessions. Implementations only queue them, and never call back.
class SessionOutput {
 public:
  virtual ~SessionOutput() = default;
  virtual void SendDescriptors(SessionId session, std::vector<OutgoingDescriptor> descriptors) = 0;
  virtual void EndSession(SessionId session, const absl::Status& reason) = 0;
  // Frees a session that has hung up, or whose process has ended. No later input may name it.
  virtual void ReleaseSession(SessionId session) = 0;
};

// A segment for a port process.
struct PortSegment {
  SegmentInfo info;
  std::string device_uuid;
  std::function<absl::StatusOr<int>()> open;  // the caller owns the result
};

// What a port process has reported of itself and of its connections. It may lie: it is its user's.
struct PortReport {
  struct Peer {
    bool connected = false;
    std::string address;
    uint64_t heard_ms = 0;           // before the report
    std::optional<uint64_t> rtt_us;  // none: not measured yet
    // Its steady clock minus this node's, and the largest error when it was reported; none: as
    // above.
    std::optional<int64_t> clock_ahead_ns;
    std::optional<uint64_t> clock_error_ns;
    std::string transport;
    uint64_t sent_bytes = 0;
    uint64_t received_bytes = 0;
  };
  absl::Time at;  // on the steady clock
  std::string ucx_version;
  std::string transports;
  std::string address;
  std::map<NodeId, Peer> peers;
  uint64_t refused_messages = 0;
  uint64_t refused_connections = 0;
};

// Carries the daemon's commands to port processes. Implementations only queue them, and never call
// back; what ports say comes as inputs.
class PortOutput {
 public:
  virtual ~PortOutput() = default;
  // `ports`: of the ranks of this node, in order.
  virtual void Start(const StartPort& wanted,
                     std::vector<std::shared_ptr<const RankPort>> ports) = 0;
  // `kept`: the descriptors of the port process that an earlier irisd kept, in any order.
  virtual void Attach(const AttachPort& wanted, std::vector<wire::UniqueFd> kept) = 0;
  virtual void LayOut(const SetLayout& layout, std::vector<PortSegment> segments) = 0;
  virtual void Send(const SendToNode& message) = 0;
  virtual void Stop(JobId job) = 0;
  // Returns the last report of the job's port, which is checked; none if it is not open.
  virtual std::optional<PortReport> ReportOf(JobId job) const = 0;
};

struct DaemonOptions {
  JobLimits limits;
  UnusablePairs unusable;  // from the self-check; pairs that the driver denies are added
  uint64_t core_memory_bytes = 1ull << 30;
  int n_workers = 2;
  std::unique_ptr<Recorder> recorder;  // null if nothing is recorded
  // The machine of an earlier irisd (see MachineOf). If it is null, the daemon begins with nothing.
  std::unique_ptr<JobMachine> machine;
};

// Where state and descriptors are kept for the next irisd.
struct Keeping {
  DescriptorKeeper* keeper = nullptr;  // outlives the daemon
  std::string directory;               // of the journal
  JournalOwner owner;
};

class Daemon {
 public:
  Daemon(DaemonOptions options, driver::GpuDriver* driver, const Clock* clock,
         const Logger* logger);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns the machine of a stored state, or the error of MachineState::Decode.
  static absl::StatusOr<std::unique_ptr<JobMachine>> MachineOf(const state::MachineState& state,
                                                               const DaemonOptions& options,
                                                               driver::GpuDriver* driver);

  // From now on, stores the state before a change is reported, and keeps descriptors. The machine
  // of an earlier irisd takes its memory, pages and port processes from `inherited`; sessions
  // without a socket in it are lost. Memory and pages that the machine does not know are closed
  // first, so that their names are free, and port processes that it does not continue are killed;
  // `close` closes descriptors of clients. Call it once, before the first session, after
  // SetSessionOutput and SetPortOutput. On an error nothing else has happened, and a stored state
  // stays. kResourceExhausted also if this process cannot adopt memory now; that memory is not
  // lost.
  using CloseOf = std::function<void(const Party& tenant, wire::UniqueFd fd)>;
  absl::Status Keep(const Keeping& keeping, Inherited* inherited, const CloseOf& close)
      ABSL_LOCKS_EXCLUDED(mu_);
  struct KeptSnapshot {
    uint64_t generation = 0;
    uint64_t descriptors = 0;
    uint64_t max_descriptors = 0;
    uint64_t state_bytes = 0;
    absl::Status status;  // an error if something is not kept
  };
  std::optional<KeptSnapshot> Kept() const ABSL_LOCKS_EXCLUDED(mu_);
  // Closes and reports the descriptors that remain in `inherited` after Keep, and makes `keeper`
  // drop them, except those with repeated names.
  void CloseOrphans(DescriptorKeeper* keeper, Inherited* inherited) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the next irisd begin with nothing.
  void StopKeeping() ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the output. Call it before the first session. With null, descriptors are dropped.
  void SetSessionOutput(SessionOutput* output) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the output for ports. Without it, jobs that span several nodes fail.
  void SetPortOutput(PortOutput* output) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the machine an input that has no answer, and carries out its effects.
  void Submit(const Input& input) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the machine a call, whose id `input` also has. `answer` runs exactly once, with no lock
  // held, perhaps before Call returns; never after Cancel returned true.
  using Answer = std::function<void(const Reply&)>;
  CallId NewCall();
  // Call fills in the `room` of a Join or an operation, for the account on whose behalf this thread
  // works. AdoptSegment refers by index to elements of `registered`, memory that came with the
  // call; the daemon drops the others.
  using Registered = std::vector<std::unique_ptr<driver::PhysicalMemory>>;
  void Call(CallId call, Input input, Answer answer, Registered registered = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if the call was pending: its answer will not run. Returns false if the call was
  // answered or is being answered.
  bool Cancel(CallId call) ABSL_LOCKS_EXCLUDED(mu_);

  // Offers `sink` as the session's watch stream. If the machine accepts, the first queued event is
  // WatchEstablished. If it refuses, the sink is closed with the reason.
  void Watch(const WatchOpened& input, std::shared_ptr<WatchSink> sink) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets a stream that has already ended.
  void Unwatch(SessionId session, const WatchSink* sink) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `look` on the machine under the mutex, to take snapshots.
  template <typename F>
  auto Inspect(F&& look) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::forward<F>(look)(std::as_const(*machine_));
  }

  absl::Time SteadyNow() const { return clock_->Now(); }

  // Returns one page per rank, or none if the job has no pages.
  std::vector<std::shared_ptr<const PageFile>> ControlPages(JobId job) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns PortOutput::ReportOf.
  std::optional<PortReport> PortReportOf(JobId job) const ABSL_LOCKS_EXCLUDED(mu_);

  // Sends descriptors of these segments to a session, which need not be in the job. Returns
  // kNotFound if the memory is gone.
  absl::Status Lend(SessionId session, JobId job, uint64_t epoch,
                    const std::vector<SegmentInfo>& segments, driver::Access access)
      ABSL_LOCKS_EXCLUDED(mu_);

  const driver::GpuDriver& driver() const { return *driver_; }
  const SegmentStore& segments() const { return segments_; }
  Accounts& accounts() { return accounts_; }
  const Accounts& accounts() const { return accounts_; }
  EventLog& events() { return events_; }
  const EventLog& events() const { return events_; }

  // Returns free memory to the kernel, on a worker thread. Call it after sessions have ended.
  void TrimMemory();

  // Stops the machine, and ends the readers of events. Idempotent.
  void Stop(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

 private:
  // Work that runs after the mutex is released.
  struct Deferred {
    std::vector<std::pair<Answer, Reply>> answers;
    std::vector<std::shared_ptr<WatchSink>> kicks;
    std::vector<std::pair<std::shared_ptr<WatchSink>, absl::Status>> closes;
    Registered registered;  // memory that came with the call
  };

  Daemon(MachineSetup setup, DaemonOptions options, driver::GpuDriver* driver, const Clock* clock,
         const Logger* logger);

  void Apply(const Input& input, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Effects Decide(const Input& input) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(Effects* effects, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stores the change that the last input made.
  void StoreChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Logs the first failure after a success, and the first success after a failure.
  void Tell(const absl::Status& status, bool* fails, const char* failing, const char* again) const;
  absl::Status RestoreMemory(const Keeping& keeping, const CloseOf& close, Inherited* inherited,
                             Recovered* recovered) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<JobPages*> PagesOf(JobId job) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void CloseUnknownMemory(DescriptorKeeper* keeper, Inherited* inherited) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveUp(DescriptorKeeper* keeper, const std::string& name, size_t n, const std::string& what)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(Deferred deferred) ABSL_LOCKS_EXCLUDED(mu_);

  void Perform(Reply& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(ReleaseSession& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(CreatePages& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(DropPages& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(CreateSegment& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(AdoptSegment& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(ImportSegment& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(DropSegment& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(SendDescriptors& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(SetRankState& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(NotifyWatch& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(EndWatch& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(StartPort& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(SetLayout& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(AttachPort& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(SendToNode& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(StopPort& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(EmitEvent& effect, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  driver::GpuDriver* const driver_;
  const Clock* const clock_;
  const Logger* const logger_;
  Accounts accounts_;
  EventLog events_;
  EventPrinter printer_;
  std::atomic<uint64_t> next_call_{1};
  std::atomic<bool> stopping_{false};
  WorkerPool workers_;  // for slow work: to reserve pages, and to free memory
  WorkerPool creator_;  // creates without reserving: quick, and must not wait for slow work
  HostMemory host_memory_;
  SegmentStore segments_;

  mutable absl::Mutex mu_;
  SessionOutput* output_ ABSL_GUARDED_BY(mu_) = nullptr;
  PortOutput* ports_ ABSL_GUARDED_BY(mu_) = nullptr;
  const std::unique_ptr<JobMachine> machine_ ABSL_PT_GUARDED_BY(mu_);
  const std::unique_ptr<Recorder> recorder_ ABSL_PT_GUARDED_BY(mu_);  // null: none
  DescriptorKeeper* keeper_ ABSL_GUARDED_BY(mu_) = nullptr;           // null if nothing is kept
  std::unique_ptr<Journal> journal_ ABSL_GUARDED_BY(mu_);  // null if the state is not stored
  bool journal_fails_ ABSL_GUARDED_BY(mu_) = false;
  bool keeper_waits_ ABSL_GUARDED_BY(mu_) = false;  // until its manager takes messages
  // Time of the next attempt to store or keep after a failure, even without an input.
  absl::Time store_again_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::string change_ ABSL_GUARDED_BY(mu_);   // reused
  absl::Time now_wall_ ABSL_GUARDED_BY(mu_);  // of the input whose effects are carried out
  std::unordered_map<uint64_t, Answer> calls_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, absl::StatusOr<std::unique_ptr<JobPages>>> pages_ ABSL_GUARDED_BY(mu_);
  std::map<JobId, std::vector<wire::UniqueFd>> kept_ports_ ABSL_GUARDED_BY(mu_);  // within Keep
  WatchStreams watches_ ABSL_GUARDED_BY(mu_);
  DeadlineTimer timer_;
};

}  // namespace iris::server
