// RowPart: the norm of the calling block's part of a row, for the kernels of several variants.
//
// The units of a part are 16 bytes each, at most, and a thread keeps its units in registers from
// the sums to the stores. A kernel goes through a part in three steps: Prefetch; Add, for each unit
// whose sum it has made; and Finish.
//
// The work on a unit is many instructions, so a loop over a thread's units has them once instead of
// once per unit. Registers cannot be indexed, so the loop works on the first register, and rotates
// all of them by one place in each iteration (Turn). Only loads are unrolled, so that all of them
// are in flight at once.
#pragma once

#include <cmath>
#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/norm/impl/fp8.h"
#include "iris/norm/norm.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/lines.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"
#include "iris/share.h"

namespace iris::norm::impl {

using ccl::Operation;
using ccl::impl::Common;
using ccl::impl::Min;
using ccl::impl::Rounds;
using ccl::impl::RoundUp;

// The most units that a thread keeps. Receiving packets and lines needs many registers, and such
// calls have few rows, which many blocks share anyway.
inline constexpr uint32_t kKeptOneShot = 2;
inline constexpr uint32_t kKeptTwoShot = 4;
inline constexpr uint32_t kMaxParts = ccl::impl::kMaxPartners;
inline constexpr uint32_t kMaxThreads = ccl::kMaxThreads;
// Returns the most bytes of a row that a block has.
constexpr uint32_t MaxPartBytes(uint32_t kept) { return kept * kMaxThreads * 16; }
inline constexpr uint32_t kMaxGroups = MaxPartBytes(kKeptTwoShot) / 2 / kGroupColumns;
// Rows or groups whose largest magnitude is below this are not scaled.
inline constexpr float kLeastScaled = 0x1p-100f;

struct NormCall {
  const uint8_t* in;
  const uint8_t* residual;  // null: none
  uint8_t* residual_out;
  const uint8_t* weight;  // null: none
  uint8_t* out;
  const float* scale;
  float* scales;
  uint64_t partners_offset_bytes;  // in every heap
  // Columns from one row to the next.
  uint64_t in_stride;
  uint64_t residual_stride;
  uint64_t residual_out_stride;
  uint64_t out_stride;
  uint32_t rows;
  uint32_t hidden;
  uint32_t blocks;  // of the call; kAlone may have more than Common can count
  uint32_t parts;
  uint32_t part_columns;
  float epsilon;
  float weight_offset;
  DType out_type;
  DType weight_type;
  Scaling scaling;
  bool lets_next_begin;  // kAlone: the next kernel may begin while this one runs
};

// Returns the columns of each part except the last. No group of columns is in two parts.
IRIS_HOST_DEVICE constexpr uint64_t PartColumns(uint64_t hidden, uint32_t parts) {
  return RoundUp((hidden + parts - 1) / parts, kGroupColumns);
}
// SlotBytes returns the bytes of a part in a stage: its columns, and its scales (ScaleBytes).
IRIS_HOST_DEVICE constexpr uint64_t ScaleBytes(uint64_t columns) {
  return RoundUp((columns + kGroupColumns - 1) / kGroupColumns * sizeof(float), 16);
}
IRIS_HOST_DEVICE constexpr uint64_t SlotBytes(uint64_t columns, uint64_t element_bytes) {
  return RoundUp(columns * element_bytes, 16) + ScaleBytes(columns);
}

// Rows that a block of kTwoLines works on at once, for which it has words.
IRIS_HOST_DEVICE constexpr uint32_t RowsOfTwoLines(uint32_t members) {
  return members <= 2 ? 2 : members <= 4 ? 4 : ccl::impl::kMaxLineMembers;
}

// Shared by the threads of a block.
struct NormShared {
  float warps[kMaxThreads / backend::Traits::kWarpThreads];
  float partners[kMaxParts];
  uint32_t groups[kMaxGroups];
};

// A thread's unit in its k-th pass. It begins `at` bytes after the part's beginning, and `bytes` of
// its bytes exist. `active` is true if the thread, or in lines any thread of the warp, has a unit.
struct UnitPlace {
  uint64_t at;
  uint32_t bytes;
  bool active;
};
struct PlainUnits {
  static constexpr bool kWhole = true;  // all units except the last have 16 bytes
  IRIS_DEVICE UnitPlace operator()(uint32_t k, uint64_t part_bytes) const {
    const uint64_t at = (backend::ThreadIndex() + uint64_t{k} * backend::BlockSize()) * 16;
    const uint64_t left = at < part_bytes ? part_bytes - at : 0;
    return {at, static_cast<uint32_t>(Min(left, 16)), left != 0};
  }
};
// The units of a warp in lines: those of its k-th step.
struct LineUnits {
  static constexpr bool kWhole = false;
  ccl::impl::LineLane lane;
  IRIS_DEVICE uint64_t Step(uint32_t k) const {
    return backend::WarpIndex() + uint64_t{k} * ccl::impl::Warps();
  }
  IRIS_DEVICE UnitPlace operator()(uint32_t k, uint64_t part_bytes) const {
    const uint64_t begin = Step(k) * ccl::impl::LineLane::kStepBytes;
    const uint64_t at = begin + lane.offset_bytes;
    const uint64_t left = at < part_bytes ? part_bytes - at : 0;
    return {at, static_cast<uint32_t>(Min(left, lane.has_flag ? 8 : 16)), begin < part_bytes};
  }
};

// Loads up to 16 bytes at any element, with zeros after them.
template <typename T>
IRIS_DEVICE inline Bytes16 LoadUnit(const uint8_t* p, uint32_t bytes) {
  if (bytes == 16 && (reinterpret_cast<uint64_t>(p) & 15) == 0) {
    return backend::Load16<CacheHint::kDefault>(p);
  }
  Bytes16 value;
  if (bytes != 0) value.lo = ccl::impl::LoadWord<T>(p, bytes);
  if (bytes > 8) value.hi = ccl::impl::LoadWord<T>(p + 8, bytes - 8);
  return value;
}
template <typename T>
IRIS_DEVICE inline void StoreUnit(uint8_t* p, uint32_t bytes, Bytes16 value) {
  if (bytes == 16 && (reinterpret_cast<uint64_t>(p) & 15) == 0) {
    backend::Store16<CacheHint::kDefault>(p, value);
    return;
  }
  if (bytes != 0) ccl::impl::StoreWord<T>(p, bytes, value.lo);
  if (bytes > 8) ccl::impl::StoreWord<T>(p + 8, bytes - 8, value.hi);
}
// Rotates the registers: the first unit becomes the last.
template <uint32_t kKept>
IRIS_DEVICE inline void Turn(Bytes16 (&units)[kKept]) {
  const Bytes16 first = units[0];
  IRIS_UNROLL(8)
  for (uint32_t k = 0; k + 1 < kKept; ++k) units[k] = units[k + 1];
  units[kKept - 1] = first;
}

// Stores up to eight numbers of one byte.
IRIS_DEVICE inline void StoreNarrow(uint8_t* p, uint32_t bytes, uint64_t word) {
  if (bytes == 4 && (reinterpret_cast<uint64_t>(p) & 3) == 0) {
    backend::StorePlain(reinterpret_cast<uint32_t*>(p), static_cast<uint32_t>(word));
  } else if (bytes != 0) {
    ccl::impl::StoreWord<uint8_t>(p, bytes, word);
  }
}

IRIS_DEVICE inline float LoadWeight(const uint8_t* p, DType type, uint64_t i) {
  if (type == DType::kF32) return backend::LoadPlain(reinterpret_cast<const float*>(p) + i);
  if (type == DType::kF16) {
    return static_cast<float>(backend::LoadPlain(reinterpret_cast<const Half*>(p) + i));
  }
  return static_cast<float>(backend::LoadPlain(reinterpret_cast<const Bfloat16*>(p) + i));
}

// Returns the scale of a row or group with this largest magnitude.
IRIS_DEVICE inline float ScaleOf(DType out_type, float magnitude) {
  return magnitude < kLeastScaled ? 1.0f : magnitude / LargestOf(out_type);
}
// Convert values to fp8, the first one in the lowest byte; values of f32 to f16 or bf16.
template <uint32_t kCount>
IRIS_DEVICE inline uint64_t Fp8Word(DType type, const float* values, float inverse) {
  static_assert(kCount <= 8);
  uint64_t word = 0;
  IRIS_UNROLL(8)
  for (uint32_t e = 0; e < kCount; ++e) {
    word |= static_cast<uint64_t>(Fp8Bits(type, values[e] * inverse)) << 8 * e;
  }
  return word;
}
IRIS_DEVICE inline uint64_t HalvesWord(DType type, const float* values) {
  uint64_t word = 0;
  IRIS_UNROLL(4)
  for (uint32_t e = 0; e < 4; ++e) {
    const uint64_t bits =
        type == DType::kF16 ? backend::HalfBitsOf(values[e]) : backend::BfloatBitsOf(values[e]);
    word |= bits << 16 * e;
  }
  return word;
}

// The block's part of a row. A thread keeps up to kKept units of it.
template <typename T, typename Units, uint32_t kKept>
class RowPart {
 public:
  static constexpr uint32_t kElements = 16 / sizeof(T);
  static constexpr DType kType = DTypeOf<T>();
  using Pack = ccl::impl::Pack<T, kElements>;
  using Sum = ccl::impl::Sum<T, kElements>;

