// The kernels of Dispatch and Combine, in the order in which a call starts them.
//
//   Dispatch   Route    of this member's choices: which row of whose inbox, and which place among
//                       the rows of its expert
//              Send     behind a round of the team: rows, choices and counts to their receivers
//              Place    what the counts of all members say of the local experts' rows
//              Expand   from the inboxes to rows by expert
//   Combine    Return   behind a round: sums of the local experts' rows, to the tokens' members
//              Gather   sums of what came back
//
// Send and Return alone meet other members. The others begin when all blocks of the kernel before
// have passed its last round, and do nothing if one did not.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/protocol.h"
#include "iris/impl/mutation.h"
#include "iris/moe/impl/layout.h"
#include "iris/moe/impl/rows.h"

namespace iris::moe::impl {

using ccl::impl::Rounds;

inline constexpr uint32_t kMaxThreads = 512;  // a block of these kernels
inline constexpr uint32_t kMaxWarps = kMaxThreads / 32;

template <typename T>
IRIS_DEVICE inline T* At(const MoeCall& call, uint32_t member, uint64_t offset_bytes) {
  return iris::AtOffset<T>(call.common.context, call.common.members[member],
                           call.workspace_offset_bytes + offset_bytes);
}
template <typename T>
IRIS_DEVICE inline T* Mine(const MoeCall& call, uint64_t offset_bytes) {
  return At<T>(call, call.common.index, offset_bytes);
}

// What member `from` told member `to`, and behind it its rows for each expert.
IRIS_DEVICE inline Told* ToldBy(const MoeCall& call, uint32_t to, uint32_t from) {
  return At<Told>(call, to, call.at.told_bytes + from * call.at.told_stride_bytes);
}
IRIS_DEVICE inline uint32_t* RowsOfExperts(Told* told) {
  return reinterpret_cast<uint32_t*>(told + 1);
}
IRIS_DEVICE inline Told* Own(const MoeCall& call) { return Mine<Told>(call, call.at.own_bytes); }

IRIS_DEVICE inline int32_t* PlacesTo(const MoeCall& call, uint32_t member) {
  return Mine<int32_t>(call, call.at.places_bytes) + uint64_t{member} * call.max_tokens;
}
// Row `row` of what `from` gave `to`.
IRIS_DEVICE inline uint64_t SlotOf(const MoeCall& call, uint32_t from, uint32_t row) {
  return uint64_t{from} * call.max_tokens + row;
}
IRIS_DEVICE inline uint8_t* RowAt(const MoeCall& call, uint32_t to, uint64_t slot) {
  return At<uint8_t>(call, to, call.at.rows_bytes + slot * call.at.row_stride_bytes);
}
IRIS_DEVICE inline Entry* EntriesAt(const MoeCall& call, uint32_t to, uint64_t slot) {
  return At<Entry>(call, to, call.at.entries_bytes) + slot * call.top_k;
}
// Where this member put the choices of a row that came.
IRIS_DEVICE inline int32_t* TargetsAt(const MoeCall& call, uint64_t slot) {
  return Mine<int32_t>(call, call.at.targets_bytes) + slot * call.top_k;
}

IRIS_DEVICE inline int64_t IdAt(const MoeCall& call, uint64_t i) {
  if (call.ids_type == DType::kI64) {
    return backend::LoadPlain(reinterpret_cast<const int64_t*>(call.ids) + i);
  }
  return backend::LoadPlain(reinterpret_cast<const int32_t*>(call.ids) + i);
}
// Choice j of token t: an expert that no earlier choice of the token names; else -1.
IRIS_DEVICE inline int64_t ChoiceOf(const MoeCall& call, uint32_t t, uint32_t j) {
  const uint64_t first = uint64_t{t} * call.top_k;
  const int64_t id = IdAt(call, first + j);
  if (id < 0 || id >= call.n_experts) return -1;
  for (uint32_t i = 0; i < j; ++i) {
    if (IdAt(call, first + i) == id) return -1;
  }
  return id;
}

// Whether an operation of the Comm has failed at this member.
IRIS_DEVICE inline bool Failed(const MoeCall& call) {
  const ccl::impl::Header* const header = ccl::impl::HeaderAt(call.common, call.common.index);
  return backend::Load<Scope::kDevice, Order::kRelaxed>(&header->failed) != 0;
}

// Ends the operation at this member by its own doing, and all that follow on the stream.
IRIS_COLD void FailHere(const MoeCall& call, StatusCode code, uint32_t member, uint64_t detail,
                        uint64_t value, uint32_t sequence) {
  ccl::ErrorReport* const report = call.common.report;
  if (backend::Load<Scope::kSystem, Order::kRelaxed>(&report->word) == 0) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(&report->mismatch[0], detail);
    backend::Store<Scope::kSystem, Order::kRelaxed>(&report->mismatch[1], value);
  }
  ccl::impl::RecordError(call.common, code, call.common.operation, member, sequence);
  ccl::impl::Header* const header = ccl::impl::HeaderAt(call.common, call.common.index);
  backend::Store<Scope::kDevice, Order::kRelaxed>(&header->failed, 1u);
  for (uint32_t b = 0; b < call.sync_blocks; ++b) {
    auto* const state = iris::AtOffset<ccl::impl::BlockState>(
        call.common.context, call.common.context.rank,
        call.common.sync_offset_bytes + b * ccl::impl::SyncBytes(call.common.size));
    backend::Store<Scope::kDevice, Order::kRelaxed>(&state->failed, 1u);
  }
}

