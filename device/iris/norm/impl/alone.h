// kAlone: the variant for a team of one member, which sends nothing. A thread loads all its units
// of a row, of the residual and of the weights at once, and keeps them in registers. A row is
// normed by a block, or by a warp if the row is short.
#pragma once

#include <cmath>
#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/impl/trace.h"
#include "iris/norm/impl/row.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"

namespace iris::norm::impl {

// The most units of a thread.
inline constexpr uint32_t kKeptAlone = 4;
// Returns the most threads of a block. Threads with more units need more registers each. Several
// such blocks are on a multiprocessor, so that some load while others compute.
constexpr uint32_t MaxAloneThreads(uint32_t kept) {
  return kept < kKeptAlone ? kMaxBlockThreads : kMaxBlockThreads / 4;
}
constexpr uint32_t AloneBlocks(uint32_t kept) { return kept < kKeptAlone ? 1 : 2; }

// Returns the threads that share a row of `units` units: a warp if its threads then have at most
// kKeptAlone units each (one, if there are few rows), otherwise all `threads` of a block.
IRIS_HOST_DEVICE constexpr uint32_t RowThreads(uint64_t units, uint64_t rows, uint32_t threads) {
  constexpr uint64_t kFewRows = 512;
  const uint64_t kept = rows <= kFewRows ? 1 : kKeptAlone;
  return units <= kept * backend::WarpSize() ? backend::WarpSize() : threads;
}

// Shared by the threads of a block: two alternating sets of one number for each warp, and the
// values that the first thread keeps from the beginning to the end.
struct AloneShared {
  static constexpr uint32_t kWarps = kMaxBlockThreads / backend::Traits::kWarpThreads;
  uint32_t warps[2][kWarps];
  uint32_t sequence;
  iris::impl::TraceHead head;
  uint64_t start_ns;  // 0: nothing is traced
};
static_assert(AloneShared::kWarps <= backend::Traits::kWarpThreads, "a lane takes each number");
static_assert(kGroupColumns * sizeof(float) / 16 <= backend::Traits::kWarpThreads,
              "a group of columns is in a warp");

// The calling thread's units of its rows, up to kKept of each.
template <typename T, uint32_t kKept, bool kScaled>
class AloneRows {
 public:
  static constexpr uint32_t kElements = 16 / sizeof(T);
  static constexpr DType kType = DTypeOf<T>();
  using Pack = ccl::impl::Pack<T, kElements>;

  IRIS_DEVICE AloneRows(const NormCall& call, AloneShared* shared)
      : call_(call), shared_(shared), row_bytes_(static_cast<uint32_t>(call.hidden * sizeof(T))) {
    row_threads_ = RowThreads((row_bytes_ + 15) / 16, call.rows, backend::BlockSize());
    thread_ = backend::ThreadIndex() % row_threads_;
    has_weights_ = call.weight != nullptr && call.weight_type == kType;
    // Includes the alignment of `out` if its elements are as wide as those of `in`.
    uint64_t bits = reinterpret_cast<uint64_t>(call.in) | call.in_stride * sizeof(T) | row_bytes_;
    if (call.residual != nullptr) {
      bits |= reinterpret_cast<uint64_t>(call.residual) |
              reinterpret_cast<uint64_t>(call.residual_out) |
              (call.residual_stride | call.residual_out_stride) * sizeof(T);
    }
    if (has_weights_) bits |= reinterpret_cast<uint64_t>(call.weight);
    if (call.out_type == kType) {
      bits |= reinterpret_cast<uint64_t>(call.out) | call.out_stride * sizeof(T);
    }
    whole_ = bits % 16 == 0;
  }

  // Norms each row of block `block`. Writes nothing if `broken`, that is, if an earlier operation
  // failed. `broken` is read after the first loads were issued; then begun() is called.
  template <typename Begun>
  IRIS_DEVICE void Run(uint32_t block, uint32_t broken, Begun begun) {
    if (whole_) {
      RunAs<true>(block, broken, begun);
    } else {
      RunAs<false>(block, broken, begun);
    }
  }

