// kPackets and kLines for the few rows of inference: a thread has one complete, aligned unit of a
// row, and `out` has the type of `in`. Protocol and results are those of one_shot.h, so a member
// whose buffers are not aligned may run those kernels while others run these.
//
// Such a call takes as long as one word needs: from memory to the peers, from the inbox into the
// sum of squares, from there to the blocks that share the row, and to `out`. So all loads are
// issued as soon as the kernel may touch memory, before the state of the operation is read; all
// awaited words are polled together; and all other work comes after that path.
#pragma once

#include <cmath>
#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/norm/impl/one_shot.h"
#include "iris/norm/impl/row.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/lines.h"
#include "iris/rounds/protocol.h"

namespace iris::norm::impl {

// Loads a unit of 8 or 16 bytes, aligned to its size, or of 0 bytes, with zeros after it.
IRIS_DEVICE inline Bytes16 LoadWhole(const uint8_t* p, uint32_t bytes) {
  if (bytes == 16) return backend::Load16<CacheHint::kDefault>(p);
  Bytes16 value;
  if (bytes == 8) value.lo = backend::LoadPlain(reinterpret_cast<const uint64_t*>(p));
  return value;
}
IRIS_DEVICE inline void StoreWhole(uint8_t* p, uint32_t bytes, Bytes16 value) {
  if (bytes == 16) {
    backend::Store16<CacheHint::kDefault>(p, value);
  } else if (bytes == 8) {
    backend::StorePlain(reinterpret_cast<uint64_t*>(p), value.lo);
  }
}

// Take receives the thread's unit from up to kAhead members, beginning with `first`. It returns
// false on failure, which is recorded.
struct WholePackets : Packets {
  static constexpr bool kSendsLines = false;
  IRIS_DEVICE bool Take(Rounds* rounds, const Common& common, uint32_t first,
                        const UnitPlace& place, Bytes16 (&got)[kAhead]) const {
    if (place.bytes == 0) return true;
    const uint32_t me = common.index;
    const uint64_t stride = common.packet_bytes / 8;
    const Bytes16* const inbox = rounds->Inbox(me, first) + place.at / 8;
    const auto waits = [&common, first, me](uint32_t k) {
      return first + k < common.size && first + k != me;
    };
    Bytes16 packets[kAhead][2];
    const uint64_t since_ns = rounds->WaitBegins();
    for (uint32_t look = 0;; ++look) {
      // All packets are loaded again until all have arrived: one after another, each would add the
      // latency of a load.
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kAhead; ++k) {
        if (!waits(k)) continue;
        packets[k][0] = backend::Load16<CacheHint::kVolatile>(inbox + k * stride);
        packets[k][1] = backend::Load16<CacheHint::kVolatile>(inbox + k * stride + 1);
      }
      bool there = true;
      IRIS_UNROLL(4)
      for (uint32_t k = 0; k < kAhead; ++k) {
        if (!waits(k)) continue;
        there = there && rounds->Arrived(packets[k][0]) && rounds->Arrived(packets[k][1]);
      }
      if (there) break;
      if (look < ccl::impl::kEagerPolls) continue;
      IRIS_UNROLL(1)
      for (uint32_t i = 0; i < 2 * kAhead; ++i) {
        if (!waits(i / 2)) continue;
        const Bytes16* const slot = inbox + i / 2 * stride + i % 2;
        uint64_t unused = 0;
        if (!rounds->Receive(slot, backend::Load16<CacheHint::kVolatile>(slot), first + i / 2,
                             &unused)) {
          return false;
        }
      }
    }
    rounds->WaitEnds(since_ns);
    IRIS_UNROLL(4)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (!waits(k)) continue;
      got[k] = {Rounds::DataOf(packets[k][0]), Rounds::DataOf(packets[k][1])};
    }
    return true;
  }
};

struct WholeLines : Lines {
  static constexpr bool kSendsLines = true;
  IRIS_DEVICE bool Take(Rounds* rounds, const Common& common, uint32_t first, const UnitPlace&,
                        Bytes16 (&got)[kAhead]) const {
    const uint32_t me = common.index;
    const uint8_t* const box = rounds->LineBox(me, first) + Box(0);
    const auto waits = [&common, first, me](uint32_t k) {
      return first + k < common.size && first + k != me;
    };
    if (!ccl::impl::ReceiveTogether(units.lane, rounds, box, common.line_bytes, first, waits,
                                    got)) {
      return false;
    }
    // A lane with a flag has the flag after its eight bytes.
    IRIS_UNROLL(4)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (units.lane.has_flag) got[k].hi = 0;
    }
    return true;
  }
};

// Returns the block's sum of squares in the order of RowPart: the lanes of each warp, then the
// warps. Contains a block sync; another one precedes the next call.
IRIS_DEVICE inline float SumOfWholeBlock(float mine, NormShared* shared) {
  IRIS_UNROLL(8)
  for (uint32_t mask = backend::WarpSize() / 2; mask != 0; mask /= 2) {
    mine += backend::ShuffleXor(mine, mask);
  }
  if (backend::LaneIndex() == 0) backend::StorePlain(&shared->warps[backend::WarpIndex()], mine);
  iris::impl::SyncInsideBlock();
  const uint32_t n = (backend::BlockSize() + backend::WarpSize() - 1) / backend::WarpSize();
  float total = 0;
  IRIS_UNROLL(4)
  for (uint32_t w = 0; w < n; ++w) total += backend::LoadPlain(&shared->warps[w]);
  return total;
}

