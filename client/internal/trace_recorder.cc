#include "client/internal/trace_recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/internal/annotate.h"
#include "client/internal/trace_json.h"
#include "device/driver/backend_kind.h"
#include "iris/backend/host_functions.h"

namespace iris::internal {
namespace {

// Of the host's calls that are kept in the process: 4 MiB.
constexpr size_t kKeptMax = 1 << 16;

}  // namespace

std::string TraceFileOfRank(const std::string& file, uint32_t rank) {
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
  if (status.ok() && !made->options_.file.empty()) {
    absl::StatusOr<ClockSample> first = SampleClocks(made->options_.backend);
    status = first.status();
    if (status.ok()) {
      made->first_ = *first;
      status = made->mapped_.SwitchOn(first->device_ns, ~uint64_t{0});
    }
  }
  if (!status.ok()) return Annotate(status, "make the rank's trace (IRIS_TRACE_EVENTS=0: none)");
  return made;
}

bool TraceRecorder::On() const {
  if (!stores_ && options_.file.empty()) return false;  // before the system call of the next line
  // In a forked child the area is not mapped.
  if (!guard_->OwnProcess()) return false;
  if (!stores_) return true;
  absl::ReaderMutexLock lock(&mu_);
  return !closed_ && __atomic_load_n(&area()->until_ns, __ATOMIC_RELAXED) != 0;
}

void TraceRecorder::Begin(TraceHostCall call, uint64_t bytes, uint64_t detail, TraceEvent* event) {
  *event = {};
  event->bytes = bytes;
  event->detail = detail;
  event->number = static_cast<uint32_t>(syscall(SYS_gettid));
  event->op =
      static_cast<uint16_t>(static_cast<uint32_t>(TraceOp::kHost) + static_cast<uint32_t>(call));
  event->peer = kNoTracePeer;
  event->start_ns = backend::HostClockNanoseconds();
}

void TraceRecorder::End(TraceEvent* event) {
  event->end_ns = backend::HostClockNanoseconds();
  if (!guard_->OwnProcess()) return;
  absl::MutexLock lock(&mu_);
  if (closed_) return;
  if (stores_) {
    // The device's clock is the host's.
    if (event->start_ns < __atomic_load_n(&area()->until_ns, __ATOMIC_RELAXED)) Store(*event);
  } else if (kept_.size() < kKeptMax) {
    kept_.push_back(*event);
  } else {
    ++n_lost_;
  }
}

// As kernels do: iris/impl/trace.h.
void TraceRecorder::Store(const TraceEvent& event) {
  TraceArea* const to = area();
  const uint64_t slot = __atomic_fetch_add(&to->position, 1, __ATOMIC_RELAXED);
  if (slot >= to->capacity) return;
  uint64_t words[sizeof(TraceEvent) / sizeof(uint64_t)];
  TraceEvent ready = event;
  ready.ready = __atomic_load_n(&to->generation, __ATOMIC_RELAXED);
  std::memcpy(words, &ready, sizeof(words));
  uint64_t* const place = reinterpret_cast<uint64_t*>(to + 1) + slot * std::size(words);
  for (size_t k = 0; k + 1 < std::size(words); ++k) {
    __atomic_store_n(place + k, words[k], __ATOMIC_RELAXED);
  }
  __atomic_store_n(place + std::size(words) - 1, words[std::size(words) - 1], __ATOMIC_RELEASE);
}

absl::Status TraceRecorder::Close() {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::OkStatus();
  closed_ = true;
  if (options_.file.empty()) return absl::OkStatus();
  return Annotate(WriteFile(), absl::StrCat("write the trace (IRIS_TRACE=", options_.file, ")"));
}

absl::Status TraceRecorder::WriteFile() {
  // Whatever thread leaves: the clock is that of the rank's device.
  absl::Status status;
  if (!options_.devices.empty()) status = driver_->MakeCurrent(options_.devices.front());
  if (status.ok()) status = mapped_.SwitchOff();
  if (!status.ok()) return status;
  const absl::StatusOr<ClockSample> last = SampleClocks(options_.backend);
  if (!last.ok()) return last.status();
  absl::StatusOr<RankTrace> trace = mapped_.Read();
  if (!trace.ok()) return trace.status();
  trace->first = first_;
  trace->last = *last;
  trace->host_events = std::move(kept_);
  trace->host_dropped = n_lost_;
  TraceFile file;
  file.job = options_.job;
  file.ranks.push_back(*std::move(trace));
  const std::string path = TraceFileOfRank(options_.file, options_.rank);
  const std::string json = TraceJson(file);
  std::FILE* const out = std::fopen(path.c_str(), "we");
  const bool wrote = out != nullptr && std::fwrite(json.data(), 1, json.size(), out) == json.size();
  const int error = errno;
  if (out == nullptr || std::fclose(out) != 0 || !wrote) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace iris::internal
