#include "server/daemon.h"

#include <malloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/heap/check.h"
#include "server/job/event_kinds.h"

namespace iris::server {
namespace {

// How long a session has to hang up after its Join was cancelled, before that counts as its wish.
constexpr absl::Duration kWithdrawAfter = absl::Milliseconds(200);

std::vector<Ledger::DeviceAccount> AccountsOf(const driver::GpuDriver& driver) {
  std::vector<Ledger::DeviceAccount> accounts;
  for (const driver::DeviceInfo& device : driver.devices()) {
    Ledger::DeviceAccount account;
    account.uuid = device.uuid;
    account.memory_bytes = device.memory_bytes;
    account.granularity_bytes = device.granularity_bytes;
    accounts.push_back(std::move(account));
  }
  return accounts;
}

UnusablePairs UnusableOf(const DaemonOptions& options, driver::GpuDriver& driver) {
  UnusablePairs pairs = options.unusable;
  for (const driver::DeviceInfo& from : driver.devices()) {
    for (const driver::DeviceInfo& to : driver.devices()) {
      if (from.index == to.index) continue;
      absl::Status access = driver.CanAccessPeer(from.index, to.index);
      if (!access.ok()) pairs.try_emplace({from.index, to.index}, std::move(access));
    }
  }
  return pairs;
}

// A creation that fails for another reason than want of memory fails because of the device.
absl::Status OfDevice(const driver::DeviceInfo& device, const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status) || absl::IsInvalidArgument(status)) {
    return status;
  }
  return absl::UnavailableError(absl::StrCat(
      "device ", device.index, " (", device.uuid, ", ", device.name, ") does not work: ",
      status.message(), ": look at the kernel's log, then restart irisd; until then use others"));
}

}  // namespace

// Memory of a segment. Whoever lets go of it last hands it to the workers, which free it.
class Daemon::HeldMemory {
 public:
  HeldMemory(Daemon* daemon, SegmentId segment, std::unique_ptr<driver::PhysicalMemory> memory)
      : daemon_(daemon), segment_(segment), memory_(std::move(memory)) {}
  ~HeldMemory() { daemon_->Retire(segment_, std::move(memory_)); }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  driver::PhysicalMemory& memory() { return *memory_; }

 private:
  Daemon* const daemon_;
  const SegmentId segment_;
  std::unique_ptr<driver::PhysicalMemory> memory_;
};

Daemon::Daemon(const DaemonOptions& options, driver::GpuDriver* driver, const Clock* clock,
               const Logger* logger)
    : driver_(driver),
      clock_(clock),
      logger_(logger),
      workers_(options.n_workers),
      creator_(1),
      ledger_(AccountsOf(*driver), geteuid()),
      machine_(options.limits, &ledger_, clock, UnusableOf(options, *driver)) {
  CreateLinks();
  timer_wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  IRIS_CHECK(timer_wake_.valid(), "an eventfd can be made at start");
  timer_ = std::thread([this] { RunTimer(); });
}

Daemon::~Daemon() {
  Stop("irisd ends");
  {
    absl::MutexLock lock(&mu_);
    timer_ends_ = true;
  }
  WakeTimer();
  timer_.join();
  creator_.Stop();
  workers_.Stop();
  // From here on Retire frees at once.
  std::map<uint64_t, Segment> segments;
  absl::MutexLock lock(&mu_);
  segments.swap(segments_);
}

void Daemon::CreateLinks() {
  if (driver_->link_bytes() == 0) return;
  for (const driver::DeviceInfo& device : driver_->devices()) {
    auto link = driver_->Create(device.index, driver_->link_bytes(), /*prealloc=*/false);
    if (!link.ok()) {
      logger_->Warn("no links between devices: joins will be slower",
                    {{"device", device.uuid}, {"error", link.status().ToString()}});
      links_.clear();
      return;
    }
    links_.push_back(*std::move(link));
  }
}

void Daemon::SetSessionOutput(SessionOutput* output) {
  absl::MutexLock lock(&mu_);
  output_ = output;
}

template <typename F>
void Daemon::Input(F&& input) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    Apply(input(), &deferred);
  }
  Finish(std::move(deferred));
}

template <typename F>
void Daemon::Call(CallId call, Answer answer, F&& input) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    calls_.emplace(call.value, std::move(answer));
    Apply(input(), &deferred);
  }
  Finish(std::move(deferred));
}

