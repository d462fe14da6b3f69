// The host's side of the device layer: streams, launches, copies, graphs, events and memory, over
// what a backend supplies (raw_host.h). They are made on the host thread's current device. On
// failure nothing changes. kFailedPrecondition for a stream, graph or event that was not created or
// was moved from. C++17.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "iris/backend/raw_host.h"
#include "iris/backend/select.h"
#include "iris/backend/types.h"

namespace iris::backend {

class Event;
class Graph;

// A field that keeps a const row of host functions out of device code, where it would not link.
struct HostOnly {
#if defined(__HIP_DEVICE_COMPILE__)
  HostOnly();  // not defined
#endif
};

// "emu", or the name of the vendor's platform: for messages. Traits say what a backend is like.
constexpr const char* BackendName() { return Traits::kName; }

// 0 where the machine has none.
uint32_t DeviceCount();

// Makes it current on the calling thread. On emu, any index will do.
Result SetDevice(uint32_t index);

// kFailedPrecondition in a forked child of a process that has made a stream. Functions that return
// a Result check it themselves.
Result CheckProcess();

// The one that is current on the calling thread. 0 if the machine has none.
uint32_t CurrentDevice();

// How many blocks of a normal size run truly at once on the current device.
uint32_t MultiprocessorCount();

// How many blocks of any size the current device certainly runs at once. 0: any number.
uint32_t ResidentBlocks();

// How many streams of this process run independently on a device. More share queues and wait for
// each other.
struct StreamQueues {
  uint32_t count = 0;       // 0: any number
  const char* remedy = "";  // how a program gets more
};
StreamQueues CountQueues();

// Waits until the current device has finished all launches of this process. kDeadlineExceeded after
// `timeout_ns`; 0 is half a minute.
Result AwaitIdle(uint64_t timeout_ns);

// An ordered, asynchronous queue of work. Thread-safe, but for moves.
class Stream {
 public:
  Stream() = default;
  // Waits for its work, unless borrowed.
  ~Stream();
  Stream(Stream&& other) noexcept;
  // Waits for the work of the stream that was here.
  Stream& operator=(Stream&& other) noexcept;

  // On the current device, independent of the application's streams, the default one included.
  static Result Create(Stream* out);

  // A stream of the application, which outlives this. Null: the default stream, if there is one.
  static Stream Borrow(void* native);
  // Borrows a stream of this device, to which launches go. -1: not known.
  static Stream Borrow(void* native, int32_t device);

  // Returns the handle that Borrow takes.
  void* native() const { return handle_.native; }

  // Returns the first error of its work, once. kFailedPrecondition while it is being captured.
  Result Synchronize();

  // True if nothing of it is left to do. A stream that is being captured counts as idle.
  bool Idle();

  // Returns false for an empty stream.
  bool valid() const { return kind_ != Kind::kEmpty; }

  // Returns the handle that the functions of a backend take.
  const raw::StreamHandle& handle() const { return handle_; }

 private:
  enum class Kind : uint8_t { kEmpty, kCreated, kBorrowed };

  raw::StreamHandle handle_;
  Kind kind_ = Kind::kEmpty;
};

namespace impl {

Result CheckLaunch(const LaunchConfig& config, const Stream& stream, bool has_kernel);

}  // namespace impl

// Runs kernel(args...) on every thread of the grid, converted to the parameters' types.
template <typename... Params, typename... Args>
Result Launch(const LaunchConfig& config, Stream& stream, void (*kernel)(Params...),
              Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel gets one argument per parameter");
  static_assert((!std::is_reference_v<Params> && ...), "a kernel's parameters are values");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "... and trivially copyable");
  if (Result checked = impl::CheckLaunch(config, stream, kernel != nullptr); !checked.ok()) {
    return checked;
  }
  std::tuple<std::remove_const_t<Params>...> values(std::forward<Args>(args)...);
  return raw::Launch(config, stream.handle(), kernel, values);
}

// Loads the kernel's code onto the current device, and allows that much shared memory. A first
// launch without it may wait for running kernels.
template <typename... Params>
Result PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0) {
  if (kernel == nullptr) return {StatusCode::kInvalidArgument, "preparation of a null kernel"};
  return raw::PrepareKernel(reinterpret_cast<const void*>(kernel), shared_bytes);
}

// Between any two kinds of memory. The ranges must not overlap.
Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
// Bytes between rows are not touched. A pitch is at least a row; the whole ranges do not overlap.
Result CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows, Stream& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);

// Recorded work. Not thread-safe; its launches do not overlap. It may be destroyed while it runs.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept;

 private:
  friend Result EndCapture(Stream& stream, Graph* out);
  friend Result LaunchGraph(Graph& graph, Stream& stream);

  void* native_ = nullptr;
};

// Until EndCapture, launches, copies and fills on the stream are recorded. Other threads may go on.
Result BeginCapture(Stream& stream);
Result EndCapture(Stream& stream, Graph* out);

// Runs the recorded work, with the same arguments, in order.
Result LaunchGraph(Graph& graph, Stream& stream);

// A moment in the work of a stream. Not thread-safe. It may be destroyed before it happens.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept
      : native_(std::exchange(other.native_, nullptr)),
        recorded_(std::exchange(other.recorded_, false)) {}
  Event& operator=(Event&& other) noexcept;

  static Result Create(Event* out);

  // Returns the handle that the functions of a backend take.
  void* native() const { return native_; }

 private:
  friend Result Record(Event& event, Stream& stream);
  friend Result WaitEvent(Stream& stream, const Event& event);
  friend Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out);

  void* native_ = nullptr;
  bool recorded_ = false;
};

// The event happens when the stream comes here.
Result Record(Event& event, Stream& stream);

// The stream waits for the last Record before this call; if there was none, for nothing. For an
// event that was recorded on a stream that captures, this stream is captured too, as a branch: its
// work must come back to the first stream by an event before EndCapture.
Result WaitEvent(Stream& stream, const Event& event);

// The time between two events, once both have happened. Not for events that were captured.
Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out);

// Device memory outside any heap. Null if there is not so much. Freeing null does nothing.
void* MallocDevice(uint64_t bytes);
void FreeDevice(void* p);

// Host memory that kernels of all devices can read and write, at the same address.
void* MallocHost(uint64_t bytes);
void FreeHost(void* p);

}  // namespace iris::backend
