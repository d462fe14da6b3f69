#include "client/bench/device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/backend/device_status.h"
#include "client/base/absl_status.h"
#include "iris/backend/select.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/stream.h"

namespace iris::bench {
namespace {

struct Answer {
  uint64_t ns;
  uint32_t result;  // WaitResult
  uint32_t reserved;
};

// The part of a range, in units of 16 bytes, that a block handles at a time: its only part, or one
// of the chunks that the blocks take in turn.
struct Part {
  uint64_t begin, bytes;
  uint64_t chunk_bytes;
};

IRIS_DEVICE inline Part PartAt(uint64_t begin, uint64_t bytes, uint64_t chunk_bytes) {
  const uint64_t rest = begin < bytes ? bytes - begin : 0;
  return {begin, rest < chunk_bytes ? rest : chunk_bytes, chunk_bytes};
}

// Returns this block's first part. chunk_bytes 0: there are as many chunks as blocks. Never fewer.
IRIS_DEVICE inline Part MyPart(uint64_t bytes, uint64_t chunk_bytes = 0) {
  const uint64_t units = bytes / sizeof(Bytes16);
  const uint64_t each = (units + backend::GridSize() - 1) / backend::GridSize() * sizeof(Bytes16);
  if (chunk_bytes == 0 || chunk_bytes > each) chunk_bytes = each;
  return PartAt(backend::BlockIndex() * chunk_bytes, bytes, chunk_bytes);
}

IRIS_DEVICE inline Part Next(const Part& part, uint64_t bytes) {
  return PartAt(part.begin + backend::GridSize() * part.chunk_bytes, bytes, part.chunk_bytes);
}

// Waits until this rank's puts have arrived on another node. Stores have when the kernel ends.
IRIS_DEVICE inline void Arrive(const DeviceContext& ctx, uint32_t peer) {
  if (Reaches(ctx, peer)) return;
  backend::BlockSync();
  if (backend::ThreadIndex() == 0) (void)Quiet(ctx);  // a failure ends the job
}

IRIS_KERNEL void PutRange(DeviceContext ctx, uint32_t peer, uint8_t* dst, const uint8_t* src,
                          uint64_t bytes, uint64_t chunk_bytes) {
  for (Part part = MyPart(bytes, chunk_bytes); part.bytes > 0; part = Next(part, bytes)) {
    Put(ctx, peer, dst + part.begin, src + part.begin, part.bytes, Block{});
  }
  Arrive(ctx, peer);
}

IRIS_KERNEL void GetRange(DeviceContext ctx, uint32_t peer, uint8_t* dst, const uint8_t* src,
                          uint64_t bytes, uint64_t chunk_bytes) {
  for (Part part = MyPart(bytes, chunk_bytes); part.bytes > 0; part = Next(part, bytes)) {
    Get(ctx, peer, dst + part.begin, src + part.begin, part.bytes, Block{});
  }
}

constexpr uint32_t kUnroll = 8;

IRIS_KERNEL void StoreRange(DeviceContext ctx, uint32_t peer, uint8_t* dst, uint64_t bytes,
                            uint64_t value) {
  const Part part = MyPart(bytes);
  Bytes16* const to = reinterpret_cast<Bytes16*>(dst + part.begin);
  const uint64_t units = part.bytes / sizeof(Bytes16);
  const Bytes16 unit = {value, value};
  for (uint64_t i = backend::ThreadIndex(); i < units; i += backend::BlockSize()) {
    Store(ctx, peer, to + i, unit);
  }
}

IRIS_KERNEL void LoadRange(DeviceContext ctx, uint32_t peer, const uint8_t* src, uint64_t bytes,
                           uint64_t* sink) {
  const Part part = MyPart(bytes);
  const Bytes16* const from = reinterpret_cast<const Bytes16*>(src + part.begin);
  const uint64_t units = part.bytes / sizeof(Bytes16);
  const uint64_t n = backend::BlockSize();
  uint64_t sum = 0;
  uint64_t i = backend::ThreadIndex();
  for (; i + (kUnroll - 1) * n < units; i += kUnroll * n) {
    Bytes16 unit[kUnroll];
    IRIS_UNROLL(8)
    for (uint32_t k = 0; k < kUnroll; ++k) unit[k] = Load(ctx, peer, from + i + k * n);
    IRIS_UNROLL(8)
    for (uint32_t k = 0; k < kUnroll; ++k) sum += unit[k].lo ^ unit[k].hi;
  }
  for (; i < units; i += n) {
    const Bytes16 unit = Load(ctx, peer, from + i);
    sum += unit.lo ^ unit.hi;
  }
  // Never true, but the compiler does not know this and keeps the loads.
  if (sum == 0x9e3779b97f4a7c15ull) *sink = sum;
}

IRIS_KERNEL void UpdateWords(DeviceContext ctx, uint32_t peer, uint64_t* words, uint32_t n_words,
                             AtomicKind kind, uint32_t rounds, uint64_t* sink) {
  const uint32_t thread = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
  uint64_t* const word = words + thread % n_words;
  uint64_t sum = 0;
  switch (kind) {
    case AtomicKind::kAdd:
      for (uint32_t i = 0; i < rounds; ++i) {
        (void)AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, peer, word, 1u);
      }
      break;
    case AtomicKind::kFetchAdd:
      for (uint32_t i = 0; i < rounds; ++i) {
        sum += AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, peer, word, 1u);
      }
      break;
    case AtomicKind::kExchange:
      for (uint32_t i = 0; i < rounds; ++i) {
        sum += AtomicExchange<Scope::kSystem, Order::kRelaxed>(ctx, peer, word, thread);
      }
      break;
  }
  if (sum == 0x9e3779b97f4a7c15ull) *sink = sum;
}

