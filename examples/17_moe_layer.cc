// 17: a mixture of experts. Every rank has tokens and two of the experts; a router sends each token
// to its two best experts, wherever they are, and brings back what they made of it.
//
//   iris-run -n 4 -- bazel-bin/examples/17_moe_layer
//
//     x[tokens, hidden] ─┬──────► Dispatch ──► rows, by expert ──► RunExperts: y = W2 relu(W1 row)
//                        ▼            ▲                                 │
//     Route: softmax ─► ids, weights ─┘                                 │
//                                                                       ▼
//     out[tokens, hidden] ◄─────────────────────────────────── Combine: sum of weight * y
//
// What to see: how many rows an expert gets is known to the device alone, so that the whole layer
// is captured once and replayed. In the end each rank makes its results by itself and compares.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/moe.h"
#include "moe_data.h"

constexpr uint32_t kHidden = 32, kInner = 48, kTopK = 2, kExpertsEach = 2;

// Of one token: its best experts, and a softmax over these.
IRIS_HOST_DEVICE inline void Choose(const float* x, uint32_t n_experts, int32_t* ids,
                                    float* weights) {
  float best[kTopK] = {-1e30f, -1e30f};
  for (uint32_t e = 0; e < n_experts; ++e) {
    float logit = 0;
    for (uint32_t i = 0; i < kHidden; ++i) logit += x[i] * Number(kRouter, e, i);
    const uint32_t place = logit > best[0] ? 0 : 1;
    if (logit <= best[1]) continue;
    if (place == 0) best[1] = best[0], ids[1] = ids[0];
    best[place] = logit, ids[place] = static_cast<int32_t>(e);
  }
  float ratio = 1 + (best[1] - best[0]) / 1024;  // e^d by (1 + d / 1024)^1024
  for (int i = 0; i < 10; ++i) ratio *= ratio;
  weights[0] = 1 / (1 + ratio), weights[1] = ratio / (1 + ratio);
}

// What expert e makes of a row: the columns first, first + step, and so on.
IRIS_HOST_DEVICE inline void RunExpert(uint32_t e, const float* x, float* y, uint32_t first,
                                       uint32_t step) {
  for (uint32_t j = first; j < kHidden; j += step) y[j] = 0;
  for (uint32_t k = 0; k < kInner; ++k) {
    float inner = 0;
    for (uint32_t i = 0; i < kHidden; ++i) inner += x[i] * Number(kFirst + e, k, i);
    for (uint32_t j = first; inner > 0 && j < kHidden; j += step)
      y[j] += inner * Number(kSecond + e, j, k);
  }
}

IRIS_KERNEL void Route(const float* x, uint32_t tokens, uint32_t n_experts, int32_t* ids,
                       float* weights) {
  for (uint32_t t = iris::backend::ThreadIndex(); t < tokens; t += iris::backend::BlockSize()) {
    Choose(x + t * kHidden, n_experts, ids + t * kTopK, weights + t * kTopK);
  }
}

// A block a row. A real layer has a grouped product of matrices here, which takes the same offsets.
IRIS_KERNEL void RunExperts(const float* rows, const int32_t* offsets, uint32_t first_expert,
                            uint32_t local_experts, float* y) {
  const auto n_rows = static_cast<uint32_t>(offsets[local_experts]);
  uint32_t e = 0;
  for (uint32_t row = iris::backend::BlockIndex(); row < n_rows; row += iris::backend::GridSize()) {
    while (row >= static_cast<uint32_t>(offsets[e + 1])) ++e;
    RunExpert(first_expert + e, rows + row * kHidden, y + row * kHidden,
              iris::backend::ThreadIndex(), iris::backend::BlockSize());
  }
}

