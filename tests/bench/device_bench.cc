// The emulator's own costs: launches, syncs, switches, and a remote access beside the processor's
// own.
//
//   bazel run -c opt //tests/bench:device_bench -- --json
//
// The accesses go over a window of 64 KiB, which fits the caches, so that what is compared are the
// instructions: "own" is a plain access by the compiler; "emu" goes through the backend;
// "translated" also computes the peer's address each time.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "iris/backend/select.h"
#include "iris/device.h"
#include "tests/bench/report.h"

namespace {

using namespace iris;           // NOLINT(google-build-using-namespace)
using namespace iris::backend;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kSamples = 50;
constexpr uint32_t kAccesses = 1 << 20;
constexpr uint32_t kWords = 1 << 14;  // of 4 bytes
constexpr uint64_t kStrideBytes = kWords * sizeof(uint32_t);

IRIS_KERNEL void Nothing() {}

IRIS_KERNEL void SyncMany(uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) BlockSync();
}

IRIS_KERNEL void ShuffleMany(uint32_t n, uint32_t* out) {
  uint32_t value = ThreadIndex();
  for (uint32_t i = 0; i < n; ++i) value = ShuffleXor(value, 1) + i;
  if (value == 0xffffffff) *out = value;
}

IRIS_KERNEL void PauseMany(uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) Pause();
}

// Keeps the compiler from joining, moving or dropping accesses, without an instruction.
inline void KeepAccesses() { asm volatile("" ::: "memory"); }

// Each kernel makes kAccesses accesses to the words of `peer`, one after the other, in one thread.
IRIS_KERNEL void StoreOwn(uint32_t* words) {
  for (uint32_t i = 0; i < kAccesses; ++i) {
    words[i % kWords] = i;
    KeepAccesses();
  }
}

IRIS_KERNEL void LoadOwn(const uint32_t* words, uint32_t* out) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kAccesses; ++i) {
    sum += words[i % kWords];
    KeepAccesses();
  }
  *out = sum;
}

IRIS_KERNEL void StoreEmu(uint32_t* words) {
  for (uint32_t i = 0; i < kAccesses; ++i) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(words + i % kWords, i);
    KeepAccesses();
  }
}

IRIS_KERNEL void LoadEmu(const uint32_t* words, uint32_t* out) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kAccesses; ++i) {
    sum += backend::Load<Scope::kSystem, Order::kRelaxed>(words + i % kWords);
    KeepAccesses();
  }
  *out = sum;
}

IRIS_KERNEL void StorePlainTranslated(DeviceContext ctx, uint32_t peer, uint32_t* words) {
  for (uint32_t i = 0; i < kAccesses; ++i) {
    backend::StorePlain(Translate(ctx, peer, words + i % kWords), i);
    KeepAccesses();
  }
}

IRIS_KERNEL void LoadPlainTranslated(DeviceContext ctx, uint32_t peer, const uint32_t* words,
                                     uint32_t* out) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kAccesses; ++i) {
    sum += backend::LoadPlain(Translate(ctx, peer, words + i % kWords));
    KeepAccesses();
  }
  *out = sum;
}

IRIS_KERNEL void StoreTranslated(DeviceContext ctx, uint32_t peer, uint32_t* words) {
  for (uint32_t i = 0; i < kAccesses; ++i) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(Translate(ctx, peer, words + i % kWords), i);
    KeepAccesses();
  }
}

IRIS_KERNEL void LoadTranslated(DeviceContext ctx, uint32_t peer, const uint32_t* words,
                                uint32_t* out) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kAccesses; ++i) {
    sum += backend::Load<Scope::kSystem, Order::kRelaxed>(Translate(ctx, peer, words + i % kWords));
    KeepAccesses();
  }
  *out = sum;
}

template <typename T>
IRIS_KERNEL void AddMany(T* word) {
  for (uint32_t i = 0; i < kAccesses; ++i) {
    FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kAcqRel>(word, static_cast<T>(1));
  }
}

IRIS_KERNEL void CompareExchangeMany(uint32_t* word) {
  for (uint32_t i = 0; i < kAccesses; ++i) {
    CompareExchange<Scope::kSystem, Order::kAcqRel>(word, i, i + 1);
  }
}

IRIS_KERNEL void FenceMany() {
  for (uint32_t i = 0; i < kAccesses; ++i) backend::Fence<Scope::kSystem, Order::kSeqCst>();
}

void Require(const Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "device_bench: %s\n", result.what);
  std::exit(1);
}

class Bench {
 public:
  Bench(int argc, char** argv) : report_("device_bench", argc, argv) {
    Require(Stream::Create(&stream_));
  }

