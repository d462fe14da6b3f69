// A graph of many layers, replayed with fresh data: product and reduce-scatter, a norm by a plain
// kernel, all-gather and product. All numbers are small integers, so that every sum is exact and
// the answer is compared bit for bit with what plain kernels of integers make of the same data on
// one member. On GPUs the matrices are large enough for every variant, with several tiles each.
//
// IRIS_LAYERS_REPLAYS=1000 in the environment replays it as often; tests replay it less often.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/ops/ops.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Operation;

constexpr bool kEmulated = backend::Traits::kEmulated;
constexpr uint32_t kLayers = 32;
constexpr uint64_t kRows = kEmulated ? 8 : 384;     // of the activations, all members together
constexpr uint64_t kHidden = kEmulated ? 16 : 768;  // between the halves of a layer
constexpr uint64_t kInner = kEmulated ? 16 : 512;   // columns of the activations, all together
// Of so many weights one is not 0. So sums, and parts of them, are far below 256 in size, up to
// which bf16 has all integers.
constexpr uint64_t kWeightsForOne = kEmulated ? 1 : 16;
constexpr uint32_t kThreads = kEmulated ? 32 : 256;

// Into -2 to 2.
IRIS_HOST_DEVICE inline int32_t Wrapped(int32_t x) { return (x % 5 + 5) % 5 - 2; }
IRIS_DEVICE inline int32_t IntegerOf(Bfloat16 x) {
  return static_cast<int32_t>(static_cast<float>(x));
}
LaunchConfig ThreadsFor(uint64_t n) {
  return {.grid = static_cast<uint32_t>((n + kThreads - 1) / kThreads), .block = kThreads};
}

// Each row with its own sum, by one thread.
IRIS_KERNEL void Norm(const Bfloat16* y, Bfloat16* z, uint64_t rows, uint64_t columns) {
  const uint64_t row = backend::ThreadOfGrid();
  if (row >= rows) return;
  int32_t sum = 0;
  for (uint64_t c = 0; c < columns; ++c) sum += IntegerOf(y[row * columns + c]);
  for (uint64_t c = 0; c < columns; ++c) {
    const int32_t own = IntegerOf(y[row * columns + c]);
    z[row * columns + c] = Bfloat16(static_cast<float>(Wrapped(own + sum)));
  }
}

IRIS_KERNEL void Activate(Bfloat16* x, uint64_t n) {
  const uint64_t i = backend::ThreadOfGrid();
  if (i < n) x[i] = Bfloat16(static_cast<float>(Wrapped(IntegerOf(x[i]))));
}

// The same layers in integers, by one member alone: d[m, n] = a[m, k] b[k, n], an element a thread.
IRIS_KERNEL void MultiplyIntegers(const int32_t* a, const int32_t* b, int32_t* d, uint64_t m,
                                  uint64_t n, uint64_t k) {
  const uint64_t i = backend::ThreadOfGrid();
  if (i >= m * n) return;
  int32_t sum = 0;
  for (uint64_t at = 0; at < k; ++at) sum += a[i / n * k + at] * b[at * n + i % n];
  d[i] = sum;
}
IRIS_KERNEL void NormIntegers(int32_t* y, uint64_t rows, uint64_t columns) {
  const uint64_t row = backend::ThreadOfGrid();
  if (row >= rows) return;
  int32_t sum = 0;
  for (uint64_t c = 0; c < columns; ++c) sum += y[row * columns + c];
  for (uint64_t c = 0; c < columns; ++c) y[row * columns + c] = Wrapped(y[row * columns + c] + sum);
}
IRIS_KERNEL void WrapIntegers(int32_t* x, uint64_t n) {
  const uint64_t i = backend::ThreadOfGrid();
  if (i < n) x[i] = Wrapped(x[i]);
}
// Counts elements of columns [first, first + n) of the whole that a member has otherwise.
IRIS_KERNEL void Compare(const Bfloat16* part, const int32_t* whole, uint64_t first, uint64_t n,
                         uint32_t* n_wrong) {
  const uint64_t i = backend::ThreadOfGrid();
  if (i >= kRows * n) return;
  const int32_t wanted = whole[i / n * kInner + first + i % n];
  if (static_cast<float>(part[i]) != static_cast<float>(wanted)) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(n_wrong, 1u);
  }
}