// The work of a grid, dealt out to its warps.
struct Warps {
  uint64_t first;
  uint64_t step;
};
IRIS_DEVICE inline Warps WarpsOf(uint32_t block, uint32_t blocks) {
  const uint64_t each = backend::BlockSize() / backend::WarpSize();
  // Neighbours in different blocks: few rows then keep many multiprocessors busy.
  return {backend::WarpIndex() * uint64_t{blocks} + block, each * blocks};
}
IRIS_DEVICE inline Warps WarpsOfGrid() {
  return WarpsOf(backend::BlockIndex(), backend::GridSize());
}
// The same of a kernel that meets the others, in whatever pieces it is launched.
IRIS_DEVICE inline Warps WarpsOfTeam(const MoeCall& call) {
  return WarpsOf(ccl::impl::BlockOf(call.common), ccl::impl::GridOf(call.common));
}

IRIS_DEVICE inline uint32_t CountBelow(uint64_t ballot, uint32_t lane) {
  uint32_t count = 0;
  for (uint64_t rest = ballot & ((uint64_t{1} << lane) - 1); rest != 0; rest &= rest - 1) ++count;
  return count;
}
IRIS_DEVICE inline uint32_t CountOf(uint64_t ballot) {
  uint32_t count = 0;
  for (; ballot != 0; ballot &= ballot - 1) ++count;
  return count;
}

// Numbers the tokens for which `wanted(t)` is true, in their order: calls take(t, number) for each
// token, with ~0u where it is not. Returns how many there are, in all threads. By a whole block.
template <typename Wanted, typename Take>
IRIS_DEVICE inline uint32_t NumberTokens(uint32_t tokens, uint32_t* sums, Wanted wanted,
                                         Take take) {
  const uint32_t warps = backend::BlockSize() / backend::WarpSize();
  uint32_t before = 0;
  for (uint32_t base = 0; base < tokens; base += backend::BlockSize()) {
    const uint32_t t = base + backend::ThreadIndex();
    const bool is = t < tokens && wanted(t);
    const uint64_t ballot = backend::Ballot(is);
    iris::impl::SyncInsideBlock();  // the sums of the turn before have been read
    if (backend::LaneIndex() == 0) sums[backend::WarpIndex()] = CountOf(ballot);
    iris::impl::SyncInsideBlock();
    uint32_t mine = before;
    for (uint32_t w = 0; w < warps; ++w) {
      if (w < backend::WarpIndex()) mine += sums[w];
      before += sums[w];
    }
    if (t < tokens) take(t, is ? mine + CountBelow(ballot, backend::LaneIndex()) : ~0u);
  }
  return before;
}