void Daemon::OpenSession(SessionId session, const CallerInfo& caller) {
  Input([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return machine_.OpenSession(session, caller); });
}

bool Daemon::HangUp(SessionId session, const std::string& reason) {
  Deferred deferred;
  bool keep = false;
  {
    absl::MutexLock lock(&mu_);
    CloseWatch(session, absl::AbortedError(absl::StrCat("the session ended: ", reason)), &deferred);
    Apply(machine_.HangUp(session), &deferred);
    keep = machine_.HoldsRank(session);
    if (!keep) Apply(machine_.Gone(session), &deferred);
  }
  Finish(std::move(deferred));
  return keep;
}

void Daemon::Gone(SessionId session) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    CloseWatch(session, absl::AbortedError("the session's process is gone"), &deferred);
    Apply(machine_.Gone(session), &deferred);
  }
  Finish(std::move(deferred));
}

CallId Daemon::NewCall() { return CallId{next_call_.fetch_add(1, std::memory_order_relaxed)}; }

void Daemon::Join(SessionId session, CallId call, const JoinSpec& spec, Answer answer) {
  Call(call, std::move(answer), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // One that the session cancelled just now is over at last.
    Effects effects = WithdrawJoins(absl::InfinitePast(), session);
    joins_[call.value] = session;
    for (Effect& effect : machine_.Join(session, call, spec)) effects.push_back(std::move(effect));
    return effects;
  });
}

void Daemon::Mapped(SessionId session, CallId call, JobId job, uint64_t epoch, uint64_t base,
                    const std::string& error, Answer answer) {
  Call(call, std::move(answer), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return machine_.Mapped(session, call, job, epoch, base, error);
  });
}

void Daemon::Operate(SessionId session, CallId call, const OperationSpec& spec, Answer answer) {
  Call(call, std::move(answer),
       [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return machine_.Operate(session, call, spec); });
}

void Daemon::GrowMapped(SessionId session, CallId call, JobId job, GrowId grow,
                        const std::string& error, Answer answer) {
  Call(call, std::move(answer), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return machine_.GrowMapped(session, call, job, grow, error);
  });
}

void Daemon::Leave(SessionId session, CallId call, JobId job, Answer answer) {
  Call(call, std::move(answer),
       [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return machine_.Leave(session, call, job); });
}

void Daemon::Resume(SessionId session, CallId call, JobId job, const std::string& name,
                    int32_t rank, uint64_t epoch, Answer answer) {
  Call(call, std::move(answer), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return machine_.Resume(session, call, job, name, rank, epoch);
  });
}

bool Daemon::Cancel(CallId call) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    if (calls_.erase(call.value) == 0) return false;
    const auto join = joins_.find(call.value);
    if (join == joins_.end()) {
      Apply(machine_.Cancelled(call), &deferred);
    } else {
      cancelled_joins_.push_back({clock_->Now() + kWithdrawAfter, join->second, call});
      joins_.erase(join);
      Apply({}, &deferred);
    }
  }
  Finish(std::move(deferred));
  return true;
}

absl::Status Daemon::Watch(SessionId session, JobId job, std::shared_ptr<WatchSink> sink) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    if (stopping()) return absl::UnavailableError("irisd is stopping");
    absl::StatusOr<Effects> effects = machine_.WatchStarted(session, job);
    if (!effects.ok()) return effects.status();
    CloseWatch(session, absl::CancelledError("a newer watch stream took this one's place"),
               &deferred);
    watches_[session.value] = std::move(sink);
    PushWatch(session, WatchEstablished{}, &deferred);
    Apply(*std::move(effects), &deferred);
  }
  Finish(std::move(deferred));
  return absl::OkStatus();
}

void Daemon::Unwatch(SessionId session, const WatchSink* sink) {
  std::shared_ptr<WatchSink> gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = watches_.find(session.value);
  if (it == watches_.end() || it->second.get() != sink) return;
  gone = std::move(it->second);
  watches_.erase(it);
}

std::vector<JobSnapshot> Daemon::Jobs(const JobQuery& query) const {
  absl::MutexLock lock(&mu_);
  return machine_.Jobs(query);
}

size_t Daemon::n_jobs() const {
  absl::MutexLock lock(&mu_);
  return machine_.n_jobs();
}

std::vector<SessionSnapshot> Daemon::Sessions() const {
  absl::MutexLock lock(&mu_);
  return machine_.Sessions();
}

