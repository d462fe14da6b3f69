// Collectives in the first replay of a graph, when the code of kernels is still being fetched and
// members begin far apart: what takes no time later takes some there. A graph of steps, each of
// which sums up what a kernel of the program made of the last sum, is made and replayed once, again
// and again. All numbers are integers that float has.
//
// On GPUs this has found lines whose lanes were stored or loaded one after another.
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/norm/norm.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr bool kEmulated = backend::Traits::kEmulated;
constexpr uint32_t kSteps = kEmulated ? 4 : 50;
constexpr uint32_t kGraphs = kEmulated ? 2 : 3;
constexpr uint32_t kWorlds = kEmulated ? 1 : 30;  // each with fresh memory and streams
// For each member, whole steps of lines and a part of one.
constexpr uint64_t kCount = kEmulated ? 2 * 1000 + 8 : 64 * 1024;
constexpr uint64_t kRows = kEmulated ? 8 : 64;  // of a norm
constexpr uint32_t kThreads = kEmulated ? 64 : 256;

// x[i] = y[i] / members + 1, whose sum over the members is y[i] + members.
IRIS_KERNEL void NextStep(const float* y, float* x, uint64_t n, float members) {
  const uint64_t first =
      uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  for (uint64_t i = first; i < n; i += uint64_t{backend::GridSize()} * backend::BlockSize()) {
    x[i] = y[i] / members + 1;
  }
}

// The places and values of y that are not `wanted`, the first kListed that are found.
constexpr uint32_t kListed = 64;
struct Others {
  uint32_t count;
  uint32_t places[kListed];
  float values[kListed];
};
IRIS_KERNEL void FindOthers(const float* y, uint64_t n, float wanted, Others* others) {
  const uint64_t first =
      uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  for (uint64_t i = first; i < n; i += uint64_t{backend::GridSize()} * backend::BlockSize()) {
    if (y[i] == wanted) continue;
    const uint32_t found =
        backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(&others->count, 1u);
    if (found >= kListed) continue;
    others->places[found] = static_cast<uint32_t>(i);
    others->values[found] = y[i];
  }
}

std::string TextOf(const Others& others) {
  std::ostringstream text;
  for (uint32_t k = 0; k < others.count && k < kListed; ++k) {
    text << " y[" << others.places[k] << "] = " << others.values[k];
  }
  return text.str();
}

// Puts the sums of all members' x to y.
using SumUp =
    std::function<Result(Rank& rank, const ccl::Comm& comm, float* x, float* y, float* zeros)>;

void CheckFirstReplays(uint32_t n_ranks, const SumUp& sum_up) {
  World(n_ranks, 4 * kCount * sizeof(float) + (uint64_t{128} << 20)).Run([&](Rank& rank) {
    const auto ok = [](const Result& result) { ASSERT_TRUE(result.ok()) << result.what; };
    const ccl::Comm comm = rank.NewComm(rank.ctx.world, rank.SharedConfig());
    float* const x = rank.New<float>(kCount);
    float* const y = rank.New<float>(kCount);
    float* const zeros = rank.New<float>(kCount);
    Others* const others = rank.New<Others>(1);
    const float members = static_cast<float>(n_ranks);
    const LaunchConfig shape = {.grid = kEmulated ? 2u : 32u, .block = kThreads};
    for (uint32_t k = 0; k < kGraphs; ++k) {
      backend::Graph graph;
      ok(backend::BeginCapture(rank.stream));
      for (uint32_t step = 0; step < kSteps; ++step) {
        rank.Launch(shape, NextStep, static_cast<const float*>(y), x, kCount, members);
        ok(sum_up(rank, comm, x, y, zeros));
      }
      ok(backend::EndCapture(rank.stream, &graph));
      rank.HostBarrier();
      ok(backend::LaunchGraph(graph, rank.stream));
      const float wanted = members * static_cast<float>(kSteps * (k + 1));
      rank.Launch(shape, FindOthers, static_cast<const float*>(y), kCount, wanted, others);
      rank.Synchronize();
      ok(ccl::CheckError(comm));
      const Others found = rank.Read(static_cast<const Others*>(others));
      EXPECT_EQ(found.count, 0u) << "graph " << k << ", all are " << wanted << ":" << TextOf(found);
      rank.HostBarrier();
    }
  });
}

void Check(const SumUp& sum_up) {
  for (const uint32_t n_ranks : {2u, 4u}) {
    for (uint32_t world = 0; world < kWorlds; ++world) {
      SCOPED_TRACE(testing::Message() << n_ranks << " ranks, world " << world);
      CheckFirstReplays(n_ranks, sum_up);
      if (testing::Test::HasFailure()) return;
    }
  }
}
void CheckVariant(ccl::Variant variant) {
  Check([variant](Rank& rank, const ccl::Comm& comm, float* x, float* y, float*) {
    return ccl::AllReduce(comm, x, y, kCount, DType::kF32, ccl::ReduceOp::kSum, rank.stream,
                          variant);
  });
}
// The sums that a norm writes beside what it norms, which is written over x.
void CheckNorm(norm::Variant variant) {
  Check([variant](Rank& rank, const ccl::Comm& comm, float* x, float* y, float* zeros) {
    norm::Norm call;
    call.problem = {ccl::Operation::kAllReduceRmsNorm,
                    {kRows, kCount / kRows, DType::kF32, DType::kF32}};
    call.problem.residual = true;
    call.problem.variant = variant;
    norm::Plan plan;
    if (!norm::Choose(comm, call.problem, &plan).ok()) {
      call.problem.variant = norm::Variant::kAuto;  // a platform without lines
    }
    call.in = call.out = x;
    call.residual = zeros;
    call.residual_out = y;
    return norm::Launch(comm, call, rank.stream);
  });
}

TEST(FirstReplayTest, ByPackets) { CheckVariant(ccl::Variant::kTwoPackets); }
TEST(FirstReplayTest, ByLines) { CheckVariant(ccl::Variant::kLines); }
TEST(FirstReplayTest, ByTwoLines) { CheckVariant(ccl::Variant::kTwoLines); }
TEST(FirstReplayTest, ByNormsOfLines) { CheckNorm(norm::Variant::kLines); }
TEST(FirstReplayTest, ByNormsOfTwoLines) { CheckNorm(norm::Variant::kTwoLines); }
TEST(FirstReplayTest, ByWhatTheTableTakes) { CheckVariant(ccl::Variant::kAuto); }

}  // namespace
}  // namespace iris::conformance