 private:
  // kWhole: all units have 16 bytes and are aligned, and the work on them is unrolled. Otherwise
  // that would be many instructions, so a loop has them once, and registers rotate (see row.h).
  template <bool kWhole, typename Begun>
  IRIS_DEVICE void RunAs(uint32_t block, uint32_t broken, Begun begun) {
    const uint32_t at_once = backend::BlockSize() / row_threads_;
    const uint32_t step = call_.blocks * at_once;
    const float given =
        kScaled && call_.scaling == Scaling::kStatic ? backend::LoadPlain(call_.scale) : 1.0f;
    // With more units there are not enough registers to load the weights first.
    constexpr bool kWeightsFirst = kKept <= 2 && (kWhole || kScaled);
    Bytes16 weights[kKept];
    if (kWeightsFirst && has_weights_) Load<kWhole>(call_.weight, weights);
    bool first = true;
    for (uint32_t row = block * at_once + backend::ThreadIndex() / row_threads_; row < call_.rows;
         row += step) {
      Bytes16 units[kKept];
      Bytes16 others[kKept];
      Load<kWhole>(call_.in + uint64_t{row} * call_.in_stride * sizeof(T), units);
      if (call_.residual != nullptr) {
        Load<kWhole>(call_.residual + uint64_t{row} * call_.residual_stride * sizeof(T), others);
      }
      if (first) {
        if (broken != 0) return;
        begun();
        first = false;
      }
      const float squares = Take<kWhole>(row, units, others);
      // These loads are in flight while the squares are summed.
      if (!kWeightsFirst && has_weights_) Load<kWhole>(call_.weight, weights);
      const float mean = SumOf(squares) / static_cast<float>(call_.hidden);
      const float factor = 1.0f / ::sqrtf(mean + call_.epsilon);
      if constexpr (kScaled) {
        PutScaled(row, factor, given, units, weights);
      } else {
        Put<kWhole>(row, factor, units, weights);
      }
    }
  }

  // Returns the byte of a row at which the thread's k-th unit, of 0 to 16 bytes, begins.
  IRIS_DEVICE uint32_t At(uint32_t k) const { return (thread_ + k * row_threads_) * 16; }
  IRIS_DEVICE uint32_t Bytes(uint32_t at) const {
    return at < row_bytes_ ? static_cast<uint32_t>(Min(row_bytes_ - at, 16)) : 0;
  }

  // Loads the thread's units of the data at `row`, with zeros past the end. If kWhole, no load is
  // conditional: a thread without a unit loads the row's first unit, to which another thread may be
  // storing if the result replaces the input. The loaded value is not used; but C++ allows no such
  // load, so emulation omits it.
  template <bool kWhole>
  IRIS_DEVICE void Load(const uint8_t* row, Bytes16 (&units)[kKept]) const {
    IRIS_UNROLL(4)
    for (uint32_t k = 0; k < kKept; ++k) {
      const uint32_t at = At(k);
      if constexpr (kWhole) {
        if (backend::Traits::kEmulated && at >= row_bytes_) continue;
        units[k] = backend::Load16<CacheHint::kDefault>(row + (at < row_bytes_ ? at : 0));
      } else {
        units[k] = LoadUnit<T>(row + at, Bytes(at));
      }
    }
    if constexpr (kWhole) {
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) {
        if (At(k) >= row_bytes_) units[k] = {};
      }
    }
  }
  template <bool kWhole>
  IRIS_DEVICE void StoreAt(uint8_t* row, uint32_t at, Bytes16 unit) const {
    if constexpr (kWhole) {
      if (at < row_bytes_) backend::Store16<CacheHint::kDefault>(row + at, unit);
    } else {
      StoreUnit<T>(row + at, Bytes(at), unit);
    }
  }

