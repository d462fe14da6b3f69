// What it saves that kernels begin early, beside a kernel of the program: a step of an elementwise
// kernel and an all_reduce of what it made, captured as a graph of many.
//
//   bazel run --config=opt //tests/bench:early_bench -- [--json]
//
// Three columns of each size: neither kernel begins early (Config::early off); the all_reduce does,
// as it does by itself behind any kernel; both do, with an elementwise kernel that is written for
// it. Ranks are threads, on the devices that there are: where they share one, the figures say what
// the launches cost, and nothing about links. A sample is the slowest rank's time of a replay,
// divided by the number of steps. The sums are compared with what they should be.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "iris/backend/host.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "tests/bench/report.h"
#include "tests/conformance/world.h"

namespace iris::bench {
namespace {

using conformance::Rank;
using conformance::World;

constexpr bool kEmulated = backend::Traits::kEmulated;
constexpr uint32_t kSteps = kEmulated ? 3 : 50;
constexpr uint32_t kReplays = kEmulated ? 5 : 15;
constexpr uint32_t kThreads = kEmulated ? 64 : 256;

void Check(const Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "early_bench: %s\n", result.what);
  std::exit(1);
}

// x[i] = y[i] / members + 1, of eight elements a thread: what the next all_reduce then sums up is y
// + members. kEarly: begins beside the kernel before it, and lets the next one begin.
template <bool kEarly>
IRIS_KERNEL void Elementwise(const float* y, float* x, uint64_t n, float members) {
  if constexpr (kEarly) {
    backend::AwaitKernelBefore();
    backend::LetNextBegin();
  }
  const uint64_t first =
      uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  for (uint64_t i = first; i < n; i += uint64_t{backend::GridSize()} * backend::BlockSize()) {
    x[i] = y[i] / members + 1;
  }
}

// A sum that is not what it should be was seen.
std::atomic<bool> g_wrong{false};

struct Mode {
  const char* name;
  bool collective_early;
  bool elementwise_early;
};
constexpr Mode kModes[] = {{"one after another", false, false},
                           {"all_reduce early", true, false},
                           {"both early", true, true}};

std::vector<double> Measure(uint32_t n_ranks, uint64_t count, const Mode& mode) {
  std::vector<std::vector<double>> times(n_ranks, std::vector<double>(kReplays));
  World(n_ranks, 4 * count * sizeof(float) + (uint64_t{96} << 20)).Run([&](Rank& rank) {
    ccl::Config config = rank.SharedConfig();
    config.early = mode.collective_early;
    const ccl::Comm comm = rank.NewComm(rank.ctx.world, config);
    float* const x = rank.New<float>(count);
    float* const y = rank.New<float>(count);
    Check(backend::PrepareKernel(&Elementwise<true>));
    Check(backend::PrepareKernel(&Elementwise<false>));
    const LaunchConfig shape = {
        .grid = static_cast<uint32_t>(
            std::min<uint64_t>((count + 8 * kThreads - 1) / (8 * kThreads), kEmulated ? 4 : 64)),
        .block = kThreads,
        .early = mode.elementwise_early};
    const float members = static_cast<float>(n_ranks);
    Check(backend::BeginCapture(rank.stream));
    for (uint32_t k = 0; k < kSteps; ++k) {
      if (mode.elementwise_early) {
        rank.Launch(shape, Elementwise<true>, static_cast<const float*>(y), x, count, members);
      } else {
        rank.Launch(shape, Elementwise<false>, static_cast<const float*>(y), x, count, members);
      }
      Check(ccl::AllReduce(comm, x, y, count, DType::kF32, ccl::ReduceOp::kSum, rank.stream));
    }
    backend::Graph graph;
    Check(backend::EndCapture(rank.stream, &graph));
    backend::Event from, to;
    Check(backend::Event::Create(&from));
    Check(backend::Event::Create(&to));
    for (uint32_t replay = 0; replay <= kReplays; ++replay) {  // the first warms up
      rank.HostBarrier();
      Check(ccl::Barrier(comm, rank.stream));
      Check(backend::Record(from, rank.stream));
      Check(backend::LaunchGraph(graph, rank.stream));
      Check(backend::Record(to, rank.stream));
      Check(rank.stream.Synchronize());
      Check(ccl::CheckError(comm));
      // Each step adds the number of members, to zeros at first.
      const float wanted = members * kSteps * (replay + 1);
      uint64_t n_wrong = 0;
      for (const float value : rank.Read(static_cast<const float*>(y), count)) {
        n_wrong += value != wanted ? 1 : 0;
      }
      if (n_wrong != 0) {
        std::fprintf(stderr, "early_bench: %s, %u ranks, replay %u: %llu of %llu sums are wrong\n",
                     mode.name, n_ranks, replay, static_cast<unsigned long long>(n_wrong),
                     static_cast<unsigned long long>(count));
        g_wrong.store(true);
      }
      uint64_t took_ns = 0;
      Check(backend::ElapsedNanoseconds(from, to, &took_ns));
      if (replay != 0) {
        times[rank.rank()][replay - 1] = static_cast<double>(took_ns) / 1e3 / kSteps;
      }
    }
  });
  std::vector<double> slowest(kReplays, 0);
  for (const auto& of_rank : times) {
    for (uint32_t k = 0; k < kReplays; ++k) slowest[k] = std::max(slowest[k], of_rank[k]);
  }
  return slowest;
}

int Main(int argc, char** argv) {
  Report report("early_bench", argc, argv);
  for (const uint32_t n_ranks : {2u, 4u}) {
    for (const uint64_t bytes :
         {uint64_t{16} << 10, uint64_t{64} << 10, uint64_t{256} << 10, uint64_t{1} << 20}) {
      if (kEmulated && bytes > (uint64_t{64} << 10)) continue;
      for (const Mode& mode : kModes) {
        report.Add("elementwise and all_reduce of " + std::to_string(bytes >> 10) + " KiB, " +
                       std::to_string(n_ranks) + " ranks, " + mode.name,
                   Measure(n_ranks, bytes / sizeof(float), mode), "us");
      }
    }
  }
  const int code = report.Print();
  return g_wrong.load() ? 1 : code;
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
