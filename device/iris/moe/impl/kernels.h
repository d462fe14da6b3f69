// The kernels of Dispatch and Combine, in the order in which a call starts them.
//
//   Dispatch   Route    numbers this rank's choices: the row in the receiver's inbox, and the place
//                       among the rows for the expert
//              Send     after a round of the team, sends rows, choices and counts to the receivers
//              Place    from the counts of all ranks, places the local experts' rows
//              Expand   copies rows from the inboxes to `rows`, ordered by expert
//   Combine    Return   after a round, sends sums of the local experts' rows to other ranks
//              Gather   sums the results for this rank's own rows, and the sums that came back
//
// Rows from a rank to itself do not go through its inbox, unless the caller asks for the place of
// each row in the inbox: Expand takes them from x, and Gather from y.
//
// On several nodes, Send and Return only store: into the inboxes of this node's ranks, and into
// memory from which the port puts what is for others. Before them, an all_gather exchanges a
// message of each rank to all, which Tell prepares, and Taken reads the counts if there is a
// capacity. After them come a barrier of the node's ranks, and Ship, which puts rows and awaits
// those of others.
//
// Only Send and Return synchronize with other ranks. The other kernels begin when all blocks of the
// kernel before have passed its last round, and do nothing if one block did not pass it.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/moe/impl/layout.h"
#include "iris/moe/impl/rows.h"
#include "iris/nodes/impl/kernels.h"
#include "iris/nodes/impl/layout.h"
#include "iris/rounds/protocol.h"

namespace iris::moe::impl {

using ccl::impl::Rounds;

inline constexpr uint32_t kMaxThreads = 512;  // of a block of these kernels
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

// Returns the message of member `from` to member `to`; `from`'s rows for each expert follow it.
IRIS_DEVICE inline Told* ToldBy(const MoeCall& call, uint32_t to, uint32_t from) {
  return At<Told>(call, to, call.at.told_bytes + from * call.at.told_stride_bytes);
}
IRIS_DEVICE inline uint32_t* RowsOfExperts(Told* told) {
  return reinterpret_cast<uint32_t*>(told + 1);
}
IRIS_DEVICE inline uint32_t* RowsFor(const MoeCall& call, Told* told) {
  return RowsOfExperts(told) + call.n_experts;
}
// Returns the number of rows from member `from` to this one.
IRIS_DEVICE inline uint32_t RowsFrom(const MoeCall& call, uint32_t from) {
  Told* const told = ToldBy(call, call.common.index, from);
  return call.nodes == nullptr ? told->rows : RowsFor(call, told)[call.common.index];
}
IRIS_DEVICE inline uint32_t* OwnRowsOfExperts(const MoeCall& call) {
  return Mine<uint32_t>(call, call.at.own_bytes);
}

IRIS_DEVICE inline int32_t* PlacesTo(const MoeCall& call, uint32_t member) {
  return Mine<int32_t>(call, call.at.places_bytes) + uint64_t{member} * call.max_tokens;
}
// Returns the slot of row `row` from `from` at `to`.
IRIS_DEVICE inline uint64_t SlotOf(const MoeCall& call, uint32_t from, uint32_t row) {
  return uint64_t{from} * call.max_tokens + row;
}
IRIS_DEVICE inline uint8_t* RowAt(const MoeCall& call, uint32_t to, uint64_t slot) {
  return At<uint8_t>(call, to, call.at.rows_bytes + slot * call.at.row_stride_bytes);
}
IRIS_DEVICE inline Entry* EntriesAt(const MoeCall& call, uint32_t to, uint64_t slot) {
  return At<Entry>(call, to, call.at.entries_bytes) + slot * call.top_k;
}
// Return where this member stores row `row` for `to`, and its entries.
IRIS_DEVICE inline uint8_t* RowTo(const MoeCall& call, uint32_t to, uint32_t row) {
  if (call.common.members[to] != kElsewhere) {
    return RowAt(call, to, SlotOf(call, call.common.index, row));
  }
  return Mine<uint8_t>(
      call, call.at.staged_rows_bytes + SlotOf(call, to, row) * call.at.row_stride_bytes);
}
IRIS_DEVICE inline Entry* EntriesTo(const MoeCall& call, uint32_t to, uint32_t row) {
  if (call.common.members[to] != kElsewhere) {
    return EntriesAt(call, to, SlotOf(call, call.common.index, row));
  }
  return Mine<Entry>(call, call.at.staged_entries_bytes) + SlotOf(call, to, row) * call.top_k;
}
// Returns the targets of a received row's choices at this member.
IRIS_DEVICE inline int32_t* TargetsAt(const MoeCall& call, uint64_t slot) {
  return Mine<int32_t>(call, call.at.targets_bytes) + slot * call.top_k;
}

IRIS_DEVICE inline int64_t IdAt(const MoeCall& call, uint64_t i) {
  if (call.ids_type == DType::kI64) {
    return backend::LoadPlain(reinterpret_cast<const int64_t*>(call.ids) + i);
  }
  return backend::LoadPlain(reinterpret_cast<const int32_t*>(call.ids) + i);
}
// Returns choice j of token t, or -1 if there is no such expert or an earlier choice of the token
// is the same.
IRIS_DEVICE inline int64_t ChoiceOf(const MoeCall& call, uint32_t t, uint32_t j) {
  const uint64_t first = uint64_t{t} * call.top_k;
  const int64_t id = IdAt(call, first + j);
  if (id < 0 || id >= call.n_experts) return -1;
  for (uint32_t i = 0; i < j; ++i) {
    if (IdAt(call, first + i) == id) return -1;
  }
  return id;
}

IRIS_DEVICE inline ccl::impl::NodesState* NodesStateOf(const MoeCall& call) {
  return iris::AtOffset<ccl::impl::NodesState>(call.common.context, call.common.context.rank,
                                               call.nodes_state_bytes);
}
// Returns true if an operation of the Comm, or of the NodesComm, has failed at this member.
IRIS_DEVICE inline bool Failed(const MoeCall& call) {
  if (call.nodes != nullptr &&
      backend::Load<Scope::kDevice, Order::kRelaxed>(&NodesStateOf(call)->failed) != 0) {
    return true;
  }
  const ccl::impl::Header* const header = ccl::impl::HeaderAt(call.common, call.common.index);
  return backend::Load<Scope::kDevice, Order::kRelaxed>(&header->failed) != 0;
}

// Fails this operation, which has been counted, and all later ones of the Comm or NodesComm at this
// member, with an error of iris::moe.
IRIS_COLD void FailHere(const MoeCall& call, StatusCode code, uint32_t member, uint64_t detail,
                        uint64_t value) {
  ccl::ErrorReport* const report = call.common.report;
  uint64_t* const word = call.nodes == nullptr ? &report->word : &call.nodes->word;
  if (backend::Load<Scope::kSystem, Order::kRelaxed>(word) == 0) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(&report->mismatch[0], detail);
    backend::Store<Scope::kSystem, Order::kRelaxed>(&report->mismatch[1], value);
  }
  if (call.nodes != nullptr) {
    ccl::impl::NodesState* const state = NodesStateOf(call);
    (void)backend::CompareExchange<Scope::kSystem, Order::kAcqRel>(
        word, uint64_t{0},
        ccl::impl::PackNodesError(static_cast<uint64_t>(code), call.common.operation, member,
                                  state->sequence - 1));
    backend::Store<Scope::kDevice, Order::kRelaxed>(&state->failed, 1u);
    return;
  }
  ccl::impl::Header* const header = ccl::impl::HeaderAt(call.common, call.common.index);
  const uint32_t finished = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->sequence);
  ccl::impl::RecordError(call.common, code, call.common.operation, member, finished - 1);
  backend::Store<Scope::kDevice, Order::kRelaxed>(&header->failed, 1u);
  for (uint32_t b = 0; b < call.sync_blocks; ++b) {
    auto* const state = iris::AtOffset<ccl::impl::BlockState>(
        call.common.context, call.common.context.rank,
        call.common.sync_offset_bytes + b * ccl::impl::SyncBytes(call.common.size));
    backend::Store<Scope::kDevice, Order::kRelaxed>(&state->failed, 1u);
  }
}

