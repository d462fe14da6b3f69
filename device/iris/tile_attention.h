// Attention to keys and values, by a block: of one query (RowAttention) or of a tile of queries
// (TileAttention). Softmax is computed online, so tokens may come in parts, from anywhere.
//
//   using Attention = iris::TileAttention<iris::Bfloat16, 128>;
//   // A block of Attention::kThreads threads, launched with Attention::kSharedBytes.
//   Attention attention(iris::backend::DynamicShared());
//   attention.SetQueries(q + row * 128, n_rows - row);
//   for (...) attention.Add(keys, values, n_keys, n_keys);     // from as many places as there are
//   attention.Store({o, m, l}, /*divide=*/true);
//
// T is Half or Bfloat16; sums are float. Lines of queries, keys and values are kDim elements, one
// after another, and begin at multiples of 16 bytes; they may be in any memory from which the block
// can load, a peer's heap (Translate) included. Scores are divided by the root of kDim. Sums have a
// fixed order: the bits are the same in every run.
//
// Attention to a part of the tokens gives (o, m, l): the weighted sum of the values, the largest
// score in units of log2(e), and the sum of exp2(score - m). Parts can be merged; the result is o /
// l of all of them together.
//
// All threads of the block make all calls together, with the same arguments.
#pragma once

#include <cmath>
#include <cstdint>

#include "iris/backend/matrix.h"
#include "iris/backend/select.h"

namespace iris {

namespace impl {

inline constexpr uint32_t kAttentionPack = 8;  // elements of f16 or bf16 in 16 bytes
inline constexpr float kNoScore = -1e30f;      // less than any score

// Returns the factor for a score, so that exp2 of the product is exp(score / sqrt(kDim)).
template <uint32_t kDim>
IRIS_DEVICE inline float ScoreScale() {
  return 1.44269504f / sqrtf(static_cast<float>(kDim));
}

// Calls use(i, element) for the 8 elements from `from` on.
template <typename T, CacheHint kHint, typename Use>
IRIS_DEVICE inline void ForPack(const T* from, Use use) {
  const Bytes16 pack = backend::Load16<kHint>(from);
  IRIS_UNROLL(8)
  for (uint32_t i = 0; i < kAttentionPack; ++i) {
    use(i, T::FromBits(static_cast<uint16_t>((i < 4 ? pack.lo : pack.hi) >> i % 4 * 16)));
  }
}

}  // namespace impl

// The attention of a query to some of the tokens.
template <uint32_t kDim>
struct alignas(16) AttentionPart {
  float o[kDim];
  float m, l;
};

// Merges `n` parts in order. The block has at least kDim threads; `result` is valid after
// BlockSync.
template <uint32_t kDim>
IRIS_DEVICE inline void MergeParts(const AttentionPart<kDim>* parts, uint32_t n,
                                   AttentionPart<kDim>* result) {
  const uint32_t d = backend::ThreadIndex();
  if (d >= kDim) return;
  float m = impl::kNoScore, l = 0, o = 0;
  for (uint32_t i = 0; i < n; ++i) m = fmaxf(m, parts[i].m);
  for (uint32_t i = 0; i < n; ++i) {
    const float weight = exp2f(parts[i].m - m);
    l += weight * parts[i].l;
    o += weight * parts[i].o[d];
  }
  result->o[d] = o;
  if (d == 0) result->m = m;
  if (d == 0) result->l = l;
}

// The attention of one query, as for generating tokens. Its time is that of the loads.
template <typename T, uint32_t kDim>
class RowAttention {
  static constexpr uint32_t kPack = impl::kAttentionPack;
  static constexpr uint32_t kLanes = kDim / kPack;  // threads that share a token
  static constexpr uint32_t kUnroll = 4;            // tokens that a thread loads at once

 public:
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kGroups = kThreads / kLanes;  // tokens that the block works on at once
  static_assert(kDim == 64 || kDim == 128, "heads of 64 or 128 elements");

