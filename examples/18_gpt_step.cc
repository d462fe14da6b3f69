// 18: a step of a small GPT, tensor-parallel, as one graph. Its logits are those of one rank.
//
//   iris-run -n 4 -- bazel-bin/examples/18_gpt_step
//
//   x (the residual, on all ranks) ── norm ──► h
//   each layer:   h ─[Wqkv: own heads' columns]─► attention ─[Wout: own rows]─► part ─┐
//                 h, x ◄──────────── all_reduce + residual + RMSNorm ◄────────────────┘
//                 h ─[Wup: own columns, gelu]──► mlp ─[Wdown: own rows]───────► part ─┐
//                 h, x ◄──────────── all_reduce + residual + RMSNorm ◄────────────────┘
//   h ─[Whead: own columns]─ matmul_all_scatter ──► logits, on all ranks
//
// What to see: a communicator of all ranks, and one of this rank alone, for products of its own.
// Weights come from one generator, the same everywhere: a rank reads its part of each matrix, by an
// offset and the leading dimension. The step is captured once and replayed; the figure is the
// median time of a replay.
#include <cmath>
#include <cstdio>

#include "examples/gpt_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/norm.h"
#include "iris/ops.h"
#include "iris/stream.h"

using iris::DType, iris::Half, iris::ccl::Communicator;
namespace ops = iris::ops;
namespace norms = iris::norm;  // the headers of a GPU have a function `norm`

using example::kHeads, example::kHeadSize, example::kHidden, example::kInner;
using example::kLayers, example::kTokens, example::kVocabulary;

// A block for each token, a thread for each head. qkv[token]: of each head q, k and v.
IRIS_KERNEL void Attend(const Half* qkv, Half* out) {
  const uint32_t token = iris::backend::BlockIndex(), head = iris::backend::ThreadIndex();
  const uint32_t heads = iris::backend::BlockSize(), row = 3 * heads * kHeadSize;
  const Half* q = qkv + token * row + head * 3 * kHeadSize;
  float sums[kHeadSize] = {}, total = 0;
  for (uint32_t t = 0; t <= token; ++t) {
    const Half *k = qkv + t * row + head * 3 * kHeadSize + kHeadSize, *v = k + kHeadSize;
    float score = 0;
    for (uint32_t e = 0; e < kHeadSize; ++e) score += float(q[e]) * float(k[e]);
    const float weight = ::expf(score / ::sqrtf(float(kHeadSize)));  // scores are small here
    for (uint32_t e = 0; e < kHeadSize; ++e) sums[e] += weight * float(v[e]);
    total += weight;
  }
  out += (token * heads + head) * kHeadSize;
  for (uint32_t e = 0; e < kHeadSize; ++e) out[e] = Half(sums[e] / total);
}

// Of this rank; each has a row for each token.
struct Activations {
  Half *x, *h, *qkv, *heads, *mlp, *part;
  float* logits;
};
constexpr auto kGelu = ops::Activation::kGelu;
constexpr ops::Shape kLogits = {kTokens, kVocabulary, kHidden, DType::kF16, DType::kF32};

// The step, as member `m` of the `n` members of `comm`. `self`: of this rank alone.
iris::Status Step(Communicator& comm, Communicator& self, uint32_t m, uint32_t n,
                  const example::Model& w, const Activations& s, iris::Stream& stream) {
  const uint32_t heads = kHeads / n, own = kHidden / n, inner = kInner / n;  // even shares
  IRIS_RETURN_IF_ERROR(stream.Copy(s.x, w.embedded.data(), w.embedded.bytes()));
  iris::Status status = stream.Fill(s.part, 0, w.embedded.bytes());  // nothing to add at first
  const auto then = [&](const auto& call) { status = status.ok() ? call() : status; };
  // A product with a part of a matrix of weights, whose rows are `ld` elements apart.
  const auto multiply = [&](uint64_t columns, uint64_t k, const Half* a, const Half* b, uint64_t ld,
                            Half* d, ops::Activation act = {}) {
    ops::Shape shape = {kTokens, columns, k, DType::kF16, DType::kF16};
    shape.activation = act;
    then([&] { return ops::MatmulAllReduce(self, shape, {a, k}, {b, ld}, {d, columns}, stream); });
  };
  norms::Shape shape = {kTokens, kHidden, DType::kF16, DType::kF16, DType::kF16};
  shape.weight_offset = 1;
  shape.residual = true;
  norms::Buffers buffers = {s.part, s.h};
  buffers.residual = buffers.residual_out = s.x;
  const auto add_and_norm = [&](uint32_t k) {
    buffers.weight = w.gains.data() + k * kHidden;
    then([&] { return norms::AllReduceRmsNorm(comm, shape, buffers, stream); });
  };
  add_and_norm(0);
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t at = l * kHidden * kHidden, first = m * own * kHidden;
    multiply(3 * own, kHidden, s.h, w.qkv.data() + 3 * (at + m * own), 3 * kHidden, s.qkv);
    then([&] { return iris::Launch({kTokens, heads}, stream, Attend, s.qkv, s.heads); });
    multiply(kHidden, own, s.heads, w.out.data() + at + first, kHidden, s.part);
    add_and_norm(2 * l + 1);
    multiply(inner, kHidden, s.h, w.up.data() + 4 * at + m * inner, kInner, s.mlp, kGelu);
    multiply(kHidden, inner, s.mlp, w.down.data() + 4 * (at + first), kHidden, s.part);
    add_and_norm(2 * l + 2);
  }
  IRIS_RETURN_IF_ERROR(status);
  return ops::MatmulAllScatter(comm, kLogits, {s.h, kHidden},
                               {w.head.data() + kVocabulary / n * m, kVocabulary},
                               {s.logits, kVocabulary}, stream);
}

