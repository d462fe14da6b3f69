// A graph of many layers, replayed with fresh data: product and reduce-scatter, a norm by a plain
// kernel, all-gather and product. All numbers are small integers, so that every sum is exact and
// the answer is compared bit for bit.
//
// IRIS_LAYERS_REPLAYS=1000 in the environment replays it as often; tests replay it less often.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/ops/ops.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Operation;

constexpr uint32_t kRanks = 2;
constexpr uint32_t kLayers = 32;
constexpr uint64_t kRows = 8;     // of the activations, all members together
constexpr uint64_t kHidden = 16;  // between the halves of a layer
constexpr uint64_t kInner = 16;   // columns of the activations, all members together
constexpr uint64_t kMyRows = kRows / kRanks;
constexpr uint64_t kMyInner = kInner / kRanks;

// Into -2 to 2.
IRIS_HOST_DEVICE inline int32_t Wrapped(int32_t x) { return (x % 5 + 5) % 5 - 2; }

// Each row with its own sum, by one thread.
IRIS_KERNEL void Norm(const Bfloat16* y, Bfloat16* z, uint64_t rows, uint64_t columns) {
  const uint64_t row =
      uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  if (row >= rows) return;
  int32_t sum = 0;
  for (uint64_t c = 0; c < columns; ++c)
    sum += static_cast<int32_t>(static_cast<float>(y[row * columns + c]));
  for (uint64_t c = 0; c < columns; ++c) {
    const int32_t own = static_cast<int32_t>(static_cast<float>(y[row * columns + c]));
    z[row * columns + c] = Bfloat16(static_cast<float>(Wrapped(own + sum)));
  }
}

IRIS_KERNEL void Activate(Bfloat16* x, uint64_t n) {
  const uint64_t i =
      uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  if (i < n)
    x[i] = Bfloat16(static_cast<float>(Wrapped(static_cast<int32_t>(static_cast<float>(x[i])))));
}

// The numbers of a matrix, by a seed; the same on all ranks.
std::vector<int32_t> Numbers(uint64_t n, uint64_t seed) {
  std::vector<int32_t> numbers(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (int32_t& x : numbers) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    x = static_cast<int32_t>(state >> 60) % 5 - 2;
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

std::vector<int32_t> Product(const std::vector<int32_t>& a, const std::vector<int32_t>& b,
                             uint64_t m, uint64_t n, uint64_t k) {
  std::vector<int32_t> d(m * n);
  for (uint64_t r = 0; r < m; ++r) {
    for (uint64_t i = 0; i < k; ++i) {
      for (uint64_t c = 0; c < n; ++c) d[r * n + c] += a[r * k + i] * b[i * n + c];
    }
  }
  return d;
}

// All layers, in integers.
std::vector<int32_t> Expected(std::vector<int32_t> x, const std::vector<int32_t>& in,
                              const std::vector<int32_t>& out) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<int32_t> y = Product(x, in, kRows, kHidden, kInner);
    for (uint64_t r = 0; r < kRows; ++r) {
      int32_t sum = 0;
      for (uint64_t c = 0; c < kHidden; ++c) sum += y[r * kHidden + c];
      for (uint64_t c = 0; c < kHidden; ++c) y[r * kHidden + c] = Wrapped(y[r * kHidden + c] + sum);
    }
    x = Product(y, out, kRows, kInner, kHidden);
    for (int32_t& value : x) value = Wrapped(value);
  }
  return x;
}

uint32_t Replays() {
  const char* const text = std::getenv("IRIS_LAYERS_REPLAYS");
  const uint32_t wanted = text == nullptr ? 0 : static_cast<uint32_t>(std::atoi(text));
  return wanted != 0 ? wanted : std::max(2u, 20 / kSlower);
}

void CheckLayers(ops::Variant variant) {
  World world(kRanks, uint64_t{96} << 20);
  world.Run([variant, &world](Rank& rank) {
    const auto ok = [](const Result& result) { ASSERT_TRUE(result.ok()) << result.what; };
    ops::Problem first = {
        Operation::kMatmulReduceScatter, kRows, kHidden, kMyInner, DType::kBf16, DType::kBf16};
    ops::Problem second = {
        Operation::kAllGatherMatmul, kRows, kMyInner, kHidden, DType::kBf16, DType::kBf16};
    first.variant = second.variant = variant;
    ccl::CommOptions options;
    options.context = rank.ctx;
    options.team = rank.ctx.world;
    options.config = world.SharedConfig();
    options.workspace_bytes = std::max(ops::WorkspaceBytes(kRanks, options.config, first),
                                       ops::WorkspaceBytes(kRanks, options.config, second));
    options.workspace = rank.New<uint8_t>(options.workspace_bytes);
    options.report = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
    *options.report = {};
    ccl::Comm comm;
    ok(ccl::CreateComm(options, &comm));
    ok(ops::Prepare());
    Bfloat16* x = rank.New<Bfloat16>(kRows * kMyInner);
    Bfloat16* in = rank.New<Bfloat16>(kMyInner * kHidden);
    Bfloat16* y = rank.New<Bfloat16>(kMyRows * kHidden);
    Bfloat16* z = rank.New<Bfloat16>(kMyRows * kHidden);
    Bfloat16* out = rank.New<Bfloat16>(kHidden * kMyInner);
    const std::vector<int32_t> weights_in = Numbers(kInner * kHidden, 77);
    const std::vector<int32_t> weights_out = Numbers(kHidden * kInner, 78);
    rank.Write(in, Part(weights_in, kHidden, rank.rank() * kMyInner, kMyInner, 0, kHidden));
    rank.Write(out, Part(weights_out, kInner, 0, kHidden, rank.rank() * kMyInner, kMyInner));
    rank.HostBarrier();

    ok(backend::BeginCapture(rank.stream));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ok(ops::Launch(comm, {first, x, kMyInner, in, kHidden, nullptr, y, kHidden}, rank.stream));
      rank.Launch({1, 32}, Norm, static_cast<const Bfloat16*>(y), z, kMyRows, kHidden);
      ok(ops::Launch(comm, {second, z, kHidden, out, kMyInner, nullptr, x, kMyInner}, rank.stream));
      rank.Launch({1, 64}, Activate, x, kRows * kMyInner);
    }
    backend::Graph graph;
    ok(backend::EndCapture(rank.stream, &graph));

    const uint32_t replays = Replays();
    for (uint32_t replay = 0; replay < replays; ++replay) {
      const std::vector<int32_t> fresh = Numbers(kRows * kInner, replay);
      rank.Write(x, Part(fresh, kInner, 0, kRows, rank.rank() * kMyInner, kMyInner));
      ok(backend::LaunchGraph(graph, rank.stream));
      const std::vector<Bfloat16> got = rank.Read(x, kRows * kMyInner);
      const std::vector<Bfloat16> wanted = Part(Expected(fresh, weights_in, weights_out), kInner, 0,
                                                kRows, rank.rank() * kMyInner, kMyInner);
      uint64_t n_wrong = 0;
      for (uint64_t i = 0; i < wanted.size(); ++i) {
        n_wrong += static_cast<float>(got[i]) != static_cast<float>(wanted[i]);
      }
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

TEST(OpsLayersTest, AGraphOf32LayersReplayedWithFreshData) { CheckLayers(ops::Variant::kAuto); }
TEST(OpsLayersTest, TheSameByPairs) { CheckLayers(ops::Variant::kPair); }

}  // namespace
}  // namespace iris::conformance