  // Computes r for the thread's units of `in` and of the residual, stores r if there is a residual,
  // and returns the sum of the squares of r.
  template <bool kWhole>
  IRIS_DEVICE float Take(uint32_t row, Bytes16 (&units)[kKept], Bytes16 (&others)[kKept]) const {
    float squares = 0;
    const auto square = [&squares](const Pack& pack) {
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        const float x = static_cast<float>(pack.values[e]);
        squares += x * x;
      }
    };
    if (call_.residual == nullptr) {
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) square(iris::impl::BitCast<Pack>(units[k]));
      return squares;
    }
    uint8_t* const out = call_.residual_out + uint64_t{row} * call_.residual_out_stride * sizeof(T);
    const auto add = [&](Bytes16* unit, Bytes16 more, uint32_t k) {
      Pack pack = iris::impl::BitCast<Pack>(*unit);
      const Pack other = iris::impl::BitCast<Pack>(more);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        pack.values[e] = static_cast<T>(static_cast<float>(pack.values[e]) +
                                        static_cast<float>(other.values[e]));
      }
      *unit = iris::impl::BitCast<Bytes16>(pack);
      StoreAt<kWhole>(out, At(k), *unit);
      square(pack);
    };
    if constexpr (kWhole) {
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) add(&units[k], others[k], k);
    } else {
      IRIS_UNROLL(1)
      for (uint32_t k = 0; k < kKept; ++k) {
        add(&units[0], others[0], k);
        Turn(units);
        Turn(others);
      }
    }
    return squares;
  }

  // Sums over all threads of the row in a fixed order: the lanes of each warp, then the warps.
  IRIS_DEVICE float SumOf(float mine) {
    mine = SumOfWarp(mine);
    if (row_threads_ == backend::WarpSize()) return mine;
    return SumOfWarp(numeric::FloatOf(OfWarps(numeric::BitsOf(mine))));
  }
  IRIS_DEVICE static float SumOfWarp(float sum) {
    IRIS_UNROLL(8)
    for (uint32_t mask = backend::WarpSize() / 2; mask != 0; mask /= 2) {
      sum += backend::ShuffleXor(sum, mask);
    }
    return sum;
  }
  // Returns the largest value of all threads of the row, compared by bits: a NaN exceeds all
  // numbers.
  IRIS_DEVICE uint32_t LargestOfRow(uint32_t mine) {
    mine = LargestOfLanes(mine, backend::WarpSize());
    if (row_threads_ == backend::WarpSize()) return mine;
    return LargestOfLanes(OfWarps(mine), backend::WarpSize());
  }
  IRIS_DEVICE static uint32_t LargestOfLanes(uint32_t most, uint32_t lanes) {
    IRIS_UNROLL(8)
    for (uint32_t mask = lanes / 2; mask != 0; mask /= 2) {
      const uint32_t other = backend::ShuffleXor(most, mask);
      most = other > most ? other : most;
    }
    return most;
  }
  // Returns in lane i the number that warp i passed, or 0. Calls alternate between two sets of
  // words: when one is written again, all threads have read it before the sync of the call between.
  IRIS_DEVICE uint32_t OfWarps(uint32_t mine) {
    uint32_t* const words = shared_->warps[turn_];
    turn_ ^= 1;
    if (backend::LaneIndex() == 0) backend::StorePlain(&words[backend::WarpIndex()], mine);
    iris::impl::SyncInsideBlock();
    const uint32_t lane = backend::LaneIndex();
    return lane < backend::BlockSize() / backend::WarpSize() ? backend::LoadPlain(&words[lane])
                                                             : 0u;
  }

  // Norms a unit. `weights` are its weights if they are of type T.
  IRIS_DEVICE void Norm(Bytes16 unit, Bytes16 weights, uint32_t at, float factor,
                        float* values) const {
    const Pack pack = iris::impl::BitCast<Pack>(unit);
    float weight[kElements];
    WeightsOf(weights, at, weight);
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) {
      values[e] = static_cast<float>(pack.values[e]) * factor * weight[e];
    }
  }
  IRIS_DEVICE void WeightsOf(Bytes16 unit, uint32_t at, float* weight) const {
    if (call_.weight == nullptr) {
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) weight[e] = 1;
      return;
    }
    const uint64_t first = at / sizeof(T);
    if (has_weights_) {
      const Pack pack = iris::impl::BitCast<Pack>(unit);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) weight[e] = static_cast<float>(pack.values[e]);
    } else if (sizeof(T) == 2 && call_.weight_type == DType::kF32 && Bytes(at) == 16 &&
               (reinterpret_cast<uint64_t>(call_.weight) & 15) == 0) {
      using Four = ccl::impl::Pack<float, 4>;
      const uint8_t* const from = call_.weight + first * sizeof(float);
      const auto low = iris::impl::BitCast<Four>(backend::Load16<CacheHint::kDefault>(from));
      const auto high = iris::impl::BitCast<Four>(backend::Load16<CacheHint::kDefault>(from + 16));
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        weight[e] = e < 4 ? low.values[e % 4] : high.values[e % 4];
      }
    } else {
      const uint32_t bytes = Bytes(at);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        weight[e] =
            e * sizeof(T) < bytes ? LoadWeight(call_.weight, call_.weight_type, first + e) : 0.0f;
      }
    }
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) weight[e] += call_.weight_offset;
  }

  template <bool kWhole>
  IRIS_DEVICE void Put(uint32_t row, float factor, Bytes16 (&units)[kKept],
                       Bytes16 (&weights)[kKept]) const {
    const bool halves = sizeof(T) == 4 && call_.out_type != kType;
    uint8_t* const out = call_.out + uint64_t{row} * call_.out_stride * (halves ? 2 : sizeof(T));
    const auto put = [&](Bytes16 unit, Bytes16 weight, uint32_t at) {
      float values[kElements];
      Norm(unit, weight, at, factor, values);
      if (halves) {
        const uint32_t bytes = Bytes(at);
        if (bytes == 0) return;
        ccl::impl::StoreWord<uint16_t>(out + at / 2, bytes / 2, HalvesWord(call_.out_type, values));
        return;
      }
      Pack pack;
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) pack.values[e] = static_cast<T>(values[e]);
      StoreAt<kWhole>(out, at, iris::impl::BitCast<Bytes16>(pack));
    };
    if constexpr (kWhole) {
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kKept; ++k) put(units[k], weights[k], At(k));
    } else {
      IRIS_UNROLL(1)
      for (uint32_t k = 0; k < kKept; ++k) {
        put(units[0], weights[0], At(k));
        Turn(units);
        Turn(weights);
      }
    }
  }

  // Stores a row as fp8, in a loop whose registers rotate. Lanes without a unit run it, too.
  IRIS_DEVICE void PutScaled(uint32_t row, float factor, float scale, Bytes16 (&units)[kKept],
                             Bytes16 (&weights)[kKept]) {
    if (call_.scaling == Scaling::kPerRow) {
      uint32_t most = 0;
      IRIS_UNROLL(1)
      for (uint32_t k = 0; k < kKept; ++k) {
        float values[kElements];
        Norm(units[0], weights[0], At(k), factor, values);
        const uint32_t mine = LargestOfUnit(values, Bytes(At(k)));
        most = mine > most ? mine : most;
        Turn(units);
        Turn(weights);
      }
      scale = ScaleOf(call_.out_type, numeric::FloatOf(LargestOfRow(most)));
      if (thread_ == 0) backend::StorePlain(call_.scales + row, scale);
    }
    const uint64_t groups = (call_.hidden + kGroupColumns - 1) / kGroupColumns;
    constexpr uint32_t kGroupLanes = kGroupColumns / kElements;
    uint8_t* const out = call_.out + uint64_t{row} * call_.out_stride;
    IRIS_UNROLL(1)
    for (uint32_t k = 0; k < kKept; ++k) {
      const uint32_t at = At(k);
      const uint32_t bytes = Bytes(at);
      float values[kElements];
      Norm(units[0], weights[0], at, factor, values);
      if (call_.scaling == Scaling::kPerGroup) {
        const uint32_t most = LargestOfLanes(LargestOfUnit(values, bytes), kGroupLanes);
        scale = ScaleOf(call_.out_type, numeric::FloatOf(most));
        if (thread_ % kGroupLanes == 0 && bytes != 0) {
          backend::StorePlain(
              call_.scales + uint64_t{row} * groups + at / sizeof(T) / kGroupColumns, scale);
        }
      }
      const uint64_t word = Fp8Word<kElements>(call_.out_type, values, 1.0f / scale);
      StoreNarrow(out + at / sizeof(T), bytes / sizeof(T), word);
      Turn(units);
      Turn(weights);
    }
  }
  IRIS_DEVICE static uint32_t LargestOfUnit(const float* values, uint32_t bytes) {
    uint32_t most = 0;
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) {
      const uint32_t bits = numeric::BitsOf(values[e]) & 0x7fffffffu;
      if (e * sizeof(T) < bytes && bits > most) most = bits;
    }
    return most;
  }

  const NormCall& call_;
  AloneShared* shared_;
  const uint32_t row_bytes_;
  uint32_t row_threads_;
  uint32_t thread_;  // index among the threads of the row
  uint32_t turn_ = 0;
  bool has_weights_;
  bool whole_;
};

