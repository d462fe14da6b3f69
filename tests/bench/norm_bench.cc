// iris::norm of a member alone: residual, RMS norm and weights of [rows, hidden] of bf16, by
// variant and by threads of a block. On the device of the build, which is emulated by default.
//
//   bazel run -c opt //tests/bench:norm_bench -- [--json]
//
// A sample is a replay of a graph of calls, divided by their number, as a stream's events have it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "iris/backend/host.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/norm/norm.h"
#include "tests/bench/report.h"
#include "tests/conformance/world.h"

namespace iris::bench {
namespace {

using conformance::Rank;
using conformance::World;

constexpr bool kEmulated = backend::Traits::kEmulated;
constexpr uint32_t kCalls = kEmulated ? 4 : 160;
constexpr uint32_t kReplays = 12;

void Check(const Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "norm_bench: %s\n", result.what);
  std::exit(1);
}

// µs of a call, one sample for each replay but the first.
std::vector<double> Measure(const ccl::Comm& comm, const norm::Norm& call,
                            backend::Stream& stream) {
  Check(backend::BeginCapture(stream));
  for (uint32_t k = 0; k < kCalls; ++k) Check(norm::Launch(comm, call, stream));
  backend::Graph graph;
  Check(backend::EndCapture(stream, &graph));
  backend::Event from, to;
  Check(backend::Event::Create(&from));
  Check(backend::Event::Create(&to));
  std::vector<double> samples;
  for (uint32_t k = 0; k <= kReplays; ++k) {
    Check(backend::Record(from, stream));
    Check(backend::LaunchGraph(graph, stream));
    Check(backend::Record(to, stream));
    Check(stream.Synchronize());
    Check(ccl::CheckError(comm));
    uint64_t took_ns = 0;
    Check(backend::ElapsedNanoseconds(from, to, &took_ns));
    if (k != 0) samples.push_back(static_cast<double>(took_ns) / 1e3 / kCalls);
  }
  return samples;
}

int Main(int argc, char** argv) {
  constexpr uint64_t kMostRows = kEmulated ? 16 : 4096;
  constexpr uint64_t kMostHidden = 8192;
  constexpr uint64_t kBytes = kMostRows * kMostHidden * sizeof(uint16_t);
  Report report("norm_bench", argc, argv);
  World world(1, 3 * kBytes + (256 << 20));
  world.Run([&](Rank& rank) {
    auto* const in = rank.New<uint16_t>(kMostRows * kMostHidden);
    auto* const residual = rank.New<uint16_t>(kMostRows * kMostHidden);
    auto* const out = rank.New<uint16_t>(kMostRows * kMostHidden);
    auto* const weight = rank.New<uint16_t>(kMostHidden);
    auto* const scales = rank.New<float>(kMostRows * kMostHidden / norm::kGroupColumns);
    norm::Norm call;
    call.in = in;
    call.residual = call.residual_out = residual;
    call.weight = weight;
    call.out = out;
    call.scales = scales;
    // Config::block_threads; the first one leaves it to the plan.
    std::vector<ccl::Comm> comms;
    for (const uint32_t threads : {0u, 512u, 256u}) {
      ccl::Config config;
      config.block_threads = threads;
      comms.push_back(rank.NewComm(rank.ctx.world, config));
      if (kEmulated) break;
    }
    const auto add = [&](const ccl::Comm& comm, norm::Variant variant) {
      call.problem.variant = variant;
      norm::Plan plan;
      Check(norm::Choose(comm, call.problem, &plan));
      report.Add("[" + std::to_string(call.problem.rows) + ", " +
                     std::to_string(call.problem.hidden) + "] to " + DTypeName(call.problem.out) +
                     ", " + norm::VariantName(variant) + ", " + std::to_string(plan.blocks) +
                     " x " + std::to_string(plan.threads),
                 Measure(comm, call, rank.stream), "us");
    };
    for (const uint64_t hidden : {uint64_t{8192}, uint64_t{1024}}) {
      for (const bool scaled : {false, true}) {
        for (const uint64_t rows : {1, 16, 64, 256, 4096}) {
          if (rows > kMostRows) continue;
          call.problem = {
              ccl::Operation::kAllReduceRmsNorm,      rows,         hidden, DType::kBf16,
              scaled ? DType::kF8E4M3 : DType::kBf16, DType::kBf16, true};
          if (scaled) call.problem.scaling = norm::Scaling::kPerGroup;
          for (const ccl::Comm& comm : comms) add(comm, norm::Variant::kAlone);
          add(comms[0], norm::Variant::kPackets);
        }
      }
    }
  });
  return report.Print();
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
