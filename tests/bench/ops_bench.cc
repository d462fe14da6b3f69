// Products of matrices with their communication, ranks as threads of this process: time of one
// operation by each variant, behind each other on a stream, and of the product of one rank alone.
//
//   bazel run -c opt //tests/bench:ops_bench -- [--json] [--few-rows]
//
// A sample is the slowest rank's time for a batch of operations, divided by their number; ranks
// meet on the host before each batch. The variants and the product take turns, so that all see the
// same clocks. On emulated devices shapes are small, and the figures say nothing about GPUs.
//
// --few-rows: all_gather_matmul of 64 rows alone, as replays of graphs, beside the gather followed
// by the product, and beside the product. Each call of a graph has another B, as layers have, so
// that no cache holds it until the next replay. Ranks are on all devices of the machine, or share
// the one there is: then each has a part of its multiprocessors and of its memory's bandwidth, and
// an n that is smaller by the number of ranks takes about as long as the whole n on a device for
// each, links aside. Results are compared with sums in double at some places, and the last replay's
// with the first one's.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/ops/ops.h"
#include "tests/bench/numbers.h"
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
ccl::Comm CommOf(Rank& rank, const DeviceTeam& team, uint64_t bytes, ops::Resources* resources,
                 const ccl::Config& config = {}) {
  ccl::CommOptions options;
  options.config = config;
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

void Check(const Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "ops_bench: %s\n", result.what);
  std::exit(1);
}

constexpr uint32_t kSeedOfA = 1;
constexpr uint32_t kSeedOfB = 2;  // that of rank r is r more

// Compares D [d.m, n] with sums in double at some places of every row.
void CompareWithSums(Rank& rank, const Dimensions& d, uint64_t n, const std::vector<uint16_t>& got,
                     const std::string& name) {
  constexpr uint64_t kPlaces = 4;
  for (uint64_t row = 0; row < d.m; ++row) {
    for (uint64_t place = 0; place < kPlaces; ++place) {
      const uint64_t column = (row * 37 + place * n / kPlaces + place) % n;
      double sum = 0;
      for (uint64_t k = 0; k < d.k; ++k) {
        sum += static_cast<double>(FloatOf(ValueBits(kSeedOfA, row * d.k + k))) *
               FloatOf(ValueBits(kSeedOfB + rank.rank(), k * n + column));
      }
      // What the sum's terms lose in f32, and what rounding to bf16 does.
      const double most = std::abs(sum) / 128 + std::sqrt(static_cast<double>(d.k)) / 1000;
      const double error = std::abs(FloatOf(got[row * n + column]) - sum);
      if (error <= most) continue;
      std::fprintf(stderr, "%s, rank %u: D[%u, %u] is %g, and should be %g\n", name.c_str(),
                   rank.rank(), static_cast<uint32_t>(row), static_cast<uint32_t>(column),
                   static_cast<double>(FloatOf(got[row * n + column])), sum);
      std::exit(1);
    }
  }
}