std::vector<Ledger::DeviceAccount> Daemon::Accounts() const {
  absl::MutexLock lock(&mu_);
  return ledger_.devices();
}

absl::Status Daemon::ReadSegment(SegmentId segment, uint64_t offset_bytes,
                                 absl::Span<uint8_t> out) const {
  std::shared_ptr<HeldMemory> held;
  {
    absl::MutexLock lock(&mu_);
    const auto it = segments_.find(segment.value);
    if (it != segments_.end()) held = it->second.memory;
  }
  if (held == nullptr) {
    return absl::NotFoundError(absl::StrCat("segment ", segment.value, " does not exist"));
  }
  return held->memory().Read(offset_bytes, out);
}

driver::CreateTimes Daemon::TimesOf(SegmentId segment) const {
  absl::MutexLock lock(&mu_);
  const auto it = segments_.find(segment.value);
  if (it == segments_.end() || it->second.memory == nullptr) return {};
  return it->second.memory->memory().times();
}

void Daemon::AddEvent(const EmitEvent& event) {
  Input([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Effects effects;
    effects.emplace_back(event);
    return effects;
  });
}

void Daemon::TrimMemory() {
  workers_.Post([] { malloc_trim(0); });
}

void Daemon::Stop(const std::string& reason) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_.exchange(true)) return;
    Apply(machine_.Stop(), &deferred);
    std::vector<SessionId> watching;
    for (const auto& [session, sink] : watches_) watching.push_back(SessionId{session});
    for (const SessionId session : watching) {
      PushWatch(session, WatchStopping{reason}, &deferred);
      CloseWatch(session, absl::UnavailableError(absl::StrCat("irisd is stopping: ", reason)),
                 &deferred);
    }
  }
  Finish(std::move(deferred));
  events_.Close();
}

// Effects.

void Daemon::Apply(Effects effects, Deferred* deferred) {
  for (Effect& effect : effects) {
    std::visit([this, deferred](auto& e)
                   ABSL_NO_THREAD_SAFETY_ANALYSIS { this->ApplyOne(e, deferred); },
               effect);
  }
  absl::Time next = machine_.NextDeadline();
  if (!cancelled_joins_.empty()) next = std::min(next, cancelled_joins_.front().due);
  if (next != deadline_) {
    // The timer sleeps until the deadline it knows: wake it only for an earlier one.
    const bool earlier = next < deadline_;
    deadline_ = next;
    if (earlier) WakeTimer();
  }
}

void Daemon::ApplyOne(Reply& effect, Deferred* deferred) {
  joins_.erase(effect.call.value);
  const auto it = calls_.find(effect.call.value);
  if (it == calls_.end()) return;  // cancelled
  deferred->answers.emplace_back(std::move(it->second), std::move(effect));
  calls_.erase(it);
}

void Daemon::ApplyOne(CreatePages& effect, Deferred* deferred) {
  absl::StatusOr<std::unique_ptr<JobPages>> pages =
      JobPages::Create(effect.job, effect.n_ranks, effect.epoch);
  if (!pages.ok()) {
    // Who needs them is told when they should be sent.
    logger_->Error("cannot create the pages of a job",
                   {{"job_id", effect.job.value}, {"error", pages.status().ToString()}});
    pages_.erase(effect.job.value);
    return;
  }
  pages_[effect.job.value] = *std::move(pages);
}

void Daemon::ApplyOne(DropPages& effect, Deferred* deferred) { pages_.erase(effect.job.value); }

void Daemon::ApplyOne(CreateSegment& effect, Deferred* deferred) {
  segments_[effect.id.value].device_index = effect.device_index;
  WorkerPool& pool = effect.prealloc ? workers_ : creator_;
  pool.Post([this, effect] { CreateOnWorker(effect); });
}

void Daemon::ApplyOne(DropSegment& effect, Deferred* deferred) {
  const auto it = segments_.find(effect.id.value);
  if (it == segments_.end()) return;
  if (it->second.creating) {
    it->second.drop = true;
    return;
  }
  const SegmentId id = effect.id;
  std::shared_ptr<HeldMemory> memory = std::move(it->second.memory);
  segments_.erase(it);
  // Without memory its creation failed: there is nothing to free, but the machine waits for the
  // report.
  if (memory == nullptr) Retire(id, nullptr);
}

