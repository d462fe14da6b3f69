// 16: ring attention. The sequence is split over the ranks; keys and values travel around the ring
// while every rank computes with those that it has.
//
//   iris-run -n 4 -- bazel-bin/examples/16_ring_attention --tokens 32768 --causal
//
//   step s on rank r, whose queries stay:
//
//        rank r - 1                   rank r                        rank r + 1
//     K, V of r - 1 - s  ------>  K, V of rank r - s   ------->  K, V of r + 1 - s
//      put + signal        |      into ring[s % 2]        |
//                          |   Attend: some blocks send what this step computes with on to rank
//                          |   r + 1, all others add it to (o, m, l) of their queries
//                          v
//                       ring[s % 2] is what step s + 1 computes with and sends
//
// What to see: Begin, a kernel of one block before each step, tells rank r - 1 that step s - 1 is
// over here, so that its put may overwrite ring[s % 2], and waits for what rank r - 1 has put in
// step s - 1. So no block that computes ever waits. Token t belongs to rank t % n_ranks: with
// --causal, every rank then has about half of the pairs in every step.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using iris::Block;
using iris::Compare;
using iris::WaitResult;
using iris::backend::BlockIndex;
using iris::backend::ThreadIndex;

using T = iris::Bfloat16;
using Unit = iris::backend::MatrixUnit<T>;  // a warp's products of matrices; loops on emu
using Entry = Unit::Element;                // what it reads from shared memory

constexpr uint32_t kDim = 128;  // of a head
constexpr uint32_t kRows = 64;  // queries of a block, 16 for each of its warps
constexpr uint32_t kKeys = 32;  // that it works on at once
constexpr uint32_t kThreads = kRows / Unit::kRows * iris::backend::WarpSize();
constexpr uint32_t kSenders = 8;  // blocks
constexpr uint32_t kPack = 8;     // elements in 16 bytes
constexpr float kNoScore = -1e30f;
static_assert(Unit::kRows == 16);

struct Shared {  // of a block; lines begin at multiples of 16 bytes, in different banks
  Entry q[kRows][kDim + kPack];
  Entry k[kKeys][kDim + kPack];
  Entry v[kDim][kKeys + kPack];  // transposed: the unit takes the right matrix by columns
  float scores[kRows][kKeys + 4];
  float scale[kRows];
};

struct Problem {
  uint32_t heads, tokens;  // tokens: of each rank
  bool causal;
  const T* q;              // [heads][tokens][kDim]
  const T* home;           // this rank's [keys, values][heads][tokens][kDim]
  T* ring[2];              // the same, of other ranks
  float* o;                // [heads][tokens][kDim]
  float* m;                // [heads][tokens]: the largest score so far, and behind them the sums
  uint64_t *begun, *came;  // signals: steps that the next rank has begun; blocks' puts that came
  uint64_t* failed;        // not 0: somebody did not come in time
};

// An element of what = 0: queries, 1: keys, 2: values. The host computes the same for the check.
IRIS_HOST_DEVICE inline T Element(uint32_t what, uint64_t line, uint32_t d) {
  uint64_t x = (line * 1024 + d) * 4 + what + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  const float value = static_cast<float>(static_cast<int32_t>(x >> 44)) / (1 << 19) - 1.0f;
  return T(what == 0 ? 4 * value : value);
}

IRIS_KERNEL void Fill(iris::DeviceContext ctx, uint32_t what, T* to, uint32_t heads,
                      uint32_t tokens) {
  const uint32_t line = BlockIndex(), head = line / tokens, token = line % tokens;
  const uint64_t global = (uint64_t{head} * tokens + token) * ctx.n_ranks + ctx.rank;
  for (uint32_t d = ThreadIndex(); d < kDim; d += kThreads) {
    to[uint64_t{line} * kDim + d] = Element(what, global, d);
  }
}

// One block. `step` counts over all rounds, and `puts` is how many have to have come before it.
IRIS_KERNEL void Begin(iris::DeviceContext ctx, Problem problem, uint64_t step, uint64_t puts) {
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  if (ThreadIndex() == 0) iris::SignalSet(ctx, previous, problem.begun, step + 1);
  if (iris::Test(problem.failed, Compare::kNe, 0)) return;
  if (iris::WaitUntil(ctx, problem.came, Compare::kGe, puts, Block{}) == WaitResult::kOk) return;
  if (ThreadIndex() == 0) iris::SignalSet(ctx, ctx.rank, problem.failed, 1);
}

