// Checks of arguments and lifetimes of objects of host.h, for every backend.
#include "iris/backend/host.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "iris/backend/select.h"
#include "iris/backend/spec.h"

namespace iris::backend {
namespace {

constexpr Result kNoStream = {StatusCode::kFailedPrecondition,
                              "use of a stream that was not created or was moved from"};
constexpr Result kNoEvent = {StatusCode::kFailedPrecondition,
                             "use of an event that was not created or was moved from"};

// Set in children that are forked after the first stream was made.
std::atomic<bool> forked{false};

void WatchForks() {
  static const int watching =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  (void)watching;  // if memory runs out, the vendor's runtime reports uses after a fork, if it can
}

// Checks that the calling thread may use the device.
Result CheckUse() {
  if (Result result = CheckProcess(); !result.ok()) return result;
  return raw::CheckCaller();
}

// Checks that the stream exists, and that the calling thread may use it.
Result CheckUse(const Stream& stream) { return stream.valid() ? CheckUse() : kNoStream; }

uint64_t AtLeastOne(uint64_t bytes) { return bytes > 0 ? bytes : 1; }

}  // namespace

Result CheckProcess() {
  if (!forked.load(std::memory_order_relaxed)) return {};
  return {StatusCode::kFailedPrecondition,
          "called in a forked child of a process that works with devices: launch and wait in the "
          "parent, or exec a new program in the child"};
}

Result AwaitIdle(uint64_t timeout_ns) {
  if (Result result = CheckUse(); !result.ok()) return result;
  // No platform's wait for a device has a time limit, so a thread waits, and may be left waiting.
  struct Answer {
    std::mutex mu;
    std::condition_variable come;
    bool has_come = false;
    Result result;
  };
  const auto answer = std::make_shared<Answer>();
  const uint32_t device = CurrentDevice();
  std::thread([answer, device] {
    Result result = SetDevice(device);
    if (result.ok()) result = raw::SynchronizeDevice();
    const std::lock_guard<std::mutex> lock(answer->mu);
    answer->result = result;
    answer->has_come = true;
    answer->come.notify_all();
  }).detach();
  constexpr uint64_t kUsualNs = 30ull * 1000 * 1000 * 1000;
  const std::chrono::nanoseconds limit(timeout_ns == 0 ? kUsualNs : timeout_ns);
  std::unique_lock<std::mutex> lock(answer->mu);
  if (answer->come.wait_for(lock, limit, [&] { return answer->has_come; })) return answer->result;
  return {StatusCode::kDeadlineExceeded,
          "the device was not idle in time: something that was launched before is still under way, "
          "and may wait for another rank"};
}

Stream::Stream(Stream&& other) noexcept
    : handle_(std::exchange(other.handle_, {})), kind_(std::exchange(other.kind_, Kind::kEmpty)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  Stream old(std::move(*this));
  handle_ = std::exchange(other.handle_, {});
  kind_ = std::exchange(other.kind_, Kind::kEmpty);
  return *this;
}

Stream::~Stream() {
  // In a forked child, the stream belongs to the parent.
  if (kind_ == Kind::kCreated && CheckProcess().ok()) raw::DestroyStream(handle_);
}

Result Stream::Create(Stream* out) {
  if (Result result = CheckProcess(); !result.ok()) return result;
  WatchForks();
  Stream made;
  if (Result result = raw::CreateStream(&made.handle_); !result.ok()) return result;
  made.kind_ = Kind::kCreated;
  *out = std::move(made);
  return {};
}

Stream Stream::Borrow(void* native) { return Borrow(native, -1); }

Stream Stream::Borrow(void* native, int32_t device) {
  Stream stream;
  if (native == nullptr && !Traits::kNullIsAStream) return stream;
  stream.handle_ = {native, device};
  stream.kind_ = Kind::kBorrowed;
  return stream;
}

Result Stream::Synchronize() {
  if (Result result = CheckUse(*this); !result.ok()) return result;
  if (raw::IsCapturing(handle_)) {
    return {StatusCode::kFailedPrecondition,
            "synchronize a stream that is capturing: end the capture first"};
  }
  return raw::SynchronizeStream(handle_);
}

bool Stream::Idle() {
  if (!valid() || !CheckProcess().ok()) return true;
  return raw::IsCapturing(handle_) || raw::IsIdle(handle_);
}

Result impl::CheckLaunch(const LaunchConfig& config, const Stream& stream, bool has_kernel) {
  if (!has_kernel) return {StatusCode::kInvalidArgument, "launch of a null kernel"};
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (config.grid == 0) {
    return {StatusCode::kInvalidArgument, "launch of 0 blocks: a grid has 1 or more"};
  }
  if (config.block == 0) {
    return {StatusCode::kInvalidArgument, "launch of 0 threads in a block: a block has 1 to 1,024"};
  }
  if (config.block > kMaxBlockThreads) {
    return {StatusCode::kInvalidArgument,
            "launch of too many threads in a block: a block has 1 to 1,024"};
  }
  return {};
}

Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream) {
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (bytes == 0) return {};
  if (to == nullptr || from == nullptr) {
    return {StatusCode::kInvalidArgument, "copy from or to a null pointer"};
  }
  return raw::CopyAsync(to, from, bytes, stream.handle());
}