  IRIS_DEVICE RowPart(const NormCall& call, const Common& common, Rounds* rounds,
                      NormShared* shared, const Units& units)
      : call_(call), common_(common), rounds_(rounds), shared_(shared), units_(units) {
    group_ = ccl::impl::BlockOf(common) / call.parts;
    part_ = ccl::impl::BlockOf(common) % call.parts;
    first_column_ = uint64_t{part_} * call.part_columns;
    columns_ = Min(call.part_columns, call.hidden - first_column_);
    has_weights_ = call.weight != nullptr && call.weight_type == kType;
  }
  // Loads the weights, which are the same for all rows, before the first Finish.
  IRIS_DEVICE void KeepWeights() {
    if constexpr (kKeepsWeights) {
      if (has_weights_) {
        Load(call_.weight + first_column_ * sizeof(T), weights_, nullptr, nullptr);
      }
    }
  }

  // This block has each `groups()`-th row from `group()` on.
  IRIS_DEVICE uint64_t group() const { return group_; }
  IRIS_DEVICE uint64_t groups() const { return ccl::impl::GridOf(common_) / call_.parts; }
  IRIS_DEVICE uint64_t columns() const { return columns_; }
  IRIS_DEVICE uint64_t bytes() const { return columns_ * sizeof(T); }
  IRIS_DEVICE UnitPlace Place(uint32_t k) const { return units_(k, bytes()); }
  // Returns the byte at which this part of a row begins if rows are `stride` columns apart.
  IRIS_DEVICE uint64_t At(uint64_t row, uint64_t stride, uint64_t element_bytes) const {
    return (row * stride + first_column_) * element_bytes;
  }
  // Groups and OwnGroups return how many scales a row and this part of it have; ScaleAt returns the
  // index of this part's first one.
  IRIS_DEVICE uint64_t Groups() const {
    return call_.scaling == Scaling::kPerGroup ? (call_.hidden + kGroupColumns - 1) / kGroupColumns
                                               : 1;
  }
  IRIS_DEVICE uint64_t OwnGroups() const {
    return call_.scaling == Scaling::kPerGroup ? (columns_ + kGroupColumns - 1) / kGroupColumns
           : part_ == 0                        ? 1
                                               : 0;
  }
  IRIS_DEVICE uint64_t ScaleAt(uint64_t row) const {
    const uint64_t first =
        call_.scaling == Scaling::kPerGroup ? first_column_ / kGroupColumns : uint64_t{0};
    return row * Groups() + first;
  }
  IRIS_DEVICE uint64_t OutBytes() const {
    return call_.scaling != Scaling::kNone ? 1 : call_.out_type == kType ? sizeof(T) : 2;
  }