// A block's share of the keys and values that this step computes with, to the next rank.
IRIS_DEVICE inline void Send(const iris::DeviceContext& ctx, const Problem& problem, const T* from,
                             T* to, uint64_t step) {
  if (iris::Test(problem.failed, Compare::kNe, 0)) return;
  if (iris::WaitUntil(ctx, problem.begun, Compare::kGt, step, Block{}) != WaitResult::kOk) {
    if (ThreadIndex() == 0) iris::SignalSet(ctx, ctx.rank, problem.failed, 1);
    return;
  }
  const uint64_t lines = uint64_t{2} * problem.heads * problem.tokens;
  const uint64_t first = lines * BlockIndex() / kSenders * kDim;
  const uint64_t end = lines * (BlockIndex() + 1) / kSenders * kDim;
  iris::PutSignal(ctx, (ctx.rank + 1) % ctx.n_ranks, to + first, from + first, end - first,
                  {problem.came, 1, iris::SignalOp::kAdd}, Block{});
}

// Element at of line `line`, and the 7 behind it, as the unit reads them; zeros behind the end.
IRIS_DEVICE inline void Load8(const T* lines, uint32_t line, uint32_t end, uint32_t at, Entry* to) {
  iris::Bytes16 pack;
  if (line < end) {
    pack = iris::backend::Load16<iris::CacheHint::kDefault>(lines + uint64_t{line} * kDim + at);
  }
  IRIS_UNROLL(8)
  for (uint32_t i = 0; i < kPack; ++i) {
    const uint64_t word = i < 4 ? pack.lo : pack.hi;
    to[i] = Unit::Convert(T::FromBits(static_cast<uint16_t>(word >> i % 4 * 16)));
  }
}

