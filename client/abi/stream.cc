// Streams, graphs, events, memory outside the heap, and copies between ranks.
#include <algorithm>
#include <functional>

#include "client/abi/objects.h"
#include "client/abi/signals.h"
#include "client/backend/device_status.h"
#include "client/comm/async_copy.h"
#include "device/base/bytes.h"

using namespace iris::abi;  // functions in C have no namespace of their own
using iris::internal::CopyKind;
using iris::internal::FromDevice;
namespace backend = iris::backend;

namespace {

// Like With, with a usable context and its backend.
template <typename Body>
iris_code WithBackend(const void* context, Body body) noexcept {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.host().Usable());
    const auto table = object.state->Backend();
    return table.ok() ? body(object, **table) : table.status();
  });
}

template <typename ObjectOf, typename T, typename Handle>
absl::Status Give(std::shared_ptr<ContextState> state, const backend::BackendOperations& table,
                  T* made, void (*destroy)(T*), Handle** out) {
  return state->Give(std::make_unique<ObjectOf>(state, &table, made, destroy), out);
}

template <typename Body>
iris_code OnStream(const iris_stream* stream, Body body) noexcept {
  return With<StreamObject>(stream, [&](StreamObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.state->host->Usable());
    return body(object);
  });
}

iris_code Malloc(iris_context* context, uint64_t bytes, void** out, const char* what,
                 void* (*backend::BackendOperations::*make)(uint64_t)) noexcept {
  return WithBackend(context, [&](ContextObject&, const auto& table) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, absl::StrCat(what, ": the place for the address")));
    if (bytes == 0) return Invalid(what, ": of 0 bytes");
    void* const memory = (table.*make)(bytes);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": there are no ", iris::base::SizeText(bytes), " free"));
    }
    *out = memory;
    return absl::OkStatus();
  });
}

iris_code Free(iris_context* context, void* memory,
               void (*backend::BackendOperations::*free)(void*)) noexcept {
  if (memory == nullptr) return With<ContextObject>(context, [](auto&) { return absl::Status(); });
  return WithBackend(context, [&](ContextObject&, const auto& table) {
    (table.*free)(memory);
    return absl::OkStatus();
  });
}

absl::Status ReadSignal(const iris_signal* given, iris::internal::SignalOptions* out) {
  iris::SignalTo signal = {nullptr, 0};
  IRIS_ABI_TRY(iris::abi::ReadSignal(given, &signal));
  *out = {signal.word, signal.value, signal.op};
  return absl::OkStatus();
}

iris_code CopyWithPeer(CopyKind kind, iris_context* context, void* dst, const void* src,
                       const iris_rows* rows, uint32_t peer, iris_stream* stream,
                       const iris_signal* signal) noexcept {
  return WithStream<ContextObject>(
      context, stream, [&](ContextObject& object, StreamObject& on) -> absl::Status {
        iris::internal::SignalOptions options;
        IRIS_ABI_TRY(ReadSignal(signal, &options));
        iris::RowsToCopy copied;
        IRIS_ABI_TRY(ReadRows(rows, &copied));
        return iris::internal::CopyAsync(object.host(), *on.backend, kind, dst, src, copied, peer,
                                         *on, options);
      });
}

}  // namespace

iris_code iris_stream_create(iris_context* context, iris_stream** out) {
  return WithBackend(context, [&](ContextObject& object, const auto& table) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "create a stream: the place for the handle"));
    backend::Stream* stream = nullptr;
    IRIS_ABI_TRY(FromDevice(table.CreateStream(&stream), "create a stream"));
    return Give<StreamObject>(object.state, table, stream, table.DestroyStream, out);
  });
}

iris_code iris_stream_wrap(iris_context* context, void* native, iris_stream** out) {
  return WithBackend(context, [&](ContextObject& object, const auto& table) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "wrap a stream: the place for the handle"));
    backend::Stream* const stream = table.BorrowStream(native);
    if (stream == nullptr) return absl::ResourceExhaustedError("wrap a stream: no host memory");
    return Give<StreamObject>(object.state, table, stream, table.DestroyStream, out);
  });
}

iris_code iris_stream_destroy(iris_stream* stream) { return Destroy<StreamObject>(stream); }

iris_code iris_stream_synchronize(iris_stream* stream) {
  return OnStream(stream, [](StreamObject& object) -> absl::Status {
    IRIS_ABI_TRY(FromDevice(object.backend->Synchronize(*object), "synchronize the stream"));
    const auto* const port = object.state->host->port();
    return port == nullptr ? absl::OkStatus() : port->FailedCopies(&object.told);
  });
}

iris_code iris_stream_idle(iris_stream* stream, int32_t* out) {
  return OnStream(stream, [&](StreamObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "the place for the answer"));
    *out = object.backend->Idle(*object) ? 1 : 0;
    return absl::OkStatus();
  });
}

iris_code iris_stream_native(iris_stream* stream, void** native, int32_t* device) {
  return With<StreamObject>(stream, [&](StreamObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(native, "the place for the platform's stream"));
    IRIS_ABI_TRY(NotNull(device, "the place for the device"));
    const backend::raw::StreamHandle handle = object.backend->Native(*object);
    *native = handle.native;
    *device = handle.device;
    return absl::OkStatus();
  });
}

iris_code iris_copy_async(void* to, const void* from, uint64_t bytes, iris_stream* stream) {
  return OnStream(stream, [&](StreamObject& object) {
    return FromDevice(object.backend->CopyAsync(to, from, bytes, *object), "copy");
  });
}

