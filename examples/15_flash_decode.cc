// 15: flash decode. One step of attention over a cache of keys and values that is too long for one
// device: the sequence is split over the ranks, and each rank gets the whole result.
//
//   iris-run -n 4 -- bazel-bin/examples/15_flash_decode --heads 32 --tokens 65536
//
//            rank 0                        rank 1                ...
//   cache    tokens 0 .. n/2               tokens n/2 .. n           of all heads
//               |  Decode: a block for each head and split of the tokens
//   partials (o, m, l) of its tokens       (o, m, l) of its tokens
//               |  \______________________ ____/ |   put to all ranks, with a signal each
//               |  ______________________ X____  |
//               v /                            \ v
//            Combine: a block for each head waits for the signals, and adds all partials in the
//            order of the tokens
//   output   all heads                     all heads, the same bits
//
// What to see: softmax over a part of the tokens gives a vector o, the largest score m and the sum
// l of exp(score - m), and these are enough to combine parts. So a few hundred bytes travel instead
// of the cache. Partials have two slots, used in turn: a rank that is in round r + 2 has combined
// round r + 1, so all ranks have begun that, and have combined round r.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using iris::backend::BlockIndex;
using iris::backend::BlockSize;
using iris::backend::ThreadIndex;

constexpr uint32_t kThreads = 128;
constexpr uint32_t kPack = 8;    // elements that a thread loads at once, 16 bytes
constexpr uint32_t kUnroll = 4;  // tokens that a thread has under way
constexpr float kNoScore = -1e30f;

struct Shape {
  uint32_t heads, kv_heads;     // heads / kv_heads neighbouring heads share keys and values
  uint64_t tokens, first, own;  // of all ranks; where this rank's begin; how many it has
  uint32_t splits;              // of a rank's tokens
};

template <uint32_t kDim>
struct alignas(16) Partial {
  float o[kDim];
  float m, l;  // the largest score, in units of log2(e), and the sum of exp2(score - m)
};

// An element of what = 0: queries, 1: keys, 2: values. The host computes the same for the check.
template <typename T>
IRIS_HOST_DEVICE inline T Element(uint32_t what, uint64_t line, uint32_t d) {
  uint64_t x = (line * 1024 + d) * 4 + what + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  const float value = static_cast<float>(static_cast<int32_t>(x >> 44)) / (1 << 19) - 1.0f;
  return T(what == 0 ? 4 * value : value);
}

// cache: [kv_heads][own][kDim]; a line of it is a head's token.
template <typename T, uint32_t kDim>
IRIS_KERNEL void Fill(uint32_t what, T* cache, Shape shape) {
  const uint64_t count = shape.kv_heads * shape.own * kDim;
  for (uint64_t i = uint64_t{BlockIndex()} * kThreads + ThreadIndex(); i < count;
       i += uint64_t{iris::backend::GridSize()} * kThreads) {
    const uint64_t head = i / kDim / shape.own, token = i / kDim % shape.own;
    cache[i] = Element<T>(what, head * shape.tokens + shape.first + token, i % kDim);
  }
}

template <typename T>
IRIS_DEVICE inline void Load8(const T* from, float* to) {
  const iris::Bytes16 pack = iris::backend::Load16<iris::CacheHint::kStreaming>(from);
  for (uint32_t i = 0; i < kPack; ++i) {
    const uint64_t word = i < 4 ? pack.lo : pack.hi;
    to[i] = static_cast<float>(T::FromBits(static_cast<uint16_t>(word >> i % 4 * 16)));
  }
}

// What `n` partials are together, in their order. All threads of the block call it; thread d has
// element d of the result.
template <uint32_t kDim>
IRIS_DEVICE inline void Merge(const Partial<kDim>* parts, uint32_t n, Partial<kDim>* result) {
  if (ThreadIndex() >= kDim) return;
  float m = kNoScore, l = 0, o = 0;
  for (uint32_t i = 0; i < n; ++i) m = fmaxf(m, parts[i].m);
  for (uint32_t i = 0; i < n; ++i) {
    const float weight = exp2f(parts[i].m - m);
    l += weight * parts[i].l;
    o += weight * parts[i].o[ThreadIndex()];
  }
  result->o[ThreadIndex()] = o;
  if (ThreadIndex() == 0) result->m = m;
  if (ThreadIndex() == 0) result->l = l;
}

