#include "server/daemon.h"

#include <malloc.h>
#include <unistd.h>

#include <utility>
#include <variant>

#include "server/heap/check.h"
#include "server/heap/ledger.h"

namespace iris::server {
namespace {

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

}  // namespace

Daemon::Daemon(DaemonOptions options, driver::GpuDriver* driver, const Clock* clock,
               const Logger* logger)
    : Daemon(MachineSetup{options.limits, AccountsOf(*driver), geteuid(),
                          UnusableOf(options, *driver)},
             std::move(options), driver, clock, logger) {}

Daemon::Daemon(const MachineSetup& setup, DaemonOptions options, driver::GpuDriver* driver,
               const Clock* clock, const Logger* logger)
    : driver_(driver),
      clock_(clock),
      logger_(logger),
      accounts_(options.core_memory_bytes),
      printer_(logger),
      workers_(options.n_workers),
      creator_(1),
      segments_(
          driver, &host_memory_, &creator_, &workers_,
          [this](const Input& input) { Submit(input); }, logger),
      descriptors_(driver, &segments_, logger),
      machine_(setup.limits, setup.MakeLedger(), setup.unusable),
      recorder_(std::move(options.recorder)),
      timer_(clock, [this] { Submit(Tick{}); }) {
  absl::MutexLock lock(&mu_);
  if (recorder_ != nullptr) recorder_->Begin(setup);
}

Daemon::~Daemon() {
  Stop("irisd ends");
  timer_.Stop();
  creator_.Stop();
  workers_.Stop();
  absl::MutexLock lock(&mu_);
  if (recorder_ == nullptr) return;
  logger_->Info("the recording ends", {{"file", recorder_->file()},
                                       {"bytes", recorder_->bytes()},
                                       {"inputs_dropped", recorder_->n_dropped()}});
}

void Daemon::SetSessionOutput(SessionOutput* output) {
  absl::MutexLock lock(&mu_);
  output_ = output;
}

// Inputs.

void Daemon::Submit(const Input& input) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    Apply(input, &deferred);
  }
  Finish(std::move(deferred));
}

CallId Daemon::NewCall() { return CallId{next_call_.fetch_add(1, std::memory_order_relaxed)}; }

void Daemon::Call(CallId call, Input input, Answer answer) {
  Call(call, std::move(input), std::move(answer), {});
}

void Daemon::Call(CallId call, Input input, Answer answer, Registered registered) {
  if (auto* join = std::get_if<JoinCall>(&input)) join->spec.room = accounts_.Room();
  if (auto* operate = std::get_if<OperateCall>(&input)) operate->spec.room = accounts_.Room();
  Deferred deferred;
  deferred.registered = std::move(registered);
  {
    absl::MutexLock lock(&mu_);
    calls_.emplace(call.value, std::move(answer));
    Apply(input, &deferred);
  }
  Finish(std::move(deferred));
}

bool Daemon::Cancel(CallId call) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    if (calls_.erase(call.value) == 0) return false;
    Apply(CallCancelled{call}, &deferred);
  }
  Finish(std::move(deferred));
  return true;
}

void Daemon::Watch(const WatchOpened& input, std::shared_ptr<WatchSink> sink) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    watches_.Offer(input.call, input.session, std::move(sink));
    Apply(input, &deferred);
  }
  Finish(std::move(deferred));
}

absl::Status Daemon::Lend(SessionId session, JobId job, uint64_t epoch,
                          const std::vector<SegmentInfo>& segments, driver::Access access) {
  absl::StatusOr<std::vector<OutgoingDescriptor>> descriptors = descriptors_.BuildSegments(
      {.session = session, .job = job, .epoch = epoch, .segments = segments}, access);
  if (!descriptors.ok()) return descriptors.status();
  absl::MutexLock lock(&mu_);
  if (output_ == nullptr) return absl::UnavailableError("irisd is stopping");
  output_->SendDescriptors(session, *std::move(descriptors));
  return absl::OkStatus();
}

void Daemon::Unwatch(SessionId session, const WatchSink* sink) {
  std::shared_ptr<WatchSink> gone;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  if (watches_.Find(session).get() == sink) gone = watches_.Take(session);
}

void Daemon::TrimMemory() {
  workers_.Post([] { malloc_trim(0); });
}

void Daemon::Stop(const std::string& reason) {
  if (stopping_.exchange(true)) return;
  Submit(StopRequested{reason});
  events_.Close();
}

// Effects.

void Daemon::Apply(const Input& input, Deferred* deferred) {
  const Time now = {clock_->Now(), clock_->Wall()};
  now_wall_ = now.wall;
  Effects effects = machine_.Apply(input, now);
  if (recorder_ != nullptr && !recorder_->Record(input, now, effects)) {
    effects.push_back(
        EmitEvent{{.detail = event::RecordingFull{recorder_->file(), recorder_->bytes()}}});
  }
  for (Effect& effect : effects) {
    std::visit([this, deferred](auto& e)
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { this->Perform(e, deferred); },
               effect);
  }
  timer_.Set(machine_.NextDeadline());
}