iris::Status Run() {
  IRIS_ASSIGN_OR_RETURN(iris::Context context,
                        iris::Context::Create({.heap_bytes = 64 << 20, .max_heap_bytes = 1 << 30}));
  const uint32_t n = context.n_ranks(), rank = context.rank();
  IRIS_RETURN_IF_ERROR(example::CheckRanks(n));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  iris::ccl::CommunicatorOptions options;
  IRIS_ASSIGN_OR_RETURN(options.matmul_bytes,
                        ops::WorkspaceBytes(context, ops::Operation::kMatmulAllScatter, kLogits));
  IRIS_ASSIGN_OR_RETURN(auto comm, Communicator::Create(context, options));
  IRIS_ASSIGN_OR_RETURN(const iris::Team alone, context.Split(static_cast<int>(rank)));
  IRIS_ASSIGN_OR_RETURN(auto self, Communicator::Create(context, alone, options));

  IRIS_ASSIGN_OR_RETURN(const example::Model w, example::DrawModel(context));
  constexpr uint32_t kPart = kTokens * kHidden;  // qkv has three of these, mlp four
  IRIS_ASSIGN_OR_RETURN(const auto made, context.Allocate<Half>(11 * kPart, "activations"));
  IRIS_ASSIGN_OR_RETURN(const auto all, context.Allocate<float>(kTokens * kVocabulary, "logits"));
  const auto at = [&](uint32_t i) { return made.get() + i * kPart; };
  const Activations s = {at(0), at(1), at(2), at(5), at(7), at(6), all.get()};

  IRIS_RETURN_IF_ERROR(stream.BeginCapture());
  IRIS_RETURN_IF_ERROR(Step(comm, self, rank, n, w, s, stream));
  IRIS_ASSIGN_OR_RETURN(iris::Graph graph, stream.EndCapture());
  const auto replay = [&] { return graph.Launch(stream); };
  IRIS_ASSIGN_OR_RETURN(const auto time,
                        iris::DoBench(context, stream, replay, {.n_warmup = 1, .n_repeat = 5}));
  IRIS_RETURN_IF_ERROR(comm.Check());  // names a rank that did not come
  IRIS_ASSIGN_OR_RETURN(const auto logits, stream.Read(s.logits, kTokens * kVocabulary));

  // The same by each rank alone. Parts of sums were rounded to f16 on their way.
  IRIS_RETURN_IF_ERROR(Step(self, self, 0, 1, w, s, stream));
  IRIS_RETURN_IF_ERROR(self.Synchronize(stream));
  IRIS_ASSIGN_OR_RETURN(const auto expected, stream.Read(s.logits, logits.size()));
  const auto [most, apart] = example::Compare(logits, expected);
  if (!(apart <= 0.01f * most)) return {iris::StatusCode::kInternal, "wrong logits"};
  std::printf("rank %u of %u: %zu logits up to %.3f, within %.5f of one rank's\n", rank, n,
              logits.size(), most, apart);
  IRIS_RETURN_IF_ERROR(comm.Destroy());
  if (rank == 0) std::printf("result ok figure %.1f us\n", time.count());
  return {};
}

int main(int argc, char** argv) {
  example::Usage(argc, argv, false, 0, "(its sizes are built in)");
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