Result CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows, Stream& stream) {
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (rows.rows == 0 || rows.row_bytes == 0) return {};
  if (to == nullptr || from == nullptr) {
    return {StatusCode::kInvalidArgument, "copy from or to a null pointer"};
  }
  if (rows.rows == 1) return raw::CopyAsync(to, from, rows.row_bytes, stream.handle());
  if (rows.dst_pitch_bytes < rows.row_bytes || rows.src_pitch_bytes < rows.row_bytes) {
    return {StatusCode::kInvalidArgument, "copy of rows that overlap: a pitch is less than a row"};
  }
  if (rows.dst_pitch_bytes == rows.row_bytes && rows.src_pitch_bytes == rows.row_bytes) {
    return raw::CopyAsync(to, from, rows.rows * rows.row_bytes, stream.handle());
  }
  return raw::CopyRowsAsync(to, from, rows, stream.handle());
}

Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream) {
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (bytes == 0) return {};
  if (to == nullptr) return {StatusCode::kInvalidArgument, "fill of a null pointer"};
  return raw::FillAsync(to, value, bytes, stream.handle());
}

Graph::~Graph() {
  if (native_ != nullptr) raw::DestroyGraph(native_);
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(native_, other.native_);
  return *this;
}

Result BeginCapture(Stream& stream) {
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (raw::IsCapturing(stream.handle())) {
    return {StatusCode::kFailedPrecondition, "begin of a capture on a stream that is capturing"};
  }
  return raw::BeginCapture(stream.handle());
}

Result EndCapture(Stream& stream, Graph* out) {
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (!raw::IsCapturing(stream.handle())) {
    return {StatusCode::kFailedPrecondition, "end of a capture that did not begin on this stream"};
  }
  Graph made;
  if (Result result = raw::EndCapture(stream.handle(), &made.native_); !result.ok()) return result;
  *out = std::move(made);
  return {};
}

Result LaunchGraph(Graph& graph, Stream& stream) {
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (graph.native_ == nullptr) {
    return {StatusCode::kFailedPrecondition, "launch of a graph that was not captured"};
  }
  if (raw::IsCapturing(stream.handle())) {
    return {StatusCode::kFailedPrecondition, "launch of a graph on a stream that is capturing"};
  }
  return raw::LaunchGraph(graph.native_, stream.handle());
}

Event::~Event() {
  if (native_ != nullptr) raw::DestroyEvent(native_);
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(native_, other.native_);
  std::swap(recorded_, other.recorded_);
  return *this;
}

Result Event::Create(Event* out) {
  if (Result result = CheckProcess(); !result.ok()) return result;
  Event made;
  if (Result result = raw::CreateEvent(&made.native_); !result.ok()) return result;
  *out = std::move(made);
  return {};
}

Result Record(Event& event, Stream& stream) {
  if (event.native_ == nullptr) return kNoEvent;
  if (Result result = CheckUse(stream); !result.ok()) return result;
  Result result = raw::RecordEvent(event.native_, stream.handle());
  if (result.ok()) event.recorded_ = true;
  return result;
}

Result WaitEvent(Stream& stream, const Event& event) {
  if (event.native_ == nullptr) return kNoEvent;
  if (Result result = CheckUse(stream); !result.ok()) return result;
  if (!event.recorded_) return {};
  return raw::WaitForEvent(stream.handle(), event.native_);
}

Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out) {
  if (from.native_ == nullptr || to.native_ == nullptr) return kNoEvent;
  if (Result result = CheckUse(); !result.ok()) return result;
  if (!from.recorded_ || !to.recorded_) {
    return {StatusCode::kFailedPrecondition, "time between events that were not recorded"};
  }
  return raw::ElapsedNanoseconds(from.native_, to.native_, out);
}

void* MallocDevice(uint64_t bytes) { return raw::MallocDevice(AtLeastOne(bytes)); }

void FreeDevice(void* p) {
  if (p != nullptr) raw::FreeDevice(p);
}

void* MallocHost(uint64_t bytes) { return raw::MallocHost(AtLeastOne(bytes)); }

void FreeHost(void* p) {
  if (p != nullptr) raw::FreeHost(p);
}

bool KernelsReach(const void* p) { return p != nullptr && raw::KernelsReach(p); }

}  // namespace iris::backend