  // Computes the attention of `query` to n_tokens tokens; without tokens, o = 0 and l = 0. `shared`
  // has kGroups parts of the block, in use until the next BlockSync. After that, `result` is valid.
  IRIS_DEVICE static void Attend(const T* query, const T* keys, const T* values, uint64_t n_tokens,
                                 AttentionPart<kDim>* shared, AttentionPart<kDim>* result) {
    const uint32_t group = backend::ThreadIndex() / kLanes;
    const uint32_t at = backend::ThreadIndex() % kLanes * kPack;
    float q[kPack], o[kPack] = {}, m = impl::kNoScore, l = 0;
    Load(query + at, q);
    for (float& x : q) x *= impl::ScoreScale<kDim>();
    for (uint64_t first = 0; first < n_tokens; first += kGroups * kUnroll) {  // alike in all lanes
      float key[kUnroll][kPack], value[kUnroll][kPack], score[kUnroll];
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint64_t token = first + u * kGroups + group;
        const uint64_t line = (token < n_tokens ? token : n_tokens - 1) * kDim + at;
        Load(keys + line, key[u]);
        Load(values + line, value[u]);
      }
      float most = m;
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        score[u] = 0;
        for (uint32_t i = 0; i < kPack; ++i) score[u] += q[i] * key[u][i];
        for (uint32_t lane = kLanes / 2; lane > 0; lane /= 2) {
          score[u] += backend::ShuffleXor(score[u], lane);
        }
        if (first + u * kGroups + group >= n_tokens) score[u] = impl::kNoScore;
        most = fmaxf(most, score[u]);
      }
      const float scale = exp2f(m - most);
      m = most;
      l *= scale;
      for (float& x : o) x *= scale;
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const float p = score[u] > impl::kNoScore ? exp2f(score[u] - m) : 0;
        l += p;
        for (uint32_t i = 0; i < kPack; ++i) o[i] += p * value[u][i];
      }
    }
    for (uint32_t i = 0; i < kPack; ++i) shared[group].o[at + i] = o[i];
    if (at == 0) shared[group].m = m;
    if (at == 0) shared[group].l = l;
    backend::BlockSync();
    MergeParts(shared, kGroups, result);
  }

 private:
  IRIS_DEVICE static void Load(const T* from, float (&to)[kPack]) {
    impl::ForPack<T, CacheHint::kStreaming>(
        from, [&](uint32_t i, T element) { to[i] = static_cast<float>(element); });
  }
};

// Attention of a tile of queries, by the device's matrix instruction.
template <typename T, uint32_t kDim>
class TileAttention {
  using Unit = backend::MatrixUnit<T>;
  using Entry = typename Unit::Element;  // what the unit reads from shared memory
  static constexpr uint32_t kPack = impl::kAttentionPack;
  static constexpr uint32_t kWarpRows = 16;  // of a warp
  static_assert(Unit::kRows == kWarpRows && kDim % Unit::kDepth == 0 && kDim % kPack == 0);

 public:
  static constexpr uint32_t kRows = 64;  // queries of a tile
  static constexpr uint32_t kKeys = 32;  // keys that the block works on at once
  static constexpr uint32_t kThreads = kRows / kWarpRows * backend::Traits::kWarpThreads;

 private:
  struct Shared {  // lines begin at multiples of 16 bytes, in different banks
    Entry q[kRows][kDim + kPack];
    Entry k[kKeys][kDim + kPack];
    Entry v[kDim][kKeys + kPack];  // transposed: the unit takes the right matrix by columns
    float scores[kRows][kKeys + 4];
    float scale[kRows];
  };
  static constexpr uint32_t kLanes =
      backend::Traits::kWarpThreads / kWarpRows;  // of a row's scores
  static constexpr uint32_t kEach = kKeys / kLanes;
  static constexpr uint32_t kAcross = kDim / Unit::kColumns;
  static constexpr uint32_t kKeysAcross = kKeys / Unit::kColumns;

 public:
  // The bytes of dynamic shared memory that a block needs, aligned to 16.
  static constexpr uint32_t kSharedBytes = sizeof(Shared);

  // The state of a tile in memory. Each pointer is to the tile's first row; other rows follow.
  struct State {
    float* o;  // [rows][kDim]
    float* m;  // [rows]
    float* l;  // [rows]
  };

  // Uses `shared`, which no other code may use while the object lives.
  IRIS_DEVICE explicit TileAttention(void* shared) : shared_(*static_cast<Shared*>(shared)) {}