  // Calls each(k, place) for each of this thread's units of the part. During that call, Add, Take
  // and Unit refer to the k-th unit.
  template <typename Each>
  IRIS_DEVICE void ForUnits(Each each) {
    IRIS_UNROLL(1)
    for (uint32_t k = 0; k < kKept; ++k) {
      const UnitPlace place = Place(k);
      if (place.active) each(k, place);
      Turn(kept_);
      if constexpr (kKeepsWeights) Turn(weights_);
    }
  }

  // Loads the inputs of Add early. `residual` is this part of the row's residual, or null.
  IRIS_DEVICE void Prefetch(const uint8_t* residual) {
    squares_ = 0;
    has_residual_ = residual != nullptr;
    if (has_residual_) Load(residual, kept_, nullptr, nullptr);
  }
  // Like the above, but also loads this thread's units of this part of `in` to `own`.
  IRIS_DEVICE void Prefetch(const uint8_t* residual, const uint8_t* in, Bytes16 (&own)[kKept]) {
    squares_ = 0;
    has_residual_ = residual != nullptr;
    Load(in, own, residual, kept_);
  }

  // Adds the residual to `sum`, the sum of the unit over the ranks, and passes the result to Take.
  // Also stores it to `residual_out`, this part of the row's residual_out, unless that is null.
  IRIS_DEVICE void Add(const UnitPlace& place, Sum sum, uint8_t* residual_out) {
    if (has_residual_) {
      const Pack more = iris::impl::BitCast<Pack>(kept_[0]);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        sum.values[e] += static_cast<float>(more.values[e]);
      }
    }
    Pack pack;
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) pack.values[e] = static_cast<T>(sum.values[e]);
    Take(place, iris::impl::BitCast<Bytes16>(pack));
    if (residual_out != nullptr) StoreUnit<T>(residual_out + place.at, place.bytes, kept_[0]);
  }
  // Sets the unit of r, and adds the squares of its values to the sum.
  IRIS_DEVICE void Take(const UnitPlace& place, Bytes16 unit) {
    kept_[0] = unit;
    const Pack pack = iris::impl::BitCast<Pack>(unit);
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) {
      const float x = static_cast<float>(pack.values[e]);
      if (e * sizeof(T) < place.bytes) squares_ += x * x;
    }
  }
  IRIS_DEVICE Bytes16 Unit() const { return kept_[0]; }

  // Norms the row after all threads have called Add or Take for their units, and stores this part
  // to out_at(p) and its scales to scales_at(p) for each p below `n_places`. Returns false on
  // failure, which is recorded; the same in all threads. Contains a block sync.
  template <typename OutAt, typename ScalesAt>
  IRIS_DEVICE bool Finish(uint32_t n_places, OutAt out_at, ScalesAt scales_at) {
    float squares = 0;
    if (!Combine<false>(SumOfBlock(), &squares)) return false;
    const float mean = squares / static_cast<float>(call_.hidden);
    const float factor = 1.0f / ::sqrtf(mean + call_.epsilon);
    float scale = 1;
    if (call_.scaling == Scaling::kStatic) {
      scale = backend::LoadPlain(call_.scale);
    } else if (call_.scaling != Scaling::kNone) {
      if (!Magnitudes(factor, &scale)) return false;
      for (uint64_t i = backend::ThreadIndex(); i < OwnGroups(); i += backend::BlockSize()) {
        const float mine = call_.scaling == Scaling::kPerRow ? scale : GroupScale(i);
        for (uint32_t p = 0; p < n_places; ++p) backend::StorePlain(scales_at(p) + i, mine);
      }
    }
    ForUnits([&](uint32_t, const UnitPlace& place) {
      if (place.bytes == 0) return;
      float values[kElements];
      Normed(place, factor, values);
      if (call_.scaling != Scaling::kNone) {
        StoreScaled(place, values, scale, n_places, out_at);
        return;
      }
      if constexpr (sizeof(T) == 4) {
        if (call_.out_type != kType) {
          StoreHalves(place, values, n_places, out_at);
          return;
        }
      }
      Pack pack;
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) pack.values[e] = static_cast<T>(values[e]);
      for (uint32_t p = 0; p < n_places; ++p) {
        StoreUnit<T>(out_at(p) + place.at, place.bytes, iris::impl::BitCast<Bytes16>(pack));
      }
    });
    return true;
  }

 private:
  // Stores the unit's values as fp8.
  template <typename OutAt>
  IRIS_DEVICE void StoreScaled(const UnitPlace& place, const float* values, float scale,
                               uint32_t n_places, OutAt out_at) const {
    if (call_.scaling == Scaling::kPerGroup) {
      scale = GroupScale(place.at / sizeof(T) / kGroupColumns);
    }
    const uint64_t word = Fp8Word<kElements>(call_.out_type, values, 1.0f / scale);
    for (uint32_t p = 0; p < n_places; ++p) {
      StoreNarrow(out_at(p) + place.at / sizeof(T), place.bytes / sizeof(T), word);
    }
  }
  // Stores the unit's four values of f32 as f16 or bf16.
  template <typename OutAt>
  IRIS_DEVICE void StoreHalves(const UnitPlace& place, const float* values, uint32_t n_places,
                               OutAt out_at) const {
    const uint64_t word = HalvesWord(call_.out_type, values);
    for (uint32_t p = 0; p < n_places; ++p) {
      ccl::impl::StoreWord<uint16_t>(out_at(p) + place.at / 2, place.bytes / 2, word);
    }
  }

  // Loads this thread's units of a part of a row, and of another row unless `other` is null. If all
  // units have 16 bytes, one condition covers all loads, which are then consecutive in the machine
  // code. Otherwise each unit has branches of its own, which load it at once or by words; the words
  // are assembled, and thus awaited, before the next unit's branches begin.
  IRIS_DEVICE void Load(const uint8_t* row, Bytes16 (&units)[kKept], const uint8_t* other,
                        Bytes16* others) const {
    const uint64_t bits =
        reinterpret_cast<uint64_t>(row) | reinterpret_cast<uint64_t>(other) | bytes();
    const UnitPlace first = Place(0);
    if (Units::kWhole && bits % 16 == 0 && first.bytes != 0) {
      // A thread without more units loads the first one again.
      uint64_t at[kKept];
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) at[k] = Place(k).bytes != 0 ? Place(k).at : first.at;
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) {
        units[k] = backend::Load16<CacheHint::kDefault>(row + at[k]);
      }
      if (other == nullptr) return;
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) {
        others[k] = backend::Load16<CacheHint::kDefault>(other + at[k]);
      }
      return;
    }
    IRIS_UNROLL(4)
    for (uint32_t k = 0; k < kKept; ++k) {
      const UnitPlace place = Place(k);
      units[k] = place.bytes != 0 ? LoadUnit<T>(row + place.at, place.bytes) : Bytes16{};
      if (other == nullptr) continue;
      others[k] = place.bytes != 0 ? LoadUnit<T>(other + place.at, place.bytes) : Bytes16{};
    }
  }

  IRIS_DEVICE Bytes16 WeightUnit(const UnitPlace& place) const {
    if (!has_weights_ || place.bytes == 0) return {};
    return LoadUnit<T>(call_.weight + first_column_ * sizeof(T) + place.at, place.bytes);
  }
  IRIS_DEVICE void Normed(const UnitPlace& place, float factor, float* values) const {
    const Pack pack = iris::impl::BitCast<Pack>(kept_[0]);
    const Pack weights = iris::impl::BitCast<Pack>(kKeepsWeights ? weights_[0] : WeightUnit(place));
    const uint64_t first = first_column_ + place.at / sizeof(T);
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) {
      float weight = 1;
      if (has_weights_) {
        weight = static_cast<float>(weights.values[e]);
      } else if (call_.weight != nullptr && e * sizeof(T) < place.bytes) {
        weight = LoadWeight(call_.weight, call_.weight_type, first + e);
      }
      if (call_.weight != nullptr) weight += call_.weight_offset;
      values[e] = static_cast<float>(pack.values[e]) * factor * weight;
    }
  }

  IRIS_DEVICE float GroupScale(uint64_t group) const {
    return ScaleOf(
        call_.out_type,
        numeric::FloatOf(backend::Load<Scope::kBlock, Order::kRelaxed>(&shared_->groups[group])));
  }

  // Finds the largest magnitude of the row, for `*scale`, or of each group of columns. Magnitudes
  // are compared as integers, by their bits: a NaN exceeds all numbers.
  IRIS_DEVICE bool Magnitudes(float factor, float* scale) {
    const bool row = call_.scaling == Scaling::kPerRow;
    const uint64_t n = row ? 1 : OwnGroups();
    for (uint64_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) {
      backend::Store<Scope::kBlock, Order::kRelaxed>(&shared_->groups[i], 0u);
    }
    iris::impl::SyncInsideBlock();
    uint32_t of_row = 0;
    ForUnits([&](uint32_t, const UnitPlace& place) {
      if (place.bytes == 0) return;
      float values[kElements];
      Normed(place, factor, values);
      uint32_t most = 0;
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        const uint32_t bits = numeric::BitsOf(values[e]) & 0x7fffffffu;
        if (e * sizeof(T) < place.bytes && bits > most) most = bits;
      }
      if (row) {
        of_row = most > of_row ? most : of_row;
      } else {
        Raise(place.at / sizeof(T) / kGroupColumns, most);
      }
    });
    if (row) Raise(0, of_row);
    iris::impl::SyncInsideBlock();
    if (!row) return true;
    float most =
        numeric::FloatOf(backend::Load<Scope::kBlock, Order::kRelaxed>(&shared_->groups[0]));
    if (!Combine<true>(most, &most)) return false;
    *scale = ScaleOf(call_.out_type, most);
    return true;
  }
  IRIS_DEVICE void Raise(uint64_t group, uint32_t bits) {
    (void)backend::FetchOp<AtomicOp::kMax, Scope::kBlock, Order::kRelaxed>(&shared_->groups[group],
                                                                           bits);
  }

  // Returns the block's sum of squares, added in a fixed order: the lanes of each warp, then the
  // warps. Only full warps have values.
  IRIS_DEVICE float SumOfBlock() {
    float sum = squares_;
    for (uint32_t mask = backend::WarpSize() / 2; mask != 0; mask /= 2) {
      sum += backend::ShuffleXor(sum, mask);
    }
    if (backend::LaneIndex() == 0) backend::StorePlain(&shared_->warps[backend::WarpIndex()], sum);
    iris::impl::SyncInsideBlock();
    const uint32_t n = (backend::BlockSize() + backend::WarpSize() - 1) / backend::WarpSize();
    float total = 0;
    for (uint32_t w = 0; w < n; ++w) total += backend::LoadPlain(&shared_->warps[w]);
    return total;
  }

  // Computes the sum, or the largest, of the numbers of the blocks that share the row. A word is
  // nonzero once its number has arrived; its reader zeroes it. Calls alternate between two sets of
  // words: a partner writes a word again only after the call between, to which this block came
  // after it had zeroed the word. Returns false on failure, which is recorded.
  template <bool kLargest>
  IRIS_DEVICE bool Combine(float mine, float* result) {
    *result = mine;
    if (call_.parts == 1) {
      iris::impl::SyncInsideBlock();  // no thread still reads shared memory
      return rounds_->Settle();
    }
    const auto words = [this](uint32_t part) {
      return iris::AtOffset<uint32_t>(common_.context, common_.context.rank,
                                      call_.partners_offset_bytes + (group_ * call_.parts + part) *
                                                                        ccl::impl::kPartnerBytes) +
             turn_ * kMaxParts;
    };
    for (uint32_t p = backend::ThreadIndex(); p < call_.parts; p += backend::BlockSize()) {
      if (p == part_) {
        backend::StorePlain(&shared_->partners[p], mine);
        continue;
      }
      backend::Store<Scope::kDevice, Order::kRelaxed>(words(p) + part_,
                                                      (numeric::BitsOf(mine) & 0x7fffffffu) + 1);
    }
    for (uint32_t p = backend::ThreadIndex(); p < call_.parts; p += backend::BlockSize()) {
      if (p == part_) continue;
      uint32_t* const word = words(part_) + p;
      uint32_t seen = 0;
      const bool came = rounds_->Await(common_.index, [word, &seen] {
        seen = backend::Load<Scope::kDevice, Order::kRelaxed>(word);
        return seen != 0;
      });
      if (!came) break;
      backend::Store<Scope::kDevice, Order::kRelaxed>(word, 0u);
      backend::StorePlain(&shared_->partners[p], numeric::FloatOf(seen - 1));
    }
    turn_ ^= 1;
    iris::impl::SyncInsideBlock();
    if (!rounds_->Settle()) return false;
    float total = backend::LoadPlain(&shared_->partners[0]);
    for (uint32_t p = 1; p < call_.parts; ++p) {
      const float next = backend::LoadPlain(&shared_->partners[p]);
      if constexpr (kLargest) {
        total = numeric::BitsOf(next) > numeric::BitsOf(total) ? next : total;
      } else {
        total += next;
      }
    }
    *result = total;
    iris::impl::SyncInsideBlock();  // before partners are written again
    return true;
  }

  const NormCall& call_;
  const Common& common_;
  Rounds* rounds_;
  NormShared* shared_;
  const Units units_;  // a copy: with a reference the two objects would not be in registers
  uint64_t group_;
  uint32_t part_;
  uint64_t first_column_;
  uint64_t columns_;
  uint32_t turn_ = 0;
  bool has_residual_ = false;
  bool has_weights_ = false;
  float squares_ = 0;
  Bytes16 kept_[kKept];
  // Registers do not suffice for the weights of more units.
  static constexpr bool kKeepsWeights = kKept <= kKeptOneShot;
  Bytes16 weights_[kKeepsWeights ? kKept : 1] = {};
};

}  // namespace iris::norm::impl