// One step. The first n_senders blocks send; each other one has kRows queries of a head, whose
// attention to the keys and values in `from`, those of rank `owner`, it adds to what it has.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void Attend(iris::DeviceContext ctx, Problem problem,
                                                        const T* from, T* to, uint64_t step,
                                                        uint32_t owner, uint32_t n_senders,
                                                        bool first, bool last) {
  if (BlockIndex() < n_senders) return Send(ctx, problem, from, to, step);
  Shared& shared = *static_cast<Shared*>(iris::backend::DynamicShared());
  constexpr uint32_t kLanes = iris::backend::WarpSize() / 16;  // that share a row of scores
  constexpr uint32_t kEach = kKeys / kLanes;
  constexpr uint32_t kAcross = kDim / Unit::kColumns, kKeysAcross = kKeys / Unit::kColumns;
  const uint32_t tokens = problem.tokens, tiles = (tokens + kRows - 1) / kRows;
  const uint32_t block = BlockIndex() - n_senders, head = block / tiles;
  const uint32_t first_row = (tiles - 1 - block % tiles) * kRows;  // the longest come first
  const uint32_t warp_row = iris::backend::WarpIndex() * 16;
  const uint32_t my_row = warp_row + iris::backend::LaneIndex() / kLanes;
  const uint64_t head_at = uint64_t{head} * tokens, line = head_at + first_row + my_row;
  const T* keys = from + head_at * kDim;
  const T* values = keys + uint64_t{problem.heads} * tokens * kDim;
  // Query i of this rank sees key j of the owner: j + shift <= i.
  const uint32_t shift = owner > ctx.rank ? 1 : 0;
  const uint32_t end =
      problem.causal && first_row + kRows - shift < tokens ? first_row + kRows - shift : tokens;
  for (uint32_t i = ThreadIndex(); i < kRows * kDim / kPack; i += kThreads) {
    const uint32_t row = i * kPack / kDim, d = i * kPack % kDim;
    Load8(problem.q + head_at * kDim, first_row + row, tokens, d, &shared.q[row][d]);
  }
  float o[kAcross][Unit::kValues], m = kNoScore, l = 0;
  const auto at = [&](uint32_t j, uint32_t v) {
    return (head_at + first_row + warp_row + Unit::RowOf(v)) * kDim + j * Unit::kColumns +
           Unit::ColumnOf(v);
  };
  const auto exists = [&](uint32_t v) { return first_row + warp_row + Unit::RowOf(v) < tokens; };
  float* const sums = problem.m + uint64_t{problem.heads} * tokens;
  if (!first && first_row + my_row < tokens) {
    m = problem.m[line];
    l = sums[line];
  }
  for (uint32_t j = 0; j < kAcross; ++j) {
    for (uint32_t v = 0; v < Unit::kValues; ++v) {
      o[j][v] = !first && exists(v) ? problem.o[at(j, v)] : 0;
    }
  }

  for (uint32_t key = 0; key < end; key += kKeys) {
    iris::backend::BlockSync();  // what was there has been read
    for (uint32_t i = ThreadIndex(); i < kKeys * kDim / kPack; i += kThreads) {
      const uint32_t row = i * kPack / kDim, at_d = i * kPack % kDim;
      Load8(keys, key + row, tokens, at_d, &shared.k[row][at_d]);
      // Neighbouring threads have neighbouring columns, so that they store to different banks.
      const uint32_t column = i % kKeys, d = i / kKeys * kPack;
      Entry eight[kPack];
      Load8(values, key + column, tokens, d, eight);
      for (uint32_t x = 0; x < kPack; ++x) shared.v[d + x][column] = eight[x];
    }
    iris::backend::BlockSync();

    float product[kKeysAcross][Unit::kValues] = {};
    for (uint32_t d = 0; d < kDim; d += Unit::kDepth) {
      const auto a = Unit::LoadA(&shared.q[warp_row][d], kDim + kPack);
      IRIS_UNROLL(4)
      for (uint32_t j = 0; j < kKeysAcross; ++j) {
        const auto b = Unit::LoadB(&shared.k[j * Unit::kColumns][d], kDim + kPack);
        Unit::MultiplyAdd(a, b, product[j]);
      }
    }
    IRIS_UNROLL(4)
    for (uint32_t j = 0; j < kKeysAcross; ++j) {
      for (uint32_t v = 0; v < Unit::kValues; ++v) {
        shared.scores[warp_row + Unit::RowOf(v)][j * Unit::kColumns + Unit::ColumnOf(v)] =
            product[j][v];
      }
    }
    iris::backend::WarpSync();

    float score[kEach], most = m, sum = 0;
    const uint32_t first_key = iris::backend::LaneIndex() % kLanes * kEach;
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t j = key + first_key + i;
      const bool seen = j < tokens && (!problem.causal || j + shift <= first_row + my_row);
      score[i] = shared.scores[my_row][first_key + i] * (1.44269504f / sqrtf(float{kDim}));
      if (!seen) score[i] = kNoScore;
      most = fmaxf(most, score[i]);
    }
    for (uint32_t lane = kLanes / 2; lane > 0; lane /= 2) {
      most = fmaxf(most, iris::backend::ShuffleXor(most, lane));
    }
    iris::backend::WarpSync();  // all have read their scores, and weights take their place
    Entry* const weights = reinterpret_cast<Entry*>(shared.scores[my_row]);
    for (uint32_t i = 0; i < kEach; ++i) {
      const T weight(score[i] > kNoScore ? exp2f(score[i] - most) : 0.0f);
      weights[first_key + i] = Unit::Convert(weight);
      sum += static_cast<float>(weight);
    }
    for (uint32_t lane = kLanes / 2; lane > 0; lane /= 2) {
      sum += iris::backend::ShuffleXor(sum, lane);
    }
    if (first_key == 0) shared.scale[my_row] = exp2f(m - most);
    l = l * exp2f(m - most) + sum;
    m = most;
    iris::backend::WarpSync();

    constexpr uint32_t kStride = sizeof(shared.scores[0]) / (sizeof(Entry));
    const Entry* const rows = reinterpret_cast<const Entry*>(shared.scores[warp_row]);
    IRIS_UNROLL(16)
    for (uint32_t j = 0; j < kAcross; ++j) {
      for (uint32_t v = 0; v < Unit::kValues; ++v) {
        o[j][v] *= shared.scale[warp_row + Unit::RowOf(v)];
      }
    }
    for (uint32_t x = 0; x < kKeys; x += Unit::kDepth) {
      const auto a = Unit::LoadA(rows + x, kStride);
      IRIS_UNROLL(16)
      for (uint32_t j = 0; j < kAcross; ++j) {
        const auto b = Unit::LoadB(&shared.v[j * Unit::kColumns][x], kKeys + kPack);
        Unit::MultiplyAdd(a, b, o[j]);
      }
    }
  }

  const bool first_lane = iris::backend::LaneIndex() % kLanes == 0;
  iris::backend::WarpSync();  // the scales have been read
  if (first_lane) shared.scale[my_row] = last ? 1 / l : 1;
  iris::backend::WarpSync();
  for (uint32_t j = 0; j < kAcross; ++j) {
    for (uint32_t v = 0; v < Unit::kValues; ++v) {
      if (exists(v)) problem.o[at(j, v)] = o[j][v] * shared.scale[warp_row + Unit::RowOf(v)];
    }
  }
  if (first_lane && first_row + my_row < tokens) {
    problem.m[line] = m;
    sums[line] = l;
  }
}

