// Streams, graphs, events, arrays outside the heap, and copies between ranks, on whichever backend
// irisd has: the program is compiled once.
//
//   iris::StatusOr<iris::Stream> stream = iris::Stream::Create(*context);
//   iris::StatusOr<iris::DeviceArray<float>> x = iris::DeviceArray<float>::Create(*context, 1024);
//   iris::Status status = stream->Copy(x->get(), host.data(), 1024 * sizeof(float));
//   status = stream->Synchronize();
//
// A program with kernels of its own starts them on these streams by <iris/launch.h>, or gives Iris
// a stream of its platform by Stream::Wrap.
//
// Thread-safe, but for moves. A moved-from or default-constructed object is empty: every call
// fails. Objects end before their context, or with it. Header-only over <iris/c_api.h>. C++17.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "iris/c_api.h"
#include "iris/context.h"
#include "iris/status.h"
#include "iris/types.h"

namespace iris {

// The signal that a copy on a stream sends to the peer when the copy is done. Device code waits for
// it as for any signal.
struct SignalOptions {
  uint64_t* signal = nullptr;  // in this rank's heap; stands for the peer's word. Null: no signal
  uint64_t value = 1;
  SignalOp op = SignalOp::kSet;
};

class Graph;
class Event;

// The rows of a tile, of `row_bytes` each. A pitch is the number of bytes from one row to the next.
struct CopiedRows {
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t dst_pitch_bytes = 0;
  uint64_t src_pitch_bytes = 0;
};

// A stream runs launches, copies and collectives in order, asynchronously.
class Stream {
 public:
  Stream() = default;