constexpr uint32_t kWarmUpRounds = 20;

// Thread 0 measures the time: a round ends for it when the peer's signal has arrived.
IRIS_KERNEL void PingPongRoundTrips(DeviceContext ctx, uint32_t peer, uint32_t first,
                                    uint64_t* flag, uint64_t base, uint8_t* payload,
                                    uint64_t payload_bytes, uint32_t rounds, Answer* answer) {
  WaitResult result = WaitResult::kOk;
  uint64_t start = 0;
  const uint8_t* const out = payload;
  uint8_t* const in = payload + payload_bytes;
  for (uint64_t i = 1; i <= kWarmUpRounds + rounds && result == WaitResult::kOk; ++i) {
    if (i == kWarmUpRounds + 1) start = backend::ClockNanoseconds();
    if (first != 0) PutSignal(ctx, peer, in, out, payload_bytes, {flag, base + i}, Block{});
    result = WaitUntil(ctx, flag, Compare::kGe, base + i, Block{});
    if (first == 0 && result == WaitResult::kOk) {
      PutSignal(ctx, peer, in, out, payload_bytes, {flag, base + i}, Block{});
    }
  }
  if (backend::ThreadIndex() == 0) {
    answer->ns = backend::ClockNanoseconds() - start;
    answer->result = static_cast<uint32_t>(result);
  }
}

// One thread sends nothing but the flag.
IRIS_KERNEL void FlagRoundTrips(DeviceContext ctx, uint32_t peer, uint32_t first, uint64_t* flag,
                                uint64_t base, uint32_t rounds, Answer* answer) {
  WaitResult result = WaitResult::kOk;
  uint64_t start = 0;
  for (uint64_t i = 1; i <= kWarmUpRounds + rounds && result == WaitResult::kOk; ++i) {
    if (i == kWarmUpRounds + 1) start = backend::ClockNanoseconds();
    if (first != 0) SignalSet(ctx, peer, flag, base + i);
    result = WaitUntil(ctx, flag, Compare::kGe, base + i);
    if (first == 0) SignalSet(ctx, peer, flag, base + i);
  }
  answer->ns = backend::ClockNanoseconds() - start;
  answer->result = static_cast<uint32_t>(result);
}

IRIS_KERNEL void BarrierRounds(DeviceContext ctx, uint32_t rounds, Answer* answer) {
  WaitResult result = WaitResult::kOk;
  uint64_t start = 0;
  BarrierSeries barriers(ctx, ctx.world);
  for (uint32_t i = 0; i < kWarmUpRounds + rounds && result == WaitResult::kOk; ++i) {
    if (i == kWarmUpRounds) start = backend::ClockNanoseconds();
    result = barriers.Wait();
  }
  if (backend::BlockIndex() == 0 && backend::ThreadIndex() == 0) {
    answer->ns = backend::ClockNanoseconds() - start;
    answer->result = static_cast<uint32_t>(result);
  }
}

IRIS_KERNEL void OneBarrier(DeviceContext ctx, Answer* answer) {
  const WaitResult result = Barrier(ctx, ctx.world);
  if (result != WaitResult::kOk && backend::ThreadIndex() == 0) {
    answer->result = static_cast<uint32_t>(result);
  }
}

using base::ToAbsl;
using internal::FromDevice;

#define RETURN_IF_ERROR(expression)                                      \
  do {                                                                   \
    if (absl::Status status = (expression); !status.ok()) return status; \
  } while (false)

}  // namespace

struct Device::Impl {
  DeviceContext ctx;
  Context* context = nullptr;
  backend::Stream stream;
  Stream copies;  // the same stream, for the copies of the API. Without a context: empty
  backend::Event begin, end;
  Answer* answer = nullptr;  // host memory
  uint64_t* sink = nullptr;  // host memory

