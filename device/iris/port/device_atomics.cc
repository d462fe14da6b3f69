#include "iris/port/device_atomics.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/backend/words.h"
#include "iris/types.h"

namespace iris {

// The end of a list, in host memory that the kernel writes.
struct DeviceAtomicsEnd {
  uint64_t old[kMaxDeviceAtomics];
  uint64_t lists;  // how many have ended, written last
};

struct DeviceAtomics {
  backend::Stream stream;
  DeviceAtomicsEnd* end = nullptr;
  uint64_t started = 0;
  uint32_t n = 0;  // of the list that was started last
  uint32_t polls = 0;
};

namespace {

// A kernel that fails ends its stream's work without a result. The stream is asked once in so many
// polls, since the answer costs more than to look at the result.
constexpr uint32_t kPollsPerQuestion = 1024;

struct List {
  uint32_t n = 0;
  DeviceAtomic atomics[kMaxDeviceAtomics];
};
static_assert(sizeof(List) + 2 * sizeof(uint64_t) <= 4096);

template <AtomicOp Op, typename T>
IRIS_DEVICE backend::Word<T> Fetch(T* word, T value) {
  return backend::BitCast<backend::Word<T>>(
      backend::FetchOp<Op, Scope::kSystem, Order::kAcqRel>(word, value));
}

template <typename T>
IRIS_DEVICE uint64_t DoAs(const DeviceAtomic& atomic) {
  using W = backend::Word<T>;
  T* const word = reinterpret_cast<T*>(atomic.address);
  const T value = backend::BitCast<T>(static_cast<W>(atomic.value));
  // Narrow floats add alone.
  if constexpr (!backend::kIsNarrowFloat<T>) {
    switch (atomic.op) {
      case PortAtomic::kSub:
        return Fetch<AtomicOp::kSub>(word, value);
      case PortAtomic::kExchange:
        return Fetch<AtomicOp::kExchange>(word, value);
      case PortAtomic::kMin:
        return Fetch<AtomicOp::kMin>(word, value);
      case PortAtomic::kMax:
        return Fetch<AtomicOp::kMax>(word, value);
      case PortAtomic::kCompareExchange: {
        const T compare = backend::BitCast<T>(static_cast<W>(atomic.compare));
        return backend::BitCast<W>(
            backend::CompareExchange<Scope::kSystem, Order::kAcqRel>(word, compare, value));
      }
      case PortAtomic::kLoad:
        return backend::BitCast<W>(backend::Load<Scope::kSystem, Order::kAcquire>(word));
      default:
        break;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    switch (atomic.op) {
      case PortAtomic::kAnd:
        return Fetch<AtomicOp::kAnd>(word, value);
      case PortAtomic::kOr:
        return Fetch<AtomicOp::kOr>(word, value);
      case PortAtomic::kXor:
        return Fetch<AtomicOp::kXor>(word, value);
      default:
        break;
    }
  }
  return Fetch<AtomicOp::kAdd>(word, value);
}

IRIS_DEVICE uint64_t Do(const DeviceAtomic& atomic) {
  switch (atomic.type) {
    case PortType::kInt32:
      return DoAs<int32_t>(atomic);
    case PortType::kUint32:
      return DoAs<uint32_t>(atomic);
    case PortType::kInt64:
      return DoAs<int64_t>(atomic);
    case PortType::kUint64:
      return DoAs<uint64_t>(atomic);
    case PortType::kFloat:
      return DoAs<float>(atomic);
    case PortType::kDouble:
      return DoAs<double>(atomic);
    case PortType::kHalf:
      return DoAs<Half>(atomic);
    case PortType::kBfloat16:
      return DoAs<Bfloat16>(atomic);
  }
  return 0;
}

// One thread, because the atomics are ordered. The results go to the host at the end: each atomic
// would wait for the ones written before it.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(1, 1) void DoAll(IRIS_PARAM List list, DeviceAtomicsEnd* end,
                                                uint64_t number) {
  IRIS_SHARED(uint64_t[kMaxDeviceAtomics], old);
  for (uint32_t i = 0; i < list.n; ++i) old[i] = Do(list.atomics[i]);
  for (uint32_t i = 0; i < list.n; ++i) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(&end->old[i], old[i]);
  }
  backend::Store<Scope::kSystem, Order::kRelease>(&end->lists, number);
}

void Destroy(DeviceAtomics* atomics) {
  atomics->stream = backend::Stream();
  backend::FreeHost(atomics->end);
  delete atomics;
}

Result Create(DeviceAtomics** out) {
  auto* const atomics = new (std::nothrow) DeviceAtomics();
  if (atomics == nullptr) return {StatusCode::kResourceExhausted, "no host memory"};
  Result result = backend::PrepareKernel(DoAll);
  if (result.ok()) result = backend::Stream::Create(&atomics->stream);
  if (result.ok()) {
    void* const end = backend::MallocHost(sizeof(DeviceAtomicsEnd));
    if (end == nullptr) result = {StatusCode::kResourceExhausted, "no host memory for kernels"};
    if (result.ok()) std::memset(end, 0, sizeof(DeviceAtomicsEnd));
    atomics->end = static_cast<DeviceAtomicsEnd*>(end);
  }
  if (!result.ok()) {
    Destroy(atomics);
    return result;
  }
  *out = atomics;
  return {};
}

Result Start(DeviceAtomics* atomics, const DeviceAtomic* list, uint32_t n) {
  if (n == 0 || n > kMaxDeviceAtomics) {
    return {StatusCode::kInvalidArgument, "a list of atomics is empty or too long"};
  }
  List all;
  all.n = n;
  std::copy(list, list + n, all.atomics);
  Result result =
      backend::Launch({1, 1}, atomics->stream, DoAll, all, atomics->end, atomics->started + 1);
  if (!result.ok()) return result;
  ++atomics->started;
  atomics->n = n;
  return {};
}

Result Poll(DeviceAtomics* atomics, uint64_t* old, bool* done) {
  const auto ended = [atomics] {
    return __atomic_load_n(&atomics->end->lists, __ATOMIC_ACQUIRE) == atomics->started;
  };
  *done = ended();
  if (!*done && ++atomics->polls % kPollsPerQuestion == 0 && atomics->stream.Idle()) {
    *done = ended();
    if (!*done) {
      const Result result = atomics->stream.Synchronize();
      return result.ok() ? Result{StatusCode::kInternal, "the kernel of atomics ended without one"}
                         : result;
    }
  }
  if (*done) {
    for (uint32_t i = 0; i < atomics->n; ++i) {
      old[i] = __atomic_load_n(&atomics->end->old[i], __ATOMIC_RELAXED);
    }
  }
  return {};
}

}  // namespace
}  // namespace iris

extern "C" const iris::DeviceAtomicsTable* iris_device_atomics() {
  static constexpr iris::DeviceAtomicsTable kTable = {sizeof(iris::DeviceAtomicsTable),
                                                      iris::backend::BackendName(),
                                                      iris::Create,
                                                      iris::Destroy,
                                                      iris::Start,
                                                      iris::Poll};
  return &kTable;
}
