// The host's side of the device layer: streams, launches, copies, graphs, events and memory, over
// the functions of a backend (raw_host.h). Objects are made on the host thread's current device. On
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

// A field that keeps constant rows of host functions out of device code, where they do not link.
struct HostOnly {
#if defined(__HIP_DEVICE_COMPILE__)
  HostOnly();  // not defined
#endif
};

// Returns "emu" or the name of the vendor's platform, for messages. For properties see Traits.
constexpr const char* BackendName() { return Traits::kName; }

// Returns the number of devices, 0 if the machine has none.
uint32_t DeviceCount();

// Makes the device current on the calling thread. Emu accepts any index.
Result SetDevice(uint32_t index);

// Returns kFailedPrecondition in a forked child of a process that has made a stream. Functions that
// return a Result call it themselves.
Result CheckProcess();

// Returns the calling thread's current device, 0 if the machine has none.
uint32_t CurrentDevice();

// Returns how many blocks of a usual size the current device runs in parallel.
uint32_t MultiprocessorCount();

// Returns how many blocks of any size surely run together on the current device. 0: any number.
uint32_t ResidentBlocks();

// The number of streams of this process that run independently on a device. Further streams share
// queues with others, and wait for these.
struct StreamQueues {
  uint32_t count = 0;       // 0: any number
  const char* remedy = "";  // tells the user how to get more queues
};
StreamQueues CountQueues();

// Waits until the current device has finished all launches of this process. kDeadlineExceeded after
// `timeout_ns`; 0 is half a minute.
Result AwaitIdle(uint64_t timeout_ns);

// An ordered, asynchronous queue of work. Thread-safe, except for moves.
class Stream {
 public:
  Stream() = default;
  // Waits for the stream's work, unless the stream is borrowed.
  ~Stream();
  Stream(Stream&& other) noexcept;
  // First waits for the work of this stream, like the destructor.
  Stream& operator=(Stream&& other) noexcept;

  // Makes a stream on the current device, independent of the application's, also the default one.
  static Result Create(Stream* out);

  // Borrows a stream, which must outlive the result. Null: the default stream, if there is one.
  static Stream Borrow(void* native);
  // Also takes the stream's device, on which launches run; -1 if not known.
  static Stream Borrow(void* native, int32_t device);

  // Returns the handle that Borrow takes.
  void* native() const { return handle_.native; }

  // Waits; returns the work's first error, once. kFailedPrecondition while the stream is captured.
  Result Synchronize();

  // Returns true if all work of the stream is done, or if the stream is being captured.
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

// Loads the kernel's code onto the current device, and allows launches with `shared_bytes` of
// dynamic shared memory. The first launch of an unprepared kernel may wait for running kernels.
template <typename... Params>
Result PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0) {
  if (kernel == nullptr) return {StatusCode::kInvalidArgument, "preparation of a null kernel"};
  return raw::PrepareKernel(reinterpret_cast<const void*>(kernel), shared_bytes);
}

// Copies between any two kinds of memory. The ranges must not overlap.
Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
// Copies rows, not the bytes between. A pitch is at least a row; the whole ranges do not overlap.
Result CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows, Stream& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);

// Recorded work. Not thread-safe; its launches do not overlap. May be destroyed while it runs.
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

// Records launches, copies and fills on the stream until EndCapture, instead of running them. Other
// threads may continue meanwhile.
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

// Records the event: it happens when the stream has finished its work before this call.
Result Record(Event& event, Stream& stream);

// Makes the stream wait for the last Record of the event before this call, if there was one. If the
// event was recorded on a stream that is being captured, this stream is captured too, as a branch;
// the first stream must wait for an event of the branch before EndCapture.
Result WaitEvent(Stream& stream, const Event& event);

// Computes the time between two events, once both have happened. Not for events that were captured.
Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out);

// Allocates device memory outside any heap. Null if memory runs out. Freeing null does nothing.
void* MallocDevice(uint64_t bytes);
void FreeDevice(void* p);

// Allocates host memory that kernels of all devices can read and write at the same address.
void* MallocHost(uint64_t bytes);
void FreeHost(void* p);

// Returns true if kernels of the current device can use the memory at this address of the host's
// pointers. Copies can use more, such as what malloc returns.
bool KernelsReach(const void* p);

}  // namespace iris::backend
