// Products of matrices with their communication, ranks as threads of this process: time of one
// operation by each variant, behind each other on a stream, and of the product of one rank alone.
//
//   bazel run -c opt //tests/bench:ops_bench -- [--json]
//
// A sample is the slowest rank's time for a batch of operations, divided by their number; ranks
// meet on the host before each batch. The variants and the product take turns, so that all see the
// same clocks. On emulated devices shapes are small, and the figures say nothing about GPUs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/ops/ops.h"
#include "tests/bench/report.h"
#include "tests/conformance/world.h"

namespace iris::bench {
namespace {

using ccl::Operation;
using conformance::Rank;
using conformance::World;

constexpr bool kEmulated = backend::Traits::kEmulated;
constexpr uint32_t kBatches = 9;
constexpr uint32_t kBatch = kEmulated ? 2 : 10;

// The ways to compare, each where the device and the operation have it; the first is the product.
struct Way {
  const char* name;
  ops::Variant variant;
};
constexpr Way kWays[] = {{"product alone", ops::Variant::kPair},
                         {"fused", ops::Variant::kFused},
                         {"pair", ops::Variant::kPair},
                         {"persistent", ops::Variant::kPersistent},
                         {"copy_engine", ops::Variant::kCopyEngine}};

struct Dimensions {
  uint64_t m, n, k;
};

// A Comm with room for products, on memory that all ranks take alike. `resources` live as long.
ccl::Comm CommOf(Rank& rank, const DeviceTeam& team, uint64_t bytes, ops::Resources* resources) {
  ccl::CommOptions options;
  options.context = rank.ctx;
  options.team = team;
  options.workspace_bytes = bytes;
  options.workspace = rank.New<uint8_t>(bytes);
  options.report = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
  *options.report = {};
  options.products = resources;
  ccl::Comm comm;
  if (!ccl::CreateComm(options, &comm).ok() || !ops::Prepare().ok()) std::abort();
  return comm;
}

// What a rank computes of the whole; `alone`: its product without the others.
ops::Problem ProblemOf(Operation operation, const Dimensions& d, uint32_t ranks, bool alone) {
  ops::Problem problem = {operation, d.m, d.n, d.k, DType::kBf16, DType::kBf16};
  const bool sum =
      operation == Operation::kMatmulAllReduce || operation == Operation::kMatmulReduceScatter;
  if (sum) problem.k /= ranks;
  if (operation == Operation::kAllGatherMatmul) problem.n /= ranks;
  if (!alone) return problem;
  if (operation == Operation::kMatmulAllGather) problem.m /= ranks;
  if (operation == Operation::kMatmulAllScatter) problem.n /= ranks;
  problem.operation = Operation::kMatmulReduceScatter;
  return problem;
}

void Compare(Report* report, uint32_t n, Operation operation, const Dimensions& d) {
  World world(n, kEmulated ? uint64_t{64} << 20 : uint64_t{3} << 30);
  std::vector<Way> ways;
  std::vector<ops::Problem> problems;
  uint64_t bytes = 0;
  for (const Way& way : kWays) {
    ops::Problem problem = ProblemOf(operation, d, n, ways.empty());
    problem.variant = way.variant;
    const uint64_t needs = ops::WorkspaceBytes(n, {}, problem);
    if (needs == 0) continue;
    ways.push_back(way);
    problems.push_back(problem);
    bytes = std::max(bytes, needs);
  }
  std::vector<std::vector<std::vector<double>>> times(
      ways.size(), std::vector<std::vector<double>>(n, std::vector<double>(kBatches)));
  world.Run([&](Rank& rank) {
    std::unique_ptr<ops::Resources> resources;
    if (!ops::CreateResources(&resources).ok()) std::abort();
    ccl::Comm comm = CommOf(rank, rank.ctx.world, bytes, resources.get());
    DeviceTeam self = {};
    self.size = 1;
    self.members[0] = static_cast<uint8_t>(rank.rank());
    ccl::Comm alone = CommOf(rank, self, ops::WorkspaceBytes(1, {}, problems[0]), nullptr);
    ops::Matmul call;
    call.a = rank.New<uint16_t>(d.m * d.k);
    call.b = rank.New<uint16_t>(d.n * d.k);
    call.d = rank.New<uint16_t>(d.m * d.n);
    for (uint32_t b = 0; b <= kBatches; ++b) {  // the first warms up
      for (size_t way = 0; way < ways.size(); ++way) {
        call.problem = problems[way];
        const uint64_t share =
            operation == Operation::kMatmulAllScatter && way != 0 ? n : uint64_t{1};
        call.lda = call.problem.k;
        call.ldb = call.problem.n / share;
        call.ldd = call.problem.n;
        rank.HostBarrier();
        const auto start = std::chrono::steady_clock::now();
        for (uint32_t k = 0; k < kBatch; ++k) {
          const Result result = ops::Launch(way == 0 ? alone : comm, call, rank.stream);
          if (!result.ok()) {
            printf("%s\n", result.what);
            std::abort();
          }
        }
        if (!rank.stream.Synchronize().ok() || !ccl::CheckError(comm).ok()) std::abort();
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - start;
        if (b > 0) times[way][rank.rank()][b - 1] = took.count() / kBatch;
      }
    }
    ccl::ReleaseComm(&comm);
    ccl::ReleaseComm(&alone);
  });
  for (size_t way = 0; way < ways.size(); ++way) {
    std::vector<double> slowest(kBatches, 0);
    for (const auto& of_rank : times[way]) {
      for (uint32_t b = 0; b < kBatches; ++b) slowest[b] = std::max(slowest[b], of_rank[b]);
    }
    report->Add(std::string(ccl::OperationName(operation)) + " " + std::to_string(d.m) + " x " +
                    std::to_string(d.n) + " x " + std::to_string(d.k) + ", " + std::to_string(n) +
                    " ranks, " + ways[way].name,
                slowest, "us");
  }
}

int Main(int argc, char** argv) {
  Report report("ops_bench", argc, argv);
  const std::vector<Dimensions> shapes =
      kEmulated
          ? std::vector<Dimensions>{{128, 128, 128}}
          : std::vector<Dimensions>{{8192, 4096, 14336}, {1024, 4096, 14336}, {64, 8192, 8192}};
  for (const Dimensions& d : shapes) {
    for (const Operation operation :
         {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter, Operation::kAllGatherMatmul,
          Operation::kMatmulAllGather, Operation::kMatmulAllScatter}) {
      Compare(&report, 2, operation, d);
    }
  }
  return report.Print();
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