iris_code iris_fill_async(void* to, int32_t byte, uint64_t bytes, iris_stream* stream) {
  return OnStream(stream, [&](StreamObject& object) {
    return FromDevice(object.backend->FillAsync(to, static_cast<uint8_t>(byte), bytes, *object),
                      "fill");
  });
}

iris_code iris_capture_begin(iris_stream* stream) {
  return OnStream(stream, [](StreamObject& object) {
    return FromDevice(object.backend->BeginCapture(*object), "begin to capture the stream");
  });
}

iris_code iris_capture_end(iris_stream* stream, iris_graph** out) {
  return OnStream(stream, [&](StreamObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "end the capture: the place for the handle"));
    backend::Graph* graph = nullptr;
    IRIS_ABI_TRY(FromDevice(object.backend->EndCapture(*object, &graph), "end the capture"));
    return Give<GraphObject>(object.state, *object.backend, graph, object.backend->DestroyGraph,
                             out);
  });
}

iris_code iris_graph_launch(iris_graph* graph, iris_stream* stream) {
  return WithStream<GraphObject>(graph, stream, [](GraphObject& object, StreamObject& on) {
    const absl::MutexLock lock(&object.turn);
    return FromDevice(object.backend->LaunchGraph(*object, *on), "launch the graph");
  });
}

iris_code iris_graph_destroy(iris_graph* graph) { return Destroy<GraphObject>(graph); }

iris_code iris_event_create(iris_context* context, iris_event** out) {
  return WithBackend(context, [&](ContextObject& object, const auto& table) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "create an event: the place for the handle"));
    backend::Event* event = nullptr;
    IRIS_ABI_TRY(FromDevice(table.CreateEvent(&event), "create an event"));
    return Give<EventObject>(object.state, table, event, table.DestroyEvent, out);
  });
}

iris_code iris_event_destroy(iris_event* event) { return Destroy<EventObject>(event); }

iris_code iris_event_record(iris_event* event, iris_stream* stream) {
  return WithStream<EventObject>(event, stream, [](EventObject& object, StreamObject& on) {
    const absl::MutexLock lock(&object.turn);
    return FromDevice(object.backend->Record(*object, *on), "record the event");
  });
}

iris_code iris_event_wait(iris_stream* stream, iris_event* event) {
  return WithStream<EventObject>(event, stream, [](EventObject& object, StreamObject& on) {
    const absl::MutexLock lock(&object.turn);
    return FromDevice(object.backend->WaitEvent(*on, *object), "wait for the event");
  });
}

iris_code iris_event_elapsed(iris_event* from, iris_event* to, uint64_t* out_ns) {
  return With<EventObject>(from, [&](EventObject& object) -> absl::Status {
    const Held<EventObject> last(to);
    if (!last) return Unknown<EventObject>(to);
    IRIS_ABI_TRY(NotNull(out_ns, "the place for the time"));
    IRIS_ABI_TRY(object.state->host->Usable());
    // All calls that lock two events lock them in this order.
    const auto [low, high] = std::minmax({&object, &*last}, std::less<EventObject*>());
    const absl::MutexLock lock_low(&low->turn);
    const absl::MutexLockMaybe lock_high(low == high ? nullptr : &high->turn);
    return FromDevice(object.backend->ElapsedNanoseconds(*object, **last, out_ns),
                      "time between two events");
  });
}

iris_code iris_malloc_device(iris_context* context, uint64_t bytes, void** out) {
  return Malloc(context, bytes, out, "device memory", &backend::BackendOperations::MallocDevice);
}
iris_code iris_free_device(iris_context* context, void* memory) {
  return Free(context, memory, &backend::BackendOperations::FreeDevice);
}
iris_code iris_malloc_host(iris_context* context, uint64_t bytes, void** out) {
  return Malloc(context, bytes, out, "host memory", &backend::BackendOperations::MallocHost);
}
iris_code iris_free_host(iris_context* context, void* memory) {
  return Free(context, memory, &backend::BackendOperations::FreeHost);
}

iris_code iris_put_rows_async(iris_context* context, void* dst, const void* src,
                              const iris_rows* rows, uint32_t to, iris_stream* stream,
                              const iris_signal* signal) {
  return CopyWithPeer(CopyKind::kPut, context, dst, src, rows, to, stream, signal);
}
iris_code iris_get_rows_async(iris_context* context, void* dst, const void* src,
                              const iris_rows* rows, uint32_t from, iris_stream* stream,
                              const iris_signal* signal) {
  return CopyWithPeer(CopyKind::kGet, context, dst, src, rows, from, stream, signal);
}
iris_code iris_put_async(iris_context* context, void* dst, const void* src, uint64_t bytes,
                         uint32_t to, iris_stream* stream, const iris_signal* signal) {
  const iris_rows row = {sizeof(row), 1, bytes, bytes, bytes};
  return CopyWithPeer(CopyKind::kPut, context, dst, src, &row, to, stream, signal);
}
iris_code iris_get_async(iris_context* context, void* dst, const void* src, uint64_t bytes,
                         uint32_t from, iris_stream* stream, const iris_signal* signal) {
  const iris_rows row = {sizeof(row), 1, bytes, bytes, bytes};
  return CopyWithPeer(CopyKind::kGet, context, dst, src, &row, from, stream, signal);
}

iris_code iris_prepare_signals(iris_context* context) {
  return WithBackend(context, [](ContextObject&, const auto& table) {
    return FromDevice(table.PrepareSignals(), "prepare signals");
  });
}