// slots: [heads][n_ranks][splits] partials, `ready` as many signals. q: [heads][kDim].
template <typename T, uint32_t kDim>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void Decode(iris::DeviceContext ctx, const T* q,
                                                        const T* k, const T* v, Shape shape,
                                                        Partial<kDim>* slots, uint64_t* ready,
                                                        uint64_t round) {
  constexpr uint32_t kLanes = kDim / kPack;        // that share a token
  constexpr uint32_t kGroups = kThreads / kLanes;  // tokens that the block works on at once
  IRIS_SHARED(Partial<kDim>[kGroups], parts);
  const uint32_t head = BlockIndex() / shape.splits, split = BlockIndex() % shape.splits;
  const uint32_t group = ThreadIndex() / kLanes, at = ThreadIndex() % kLanes * kPack;
  const uint64_t begin = shape.own * split / shape.splits;
  const uint64_t end = shape.own * (split + 1) / shape.splits;
  const uint64_t cache = uint64_t{head / (shape.heads / shape.kv_heads)} * shape.own * kDim + at;
  float query[kPack], o[kPack] = {}, m = kNoScore, l = 0;
  Load8(q + head * kDim + at, query);
  for (float& x : query) x *= 1.44269504f / sqrtf(static_cast<float>(kDim));

  for (uint64_t first = begin; first < end; first += kGroups * kUnroll) {  // the same in all lanes
    float key[kUnroll][kPack], value[kUnroll][kPack], score[kUnroll];
    IRIS_UNROLL(4)
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const uint64_t token = first + u * kGroups + group;
      const uint64_t line = cache + (token < end ? token : end - 1) * kDim;
      Load8(k + line, key[u]);
      Load8(v + line, value[u]);
    }
    float most = m;
    IRIS_UNROLL(4)
    for (uint32_t u = 0; u < kUnroll; ++u) {
      score[u] = 0;
      for (uint32_t i = 0; i < kPack; ++i) score[u] += query[i] * key[u][i];
      for (uint32_t lane = kLanes / 2; lane > 0; lane /= 2) {
        score[u] += iris::backend::ShuffleXor(score[u], lane);
      }
      if (first + u * kGroups + group >= end) score[u] = kNoScore;
      most = fmaxf(most, score[u]);
    }
    const float scale = exp2f(m - most);
    m = most;
    l *= scale;
    for (float& x : o) x *= scale;
    IRIS_UNROLL(4)
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const float p = score[u] > kNoScore ? exp2f(score[u] - m) : 0;
      l += p;
      for (uint32_t i = 0; i < kPack; ++i) o[i] += p * value[u][i];
    }
  }

  for (uint32_t i = 0; i < kPack; ++i) parts[group].o[at + i] = o[i];
  if (at == 0) parts[group].m = m;
  if (at == 0) parts[group].l = l;
  iris::backend::BlockSync();
  const uint64_t slot = (uint64_t{head} * ctx.n_ranks + ctx.rank) * shape.splits + split;
  Merge(&parts[0], kGroups, &slots[slot]);
  iris::backend::BlockSync();  // the partial is whole
  for (uint32_t i = 0; i < ctx.n_ranks; ++i) {
    const uint32_t peer = (ctx.rank + i) % ctx.n_ranks;
    if (peer == ctx.rank) {
      if (ThreadIndex() == 0) iris::SignalSet(ctx, peer, ready + slot, round);
    } else {
      iris::PutSignal(ctx, peer, slots + slot, slots + slot, 1, {ready + slot, round},
                      iris::Block{});
    }
  }
}

