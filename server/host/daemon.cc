#include "server/host/daemon.h"

#include <malloc.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "server/heap/check.h"
#include "server/heap/ledger.h"
#include "server/host/registered_memory.h"
#include "server/job/text.h"
#include "server/keep/kept_name.h"
#include "server/state/machine_state.h"

namespace iris::server {
namespace {

constexpr auto kStoreAgainAfter = absl::Seconds(1);

std::vector<Ledger::DeviceAccount> AccountsOf(const driver::GpuDriver& driver) {
  std::vector<Ledger::DeviceAccount> accounts;
  for (const driver::DeviceInfo& device : driver.devices()) {
    accounts.push_back({device.uuid, device.memory_bytes, device.granularity_bytes});
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

MachineSetup SetupOf(const DaemonOptions& options, driver::GpuDriver& driver) {
  return {options.limits, AccountsOf(driver), geteuid(), UnusableOf(options, driver), ""};
}

}  // namespace

Daemon::Daemon(DaemonOptions options, driver::GpuDriver* driver, const Clock* clock,
               const Logger* logger)
    : Daemon(SetupOf(options, *driver), std::move(options), driver, clock, logger) {}

Daemon::Daemon(MachineSetup setup, DaemonOptions options, driver::GpuDriver* driver,
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
      machine_(options.machine != nullptr ? std::move(options.machine)
                                          : std::make_unique<JobMachine>(
                                                setup.limits, setup.MakeLedger(), setup.unusable)),
      recorder_(std::move(options.recorder)),
      timer_(clock, [this] { Submit(Tick{}); }) {
  absl::MutexLock lock(&mu_);
  if (recorder_ == nullptr) return;
  if (machine_->n_sessions() > 0) setup.state = MachineState::Encode(*machine_);
  recorder_->Begin(setup);
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

void Daemon::SetPortOutput(PortOutput* output) {
  absl::MutexLock lock(&mu_);
  ports_ = output;
}

absl::StatusOr<std::unique_ptr<JobMachine>> Daemon::MachineOf(const state::MachineState& state,
                                                              const DaemonOptions& options,
                                                              driver::GpuDriver* driver) {
  const MachineSetup setup = SetupOf(options, *driver);
  return MachineState::Decode(state, setup.limits, setup.MakeLedger(), setup.unusable);
}

absl::Status Daemon::Keep(const Keeping& keeping, Inherited* inherited, const CloseOf& close) {
  Recovered recovered{.generation = keeping.owner.generation};
  const absl::Status restored = RestoreMemory(keeping, close, inherited, &recovered);
  if (!restored.ok()) return restored;
  CloseUnknownMemory(keeping.keeper, inherited);
  Deferred deferred;
  std::map<JobId, std::vector<wire::UniqueFd>> unknown_ports;
  {
    absl::MutexLock lock(&mu_);
    kept_ports_ = std::move(inherited->ports);
    Effects effects;
    const bool goes_on = machine_->n_sessions() > 0 || machine_->n_jobs() > 0;
    if (goes_on) effects = Decide(recovered);
    absl::StatusOr<std::unique_ptr<Journal>> journal = Journal::Create(
        keeping.directory, keeping.owner,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return MachineState::Encode(*machine_); },
        goes_on);
    if (!journal.ok()) return journal.status();
    journal_ = *std::move(journal);
    keeper_ = keeping.keeper;
    generation_ = keeping.owner.generation;
    segments_.SetKeeper(keeper_);
    StoreChange();
    CarryOut(&effects, &deferred);
    unknown_ports = std::exchange(kept_ports_, {});
  }
  Finish(std::move(deferred));
  for (const auto& [id, fds] : unknown_ports) {
    for (const wire::UniqueFd& fd : fds) {
      (void)syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);  // if it is a pidfd
    }
    GiveUp(keeping.keeper, KeptName{KeptName::Kind::kPort, id.value}.Text(), fds.size(),
           absl::StrCat("the port process of job ", id.value, ", which does not continue"));
  }
  return absl::OkStatus();
}

absl::Status Daemon::RestoreMemory(const Keeping& keeping, const CloseOf& close,
                                   Inherited* inherited, Recovered* recovered) {
  // Handles memory or pages that cannot be adopted. Returns OK if they are lost because they are
  // invalid, and an error if this process lacks something that the next irisd may have.
  const auto lost = [this, &keeping](const std::string& what, const std::string& name,
                                     const absl::Status& why) {
    if (absl::IsResourceExhausted(why)) {
      return absl::ResourceExhaustedError(absl::StrCat("go on with ", what, ": ", why.message()));
    }
    logger_->Warn("what an earlier irisd kept is not usable, and is lost",
                  {{"what", what}, {"error", why.ToString()}});
    keeping.keeper->Remove(name);
    return absl::OkStatus();
  };
  for (const Segment& segment :
       Inspect([](const JobMachine& machine) { return machine.Segments(); })) {
    auto found = inherited->segments.extract(segment.info.id);
    if (found.empty()) continue;
    const std::string name = KeptName{KeptName::Kind::kSegment, segment.info.id.value}.Text();
    keeping.keeper->Count(name, 1);
    wire::UniqueFd fd = std::move(found.mapped());
    absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
        segment.registered
            ? KeepRegistered(driver_->kind(), fd, segment.info.bytes,
                             [close, account = segment.holder.party.Account()](wire::UniqueFd own) {
                               close(account, std::move(own));
                             })
            : driver_->Adopt(segment.device_index, fd.Release(), segment.info.bytes);
    if (!memory.ok()) {
      const absl::Status is_lost =
          lost(absl::StrCat("segment ", segment.info.id.value), name, memory.status());
      if (!is_lost.ok()) return is_lost;
      continue;
    }
    segments_.Restore({segment.info.id, segment.device_index, segment.info.bytes},
                      *std::move(memory));
    recovered->memory.push_back(segment.info.id);
  }
  for (const JobSnapshot& job : Inspect([](const JobMachine& machine) { return machine.Jobs(); })) {
    auto found = inherited->pages.extract(job.id);
    if (found.empty()) continue;
    const std::string name = KeptName{KeptName::Kind::kPages, job.id.value}.Text();
    keeping.keeper->Count(name, found.mapped().size());
    absl::StatusOr<std::unique_ptr<JobPages>> pages =
        JobPages::Adopt({job.id, job.first_local, job.n_local, job.epoch, job.spans_nodes},
                        std::move(found.mapped()));
    if (!pages.ok()) {
      const absl::Status is_lost =
          lost(absl::StrCat("pages of job ", job.name), name, pages.status());
      if (!is_lost.ok()) return is_lost;
      continue;
    }
    recovered->pages.push_back(job.id);
    absl::MutexLock lock(&mu_);
    pages_[job.id] = *std::move(pages);
  }
  for (const auto& [id, fds] : inherited->ports) recovered->ports.push_back(id);
  for (const SessionSnapshot& session :
       Inspect([](const JobMachine& machine) { return machine.Sessions(); })) {
    if (!session.ending && inherited->sessions.contains(session.id)) {
      recovered->sessions.push_back(session.id);
    }
  }
  return absl::OkStatus();
}

void Daemon::GiveUp(DescriptorKeeper* keeper, const std::string& name, size_t n,
                    const std::string& what) {
  keeper->Count(name, n);
  keeper->Remove(name);
  Submit(Noted{{.detail = event::OrphanClosed{what}}});
}

void Daemon::CloseUnknownMemory(DescriptorKeeper* keeper, Inherited* inherited) {
  for (const auto& [id, fd] : std::exchange(inherited->segments, {})) {
    GiveUp(keeper, KeptName{KeptName::Kind::kSegment, id.value}.Text(), 1,
           absl::StrCat("memory of segment ", id.value, ", which no job has"));
  }
  for (const auto& [id, fds] : std::exchange(inherited->pages, {})) {
    GiveUp(keeper, KeptName{KeptName::Kind::kPages, id.value}.Text(), fds.size(),
           absl::StrCat("pages of job ", id.value, ", which there is not"));
  }
}

void Daemon::CloseOrphans(DescriptorKeeper* keeper, Inherited* inherited) {
  for (const auto& [id, fd] : std::exchange(inherited->sessions, {})) {
    GiveUp(keeper, KeptName{KeptName::Kind::kSession, id.value}.Text(), 1,
           absl::StrCat("the socket of session ", id.value, ", which there is not"));
  }
  for (const std::string& name : std::exchange(inherited->unknown, {})) {
    GiveUp(keeper, name, 1,
           absl::StrCat("a descriptor named '", CleanText(name, 64), "', which no irisd gives"));
  }
  // The keeper has both descriptors under one name, so neither can be removed alone.
  for (const std::string& name : std::exchange(inherited->twice, {})) {
    Submit(
        Noted{{.detail = event::OrphanClosed{absl::StrCat("a second descriptor named ", name)}}});
  }
}

std::optional<Daemon::KeptSnapshot> Daemon::Kept() const {
  absl::MutexLock lock(&mu_);
  if (keeper_ == nullptr) return std::nullopt;
  return KeptSnapshot{generation_, keeper_->n_kept(), keeper_->capacity(),
                      journal_ == nullptr ? 0 : journal_->bytes(), keeper_->status()};
}

void Daemon::StopKeeping() {
  absl::MutexLock lock(&mu_);
  if (journal_ != nullptr) journal_->Remove();
  journal_.reset();
  if (keeper_ != nullptr) keeper_->RemoveAll();
}

void Daemon::Submit(const Input& input) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mu_);
    Apply(input, &deferred);
  }
  Finish(std::move(deferred));
}

