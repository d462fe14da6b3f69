// kPackets and kLines: every member sends its rows to all members, and every member norms all rows.
// Each part of a row takes one epoch of its block.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/norm/impl/row.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/lines.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::norm::impl {

// A thread loads the packets or lines of this many members before it waits for the first one.
// Registers do not suffice for more.
inline constexpr uint32_t kAhead = 4;

// A unit as two packets; the second may be empty.
struct Packets {
  using Units = PlainUnits;
  Units units;

  IRIS_DEVICE void Send(const Rounds& rounds, uint32_t peer, uint32_t me, uint32_t,
                        const UnitPlace& place, Bytes16 value) const {
    if (place.bytes == 0) return;
    Bytes16* const inbox = rounds.Inbox(peer, me) + place.at / 8;
    backend::Store16<CacheHint::kVolatile>(inbox, rounds.Packet(value.lo));
    if (place.bytes > 8) {
      backend::Store16<CacheHint::kVolatile>(inbox + 1, rounds.Packet(value.hi));
    }
  }

  // Sums a unit in the order of the members. False on failure, which is recorded.
  template <typename T, typename S>
  IRIS_DEVICE bool Receive(Rounds* rounds, const Common& common, uint32_t, const UnitPlace& place,
                           Bytes16 own, S* sum) const {
    constexpr uint32_t kHalf = 8 / sizeof(T);
    if (place.bytes == 0) return true;
    const uint32_t me = common.index;
    const uint64_t stride = common.packet_bytes / 8;
    for (uint32_t half = 0; half < (place.bytes > 8 ? 2u : 1u); ++half) {
      const Bytes16* const inbox = rounds->Inbox(me, 0) + place.at / 8 + half;
      // A separate array, because the compiler would put `sum`, indexed at run time, into memory.
      float values[kHalf] = {};
      for (uint32_t first = 0; first < common.size; first += kAhead) {
        Bytes16 packets[kAhead];
        IRIS_UNROLL(4)
        for (uint32_t k = 0; k < kAhead; ++k) {
          const uint32_t m = first + k;
          if (m < common.size && m != me) {
            packets[k] = backend::Load16<CacheHint::kVolatile>(inbox + m * stride);
          }
        }
        IRIS_UNROLL(4)
        for (uint32_t k = 0; k < kAhead; ++k) {
          const uint32_t m = first + k;
          if (m >= common.size) continue;
          uint64_t word = half == 0 ? own.lo : own.hi;
          if (m != me && !rounds->Receive(inbox + m * stride, packets[k], m, &word)) return false;
          const auto pack = iris::impl::BitCast<ccl::impl::Pack<T, kHalf>>(word);
          IRIS_UNROLL(4)
          for (uint32_t e = 0; e < kHalf; ++e) {
            values[e] = m == 0 ? static_cast<float>(pack.values[e])
                               : values[e] + static_cast<float>(pack.values[e]);
          }
        }
      }
      IRIS_UNROLL(4)
      for (uint32_t e = 0; e < kHalf; ++e) {
        if (half == 0) {
          sum->values[e] = values[e];
        } else {
          sum->values[kHalf + e] = values[e];
        }
      }
    }
    return true;
  }
};

struct Lines {
  using Units = LineUnits;
  Units units;

  IRIS_DEVICE uint64_t Box(uint32_t k) const {
    return units.Step(k) * ccl::impl::LineLane::kStoredBytes;
  }
  IRIS_DEVICE void Send(const Rounds& rounds, uint32_t peer, uint32_t me, uint32_t k,
                        const UnitPlace&, Bytes16 value) const {
    units.lane.Send(rounds.LineBox(peer, me) + Box(k), value, rounds.LineFlag());
  }