  // Time from launch to the end of Synchronize, divided by `per`, in units of `unit_ns`
  // nanoseconds. The first run, which makes stacks, is not counted.
  template <typename... Params, typename... Args>
  void Measure(const std::string& what, const LaunchConfig& config, double per, double unit_ns,
               const std::string& unit, void (*kernel)(Params...), Args... args) {
    std::vector<double> samples;
    for (uint32_t i = 0; i <= kSamples; ++i) {
      const uint64_t start = ClockNanoseconds();
      Require(Launch(config, stream_, kernel, args...));
      Require(stream_.Synchronize());
      const uint64_t end = ClockNanoseconds();
      if (i > 0) samples.push_back(static_cast<double>(end - start) / per / unit_ns);
    }
    report_.Add(what, samples, unit);
  }

  int Print() { return report_.Print(); }

 private:
  bench::Report report_;
  Stream stream_;
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  constexpr double kUs = 1000;
  bench.Measure("launch, 1 block x 1 thread", {1, 1, 0}, 1, kUs, "us", &Nothing);
  bench.Measure("launch, 1 x 1,024", {1, 1024, 0}, 1, kUs, "us", &Nothing);
  bench.Measure("launch, 1 x 1,024, one block sync", {1, 1024, 0}, 1, kUs, "us", &SyncMany, 1u);
  bench.Measure("launch, 64 x 1,024", {64, 1024, 0}, 1, kUs, "us", &Nothing);
  for (uint32_t threads : {32u, 256u, 1024u}) {
    bench.Measure("block sync, " + std::to_string(threads) + " threads", {1, threads, 0}, 200, kUs,
                  "us", &SyncMany, 200u);
  }
  bench.Measure("fiber switch, in and out (256 threads that sync)", {1, 256, 0}, 200.0 * 256, 1,
                "ns", &SyncMany, 200u);
  // Few enough that the workers do not begin to sleep.
  bench.Measure("pause of a lone thread, with its yield to the OS", {1, 1, 0}, 500, 1, "ns",
                &PauseMany, 500u);

  std::vector<uint32_t> heaps(2 * kWords, 1);
  uint32_t* mine = heaps.data();
  uint32_t* theirs = heaps.data() + kWords;
  uint32_t sum = 0;
  DeviceContext ctx;
  ctx.n_ranks = 2;
  ctx.base = reinterpret_cast<uint64_t>(mine);
  ctx.stride_bytes = kStrideBytes;
  const uint32_t* from_mine = mine;
  const uint32_t* from_theirs = theirs;
  bench.Measure("warp shuffle, of each thread", {1, 32, 0}, 1000.0 * 32, 1, "ns", &ShuffleMany,
                1000u, &sum);
  const LaunchConfig one = {1, 1, 0};
  bench.Measure("store, the processor's own", one, kAccesses, 1, "ns", &StoreOwn, theirs);
  bench.Measure("store, plain, translated", one, kAccesses, 1, "ns", &StorePlainTranslated, ctx, 1u,
                mine);
  bench.Measure("store, relaxed", one, kAccesses, 1, "ns", &StoreEmu, theirs);
  bench.Measure("store, relaxed, translated", one, kAccesses, 1, "ns", &StoreTranslated, ctx, 1u,
                mine);
  bench.Measure("load, the processor's own", one, kAccesses, 1, "ns", &LoadOwn, from_theirs, &sum);
  bench.Measure("load, plain, translated", one, kAccesses, 1, "ns", &LoadPlainTranslated, ctx, 1u,
                from_mine, &sum);
  bench.Measure("load, relaxed (counts polls)", one, kAccesses, 1, "ns", &LoadEmu, from_theirs,
                &sum);
  bench.Measure("load, relaxed, translated", one, kAccesses, 1, "ns", &LoadTranslated, ctx, 1u,
                from_mine, &sum);

  uint32_t word = 0;
  uint64_t wide = 0;
  float single = 0;
  Bfloat16 narrow(0.0f);
  bench.Measure("atomic add, uint32", one, kAccesses, 1, "ns", &AddMany<uint32_t>, &word);
  bench.Measure("atomic add, uint64", one, kAccesses, 1, "ns", &AddMany<uint64_t>, &wide);
  bench.Measure("atomic add, float (compare-exchange loop)", one, kAccesses, 1, "ns",
                &AddMany<float>, &single);
  bench.Measure("atomic add, bf16 (compare-exchange loop)", one, kAccesses, 1, "ns",
                &AddMany<Bfloat16>, &narrow);
  bench.Measure("compare-exchange, uint32", one, kAccesses, 1, "ns", &CompareExchangeMany, &word);
  bench.Measure("fence, sequentially consistent", one, kAccesses, 1, "ns", &FenceMany);
  return bench.Print();
}
