// Attention by a block (tile_attention.h), against sums in double: tiles that are full, ragged and
// of one row, causal masks, tokens in parts and of a peer, and no tokens at all.
//
// The bounds, stated once. Values are at most 1. TileAttention rounds each weight to T, by `step`
// of it at most, in the sum of the values and in l alike: a result is off by 2 * step, l by step
// of itself. kSums is for the sums in float, which are all that RowAttention rounds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "iris/tile_attention.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr double kSums = 3e-5;
constexpr float kUntouched = 77;

// Tokens that are added together: how many, and how many of them the first row of all sees, if
// not all; each row behind it sees one more.
struct Part {
  uint32_t n_keys;
  uint32_t seen;
};
constexpr uint32_t kAll = ~uint32_t{0};
constexpr uint32_t kMaxParts = 3;

struct Case {
  uint32_t n_rows = 1;
  uint32_t n_parts = 1;
  Part parts[kMaxParts] = {};
  uint32_t resumes = 0;  // not 0: what was found is in memory between the parts
};

std::string Name(const Case& c) {
  std::string name = std::to_string(c.n_rows) + " rows" + (c.resumes != 0 ? ", resumed" : "");
  for (uint32_t i = 0; i < c.n_parts; ++i) {
    name += ", " + std::to_string(c.parts[i].n_keys) + " keys";
    if (c.parts[i].seen != kAll) name += " from " + std::to_string(c.parts[i].seen);
  }
  return name;
}

// A tile for each block. The tokens are those of `peer`.
template <typename T, uint32_t kDim>
IRIS_KERNEL IRIS_KERNEL_BOUNDS((TileAttention<T, kDim>::kThreads),
                               1) void AttendTiles(DeviceContext ctx, uint32_t peer, Case c,
                                                   const T* queries, const T* keys, const T* values,
                                                   float* o, float* m, float* l) {
  using Attention = TileAttention<T, kDim>;
  const uint32_t row = backend::BlockIndex() * Attention::kRows;
  const typename Attention::State state = {o + row * kDim, m + row, l + row};
  Attention attention(backend::DynamicShared());
  attention.SetQueries(queries + row * kDim, c.n_rows - row);
  uint64_t at = 0;
  for (uint32_t i = 0; i < c.n_parts; ++i) {
    const Part part = c.parts[i];
    const uint32_t seen = part.seen == kAll ? part.n_keys : part.seen + row;
    attention.Add(Translate(ctx, peer, keys) + at, Translate(ctx, peer, values) + at, part.n_keys,
                  seen);
    at += uint64_t{part.n_keys} * kDim;
    if (c.resumes != 0 && i + 1 < c.n_parts) {
      attention.Store(state, /*divide=*/false);
      attention.SetQueries(queries + row * kDim, c.n_rows - row);
      attention.Resume(state);
    }
  }
  attention.Store(state, /*divide=*/true);
}

// A query for each block, and each part by itself; then they are merged.
template <typename T, uint32_t kDim>
IRIS_KERNEL void AttendRows(DeviceContext ctx, uint32_t peer, Case c, const T* queries,
                            const T* keys, const T* values, float* o, float* m, float* l) {
  using Attention = RowAttention<T, kDim>;
  IRIS_SHARED(AttentionPart<kDim>[Attention::kGroups], shared);
  IRIS_SHARED(AttentionPart<kDim>[kMaxParts + 1], parts);
  const uint32_t row = backend::BlockIndex(), d = backend::ThreadIndex();
  uint64_t at = 0;
  for (uint32_t i = 0; i < c.n_parts; ++i) {
    Attention::Attend(queries + row * kDim, Translate(ctx, peer, keys) + at,
                      Translate(ctx, peer, values) + at, c.parts[i].n_keys, &shared[0], &parts[i]);
    at += uint64_t{c.parts[i].n_keys} * kDim;
    backend::BlockSync();
  }
  AttentionPart<kDim>* const all = &parts[kMaxParts];
  MergeParts(&parts[0], c.n_parts, all);
  backend::BlockSync();
  if (d < kDim) o[row * kDim + d] = all->l > 0 ? all->o[d] / all->l : 0;
  if (d == 0) m[row] = all->m;
  if (d == 0) l[row] = all->l;
}