// d.n: of all ranks together.
void CompareFewRows(Report* report, uint32_t n_ranks, const Dimensions& d) {
  constexpr uint32_t kReplays = 15;
  constexpr uint32_t kLeastCalls = kEmulated ? 2 : 20;
  constexpr uint64_t kBytesOfB = kEmulated ? 0 : uint64_t{160} << 20;  // more than a cache holds
  const uint64_t n = d.n / n_ranks;
  const uint64_t share = d.m / n_ranks;
  const uint64_t copies = kBytesOfB / (d.k * n * 2) + 1;
  const uint64_t calls = (kLeastCalls + copies - 1) / copies * copies;
  const std::string shape = std::to_string(d.m) + " x " + std::to_string(d.n) + " x " +
                            std::to_string(d.k) + ", " + std::to_string(n_ranks) + " ranks, ";
  ops::Problem problem = ProblemOf(Operation::kAllGatherMatmul, d, n_ranks, false);
  ops::Problem product = ProblemOf(Operation::kAllGatherMatmul, d, n_ranks, true);
  product.variant = ops::Variant::kPair;
  uint64_t bytes = 0;
  const ops::Variant variants[] = {ops::Variant::kPair, ops::Variant::kAuto};
  for (const ops::Variant variant : variants) {
    problem.variant = variant;
    bytes = std::max(bytes, ops::WorkspaceBytes(n_ranks, {}, problem));
  }
  World world(n_ranks, kEmulated ? uint64_t{256} << 20 : uint64_t{1} << 30);
  std::vector<std::string> names;
  std::vector<std::vector<std::vector<double>>> samples(n_ranks);
  world.Run([&](Rank& rank) {
    ccl::Comm comm = CommOf(rank, rank.ctx.world, bytes, nullptr);
    ccl::Config one_by_one;
    one_by_one.early = false;
    ccl::Comm apart = CommOf(rank, rank.ctx.world, bytes, nullptr, one_by_one);
    DeviceTeam self = {};
    self.size = 1;
    self.members[0] = static_cast<uint8_t>(rank.rank());
    ccl::Comm alone = CommOf(rank, self, ops::WorkspaceBytes(1, {}, product), nullptr);
    auto* const a = rank.New<uint16_t>(share * d.k);
    auto* const gathered = rank.New<uint16_t>(d.m * d.k);
    auto* const b = rank.New<uint16_t>(copies * d.k * n);
    auto* const out = rank.New<uint16_t>(d.m * n);
    rank.Write(a, Values(kSeedOfA, rank.rank() * share * d.k, share * d.k));
    rank.Write(gathered, Values(kSeedOfA, 0, d.m * d.k));
    const std::vector<uint16_t> of_b = Values(kSeedOfB + rank.rank(), 0, d.k * n);
    for (uint64_t copy = 0; copy < copies; ++copy) rank.Write(b + copy * d.k * n, of_b);

    // One call, by its number.
    using Call = std::function<void(uint64_t)>;
    std::vector<std::pair<std::string, Call>> ways;
    ops::Matmul call;
    call.lda = d.k;
    call.ldb = call.ldd = n;
    call.d = out;
    const auto launch = [&](const ccl::Comm& on, const ops::Problem& what, const void* from,
                            uint64_t number) {
      call.problem = what;
      call.a = from;
      call.b = b + number % copies * d.k * n;
      Check(ops::Launch(on, call, rank.stream));
    };
    ops::Plan plan;
    Check(ops::Choose(alone, product, &plan));
    ways.emplace_back(std::string("product alone (") + plan.multiplier + ")",
                      [&](uint64_t number) { launch(alone, product, gathered, number); });
    ways.emplace_back("all_gather, then product", [&](uint64_t number) {
      Check(ccl::AllGather(comm, a, gathered, share * d.k, DType::kBf16, rank.stream));
      launch(alone, product, gathered, number);
    });
    for (const ops::Variant variant : variants) {
      ops::Problem its = problem;
      its.variant = variant;
      Check(ops::Choose(comm, its, &plan));
      ways.emplace_back(std::string(ops::VariantName(variant)) + " (" +
                            ops::VariantName(plan.variant) + ", " + plan.multiplier + ")",
                        [&, its](uint64_t number) { launch(comm, its, a, number); });
    }
    ways.emplace_back("auto, where no kernel begins early",
                      [&](uint64_t number) { launch(apart, problem, a, number); });
    std::vector<backend::Graph> graphs(ways.size());
    std::vector<std::vector<uint16_t>> first(ways.size());
    for (size_t way = 0; way < ways.size(); ++way) {
      // The vendor's library loads what it needs, while nothing waits on the device.
      rank.HostBarrier();
      ways[way].second(0);
      rank.Synchronize();
      rank.HostBarrier();
      Check(backend::BeginCapture(rank.stream));
      for (uint64_t k = 0; k < calls; ++k) ways[way].second(k);
      Check(backend::EndCapture(rank.stream, &graphs[way]));
    }
    backend::Event from, to;
    Check(backend::Event::Create(&from));
    Check(backend::Event::Create(&to));
    auto& mine = samples[rank.rank()];
    mine.resize(ways.size());
    for (uint32_t replay = 0; replay <= kReplays; ++replay) {
      for (size_t way = 0; way < ways.size(); ++way) {
        const bool compares = replay == 0 || replay == kReplays;
        if (compares) rank.Write(out, std::vector<uint16_t>(d.m * n, 0xffff));  // no numbers
        rank.HostBarrier();
        // What is timed stands behind a replay in which the ranks have met.
        Check(backend::LaunchGraph(graphs[way], rank.stream));
        Check(backend::Record(from, rank.stream));
        Check(backend::LaunchGraph(graphs[way], rank.stream));
        Check(backend::Record(to, rank.stream));
        Check(rank.stream.Synchronize());
        Check(ccl::CheckError(comm));
        Check(ccl::CheckError(apart));
        uint64_t took_ns = 0;
        Check(backend::ElapsedNanoseconds(from, to, &took_ns));
        if (replay != 0) {
          mine[way].push_back(static_cast<double>(took_ns) / 1e3 / static_cast<double>(calls));
        }
        if (!compares) continue;
        const std::vector<uint16_t> got = rank.Read(static_cast<const uint16_t*>(out), d.m * n);
        if (replay == 0) {
          CompareWithSums(rank, d, n, got, shape + ways[way].first);
          first[way] = got;
        } else if (got != first[way]) {
          Check({StatusCode::kInternal, "the last replay has other bits than the first"});
        }
      }
    }
    rank.HostBarrier();
    if (rank.rank() == 0) {
      for (const auto& way : ways) names.push_back(way.first);
    }
    ccl::ReleaseComm(&comm);
    ccl::ReleaseComm(&apart);
    ccl::ReleaseComm(&alone);
  });
  for (size_t way = 0; way < names.size(); ++way) {
    std::vector<double> slowest = samples[0][way];
    for (const auto& of_rank : samples) {
      for (size_t k = 0; k < slowest.size(); ++k)
        slowest[k] = std::max(slowest[k], of_rank[way][k]);
    }
    report->Add(shape + names[way], slowest, "us");
  }
}

int MainOfFewRows(Report* report) {
  const std::vector<Dimensions> shapes =
      kEmulated ? std::vector<Dimensions>{{16, 128, 256}}
                : std::vector<Dimensions>{{64, 8192, 8192}, {64, 4096, 8192}, {64, 2048, 8192}};
  for (const uint32_t n_ranks : {2u, 4u}) {
    for (const Dimensions& d : shapes) CompareFewRows(report, n_ranks, d);
  }
  return report->Print();
}

int Main(int argc, char** argv) {
  Report report("ops_bench", argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--few-rows") == 0) return MainOfFewRows(&report);
  }
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
