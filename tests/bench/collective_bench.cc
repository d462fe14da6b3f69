// Collectives on emu, ranks as threads of this process: time of one operation, behind each other on
// a stream.
//
//   bazel run -c opt //tests/bench:collective_bench -- [--json]
//
// A sample is the slowest rank's time for a batch of operations, divided by their number; ranks
// meet on the host before each batch. Two cores run all ranks, so the figures say what the protocol
// costs here, and nothing about GPUs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "iris/collective/collective.h"
#include "iris/device.h"
#include "tests/bench/report.h"
#include "tests/conformance/world.h"

namespace iris::bench {
namespace {

using conformance::Rank;
using conformance::World;

constexpr uint32_t kBatches = 15;

using Operation = std::function<Result(Rank&, const ccl::Comm&, float*, float*)>;

// µs of one operation, one sample for each batch.
std::vector<double> Measure(uint32_t n_ranks, uint64_t in_count, uint64_t out_count, uint32_t batch,
                            const Operation& operation, ccl::Config config = {}) {
  if (config.max_blocks == 0) config.max_blocks = 4;
  const uint64_t workspace = ccl::WorkspaceBytes(n_ranks, config);
  World world(n_ranks, (in_count + out_count) * sizeof(float) + workspace + (4 << 20));
  std::vector<std::vector<double>> times(n_ranks, std::vector<double>(kBatches));
  world.Run([&](Rank& rank) {
    const ccl::Comm comm = rank.NewComm(rank.ctx.world, config);
    float* in = rank.New<float>(in_count);
    float* out = rank.New<float>(out_count);
    for (uint32_t b = 0; b <= kBatches; ++b) {  // the first warms up
      rank.HostBarrier();
      const auto start = std::chrono::steady_clock::now();
      for (uint32_t k = 0; k < batch; ++k) {
        if (!operation(rank, comm, in, out).ok()) std::abort();
      }
      if (!rank.stream.Synchronize().ok() || !ccl::CheckError(comm).ok()) std::abort();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      if (b > 0) times[rank.rank()][b - 1] = took.count() / batch;
    }
  });
  std::vector<double> slowest(kBatches, 0);
  for (const auto& of_rank : times) {
    for (uint32_t b = 0; b < kBatches; ++b) slowest[b] = std::max(slowest[b], of_rank[b]);
  }
  return slowest;
}

// A barrier inside one kernel.
IRIS_KERNEL void ManyBarriers(DeviceContext ctx, uint32_t rounds) {
  for (uint32_t k = 0; k < rounds; ++k) {
    if (Barrier(ctx, ctx.world) != WaitResult::kOk) return;
  }
}

std::string Size(uint64_t bytes) {
  return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + " MiB"
         : bytes >= 1024    ? std::to_string(bytes >> 10) + " KiB"
                            : std::to_string(bytes) + " B";
}

int Main(int argc, char** argv) {
  Report report("collective_bench", argc, argv);
  for (uint32_t n : {2u, 4u, 8u}) {
    const std::string ranks = ", " + std::to_string(n) + " ranks";
    {
      constexpr uint32_t kRounds = 200;
      std::vector<double> us =
          Measure(n, 1, 1, 1, [](Rank& rank, const ccl::Comm&, float*, float*) {
            return backend::Launch({1, 64}, rank.stream, ManyBarriers, rank.ctx, uint32_t{kRounds});
          });
      for (double& x : us) x /= kRounds;
      report.Add("barrier in a kernel, 1 x 64 threads" + ranks, us, "us");
    }
    report.Add("barrier, launched" + ranks,
               Measure(n, 1, 1, 50,
                       [](Rank& rank, const ccl::Comm& comm, float*, float*) {
                         return ccl::Barrier(comm, rank.stream);
                       }),
               "us");
    for (uint64_t bytes : {uint64_t{1} << 10, uint64_t{32} << 10, uint64_t{1} << 20}) {
      const uint64_t count = bytes / sizeof(float);
      const uint32_t batch = bytes >= (1 << 20) ? 4 : 30;
      for (ccl::Variant variant : {ccl::Variant::kOneShot, ccl::Variant::kTwoShot}) {
        report.Add(std::string("all_reduce ") +
                       (variant == ccl::Variant::kOneShot ? "one-shot " : "two-shot ") +
                       Size(bytes) + ranks,
                   Measure(n, count, count, batch,
                           [=](Rank& rank, const ccl::Comm& comm, float* in, float* out) {
                             return ccl::AllReduce(comm, in, out, count, DType::kF32,
                                                   ccl::ReduceOp::kSum, rank.stream, variant);
                           }),
                   "us");
      }
      report.Add("all_gather " + Size(bytes) + " a rank" + ranks,
                 Measure(n, count, count * n, batch,
                         [=](Rank& rank, const ccl::Comm& comm, float* in, float* out) {
                           return ccl::AllGather(comm, in, out, count, DType::kF32, rank.stream);
                         }),
                 "us");
      report.Add("broadcast " + Size(bytes) + ranks,
                 Measure(n, count, count, batch,
                         [=](Rank& rank, const ccl::Comm& comm, float* in, float* out) {
                           return ccl::Broadcast(comm, in, out, count, DType::kF32, 0, rank.stream);
                         }),
                 "us");
    }
  }
  return report.Print();
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