// Element i of what `kind` says: a number of [-1, 1], of queries of [-4, 4].
enum Kind : uint32_t { kQueries, kKeys, kValues };
template <typename T>
std::vector<T> Lines(Kind kind, uint32_t rank, uint64_t n) {
  std::vector<T> lines(n);
  for (uint64_t i = 0; i < n; ++i) {
    uint64_t x = (i * 3 + kind) * 64 + rank + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    const float value = static_cast<float>(x >> 44) / (1 << 19) - 1.0f;
    lines[i] = T(kind == kQueries ? 4 * value : value);
  }
  return lines;
}

struct Found {
  std::vector<double> o;
  double m = 0, l = 0;
};

// What row `row` finds.
template <typename T, uint32_t kDim>
Found Reference(const Case& c, uint32_t row, const std::vector<T>& queries,
                const std::vector<T>& keys, const std::vector<T>& values) {
  std::vector<uint32_t> visible;
  uint32_t first = 0;
  for (uint32_t i = 0; i < c.n_parts; ++i) {
    const Part& part = c.parts[i];
    for (uint32_t k = 0; k < part.n_keys; ++k) {
      if (part.seen == kAll || k < part.seen + row) visible.push_back(first + k);
    }
    first += part.n_keys;
  }
  Found found;
  found.o.resize(kDim);
  std::vector<double> scores;
  for (const uint32_t k : visible) {
    double score = 0;
    for (uint32_t d = 0; d < kDim; ++d) {
      score += static_cast<double>(static_cast<float>(queries[row * kDim + d])) *
               static_cast<float>(keys[k * kDim + d]);
    }
    scores.push_back(score / std::sqrt(kDim) / std::log(2.0));
  }
  if (visible.empty()) return found;
  found.m = *std::max_element(scores.begin(), scores.end());
  for (size_t i = 0; i < visible.size(); ++i) {
    const double weight = std::exp2(scores[i] - found.m);
    found.l += weight;
    for (uint32_t d = 0; d < kDim; ++d) {
      found.o[d] += weight * static_cast<float>(values[visible[i] * kDim + d]);
    }
  }
  for (double& x : found.o) x /= found.l;
  return found;
}