CallId Daemon::NewCall() { return CallId{next_call_.fetch_add(1, std::memory_order_relaxed)}; }

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
  absl::StatusOr<std::vector<OutgoingDescriptor>> descriptors = segments_.ExportSegments(
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

void Daemon::Apply(const Input& input, Deferred* deferred) {
  Effects effects = Decide(input);
  // Descriptors are kept before the state that names them is stored.
  Effects first, rest;
  for (Effect& effect : effects) {
    const bool makes =
        std::holds_alternative<CreatePages>(effect) || std::holds_alternative<AdoptSegment>(effect);
    (makes ? first : rest).push_back(std::move(effect));
  }
  CarryOut(&first, deferred);
  StoreChange();
  CarryOut(&rest, deferred);
}

void Daemon::StoreChange() {
  if (journal_ == nullptr) return;
  const absl::Status kept = keeper_->Retry();
  if (keeper_->gave_up()) {
    logger_->Error(
        "descriptors can no longer be kept for the next irisd: when this one ends, its heaps are "
        "lost",
        {{"error", kept.ToString()}});
    journal_->Remove();
    journal_.reset();
    store_again_ = absl::InfiniteFuture();
    return;
  }
  change_.clear();
  MachineState::EncodeChange(*machine_, &change_);
  absl::Status stored;
  if (!change_.empty() || !journal_->stored()) stored = journal_->Append(change_);
  const bool waits = !kept.ok() || !stored.ok();
  store_again_ = waits ? clock_->Now() + kStoreAgainAfter : absl::InfiniteFuture();
  // Jobs whose descriptors are not kept break in the next irisd.
  Tell(kept, &keeper_waits_,
       "the service manager does not take descriptors: if irisd ends now, heaps are lost; it is "
       "tried again",
       "the service manager has taken all descriptors");
  Tell(stored, &journal_fails_,
       "the state of irisd cannot be stored: if irisd ends now, its heaps are lost; make room in "
       "its runtime directory; it is tried again",
       "the state of irisd is stored again");
}

void Daemon::Tell(const absl::Status& status, bool* fails, const char* failing,
                  const char* again) const {
  if (status.ok() != *fails) return;
  *fails = !status.ok();
  if (*fails) {
    logger_->Error(failing, {{"error", status.ToString()}});
  } else {
    logger_->Info(again, {});
  }
}

Effects Daemon::Decide(const Input& input) {
  const Time now = {clock_->Now(), clock_->Wall()};
  now_wall_ = now.wall;
  Effects effects = machine_->Apply(input, now);
  if (recorder_ != nullptr && !recorder_->Record(input, now, effects)) {
    effects.push_back(
        EmitEvent{{.detail = event::RecordingFull{recorder_->file(), recorder_->bytes()}}});
  }
  return effects;
}

void Daemon::CarryOut(Effects* effects, Deferred* deferred) {
  for (Effect& effect : *effects) {
    std::visit([this, deferred](auto& e)
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { this->Perform(e, deferred); },
               effect);
  }
  timer_.Set(std::min(machine_->NextDeadline(), store_again_));
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
  absl::StatusOr<std::unique_ptr<JobPages>> pages = JobPages::Create(effect);
  if (!pages.ok()) {
    // SendDescriptors reports the error to the ranks.
    logger_->Error("cannot create the pages of a job",
                   {{"job_id", effect.job.value}, {"error", pages.status().ToString()}});
  } else if (keeper_ != nullptr) {
    (void)keeper_->Store(KeptName{KeptName::Kind::kPages, effect.job.value}.Text(),
                         (*pages)->fds());
  }
  pages_.insert_or_assign(effect.job, std::move(pages));
}

absl::StatusOr<JobPages*> Daemon::PagesOf(JobId job) const {
  const auto found = pages_.find(job);
  if (found == pages_.end()) return absl::NotFoundError("the job has no pages");
  if (found->second.ok()) return found->second->get();
  return absl::ResourceExhaustedError(absl::StrCat("irisd could not create the pages of the job: ",
                                                   found->second.status().message()));
}

std::optional<PortReport> Daemon::PortReportOf(JobId job) const {
  absl::MutexLock lock(&mu_);
  return ports_ == nullptr ? std::nullopt : ports_->ReportOf(job);
}

std::vector<std::shared_ptr<const PageFile>> Daemon::ControlPages(JobId job) const {
  std::vector<std::shared_ptr<const PageFile>> pages;
  absl::MutexLock lock(&mu_);
  const absl::StatusOr<JobPages*> found = PagesOf(job);
  if (!found.ok()) return pages;
  const Rank first = (*found)->first_rank();
  for (Rank rank = first; rank < first + (*found)->n_ranks(); ++rank) {
    pages.push_back((*found)->control_page(rank));
  }
  return pages;
}

void Daemon::Perform(DropPages& effect, Deferred* /*deferred*/) {
  if (keeper_ != nullptr) {
    keeper_->Remove(KeptName{KeptName::Kind::kPages, effect.job.value}.Text());
  }
  pages_.erase(effect.job);
}

void Daemon::Perform(CreateSegment& effect, Deferred* /*deferred*/) { segments_.Create(effect); }

void Daemon::Perform(AdoptSegment& effect, Deferred* deferred) {
  IRIS_CHECK(effect.index < deferred->registered.size(), "a call's descriptors were counted");
  segments_.Adopt(effect, std::move(deferred->registered[effect.index]));
}

void Daemon::Perform(ImportSegment& effect, Deferred* /*deferred*/) { segments_.Import(effect); }

void Daemon::Perform(DropSegment& effect, Deferred* /*deferred*/) { segments_.Drop(effect.id); }

void Daemon::Perform(SendDescriptors& effect, Deferred* /*deferred*/) {
  if (output_ == nullptr) return;
  absl::StatusOr<std::vector<OutgoingDescriptor>> descriptors =
      segments_.Export(effect, PagesOf(effect.job));
  if (descriptors.ok()) {
    output_->SendDescriptors(effect.session, *std::move(descriptors));
  } else {
    output_->EndSession(effect.session, descriptors.status());
  }
}

void Daemon::Perform(SetRankState& effect, Deferred* /*deferred*/) {
  const absl::StatusOr<JobPages*> pages = PagesOf(effect.job);
  if (!pages.ok()) return;
  (*pages)->SetRankState(effect.rank, effect.state, effect.pid, effect.abort);
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

void Daemon::Perform(StartPort& effect, Deferred* /*deferred*/) {
  std::vector<std::shared_ptr<const RankPort>> all;
  const absl::StatusOr<JobPages*> pages = PagesOf(effect.job);
  for (Rank i = 0; pages.ok() && i < effect.n_local; ++i) {
    all.push_back((*pages)->port(effect.node + i));
  }
  // SendDescriptors reports an error of the pages to the ranks.
  if (ports_ != nullptr && pages.ok()) ports_->Start(effect, std::move(all));
}

void Daemon::Perform(SetLayout& effect, Deferred* /*deferred*/) {
  if (ports_ == nullptr) return;
  std::vector<PortSegment> segments;
  for (const SegmentInfo& info : effect.segments) {
    const std::shared_ptr<SegmentStore::Held> held = segments_.Find(info.id);
    if (held == nullptr) continue;  // the job is ending
    IRIS_CHECK(held->device_index().has_value(), "a layout has this node's memory alone");
    segments.push_back({info, driver_->devices()[*held->device_index()].uuid,
                        [held] { return held->memory().ExportFd(driver::Access::kReadWrite); }});
  }
  ports_->LayOut(effect, std::move(segments));
}

void Daemon::Perform(AttachPort& effect, Deferred* deferred) {
  auto kept = kept_ports_.extract(effect.job);
  IRIS_CHECK(!kept.empty(), "a port is attached once, if it was kept");
  keeper_->Count(KeptName{KeptName::Kind::kPort, effect.job.value}.Text(), kept.mapped().size());
  if (ports_ != nullptr) ports_->Attach(effect, std::move(kept.mapped()));
  Perform(effect.layout, deferred);
}

void Daemon::Perform(SendToNode& effect, Deferred* /*deferred*/) {
  if (ports_ != nullptr) ports_->Send(effect);
}

void Daemon::Perform(StopPort& effect, Deferred* /*deferred*/) {
  if (ports_ != nullptr) ports_->Stop(effect.job);
}

void Daemon::Perform(EmitEvent& effect, Deferred* /*deferred*/) {
  EventRecord event = Render(effect.event, now_wall_);
  printer_.Push(event);
  events_.Add(std::move(event));
}

}  // namespace iris::server
