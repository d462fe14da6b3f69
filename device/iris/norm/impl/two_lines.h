// kTwoLines: each rank reduces its share of the rows and sends r of them to all other ranks, as
// lines; every rank norms all rows. It is between the one-shot variants, which send each row to all
// ranks, and kTwoShot, whose rounds wait for everything that a block sends.
//
// The l-th rows of all ranks' shares go through the blocks of a group at once. A thread has one
// unit of each of these rows, in these steps:
//
//   send its unit of the others' rows       -> the lines of the rows' owners
//   receive the others' units of its row    -> sum, residual: r -> the lines of all ranks
//   receive r of the others' rows
//   add the squares of all these rows at once, in the block, then over the blocks that share the
//     rows; meanwhile store r of the rows   -> residual_out
//   apply the factors and the weights       -> out
//
// Each rank sends lines to each other rank in both rounds, even if its share has no l-th row. So a
// round ends when all ranks have arrived at it (see protocol.h), and all detect a missing rank.
//
// Such a kernel runs through its code once and fetches it from memory, so more code takes longer.
// So calls with only complete, aligned units have kernels of their own. In the other kernels the
// work on the unit of each row is a loop whose registers rotate, as in row.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/norm/impl/row.h"
#include "iris/norm/impl/whole_rows.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/lines.h"
#include "iris/rounds/protocol.h"

namespace iris::norm::impl {

// Shared by the threads of a block, which works on one row of each member at a time.
struct TwoLinesShared {
  float warps[ccl::impl::kMaxLineMembers][kMaxThreads / backend::Traits::kWarpThreads];
  float partners[kMaxParts];  // of each part of each row
  float factors[ccl::impl::kMaxLineMembers];
};

// The kernel's work, for teams of up to N members. kWhole: HasWholeUnits.
template <typename T, uint32_t N, bool kWhole>
class TwoLines {
 public:
  static constexpr uint32_t kElements = 16 / sizeof(T);
  static constexpr DType kType = DTypeOf<T>();
  using Pack = ccl::impl::Pack<T, kElements>;
  using Polls = iris::impl::Polls;

  IRIS_DEVICE TwoLines(const Common& common, const NormCall& call, TwoLinesShared* shared)
      : common_(common), call_(call), shared_(shared) {
    const uint32_t block = ccl::impl::BlockOf(common);
    group_ = block / call.parts;
    part_ = block % call.parts;
    groups_ = ccl::impl::GridOf(common) / call.parts;
    first_column_ = part_ * call.part_columns;
    const uint32_t columns =
        static_cast<uint32_t>(Min(call.part_columns, call.hidden - first_column_));
    place_ = units_(0, columns * sizeof(T));
    each_ = call.rows / common.size;
    longer_ = call.rows % common.size;
  }

  IRIS_INLINED void Run(ccl::impl::SharedState* state) {
    const uint32_t most = each_ + (longer_ != 0 ? 1 : 0);
    uint32_t l = group_;
    // The first loads are issued together with the load of the epoch.
    LoadRows(l);
    LoadWeights();
    Rounds rounds(common_, state, ccl::impl::BlockOf(common_));
    rounds.AwaitReadersOfLines();
    const float scale = !kWhole && call_.scaling == Scaling::kStatic
                            ? 1.0f / backend::LoadPlain(call_.scale)
                            : 1.0f;
    for (; !rounds.broken() && l < most; l += groups_) {
      rounds.Advance();
      ForRows([&](uint32_t k, Bytes16 unit) {
        if (k != 0 && k < common_.size && place_.active) Send(rounds, k, unit);
      });
      // After this sync all threads have read the epoch, and shared memory is cleared.
      iris::impl::SyncInsideBlock();
      // Calls that differ must be noticed before waiting for data that will not come.
      if (common_.check != 0) {
        rounds.SendCalls(false);
        if (!rounds.ReceiveCalls<Polls::kSmall>()) break;
      }
      bool whole = !place_.active || ReduceOwn(&rounds);
      rounds.Advance();
      whole = whole && place_.active && GiveAndTake(&rounds);
      if (!Factors(&rounds, whole, l)) break;
      Norm(l, scale);
      if (l + groups_ < most) {
        iris::impl::SyncInsideBlock();  // shared memory is no longer read
        LoadRows(l + groups_);
      } else {
        rounds.Finish();
      }
    }
    rounds.Conclude();
  }