// output: [heads][kDim].
template <uint32_t kDim>
IRIS_KERNEL void Combine(iris::DeviceContext ctx, const Partial<kDim>* slots, const uint64_t* ready,
                         uint32_t n_parts, uint64_t round, float* output, uint32_t* failed) {
  IRIS_SHARED(Partial<kDim>[1], all);
  const uint64_t first = uint64_t{BlockIndex()} * n_parts;
  for (uint32_t i = ThreadIndex(); i < n_parts; i += kThreads) {
    if (iris::WaitUntil(ctx, ready + first + i, iris::Compare::kGe, round) !=
        iris::WaitResult::kOk) {
      *failed = 1;  // the host does not use the output then
    }
  }
  iris::backend::BlockSync();  // the partials are there
  Merge(slots + first, n_parts, &all[0]);
  iris::backend::BlockSync();
  if (ThreadIndex() < kDim) {
    output[BlockIndex() * kDim + ThreadIndex()] = all[0].o[ThreadIndex()] / all[0].l;
  }
}

// The largest error of the head's output, by sums in double.
template <typename T>
double Error(const Shape& shape, uint32_t dim, uint32_t head, const float* output) {
  std::vector<double> query(dim), o(dim), scores(shape.tokens);
  for (uint32_t d = 0; d < dim; ++d) query[d] = static_cast<float>(Element<T>(0, head, d));
  const uint64_t first = head / (shape.heads / shape.kv_heads) * shape.tokens;
  double most = kNoScore, l = 0, error = 0;
  for (uint64_t t = 0; t < shape.tokens; ++t) {
    for (uint32_t d = 0; d < dim; ++d) {
      scores[t] += query[d] * static_cast<float>(Element<T>(1, first + t, d)) / std::sqrt(dim);
    }
    most = std::max(most, scores[t]);
  }
  for (uint64_t t = 0; t < shape.tokens; ++t) {
    const double p = std::exp(scores[t] - most);
    l += p;
    for (uint32_t d = 0; d < dim; ++d) o[d] += p * static_cast<float>(Element<T>(2, first + t, d));
  }
  for (uint32_t d = 0; d < dim; ++d) error = std::max(error, std::abs(output[d] - o[d] / l));
  return error;
}

struct Options {
  uint32_t heads = 32, kv_heads = 0, dim = 128, splits = 0, rounds = 20;
  uint64_t tokens = 65536;
  std::string dtype = "bf16";
};