// kScaled: `out` is of fp8.
template <typename T, uint32_t kKept, bool kScaled>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(MaxAloneThreads(kKept),
                               AloneBlocks(kKept)) void NormAlone(IRIS_PARAM Common common,
                                                                  IRIS_PARAM NormCall call) {
  IRIS_SHARED(AloneShared, shared);
  const uint32_t block = ccl::impl::BlockOf(common);
  AloneRows<T, kKept, kScaled> rows(call, &shared);
  backend::AwaitKernelBefore();
  // The next kernel cannot block this one, because no block of this kernel waits for another one.
  if (call.lets_next_begin) backend::LetNextBegin();
  ccl::impl::Header* const header = ccl::impl::HeaderAt(common, common.index);
  const bool tells = backend::ThreadIndex() == 0;
  iris::impl::TraceHead head;
  uint32_t sequence = 0;
  if (tells) {
    if (iris::impl::kTraces) head = iris::impl::ReadTraceHead(common.context);
    sequence = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->sequence);
  }
  const uint32_t broken = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->failed);
  rows.Run(block, broken, [&] {
    if (!tells) return;
    // The clock is slow, so it is read only if its value is needed.
    const uint64_t start_ns = head.until_ns != 0 ? backend::ClockNanoseconds() : 0;
    shared.sequence = sequence;
    shared.head = head;
    shared.start_ns = start_ns < head.until_ns ? start_ns : 0;
  });
  if (broken != 0 || !tells) return;
  // The last block counts: earlier blocks have begun by then, and have read the number of
  // operations.
  if (common.ends != 0 && block + 1 == call.blocks) {
    backend::Store<Scope::kDevice, Order::kRelaxed>(&header->sequence, shared.sequence + 1);
  }
  if (iris::impl::kTraces && shared.start_ns != 0) {
    ccl::impl::BlockTrace trace;
    trace.head = shared.head;
    trace.start_ns = shared.start_ns;
    trace.slot = iris::impl::ReserveTraceSlot(common.context.trace);
    ccl::impl::TellTrace(common, trace, block, shared.sequence, 0);
  }
}

}  // namespace iris::norm::impl