 private:
  IRIS_INLINED uint32_t Rotated(uint32_t step) const {
    const uint32_t member = common_.index + step;
    return member < common_.size ? member : member - common_.size;
  }
  // Finds the l-th row of member m's share. Returns false if the share has fewer rows.
  IRIS_INLINED bool RowOf(uint32_t m, uint32_t l, uint64_t* row) const {
    *row = m * each_ + (m < longer_ ? m : longer_) + l;
    return m < common_.size && l < each_ + (m < longer_ ? 1 : 0);
  }
  // Returns the index of a row in its member's residual.
  IRIS_INLINED uint64_t ResidualRow(uint64_t row, uint32_t l) const {
    return common_.operation == Operation::kAllReduceRmsNorm ? row : l;
  }
  IRIS_INLINED uint64_t At(uint64_t row, uint64_t stride, uint32_t element_bytes) const {
    return (row * stride + first_column_) * element_bytes + place_.at / sizeof(T) * element_bytes;
  }
  template <typename Each>
  IRIS_INLINED void ForRows(Each each) {
    if constexpr (kWhole) {
      IRIS_UNROLL(8)
      for (uint32_t k = 0; k < N; ++k) each(k, rows_[k]);
    } else {
      IRIS_UNROLL(1)
      for (uint32_t k = 0; k < N; ++k) {
        each(k, rows_[0]);
        Turn(rows_);
      }
    }
  }
  IRIS_INLINED Bytes16 Load(const uint8_t* p) const {
    return kWhole ? LoadWhole(p, place_.bytes) : LoadUnit<T>(p, place_.bytes);
  }
  IRIS_INLINED void Store(uint8_t* p, Bytes16 unit) const {
    if constexpr (kWhole) {
      StoreWhole(p, place_.bytes, unit);
    } else {
      StoreUnit<T>(p, place_.bytes, unit);
    }
  }

  // Unit k belongs to the row of the member k places after this one.
  IRIS_INLINED void LoadRows(uint32_t l) {
    ForRows([&](uint32_t k, Bytes16& unit) {
      uint64_t row = 0;
      unit = {};
      if (k >= common_.size || !RowOf(Rotated(k), l, &row)) return;
      unit = Load(call_.in + At(row, call_.in_stride, sizeof(T)));
    });
    uint64_t row = 0;
    more_ = {};
    if (call_.residual != nullptr && RowOf(common_.index, l, &row)) {
      more_ = Load(call_.residual + At(ResidualRow(row, l), call_.residual_stride, sizeof(T)));
    }
  }
  IRIS_INLINED void LoadWeights() {
    if (call_.weight == nullptr || !place_.active) return;
    if (!kWhole && call_.weight_type != kType) return;
    weights_ = Load(call_.weight + At(0, 0, sizeof(T)));
  }
  IRIS_INLINED float WeightAt(const Pack& weights, uint32_t e) const {
    if (call_.weight == nullptr) return 1;
    float weight = 0;
    if (kWhole || call_.weight_type == kType) {
      weight = static_cast<float>(weights.values[e]);
    } else if (e * sizeof(T) < place_.bytes) {
      weight =
          LoadWeight(call_.weight, call_.weight_type, first_column_ + place_.at / sizeof(T) + e);
    }
    return weight + call_.weight_offset;
  }

  IRIS_INLINED uint64_t Box() const { return units_.Step(0) * ccl::impl::LineLane::kStoredBytes; }
  IRIS_INLINED void Send(const Rounds& rounds, uint32_t k, Bytes16 value) const {
    units_.lane.Send(rounds.LineBox(Rotated(k), common_.index) + Box(), value, rounds.LineFlag());
  }
  // Receives got[m] from each other member m. Returns false on failure, which is recorded.
  IRIS_INLINED bool Receive(Rounds* rounds, Bytes16 (&got)[N]) const {
    const uint32_t me = common_.index;
    const auto waits = [n = common_.size, me](uint32_t m) { return m < n && m != me; };
    if (!ccl::impl::ReceiveTogether<Polls::kSmall>(units_.lane, rounds,
                                                   rounds->LineBox(me, 0) + Box(),
                                                   common_.line_bytes, 0, waits, got)) {
      return false;
    }
    // A lane with a flag has the flag after its eight bytes.
    IRIS_UNROLL(8)
    for (uint32_t m = 0; m < N; ++m) {
      if (units_.lane.has_flag) got[m].hi = 0;
    }
    return true;
  }