// One block numbers the tokens of one expert, or of one receiver, at a time; the last one looks for
// choices that are none.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Route(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(uint32_t[kMaxWarps], sums);
  IRIS_SHARED(uint32_t[kMaxThreads], firsts);
  const uint32_t members = call.common.size;
  Told* const own = Own(call);
  const uint32_t jobs = call.n_experts + members + 1;
  for (uint32_t job = backend::BlockIndex(); job < jobs; job += backend::GridSize()) {
    if (job < call.n_experts) {
      uint32_t* const orders = Mine<uint32_t>(call, call.at.orders_bytes);
      uint32_t which = 0;  // of this thread's token
      const uint32_t count = NumberTokens(
          call.tokens, sums,
          [&](uint32_t t) {
            const uint64_t first = uint64_t{t} * call.top_k;
            for (which = 0; which < call.top_k; ++which) {
              if (IdAt(call, first + which) == job) return true;
            }
            return false;
          },
          [&](uint32_t t, uint32_t number) {
            if (number != ~0u) orders[uint64_t{t} * call.top_k + which] = number;
          });
      if (backend::ThreadIndex() == 0) RowsOfExperts(own)[job] = count;
    } else if (job < call.n_experts + members) {
      const uint32_t to = job - call.n_experts;
      const Experts experts = ExpertsOf(call.n_experts, members, to);
      int32_t* const places = PlacesTo(call, to);
      const uint32_t count = NumberTokens(
          call.tokens, sums,
          [&](uint32_t t) {
            const uint64_t first = uint64_t{t} * call.top_k;
            for (uint32_t j = 0; j < call.top_k; ++j) {
              const int64_t id = IdAt(call, first + j);
              if (id >= experts.begin && id < int64_t{experts.begin} + experts.count) return true;
            }
            return false;
          },
          [&](uint32_t t, uint32_t number) { places[t] = static_cast<int32_t>(number); });
      if (backend::ThreadIndex() == 0) Mine<uint32_t>(call, call.at.sent_bytes)[to] = count;
    } else {
      const uint64_t n = uint64_t{call.tokens} * call.top_k;
      uint32_t first = ~0u;
      for (uint64_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) {
        const uint32_t t = static_cast<uint32_t>(i / call.top_k);
        if (IdAt(call, i) != -1 &&
            ChoiceOf(call, t, static_cast<uint32_t>(i - uint64_t{t} * call.top_k)) < 0) {
          if (t < first) first = t;
        }
      }
      firsts[backend::ThreadIndex()] = first;
      iris::impl::SyncInsideBlock();
      if (backend::ThreadIndex() == 0) {
        for (uint32_t i = 1; i < backend::BlockSize(); ++i) {
          if (firsts[i] < first) first = firsts[i];
        }
        own->bad = BadId::kNone;
        for (uint32_t j = 0; first != ~0u && j < call.top_k; ++j) {
          const int64_t id = IdAt(call, uint64_t{first} * call.top_k + j);
          if (id == -1 || ChoiceOf(call, first, j) >= 0) continue;
          own->bad = id < 0 || id >= call.n_experts ? BadId::kNoSuchExpert : BadId::kRepeated;
          own->bad_token = first;
          own->bad_value = id;
          break;
        }
        Head* const head = Mine<Head>(call, 0);
        head->tag = 0;
        head->tokens = call.tokens;
      }
      iris::impl::SyncInsideBlock();
    }
  }
}

// Where the rows of up to kFan receivers, or rows, begin; null: there is none.
struct Fan {
  uint8_t* to[kFan];
};

// A row of `bytes` at `from` to all of them, by a warp. `whole`: what is behind the row, up to a
// multiple of 16 bytes, may be written.
IRIS_DEVICE inline void CopyRow(const uint8_t* from, uint32_t bytes, uint32_t element_bytes,
                                const Fan& fan, bool whole) {
  for (uint32_t at = backend::LaneIndex() * 16; at < bytes; at += backend::WarpSize() * 16) {
    const uint32_t rest = bytes - at;
    const Bytes16 part = LoadPart(from + at, rest, element_bytes);
    IRIS_UNROLL(8)
    for (uint32_t f = 0; f < kFan; ++f) {
      if (fan.to[f] == nullptr) continue;
      StorePart(fan.to[f] + at, whole ? 16 : rest, element_bytes, part);
    }
  }
}