// Each rank has the queries, and the next one the tokens.
template <typename T, uint32_t kDim>
void Check(const std::vector<Case>& cases, bool tiles) {
  using Attention = TileAttention<T, kDim>;
  const double step = !tiles ? 0 : std::is_same_v<T, Half> ? 1.0 / 2048 : 1.0 / 256;
  World(2, 4 << 20).Run([&](Rank& rank) {
    constexpr uint64_t kMaxLines = 256;
    T* const lines[] = {rank.New<T>(kMaxLines * kDim), rank.New<T>(kMaxLines * kDim),
                        rank.New<T>(kMaxLines * kDim)};
    std::vector<T> written[3];
    for (const Kind kind : {kQueries, kKeys, kValues}) {
      rank.Write(lines[kind], Lines<T>(kind, rank.rank(), kMaxLines * kDim));
      written[kind] =
          Lines<T>(kind, kind == kQueries ? rank.rank() : rank.next(), kMaxLines * kDim);
    }
    float* const o = rank.New<float>(kMaxLines * kDim);
    float* const m = rank.New<float>(kMaxLines);
    float* const l = rank.New<float>(kMaxLines);
    const Result prepared = backend::PrepareKernel(AttendTiles<T, kDim>, Attention::kSharedBytes);
    ASSERT_TRUE(prepared.ok()) << prepared.what;
    rank.HostBarrier();
    for (const Case& c : cases) {
      SCOPED_TRACE(Name(c));
      for (float* const x : {o, m, l}) {
        rank.Write(x, std::vector<float>(x == o ? kMaxLines * kDim : kMaxLines, kUntouched));
      }
      const T *const q = lines[kQueries], *const k = lines[kKeys], *const v = lines[kValues];
      if (tiles) {
        const uint32_t blocks = (c.n_rows + Attention::kRows - 1) / Attention::kRows;
        rank.Launch({blocks, Attention::kThreads, Attention::kSharedBytes}, AttendTiles<T, kDim>,
                    rank.ctx, rank.next(), c, q, k, v, o, m, l);
      } else {
        rank.Launch({c.n_rows, RowAttention<T, kDim>::kThreads}, AttendRows<T, kDim>, rank.ctx,
                    rank.next(), c, q, k, v, o, m, l);
      }
      const std::vector<float> got_o = rank.Read(o, kMaxLines * kDim);
      const std::vector<float> got_m = rank.Read(m, kMaxLines);
      const std::vector<float> got_l = rank.Read(l, kMaxLines);
      for (uint32_t row = 0; row < c.n_rows; ++row) {
        const Found found =
            Reference<T, kDim>(c, row, written[kQueries], written[kKeys], written[kValues]);
        ASSERT_NEAR(got_l[row], found.l, found.l * (step + kSums)) << "row " << row;
        if (found.l > 0) {
          ASSERT_NEAR(got_m[row], found.m, 8 * kSums) << "row " << row;
        }
        for (uint32_t d = 0; d < kDim; ++d) {
          ASSERT_NEAR(got_o[row * kDim + d], found.o[d], found.l > 0 ? 2 * step + kSums : 0)
              << "row " << row << ", element " << d;
        }
      }
      for (uint64_t i = uint64_t{c.n_rows} * kDim; i < got_o.size(); ++i) {
        ASSERT_EQ(got_o[i], kUntouched) << "element " << i << " is no row's";
      }
    }
    rank.HostBarrier();
  });
}

// Rows and keys around the edges of a tile and of what it works on at once.
std::vector<Case> Cases() {
  return {{1, 1, {{1, kAll}}},
          {1, 1, {{100, kAll}}},
          {64, 1, {{32, kAll}}},
          {63, 1, {{33, kAll}}},
          {65, 1, {{31, kAll}}},
          {130, 2, {{64, kAll}, {7, kAll}}},
          // Nothing, and nothing in front of something.
          {65, 1, {{0, kAll}}},
          {5, 2, {{0, kAll}, {40, kAll}}},
          {5, 3, {{40, kAll}, {0, kAll}, {1, kAll}}}};
}
// The same, with what was found in memory between the parts, and with masks.
std::vector<Case> TileCases() {
  std::vector<Case> cases = Cases();
  const std::vector<Case> more = {
      {130, 2, {{64, kAll}, {7, kAll}}, 1},
      {70, 3, {{33, kAll}, {0, kAll}, {50, kAll}}, 1},
      // The diagonal: with the own token, without it (the first row sees nothing), and from a
      // later token on; in a part behind another one, too.
      {130, 1, {{130, 1}}},
      {70, 1, {{70, 0}}},
      {33, 1, {{100, 60}}},
      {1, 1, {{64, 1}}},
      {70, 2, {{40, kAll}, {70, 1}}, 1},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

TEST(TileAttentionTest, Bfloat16By128) { Check<Bfloat16, 128>(TileCases(), true); }
TEST(TileAttentionTest, HalfBy128) { Check<Half, 128>(TileCases(), true); }
TEST(TileAttentionTest, HalfBy64) { Check<Half, 64>(TileCases(), true); }
TEST(RowAttentionTest, Bfloat16By128) { Check<Bfloat16, 128>(Cases(), false); }
TEST(RowAttentionTest, HalfBy64) { Check<Half, 64>(Cases(), false); }

}  // namespace
}  // namespace iris::conformance