  template <typename T, typename S>
  IRIS_DEVICE bool Receive(Rounds* rounds, const Common& common, uint32_t k, const UnitPlace&,
                           Bytes16 own, S* sum) const {
    constexpr uint32_t kElements = 16 / sizeof(T);
    const uint32_t me = common.index;
    const uint8_t* const box = rounds->LineBox(me, 0) + Box(k);
    IRIS_UNROLL(1)
    for (uint32_t first = 0; first < common.size; first += kAhead) {
      Bytes16 parts[kAhead];
      IRIS_UNROLL(4)
      for (uint32_t i = 0; i < kAhead; ++i) {
        const uint32_t m = first + i;
        if (m < common.size && m != me) {
          parts[i] = units.lane.Look(box + m * common.line_bytes);
        }
      }
      IRIS_UNROLL(4)
      for (uint32_t i = 0; i < kAhead; ++i) {
        const uint32_t m = first + i;
        if (m >= common.size) continue;
        if (m == me) {
          parts[i] = own;
        } else if (!units.lane.Receive(rounds, box + m * common.line_bytes, m, &parts[i])) {
          return false;
        }
        // A lane with a flag has the flag after its eight bytes.
        if (units.lane.has_flag) parts[i].hi = 0;
        const auto pack = iris::impl::BitCast<ccl::impl::Pack<T, kElements>>(parts[i]);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < kElements; ++e) {
          sum->values[e] = m == 0 ? static_cast<float>(pack.values[e])
                                  : sum->values[e] + static_cast<float>(pack.values[e]);
        }
      }
    }
    return true;
  }
};

template <typename T, typename Way>
IRIS_DEVICE inline void NormOneShot(const Common& common, const NormCall& call, Rounds& rounds,
                                    NormShared* shared) {
  if (rounds.broken()) return;
  const Way way = {};
  constexpr uint32_t kKept = kKeptOneShot;
  using Part = RowPart<T, typename Way::Units, kKept>;
  Part part(call, common, &rounds, shared, way.units);
  const uint32_t me = common.index;
  for (uint64_t row = part.group(); row < call.rows; row += part.groups()) {
    const uint8_t* const in = call.in + part.At(row, call.in_stride, sizeof(T));
    Bytes16 own[kKept];
    rounds.Advance();
    part.Prefetch(call.residual == nullptr
                      ? nullptr
                      : call.residual + part.At(row, call.residual_stride, sizeof(T)),
                  in, own);
    IRIS_UNROLL(2)
    for (uint32_t k = 0; k < kKept; ++k) {
      const UnitPlace place = part.Place(k);
      if (!place.active) continue;
      for (uint32_t p = 1; p < common.size; ++p) {
        way.Send(rounds, rounds.Rotated(p), me, k, place, own[k]);
      }
    }
    if (row == part.group()) part.KeepWeights();
    // After this sync all threads have read the epoch, and shared memory is cleared.
    iris::impl::SyncInsideBlock();
    // Calls that differ must be noticed before waiting for data that will not come.
    if (common.check != 0 && common.size > 1) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    uint8_t* const residual_out =
        call.residual_out == nullptr
            ? nullptr
            : call.residual_out + part.At(row, call.residual_out_stride, sizeof(T));
    bool whole = true;
    part.ForUnits([&](uint32_t k, const UnitPlace& place) {
      if (!whole) return;
      typename Part::Sum sum = {};
      whole = way.template Receive<T>(&rounds, common, k, place, own[0], &sum);
      if (whole) part.Add(place, sum, residual_out);
      Turn(own);
    });
    uint8_t* const out = call.out + part.At(row, call.out_stride, part.OutBytes());
    if (!part.Finish(
            1, [out](uint32_t) { return out; },
            [&call, &part, row](uint32_t) { return call.scales + part.ScaleAt(row); })) {
      return;
    }
  }
  rounds.Finish();
}

template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void NormPackets(IRIS_PARAM Common common,
                                                                IRIS_PARAM NormCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  IRIS_SHARED(NormShared, norm_shared);
  ccl::impl::Enter(common);
  Rounds rounds(common, &shared, ccl::impl::BlockOf(common));
  NormOneShot<T, Packets>(common, call, rounds, &norm_shared);
  rounds.Conclude();
}

// The kernel of kLines. It is empty if the platform does not support the variant.
template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void NormLines(IRIS_PARAM Common common,
                                                              IRIS_PARAM NormCall call) {
  if constexpr (ccl::impl::kHasLines) {
    IRIS_SHARED(ccl::impl::SharedState, shared);
    IRIS_SHARED(NormShared, norm_shared);
    ccl::impl::Enter(common);
    Rounds rounds(common, &shared, ccl::impl::BlockOf(common));
    rounds.AwaitReadersOfLines();
    NormOneShot<T, Lines>(common, call, rounds, &norm_shared);
    rounds.Conclude();
  }
}

}  // namespace iris::norm::impl