  // Begins a tile of up to kRows lines of `queries`. Syncs first, so that Resume sees stores.
  IRIS_DEVICE void SetQueries(const T* queries, uint32_t n_rows) {
    backend::BlockSync();  // the queries before have been read
    n_rows_ = n_rows;
    m_ = impl::kNoScore;
    l_ = 0;
    for (uint32_t i = backend::ThreadIndex(); i < kRows * kDim / kPack; i += kThreads) {
      const uint32_t row = i * kPack / kDim, d = i * kPack % kDim;
      LoadPack(queries, row, n_rows, d, &shared_.q[row][d]);
    }
    IRIS_UNROLL(16)
    for (uint32_t j = 0; j < kAcross; ++j) {
      IRIS_UNROLL(8)
      for (uint32_t v = 0; v < Unit::kValues; ++v) o_[j][v] = 0;
    }
  }

  // Continues from a state that Store has written without dividing.
  IRIS_DEVICE void Resume(const State& state) {
    if (MyRow() < n_rows_) {
      m_ = state.m[MyRow()];
      l_ = state.l[MyRow()];
    }
    IRIS_UNROLL(16)
    for (uint32_t j = 0; j < kAcross; ++j) {
      IRIS_UNROLL(8)
      for (uint32_t v = 0; v < Unit::kValues; ++v) {
        if (RowOf(v) < n_rows_) o_[j][v] = state.o[AtOf(j, v)];
      }
    }
  }

  // Adds n_keys tokens. Row r of the queries sees the first `seen` + r tokens (a causal diagonal),
  // or all tokens if `seen` is n_keys.
  IRIS_DEVICE void Add(const T* keys, const T* values, uint32_t n_keys, uint32_t seen) {
    const uint32_t end = seen < n_keys && seen + kRows - 1 < n_keys ? seen + kRows - 1 : n_keys;
    for (uint32_t key = 0; key < end; key += kKeys) {
      backend::BlockSync();  // the keys and values before have been read
      for (uint32_t i = backend::ThreadIndex(); i < kKeys * kDim / kPack; i += kThreads) {
        const uint32_t row = i * kPack / kDim, at = i * kPack % kDim;
        LoadPack(keys, key + row, n_keys, at, &shared_.k[row][at]);
        // Neighbouring threads have neighbouring columns, so that they store to different banks.
        const uint32_t column = i % kKeys, d = i / kKeys * kPack;
        Entry eight[kPack];
        LoadPack(values, key + column, n_keys, d, eight);
        for (uint32_t x = 0; x < kPack; ++x) shared_.v[d + x][column] = eight[x];
      }
      backend::BlockSync();
      Score();
      Weigh(key, seen < n_keys ? seen + MyRow() : n_keys, n_keys);
      AddValues();
    }
  }

  // Writes the state; with `divide`, writes the result o / l. A row without tokens gets zeros.
  IRIS_DEVICE void Store(const State& state, bool divide) {
    const bool first_lane = backend::LaneIndex() % kLanes == 0;
    backend::WarpSync();  // the scales have been read
    if (first_lane) shared_.scale[MyRow()] = !divide ? 1 : l_ > 0 ? 1 / l_ : 0;
    backend::WarpSync();
    IRIS_UNROLL(16)
    for (uint32_t j = 0; j < kAcross; ++j) {
      IRIS_UNROLL(8)
      for (uint32_t v = 0; v < Unit::kValues; ++v) {
        if (RowOf(v) < n_rows_) state.o[AtOf(j, v)] = o_[j][v] * shared_.scale[RowOf(v)];
      }
    }
    if (first_lane && MyRow() < n_rows_) {
      state.m[MyRow()] = m_;
      state.l[MyRow()] = l_;
    }
  }

 private:
  IRIS_DEVICE static uint32_t WarpRow() { return backend::WarpIndex() * kWarpRows; }
  // Returns the row for which this thread has a part of the scores.
  IRIS_DEVICE static uint32_t MyRow() { return WarpRow() + backend::LaneIndex() / kLanes; }
  // Return the row of value v of o, and the index of its element (j, v) in the tile.
  IRIS_DEVICE static uint32_t RowOf(uint32_t v) { return WarpRow() + Unit::RowOf(v); }
  IRIS_DEVICE static uint64_t AtOf(uint32_t j, uint32_t v) {
    return uint64_t{RowOf(v)} * kDim + j * Unit::kColumns + Unit::ColumnOf(v);
  }