// The work of a grid, divided among its warps.
struct Warps {
  uint64_t first;
  uint64_t step;
};
IRIS_DEVICE inline Warps WarpsOf(uint32_t block, uint32_t blocks) {
  const uint64_t each = backend::BlockSize() / backend::WarpSize();
  // Consecutive items go to different blocks, so that a few rows keep many multiprocessors busy.
  return {backend::WarpIndex() * uint64_t{blocks} + block, each * blocks};
}
IRIS_DEVICE inline Warps WarpsOfGrid() {
  return WarpsOf(backend::BlockIndex(), backend::GridSize());
}
// Divides the work of a kernel that meets other members, also if it is launched in pieces.
IRIS_DEVICE inline Warps WarpsOfTeam(const MoeCall& call) {
  if (call.nodes != nullptr) return WarpsOfGrid();
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
// token, with ~0u for the others. Returns the count in all threads. All threads of a block call it.
template <typename Wanted, typename Take>
IRIS_DEVICE inline uint32_t NumberTokens(uint32_t tokens, uint32_t* sums, Wanted wanted,
                                         Take take) {
  const uint32_t warps = backend::BlockSize() / backend::WarpSize();
  uint32_t before = 0;
  for (uint32_t base = 0; base < tokens; base += backend::BlockSize()) {
    const uint32_t t = base + backend::ThreadIndex();
    const bool is = t < tokens && wanted(t);
    const uint64_t ballot = backend::Ballot(is);
    iris::impl::SyncInsideBlock();  // the sums of the previous iteration have been read
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

inline constexpr uint32_t kIdsAtOnce = 8;

// Calls look(j, id) for each choice of token t. Several loads are in flight at once.
template <typename Look>
IRIS_DEVICE inline void ForChoices(const MoeCall& call, uint32_t t, Look look) {
  const uint64_t first = uint64_t{t} * call.top_k;
  for (uint32_t base = 0; base < call.top_k; base += kIdsAtOnce) {
    int64_t ids[kIdsAtOnce];
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kIdsAtOnce; ++u) {
      ids[u] = base + u < call.top_k ? IdAt(call, first + base + u) : -1;
    }
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kIdsAtOnce; ++u) {
      if (base + u < call.top_k) look(base + u, ids[u]);
    }
  }
}

// Returns how many groups of tokens the blocks check for invalid experts.
IRIS_DEVICE inline uint32_t Checks(const MoeCall& call) {
  const uint32_t checks = (call.tokens + backend::BlockSize() - 1) / backend::BlockSize();
  return checks == 0 ? 1 : checks;
}

// Routes the tokens. A block numbers the tokens of one expert or of one receiver at a time, or
// checks the choices of as many tokens as it has threads.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Route(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(uint32_t[kMaxWarps], sums);
  IRIS_SHARED(uint32_t[kMaxThreads], firsts);
  const uint32_t members = call.common.size;
  const uint32_t jobs = call.n_experts + members + Checks(call);
  for (uint32_t job = backend::BlockIndex(); job < jobs; job += backend::GridSize()) {
    if (job < call.n_experts) {
      uint32_t* const orders = Mine<uint32_t>(call, call.at.orders_bytes);
      uint32_t which = 0;  // the choice of this thread's token
      const uint32_t count = NumberTokens(
          call.tokens, sums,
          [&](uint32_t t) {
            which = ~0u;
            ForChoices(call, t, [&](uint32_t j, int64_t id) {
              if (id == job && which == ~0u) which = j;
            });
            return which != ~0u;
          },
          [&](uint32_t t, uint32_t number) {
            if (number != ~0u) orders[uint64_t{t} * call.top_k + which] = number;
          });
      if (backend::ThreadIndex() == 0) OwnRowsOfExperts(call)[job] = count;
    } else if (job < call.n_experts + members) {
      const uint32_t to = job - call.n_experts;
      const Experts experts = ExpertsOf(call.n_experts, members, to);
      int32_t* const places = PlacesTo(call, to);
      const uint32_t count = NumberTokens(
          call.tokens, sums,
          [&](uint32_t t) {
            bool wanted = false;
            ForChoices(call, t, [&](uint32_t, int64_t id) {
              if (id >= experts.begin && id < int64_t{experts.begin} + experts.count) wanted = true;
            });
            return wanted;
          },
          [&](uint32_t t, uint32_t number) { places[t] = static_cast<int32_t>(number); });
      if (backend::ThreadIndex() == 0) Mine<uint32_t>(call, call.at.sent_bytes)[to] = count;
    } else {
      const uint32_t check = job - call.n_experts - members;
      const uint32_t t = check * backend::BlockSize() + backend::ThreadIndex();
      bool bad = false;
      if (t < call.tokens) {
        ForChoices(call, t, [&](uint32_t j, int64_t id) {
          if (id != -1 && ChoiceOf(call, t, j) < 0) bad = true;
        });
      }
      firsts[backend::ThreadIndex()] = bad ? t : ~0u;
      iris::impl::SyncInsideBlock();
      if (backend::ThreadIndex() == 0) {
        uint32_t first = ~0u;
        for (uint32_t i = 0; first == ~0u && i < backend::BlockSize(); ++i) first = firsts[i];
        Mine<uint32_t>(call, call.at.checks_bytes)[check] = first;
        if (check == 0) {
          Head* const head = Mine<Head>(call, 0);
          head->tag = 0;
          head->tokens = call.tokens;
          head->counted = 0;
        }
      }
      iris::impl::SyncInsideBlock();
    }
  }
}

