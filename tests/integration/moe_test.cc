// iris::moe with ranks that are real processes, on a real irisd: results, and what its errors say.
#include "iris/moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris::moe {
namespace {

using ccl::Communicator;
using iris::testing::RankProcesses;
using iris::testing::Text;
using ::testing::HasSubstr;

constexpr uint32_t kTokens = 6, kHidden = 40;

Config ConfigOf(uint32_t n_ranks) {
  Config config;
  config.n_experts = 2 * n_ranks + 1;
  config.top_k = 2;
  config.hidden = kHidden;
  config.max_tokens = kTokens;
  config.in = DType::kF32;
  return config;
}

// What a rank needs for the layers of these tests; memory is the host's, as the device is emulated.
struct Layer {
  Context context;
  Stream stream;
  Communicator comm;
  Exchange exchange;
  std::vector<float> x, weights, rows, out;
  std::vector<int32_t> ids, counts, offsets;

  moe::Dispatch There() {
    moe::Dispatch call;
    call.tokens = kTokens;
    call.x = x.data();
    call.ids = ids.data();
    call.weights = weights.data();
    call.rows = rows.data();
    call.counts = counts.data();
    call.offsets = offsets.data();
    return call;
  }
  moe::Combine Back() { return {kTokens, rows.data(), DType::kF32, out.data(), DType::kF32}; }
};

// Token t of a rank chooses experts (rank + t) and its neighbour.
StatusOr<std::unique_ptr<Layer>> Make() {
  auto layer = std::make_unique<Layer>();
  ContextOptions options;
  options.heap_bytes = 32 << 20;
  options.timeout = std::chrono::seconds(60);
  IRIS_ASSIGN_OR_RETURN(layer->context, Context::Create(options));
  IRIS_ASSIGN_OR_RETURN(layer->stream, Stream::Create(layer->context));
  IRIS_ASSIGN_OR_RETURN(layer->comm, Communicator::Create(layer->context));
  const Config config = ConfigOf(layer->context.n_ranks());
  IRIS_ASSIGN_OR_RETURN(layer->exchange,
                        Exchange::Create(layer->context, layer->comm, config, "layer"));
  for (uint32_t t = 0; t < kTokens; ++t) {
    const uint32_t first = (layer->context.rank() + t) % config.n_experts;
    for (const uint32_t id : {first, (first + 1) % config.n_experts}) {
      layer->ids.push_back(static_cast<int32_t>(id));
    }
    layer->weights.insert(layer->weights.end(), {0.25f, 0.5f});
    for (uint32_t c = 0; c < kHidden; ++c) {
      layer->x.push_back(static_cast<float>(100 * layer->context.rank() + 10 * t + c));
    }
  }
  layer->rows.resize(layer->exchange.sizes().max_rows * kHidden);
  layer->counts.resize(layer->exchange.sizes().local_experts);
  layer->offsets.resize(layer->exchange.sizes().local_experts + 1);
  layer->out.resize(kTokens * kHidden);
  return layer;
}

int Results(const std::vector<std::string>&) {
  auto made = Make();
  REQUIRE_OK(made);
  Layer& layer = **made;
  const uint32_t n = layer.context.n_ranks();
  const Sizes& sizes = layer.exchange.sizes();
  for (int step = 0; step < 3; ++step) {
    REQUIRE_OK(layer.exchange.Dispatch(layer.There(), layer.stream));
    REQUIRE_OK(layer.comm.Synchronize(layer.stream));
    int32_t row = 0;
    for (uint32_t e = 0; e < sizes.local_experts; ++e) {
      REQUIRE(layer.offsets[e] == row);
      for (uint32_t rank = 0; rank < n; ++rank) {
        for (uint32_t t = 0; t < kTokens; ++t) {
          const uint32_t expert = sizes.first_expert + e;
          const uint32_t first = (rank + t) % (2 * n + 1);
          if (expert != first && expert != (first + 1) % (2 * n + 1)) continue;
          for (uint32_t c = 0; c < kHidden; ++c) {
            REQUIRE(layer.rows[static_cast<uint32_t>(row) * kHidden + c] ==
                    static_cast<float>(100 * rank + 10 * t + c));
          }
          ++row;
        }
      }
      REQUIRE(layer.counts[e] == row - layer.offsets[e]);
    }
    REQUIRE(layer.offsets[sizes.local_experts] == row);
    REQUIRE_OK(layer.exchange.Combine(layer.Back(), layer.stream));
    REQUIRE_OK(layer.comm.Synchronize(layer.stream));
    for (size_t i = 0; i < layer.out.size(); ++i) REQUIRE(layer.out[i] == 0.75f * layer.x[i]);
  }
  // Refused before anything starts, and all goes on.
  moe::Dispatch wrong = layer.There();
  wrong.tokens = kTokens + 1;
  const Status refused = layer.exchange.Dispatch(wrong, layer.stream);
  REQUIRE(refused.code() == StatusCode::kInvalidArgument);
  REQUIRE(std::string(refused.message()).find("more tokens than max_tokens") != std::string::npos);
  Config config = ConfigOf(n);
  config.top_k = 0;
  REQUIRE(Exchange::Create(layer.context, layer.comm, config).status().code() ==
          StatusCode::kInvalidArgument);
  // A second one, which comes between.
  auto second = Exchange::Create(layer.context, layer.comm, ConfigOf(n));
  REQUIRE_OK(second);
  REQUIRE_OK(layer.exchange.Dispatch(layer.There(), layer.stream));
  moe::Dispatch other = layer.There();
  other.rows = nullptr;
  REQUIRE_OK(second->Dispatch(other, layer.stream));
  REQUIRE_OK(layer.exchange.Combine(layer.Back(), layer.stream));
  REQUIRE_OK(layer.comm.Synchronize(layer.stream));
  for (size_t i = 0; i < layer.out.size(); ++i) REQUIRE(layer.out[i] == 0.75f * layer.x[i]);
  REQUIRE_OK(second->Destroy());
  REQUIRE(second->Dispatch(other, layer.stream).code() == StatusCode::kFailedPrecondition);
  // A new one, where one was that has dispatched: that was another one's.
  const void* const place = layer.exchange.workspace();
  REQUIRE_OK(layer.exchange.Dispatch(layer.There(), layer.stream));
  REQUIRE_OK(layer.comm.Synchronize(layer.stream));
  REQUIRE_OK(layer.exchange.Destroy());
  auto fresh = Exchange::Create(layer.context, layer.comm, ConfigOf(n));
  REQUIRE_OK(fresh);
  REQUIRE(fresh->workspace() == place);
  REQUIRE_OK(fresh->Combine(layer.Back(), layer.stream));
  const Status nothing = layer.comm.Synchronize(layer.stream);
  REQUIRE(nothing.code() == StatusCode::kFailedPrecondition);
  REQUIRE(std::string(nothing.message()).find("holds no dispatch") != std::string::npos);
  REQUIRE_OK(layer.comm.Reset());
  REQUIRE_OK(fresh->Destroy());
  REQUIRE_OK(layer.comm.Destroy());
  return 0;
}

// Rank 1 does something else, and everybody is told; then Reset, and all goes on.
int Differs(const std::vector<std::string>& args) {
  auto made = Make();
  REQUIRE_OK(made);
  Layer& layer = **made;
  const auto fails = [&](const char* which, const std::function<Status()>& call) {
    const Status status = call();
    std::cout << which << " " << Text(status.ok() ? layer.comm.Synchronize(layer.stream) : status)
              << std::endl;
    Status reset = layer.stream.Synchronize();
    if (reset.ok()) reset = layer.context.Barrier();
    if (reset.ok()) reset = layer.comm.Reset();
    return reset;
  };
  (void)args;
  const bool odd = layer.context.rank() == 1;
  REQUIRE_OK(fails("operation", [&] {
    return odd ? layer.exchange.Combine(layer.Back(), layer.stream)
               : layer.exchange.Dispatch(layer.There(), layer.stream);
  }));
  const int32_t was = layer.ids[5];
  if (odd) layer.ids[5] = 99;
  REQUIRE_OK(fails("range", [&] { return layer.exchange.Dispatch(layer.There(), layer.stream); }));
  if (odd) layer.ids[5] = layer.ids[4];
  REQUIRE_OK(fails("twice", [&] { return layer.exchange.Dispatch(layer.There(), layer.stream); }));
  layer.ids[5] = was;
  REQUIRE_OK(fails("alone", [&] { return layer.exchange.Combine(layer.Back(), layer.stream); }));
  REQUIRE_OK(layer.exchange.Dispatch(layer.There(), layer.stream));
  REQUIRE_OK(layer.exchange.Combine(layer.Back(), layer.stream));
  REQUIRE_OK(layer.comm.Synchronize(layer.stream));
  for (size_t i = 0; i < layer.out.size(); ++i) REQUIRE(layer.out[i] == 0.75f * layer.x[i]);
  return 0;
}

// One rank dies among many layers.
int Killed(const std::vector<std::string>&) {
  auto made = Make();
  REQUIRE_OK(made);
  Layer& layer = **made;
  Status status = layer.exchange.Dispatch(layer.There(), layer.stream);
  REQUIRE_OK(status);
  REQUIRE_OK(layer.comm.Synchronize(layer.stream));
  std::cout << "ready" << std::endl;
  while (status.ok()) {
    for (uint32_t k = 0; status.ok() && k < 20; ++k) {
      status = layer.exchange.Dispatch(layer.There(), layer.stream);
      if (status.ok()) status = layer.exchange.Combine(layer.Back(), layer.stream);
    }
    if (status.ok()) status = layer.comm.Synchronize(layer.stream);
  }
  std::cout << "error " << Text(layer.comm.Check()) << std::endl;
  (void)layer.stream.Synchronize();
  return 0;
}

class MoeRanksTest : public iris::testing::JobTest {};

TEST_F(MoeRanksTest, ResultsAreRight) {
  for (const int n : {1, 3}) Run("results", n);
}

TEST_F(MoeRanksTest, WhatIsWrongIsToldAlikeOnAllRanks) {
  RankProcesses ranks("differs", 3, Ranks());
  for (int r = 0; r < 3; ++r) {
    const std::string operation = ranks.WaitLine(r, "operation ");
    EXPECT_THAT(operation, HasSubstr("INVALID_ARGUMENT: moe_dispatch #0: rank 1 called "
                                     "moe_combine(hidden=40, experts=7, top_k=2, max_tokens=6, "
                                     "capacity=0, types=f32/f32/f32, workspace at offset "));
    EXPECT_THAT(operation, HasSubstr("), ranks 0 and 2 called moe_dispatch(hidden=40, "));
    EXPECT_THAT(operation, HasSubstr(absl::StrCat("; rank 1 is pid ", ranks.pid(1))));
    EXPECT_THAT(ranks.WaitLine(r, "range "),
                HasSubstr("OUT_OF_RANGE: moe_dispatch #0 of 3 ranks: token 2 of rank 1 "
                          "chooses expert 99, which there is not"));
    EXPECT_THAT(ranks.WaitLine(r, "twice "),
                HasSubstr("OUT_OF_RANGE: moe_dispatch #0 of 3 ranks: token 2 of rank 1 "
                          "chooses expert 3 twice"));
    EXPECT_THAT(ranks.WaitLine(r, "alone "),
                HasSubstr("FAILED_PRECONDITION: moe_combine #0 of 3 ranks: the workspace of "
                          "rank 0 holds no dispatch of this config"));
  }
  ranks.ExpectAllSucceed();
}

TEST_F(MoeRanksTest, KilledRankIsNamed) {
  RankProcesses ranks("killed", 3, Ranks());
  for (int r = 0; r < 3; ++r) ranks.WaitLine(r, "ready");
  ExpectTheKilledIsNamed(ranks, 1, "moe_");
}

}  // namespace
}  // namespace iris::moe

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"results", iris::moe::Results},
                                  {"differs", iris::moe::Differs},
                                  {"killed", iris::moe::Killed}});
}