// The numbers of a matrix, by a seed; the same on all ranks. One of `n_for_one` is drawn, and the
// others are 0.
std::vector<int32_t> Numbers(uint64_t n, uint64_t seed, uint64_t n_for_one) {
  std::vector<int32_t> numbers(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (int32_t& x : numbers) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const int32_t drawn = static_cast<int32_t>(state >> 60) % 5 - 2;
    x = (state >> 40) % n_for_one == 0 ? drawn : 0;
  }
  return numbers;
}

// Columns [first, first + n) of a matrix, or its rows where that is all of the columns.
std::vector<Bfloat16> Part(const std::vector<int32_t>& whole, uint64_t columns, uint64_t row,
                           uint64_t rows, uint64_t column, uint64_t n) {
  std::vector<Bfloat16> part;
  for (uint64_t r = row; r < row + rows; ++r) {
    for (uint64_t c = column; c < column + n; ++c) {
      part.push_back(Bfloat16(static_cast<float>(whole[r * columns + c])));
    }
  }
  return part;
}

uint32_t Replays() {
  const char* const text = std::getenv("IRIS_LAYERS_REPLAYS");
  const uint32_t wanted = text == nullptr ? 0 : static_cast<uint32_t>(std::atoi(text));
  return wanted != 0 ? wanted : std::max(2u, 20 / kSlower);
}

// What one member makes of all data by itself.
class Reference {
 public:
  explicit Reference(Rank* rank)
      : rank_(*rank),
        x_(rank->New<int32_t>(kRows * kInner)),
        y_(rank->New<int32_t>(kRows * kHidden)),
        in_(rank->New<int32_t>(kInner * kHidden)),
        out_(rank->New<int32_t>(kHidden * kInner)),
        n_wrong_(rank->New<uint32_t>(1)) {}

  void SetWeights(const std::vector<int32_t>& in, const std::vector<int32_t>& out) {
    rank_.Write(in_, in);
    rank_.Write(out_, out);
  }
  void Run(const std::vector<int32_t>& x) {
    rank_.Write(x_, x);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      rank_.Launch(ThreadsFor(kRows * kHidden), MultiplyIntegers, static_cast<const int32_t*>(x_),
                   static_cast<const int32_t*>(in_), y_, kRows, kHidden, kInner);
      rank_.Launch(ThreadsFor(kRows), NormIntegers, y_, kRows, kHidden);
      rank_.Launch(ThreadsFor(kRows * kInner), MultiplyIntegers, static_cast<const int32_t*>(y_),
                   static_cast<const int32_t*>(out_), x_, kRows, kInner, kHidden);
      rank_.Launch(ThreadsFor(kRows * kInner), WrapIntegers, x_, kRows * kInner);
    }
  }
  // Elements that differ in `part`, columns [first, first + n).
  uint32_t Differing(const Bfloat16* part, uint64_t first, uint64_t n) {
    rank_.Write(n_wrong_, 0u);
    rank_.Launch(ThreadsFor(kRows * n), Compare, part, static_cast<const int32_t*>(x_), first, n,
                 n_wrong_);
    return rank_.Read(n_wrong_);
  }

 private:
  Rank& rank_;
  int32_t* x_;
  int32_t* y_;
  int32_t* in_;
  int32_t* out_;
  uint32_t* n_wrong_;
};