void Daemon::Finish(Deferred deferred) {
  for (auto& [answer, reply] : deferred.answers) answer(reply);
  for (const std::shared_ptr<WatchSink>& sink : deferred.kicks) sink->Kick();
  for (const auto& [sink, status] : deferred.closes) sink->Close(status);
  printer_.Print();
}

void Daemon::Perform(Reply& effect, Deferred* deferred) {
  if (const auto sink = watches_.Answer(effect.call, effect.status.ok()); sink != nullptr) {
    if (!effect.status.ok()) deferred->closes.emplace_back(sink, effect.status);
    return;
  }
  const auto it = calls_.find(effect.call.value);
  if (it == calls_.end()) return;  // cancelled
  deferred->answers.emplace_back(std::move(it->second), std::move(effect));
  calls_.erase(it);
}

void Daemon::Perform(ReleaseSession& effect, Deferred* /*deferred*/) {
  if (output_ != nullptr) output_->ReleaseSession(effect.session);
}

void Daemon::Perform(CreatePages& effect, Deferred* /*deferred*/) {
  absl::StatusOr<std::unique_ptr<JobPages>> pages =
      JobPages::Create(effect.job, effect.n_ranks, effect.epoch);
  if (pages.ok()) {
    pages_[effect.job] = *std::move(pages);
    return;
  }
  // Who needs them is told when they should be sent.
  logger_->Error("cannot create the pages of a job",
                 {{"job_id", effect.job.value}, {"error", pages.status().ToString()}});
}

std::vector<std::shared_ptr<const PageFile>> Daemon::ControlPages(JobId job) const {
  std::vector<std::shared_ptr<const PageFile>> pages;
  absl::MutexLock lock(&mu_);
  const auto found = pages_.find(job);
  if (found == pages_.end()) return pages;
  for (Rank rank = 0; rank < found->second->n_ranks(); ++rank) {
    pages.push_back(found->second->control_page(rank));
  }
  return pages;
}

void Daemon::Perform(DropPages& effect, Deferred* /*deferred*/) { pages_.erase(effect.job); }

void Daemon::Perform(CreateSegment& effect, Deferred* /*deferred*/) { segments_.Create(effect); }

void Daemon::Perform(AdoptSegment& effect, Deferred* deferred) {
  IRIS_CHECK(effect.index < deferred->registered.size(), "a call's descriptors were counted");
  segments_.Adopt(effect, std::move(deferred->registered[effect.index]));
}

void Daemon::Perform(DropSegment& effect, Deferred* /*deferred*/) { segments_.Drop(effect.id); }

void Daemon::Perform(SendDescriptors& effect, Deferred* /*deferred*/) {
  if (output_ == nullptr) return;
  const auto pages = pages_.find(effect.job);
  absl::StatusOr<std::vector<OutgoingDescriptor>> descriptors =
      descriptors_.Build(effect, pages == pages_.end() ? nullptr : pages->second.get());
  if (descriptors.ok()) {
    output_->SendDescriptors(effect.session, *std::move(descriptors));
  } else {
    output_->EndSession(effect.session, descriptors.status());
  }
}

void Daemon::Perform(SetRankState& effect, Deferred* /*deferred*/) {
  const auto it = pages_.find(effect.job);
  if (it == pages_.end()) return;
  it->second->SetRankState(effect.rank, effect.state, effect.pid, effect.abort);
}

void Daemon::Perform(NotifyWatch& effect, Deferred* deferred) {
  const std::shared_ptr<WatchSink> sink = watches_.Find(effect.session);
  if (sink == nullptr) return;
  if (sink->Push(effect.event)) {
    deferred->kicks.push_back(sink);
    return;
  }
  const absl::Status slow = absl::ResourceExhaustedError(
      "the watch stream's reader is too slow: its queue is full; the session is ended");
  deferred->closes.emplace_back(watches_.Take(effect.session), slow);
  if (output_ != nullptr) output_->EndSession(effect.session, slow);
}

void Daemon::Perform(EndWatch& effect, Deferred* deferred) {
  std::shared_ptr<WatchSink> sink = watches_.Take(effect.session);
  if (sink != nullptr) deferred->closes.emplace_back(std::move(sink), effect.status);
}

void Daemon::Perform(EmitEvent& effect, Deferred* /*deferred*/) {
  EventRecord event = Render(effect.event, now_wall_);
  printer_.Push(event);
  events_.Add(std::move(event));
}

}  // namespace iris::server