  // Makes a stream of the context's device that does not wait for other streams. Its destructor
  // waits for its work.
  static StatusOr<Stream> Create(const Context& context) {
    iris_stream* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_stream_create(context.get(), &handle)));
    return Adopt(handle);
  }
  // Wraps a stream of the platform, which must outlive this object. Null stands for the platform's
  // default stream, if there is one.
  static StatusOr<Stream> Wrap(const Context& context, void* native) {
    iris_stream* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_stream_wrap(context.get(), native, &handle)));
    return Adopt(handle);
  }

  // Waits for all earlier work on the stream. Returns the first error of that work, only once.
  // kFailedPrecondition while the stream is being captured.
  Status Synchronize() { return impl::FromC(iris_stream_synchronize(get())); }
  // Returns true if the stream has no work left, or if this object is empty.
  bool Idle() const {
    int32_t idle = 1;
    return iris_stream_idle(get(), &idle) != IRIS_OK || idle != 0;
  }

  // Copies between memory of any two kinds. The ranges must not overlap, and must stay until the
  // stream has run the copy.
  Status Copy(void* to, const void* from, uint64_t bytes) {
    return impl::FromC(iris_copy_async(to, from, bytes, get()));
  }
  Status Fill(void* to, uint8_t value, uint64_t bytes) {
    return impl::FromC(iris_fill_async(to, value, bytes, get()));
  }

  // Reads one value, or `count` of them, from memory of the device or of the heap, after the
  // earlier work of the stream. It waits for the stream; errors are those of Synchronize.
  template <typename T>
  StatusOr<T> Read(const T* from) {
    static_assert(std::is_trivially_copyable_v<T>, "copies move bytes");
    IRIS_RETURN_IF_ERROR(Synchronize());  // a capture would keep the address of `value`
    T value;
    IRIS_RETURN_IF_ERROR(Copy(&value, from, sizeof(T)));
    IRIS_RETURN_IF_ERROR(Synchronize());
    return value;
  }
  template <typename T>
  StatusOr<std::vector<T>> Read(const T* from, uint64_t count) {
    static_assert(std::is_trivially_copyable_v<T>, "copies move bytes");
    IRIS_RETURN_IF_ERROR(Synchronize());  // likewise
    std::vector<T> values(count);
    IRIS_RETURN_IF_ERROR(Copy(values.data(), from, count * sizeof(T)));
    IRIS_RETURN_IF_ERROR(Synchronize());
    return values;
  }

  // Copy between this rank and a peer by the device's copy engine; a signal takes a kernel of one
  // thread, and a rank of another node a kernel of one block. `dst` of a put and `src` of a get are
  // addresses in this rank's heap that stand for the peer's copy, as in kernels; the other side is
  // any memory that the device can use, and must stay until the stream has run the copy. The signal
  // is changed in the peer's heap once all bytes have arrived (put) or have been read (get), with
  // release order.
  //
  // If the peer is on another node, the stream goes on once all has arrived there, or here. If that
  // fails, or a part of it takes longer than the context's timeout, the next Synchronize of each
  // stream of the context returns the reason, once. The signal then comes late, after the bytes, or
  // never.
  //
  // kInvalidArgument if a rank or a range is outside the job's heaps, if ranges overlap, or if a
  // signal is not aligned to 8 bytes or lies in the overwritten range; for a rank of another node
  // also if the local side is memory that kernels do not reach, such as malloc's on a GPU. kAborted
  // if the peer is on another node and the job is broken. Nothing was put on the stream then.
  Status Put(const Context& context, uint32_t to, void* dst, const void* src, uint64_t bytes,
             const SignalOptions& signal = {}) {
    return Put(context, to, dst, src, CopiedRows{1, bytes, bytes, bytes}, signal);
  }
  Status Get(const Context& context, uint32_t from, void* dst, const void* src, uint64_t bytes,
             const SignalOptions& signal = {}) {
    return Get(context, from, dst, src, CopiedRows{1, bytes, bytes, bytes}, signal);
  }
  // Put and get the rows of a tile. The bytes between rows are neither read nor written, but belong
  // to the ranges that must not overlap. kInvalidArgument also if a pitch is less than a row.
  Status Put(const Context& context, uint32_t to, void* dst, const void* src,
             const CopiedRows& rows, const SignalOptions& signal = {}) {
    const iris_signal s = ToC(signal);
    const iris_rows r = ToC(rows);
    return impl::FromC(iris_put_rows_async(context.get(), dst, src, &r, to, get(), &s));
  }
  Status Get(const Context& context, uint32_t from, void* dst, const void* src,
             const CopiedRows& rows, const SignalOptions& signal = {}) {
    const iris_signal s = ToC(signal);
    const iris_rows r = ToC(rows);
    return impl::FromC(iris_get_rows_async(context.get(), dst, src, &r, from, get(), &s));
  }
  // Loads the kernels of signals and of copies to other nodes onto the context's device. Otherwise
  // the first of these may wait until running kernels have ended: call this before you launch a
  // kernel that waits for such a signal.
  static Status PrepareSignals(const Context& context) {
    return impl::FromC(iris_prepare_signals(context.get()));
  }

  // Until EndCapture, records work put on the stream instead of running it.
  Status BeginCapture() { return impl::FromC(iris_capture_begin(get())); }
  inline StatusOr<Graph> EndCapture();

  // Makes the stream wait for the last Record of the event before this call, if there was one.
  inline Status Wait(const Event& event);

  // The platform's stream, for launches, and the device that it was made on (-1 if it was wrapped).
  void* native() const { return native_; }
  int32_t device() const { return device_; }
  // The handle for the C API; null if this is empty.
  iris_stream* get() const { return handle_.get(); }

 private:
  static StatusOr<Stream> Adopt(iris_stream* handle) {
    Stream stream;
    stream.handle_ = impl::Handle<iris_stream, iris_stream_destroy>(handle);
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_stream_native(handle, &stream.native_, &stream.device_)));
    return stream;
  }
  static iris_signal ToC(const SignalOptions& from) {
    auto signal = impl::Sized<iris_signal>();
    signal.word = from.signal;
    signal.value = from.value;
    signal.op = from.op == SignalOp::kSet ? IRIS_SIGNAL_SET : IRIS_SIGNAL_ADD;
    return signal;
  }
  static iris_rows ToC(const CopiedRows& from) {
    return {sizeof(iris_rows), from.rows, from.row_bytes, from.dst_pitch_bytes,
            from.src_pitch_bytes};
  }

  impl::Handle<iris_stream, iris_stream_destroy> handle_;
  void* native_ = nullptr;
  int32_t device_ = -1;
};

// Recorded work, which can be run any number of times. Launches of one graph do not overlap. A
// graph may be destroyed while it runs.
class Graph {
 public:
  Graph() = default;
  // Runs the recorded work, with the same arguments, in the stream's order.
  Status Launch(Stream& stream) {
    return impl::FromC(iris_graph_launch(handle_.get(), stream.get()));
  }