void Daemon::ApplyOne(SendDescriptors& effect, Deferred* deferred) {
  if (output_ == nullptr) return;
  std::vector<OutgoingDescriptor> out;
  const auto record = [&effect](wire::DescriptorKind kind, Rank rank, uint64_t bytes) {
    wire::DescriptorRecord r;
    r.job_id = effect.job.value;
    r.epoch = effect.epoch;
    r.bytes = bytes;
    r.rank = rank;
    r.kind = static_cast<uint32_t>(kind);
    return r;
  };
  absl::Status failed;
  if (effect.pages) {
    const auto it = pages_.find(effect.job.value);
    if (it == pages_.end()) {
      failed = absl::ResourceExhaustedError("irisd could not create the pages of the job");
    } else {
      const JobPages& pages = *it->second;
      out.push_back({record(wire::DescriptorKind::kStatusPage, 0, wire::kPageBytes),
                     [file = pages.status_page()] { return file->Open(/*read_only=*/true); }});
      for (Rank rank = 0; rank < pages.n_ranks(); ++rank) {
        const bool read_only = rank != effect.receiver;
        out.push_back(
            {record(wire::DescriptorKind::kControlPage, rank, wire::kPageBytes),
             [file = pages.control_page(rank), read_only] { return file->Open(read_only); }});
      }
    }
  }
  std::set<uint32_t> devices;
  for (const SegmentInfo& segment : effect.segments) {
    const auto it = segments_.find(segment.id.value);
    if (it == segments_.end() || it->second.memory == nullptr) {
      failed = absl::InternalError(absl::StrCat("segment ", segment.id.value, " has no memory"));
      break;
    }
    OutgoingDescriptor item;
    item.record = record(wire::DescriptorKind::kSegment, segment.rank, segment.bytes);
    item.record.segment_id = segment.id.value;
    item.open = [held = it->second.memory] {
      return held->memory().ExportFd(driver::Access::kReadWrite);
    };
    out.push_back(std::move(item));
    devices.insert(it->second.device_index);
  }
  if (effect.pages && !links_.empty()) {
    for (const uint32_t device : devices) {
      out.push_back(
          {record(wire::DescriptorKind::kLink, device, driver_->link_bytes()),
           [link = links_[device]] { return link->ExportFd(driver::Access::kReadOnly); }});
    }
  }
  if (!failed.ok()) {
    output_->EndSession(effect.session, failed);
    return;
  }
  output_->SendDescriptors(effect.session, std::move(out));
}

void Daemon::ApplyOne(SetRankState& effect, Deferred* deferred) {
  // An irisd that stops closes every session itself. The ranks live on: their barriers must not
  // end.
  if (stopping()) return;
  const auto it = pages_.find(effect.job.value);
  if (it == pages_.end()) return;
  it->second->SetRankState(effect.rank, effect.state, effect.pid, effect.abort);
}

void Daemon::ApplyOne(NotifyWatch& effect, Deferred* deferred) {
  std::visit(
      [this, deferred, &effect](auto& e) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        this->PushWatch(effect.session, WatchItem(std::move(e)), deferred);
      },
      effect.event);
}

void Daemon::ApplyOne(EmitEvent& effect, Deferred* deferred) {
  EventRecord event;
  event.time = clock_->Wall();
  event.kind = effect.kind;
  event.job = effect.job;
  event.rank = effect.rank;
  event.pid = effect.pid;
  event.uid = effect.uid;
  event.text = effect.text;
  events_.Add(std::move(event));
  deferred->logs.push_back(std::move(effect));
}

void Daemon::PushWatch(SessionId session, const WatchItem& item, Deferred* deferred) {
  const auto it = watches_.find(session.value);
  if (it == watches_.end()) return;
  if (it->second->Push(item)) {
    deferred->kicks.push_back(it->second);
    return;
  }
  const absl::Status slow = absl::ResourceExhaustedError(
      "the watch stream's reader is too slow: its queue is full; the session is ended");
  CloseWatch(session, slow, deferred);
  if (output_ != nullptr) output_->EndSession(session, slow);
}

void Daemon::CloseWatch(SessionId session, const absl::Status& status, Deferred* deferred) {
  const auto it = watches_.find(session.value);
  if (it == watches_.end()) return;
  deferred->closes.emplace_back(std::move(it->second), status);
  watches_.erase(it);
}

