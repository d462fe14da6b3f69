// MappedTrace: a rank's trace as mapped in this process, which is the rank's own or has borrowed
// the memory. It is read and written by the driver's copies, so that it may be a GPU's.
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

// Writes the word that tells readers that an event is whole and of this trace.
void MakeReady(uint32_t generation, TraceEvent* event);

class MappedTrace {
 public:
  MappedTrace(driver::GpuDriver* driver, uint64_t address, uint64_t bytes)
      : driver_(driver), address_(address), bytes_(bytes) {}

  TraceArea* area() const { return reinterpret_cast<TraceArea*>(address_); }

  // Makes an empty one of what memory there is.
  absl::Status Make(uint32_t rank, int64_t pid);

  // Empties it and switches it on until then, by the device's clock. kFailedPrecondition if it is
  // on already, until later than `now_ns`, or if this build does not know its format.
  absl::Status SwitchOn(uint64_t now_ns, uint64_t until_ns);
  // Events that have begun may still come, for a moment.
  absl::Status SwitchOff();
  // All but the clocks and what the host keeps.
  absl::StatusOr<RankTrace> Read();
  // How many events are under way, or will never come.
  absl::StatusOr<uint64_t> Unfinished();

 private:
  absl::StatusOr<TraceArea> Header();
  template <typename T>
  absl::Status Write(T TraceArea::*field, T value);

  driver::GpuDriver* const driver_;
  const uint64_t address_;
  const uint64_t bytes_;
};

// The clocks of `backend` at this moment. The device is the calling thread's. On emulated devices
// they are one.
absl::StatusOr<ClockSample> SampleClocks(const std::string& backend);

}  // namespace iris::internal