 private:
  friend class Stream;
  explicit Graph(iris_graph* handle) : handle_(handle) {}
  impl::Handle<iris_graph, iris_graph_destroy> handle_;
};

// A moment in the work of a stream. It may be destroyed before it happens.
class Event {
 public:
  Event() = default;
  static StatusOr<Event> Create(const Context& context) {
    iris_event* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_event_create(context.get(), &handle)));
    return Event(handle);
  }
  // The event happens when the stream reaches this point.
  Status Record(Stream& stream) {
    return impl::FromC(iris_event_record(handle_.get(), stream.get()));
  }
  // Returns the time from `start`, once both events have happened. Captured events have no time.
  StatusOr<std::chrono::nanoseconds> Since(const Event& start) const {
    uint64_t ns = 0;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_event_elapsed(start.handle_.get(), handle_.get(), &ns)));
    return std::chrono::nanoseconds(ns);
  }

 private:
  friend class Stream;
  explicit Event(iris_event* handle) : handle_(handle) {}
  impl::Handle<iris_event, iris_event_destroy> handle_;
};

inline StatusOr<Graph> Stream::EndCapture() {
  iris_graph* handle = nullptr;
  IRIS_RETURN_IF_ERROR(impl::FromC(iris_capture_end(get(), &handle)));
  return Graph(handle);
}

inline Status Stream::Wait(const Event& event) {
  return impl::FromC(iris_event_wait(get(), event.handle_.get()));
}

namespace impl {

// `size` elements of memory of one kind outside any heap, freed with their owner.
template <typename T, iris_code (*Malloc)(iris_context*, uint64_t, void**),
          iris_code (*FreeMemory)(iris_context*, void*)>
class OwnedArray {
 public:
  OwnedArray() = default;
  ~OwnedArray() {
    if (data_ != nullptr) (void)FreeMemory(context_, data_);
  }
  OwnedArray(OwnedArray&& other) noexcept { *this = std::move(other); }
  OwnedArray& operator=(OwnedArray&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* get() const { return data_; }
  operator T*() const { return data_; }  // NOLINT: stands for its address
  T* operator->() const { return data_; }
  uint64_t size() const { return size_; }
  uint64_t bytes() const { return size_ * sizeof(T); }

 protected:
  Status Make(const Context& context, uint64_t size) {
    static_assert(std::is_trivially_copyable_v<T>, "kernels and copies move bytes");
    if (size > ~uint64_t{0} / sizeof(T)) {
      return Status(StatusCode::kInvalidArgument, "an array of so many elements has no size");
    }
    void* memory = nullptr;
    IRIS_RETURN_IF_ERROR(FromC(Malloc(context.get(), size * sizeof(T), &memory)));
    context_ = context.get();
    data_ = static_cast<T*>(memory);
    size_ = size;
    return Status();
  }

 private:
  iris_context* context_ = nullptr;
  T* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace impl

// Memory of the device, which only kernels and copies read and write. It is not cleared.
template <typename T>
class DeviceArray : public impl::OwnedArray<T, iris_malloc_device, iris_free_device> {
 public:
  static StatusOr<DeviceArray> Create(const Context& context, uint64_t size) {
    DeviceArray array;
    IRIS_RETURN_IF_ERROR(array.Make(context, size));
    return array;
  }
  // Makes an array with a copy of `values`, which is complete when the call returns.
  static StatusOr<DeviceArray> Create(const Context& context, const std::vector<T>& values,
                                      Stream& stream) {
    DeviceArray array;
    IRIS_RETURN_IF_ERROR(array.Make(context, values.size()));
    IRIS_RETURN_IF_ERROR(stream.Copy(array.get(), values.data(), array.bytes()));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    return array;
  }
};

// Memory of the host, zero at first, that kernels can use at the same address, for example for
// their results.
template <typename T>
class HostArray : public impl::OwnedArray<T, iris_malloc_host, iris_free_host> {
 public:
  static StatusOr<HostArray> Create(const Context& context, uint64_t size = 1) {
    HostArray array;
    IRIS_RETURN_IF_ERROR(array.Make(context, size));
    std::memset(static_cast<void*>(array.get()), 0, array.bytes());
    return array;
  }
};

}  // namespace iris