// The largest error of this rank's output in `n_rows` of its rows, by sums in double.
double Error(const iris::DeviceContext& ctx, const Problem& problem, const std::vector<float>& o,
             uint64_t n_rows) {
  const uint64_t lines = uint64_t{problem.heads} * problem.tokens;
  const uint64_t all = uint64_t{problem.tokens} * ctx.n_ranks;
  double error = 0;
  for (uint64_t i = 0; i < std::min(n_rows, lines); ++i) {
    const uint64_t row = n_rows < lines ? i * lines / n_rows : i;
    const uint64_t head = row / problem.tokens, query = row * ctx.n_ranks + ctx.rank;
    const uint64_t end = problem.causal ? query - head * all + 1 : all;
    std::vector<double> scores(end), sums(kDim);
    double most = kNoScore, l = 0;
    for (uint64_t j = 0; j < end; ++j) {
      for (uint32_t d = 0; d < kDim; ++d) {
        scores[j] += static_cast<double>(static_cast<float>(Element(0, query, d))) *
                     static_cast<float>(Element(1, head * all + j, d)) / std::sqrt(kDim);
      }
      most = std::max(most, scores[j]);
    }
    for (uint64_t j = 0; j < end; ++j) {
      const double p = std::exp(scores[j] - most);
      l += p;
      for (uint32_t d = 0; d < kDim; ++d) {
        sums[d] += p * static_cast<float>(Element(2, head * all + j, d));
      }
    }
    for (uint32_t d = 0; d < kDim; ++d) {
      error = std::max(error, std::abs(o[row * kDim + d] - sums[d] / l));
    }
  }
  return error;
}

struct Options {
  uint32_t heads = 32, tokens = 32768, rounds = 5, check = 32;
  bool causal = false;
};

// Puts a round on the stream: with the ring, or all of its computing alone.
iris::Status PutRound(iris::Stream& stream, const iris::DeviceContext& ctx, const Problem& problem,
                      uint64_t round, bool alone) {
  const uint32_t tiles = (problem.tokens + kRows - 1) / kRows, n_ranks = ctx.n_ranks;
  for (uint32_t s = 0; s < n_ranks; ++s) {
    const uint64_t step = round * n_ranks + s, arrivals = round * (n_ranks - 1) + s;
    if (!alone) {
      IRIS_RETURN_IF_ERROR(iris::Launch({.grid = 1, .block = kThreads}, stream, Begin, ctx, problem,
                                        step, arrivals * kSenders));
    }
    const T* from = s == 0 || alone ? problem.home : problem.ring[(s - 1) % 2];
    const uint32_t n_senders = alone || s + 1 == n_ranks ? 0 : kSenders;
    IRIS_RETURN_IF_ERROR(iris::Launch({.grid = n_senders + problem.heads * tiles,
                                       .block = kThreads,
                                       .shared_bytes = sizeof(Shared)},
                                      stream, Attend, ctx, problem, from, problem.ring[s % 2], step,
                                      (ctx.rank + n_ranks - s) % n_ranks, n_senders, s == 0,
                                      s + 1 == n_ranks));
  }
  return iris::Status();
}

