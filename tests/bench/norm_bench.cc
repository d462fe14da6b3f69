// iris::norm on the device of the build, which is emulated by default: residual, RMS norm and
// weights of [rows, hidden] of bf16.
//
//   bazel run -c opt //tests/bench:norm_bench -- [--json]
//
// A member alone, by variant and by threads of a block. Then the sums of 2 and of 4 ranks, by
// variant, beside an all_reduce of the same bytes: ranks are threads, on all devices of the machine
// or on the one there is. On one device nothing goes through a link, so that this is what a call
// costs beside the links.
//
// A sample is a replay of a graph of calls, divided by their number, as a stream's events have it;
// of several ranks, the largest median. Results are compared with sums of the host once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
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
constexpr uint64_t kMostRows = kEmulated ? 16 : 4096;
constexpr uint64_t kMostRowsOfRanks = kEmulated ? 4 : 256;
constexpr uint64_t kMostHidden = 8192;

// Bits of bf16 between -1 and 1, which differ from element to element and between `seed`s.
uint16_t ValueBits(uint32_t seed, uint64_t i) {
  uint32_t x = seed * 0x9e3779b9u + static_cast<uint32_t>(i) * 0x85ebca6bu;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 13;
  return backend::BfloatBitsOf(static_cast<float>(x >> 8) / (1 << 23) - 1.0f);
}
std::vector<uint16_t> Values(uint32_t seed, uint64_t count) {
  std::vector<uint16_t> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = ValueBits(seed, i);
  return values;
}
float FloatOf(uint16_t bits) { return numeric::FloatOf(static_cast<uint32_t>(bits) << 16); }

void Check(const Result& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "norm_bench: %s\n", result.what);
  std::exit(1);
}

// µs of a call, one sample for each replay but the first. Ranks begin together: what is timed
// stands behind a replay in which they have met.
std::vector<double> Measure(Rank& rank, const ccl::Comm& comm, const std::function<void()>& call) {
  Check(backend::BeginCapture(rank.stream));
  for (uint32_t k = 0; k < kCalls; ++k) call();
  backend::Graph graph;
  Check(backend::EndCapture(rank.stream, &graph));
  backend::Event from, to;
  Check(backend::Event::Create(&from));
  Check(backend::Event::Create(&to));
  std::vector<double> samples;
  for (uint32_t k = 0; k <= kReplays; ++k) {
    rank.HostBarrier();
    if (rank.n() > 1) Check(backend::LaunchGraph(graph, rank.stream));
    Check(backend::Record(from, rank.stream));
    Check(backend::LaunchGraph(graph, rank.stream));
    Check(backend::Record(to, rank.stream));
    Check(rank.stream.Synchronize());
    Check(ccl::CheckError(comm));
    uint64_t took_ns = 0;
    Check(backend::ElapsedNanoseconds(from, to, &took_ns));
    if (k != 0) samples.push_back(static_cast<double>(took_ns) / 1e3 / kCalls);
  }
  rank.HostBarrier();
  return samples;
}

std::string NameOf(const norm::Problem& problem, const std::string& how) {
  std::string name = "[";
  name += std::to_string(problem.rows);
  name += ", ";
  name += std::to_string(problem.hidden);
  name += "] to ";
  name += DTypeName(problem.out);
  name += ", ";
  name += how;
  return name;
}
std::string ShapeOf(uint32_t blocks, uint32_t threads) {
  std::string shape = std::to_string(blocks);
  shape += " x ";
  shape += std::to_string(threads);
  return shape;
}

constexpr uint32_t kResidualSeed = 101;
constexpr uint32_t kWeightSeed = 102;

// Compares what a rank has of the first and of the last row with sums of the host.
void Compare(Rank& rank, const norm::Norm& call) {
  const norm::Problem& p = call.problem;
  for (const uint64_t row : {uint64_t{0}, p.rows - 1}) {
    const uint64_t first = row * p.hidden;
    const std::vector<uint16_t> r =
        rank.Read(static_cast<const uint16_t*>(call.residual_out) + first, p.hidden);
    const std::vector<uint16_t> out =
        rank.Read(static_cast<const uint16_t*>(call.out) + first, p.hidden);
    double squares = 0;
    for (uint64_t j = 0; j < p.hidden; ++j) {
      float sum = FloatOf(ValueBits(1, first + j));
      for (uint32_t m = 1; m < rank.n(); ++m) sum += FloatOf(ValueBits(1 + m, first + j));
      sum += FloatOf(ValueBits(kResidualSeed, first + j));
      if (r[j] != backend::BfloatBitsOf(sum)) {
        Check({StatusCode::kInternal, "a sum is wrong"});
      }
      squares += static_cast<double>(FloatOf(r[j])) * FloatOf(r[j]);
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(p.hidden) + p.epsilon);
    for (uint64_t j = 0; j < p.hidden; ++j) {
      const double wanted = FloatOf(r[j]) * factor * FloatOf(ValueBits(kWeightSeed, j));
      if (!(std::abs(FloatOf(out[j]) - wanted) <= std::abs(wanted) / 200)) {
        Check({StatusCode::kInternal, "a normed value is wrong"});
      }
    }
  }
}

// The largest median of the ranks, in place of the first one's samples.
class Slowest {
 public:
  explicit Slowest(uint32_t n) : samples_(n) {}
  void Put(Rank& rank, std::vector<double> samples) {
    samples_[rank.rank()] = std::move(samples);
    rank.HostBarrier();
  }
  const std::vector<double>& Get() const {
    return *std::max_element(samples_.begin(), samples_.end(), [](const auto& a, const auto& b) {
      return Quantile(a, 0.5) < Quantile(b, 0.5);
    });
  }

