// Graphs, which are recorded launches, and events, which are launches that note the time.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "iris/backend/emu/backend.h"
#include "iris/backend/emu/sanitizers.h"
#include "iris/backend/emu/scheduler.h"

namespace iris::backend {

namespace emu {

// The state of an event. The host uses `recorded` and `capture`. The launch of record n stores the
// time, and then n in `done`.
struct EventState {
  uint64_t recorded = 0;
  std::shared_ptr<Capture> capture;  // the event was recorded into this one
  std::atomic<uint64_t> nanoseconds{0};
  std::atomic<uint64_t> done{0};
};

namespace {

class RecordWork final : public Work {
 public:
  RecordWork(std::shared_ptr<EventState> event, uint64_t record)
      : event_(std::move(event)), record_(record) {}
  void Run() const noexcept override {
    event_->nanoseconds.store(ClockNanoseconds(), std::memory_order_relaxed);
    event_->done.store(record_, std::memory_order_release);
    event_->done.notify_all();
    TsanRelease(event_.get());
  }

 private:
  std::shared_ptr<EventState> event_;
  uint64_t record_;
};

class WaitWork final : public Work {
 public:
  WaitWork(std::shared_ptr<EventState> event, uint64_t record)
      : event_(std::move(event)), record_(record) {}
  void Run() const noexcept override {
    while (event_->done.load(std::memory_order_acquire) < record_) Pause();
    TsanRelease(event_.get());
  }

 private:
  std::shared_ptr<EventState> event_;
  uint64_t record_;
};

// Waits for the event, and returns its time.
uint64_t WaitOnHost(const EventState& event) {
  uint64_t done;
  while ((done = event.done.load(std::memory_order_acquire)) < event.recorded) {
    event.done.wait(done, std::memory_order_acquire);
  }
  return event.nanoseconds.load(std::memory_order_relaxed);
}

// Handles point to these holders: work that uses a graph or an event may outlive the handle.
using GraphHolder = std::shared_ptr<const Capture>;
using EventHolder = std::shared_ptr<EventState>;

}  // namespace
}  // namespace emu

Result raw::BeginCapture(const StreamHandle& stream) {
  return emu::Scheduler::Get().BeginCapture(emu::StateOf(stream));
}

Result raw::EndCapture(const StreamHandle& stream, void** graph) {
  emu::GraphHolder nodes;
  if (Result result = emu::Scheduler::Get().EndCapture(emu::StateOf(stream), &nodes);
      !result.ok()) {
    return result;
  }
  *graph = new emu::GraphHolder(std::move(nodes));
  return {};
}

Result raw::LaunchGraph(void* graph, const StreamHandle& stream) {
  return emu::Scheduler::Get().Replay(**static_cast<emu::GraphHolder*>(graph),
                                      emu::StateOf(stream));
}

void raw::DestroyGraph(void* graph) { delete static_cast<emu::GraphHolder*>(graph); }

Result raw::CreateEvent(void** out) {
  *out = new emu::EventHolder(std::make_shared<emu::EventState>());
  return {};
}

void raw::DestroyEvent(void* event) {
  auto* const holder = static_cast<emu::EventHolder*>(event);
  // A launch may have released the event just now: ThreadSanitizer sees no worker's counts.
  emu::TsanAcquire(holder->get());
  delete holder;
}

Result raw::RecordEvent(void* event, const StreamHandle& stream) {
  const emu::EventHolder& state = *static_cast<emu::EventHolder*>(event);
  state->capture = emu::Scheduler::Get().CaptureOf(emu::StateOf(stream));
  if (state->capture != nullptr) return {};
  const uint64_t record = state->recorded + 1;
  const Result result =
      emu::Submit({}, emu::StateOf(stream), std::make_shared<emu::RecordWork>(state, record));
  if (result.ok()) state->recorded = record;
  return result;
}

Result raw::WaitForEvent(const StreamHandle& stream, void* event) {
  const emu::EventHolder& state = *static_cast<emu::EventHolder*>(event);
  if (state->capture != nullptr) {
    if (emu::Scheduler::Get().JoinCapture(emu::StateOf(stream), state->capture)) return {};
    return {StatusCode::kFailedPrecondition, "wait for an event of another capture"};
  }
  if (IsCapturing(stream)) {
    return {StatusCode::kFailedPrecondition,
            "a stream that is capturing waits for an event outside the capture"};
  }
  return emu::Submit({}, emu::StateOf(stream),
                     std::make_shared<emu::WaitWork>(state, state->recorded));
}

Result raw::ElapsedNanoseconds(void* from, void* to, uint64_t* out) {
  const emu::EventState& first = **static_cast<emu::EventHolder*>(from);
  const emu::EventState& second = **static_cast<emu::EventHolder*>(to);
  if (first.capture != nullptr || second.capture != nullptr) {
    return {StatusCode::kFailedPrecondition, "time of an event that was recorded into a graph"};
  }
  const uint64_t begin = emu::WaitOnHost(first);
  const uint64_t end = emu::WaitOnHost(second);
  *out = end > begin ? end - begin : 0;
  return {};
}

}  // namespace iris::backend