  // Loads element `at` of a line and the 7 after it for the unit, with zeros past the end.
  IRIS_DEVICE static void LoadPack(const T* lines, uint32_t line, uint32_t end, uint32_t at,
                                   Entry* to) {
    if (line < end) {
      impl::ForPack<T, CacheHint::kDefault>(
          lines + uint64_t{line} * kDim + at,
          [&](uint32_t i, T element) { to[i] = Unit::Convert(element); });
    } else {
      for (uint32_t i = 0; i < kPack; ++i) to[i] = Unit::Convert(T(0.0f));
    }
  }

  // Multiplies this warp's queries with the keys.
  IRIS_DEVICE void Score() {
    float product[kKeysAcross][Unit::kValues] = {};
    for (uint32_t d = 0; d < kDim; d += Unit::kDepth) {
      const auto a = Unit::LoadA(&shared_.q[WarpRow()][d], kDim + kPack);
      IRIS_UNROLL(4)
      for (uint32_t j = 0; j < kKeysAcross; ++j) {
        const auto b = Unit::LoadB(&shared_.k[j * Unit::kColumns][d], kDim + kPack);
        Unit::MultiplyAdd(a, b, product[j]);
      }
    }
    IRIS_UNROLL(4)
    for (uint32_t j = 0; j < kKeysAcross; ++j) {
      IRIS_UNROLL(8)
      for (uint32_t v = 0; v < Unit::kValues; ++v) {
        shared_.scores[RowOf(v)][j * Unit::kColumns + Unit::ColumnOf(v)] = product[j][v];
      }
    }
    backend::WarpSync();
  }

  // Replaces scores by weights. This thread's row sees keys `key` to `seen` - 1.
  IRIS_DEVICE void Weigh(uint32_t key, uint32_t seen, uint32_t n_keys) {
    const uint32_t row = MyRow(), first = backend::LaneIndex() % kLanes * kEach;
    float score[kEach], most = m_, sum = 0;
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t j = key + first + i;
      score[i] = shared_.scores[row][first + i] * impl::ScoreScale<kDim>();
      if (j >= n_keys || j >= seen) score[i] = impl::kNoScore;
      most = fmaxf(most, score[i]);
    }
    for (uint32_t lane = kLanes / 2; lane > 0; lane /= 2) {
      most = fmaxf(most, backend::ShuffleXor(most, lane));
    }
    backend::WarpSync();  // all have read their scores, and weights take their place
    Entry* const weights = reinterpret_cast<Entry*>(shared_.scores[row]);
    for (uint32_t i = 0; i < kEach; ++i) {
      const T weight(score[i] > impl::kNoScore ? exp2f(score[i] - most) : 0.0f);
      weights[first + i] = Unit::Convert(weight);
      sum += static_cast<float>(weight);
    }
    for (uint32_t lane = kLanes / 2; lane > 0; lane /= 2) {
      sum += backend::ShuffleXor(sum, lane);
    }
    const float scale = exp2f(m_ - most);
    if (first == 0) shared_.scale[row] = scale;
    l_ = l_ * scale + sum;
    m_ = most;
    backend::WarpSync();
  }

  // Computes o = o * scale + weights * values.
  IRIS_DEVICE void AddValues() {
    constexpr uint32_t kStride = sizeof(shared_.scores[0]) / sizeof(Entry);
    const Entry* const weights = reinterpret_cast<const Entry*>(shared_.scores[WarpRow()]);
    IRIS_UNROLL(16)
    for (uint32_t j = 0; j < kAcross; ++j) {
      IRIS_UNROLL(8)
      for (uint32_t v = 0; v < Unit::kValues; ++v) o_[j][v] *= shared_.scale[RowOf(v)];
    }
    for (uint32_t x = 0; x < kKeys; x += Unit::kDepth) {
      const auto a = Unit::LoadA(weights + x, kStride);
      IRIS_UNROLL(16)
      for (uint32_t j = 0; j < kAcross; ++j) {
        const auto b = Unit::LoadB(&shared_.v[j * Unit::kColumns][x], kKeys + kPack);
        Unit::MultiplyAdd(a, b, o_[j]);
      }
    }
  }

  Shared& shared_;
  float o_[kAcross][Unit::kValues];
  float m_, l_;  // of MyRow
  uint32_t n_rows_ = 0;
};

}  // namespace iris
