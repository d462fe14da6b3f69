// TraceRecorder: this rank's trace: the area in the heap, which kernels fill, and the additions of
// the host library, which are its calls and the program's named spans.
//
// If the host can store in the area (emulated devices), calls go there, no matter which process has
// switched the trace on. Otherwise this process keeps the calls while the trace is the rank's own
// (Start, IRIS_TRACE), as it always keeps named spans. Thread-safe once it is made. Borrows the
// driver and the guard; the area is mapped until Close.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/base/context_guard.h"
#include "client/trace/mapped_trace.h"
#include "device/driver/gpu_driver.h"
#include "iris/trace_area.h"

namespace iris::internal {

class TraceRecorder {
 public:
  // The name of the area's allocation in the job. Names that begin with "iris." belong to irisd.
  static constexpr char kName[] = "iris-trace";

  struct Options {
    std::string job;
    uint32_t rank = 0;
    std::string backend;
    std::vector<uint32_t> devices;  // the rank's, by the driver's numbers; none on emulated devices
    uint64_t address = 0;           // of the area: TraceAreaBytes of memory
    uint64_t bytes = 0;
    std::string file;  // IRIS_TRACE: the trace is on from the beginning; empty: it is not
  };
  static absl::StatusOr<std::unique_ptr<TraceRecorder>> Make(Options options,
                                                             const ContextGuard* guard,
                                                             driver::GpuDriver* driver);

  // For DeviceContext::trace.
  TraceArea* area() const { return mapped_.area(); }

  // Empties the trace and switches it on, for `limit`, or until Stop if that is zero.
  // kFailedPrecondition, which names the owner, if it is on already.
  absl::Status Start(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mu_);
  // Switches off a trace of Start or IRIS_TRACE, and waits a moment for events that are under way.
  // kFailedPrecondition if there is none.
  absl::Status Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the events since Start, until now or until Stop. TraceFileOfRank names the file, but a
  // name without %r stays as it is. kFailedPrecondition without a Start.
  absl::Status Save(const std::string& path) ABSL_LOCKS_EXCLUDED(mu_);

  // Begins a span of the program, which EndSpan records from BeginSpan's result until now. Returns
  // 0 while the trace is not the rank's own, and then EndSpan does nothing.
  uint64_t BeginSpan() const;
  // Ends a span. kInvalidArgument if CheckSpanName refuses the name (empty, longer than
  // kSpanNameBytes or not UTF-8), or if `begun` is later than now.
  absl::Status EndSpan(uint64_t begun, absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  static absl::Status CheckSpanName(absl::string_view name);
  static constexpr size_t kSpanNameBytes = 256;

  // Writes the file of IRIS_TRACE, if there is one to write, and stops recording. Call it before
  // the area is unmapped.
  absl::Status Close() ABSL_LOCKS_EXCLUDED(mu_);

  // Records a call of the host library, until the end of the scope. `recorder` may be null.
  class Span {
   public:
    Span(TraceRecorder* recorder, TraceHostCall call, uint64_t bytes = 0, uint64_t detail = 0)
        : recorder_(recorder != nullptr && recorder->On() ? recorder : nullptr) {
      if (recorder_ != nullptr) event_ = NewEvent(call, bytes, detail);
    }
    ~Span() {
      if (recorder_ != nullptr) recorder_->End(&event_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    TraceRecorder* const recorder_;
    TraceEvent event_;
  };

 private:
  TraceRecorder(Options options, const ContextGuard* guard, driver::GpuDriver* driver);
  bool On() const ABSL_LOCKS_EXCLUDED(mu_);
  static TraceEvent NewEvent(TraceHostCall call, uint64_t bytes, uint64_t detail);
  void End(TraceEvent* event) ABSL_LOCKS_EXCLUDED(mu_);
  void Store(TraceEvent event);
  void Keep(const TraceEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status StartNow(uint64_t limit_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status StopNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SaveNow(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the rank's device, whose clock counts, the calling thread's current one.
  // kFailedPrecondition if the context has ended, or with the text `unless` if it is not null.
  absl::Status UseDevice(const char* unless = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const ContextGuard* const guard_;
  driver::GpuDriver* const driver_;
  const bool stores_;  // the host can store in the area
  MappedTrace mapped_;

  // True while the trace is this rank's own and on. Checked before anything that costs more.
  std::atomic<bool> own_{false};

  mutable absl::Mutex mu_;  // held while the area is used, so that Close comes between
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool started_ ABSL_GUARDED_BY(mu_) = false;  // there is something to save
  ClockSample first_ ABSL_GUARDED_BY(mu_) = {};
  ClockSample last_ ABSL_GUARDED_BY(mu_) = {};  // of Stop; device_ns 0: not stopped
  uint64_t until_host_ns_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<TraceEvent> kept_ ABSL_GUARDED_BY(mu_);
  uint64_t n_lost_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, uint64_t, std::less<>> names_ ABSL_GUARDED_BY(mu_);
};

// Returns the file to which `rank` writes its trace if IRIS_TRACE is `file`. "%r" becomes the rank;
// without "%r", "x.json" gives "x.rank3.json".
std::string TraceFileOfRank(const std::string& file, uint32_t rank);

}  // namespace iris::internal