iris::Status Run() {
  IRIS_ASSIGN_OR_RETURN(auto context, iris::Context::Create({.heap_bytes = 16 << 20}));
  IRIS_ASSIGN_OR_RETURN(auto stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(auto comm, iris::ccl::Communicator::Create(context));
  const uint32_t tokens = 20 + 3 * context.rank();  // as many as a rank has
  const uint32_t n_experts = kExpertsEach * context.n_ranks(), most = 20 + 3 * context.n_ranks();
  const iris::moe::Config config = {n_experts,           kTopK,          kHidden,
                                    /*max_tokens=*/most, /*capacity=*/0, iris::DType::kF32};
  IRIS_ASSIGN_OR_RETURN(auto exchange, iris::moe::Exchange::Create(context, comm, config, "moe"));
  const iris::moe::Sizes& sizes = exchange.sizes();
  std::vector<float> x(tokens * kHidden);
  for (uint32_t i = 0; i < x.size(); ++i) x[i] = Number(kToken, context.rank(), i);
  using Floats = iris::DeviceArray<float>;
  using Integers = iris::DeviceArray<int32_t>;
  IRIS_ASSIGN_OR_RETURN(const auto in, Floats::Create(context, x, stream));
  IRIS_ASSIGN_OR_RETURN(const auto ids, Integers::Create(context, tokens * kTopK));
  IRIS_ASSIGN_OR_RETURN(const auto weights, Floats::Create(context, tokens * kTopK));
  IRIS_ASSIGN_OR_RETURN(const auto rows, Floats::Create(context, sizes.max_rows * kHidden));
  IRIS_ASSIGN_OR_RETURN(const auto y, Floats::Create(context, sizes.max_rows * kHidden));
  IRIS_ASSIGN_OR_RETURN(const auto out, Floats::Create(context, tokens * kHidden));
  IRIS_ASSIGN_OR_RETURN(const auto offsets, Integers::Create(context, sizes.local_experts + 1));
  IRIS_ASSIGN_OR_RETURN(const auto counts,
                        iris::HostArray<int32_t>::Create(context, sizes.local_experts));
  IRIS_RETURN_IF_ERROR(stream.BeginCapture());
  IRIS_RETURN_IF_ERROR(iris::Launch({1, 64}, stream, Route, in, tokens, n_experts, ids, weights));
  iris::moe::Dispatch there;
  there.tokens = tokens, there.x = in, there.ids = ids, there.weights = weights;
  there.rows = rows, there.counts = counts, there.offsets = offsets;
  IRIS_RETURN_IF_ERROR(exchange.Dispatch(there, stream));
  IRIS_RETURN_IF_ERROR(iris::Launch({4, kHidden}, stream, RunExperts, rows, offsets,
                                    sizes.first_expert, sizes.local_experts, y));
  IRIS_RETURN_IF_ERROR(
      exchange.Combine({tokens, y, iris::DType::kF32, out, iris::DType::kF32}, stream));
  IRIS_ASSIGN_OR_RETURN(auto layer, stream.EndCapture());
  const auto replay = [&] { return layer.Launch(stream); };
  IRIS_ASSIGN_OR_RETURN(const auto time,
                        iris::DoBench(context, stream, replay, {.n_warmup = 1, .n_repeat = 5}));
  IRIS_RETURN_IF_ERROR(comm.Check());  // names a rank that did not come
  IRIS_ASSIGN_OR_RETURN(const auto got, stream.Read(out.get(), tokens * kHidden));
  for (uint32_t e = 0; e < sizes.local_experts; ++e)
    std::printf("expert %u got %d rows\n", sizes.first_expert + e, counts[e]);
  for (uint32_t t = 0; t < tokens; ++t) {
    int32_t choices[kTopK] = {};
    float parts[kTopK], made[kHidden], sum[kHidden] = {};
    Choose(&x[t * kHidden], n_experts, choices, parts);
    for (uint32_t k = 0; k < kTopK; ++k) {
      RunExpert(static_cast<uint32_t>(choices[k]), &x[t * kHidden], made, 0, 1);
      for (uint32_t j = 0; j < kHidden; ++j) sum[j] += parts[k] * made[j];
    }
    for (uint32_t j = 0; j < kHidden; ++j) {
      if (std::abs(got[t * kHidden + j] - sum[j]) < 1e-5f) continue;
      return {iris::StatusCode::kInternal, "token " + std::to_string(t) + " is wrong"};
    }
  }
  std::printf("rank %u: %u tokens are right\n", context.rank(), tokens);
  IRIS_RETURN_IF_ERROR(context.Barrier());  // all are right
  if (context.rank() == 0) std::printf("result ok figure %.1f us\n", time.count());
  return {};
}

int main(int argc, char** argv) {
  example::Usage(argc, argv, false, 0, "(its sizes are built in)");
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