void CheckLayers(uint32_t n_ranks, ops::Variant sums, ops::Variant gathers) {
  const uint64_t my_rows = kRows / n_ranks;
  const uint64_t my_inner = kInner / n_ranks;
  ops::Problem first = {Operation::kMatmulReduceScatter,
                        {kRows, kHidden, my_inner, DType::kBf16, DType::kBf16}};
  ops::Problem second = {Operation::kAllGatherMatmul,
                         {kRows, my_inner, kHidden, DType::kBf16, DType::kBf16}};
  first.variant = sums;
  second.variant = gathers;
  World(n_ranks, uint64_t{192} << 20).Run([&](Rank& rank) {
    const auto ok = [](const Result& result) { ASSERT_TRUE(result.ok()) << result.what; };
    ccl::CommOptions options;
    options.context = rank.ctx;
    options.team = rank.ctx.world;
    options.config = rank.SharedConfig();
    options.workspace_bytes = std::max(ops::WorkspaceBytes(n_ranks, options.config, first),
                                       ops::WorkspaceBytes(n_ranks, options.config, second));
    options.workspace = rank.New<uint8_t>(options.workspace_bytes);
    options.report = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
    *options.report = {};
    std::unique_ptr<ops::Resources> resources;
    ok(ops::CreateResources(&resources));
    options.products = resources.get();
    ccl::Comm comm;
    RequireOk(ccl::CreateComm(options, &comm));
    ok(ops::Prepare());
    Bfloat16* x = rank.New<Bfloat16>(kRows * my_inner);
    Bfloat16* in = rank.New<Bfloat16>(my_inner * kHidden);
    Bfloat16* y = rank.New<Bfloat16>(my_rows * kHidden);
    Bfloat16* z = rank.New<Bfloat16>(my_rows * kHidden);
    Bfloat16* out = rank.New<Bfloat16>(kHidden * my_inner);
    const std::vector<int32_t> weights_in = Numbers(kInner * kHidden, 77, kWeightsForOne);
    const std::vector<int32_t> weights_out = Numbers(kHidden * kInner, 78, kWeightsForOne);
    rank.Write(in, Part(weights_in, kHidden, rank.rank() * my_inner, my_inner, 0, kHidden));
    rank.Write(out, Part(weights_out, kInner, 0, kHidden, rank.rank() * my_inner, my_inner));
    Reference reference(&rank);
    reference.SetWeights(weights_in, weights_out);
    rank.HostBarrier();

    ok(backend::BeginCapture(rank.stream));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ok(ops::Launch(comm, {{x, my_inner, in, kHidden, nullptr, y, kHidden}, first}, rank.stream));
      rank.Launch(ThreadsFor(my_rows), Norm, static_cast<const Bfloat16*>(y), z, my_rows, kHidden);
      ok(ops::Launch(comm, {{z, kHidden, out, my_inner, nullptr, x, my_inner}, second},
                     rank.stream));
      rank.Launch(ThreadsFor(kRows * my_inner), Activate, x, kRows * my_inner);
    }
    backend::Graph graph;
    ok(backend::EndCapture(rank.stream, &graph));

    const uint32_t replays = Replays();
    for (uint32_t replay = 0; replay < replays; ++replay) {
      const std::vector<int32_t> fresh = Numbers(kRows * kInner, replay, 1);
      rank.Write(x, Part(fresh, kInner, 0, kRows, rank.rank() * my_inner, my_inner));
      ok(backend::LaunchGraph(graph, rank.stream));
      rank.Synchronize();
      reference.Run(fresh);
      const uint32_t n_wrong = reference.Differing(x, rank.rank() * my_inner, my_inner);
      EXPECT_EQ(n_wrong, 0u) << "replay " << replay;
      if (n_wrong != 0) break;
    }
    rank.Synchronize();
    ok(ccl::CheckError(comm));
    rank.HostBarrier();
    ccl::ReleaseComm(&comm);
    backend::FreeHost(options.report);
  });
}

TEST(OpsLayersTest, AGraphOf32LayersReplayedWithFreshData) {
  CheckLayers(2, ops::Variant::kAuto, ops::Variant::kAuto);
}
TEST(OpsLayersTest, TheSameOfFourMembers) {
  CheckLayers(4, ops::Variant::kAuto, ops::Variant::kAuto);
}
TEST(OpsLayersTest, TheSameByPairs) { CheckLayers(2, ops::Variant::kPair, ops::Variant::kPair); }
TEST(OpsLayersTest, TheSameByFusedKernels) {
  CheckLayers(2, ops::Variant::kFused, ops::Variant::kFused);
}
TEST(OpsLayersTest, TheSameWithRowsThatTheCopyEngineBrings) {
  CheckLayers(2, ops::Variant::kFused, ops::Variant::kCopyEngine);
}

}  // namespace
}  // namespace iris::conformance