void Daemon::Finish(Deferred deferred) {
  for (auto& [answer, reply] : deferred.answers) answer(reply);
  for (const std::shared_ptr<WatchSink>& sink : deferred.kicks) sink->Kick();
  for (const auto& [sink, status] : deferred.closes) sink->Close(status);
  for (const EmitEvent& event : deferred.logs) {
    // What happens often is kept for `iris-ctl events`, and written at debug level only.
    const bool often = event.kind == event::kAllocated || event.kind == event::kFreed ||
                       event.kind == event::kSessionOpened || event.kind == event::kSessionHungUp ||
                       event.kind == event::kSessionClosed;
    const LogLevel level = often ? LogLevel::kDebug : LogLevel::kInfo;
    logger_->Log(level, "event",
                 {{"kind", event.kind},
                  {"job", event.job},
                  {"rank", event.rank},
                  {"pid", event.pid},
                  {"uid", event.uid},
                  {"text", event.text}});
  }
}

// Workers and timer.

void Daemon::CreateOnWorker(const CreateSegment& effect) {
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
      driver_->Create(effect.device_index, effect.bytes, effect.prealloc);
  const absl::Status status = OfDevice(driver_->devices()[effect.device_index], memory.status());
  if (!status.ok()) {
    AskDriverForFree(effect.device_index);
    logger_->Warn("cannot create a segment", {{"segment", effect.id.value},
                                              {"bytes", effect.bytes},
                                              {"device", effect.device_index},
                                              {"error", status.ToString()}});
  }
  std::shared_ptr<HeldMemory> held;
  if (memory.ok()) held = std::make_shared<HeldMemory>(this, effect.id, *std::move(memory));
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    const auto it = segments_.find(effect.id.value);
    bool drop = false;
    if (it != segments_.end()) {
      drop = it->second.drop;
      it->second.creating = false;
      if (drop) {
        segments_.erase(it);
      } else {
        it->second.memory = held;
      }
    }
    Apply(machine_.SegmentCreated(effect.id, status), &deferred);
    if (drop && held == nullptr) Retire(effect.id, nullptr);
  }
  held.reset();  // the last hold if it was to be dropped
  Finish(std::move(deferred));
  // Nobody waits for it any more.
  if (status.ok()) AskDriverForFree(effect.device_index);
}

void Daemon::AskDriverForFree(uint32_t device_index) {
  const absl::StatusOr<driver::MemoryInfo> info = driver_->DeviceMemory(device_index);
  if (!info.ok()) return;
  absl::MutexLock lock(&mu_);
  ledger_.SetDriverFree(device_index, info->free_bytes);
}

void Daemon::Retire(SegmentId segment, std::unique_ptr<driver::PhysicalMemory> memory) {
  // Shared, because a std::function must be copyable; moved, because the worker's hold must be the
  // only one.
  std::shared_ptr<driver::PhysicalMemory> shared = std::move(memory);
  workers_.Post([this, segment, shared = std::move(shared)]() mutable {
    shared.reset();
    Input([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return machine_.SegmentDropped(segment); });
  });
}

void Daemon::WakeTimer() {
  const uint64_t one = 1;
  (void)!write(timer_wake_.get(), &one, sizeof(one));  // full: it wakes anyway
}

void Daemon::RunTimer() {
  while (true) {
    absl::Duration wait;
    {
      absl::MutexLock lock(&mu_);
      if (timer_ends_) return;
      wait = deadline_ - clock_->Now();
    }
    if (wait > absl::ZeroDuration()) {
      // poll counts on the steady clock, as deadlines do; a condition variable would not. Bounded,
      // because the clock of a test jumps.
      pollfd wake = {timer_wake_.get(), POLLIN, 0};
      wait = std::min(wait, absl::Seconds(10));
      (void)poll(&wake, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
      uint64_t count;
      (void)!read(timer_wake_.get(), &count, sizeof(count));
      continue;
    }
    Input([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      Effects effects = WithdrawJoins(clock_->Now(), SessionId());
      for (Effect& effect : machine_.Tick()) effects.push_back(std::move(effect));
      return effects;
    });
  }
}

Effects Daemon::WithdrawJoins(absl::Time now, SessionId session) {
  Effects effects;
  std::erase_if(cancelled_joins_, [&](const CancelledJoin& join) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (join.due > now && join.session != session) return false;
    for (Effect& effect : machine_.Cancelled(join.call)) effects.push_back(std::move(effect));
    return true;
  });
  return effects;
}

}  // namespace iris::server
