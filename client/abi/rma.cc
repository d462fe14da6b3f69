// Puts, gets, signals and atomics that the host makes itself.
#include "client/abi/objects.h"
#include "client/abi/signals.h"
#include "client/context/host_rma.h"
#include "iris/port_types.h"

using namespace iris::abi;  // functions in C have no namespace of their own
namespace internal = iris::internal;

namespace {

static_assert(IRIS_ATOMIC_ADD == static_cast<int>(iris::PortAtomic::kAdd));
static_assert(IRIS_ATOMIC_MAX == static_cast<int>(iris::PortAtomic::kMax));
static_assert(IRIS_ATOMIC_XOR == static_cast<int>(iris::PortAtomic::kXor));
static_assert(IRIS_ATOMIC_LOAD == static_cast<int>(iris::PortAtomic::kLoad));

absl::StatusOr<iris::PortType> TypeOf(iris_dtype dtype) {
  switch (dtype) {
    case IRIS_I32:
      return iris::PortType::kInt32;
    case IRIS_U32:
      return iris::PortType::kUint32;
    case IRIS_I64:
      return iris::PortType::kInt64;
    case IRIS_U64:
      return iris::PortType::kUint64;
    case IRIS_F32:
      return iris::PortType::kFloat;
    case IRIS_F64:
      return iris::PortType::kDouble;
    case IRIS_F16:
      return iris::PortType::kHalf;
    case IRIS_BF16:
      return iris::PortType::kBfloat16;
    default:
      return Invalid("atomic: there are none of dtype ", dtype);
  }
}

iris_code Put(iris_context* context, void* dst, const void* src, const iris_rows* rows, uint32_t to,
              const iris_signal* given) noexcept {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    iris::RowsToCopy copy;
    IRIS_ABI_TRY(ReadRows(rows, &copy));
    iris::SignalTo signal = {nullptr, 0};
    IRIS_ABI_TRY(ReadSignal(given, &signal));
    return internal::HostPut(object.host(), to, dst, src, copy, signal);
  });
}

iris_code Get(iris_context* context, void* dst, const void* src, const iris_rows* rows,
              uint32_t from) noexcept {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    iris::RowsToCopy copy;
    IRIS_ABI_TRY(ReadRows(rows, &copy));
    return internal::HostGet(object.host(), from, dst, src, copy);
  });
}

iris_rows OneRow(uint64_t bytes) { return {sizeof(iris_rows), 1, bytes, bytes, bytes}; }

}  // namespace

iris_code iris_put(iris_context* context, void* dst, const void* src, uint64_t bytes, uint32_t to,
                   const iris_signal* signal) {
  const iris_rows row = OneRow(bytes);
  return Put(context, dst, src, &row, to, signal);
}

iris_code iris_put_rows(iris_context* context, void* dst, const void* src, const iris_rows* rows,
                        uint32_t to, const iris_signal* signal) {
  return Put(context, dst, src, rows, to, signal);
}

iris_code iris_get(iris_context* context, void* dst, const void* src, uint64_t bytes,
                   uint32_t from) {
  const iris_rows row = OneRow(bytes);
  return Get(context, dst, src, &row, from);
}

iris_code iris_get_rows(iris_context* context, void* dst, const void* src, const iris_rows* rows,
                        uint32_t from) {
  return Get(context, dst, src, rows, from);
}

iris_code iris_send_signal(iris_context* context, uint32_t to, const iris_signal* signal) {
  if (signal == nullptr) {
    return Run([] { return Invalid("send a signal: the signal is null"); });
  }
  const iris_rows nothing = OneRow(0);
  return Put(context, nullptr, nullptr, &nothing, to, signal);
}

iris_code iris_atomic_fetch(iris_context* context, const iris_atomic* given, uint64_t* old) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto call, ReadStruct(given, kAtomicBytes, "iris_atomic"));
    IRIS_ASSIGN_OR_RETURN(const iris::PortType type, TypeOf(call.dtype));
    if (call.op < IRIS_ATOMIC_ADD || call.op > IRIS_ATOMIC_LOAD) {
      return Invalid("atomic: ", call.op, " is no operation");
    }
    IRIS_ASSIGN_OR_RETURN(
        const uint64_t value,
        internal::HostFetch(object.host(),
                            {call.peer, call.word, static_cast<iris::PortAtomic>(call.op), type,
                             call.value, call.compare}));
    if (old != nullptr) *old = value;
    return absl::OkStatus();
  });
}

iris_code iris_fence(iris_context* context) {
  return With<ContextObject>(context, [](ContextObject& object) -> absl::Status {
    // Requests to one rank take effect in their order; stores to mapped memory need a fence.
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
    return object.host().Usable();
  });
}

iris_code iris_quiet(iris_context* context, int64_t timeout_ns) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(CheckTime(timeout_ns, "quiet: timeout_ns"));
    return internal::HostQuiet(object.host(), absl::Nanoseconds(timeout_ns));
  });
}
