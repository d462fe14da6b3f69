#include "client/trace/mapped_trace.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/backend/device_status.h"
#include "client/backend/load.h"
#include "device/driver/backend_kind.h"
#include "iris/backend/host_functions.h"

namespace iris::internal {
namespace {

// Returns the word that impl/trace.h writes last, so that a reader detects an incomplete event.
uint32_t ReadyWord(const TraceEvent& event, uint32_t generation) {
  uint32_t words[sizeof(TraceEvent) / sizeof(uint32_t)];
  std::memcpy(words, &event, sizeof(words));
  uint32_t ready = generation;
  for (size_t k = 0; k + 1 < std::size(words); ++k) ready ^= words[k];
  return ready;
}

// Returns the number of events that fit, at most what 32 bits count.
uint32_t CapacityOf(uint64_t bytes) {
  return static_cast<uint32_t>(
      std::min<uint64_t>((bytes - sizeof(TraceArea)) / sizeof(TraceEvent), ~uint32_t{0}));
}

}  // namespace

void MakeReady(uint32_t generation, TraceEvent* event) {
  event->ready = ReadyWord(*event, generation);
}

template <typename T>
absl::Status MappedTrace::Write(T TraceArea::*field, T value) {
  return driver_->Copy(&(area()->*field), &value, sizeof(value));
}

absl::Status MappedTrace::Make(uint32_t rank, int64_t pid) {
  if (bytes_ < TraceAreaBytes(1)) {
    return absl::InvalidArgumentError(absl::StrCat("a trace does not fit into ", bytes_, " bytes"));
  }
  TraceArea header = {};
  header.magic = TraceArea::kMagic;
  header.version = TraceArea::kVersion;
  header.event_bytes = sizeof(TraceEvent);
  header.capacity = CapacityOf(bytes_);
  header.rank = rank;
  header.pid = pid;
  // Old bytes must not look like events.
  if (absl::Status status = driver_->Fill(address_, 0, bytes_); !status.ok()) return status;
  return driver_->Copy(area(), &header, sizeof(header));
}

absl::StatusOr<TraceArea> MappedTrace::Header() {
  TraceArea header = {};
  if (bytes_ < sizeof(header)) return absl::FailedPreconditionError("this is no trace");
  if (absl::Status status = driver_->Copy(&header, area(), sizeof(header)); !status.ok()) {
    return status;
  }
  if (header.magic != TraceArea::kMagic) {
    return absl::FailedPreconditionError(
        "this is no trace: another allocation has its name, or the rank has not made it yet");
  }
  if (header.version != TraceArea::kVersion || header.event_bytes != sizeof(TraceEvent)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the trace is of version ", header.version, ", and this program reads version ",
        TraceArea::kVersion, ": install matching versions"));
  }
  header.capacity = std::min(header.capacity, CapacityOf(bytes_));
  return header;
}

absl::Status MappedTrace::SwitchOn(uint64_t now_ns, uint64_t until_ns) {
  const absl::StatusOr<TraceArea> header = Header();
  if (!header.ok()) return header.status();
  if (header->until_ns > now_ns) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a trace of rank ", header->rank, " is on already",
        header->until_ns == ~uint64_t{0}
            ? std::string(", until its own program ends it (iris_trace_stop, IRIS_TRACE)")
            : absl::StrCat(", for another ", (header->until_ns - now_ns) / 1000000, " ms"),
        ": wait for it, or for who takes it"));
  }
  absl::Status status = Write(&TraceArea::until_ns, uint64_t{0});
  if (status.ok()) status = Write(&TraceArea::generation, header->generation + 1);
  if (status.ok()) status = Write(&TraceArea::position, uint64_t{0});
  if (status.ok()) status = Write(&TraceArea::until_ns, until_ns);
  return status;
}

absl::Status MappedTrace::SwitchOff() { return Write(&TraceArea::until_ns, uint64_t{0}); }

absl::StatusOr<RankTrace> MappedTrace::Read() {
  const absl::StatusOr<TraceArea> header = Header();
  if (!header.ok()) return header.status();
  RankTrace trace;
  trace.rank = header->rank;
  trace.pid = header->pid;
  trace.capacity = header->capacity;
  const uint64_t taken = std::min<uint64_t>(header->position, header->capacity);
  trace.dropped = header->position - taken;
  trace.events.resize(taken);
  if (taken > 0) {
    const absl::Status read =
        driver_->Copy(trace.events.data(), area() + 1, taken * sizeof(TraceEvent));
    if (!read.ok()) return read;
  }
  const auto written =
      std::remove_if(trace.events.begin(), trace.events.end(), [&](const TraceEvent& event) {
        return event.ready != ReadyWord(event, header->generation) || event.end_ns < event.start_ns;
      });
  trace.unfinished = static_cast<uint64_t>(trace.events.end() - written);
  trace.events.erase(written, trace.events.end());
  return trace;
}

absl::StatusOr<uint64_t> MappedTrace::Unfinished() {
  const absl::StatusOr<RankTrace> trace = Read();
  if (!trace.ok()) return trace.status();
  return trace->unfinished;
}

absl::StatusOr<ClockSample> SampleClocks(const std::string& backend) {
  if (backend == driver::NameOf(driver::BackendKind::kEmu)) {
    const uint64_t now = backend::HostClockNanoseconds();
    return ClockSample{now, now, 0};
  }
  const auto table = backend::LoadBackend(backend);
  if (!table.ok()) return table.status();
  ClockSample sample = {};
  const absl::Status sampled =
      FromDevice((*table)->SampleClock(&sample), "compare the device's clock with the host's");
  if (!sampled.ok()) return sampled;
  return sample;
}

}  // namespace iris::internal
