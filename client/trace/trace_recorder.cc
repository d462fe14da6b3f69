#include "client/trace/trace_recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/base/annotate.h"
#include "client/base/log.h"
#include "client/base/utf8.h"
#include "client/base/whole_file.h"
#include "client/trace/trace_json.h"
#include "device/driver/backend_kind.h"
#include "iris/backend/host_functions.h"

namespace iris::internal {
namespace {

// The limits of the events that the process keeps (4 MiB), and of its names of spans.
constexpr size_t kKeptMax = 1 << 16;
constexpr size_t kNamesMax = 1 << 12;
constexpr char kRankMark[] = "%r";

// Events that have begun while the trace was on have been written by then.
constexpr absl::Duration kSettle = absl::Milliseconds(50);
constexpr absl::Duration kLook = absl::Milliseconds(1);

std::string WithRank(const std::string& file, uint32_t rank) {
  return absl::StrReplaceAll(file, {{kRankMark, absl::StrCat(rank)}});
}

}  // namespace

std::string TraceFileOfRank(const std::string& file, uint32_t rank) {
  if (absl::StrContains(file, kRankMark)) return WithRank(file, rank);
  return absl::StrCat(absl::StripSuffix(file, ".json"), ".rank", rank, ".json");
}

TraceRecorder::TraceRecorder(Options options, const ContextGuard* guard, driver::GpuDriver* driver)
    : options_(std::move(options)),
      guard_(guard),
      driver_(driver),
      stores_(options_.backend == driver::NameOf(driver::BackendKind::kEmu)),
      mapped_(driver, options_.address, options_.bytes) {}

absl::StatusOr<std::unique_ptr<TraceRecorder>> TraceRecorder::Make(Options options,
                                                                   const ContextGuard* guard,
                                                                   driver::GpuDriver* driver) {
  std::unique_ptr<TraceRecorder> made(new TraceRecorder(std::move(options), guard, driver));
  absl::Status status = made->mapped_.Make(made->options_.rank, getpid());
  if (status.ok() && !made->options_.file.empty()) status = made->Start(absl::ZeroDuration());
  if (!status.ok()) return Annotate(status, "make the rank's trace (IRIS_TRACE_EVENTS=0: none)");
  return made;
}

absl::Status TraceRecorder::UseDevice(const char* unless) {
  if (absl::Status status = guard_->Usable(); !status.ok()) return status;
  if (closed_) return absl::FailedPreconditionError("the rank has left its job");
  if (unless != nullptr) return absl::FailedPreconditionError(unless);
  return options_.devices.empty() ? absl::OkStatus()
                                  : driver_->MakeCurrent(options_.devices.front());
}

absl::Status TraceRecorder::Start(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  return Annotate(StartNow(static_cast<uint64_t>(absl::ToInt64Nanoseconds(limit))),
                  "start the trace");
}

absl::Status TraceRecorder::StartNow(uint64_t limit_ns) {
  absl::Status status = UseDevice();
  if (!status.ok()) return status;
  const absl::StatusOr<ClockSample> first = SampleClocks(options_.backend);
  if (!first.ok()) return first.status();
  const uint64_t now =
      first->device_ns + (backend::HostClockNanoseconds() - first->host_ns);  // a moment later
  status = mapped_.SwitchOn(now, limit_ns == 0 ? ~uint64_t{0} : now + limit_ns);
  if (!status.ok()) return status;
  first_ = *first;
  last_ = {};
  kept_.clear();
  names_.clear();
  n_lost_ = 0;
  until_host_ns_ = limit_ns == 0 ? ~uint64_t{0} : first->host_ns + limit_ns;
  started_ = true;
  own_.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status TraceRecorder::Stop() {
  absl::MutexLock lock(&mu_);
  return Annotate(StopNow(), "stop the trace");
}

absl::Status TraceRecorder::StopNow() {
  absl::Status status = UseDevice(
      own_.load(std::memory_order_relaxed)
          ? nullptr
          : "this process has not started it: iris-ctl trace ends its own, and IRIS_TRACE "
            "or a start comes before a stop");
  if (status.ok()) status = mapped_.SwitchOff();
  if (!status.ok()) return status;
  own_.store(false, std::memory_order_relaxed);
  for (absl::Time end = absl::Now() + kSettle;;) {
    const absl::StatusOr<uint64_t> unfinished = mapped_.Unfinished();
    if (!unfinished.ok()) return unfinished.status();
    if (*unfinished == 0 || absl::Now() >= end) break;
    absl::SleepFor(kLook);
  }
  const absl::StatusOr<ClockSample> last = SampleClocks(options_.backend);
  // A device that is busy for long does not answer, but its earlier events are still useful.
  if (!last.ok()) {
    log::Warning("the drift of the trace's clock is not known: ", last.status().message());
  }
  last_ = last.ok() ? *last : first_;
  return absl::OkStatus();
}

absl::Status TraceRecorder::Save(const std::string& path) {
  absl::MutexLock lock(&mu_);
  return Annotate(SaveNow(WithRank(path, options_.rank)), "save the trace");
}

absl::Status TraceRecorder::SaveNow(const std::string& path) {
  absl::Status status =
      UseDevice(started_ ? nullptr : "there is none: this process has not started it");
  if (!status.ok()) return status;
  absl::StatusOr<RankTrace> trace = mapped_.Read();
  if (!trace.ok()) return trace.status();
  trace->first = first_;
  trace->last = last_;
  if (last_.device_ns == 0) {
    const absl::StatusOr<ClockSample> now = SampleClocks(options_.backend);
    trace->last = now.ok() ? *now : first_;
  }
  // Emulated devices have one clock, so the drift is known without two samples.
  trace->drift_known = stores_ || trace->last.device_ns != first_.device_ns;
  trace->host_events = kept_;
  trace->host_dropped = n_lost_;
  trace->names.resize(names_.size());
  for (const auto& [name, number] : names_) trace->names[number] = name;
  TraceFile file;
  file.job = options_.job;
  file.host = HostId();
  file.ranks.push_back(*std::move(trace));
  return WriteFile(path, TraceJson(file));
}

absl::Status TraceRecorder::Close() {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::OkStatus();
  absl::Status status;
  if (own_.load(std::memory_order_relaxed)) status = StopNow();
  if (status.ok() && started_ && !options_.file.empty()) {
    status = SaveNow(TraceFileOfRank(options_.file, options_.rank));
  }
  closed_ = true;
  own_.store(false, std::memory_order_relaxed);
  if (options_.file.empty()) return absl::OkStatus();  // no file was requested
  return Annotate(status, absl::StrCat("write the trace (IRIS_TRACE=", options_.file, ")"));
}

bool TraceRecorder::On() const {
  const bool own = own_.load(std::memory_order_relaxed);
  if (!stores_ && !own) return false;  // before the system call of the next line
  // In a forked child the area is not mapped.
  if (!guard_->OwnProcess()) return false;
  if (!stores_) return true;
  absl::ReaderMutexLock lock(&mu_);
  return !closed_ && __atomic_load_n(&area()->until_ns, __ATOMIC_RELAXED) != 0;
}

TraceEvent TraceRecorder::NewEvent(TraceHostCall call, uint64_t bytes, uint64_t detail) {
  TraceEvent event = {};
  event.bytes = bytes;
  event.detail = detail;
  event.number = static_cast<uint32_t>(syscall(SYS_gettid));
  event.op =
      static_cast<uint16_t>(static_cast<uint32_t>(TraceOp::kHost) + static_cast<uint32_t>(call));
  event.peer = kNoTracePeer;
  event.start_ns = backend::HostClockNanoseconds();
  return event;
}

void TraceRecorder::End(TraceEvent* event) {
  event->end_ns = backend::HostClockNanoseconds();
  if (!guard_->OwnProcess()) return;
  absl::MutexLock lock(&mu_);
  if (closed_) return;
  if (!stores_) return Keep(*event);
  // The device's clock is the host's.
  if (event->start_ns < __atomic_load_n(&area()->until_ns, __ATOMIC_RELAXED)) Store(*event);
}

void TraceRecorder::Keep(const TraceEvent& event) {
  if (event.start_ns >= until_host_ns_) return;
  if (kept_.size() < kKeptMax) {
    kept_.push_back(event);
  } else {
    ++n_lost_;
  }
}

// Stores an event in the way of kernels: iris/impl/trace.h.
void TraceRecorder::Store(TraceEvent event) {
  TraceArea* const to = area();
  MakeReady(__atomic_load_n(&to->generation, __ATOMIC_RELAXED), &event);
  const uint64_t slot = __atomic_fetch_add(&to->position, 1, __ATOMIC_RELAXED);
  if (slot >= to->capacity) return;
  uint64_t words[sizeof(TraceEvent) / sizeof(uint64_t)];
  std::memcpy(words, &event, sizeof(words));
  uint64_t* const place = reinterpret_cast<uint64_t*>(to + 1) + slot * std::size(words);
  for (size_t k = 0; k < std::size(words); ++k) {
    __atomic_store_n(place + k, words[k], __ATOMIC_RELAXED);
  }
}

uint64_t TraceRecorder::BeginSpan() const {
  if (!own_.load(std::memory_order_relaxed) || !guard_->OwnProcess()) return 0;
  return backend::HostClockNanoseconds();
}

absl::Status TraceRecorder::CheckSpanName(absl::string_view name) {
  if (!name.empty() && name.size() <= kSpanNameBytes && IsUtf8(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("end a span of the trace: its name has ",
                                                 name.size(), " bytes, and must be 1 to ",
                                                 kSpanNameBytes, " bytes of UTF-8"));
}

absl::Status TraceRecorder::EndSpan(uint64_t begun, absl::string_view name) {
  if (absl::Status status = CheckSpanName(name); !status.ok()) return status;
  if (begun == 0 || !own_.load(std::memory_order_relaxed) || !guard_->OwnProcess()) {
    return absl::OkStatus();
  }
  TraceEvent event = NewEvent(TraceHostCall::kSpan, 0, 0);
  event.end_ns = event.start_ns;
  event.start_ns = begun;
  if (begun > event.end_ns) {
    return absl::InvalidArgumentError(
        "end a span of the trace: it begins later than now: give what its begin gave");
  }
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::OkStatus();
  if (begun < first_.host_ns) return absl::OkStatus();  // it began in an earlier trace
  auto known = names_.find(name);
  if (known == names_.end()) {
    if (names_.size() == kNamesMax) {
      ++n_lost_;
      return absl::OkStatus();
    }
    known = names_.emplace(std::string(name), names_.size()).first;
  }
  event.detail = known->second;
  Keep(event);
  return absl::OkStatus();
}

}  // namespace iris::internal
