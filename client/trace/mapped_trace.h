// MappedTrace: a rank's trace as mapped in this process, which is the rank's own or has borrowed
// the memory. It is read and written by the driver's copies, because it may be in a GPU's memory.
//
// Not thread-safe. Borrows the driver and the memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"
#include "iris/trace_area.h"

namespace iris::internal {

// The contents of a trace.
struct RankTrace {
  uint32_t rank = 0;
  int64_t pid = 0;
  uint64_t capacity = 0;
  uint64_t dropped = 0;     // for lack of room
  uint64_t unfinished = 0;  // taken, and not written when it was read
  std::vector<TraceEvent> events;
  // The device's clock and the host's, at the beginning and at the end.
  ClockSample first = {};
  ClockSample last = {};
  bool drift_known = true;  // false: the device did not answer at the end, and `last` is `first`
  // Events that the process kept, by the host's clock: spans with names, and calls of the host
  // library if the host cannot store in the heap.
  std::vector<TraceEvent> host_events;
  uint64_t host_dropped = 0;
  std::vector<std::string> names;  // of the spans: TraceEvent::detail is a place here
};

// Writes the word with which readers check that an event is complete and belongs to this trace.
void MakeReady(uint32_t generation, TraceEvent* event);

class MappedTrace {
 public:
  MappedTrace(driver::GpuDriver* driver, uint64_t address, uint64_t bytes)
      : driver_(driver), address_(address), bytes_(bytes) {}

  TraceArea* area() const { return reinterpret_cast<TraceArea*>(address_); }

  // Makes an empty trace in the memory.
  absl::Status Make(uint32_t rank, int64_t pid);

  // Empties the trace and switches it on until the device's clock reaches `until_ns`.
  // kFailedPrecondition if it is still on at `now_ns`, or if this build does not know its format.
  absl::Status SwitchOn(uint64_t now_ns, uint64_t until_ns);
  // Switches the trace off. Events that have begun may still arrive, for a moment.
  absl::Status SwitchOff();
  // Returns the trace without the clocks and without the events that the host keeps.
  absl::StatusOr<RankTrace> Read();
  // Returns the number of events that are under way, or will never arrive.
  absl::StatusOr<uint64_t> Unfinished();

 private:
  absl::StatusOr<TraceArea> Header();
  template <typename T>
  absl::Status Write(T TraceArea::*field, T value);

  driver::GpuDriver* const driver_;
  const uint64_t address_;
  const uint64_t bytes_;
};

// Returns the present times of the host's clock and of the clock of the calling thread's device. On
// emulated devices they are one clock.
absl::StatusOr<ClockSample> SampleClocks(const std::string& backend);

}  // namespace iris::internal