 private:
  std::vector<std::vector<double>> samples_;
};

void MeasureAlone(Report* report) {
  constexpr uint64_t kBytes = kMostRows * kMostHidden * sizeof(uint16_t);
  World(1, 3 * kBytes + (256 << 20)).Run([&](Rank& rank) {
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
      report->Add(NameOf(call.problem, norm::VariantName(variant) + std::string(", ") +
                                           ShapeOf(plan.blocks, plan.threads)),
                  Measure(rank, comm, [&] { Check(norm::Launch(comm, call, rank.stream)); }), "us");
    };
    for (const uint64_t hidden : {uint64_t{8192}, uint64_t{1024}}) {
      for (const bool scaled : {false, true}) {
        for (const uint64_t rows : {1, 16, 64, 256, 4096}) {
          if (rows > kMostRows) continue;
          call.problem = {ccl::Operation::kAllReduceRmsNorm,
                          {rows, hidden, DType::kBf16, scaled ? DType::kF8E4M3 : DType::kBf16,
                           DType::kBf16, true}};
          if (scaled) call.problem.scaling = norm::Scaling::kPerGroup;
          for (const ccl::Comm& comm : comms) add(comm, norm::Variant::kAlone);
          add(comms[0], norm::Variant::kPackets);
        }
      }
    }
  });
}

// blocks and threads: Config::blocks and block_threads.
struct Limits {
  uint32_t blocks;
  uint32_t threads;
};

// In a world of its own, whose communicator has the whole device.
void MeasureRanks(uint32_t n_ranks, Limits limits, Report* report) {
  constexpr uint64_t kElements = kMostRowsOfRanks * kMostHidden;
  const bool all = limits.blocks == 0 && limits.threads == 0;
  Slowest slowest(n_ranks);
  World(n_ranks, 4 * kElements * sizeof(uint16_t) + (uint64_t{kEmulated ? 256 : 1024} << 20))
      .Run([&](Rank& rank) {
        auto* const in = rank.New<uint16_t>(kElements);
        auto* const residual = rank.New<uint16_t>(kElements);
        auto* const residual_out = rank.New<uint16_t>(kElements);
        auto* const out = rank.New<uint16_t>(kElements);
        auto* const weight = rank.New<uint16_t>(kMostHidden);
        rank.Write(in, Values(1 + rank.rank(), kElements));
        rank.Write(residual, Values(kResidualSeed, kElements));
        rank.Write(weight, Values(kWeightSeed, kMostHidden));
        norm::Norm call;
        call.in = in;
        call.residual = residual;
        call.residual_out = residual_out;
        call.weight = weight;
        call.out = out;
        const auto add = [&](const norm::Problem& problem, const std::string& how,
                             std::vector<double> samples) {
          slowest.Put(rank, std::move(samples));
          if (rank.rank() == 0) {
            report->Add(NameOf(problem, std::to_string(n_ranks) + " ranks, " + how), slowest.Get(),
                        "us");
          }
          rank.HostBarrier();
        };
        ccl::Config config;
        config.blocks = limits.blocks;
        config.block_threads = limits.threads;
        const ccl::Comm comm = rank.NewComm(rank.ctx.world, config);
        for (const uint64_t rows : {1, 4, 16, 64, 256}) {
          if (rows > kMostRowsOfRanks || (!all && rows > 1)) continue;
          norm::Problem& p = call.problem;
          p = {ccl::Operation::kAllReduceRmsNorm,
               {rows, kMostHidden, DType::kBf16, DType::kBf16, DType::kBf16, true}};
          for (const norm::Variant variant : {norm::Variant::kPackets, norm::Variant::kLines,
                                              norm::Variant::kTwoLines, norm::Variant::kTwoShot}) {
            p.variant = variant;
            norm::Plan plan;
            if (!norm::Choose(comm, p, &plan).ok()) continue;
            std::vector<double> samples =
                Measure(rank, comm, [&] { Check(norm::Launch(comm, call, rank.stream)); });
            Compare(rank, call);
            add(p,
                norm::VariantName(variant) + std::string(", ") +
                    ShapeOf(plan.blocks, plan.threads) + ", parts " + std::to_string(plan.parts),
                std::move(samples));
          }
          if (!all) continue;
          for (const ccl::Variant variant : {ccl::Variant::kPackets, ccl::Variant::kLines,
                                             ccl::Variant::kTwoLines, ccl::Variant::kAuto}) {
            const uint64_t count = rows * kMostHidden;
            const ccl::Plan plan = ccl::Choose(comm, {ccl::Operation::kAllReduce, count,
                                                      DType::kBf16, ccl::ReduceOp::kSum, variant});
            add(p,
                "all_reduce alone, " + std::string(ccl::VariantName(variant)) + " (" +
                    ccl::VariantName(plan.variant) + "), " + ShapeOf(plan.blocks, plan.threads),
                Measure(rank, comm, [&] {
                  Check(ccl::AllReduce(comm, in, out, count, DType::kBf16, ccl::ReduceOp::kSum,
                                       rank.stream, variant));
                }));
          }
        }
      });
}

int Main(int argc, char** argv) {
  Report report("norm_bench", argc, argv);
  for (const uint32_t n_ranks : {4u, 2u}) {
    for (const Limits limits : {Limits{0, 0}, Limits{0, 64}, Limits{4, 0}, Limits{2, 0}}) {
      MeasureRanks(n_ranks, limits, &report);
      if (kEmulated) break;
    }
  }
  MeasureAlone(&report);
  return report.Print();
}

}  // namespace
}  // namespace iris::bench

int main(int argc, char** argv) { return iris::bench::Main(argc, argv); }
