// Graphs and events. A graph is the launches that a stream recorded; an event is a launch that
// notes the time.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/backend/emu/backend.h"
#include "device/backend/emu/scheduler.h"

namespace iris::backend {

namespace emu {

// `recorded` and `capture` are the host's; a launch of record n stores the time and then n.
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
  }

 private:
  std::shared_ptr<EventState> event_;
  uint64_t record_;
};

// The time of the event, once it is there.
uint64_t WaitOnHost(const EventState& event) {
  uint64_t done;
  while ((done = event.done.load(std::memory_order_acquire)) < event.recorded) {
    event.done.wait(done, std::memory_order_acquire);
  }
  return event.nanoseconds.load(std::memory_order_relaxed);
}

}  // namespace
}  // namespace emu

Graph::Graph() = default;
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept = default;
Graph& Graph::operator=(Graph&& other) noexcept = default;

Result BeginCapture(Stream& stream) { return emu::Scheduler::Get().BeginCapture(stream.state_); }

Result EndCapture(Stream& stream, Graph* out) {
  return emu::Scheduler::Get().EndCapture(stream.state_, &out->nodes_);
}

Result LaunchGraph(Graph& graph, Stream& stream) {
  if (graph.nodes_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "launch of a graph that was not captured"};
  }
  return emu::Scheduler::Get().Replay(*graph.nodes_, stream.state_);
}

Event::Event() = default;
Event::~Event() = default;
Event::Event(Event&& other) noexcept = default;
Event& Event::operator=(Event&& other) noexcept = default;

Result Event::Create(Event* out) {
  out->state_ = std::make_shared<emu::EventState>();
  return {};
}

Result Record(Event& event, Stream& stream) {
  if (event.state_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "record of an event that was not created"};
  }
  if (stream.state_ != nullptr) {
    event.state_->capture = emu::Scheduler::Get().CaptureOf(stream.state_);
    if (event.state_->capture != nullptr) return {};
  }
  const uint64_t record = event.state_->recorded + 1;
  const Result result =
      emu::Submit({}, stream.state_, std::make_shared<emu::RecordWork>(event.state_, record));
  if (result.ok()) event.state_->recorded = record;
  return result;
}

Result WaitEvent(Stream& stream, const Event& event) {
  if (event.state_ == nullptr || stream.state_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "wait of or for what was not created"};
  }
  if (event.state_->capture != nullptr) {
    if (emu::Scheduler::Get().JoinCapture(stream.state_, event.state_->capture)) return {};
    return {ErrorCode::kFailedPrecondition, "wait for an event of another capture"};
  }
  if (event.state_->recorded == 0) return {};
  if (emu::Scheduler::Get().CaptureOf(stream.state_) != nullptr) {
    return {ErrorCode::kFailedPrecondition,
            "a stream that is capturing waits for an event outside the capture"};
  }
  return emu::Submit({}, stream.state_,
                     std::make_shared<emu::WaitWork>(event.state_, event.state_->recorded));
}

Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out) {
  if (from.state_ == nullptr || to.state_ == nullptr || from.state_->recorded == 0 ||
      to.state_->recorded == 0) {
    return {ErrorCode::kFailedPrecondition, "time between events that were not recorded"};
  }
  if (from.state_->capture != nullptr || to.state_->capture != nullptr) {
    return {ErrorCode::kFailedPrecondition, "time of an event that was recorded into a graph"};
  }
  if (emu::t_current.in_kernel != 0 || emu::Scheduler::Get().forked()) {
    return {ErrorCode::kFailedPrecondition, "wait for an event: only the host that recorded it"};
  }
  const uint64_t begin = emu::WaitOnHost(*from.state_);
  const uint64_t end = emu::WaitOnHost(*to.state_);
  *out = end > begin ? end - begin : 0;
  return {};
}

uint32_t DeviceCount() { return 1; }
Result SetDevice(uint32_t) { return {}; }

}  // namespace iris::backend