  ~Impl() {
    stream = backend::Stream();  // waits
    backend::FreeHost(answer);
    backend::FreeHost(sink);
  }

  absl::Status Prepare() {
    RETURN_IF_ERROR(FromDevice(backend::Stream::Create(&stream), "create a stream"));
    RETURN_IF_ERROR(FromDevice(backend::Event::Create(&begin), "create an event"));
    RETURN_IF_ERROR(FromDevice(backend::Event::Create(&end), "create an event"));
    if (context != nullptr) {
      auto wrapped = Stream::Wrap(*context, stream.native());
      RETURN_IF_ERROR(ToAbsl(wrapped.status()));
      copies = *std::move(wrapped);
    }
    answer = static_cast<Answer*>(backend::MallocHost(sizeof(Answer)));
    sink = static_cast<uint64_t*>(backend::MallocHost(sizeof(uint64_t)));
    if (answer == nullptr || sink == nullptr) {
      return absl::ResourceExhaustedError("no host memory for results");
    }
    *answer = {};
    const Result results[] = {
        backend::PrepareKernel(PutRange),       backend::PrepareKernel(GetRange),
        backend::PrepareKernel(StoreRange),     backend::PrepareKernel(LoadRange),
        backend::PrepareKernel(UpdateWords),    backend::PrepareKernel(PingPongRoundTrips),
        backend::PrepareKernel(FlagRoundTrips), backend::PrepareKernel(BarrierRounds),
        backend::PrepareKernel(OneBarrier),
    };
    for (const Result& result : results) RETURN_IF_ERROR(FromDevice(result, "load a kernel"));
    return absl::OkStatus();
  }

  // Returns `samples` times between two points of the stream, divided by `per_sample`. Several
  // operations per sample are recorded into a graph, so that the host is not measured.
  template <typename Enqueue>
  absl::StatusOr<std::vector<double>> Time(uint32_t samples, uint32_t per_sample,
                                           const Enqueue& enqueue) {
    backend::Graph graph;
    if (per_sample > 1) {
      RETURN_IF_ERROR(FromDevice(backend::BeginCapture(stream), "begin a graph"));
      absl::Status recorded;
      for (uint32_t i = 0; i < per_sample && recorded.ok(); ++i) recorded.Update(enqueue());
      const absl::Status ended = FromDevice(backend::EndCapture(stream, &graph), "end a graph");
      RETURN_IF_ERROR(recorded);
      RETURN_IF_ERROR(ended);
    }
    const auto start = [&]() -> absl::Status {
      if (per_sample == 1) return enqueue();
      return FromDevice(backend::LaunchGraph(graph, stream), "launch a graph");
    };
    constexpr uint32_t kWarmUps = 2;
    std::vector<double> nanoseconds;
    for (uint32_t i = 0; i < samples + kWarmUps; ++i) {
      RETURN_IF_ERROR(FromDevice(backend::Record(begin, stream), "record an event"));
      RETURN_IF_ERROR(start());
      RETURN_IF_ERROR(FromDevice(backend::Record(end, stream), "record an event"));
      RETURN_IF_ERROR(FromDevice(stream.Synchronize(), "synchronize"));
      uint64_t elapsed = 0;
      RETURN_IF_ERROR(
          FromDevice(backend::ElapsedNanoseconds(begin, end, &elapsed), "read two events"));
      if (i >= kWarmUps) nanoseconds.push_back(static_cast<double>(elapsed) / per_sample);
    }
    return nanoseconds;
  }

  template <typename... Params, typename... Args>
  absl::Status Launch(const LaunchConfig& shape, void (*kernel)(DeviceContext, Params...),
                      const Args&... args) {
    return FromDevice(backend::Launch(shape, stream, kernel, ctx, args...), "launch");
  }

  absl::Status Copy(void* to, const void* from, uint64_t bytes) {
    return FromDevice(backend::CopyAsync(to, from, bytes, stream), "copy");
  }

  // Returns the mean time of a round per sample, by the clock of the kernel that `start` launches.
  template <typename StartKernel>
  absl::StatusOr<std::vector<double>> TimeInKernel(const KernelSpec& spec, absl::string_view what,
                                                   const StartKernel& start) {
    std::vector<double> nanoseconds;
    for (uint32_t i = 0; i < spec.samples; ++i) {
      RETURN_IF_ERROR(start());
      RETURN_IF_ERROR(Check(what));
      nanoseconds.push_back(static_cast<double>(answer->ns) / spec.rounds);
    }
    return nanoseconds;
  }