// Sums over the blocks that share the row, in the order of the parts, by the words and rules of
// RowPart::Combine. `words` are those of the row's first block. Shared memory may be reused after
// the next block sync. Returns false on failure, which is recorded; the same in all threads.
IRIS_DEVICE inline bool SumOfParts(Rounds* rounds, const Common& common, const NormCall& call,
                                   uint32_t part, uint32_t turn, uint32_t* words,
                                   NormShared* shared, float* sum) {
  if (call.parts == 1) return rounds->Settle();
  constexpr uint32_t kEach = ccl::impl::kPartnerBytes / sizeof(uint32_t);
  words += turn * kMaxParts;
  const uint32_t mine = numeric::BitsOf(*sum);
  for (uint32_t p = backend::ThreadIndex(); p < call.parts; p += backend::BlockSize()) {
    if (p == part) {
      backend::StorePlain(&shared->partners[p], *sum);
      continue;
    }
    backend::Store<Scope::kDevice, Order::kRelaxed>(words + p * kEach + part,
                                                    (mine & 0x7fffffffu) + 1);
  }
  for (uint32_t p = backend::ThreadIndex(); p < call.parts; p += backend::BlockSize()) {
    if (p == part) continue;
    uint32_t* const word = words + part * kEach + p;
    uint32_t seen = 0;
    const bool came = rounds->Await(common.index, [word, &seen] {
      seen = backend::Load<Scope::kDevice, Order::kRelaxed>(word);
      return seen != 0;
    });
    if (!came) break;
    backend::Store<Scope::kDevice, Order::kRelaxed>(word, 0u);
    backend::StorePlain(&shared->partners[p], numeric::FloatOf(seen - 1));
  }
  iris::impl::SyncInsideBlock();
  if (!rounds->Settle()) return false;
  float total = backend::LoadPlain(&shared->partners[0]);
  IRIS_UNROLL(4)
  for (uint32_t p = 1; p < call.parts; ++p) total += backend::LoadPlain(&shared->partners[p]);
  *sum = total;
  return true;
}