iris::Status Run(const Options& options) {
  const uint64_t all = uint64_t{2} * options.heads * options.tokens * kDim;  // keys and values
  IRIS_ASSIGN_OR_RETURN(iris::Context context,
                        iris::Context::Create({.heap_bytes = all * 4 + (16 << 20)}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t n_ranks = ctx.n_ranks;
  if (options.tokens % n_ranks != 0) {
    return {iris::StatusCode::kInvalidArgument,
            "--tokens must be a multiple of the " + std::to_string(n_ranks) + " ranks"};
  }
  const uint32_t tokens = options.tokens / n_ranks, lines = options.heads * tokens;
  const uint64_t part = all / n_ranks;
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto ring, context.Allocate<T>(2 * part, "ring"));
  IRIS_ASSIGN_OR_RETURN(const auto signals, context.Allocate<uint64_t>(3, "signals"));
  IRIS_ASSIGN_OR_RETURN(const auto q, iris::DeviceArray<T>::Create(context, part / 2));
  IRIS_ASSIGN_OR_RETURN(const auto home, iris::DeviceArray<T>::Create(context, part));
  IRIS_ASSIGN_OR_RETURN(const auto o, iris::DeviceArray<float>::Create(context, part / 2));
  IRIS_ASSIGN_OR_RETURN(const auto m, iris::DeviceArray<float>::Create(context, 2 * lines));
  const Problem problem = {options.heads,
                           tokens,
                           options.causal,
                           q,
                           home,
                           {ring.get(), ring.get() + part},
                           o,
                           m,
                           signals.get(),
                           signals.get() + 1,
                           signals.get() + 2};
  T* const filled[] = {q, home, home + part / 2};
  for (uint32_t what = 0; what < 3; ++what) {
    IRIS_RETURN_IF_ERROR(iris::Launch({.grid = lines, .block = kThreads}, stream, Fill, ctx, what,
                                      filled[what], options.heads, tokens));
  }
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Begin));
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Attend, sizeof(Shared)));
  double us[2];
  for (const bool alone : {true, false}) {
    IRIS_ASSIGN_OR_RETURN(iris::Event begin, iris::Event::Create(context));
    IRIS_ASSIGN_OR_RETURN(iris::Event end, iris::Event::Create(context));
    for (uint64_t round = 0; round <= options.rounds; ++round) {  // the first is not measured
      if (round == 1) IRIS_RETURN_IF_ERROR(begin.Record(stream));
      IRIS_RETURN_IF_ERROR(PutRound(stream, ctx, problem, round, alone));
    }
    IRIS_RETURN_IF_ERROR(end.Record(stream));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    IRIS_RETURN_IF_ERROR(context.Health());  // a rank that died is named here
    IRIS_RETURN_IF_ERROR(context.Barrier());
    IRIS_ASSIGN_OR_RETURN(const auto time, end.Since(begin));
    us[alone] = time.count() / 1e3 / options.rounds;
  }
  uint64_t failed = 0;
  std::vector<float> output(part / 2);
  IRIS_RETURN_IF_ERROR(stream.Copy(&failed, problem.failed, sizeof(failed)));
  IRIS_RETURN_IF_ERROR(stream.Copy(output.data(), o, o.bytes()));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  if (failed != 0) {
    return {iris::StatusCode::kDeadlineExceeded, "keys and values did not come in time"};
  }
  // The weights are rounded to bf16, by one part in 512 at most; the values are at most 1.
  const double error = Error(ctx, problem, output, options.check);
  if (!(error < 1.0 / 256)) {
    return {iris::StatusCode::kInternal, "an element is wrong by " + std::to_string(error)};
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (ctx.rank == 0) {
    std::printf("%u heads of %u, %u tokens%s on %u ranks: error %.1e\n", options.heads, kDim,
                options.tokens, options.causal ? ", causal," : "", n_ranks, error);
    std::printf("%.1f us, of which computing alone takes %.1f us, %.0f %%\n", us[false], us[true],
                100 * us[true] / us[false]);
    std::printf("result ok figure %.1f us\n", us[false]);
  }
  return iris::Status();
}

int main(int argc, char** argv) {
  CLI::App app("Attention whose keys and values travel around a ring of ranks.",
               "16_ring_attention");
  Options options;
  app.add_option("--heads", options.heads, "Each of 128 [32]")->check(CLI::Range(1, 1024));
  app.add_option("--tokens", options.tokens, "Of all ranks together, which divide it [32768]")
      ->check(CLI::Range(1, 1 << 22));
  app.add_flag("--causal", options.causal, "No token sees a later one");
  app.add_option("--rounds", options.rounds, "To measure [5]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--check", options.check, "Rows that each rank compares [32]");
  CLI11_PARSE(app, argc, argv);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run(options);
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.message().c_str());
    std::printf("result failed %s\n", status.message().c_str());
  }
  return status.ok() ? 0 : 1;
}
