// TraceRecorder: this rank's trace: the area in its heap, which its kernels fill, and what the host
// library adds to it, its own calls.
//
// The calls go into the area where the host can store there (emulated devices), whoever has
// switched it on. Elsewhere they are kept in this process while the trace is the rank's own
// (IRIS_TRACE). Thread-safe once it is made. Borrows the driver and the guard; the area is mapped
// until Close.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/context_guard.h"
#include "client/internal/mapped_trace.h"
#include "device/driver/gpu_driver.h"
#include "iris/trace_area.h"

namespace iris::internal {

class TraceRecorder {
 public:
  // The name of the area among the allocations of the job. What begins with "iris." is irisd's.
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

  // Before the area is unmapped: writes the file, if there is one to write. Nothing is recorded any
  // more.
  absl::Status Close();

  // A call of the host library, until the end of the scope. `recorder` may be null.
  class Span {
   public:
    Span(TraceRecorder* recorder, TraceHostCall call, uint64_t bytes = 0, uint64_t detail = 0)
        : recorder_(recorder != nullptr && recorder->On() ? recorder : nullptr) {
      if (recorder_ != nullptr) recorder_->Begin(call, bytes, detail, &event_);
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
  static void Begin(TraceHostCall call, uint64_t bytes, uint64_t detail, TraceEvent* event);
  void End(TraceEvent* event) ABSL_LOCKS_EXCLUDED(mu_);
  void Store(const TraceEvent& event);
  absl::Status WriteFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const ContextGuard* const guard_;
  driver::GpuDriver* const driver_;
  const bool stores_;  // the host can store in the area
  MappedTrace mapped_;
  ClockSample first_ = {};

  mutable absl::Mutex mu_;  // held while the area is used, so that Close comes between
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<TraceEvent> kept_ ABSL_GUARDED_BY(mu_);
  uint64_t n_lost_ ABSL_GUARDED_BY(mu_) = 0;
};

// Where rank `rank` writes its trace if IRIS_TRACE is `file`: "x.json" gives "x.rank3.json".
std::string TraceFileOfRank(const std::string& file, uint32_t rank);

}  // namespace iris::internal