// The same, as f8e4m3 with scales, by lanes of eight: each has 16 of 128 columns.
IRIS_DEVICE inline void QuantizeRow(const MoeCall& call, const uint8_t* from, const Fan& fan) {
  constexpr uint32_t kLanes = kScaleColumns / 16;
  const uint32_t element_bytes = ElementBytes(call.in);
  const uint32_t groups = (call.hidden + kScaleColumns - 1) / kScaleColumns;
  const uint32_t at_once = backend::WarpSize() / kLanes;
  const uint32_t lane = backend::LaneIndex() % kLanes;
  for (uint32_t base = 0; base < groups; base += at_once) {
    const uint32_t group = base + backend::LaneIndex() / kLanes;
    const uint32_t column = group * kScaleColumns + lane * 16;
    const uint32_t count = column >= call.hidden       ? 0
                           : call.hidden - column < 16 ? call.hidden - column
                                                       : 16;
    float low[8] = {};
    float high[8] = {};
    const uint8_t* const p = from + uint64_t{column} * element_bytes;
    if (count > 0) LoadFloats(p, call.in, count < 8 ? count : 8, low);
    if (count > 8) LoadFloats(p + 8 * element_bytes, call.in, count - 8, high);
    // As bits, so that a NaN is the largest of all.
    uint32_t largest = 0;
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < 8; ++e) {
      const uint32_t a = backend::BitCast<uint32_t>(low[e]) & 0x7fffffff;
      const uint32_t b = backend::BitCast<uint32_t>(high[e]) & 0x7fffffff;
      if (a > largest) largest = a;
      if (b > largest) largest = b;
    }
    IRIS_UNROLL(3)
    for (uint32_t mask = 1; mask < kLanes; mask *= 2) {
      const uint32_t other = backend::ShuffleXor(largest, mask);
      if (other > largest) largest = other;
    }
    const float least = 1e-30f;
    if (largest < backend::BitCast<uint32_t>(least)) largest = backend::BitCast<uint32_t>(least);
    const float scale = backend::BitCast<float>(largest) / 448.0f;
    if (count == 0) continue;
    uint64_t words[2] = {};
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < 8; ++e) {
      words[0] |= uint64_t{E4M3Bits(low[e] / scale)} << 8 * e;
      words[1] |= uint64_t{E4M3Bits(high[e] / scale)} << 8 * e;
    }
    IRIS_UNROLL(8)
    for (uint32_t f = 0; f < kFan; ++f) {
      if (fan.to[f] == nullptr) continue;
      StorePart(fan.to[f] + column, 16, 1, {words[0], words[1]});
      if (lane == 0) {
        backend::StorePlain(reinterpret_cast<float*>(fan.to[f] + call.at.scales_at_bytes) + group,
                            scale);
      }
    }
  }
}