  // Computes r of this member's own row from the others' lines, in the order of the members.
  IRIS_INLINED bool ReduceOwn(Rounds* rounds) {
    Bytes16 got[N];
    if (!Receive(rounds, got)) return false;
    float sum[kElements] = {};
    IRIS_UNROLL(8)
    for (uint32_t m = 0; m < N; ++m) {
      if (m >= common_.size) continue;
      Bytes16 unit = got[m];
      if (m == common_.index) unit = rows_[0];
      const Pack pack = iris::impl::BitCast<Pack>(unit);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        const float x = static_cast<float>(pack.values[e]);
        sum[e] = m == 0 ? x : sum[e] + x;
      }
    }
    Pack r;
    const Pack more = iris::impl::BitCast<Pack>(more_);
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) {
      if (call_.residual != nullptr) sum[e] += static_cast<float>(more.values[e]);
      r.values[e] = static_cast<T>(sum[e]);
    }
    own_ = iris::impl::BitCast<Bytes16>(r);
    return true;
  }

  // Sends this member's r to all and receives theirs: rows_[m] is then r of member m's row.
  IRIS_INLINED bool GiveAndTake(Rounds* rounds) {
    IRIS_UNROLL(8)
    for (uint32_t k = 1; k < N; ++k) {
      if (k < common_.size) Send(*rounds, k, own_);
    }
    return Receive(rounds, rows_);
  }

  // Computes the factors of the rows from their sums of squares: first those of the block, in the
  // order of RowPart, then those of the blocks that share the rows, by the words and rules of
  // RowPart::Combine. Stores r to residual_out meanwhile. Contains block syncs. Returns false if a
  // thread of the block has failed; the same in all threads.
  IRIS_INLINED bool Factors(Rounds* rounds, bool whole, uint32_t l) {
    float squares[N] = {};
    if (whole) {
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m == common_.index) rows_[m] = own_;
        const Pack pack = iris::impl::BitCast<Pack>(rows_[m]);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < kElements; ++e) {
          const float x = static_cast<float>(pack.values[e]);
          if (e * sizeof(T) < place_.bytes) squares[m] += x * x;
        }
      }
    }
    IRIS_UNROLL(8)
    for (uint32_t mask = backend::WarpSize() / 2; mask != 0; mask /= 2) {
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) squares[m] += backend::ShuffleXor(squares[m], mask);
    }
    if (backend::LaneIndex() == 0) {
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        backend::StorePlain(&shared_->warps[m][backend::WarpIndex()], squares[m]);
      }
    }
    iris::impl::SyncInsideBlock();
    // The first warp computes the factors while the others store r.
    if (backend::WarpIndex() == 0) MakeFactors(rounds);
    if (whole && call_.residual != nullptr) StoreSums(l);
    iris::impl::SyncInsideBlock();
    return rounds->Settle();
  }
  IRIS_INLINED void StoreSums(uint32_t l) {
    const bool all = common_.operation == Operation::kAllReduceRmsNorm;
    ForRows([&](uint32_t m, Bytes16 unit) {
      uint64_t row = 0;
      if (!RowOf(m, l, &row) || !(all || m == common_.index)) return;
      Store(call_.residual_out + At(ResidualRow(row, l), call_.residual_out_stride, sizeof(T)),
            unit);
    });
  }
  // Called by one warp.
  IRIS_INLINED void MakeFactors(Rounds* rounds) {
    constexpr uint32_t kEach = ccl::impl::kPartnerBytes / sizeof(uint32_t);
    uint32_t* const words =
        iris::AtOffset<uint32_t>(common_.context, common_.context.rank,
                                 call_.partners_offset_bytes +
                                     uint64_t{group_} * call_.parts * ccl::impl::kPartnerBytes) +
        turn_ * kMaxParts;
    turn_ ^= 1;
    const uint32_t n = kWhole ? N : RowsOfTwoLines(common_.size);
    const uint32_t count = n * call_.parts;  // at most kMaxParts
    for (uint32_t i = backend::LaneIndex(); i < count; i += backend::WarpSize()) {
      const float mine = SumOfWarps(i % n);
      if (i / n == part_) {
        backend::StorePlain(&shared_->partners[i], mine);
        continue;
      }
      backend::Store<Scope::kDevice, Order::kRelaxed>(words + i / n * kEach + part_ * n + i % n,
                                                      (numeric::BitsOf(mine) & 0x7fffffffu) + 1);
    }
    for (uint32_t i = backend::LaneIndex(); i < count; i += backend::WarpSize()) {
      if (i / n == part_) continue;
      uint32_t* const word = words + part_ * kEach + i;
      uint32_t seen = 0;
      const bool came = rounds->Await<Polls::kSmall>(common_.index, [word, &seen] {
        seen = backend::Load<Scope::kDevice, Order::kRelaxed>(word);
        return seen != 0;
      });
      if (!came) break;
      backend::Store<Scope::kDevice, Order::kRelaxed>(word, 0u);
      backend::StorePlain(&shared_->partners[i], numeric::FloatOf(seen - 1));
    }
    iris::impl::SyncWarp();
    for (uint32_t m = backend::LaneIndex(); m < n; m += backend::WarpSize()) {
      float total = backend::LoadPlain(&shared_->partners[m]);
      IRIS_UNROLL(4)
      for (uint32_t p = 1; p < call_.parts; ++p) {
        total += backend::LoadPlain(&shared_->partners[p * n + m]);
      }
      const float mean = total / static_cast<float>(call_.hidden);
      backend::StorePlain(&shared_->factors[m], 1.0f / ::sqrtf(mean + call_.epsilon));
    }
  }
  IRIS_INLINED float SumOfWarps(uint32_t m) const {
    const uint32_t n = (backend::BlockSize() + backend::WarpSize() - 1) / backend::WarpSize();
    float total = 0;
    IRIS_UNROLL(4)
    for (uint32_t w = 0; w < n; ++w) total += backend::LoadPlain(&shared_->warps[m][w]);
    return total;
  }

  // `scale` multiplies the values before they become fp8.
  IRIS_INLINED void Norm(uint32_t l, float scale) {
    if (!place_.active) return;
    const Pack weights = iris::impl::BitCast<Pack>(weights_);
    float weight[kElements];
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) weight[e] = WeightAt(weights, e);
    ForRows([&](uint32_t m, Bytes16 unit) {
      uint64_t row = 0;
      if (!RowOf(m, l, &row)) return;
      const float factor = backend::LoadPlain(&shared_->factors[m]);
      const Pack pack = iris::impl::BitCast<Pack>(unit);
      float values[kElements];
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        values[e] = static_cast<float>(pack.values[e]) * factor * weight[e];
      }
      StoreNormed(row, values, scale);
    });
  }
  IRIS_INLINED void StoreNormed(uint64_t row, const float (&values)[kElements], float scale) const {
    if (!kWhole && call_.scaling != Scaling::kNone) {
      StoreNarrow(call_.out + At(row, call_.out_stride, 1), place_.bytes / sizeof(T),
                  Fp8Word<kElements>(call_.out_type, values, scale));
      return;
    }
    if constexpr (!kWhole && sizeof(T) == 4) {
      if (call_.out_type != kType) {
        ccl::impl::StoreWord<uint16_t>(call_.out + At(row, call_.out_stride, 2), place_.bytes / 2,
                                       HalvesWord(call_.out_type, values));
        return;
      }
    }
    Pack pack;
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) pack.values[e] = static_cast<T>(values[e]);
    Store(call_.out + At(row, call_.out_stride, sizeof(T)), iris::impl::BitCast<Bytes16>(pack));
  }

  const Common& common_;
  const NormCall& call_;
  TwoLinesShared* shared_;
  LineUnits units_;
  UnitPlace place_;
  uint32_t group_;  // of blocks that share rows
  uint32_t part_;
  uint32_t groups_;
  uint32_t first_column_;
  uint32_t each_;    // rows that every member has
  uint32_t longer_;  // the number of members, from the first on, that have one more
  uint32_t turn_ = 0;
  Bytes16 rows_[N];
  Bytes16 more_;  // of the residual
  Bytes16 own_;
  Bytes16 weights_;
};

// The kernel of kTwoLines. It is empty if the platform does not support the variant.
template <typename T, uint32_t N, bool kWhole>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void NormTwoLines(IRIS_PARAM Common common,
                                                                 IRIS_PARAM NormCall call) {
  if constexpr (ccl::impl::kHasLines) {
    IRIS_SHARED(ccl::impl::SharedState, shared);
    IRIS_SHARED(TwoLinesShared, norm_shared);
    ccl::impl::Enter(common);
    TwoLines<T, N, kWhole>(common, call, &norm_shared).Run(&shared);
  }
}

}  // namespace iris::norm::impl