template <typename T, typename Way>
IRIS_DEVICE inline void NormWholeRows(const Common& common, const NormCall& call,
                                      ccl::impl::SharedState* shared, NormShared* norm_shared) {
  constexpr uint32_t kElements = 16 / sizeof(T);
  using Pack = ccl::impl::Pack<T, kElements>;
  const Way way = {};
  const uint32_t block = ccl::impl::BlockOf(common);
  const uint32_t group = block / call.parts;
  const uint32_t part = block % call.parts;
  const uint32_t groups = ccl::impl::GridOf(common) / call.parts;
  const uint32_t first_column = part * call.part_columns;
  const uint32_t columns =
      static_cast<uint32_t>(Min(call.part_columns, call.hidden - first_column));
  const UnitPlace place = way.units(0, columns * sizeof(T));
  const uint64_t at = first_column * sizeof(T) + place.at;
  const uint8_t* in = call.in + group * call.in_stride * sizeof(T) + at;
  const uint8_t* residual = call.residual;
  uint8_t* residual_out = call.residual_out;
  if (residual != nullptr) {
    residual += group * call.residual_stride * sizeof(T) + at;
    residual_out += group * call.residual_out_stride * sizeof(T) + at;
  }
  uint8_t* out = call.out + group * call.out_stride * sizeof(T) + at;
  const uint64_t step = groups * sizeof(T);  // times a stride

  ccl::impl::Enter(common);
  Bytes16 own = LoadWhole(in, place.bytes);
  Bytes16 more;
  if (residual != nullptr) more = LoadWhole(residual, place.bytes);
  Bytes16 weights;
  if (call.weight != nullptr) weights = LoadWhole(call.weight + at, place.bytes);
  Rounds rounds(common, shared, block);
  if constexpr (Way::kSendsLines) rounds.AwaitReadersOfLines();
  uint32_t* const words = iris::AtOffset<uint32_t>(
      common.context, common.context.rank,
      call.partners_offset_bytes + uint64_t{group} * call.parts * ccl::impl::kPartnerBytes);
  uint32_t turn = 0;
  if (rounds.broken()) return rounds.Conclude();
  for (uint32_t row = group; row < call.rows; row += groups) {
    rounds.Advance();
    if (place.active) {
      IRIS_UNROLL(4)
      for (uint32_t p = 1; p < common.size; ++p) {
        way.Send(rounds, rounds.Rotated(p), common.index, 0, place, own);
      }
    }
    // After this sync all threads have read the epoch, and shared memory is cleared.
    iris::impl::SyncInsideBlock();
    // Calls that differ must be noticed before waiting for data that will not come.
    if (common.check != 0) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return rounds.Conclude();
    }
    Bytes16 unit;
    float squares = 0;
    if (place.active) {
      ccl::impl::Sum<T, kElements> sum = {};
      bool whole = true;
      for (uint32_t first = 0; whole && first < common.size; first += kAhead) {
        Bytes16 units[kAhead];
        whole = way.Take(&rounds, common, first, place, units);
        IRIS_UNROLL(4)
        for (uint32_t k = 0; k < kAhead; ++k) {
          const uint32_t m = first + k;
          if (m >= common.size) continue;
          if (m == common.index) units[k] = own;
          const Pack pack = iris::impl::BitCast<Pack>(units[k]);
          IRIS_UNROLL(8)
          for (uint32_t e = 0; e < kElements; ++e) {
            sum.values[e] = m == 0 ? static_cast<float>(pack.values[e])
                                   : sum.values[e] + static_cast<float>(pack.values[e]);
          }
        }
      }
      Pack pack;
      if (residual != nullptr) {
        const Pack others = iris::impl::BitCast<Pack>(more);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < kElements; ++e) {
          sum.values[e] += static_cast<float>(others.values[e]);
        }
      }
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) pack.values[e] = static_cast<T>(sum.values[e]);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < kElements; ++e) {
        const float x = static_cast<float>(pack.values[e]);
        if (e * sizeof(T) < place.bytes) squares += x * x;
      }
      unit = iris::impl::BitCast<Bytes16>(pack);
      if (residual != nullptr) StoreWhole(residual_out, place.bytes, unit);
    }
    squares = SumOfWholeBlock(squares, norm_shared);
    if (!SumOfParts(&rounds, common, call, part, turn, words, norm_shared, &squares)) {
      return rounds.Conclude();
    }
    turn ^= 1;
    const float mean = squares / static_cast<float>(call.hidden);
    const float factor = 1.0f / ::sqrtf(mean + call.epsilon);
    Pack pack = iris::impl::BitCast<Pack>(unit);
    const Pack weight = iris::impl::BitCast<Pack>(weights);
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < kElements; ++e) {
      float by = 1;
      if (call.weight != nullptr) by = static_cast<float>(weight.values[e]) + call.weight_offset;
      pack.values[e] = static_cast<T>(static_cast<float>(pack.values[e]) * factor * by);
    }
    StoreWhole(out, place.bytes, iris::impl::BitCast<Bytes16>(pack));
    if (row + groups >= call.rows) break;
    iris::impl::SyncInsideBlock();  // shared memory is no longer read
    in += step * call.in_stride;
    own = LoadWhole(in, place.bytes);
    if (residual != nullptr) {
      residual += step * call.residual_stride;
      residual_out += step * call.residual_out_stride;
      more = LoadWhole(residual, place.bytes);
    }
    out += step * call.out_stride;
  }
  rounds.Finish();
  rounds.Conclude();
}

// Returns true if all buffers of a call have the type of `in`, are aligned to 16 bytes, and have
// rows of a multiple of 16 bytes.
inline bool HasWholeUnits(const NormCall& call, DType in) {
  if (call.scaling != Scaling::kNone || call.out_type != in) return false;
  if (call.weight != nullptr && call.weight_type != in) return false;
  const uint64_t element_bytes = DTypeBytes(in);
  uint64_t bits = reinterpret_cast<uint64_t>(call.in) | reinterpret_cast<uint64_t>(call.out) |
                  reinterpret_cast<uint64_t>(call.weight) |
                  (call.hidden | call.in_stride | call.out_stride) * element_bytes;
  if (call.residual != nullptr) {
    bits |= reinterpret_cast<uint64_t>(call.residual) |
            reinterpret_cast<uint64_t>(call.residual_out) |
            (call.residual_stride | call.residual_out_stride) * element_bytes;
  }
  return bits % 16 == 0;
}

// Returns true if this rank may run the call with the kernels of this file.
inline bool HasWholeRows(const Common& common, const NormCall& call, DType in, uint64_t unit_bytes,
                         uint32_t threads) {
  const uint64_t part_bytes = Min(call.part_columns, call.hidden) * DTypeBytes(in);
  return common.size >= 2 && part_bytes <= threads * unit_bytes && HasWholeUnits(call, in);
}

template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void NormWholePackets(IRIS_PARAM Common common,
                                                                     IRIS_PARAM NormCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  IRIS_SHARED(NormShared, norm_shared);
  NormWholeRows<T, WholePackets>(common, call, &shared, &norm_shared);
}

// The kernel of kLines for such rows. It is empty if the platform does not support the variant.
template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void NormWholeLines(IRIS_PARAM Common common,
                                                                   IRIS_PARAM NormCall call) {
  if constexpr (ccl::impl::kHasLines) {
    IRIS_SHARED(ccl::impl::SharedState, shared);
    IRIS_SHARED(NormShared, norm_shared);
    NormWholeRows<T, WholeLines>(common, call, &shared, &norm_shared);
  }
}

}  // namespace iris::norm::impl