// The destinations of up to kFan rows; null: none.
struct Fan {
  uint8_t* to[kFan];
};

// Copies a row to all destinations. Called by a warp. If `whole`, bytes after the row, up to a
// multiple of 16, may be written.
IRIS_DEVICE inline void CopyRow(const uint8_t* from, uint32_t bytes, uint32_t element_bytes,
                                const Fan& fan, bool whole) {
  const uint32_t step = backend::WarpSize() * 16;
  uint64_t bits = reinterpret_cast<uint64_t>(from) | bytes;
  IRIS_UNROLL(8)
  for (uint32_t f = 0; f < kFan; ++f) bits |= reinterpret_cast<uint64_t>(fan.to[f]);
  if (bits % 16 == 0) {
    constexpr uint32_t kAtOnce = 4;
    for (uint32_t at = backend::LaneIndex() * 16; at < bytes; at += kAtOnce * step) {
      Bytes16 parts[kAtOnce];
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t here = at + u * step;
        parts[u] = backend::Load16<CacheHint::kDefault>(from + (here < bytes ? here : at));
      }
      IRIS_UNROLL(8)
      for (uint32_t f = 0; f < kFan; ++f) {
        if (fan.to[f] == nullptr) continue;
        IRIS_UNROLL(4)
        for (uint32_t u = 0; u < kAtOnce; ++u) {
          if (at + u * step < bytes) {
            backend::Store16<CacheHint::kDefault>(fan.to[f] + at + u * step, parts[u]);
          }
        }
      }
    }
    return;
  }
  for (uint32_t at = backend::LaneIndex() * 16; at < bytes; at += step) {
    const uint32_t rest = bytes - at;
    const Bytes16 part = LoadPart(from + at, rest, element_bytes);
    for (uint32_t f = 0; f < kFan; ++f) {
      if (fan.to[f] == nullptr) continue;
      StorePart(fan.to[f] + at, whole ? 16 : rest, element_bytes, part);
    }
  }
}

// Copies a row as f8e4m3 with scales to all destinations. Eight lanes share 128 columns, 16 each.
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
    // Magnitudes are compared as bits, so that a NaN is the largest.
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

// Sends member `to` the token's choices. Called by a warp. With a capacity, choices over it are
// sent like those of other members' experts. Returns false if no expert of `to` remains.
IRIS_DEVICE inline bool TellEntries(const MoeCall& call, uint32_t t, uint32_t to, uint32_t row) {
  const Experts experts = ExpertsOf(call.n_experts, call.common.size, to);
  const uint32_t* const taken = Mine<uint32_t>(call, call.at.taken_bytes);
  Entry* const entries = EntriesTo(call, to, row);
  bool any = false;
  for (uint32_t j = backend::LaneIndex(); j < call.top_k; j += backend::WarpSize()) {
    const uint64_t i = uint64_t{t} * call.top_k + j;
    const int64_t id = ChoiceOf(call, t, j);
    Entry entry = {-1, 0, 0, t};
    if (id >= experts.begin && id < int64_t{experts.begin} + experts.count) {
      entry.order = Mine<uint32_t>(call, call.at.orders_bytes)[i];
      if (call.capacity == 0 || uint64_t{entry.order} + taken[id] < call.capacity) {
        entry.expert = static_cast<int32_t>(id - experts.begin);
        entry.weight = call.weights == nullptr ? 1.0f : backend::LoadPlain(call.weights + i);
        any = true;
      }
    }
    backend::Store16<CacheHint::kDefault>(entries + j, backend::BitCast<Bytes16>(entry));
  }
  return backend::WarpAny(any);
}