// Token t to all who want it, by a warp.
IRIS_DEVICE inline void SendToken(const MoeCall& call, uint32_t t) {
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const uint32_t element_bytes = ElementBytes(call.in);
  const uint32_t bytes = call.hidden * element_bytes;
  const uint32_t lane = backend::LaneIndex();
  for (uint32_t base = 0; base < members; base += kFan) {
    Fan fan;
    bool any = false;
    IRIS_UNROLL(8)
    for (uint32_t f = 0; f < kFan; ++f) {
      fan.to[f] = nullptr;
      if (base + f >= members) continue;
      // Each begins with another member.
      uint32_t to = me + base + f;
      if (to >= members) to -= members;
      const int32_t place = PlacesTo(call, to)[t];
      if (place < 0) continue;
      any = true;
      const uint64_t slot = SlotOf(call, me, static_cast<uint32_t>(place));
      fan.to[f] = RowAt(call, to, slot);
      const Experts experts = ExpertsOf(call.n_experts, members, to);
      for (uint32_t j = lane; j < call.top_k; j += backend::WarpSize()) {
        const uint64_t i = uint64_t{t} * call.top_k + j;
        const int64_t id = ChoiceOf(call, t, j);
        Entry entry = {-1, 0, 0, 0};
        if (id >= experts.begin && id < int64_t{experts.begin} + experts.count) {
          entry.expert = static_cast<int32_t>(id - experts.begin);
          entry.order = Mine<uint32_t>(call, call.at.orders_bytes)[i];
          entry.weight = call.weights == nullptr ? 1.0f : backend::LoadPlain(call.weights + i);
        }
        backend::Store16<CacheHint::kDefault>(EntriesAt(call, to, slot) + j,
                                              backend::BitCast<Bytes16>(entry));
      }
    }
    if (!any) continue;
    const uint8_t* const from = call.x + uint64_t{t} * bytes;
    if (call.rows != call.in) {
      QuantizeRow(call, from, fan);
      continue;
    }
    CopyRow(from, bytes, element_bytes, fan, true);
    if (call.rows == DType::kF8E4M3) {
      const uint32_t scales = (call.hidden + kScaleColumns - 1) / kScaleColumns;
      IRIS_UNROLL(8)
      for (uint32_t f = 0; f < kFan; ++f) {
        if (fan.to[f] != nullptr) fan.to[f] += call.at.scales_at_bytes;
      }
      CopyRow(reinterpret_cast<const uint8_t*>(call.x_scales + uint64_t{t} * scales), scales * 4, 4,
              fan, true);
    }
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Send(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  Rounds rounds(call.common, &shared, ccl::impl::BlockOf(call.common));
  if (!rounds.broken() && rounds.Exchange(false)) {
    const Warps warps = WarpsOfTeam(call);
    for (uint64_t t = warps.first; t < call.tokens; t += warps.step) {
      SendToken(call, static_cast<uint32_t>(t));
    }
    // The counts, dealt out by their receivers.
    for (uint32_t to = ccl::impl::BlockOf(call.common); to < call.common.size;
         to += ccl::impl::GridOf(call.common)) {
      Told* const own = Own(call);
      Told* const told = ToldBy(call, to, call.common.index);
      for (uint32_t e = backend::ThreadIndex(); e < call.n_experts; e += backend::BlockSize()) {
        backend::StorePlain(RowsOfExperts(told) + e, RowsOfExperts(own)[e]);
      }
      if (backend::ThreadIndex() == 0) {
        backend::StorePlain(&told->rows, Mine<uint32_t>(call, call.at.sent_bytes)[to]);
        backend::StorePlain(&told->bad, own->bad);
        backend::StorePlain(&told->bad_token, own->bad_token);
        backend::StorePlain(&told->bad_value, own->bad_value);
      }
    }
    rounds.MeetLast(true);
  }
  rounds.Conclude();
}

// By one block.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Place(IRIS_PARAM MoeCall call) {
  if (Failed(call)) return;
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const Experts experts = ExpertsOf(call.n_experts, members, me);
  uint32_t* const bases = Mine<uint32_t>(call, call.at.bases_bytes);
  for (uint32_t e = backend::ThreadIndex(); e < experts.count; e += backend::BlockSize()) {
    uint32_t rows = 0;
    for (uint32_t m = 0; m < members; ++m) {
      bases[uint64_t{m} * experts.count + e] = rows;
      rows += RowsOfExperts(ToldBy(call, me, m))[experts.begin + e];
    }
    const uint32_t over = call.capacity != 0 && rows > call.capacity ? rows - call.capacity : 0;
    if (call.counts != nullptr) call.counts[e] = static_cast<int32_t>(rows - over);
    if (call.dropped != nullptr) call.dropped[e] = static_cast<int32_t>(over);
  }
  if (backend::ThreadIndex() != 0) return;
  int32_t* const firsts = Mine<int32_t>(call, call.at.firsts_bytes);
  uint32_t first = 0;
  for (uint32_t e = 0; e < experts.count; ++e) {
    firsts[e] = static_cast<int32_t>(first);
    if (call.offsets != nullptr) call.offsets[e] = static_cast<int32_t>(first);
    if (call.capacity != 0) {
      first += call.capacity;
      continue;
    }
    for (uint32_t m = 0; m < members; ++m) {
      first += RowsOfExperts(ToldBy(call, me, m))[experts.begin + e];
    }
  }
  if (call.offsets != nullptr) call.offsets[experts.count] = static_cast<int32_t>(first);
  for (uint32_t m = 0; m < members; ++m) {
    const Told* const told = ToldBy(call, me, m);
    if (told->bad == BadId::kNone) continue;
    const ccl::impl::Header* const header = ccl::impl::HeaderAt(call.common, me);
    const uint32_t finished = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->sequence);
    FailHere(call, StatusCode::kOutOfRange, m,
             static_cast<uint64_t>(told->bad_token) << 32 | static_cast<uint32_t>(told->bad),
             static_cast<uint64_t>(told->bad_value), finished - 1);
    return;
  }
  Mine<Head>(call, 0)->tag = call.tag;
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Expand(IRIS_PARAM MoeCall call) {
  if (Failed(call)) return;
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const Experts experts = ExpertsOf(call.n_experts, members, me);
  const uint32_t* const bases = Mine<uint32_t>(call, call.at.bases_bytes);
  const int32_t* const firsts = Mine<int32_t>(call, call.at.firsts_bytes);
  const uint32_t element_bytes = ElementBytes(call.rows);
  const uint32_t bytes = call.hidden * element_bytes;
  const uint32_t scales =
      call.rows == DType::kF8E4M3 ? (call.hidden + kScaleColumns - 1) / kScaleColumns : 0;
  const Warps warps = WarpsOfGrid();
  const uint64_t slots = uint64_t{members} * call.max_tokens;
  for (uint64_t slot = warps.first; slot < slots; slot += warps.step) {
    const uint32_t from = static_cast<uint32_t>(slot / call.max_tokens);
    if (slot - uint64_t{from} * call.max_tokens >= ToldBy(call, me, from)->rows) continue;
    const Entry* const entries = EntriesAt(call, me, slot);
    int32_t* const targets = TargetsAt(call, slot);
    const uint8_t* const row = RowAt(call, me, slot);
    // Two fans, of rows and of their scales, filled from the choices that are this member's.
    for (uint32_t j = 0; j < call.top_k;) {
      Fan fan;
      Fan scale_fan;
      bool any = false;
      IRIS_UNROLL(8)
      for (uint32_t f = 0; f < kFan; ++f) {
        fan.to[f] = nullptr;
        scale_fan.to[f] = nullptr;
        int64_t to = -1;
        for (; to < 0 && j < call.top_k; ++j) {
          const Entry entry =
              backend::BitCast<Entry>(backend::Load16<CacheHint::kDefault>(entries + j));
          if (entry.expert < 0) continue;
          const uint32_t order = bases[uint64_t{from} * experts.count + entry.expert] + entry.order;
          if (call.capacity == 0 || order < call.capacity)
            to = firsts[entry.expert] + int64_t{order};
          if (backend::LaneIndex() == 0) {
            targets[j] = static_cast<int32_t>(to);
            if (to >= 0 && call.sources != nullptr) call.sources[to] = static_cast<int32_t>(slot);
          }
        }
        if (to < 0) continue;
        any = true;
        if (call.out_rows != nullptr) fan.to[f] = call.out_rows + to * bytes;
        if (scales != 0 && call.out_rows != nullptr) {
          scale_fan.to[f] = reinterpret_cast<uint8_t*>(call.out_scales + to * scales);
        }
      }
      if (!any || call.out_rows == nullptr) continue;
      CopyRow(row, bytes, element_bytes, fan, false);
      if (scales != 0) CopyRow(row + call.at.scales_at_bytes, scales * 4, 4, scale_fan, false);
    }
  }
}

// By a warp: what the local experts made of a row, summed.
IRIS_DEVICE inline void ReturnRow(const MoeCall& call, uint64_t slot, uint8_t* to) {
  const Entry* const entries = EntriesAt(call, call.common.index, slot);
  const int32_t* const targets = TargetsAt(call, slot);
  const uint64_t row_bytes = uint64_t{call.hidden} * ElementBytes(call.y_type);
  const uint32_t y_bytes = ElementBytes(call.y_type);
  const uint32_t to_bytes = ElementBytes(call.partials);
  for (uint32_t column = backend::LaneIndex() * 8; column < call.hidden;
       column += backend::WarpSize() * 8) {
    const uint32_t rest = call.hidden - column;
    const uint32_t count = rest < 8 ? rest : 8;
    float sums[8] = {};
    for (uint32_t j = 0; j < call.top_k; ++j) {
      const Entry entry =
          backend::BitCast<Entry>(backend::Load16<CacheHint::kDefault>(entries + j));
      if (entry.expert < 0) continue;
      const int32_t row = backend::LoadPlain(targets + j);
      if (row < 0) continue;
      float values[8];
      LoadFloats(call.y + static_cast<uint64_t>(row) * row_bytes + column * y_bytes, call.y_type,
                 count, values);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < 8; ++e) sums[e] += entry.weight * values[e];
    }
    StoreFloats(to + column * to_bytes, call.partials, count, sums);
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Return(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  Rounds rounds(call.common, &shared, ccl::impl::BlockOf(call.common));
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  if (!rounds.broken() && rounds.Exchange(false)) {
    // The same answer in all blocks: nobody changes it now.
    const bool fits = Mine<Head>(call, 0)->tag == call.tag;
    const Warps warps = WarpsOfTeam(call);
    const uint64_t slots = uint64_t{members} * call.max_tokens;
    for (uint64_t i = warps.first; fits && i < slots; i += warps.step) {
      // Neighbouring warps give to different members.
      const uint32_t step = static_cast<uint32_t>(i % members);
      const uint32_t to = me + step < members ? me + step : me + step - members;
      const uint32_t row = static_cast<uint32_t>(i / members);
      if (row >= ToldBy(call, me, to)->rows) continue;
      ReturnRow(call, SlotOf(call, to, row), RowAt(call, to, SlotOf(call, me, row)));
    }
    rounds.MeetLast(true);
  }
  rounds.Conclude();
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Gather(IRIS_PARAM MoeCall call) {
  if (Failed(call)) return;
  const Head* const head = Mine<Head>(call, 0);
  if (head->tag != call.tag || head->tokens != call.tokens) {
    // Every block comes here, and one tells.
    if (backend::BlockIndex() != 0 || backend::ThreadIndex() != 0) return;
    const ccl::impl::Header* const header = ccl::impl::HeaderAt(call.common, call.common.index);
    const uint32_t finished = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->sequence);
    FailHere(call, StatusCode::kFailedPrecondition, call.common.index,
             head->tag == call.tag ? 1 : 0, head->tokens, finished - 1);
    return;
  }
  const uint32_t members = call.common.size;
  const uint32_t from_bytes = ElementBytes(call.partials);
  const uint32_t out_bytes = ElementBytes(call.out_type);
  const Warps warps = WarpsOfGrid();
  for (uint64_t t = warps.first; t < call.tokens; t += warps.step) {
    for (uint32_t column = backend::LaneIndex() * 8; column < call.hidden;
         column += backend::WarpSize() * 8) {
      const uint32_t rest = call.hidden - column;
      const uint32_t count = rest < 8 ? rest : 8;
      float sums[8] = {};
      for (uint32_t m = 0; m < members; ++m) {
        const int32_t place = PlacesTo(call, m)[t];
        if (place < 0) continue;
        float values[8];
        const uint8_t* const row =
            RowAt(call, call.common.index, SlotOf(call, m, static_cast<uint32_t>(place)));
        LoadFloats(row + column * from_bytes, call.partials, count, values);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < 8; ++e) sums[e] += values[e];
      }
      StoreFloats(call.out + (t * call.hidden + column) * out_bytes, call.out_type, count, sums);
    }
  }
}

}  // namespace iris::moe::impl