template <typename T, uint32_t kDim>
iris::Status Run(const Options& options) {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 64 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t rank = ctx.rank, n_ranks = ctx.n_ranks;
  const uint32_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  if (options.heads % kv_heads != 0) {
    return {iris::StatusCode::kInvalidArgument, "--kv-heads must divide --heads"};
  }
  // As many blocks as four on each multiprocessor, unless they get too few tokens.
  const uint64_t blocks = 4 * uint64_t{iris::backend::MultiprocessorCount()};
  const uint64_t splits = std::min(blocks / options.heads, options.tokens / n_ranks / 64);
  IRIS_ASSIGN_OR_RETURN(const uint64_t chosen, context.BroadcastValue(splits, /*root=*/0));
  const uint64_t first = options.tokens * rank / n_ranks;
  const Shape shape = {options.heads,
                       kv_heads,
                       options.tokens,
                       first,
                       options.tokens * (rank + 1) / n_ranks - first,
                       options.splits != 0 ? options.splits : std::max<uint32_t>(1, chosen)};
  const uint32_t n_parts = n_ranks * shape.splits;

  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto slots, context.Allocate<Partial<kDim>>(
                                              2 * uint64_t{shape.heads} * n_parts, "partials"));
  IRIS_ASSIGN_OR_RETURN(const auto ready,
                        context.Allocate<uint64_t>(2 * uint64_t{shape.heads} * n_parts, "ready"));
  const uint64_t cache = std::max<uint64_t>(1, uint64_t{kv_heads} * shape.own * kDim);
  IRIS_ASSIGN_OR_RETURN(const auto k, iris::DeviceArray<T>::Create(context, cache));
  IRIS_ASSIGN_OR_RETURN(const auto v, iris::DeviceArray<T>::Create(context, cache));
  std::vector<T> queries(options.heads * kDim);
  for (uint32_t i = 0; i < queries.size(); ++i) queries[i] = Element<T>(0, i / kDim, i % kDim);
  IRIS_ASSIGN_OR_RETURN(const auto q, iris::DeviceArray<T>::Create(context, queries, stream));
  IRIS_ASSIGN_OR_RETURN(const auto out, iris::HostArray<float>::Create(context, queries.size()));
  IRIS_ASSIGN_OR_RETURN(const auto failed, iris::HostArray<uint32_t>::Create(context));
  const iris::LaunchConfig all = {.grid = static_cast<uint32_t>(blocks), .block = kThreads};
  IRIS_RETURN_IF_ERROR(iris::Launch(all, stream, Fill<T, kDim>, 1, k, shape));
  IRIS_RETURN_IF_ERROR(iris::Launch(all, stream, Fill<T, kDim>, 2, v, shape));

  IRIS_ASSIGN_OR_RETURN(iris::Event begin, iris::Event::Create(context));
  IRIS_ASSIGN_OR_RETURN(iris::Event end, iris::Event::Create(context));
  for (uint64_t round = 1; round <= options.rounds + 1; ++round) {  // the first is not measured
    if (round == 2) IRIS_RETURN_IF_ERROR(begin.Record(stream));
    const uint64_t at = round % 2 * shape.heads * n_parts;
    IRIS_RETURN_IF_ERROR(iris::Launch({.grid = shape.heads * shape.splits, .block = kThreads},
                                      stream, Decode<T, kDim>, ctx, q, k, v, shape,
                                      slots.get() + at, ready.get() + at, round));
    IRIS_RETURN_IF_ERROR(iris::Launch({.grid = shape.heads, .block = kThreads}, stream,
                                      Combine<kDim>, ctx, slots.get() + at, ready.get() + at,
                                      n_parts, round, out, failed));
  }
  IRIS_RETURN_IF_ERROR(end.Record(stream));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Health());  // a rank that died is named here
  if (*failed != 0) return {iris::StatusCode::kDeadlineExceeded, "a partial did not come in time"};
  IRIS_ASSIGN_OR_RETURN(const auto time, end.Since(begin));

  double error = 0;  // the ranks share the heads
  for (uint32_t head = rank; head < shape.heads; head += n_ranks) {
    error = std::max(error, Error<T>(shape, kDim, head, out + head * kDim));
  }
  if (!(error < 1e-4)) {
    return {iris::StatusCode::kInternal, "an element is wrong by " + std::to_string(error)};
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (rank == 0) {
    std::printf("%u heads of %u, %llu tokens in %s on %u ranks, %u splits on each: error %.1e\n",
                shape.heads, kDim, static_cast<unsigned long long>(shape.tokens),
                options.dtype.c_str(), n_ranks, shape.splits, error);
    std::printf("result ok figure %.1f us\n", time.count() / 1e3 / options.rounds);
  }
  return iris::Status();
}

int main(int argc, char** argv) {
  CLI::App app("Attention of one token to a cache that is split over the ranks.",
               "15_flash_decode");
  Options options;
  app.add_option("--heads", options.heads, "Of the queries [32]")->check(CLI::Range(1, 1024));
  app.add_option("--kv-heads", options.kv_heads, "Of the cache; divides the heads [as many]");
  app.add_option("--dim", options.dim, "Of a head: 64 or 128 [128]")
      ->check(CLI::IsMember({64, 128}));
  app.add_option("--tokens", options.tokens, "In the cache, all ranks together [65536]")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--splits", options.splits, "Blocks for a head on each rank [by the device]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds, "To measure [20]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--dtype", options.dtype, "Of queries and cache: bf16 or f16 [bf16]")
      ->check(CLI::IsMember({"bf16", "f16"}));
  CLI11_PARSE(app, argc, argv);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool half = options.dtype == "f16", wide = options.dim == 128;
  const iris::Status status =
      half ? (wide ? Run<iris::Half, 128>(options) : Run<iris::Half, 64>(options))
           : (wide ? Run<iris::Bfloat16, 128>(options) : Run<iris::Bfloat16, 64>(options));
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.message().c_str());
    std::printf("result failed %s\n", status.message().c_str());
  }
  return status.ok() ? 0 : 1;
}