// Sends token t to all members that have experts of it. Called by a warp.
IRIS_DEVICE inline void SendToken(const MoeCall& call, uint32_t t) {
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const uint32_t element_bytes = ElementBytes(call.in);
  const uint32_t bytes = call.hidden * element_bytes;
  for (uint32_t base = 0; base < members; base += kFan) {
    Fan fan;
    bool any = false;
    IRIS_UNROLL(8)
    for (uint32_t f = 0; f < kFan; ++f) fan.to[f] = nullptr;
    for (uint32_t f = 0; f < kFan && base + f < members; ++f) {
      // Each member begins with itself, so that members send to different receivers.
      uint32_t to = me + base + f;
      if (to >= members) to -= members;
      int32_t* const place = PlacesTo(call, to) + t;
      const int32_t row = *place;
      if (row < 0) continue;
      if (!TellEntries(call, t, to, static_cast<uint32_t>(row))) {
        // All lanes have read `*place`. That member returns nothing for this token.
        backend::WarpSync();
        if (backend::LaneIndex() == 0) *place = -1;
        continue;
      }
      if (to == me && call.own_stay != 0) continue;
      any = true;
      uint8_t* const there = RowTo(call, to, static_cast<uint32_t>(row));
      IRIS_UNROLL(8)
      for (uint32_t k = 0; k < kFan; ++k) {
        if (k == f) fan.to[k] = there;
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

// Returns the first token of this member with an invalid choice, or ~0u. Called by a full warp.
IRIS_DEVICE inline uint32_t FirstBadToken(const MoeCall& call) {
  const uint32_t* const checks = Mine<uint32_t>(call, call.at.checks_bytes);
  uint32_t first = ~0u;
  for (uint32_t i = backend::LaneIndex(); i < Checks(call); i += backend::WarpSize()) {
    if (checks[i] < first) first = checks[i];
  }
  for (uint32_t mask = backend::WarpSize() / 2; mask != 0; mask /= 2) {
    const uint32_t other = backend::ShuffleXor(first, mask);
    if (other < first) first = other;
  }
  return first;
}

// Sends this member's counts to members `first`, `first` + `step` and so on. Called by a block.
IRIS_DEVICE inline void TellCounts(const MoeCall& call, uint32_t first, uint32_t step) {
  const uint32_t* const own = OwnRowsOfExperts(call);
  for (uint32_t to = first; to < call.common.size; to += step) {
    Told* const told = ToldBy(call, to, call.common.index);
    for (uint32_t e = backend::ThreadIndex(); e < call.n_experts; e += backend::BlockSize()) {
      backend::StorePlain(RowsOfExperts(told) + e, own[e]);
    }
    if (backend::WarpIndex() != 0) continue;
    const uint32_t t = FirstBadToken(call);
    if (backend::ThreadIndex() != 0) continue;
    BadId bad = BadId::kNone;
    int64_t value = 0;
    for (uint32_t j = 0; t != ~0u && bad == BadId::kNone && j < call.top_k; ++j) {
      value = IdAt(call, uint64_t{t} * call.top_k + j);
      if (value == -1 || ChoiceOf(call, t, j) >= 0) continue;
      bad = value < 0 || value >= call.n_experts ? BadId::kNoSuchExpert : BadId::kRepeated;
    }
    backend::StorePlain(&told->rows, Mine<uint32_t>(call, call.at.sent_bytes)[to]);
    backend::StorePlain(&told->bad, bad);
    backend::StorePlain(&told->bad_token, t);
    backend::StorePlain(&told->bad_value, value);
  }
}

// Sums the rows of earlier members for each expert. Called by a block.
IRIS_DEVICE inline void CountTaken(const MoeCall& call) {
  const uint32_t me = call.common.index;
  uint32_t* const taken = Mine<uint32_t>(call, call.at.taken_bytes);
  for (uint32_t e = backend::ThreadIndex(); e < call.n_experts; e += backend::BlockSize()) {
    uint32_t rows = 0;
    for (uint32_t m = 0; m < me; ++m) rows += RowsOfExperts(ToldBy(call, me, m))[e];
    taken[e] = rows;
  }
}

// Computes, with a capacity, the number of earlier members' rows for each expert, which must be
// known before a row is sent. The first block of the call, which is in the first piece, sends this
// member's counts; after another round it sums the others' for all blocks, which wait only for it.
// Returns false on failure, which is recorded; the same in all threads.
IRIS_DEVICE inline bool LearnWhatIsTaken(const MoeCall& call, Rounds* rounds) {
  const bool counts = ccl::impl::BlockOf(call.common) == 0;
  if (counts) TellCounts(call, 0, 1);
  if (!rounds->Meet()) return false;
  const uint32_t me = call.common.index;
  uint32_t* const counted = &Mine<Head>(call, 0)->counted;
  if (counts) {
    CountTaken(call);
    iris::impl::SyncInsideBlock();
    if (backend::ThreadIndex() == 0) {
      backend::Store<Scope::kDevice, Order::kRelease>(counted, 1u);
    }
  } else if (backend::ThreadIndex() == 0) {
    (void)rounds->Await(
        me, [counted] { return backend::Load<Scope::kDevice, Order::kAcquire>(counted) != 0; });
  }
  iris::impl::SyncInsideBlock();
  return rounds->Settle();
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Send(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  // On several nodes there are no rounds. The loop below exists once, because it is much code.
  const bool meets = call.nodes == nullptr;
  Rounds rounds(call.common, &shared, meets ? ccl::impl::BlockOf(call.common) : 0);
  bool go = meets ? !rounds.broken() && rounds.Exchange(false) : !Failed(call);
  if (go && meets) {
    if (call.capacity == 0) {
      TellCounts(call, ccl::impl::BlockOf(call.common), ccl::impl::GridOf(call.common));
    } else {
      go = LearnWhatIsTaken(call, &rounds);
    }
  }
  if (go) {
    const Warps warps = WarpsOfTeam(call);
    for (uint64_t t = warps.first; t < call.tokens; t += warps.step) {
      SendToken(call, static_cast<uint32_t>(t));
    }
    if (meets) rounds.MeetLast(true);
  }
  rounds.Conclude();
}

// Returns the sum of the values of the preceding threads; `*total` becomes the sum over all
// threads. Called by all threads of a block.
IRIS_DEVICE inline uint32_t SumBefore(uint32_t value, uint32_t* sums, uint32_t* total) {
  const uint32_t lane = backend::LaneIndex();
  uint32_t sum = value;
  for (uint32_t d = 1; d < backend::WarpSize(); d *= 2) {
    const uint32_t other = backend::Shuffle(sum, lane >= d ? lane - d : lane);
    if (lane >= d) sum += other;
  }
  iris::impl::SyncInsideBlock();  // the sums of the previous call have been read
  if (lane == backend::WarpSize() - 1) sums[backend::WarpIndex()] = sum;
  iris::impl::SyncInsideBlock();
  uint32_t before = sum - value;
  uint32_t all = 0;
  for (uint32_t w = 0; w < backend::BlockSize() / backend::WarpSize(); ++w) {
    if (w < backend::WarpIndex()) before += sums[w];
    all += sums[w];
  }
  *total = all;
  return before;
}

// Places the local experts' rows, in one block.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Place(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(uint32_t[kMaxWarps], sums);
  if (Failed(call)) return;
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const Experts experts = ExpertsOf(call.n_experts, members, me);
  uint32_t* const bases = Mine<uint32_t>(call, call.at.bases_bytes);
  int32_t* const firsts = Mine<int32_t>(call, call.at.firsts_bytes);
  uint32_t begin = 0;
  for (uint32_t base = 0; base < experts.count; base += backend::BlockSize()) {
    const uint32_t e = base + backend::ThreadIndex();
    uint32_t rows = 0;
    for (uint32_t m = 0; e < experts.count && m < members; ++m) {
      bases[uint64_t{m} * experts.count + e] = rows;
      rows += RowsOfExperts(ToldBy(call, me, m))[experts.begin + e];
    }
    uint32_t total = 0;
    const uint32_t place = e >= experts.count ? 0 : call.capacity != 0 ? call.capacity : rows;
    const uint32_t first = begin + SumBefore(place, sums, &total);
    begin += total;
    if (e >= experts.count) continue;
    firsts[e] = static_cast<int32_t>(first);
    if (call.offsets != nullptr) call.offsets[e] = static_cast<int32_t>(first);
    const uint32_t over = call.capacity != 0 && rows > call.capacity ? rows - call.capacity : 0;
    if (call.counts != nullptr) call.counts[e] = static_cast<int32_t>(rows - over);
    if (call.dropped != nullptr) call.dropped[e] = static_cast<int32_t>(over);
  }
  if (backend::ThreadIndex() != 0) return;
  if (call.offsets != nullptr) call.offsets[experts.count] = static_cast<int32_t>(begin);
  for (uint32_t m = 0; m < members; ++m) {
    const Told* const told = ToldBy(call, me, m);
    if (told->bad == BadId::kNone) continue;
    FailHere(call, StatusCode::kOutOfRange, m,
             static_cast<uint64_t>(told->bad_token) << 32 | static_cast<uint32_t>(told->bad),
             static_cast<uint64_t>(told->bad_value));
    return;
  }
  Mine<Head>(call, 0)->tag = call.tag;
}

// Some of a token's choices; lane i has the i-th one, so there are enough lanes for kMaxTopK.
struct Terms {
  uint32_t count;  // the same in all lanes
  int32_t row;     // row of the experts' results
  float weight;
};
static_assert(kMaxTopK <= backend::Traits::kWarpThreads);

// Collects the choices for which `valid` is true. Lane j passes choice j.
IRIS_DEVICE inline Terms Gathered(const MoeCall& call, bool valid, int32_t row, float weight) {
  const uint64_t ballot = backend::Ballot(valid);
  Terms terms = {0, -1, 0};
  for (uint32_t j = 0; j < call.top_k; ++j) {
    if ((ballot >> j & 1) == 0) continue;
    const int32_t its_row = backend::Shuffle(row, j);
    const float its_weight = backend::Shuffle(weight, j);
    if (backend::LaneIndex() == terms.count) {
      terms.row = its_row;
      terms.weight = its_weight;
    }
    ++terms.count;
  }
  return terms;
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Expand(IRIS_PARAM MoeCall call) {
  if (Failed(call)) return;
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const uint32_t lane = backend::LaneIndex();
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
    if (slot - uint64_t{from} * call.max_tokens >= RowsFrom(call, from)) continue;
    int64_t to = -1;
    uint32_t token = 0;
    if (lane < call.top_k) {
      const Entry entry = backend::BitCast<Entry>(
          backend::Load16<CacheHint::kDefault>(EntriesAt(call, me, slot) + lane));
      token = entry.token;
      // With a capacity, the sending member has omitted the rows over it.
      if (entry.expert >= 0) {
        to = int64_t{firsts[entry.expert]} + entry.order +
             bases[uint64_t{from} * experts.count + static_cast<uint32_t>(entry.expert)];
        if (call.sources != nullptr) call.sources[to] = static_cast<int32_t>(slot);
      }
      TargetsAt(call, slot)[lane] = static_cast<int32_t>(to);
    }
    if (call.out_rows == nullptr) continue;
    const Terms terms = Gathered(call, to >= 0, static_cast<int32_t>(to), 0);
    token = backend::Shuffle(token, 0);
    const uint8_t* row = RowAt(call, me, slot);
    const uint8_t* row_scales = row + call.at.scales_at_bytes;
    if (from == me && call.own_stay != 0) {
      row = call.x + uint64_t{token} * bytes;
      row_scales = reinterpret_cast<const uint8_t*>(call.x_scales + uint64_t{token} * scales);
    }
    for (uint32_t base = 0; base < terms.count; base += kFan) {
      Fan fan;
      Fan scale_fan;
      IRIS_UNROLL(8)
      for (uint32_t f = 0; f < kFan; ++f) {
        const bool is = base + f < terms.count;
        const int64_t at = backend::Shuffle(terms.row, is ? base + f : 0);
        fan.to[f] = is ? call.out_rows + at * bytes : nullptr;
        scale_fan.to[f] =
            is && scales != 0 ? reinterpret_cast<uint8_t*>(call.out_scales + at * scales) : nullptr;
      }
      CopyRow(row, bytes, element_bytes, fan, false);
      if (scales != 0) CopyRow(row_scales, scales * 4, 4, scale_fan, false);
    }
  }
}

// The rows that a thread loads at once for a sum.
template <Rows kRows>
inline constexpr uint32_t kRowsAtOnce = kRows == Rows::kNarrow ? 8 : 4;

// Returns the results of this member's experts for a received row. Called by a warp.
IRIS_DEVICE inline Terms TermsOf(const MoeCall& call, uint64_t slot) {
  int32_t row = -1;
  float weight = 0;
  const uint32_t lane = backend::LaneIndex();
  if (lane < call.top_k) {
    const Entry entry = backend::BitCast<Entry>(
        backend::Load16<CacheHint::kDefault>(EntriesAt(call, call.common.index, slot) + lane));
    if (entry.expert >= 0) row = backend::LoadPlain(TargetsAt(call, slot) + lane);
    weight = entry.weight;
  }
  return Gathered(call, row >= 0, row, weight);
}

// Sums the terms in their order for the `count` columns, at most eight, that this lane has from
// `column` on, and rounds the sums to the type that is sent.
template <Rows kRows>
IRIS_DEVICE inline void SumTerms(const MoeCall& call, const Terms& terms, uint32_t column,
                                 uint32_t count, float (&sums)[8]) {
  constexpr uint32_t kAtOnce = kRowsAtOnce<kRows>;
  const uint64_t y_bytes = ElementBytes(call.y_type);
  if (count == 0) column = 0;  // the loads are valid, but not used
  IRIS_UNROLL(8)
  for (uint32_t e = 0; e < 8; ++e) sums[e] = 0;
  IRIS_UNROLL(1)
  for (uint32_t base = 0; base < terms.count; base += kAtOnce) {
    Raw raw[kAtOnce];
    float weights[kAtOnce];
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const uint32_t i = base + u < terms.count ? base + u : base;
      const uint64_t row = static_cast<uint32_t>(backend::Shuffle(terms.row, i));
      weights[u] = backend::Shuffle(terms.weight, i);
      raw[u] = LoadRaw<kRows>(call.y + (row * call.hidden + column) * y_bytes, call.y_type,
                              count == 0 ? 1 : count);
    }
    IRIS_UNROLL(8)
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      if (base + u >= terms.count) continue;
      float values[8];
      FloatsOf(raw[u], call.y_type, values);
      IRIS_UNROLL(8)
      for (uint32_t e = 0; e < 8; ++e) sums[e] += weights[u] * values[e];
    }
  }
  IRIS_UNROLL(8)
  for (uint32_t e = 0; e < 8; ++e) sums[e] = RoundedTo(call.partials, sums[e]);
}

// Calls each(column, count) for every group of eight columns of this lane, of which `count` exist.
// All lanes call it equally often, some with a count of 0.
template <typename Each>
IRIS_DEVICE inline void ForColumns(const MoeCall& call, Each each) {
  for (uint32_t first = 0; first < call.hidden; first += backend::WarpSize() * 8) {
    const uint32_t column = first + backend::LaneIndex() * 8;
    const uint32_t rest = column < call.hidden ? call.hidden - column : 0;
    each(column, rest < 8 ? rest : 8);
  }
}

// Sums the local experts' results for a row and stores the sum at `to`. Called by a warp.
template <Rows kRows>
IRIS_DEVICE inline void ReturnRow(const MoeCall& call, const Terms& terms, uint8_t* to) {
  const uint32_t to_bytes = ElementBytes(call.partials);
  ForColumns(call, [&](uint32_t column, uint32_t count) {
    float sums[8];
    SumTerms<kRows>(call, terms, column, count, sums);
    if (count != 0) StoreFloats(to + column * to_bytes, call.partials, count, sums);
  });
}

// Returns how y and the received sums are loaded.
IRIS_DEVICE inline Rows HowLoaded(const MoeCall& call) {
  const bool wide = call.y_type == DType::kF32;
  if (call.hidden % 8 != 0 || reinterpret_cast<uint64_t>(call.y) % 16 != 0 ||
      wide != (call.partials == DType::kF32)) {
    return Rows::kAny;
  }
  return wide ? Rows::kWide : Rows::kNarrow;
}

// Returns how this member's Combine fits its Dispatch.
IRIS_DEVICE inline Fit FitOf(const MoeCall& call) {
  const Head* const head = Mine<Head>(call, 0);
  return head->tag != call.tag         ? Fit::kNoDispatch
         : head->tokens != call.tokens ? Fit::kOtherTokens
                                       : Fit::kFits;
}
// Tells member `to` how this one's Combine fits.
IRIS_DEVICE inline void TellFit(const MoeCall& call, uint32_t to, Fit fit) {
  Told* const told = ToldBy(call, to, call.common.index);
  backend::StorePlain(&told->fit, fit);
  backend::StorePlain(&told->dispatched_tokens, Mine<Head>(call, 0)->tokens);
  backend::StorePlain(&told->combined_tokens, call.tokens);
}
// Returns the first member whose Combine does not fit, or ~0u. All members find the same one.
// Called by a full warp.
IRIS_DEVICE inline uint32_t FirstThatFitsNot(const MoeCall& call) {
  const uint32_t members = call.common.size;
  for (uint32_t base = 0; base < members; base += backend::WarpSize()) {
    const uint32_t m = base + backend::LaneIndex();
    const uint64_t ballot =
        backend::Ballot(m < members && ToldBy(call, call.common.index, m)->fit != Fit::kFits);
    if (ballot == 0) continue;
    uint32_t first = base;
    while ((ballot >> (first - base) & 1) == 0) ++first;
    return first;
  }
  return ~0u;
}

// Sends the sums of the local experts' rows to the members that sent these.
IRIS_DEVICE inline void ReturnRows(const MoeCall& call) {
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const Warps warps = WarpsOfTeam(call);
  const Rows rows = HowLoaded(call);
  // The sums of this member's own tokens do not travel: Gather computes them.
  const uint64_t others = uint64_t{members - 1} * call.max_tokens;
  for (uint64_t i = warps.first; i < others; i += warps.step) {
    // Consecutive warps send to different members.
    const uint32_t step = static_cast<uint32_t>(i % (members - 1)) + 1;
    const uint32_t to = me + step < members ? me + step : me + step - members;
    const uint32_t row = static_cast<uint32_t>(i / (members - 1));
    if (row >= RowsFrom(call, to)) continue;
    const Terms terms = TermsOf(call, SlotOf(call, to, row));
    if (terms.count == 0) continue;
    uint8_t* const there = RowTo(call, to, row);
    if (rows == Rows::kNarrow) {
      ReturnRow<Rows::kNarrow>(call, terms, there);
    } else if (rows == Rows::kWide) {
      ReturnRow<Rows::kWide>(call, terms, there);
    } else {
      ReturnRow<Rows::kAny>(call, terms, there);
    }
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Return(IRIS_PARAM MoeCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  const bool meets = call.nodes == nullptr;  // see Send
  Rounds rounds(call.common, &shared, meets ? ccl::impl::BlockOf(call.common) : 0);
  bool fits = false;
  const bool go = meets ? !rounds.broken() && rounds.Exchange(false) : !Failed(call);
  if (go && meets) {
    // All blocks get the same result, because no kernel changes the head at this time.
    const Fit fit = FitOf(call);
    // All members receive the result, so that all fail in the same way.
    for (uint32_t to = ccl::impl::BlockOf(call.common); to < call.common.size;
         to += ccl::impl::GridOf(call.common)) {
      if (backend::ThreadIndex() == 0) TellFit(call, to, fit);
    }
    fits = fit == Fit::kFits;
  } else if (go) {
    fits = FirstThatFitsNot(call) == ~0u;
  }
  if (fits) ReturnRows(call);
  if (go && meets) rounds.MeetLast(true);
  rounds.Conclude();
}

// Prepares this member's message to all others, in one block, for an operation between nodes.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Tell(IRIS_PARAM MoeCall call) {
  if (Failed(call)) return;
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  Told* const told = ToldBy(call, me, me);
  // The others put nothing before they have this message.
  for (uint32_t m = backend::ThreadIndex(); m < members; m += backend::BlockSize()) {
    backend::StorePlain(Mine<uint64_t>(call, call.at.arrived_bytes) + m, uint64_t{0});
  }
  if (call.common.operation == Operation::kMoeCombine) {
    if (backend::ThreadIndex() == 0) TellFit(call, me, FitOf(call));
    return;
  }
  for (uint32_t m = backend::ThreadIndex(); m < members; m += backend::BlockSize()) {
    backend::StorePlain(RowsFor(call, told) + m, Mine<uint32_t>(call, call.at.sent_bytes)[m]);
  }
  TellCounts(call, me, members);
}

// Reads the counts of all members for a capacity, in one block.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Taken(IRIS_PARAM MoeCall call) {
  if (!Failed(call)) CountTaken(call);
}

// Puts the rows for ranks on other nodes, and awaits those from them, in one block. The operation's
// last kernel that meets others.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Ship(IRIS_PARAM ccl::impl::NodesCall nodes,
                                                         IRIS_PARAM MoeCall call) {
  IRIS_SHARED(uint32_t, stopped);
  const uint32_t me = call.common.index;
  const bool back = call.common.operation == Operation::kMoeCombine;
  const uint32_t* const firsts = ccl::impl::FirstsOf(nodes);
  ccl::impl::Going going(&stopped);
  bool go = ccl::impl::MayGoOn(nodes, going);
  const bool moves = go && (!back || FirstThatFitsNot(call) == ~0u);
  const uint64_t begin = call.workspace_offset_bytes;
  uint64_t* const arrived = Mine<uint64_t>(call, call.at.arrived_bytes);
  // Calls each(member, its rank) for the ranks of other nodes.
  const auto for_others = [&](auto each) {
    for (uint32_t e = backend::ThreadIndex(); moves && e < nodes.size; e += backend::BlockSize()) {
      if (e >= firsts[nodes.node] && e < firsts[nodes.node + 1]) continue;
      each(ccl::impl::PlacesOf(nodes)[e], ccl::impl::RanksOf(nodes)[e]);
    }
  };
  for_others([&](uint32_t m, uint32_t rank) {
    const uint64_t n = back ? RowsFrom(call, m) : Mine<uint32_t>(call, call.at.sent_bytes)[m];
    const auto put = [&](uint64_t to, uint64_t from, uint64_t each_bytes) {
      if (n == 0) return true;
      return ccl::impl::PutTo(nodes, rank, m, begin + to + SlotOf(call, me, 0) * each_bytes,
                              begin + from + SlotOf(call, m, 0) * each_bytes, n * each_bytes,
                              kNoPortSignal, 0);
    };
    const bool all = (back || put(call.at.entries_bytes, call.at.staged_entries_bytes,
                                  uint64_t{sizeof(Entry)} * call.top_k)) &&
                     put(call.at.rows_bytes, call.at.staged_rows_bytes, call.at.row_stride_bytes) &&
                     ccl::impl::PutTo(nodes, rank, m, 0, 0, 0,
                                      begin + call.at.arrived_bytes + me * sizeof(uint64_t), 1);
    if (!all) going.Stop();
  });
  for_others([&](uint32_t m, uint32_t rank) {
    if (!ccl::impl::AwaitRank(nodes, nodes.context.rank, rank, m, arrived + m,
                              [](uint64_t value) { return value != 0; })) {
      going.Stop();
    }
  });
  go = going.Sync() && go;
  if (backend::ThreadIndex() != 0) return;
  // Later kernels overwrite the sources.
  if (go) go = ccl::impl::AwaitRead(nodes, ccl::impl::PostedRequests(nodes));
  ++ccl::impl::StateOf(nodes)->sequence;
  if (!go) ccl::impl::ConcludeFailure(nodes, nodes.context.rank);
}

// Sums the partial sums of token t in the order of the members. Called by a warp.
template <Rows kRows>
IRIS_DEVICE inline void GatherToken(const MoeCall& call, uint64_t t) {
  constexpr uint32_t kAtOnce = 4;
  const uint32_t members = call.common.size;
  const uint32_t me = call.common.index;
  const uint64_t from_bytes = ElementBytes(call.partials);
  const uint32_t out_bytes = ElementBytes(call.out_type);
  const int32_t own_place = PlacesTo(call, me)[t];
  Terms own_terms = {0, -1, 0};
  if (own_place >= 0) {
    own_terms = TermsOf(call, SlotOf(call, me, static_cast<uint32_t>(own_place)));
  }
  ForColumns(call, [&](uint32_t column, uint32_t count) {
    float own[8];
    SumTerms<kRows>(call, own_terms, column, count, own);
    if (count == 0) return;
    float sums[8] = {};
    IRIS_UNROLL(1)
    for (uint32_t base = 0; base < members; base += kAtOnce) {
      Raw raw[kAtOnce] = {};
      int32_t places[kAtOnce];
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint32_t m = base + u < members ? base + u : me;
        places[u] = PlacesTo(call, m)[t];
        if (m == me) places[u] = -1;
      }
      if (members > 1) {
        IRIS_UNROLL(4)
        for (uint32_t u = 0; u < kAtOnce; ++u) {
          // For a member without a sum, slot 0 is loaded; the value is not used.
          const uint64_t slot =
              places[u] < 0 ? 0 : SlotOf(call, base + u, static_cast<uint32_t>(places[u]));
          raw[u] =
              LoadRaw<kRows>(RowAt(call, me, slot) + column * from_bytes, call.partials, count);
        }
      }
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        if (base + u == me && own_place >= 0) {
          IRIS_UNROLL(8)
          for (uint32_t e = 0; e < 8; ++e) sums[e] += own[e];
        }
        if (places[u] < 0) continue;
        float values[8];
        FloatsOf(raw[u], call.partials, values);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < 8; ++e) sums[e] += values[e];
      }
    }
    StoreFloats(call.out + (t * call.hidden + column) * out_bytes, call.out_type, count, sums);
  });
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void Gather(IRIS_PARAM MoeCall call) {
  if (Failed(call)) return;
  if (const uint32_t first = FirstThatFitsNot(call); first != ~0u) {
    // Every block comes here, and one reports.
    if (backend::BlockIndex() != 0 || backend::ThreadIndex() != 0) return;
    const Told* const told = ToldBy(call, call.common.index, first);
    FailHere(call, StatusCode::kFailedPrecondition, first,
             static_cast<uint64_t>(told->combined_tokens) << 32 |
                 static_cast<uint32_t>(told->fit == Fit::kOtherTokens),
             told->dispatched_tokens);
    return;
  }
  const Rows rows = HowLoaded(call);
  const Warps warps = WarpsOfGrid();
  for (uint64_t t = warps.first; t < call.tokens; t += warps.step) {
    if (rows == Rows::kNarrow) {
      GatherToken<Rows::kNarrow>(call, t);
    } else if (rows == Rows::kWide) {
      GatherToken<Rows::kWide>(call, t);
    } else {
      GatherToken<Rows::kAny>(call, t);
    }
  }
}

}  // namespace iris::moe::impl