  // Returns the result of the last kernel.
  absl::Status Check(absl::string_view what) {
    RETURN_IF_ERROR(FromDevice(stream.Synchronize(), what));
    switch (static_cast<WaitResult>(answer->result)) {
      case WaitResult::kOk:
        return absl::OkStatus();
      case WaitResult::kTimeout:
        return absl::DeadlineExceededError(
            absl::StrCat(what, ": a wait in the kernel timed out: did the peer start it too?"));
      case WaitResult::kAborted:
        return absl::AbortedError(absl::StrCat(what, ": a rank died"));
    }
    return absl::InternalError(absl::StrCat(what, ": the kernel answered nonsense"));
  }
};

Device::Device(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Device::~Device() = default;

absl::StatusOr<std::unique_ptr<Device>> Device::Create(const DeviceContext& device_context,
                                                       Context* context) {
  auto impl = std::make_unique<Impl>();
  impl->ctx = device_context;
  impl->context = context;
  RETURN_IF_ERROR(impl->Prepare());
  return std::unique_ptr<Device>(new Device(std::move(impl)));
}

std::string Device::BackendName() { return backend::BackendName(); }
bool Device::Emulated() { return backend::Traits::kEmulated; }
uint32_t Device::MultiprocessorCount() { return backend::MultiprocessorCount(); }

absl::StatusOr<std::vector<double>> Device::RunTransfer(const TransferSpec& s) {
  Impl& d = *impl_;
  const LaunchConfig shape = {s.grid, s.block};
  return d.Time(s.samples, s.per_sample, [&]() -> absl::Status {
    switch (s.transfer) {
      case Transfer::kLoad:
        return d.Launch(shape, LoadRange, s.peer, s.remote, s.bytes, d.sink);
      case Transfer::kStore:
        return d.Launch(shape, StoreRange, s.peer, s.remote, s.bytes, uint64_t{0x0101010101010101});
      case Transfer::kGet:
        return d.Launch(shape, GetRange, s.peer, s.local, s.remote, s.bytes, s.chunk_bytes);
      case Transfer::kPut:
        return d.Launch(shape, PutRange, s.peer, s.remote, s.local, s.bytes, s.chunk_bytes);
      case Transfer::kCopyGet:
        if (d.context == nullptr)
          return d.Copy(s.local, Translate(d.ctx, s.peer, s.remote), s.bytes);
        return ToAbsl(d.copies.Get(*d.context, s.peer, s.local, s.remote, s.bytes));
      case Transfer::kCopyPut:
        if (d.context == nullptr)
          return d.Copy(Translate(d.ctx, s.peer, s.remote), s.local, s.bytes);
        return ToAbsl(d.copies.Put(*d.context, s.peer, s.remote, s.local, s.bytes));
    }
    return absl::InternalError("no such transfer");
  });
}

absl::StatusOr<std::vector<double>> Device::RunAtomics(const AtomicSpec& spec) {
  Impl& d = *impl_;
  return d.Time(spec.samples, 1, [&] {
    return d.Launch({spec.grid, spec.block}, UpdateWords, spec.peer, spec.words, spec.n_words,
                    spec.kind, spec.rounds, d.sink);
  });
}

uint64_t Device::PingPongRounds(const PingPongSpec& spec) {
  return static_cast<uint64_t>(spec.samples) * (kWarmUpRounds + spec.rounds);
}

absl::StatusOr<std::vector<double>> Device::RunPingPong(const PingPongSpec& spec) {
  Impl& d = *impl_;
  const uint32_t first = spec.first ? 1 : 0;
  uint64_t next_base = spec.base;
  return d.TimeInKernel(spec, absl::StrCat("ping-pong with rank ", spec.peer), [&] {
    const uint64_t base = next_base;
    next_base += kWarmUpRounds + spec.rounds;
    return spec.payload_bytes == 0
               ? d.Launch({1, 1}, FlagRoundTrips, spec.peer, first, spec.flag, base, spec.rounds,
                          d.answer)
               : d.Launch({1, spec.block}, PingPongRoundTrips, spec.peer, first, spec.flag, base,
                          spec.payload, spec.payload_bytes, spec.rounds, d.answer);
  });
}

absl::StatusOr<std::vector<double>> Device::RunBarriersInKernel(const KernelSpec& spec) {
  Impl& d = *impl_;
  return d.TimeInKernel(spec, "barriers in a kernel", [&] {
    return d.Launch({spec.grid, spec.block}, BarrierRounds, spec.rounds, d.answer);
  });
}

absl::StatusOr<std::vector<double>> Device::RunBarrierKernels(const KernelSpec& spec) {
  Impl& d = *impl_;
  d.answer->result = 0;
  auto nanoseconds = d.Time(spec.samples, spec.rounds, [&] {
    return d.Launch({spec.grid, spec.block}, OneBarrier, d.answer);
  });
  if (!nanoseconds.ok()) return nanoseconds.status();
  RETURN_IF_ERROR(d.Check("barriers as kernels"));
  return nanoseconds;
}

}  // namespace iris::bench
