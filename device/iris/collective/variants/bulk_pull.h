// kBulkPull: a thread of each block lets the device's copy unit fetch what the members have, tile
// by tile, into a ring in shared memory. The other warps reduce what has arrived; where nothing is
// to be reduced, the copy unit also puts it where it belongs. So a few blocks have as much under
// way as a link takes.
//
// All members divide a row into the same tiles, and the block of the same index works on the same
// ones everywhere: what an all_reduce gathers behind its middle round was made by the blocks that
// the round was with. Where addresses do not suit bulk copies, threads fetch by themselves; others
// need not know.
#pragma once

#include <cstdint>

#include "iris/backend/bulk.h"
#include "iris/backend/select.h"
#include "iris/collective/impl/layout.h"
#include "iris/collective/impl/move_direct.h"
#include "iris/collective/impl/patterns.h"
#include "iris/collective/impl/protocol.h"
#include "iris/collective/impl/reduce.h"
#include "iris/collective/impl/reduce_direct.h"
#include "iris/collective/impl/words.h"
#include "iris/impl/mutation.h"
#include "iris/memory.h"

namespace iris::ccl::impl {

inline constexpr uint32_t kMaxPullStages = 16;

// The ring of a launch: so many tiles from each member, a multiple of 16 bytes.
struct PullRing {
  uint32_t stages;
  uint32_t tile_bytes;
};

IRIS_DEVICE inline bool IsAligned16(const uint8_t* p) {
  return (reinterpret_cast<uint64_t>(p) & 15) == 0;
}

// A row to fetch from a member. In shared memory, so that no tile waits for what is always the
// same.
struct PullRow {
  const uint8_t* from;
  uint8_t* to;     // of a gather
  uint64_t bytes;  // of the row
  uint64_t whole;  // the first of them, a multiple of 16: what bulk copies fetch
};

// The rings of a block, and the tiles that have gone through them.
class PullTiles {
 public:
  // `rows`: kMaxTeamRanks rows, which the threads write behind a first sync and before another.
  IRIS_DEVICE PullTiles(const Common& common, const PullRing& ring, uint64_t* gates,
                        uint64_t* missed, PullRow* rows)
      : rows_(rows),
        n_(common.size),
        block_(BlockOf(common)),
        grid_(GridOf(common)),
        ring_(ring),
        gates_(gates),
        missed_(missed),
        memory_(static_cast<uint8_t*>(backend::DynamicShared())) {
    if (backend::ThreadIndex() != 0) return;
    missed[0] = 0;
    for (uint32_t s = 0; s < ring.stages; ++s) backend::BulkGateInit(gates + s);
  }

  IRIS_DEVICE PullRow* rows() const { return rows_; }

  // Calls use(begin, bytes) for what of the bytes [whole, bytes) of a row lies in tiles of this
  // block. The same calls in all threads.
  template <typename Use>
  IRIS_DEVICE void Rest(uint64_t whole, uint64_t bytes, Use use) const {
    if (whole == bytes) return;
    const uint64_t first = whole / ring_.tile_bytes;
    uint64_t tile =
        block_ >= first ? block_ : block_ + (first - block_ + grid_ - 1) / grid_ * grid_;
    for (; tile * ring_.tile_bytes < bytes; tile += grid_) {
      const uint64_t at = tile * ring_.tile_bytes;
      const uint64_t begin = at < whole ? whole : at;
      use(begin, Min(at + ring_.tile_bytes, bytes) - begin);
    }
  }

  // Fetches the tiles of rows of up to `bytes` from all members. The last warp lets the copy unit
  // fetch a tile as soon as there is room, while the others use the tiles that have come:
  // use(at, memory, index, threads), where memory + m * tile_bytes has what came from byte `at` of
  // row m on, and this is thread `index` of `threads`. A block of one warp does both. All threads
  // of the block together, behind a sync. False on failure, which is recorded; the same in all
  // threads.
  template <typename Use>
  IRIS_DEVICE bool Stream(Rounds* rounds, uint64_t bytes, Use use) {
    const uint64_t count = CountOf(bytes);
    const uint32_t warps = backend::BlockSize() / backend::WarpSize();
    const uint32_t threads = (warps > 1 ? warps - 1 : 1) * backend::WarpSize();
    const bool uses = backend::ThreadIndex() < threads;
    const bool loads = backend::ThreadIndex() == (warps - 1) * backend::WarpSize();
    Place loading = {stage_, parity_, block_ * ring_.tile_bytes};
    Place using_now = loading;
    uint64_t loaded = 0;
    if (loads) {
      backend::BulkSeeOthers();
      for (; loaded < count && loaded < ring_.stages; ++loaded) Load(*rounds, 0, &loading);
    }
    for (uint64_t t = 0; t < count; ++t) {
      // The tile before has left its stage behind the last sync.
      if (loads && t != 0 && loaded < count) {
        Load(*rounds, 0, &loading);
        ++loaded;
      }
      if (uses) {
        if (Arrives(rounds, using_now)) {
          use(using_now.at, Memory(using_now.stage), backend::ThreadIndex(), threads);
        } else {
          backend::Store<Scope::kBlock, Order::kRelaxed>(missed_, t + 1);
        }
      }
      iris::impl::SyncInsideBlock();  // the tile is used
      const uint64_t in_vain = backend::Load<Scope::kBlock, Order::kRelaxed>(missed_);
      if (in_vain != 0 && in_vain <= t + 1) return false;
      Next(&using_now);
    }
    stage_ = using_now.stage;
    parity_ = using_now.parity;
    return true;
  }

  // Fetches the tiles of the other members' rows and puts them where they belong: one thread and
  // the copy unit do it. All addresses are multiples of 16. The rest of a row is not its matter.
  // All threads of the block together, behind a sync; a sync ends it. False as Stream.
  IRIS_DEVICE bool Relay(Rounds* rounds, uint64_t bytes) {
    const uint64_t count = CountOf(bytes);
    if (backend::ThreadIndex() == 0) {
      Place loading = {stage_, parity_, block_ * ring_.tile_bytes};
      Place now = loading;
      uint64_t loaded = 0;
      backend::BulkSeeOthers();
      for (; loaded < count && loaded < ring_.stages; ++loaded) Load(*rounds, 1, &loading);
      for (uint64_t t = 0; t < count; ++t) {
        if (!Arrives(rounds, now)) {
          backend::Store<Scope::kBlock, Order::kRelaxed>(missed_, t + 1);
          break;
        }
        for (uint32_t k = 1; k < n_; ++k) {
          const uint32_t m = rounds->Rotated(k);
          const uint32_t length = WholeIn(m, now.at);
          if (length == 0) continue;
          backend::BulkStore(rows_[m].to + now.at, Memory(now.stage) + m * ring_.tile_bytes,
                             length);
        }
        backend::BulkCommit();
        Next(&now);
        if (t != 0 && loaded < count) {
          backend::BulkAwaitRead<1>();  // the tile before has left its stage
          Load(*rounds, 1, &loading);
          ++loaded;
        }
      }
      backend::BulkAwait();
    }
    iris::impl::SyncInsideBlock();
    if (backend::Load<Scope::kBlock, Order::kRelaxed>(missed_) != 0) return false;
    const uint64_t gone = stage_ + count;
    parity_ ^= static_cast<uint32_t>(gone / ring_.stages & 1);
    stage_ = static_cast<uint32_t>(gone % ring_.stages);
    return true;
  }

 private:
  // Of a tile: its stage, the parity of the stage's gate, and the byte of a row where it begins.
  struct Place {
    uint32_t stage;
    uint32_t parity;
    uint64_t at;
  };

  IRIS_DEVICE uint64_t CountOf(uint64_t bytes) const {
    const uint64_t tiles = (bytes + ring_.tile_bytes - 1) / ring_.tile_bytes;
    return block_ < tiles ? (tiles - block_ + grid_ - 1) / grid_ : 0;
  }
  IRIS_DEVICE uint32_t WholeIn(uint32_t m, uint64_t at) const {
    const uint64_t whole = rows_[m].whole;
    return at < whole ? static_cast<uint32_t>(Min(ring_.tile_bytes, whole - at)) : 0;
  }
  IRIS_DEVICE uint8_t* Memory(uint32_t stage) const {
    return memory_ + uint64_t{stage} * n_ * ring_.tile_bytes;
  }
  IRIS_DEVICE void Next(Place* place) const {
    place->at += grid_ * ring_.tile_bytes;
    if (++place->stage < ring_.stages) return;
    place->stage = 0;
    place->parity ^= 1;
  }
  // Begins to fetch a tile from the members from the first-th after this one on.
  IRIS_DEVICE void Load(const Rounds& rounds, uint32_t first, Place* place) const {
    uint32_t all = 0;
    for (uint32_t k = first; k < n_; ++k) all += WholeIn(rounds.Rotated(k), place->at);
    uint64_t* gate = gates_ + place->stage;
    backend::BulkExpect(gate, all);
    for (uint32_t k = first; k < n_; ++k) {
      const uint32_t m = rounds.Rotated(k);
      const uint32_t length = WholeIn(m, place->at);
      if (length == 0) continue;
      backend::BulkLoad(Memory(place->stage) + m * ring_.tile_bytes, rows_[m].from + place->at,
                        length, gate);
    }
    Next(place);
  }
  // Waits for a tile.
  IRIS_DEVICE bool Arrives(Rounds* rounds, const Place& place) const {
    const uint64_t* gate = gates_ + place.stage;
    const uint32_t parity = place.parity;
    if (backend::BulkArrived(gate, parity)) return true;
    const uint64_t since_ns = rounds->WaitBegins();
    const bool there = rounds->Await(rounds->Rotated(1),
                                     [gate, parity] { return backend::BulkArrived(gate, parity); });
    rounds->WaitEnds(since_ns);
    return there;
  }

  PullRow* rows_;
  uint32_t n_;
  uint64_t block_;  // of the call's blocks
  uint64_t grid_;
  PullRing ring_;
  uint64_t* gates_;
  uint64_t* missed_;  // 1 + the tile for which a thread waited in vain
  uint8_t* memory_;
  uint32_t stage_ = 0;  // of the next tile
  uint32_t parity_ = 0;
};

// Rows from the members but this one to where they belong here. source(m), to(m): where row m
// begins; bytes_of(m): how long it is, at most `bytes`. All threads behind a sync.
template <typename Source, typename To, typename BytesOf>
IRIS_DEVICE inline bool GatherByBulk(Rounds* rounds, PullTiles* tiles, const PullRing& ring,
                                     uint64_t bytes, Source source, To to, BytesOf bytes_of) {
  const uint32_t n = rounds->size();
  const uint32_t me = rounds->index();
  PullRow* rows = tiles->rows();
  for (uint32_t m = backend::ThreadIndex(); m < n; m += backend::BlockSize()) {
    const uint8_t* from = source(m);
    const uint64_t length = m == me ? 0 : bytes_of(m);
    rows[m] = {from, to(m), length, IsAligned16(from) ? length / 16 * 16 : 0};
  }
  iris::impl::SyncInsideBlock();
  bool relays = true;
  for (uint32_t m = 0; m < n; ++m) {
    relays =
        relays && (rows[m].bytes == 0 || (IsAligned16(rows[m].from) && IsAligned16(rows[m].to)));
  }
  const Share all = {backend::ThreadIndex(), backend::BlockSize()};
  for (uint32_t k = 1; k < n; ++k) {
    const PullRow& row = rows[rounds->Rotated(k)];
    tiles->Rest(row.whole, row.bytes, [&](uint64_t begin, uint64_t length) {
      iris::impl::CopyBytes<CacheHint::kDefault>(row.to + begin, row.from + begin, length, all);
    });
  }
  if (relays) return tiles->Relay(rounds, bytes);
  return tiles->Stream(
      rounds, bytes, [&](uint64_t at, const uint8_t* memory, uint32_t index, uint32_t threads) {
        const Share share = {index, threads};
        for (uint32_t k = 1; k < n; ++k) {
          const uint32_t m = rounds->Rotated(k);
          if (at >= rows[m].whole) continue;
          iris::impl::CopyBytes<CacheHint::kDefault>(rows[m].to + at, memory + m * ring.tile_bytes,
                                                     Min(ring.tile_bytes, rows[m].whole - at),
                                                     share);
        }
      });
}

// The sum of what n members have in `memory`, `tile_bytes` apart, in their order, to `out`. Units
// of 16 bytes; all addresses are multiples of 16.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceTile(const Op& op, const uint8_t* memory, uint32_t tile_bytes,
                                   uint32_t n, uint8_t* out, uint32_t bytes, uint32_t index,
                                   uint32_t threads) {
  using P = Pack<T, 16 / sizeof(T)>;
  const auto unit = [memory, tile_bytes](uint32_t m, uint32_t at) {
    return iris::impl::BitCast<P>(
        backend::Load16<CacheHint::kDefault>(memory + m * tile_bytes + at));
  };
  for (uint32_t at = 16 * index; at < bytes; at += 16 * threads) {
    auto sum = Begin(unit(0, at));
    if constexpr (N != 0) {
      P packs[N];
      IRIS_UNROLL(8)
      for (uint32_t m = 1; m < N; ++m) packs[m] = unit(m, at);
      IRIS_UNROLL(8)
      for (uint32_t m = 1; m < N; ++m) op.Add(&sum, packs[m]);
    } else {
      for (uint32_t m = 1; m < n; ++m) op.Add(&sum, unit(m, at));
    }
    backend::Store16<CacheHint::kDefault>(out + at, iris::impl::BitCast<Bytes16>(op.Finish(sum)));
  }
}

// This member's row of all, reduced; then, where all get it, what the others have made of theirs.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByBulk(const Common& common, const ReduceCall& call,
                                     const PullRing& ring, Rounds& rounds) {
  IRIS_SHARED(uint8_t * [kMaxTeamRanks + 1], table);
  IRIS_SHARED(PullRow[kMaxTeamRanks], rows);
  IRIS_SHARED(uint64_t[kMaxPullStages], gates);
  IRIS_SHARED(uint64_t[1], missed);
  if (rounds.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? common.size : N;
  const bool to_all = call.target == ReduceCall::kAll;
  const uint64_t row_bytes = call.count * sizeof(T);
  PullTiles tiles(common, ring, gates, missed, rows);
  if (!rounds.Exchange(false)) return;
  // All members see alike where the buffers lie.
  if (!rounds.in_direct() || (to_all && !rounds.out_direct())) {
    PullAndReduce<T, Op, N>(common, call, false, rounds,
                            [](const Op&, uint8_t**) { return false; });
    return;
  }
  const auto bytes_of = [&](uint32_t m) { return RowCount(call, m) * sizeof(T); };
  const uint64_t own_bytes = bytes_of(call.row);
  const auto source = [&](uint32_t m) { return rounds.In(m) + call.row * row_bytes; };
  uint8_t* own_out = call.out + (to_all ? call.row * row_bytes : 0);
  bool aligned = IsAligned16(own_out);
  for (uint32_t m = 0; m < n; ++m) aligned = aligned && IsAligned16(source(m));
  const uint64_t whole = aligned ? own_bytes / 16 * 16 : 0;
  for (uint32_t m = backend::ThreadIndex(); m < n; m += backend::BlockSize()) {
    rows[m] = {source(m), nullptr, own_bytes, whole};
  }
  iris::impl::SyncInsideBlock();
  const bool reduced = tiles.Stream(
      &rounds, whole, [&](uint64_t at, const uint8_t* memory, uint32_t index, uint32_t threads) {
        ReduceTile<T, Op, N>(op, memory, ring.tile_bytes, n, own_out + at,
                             static_cast<uint32_t>(Min(ring.tile_bytes, whole - at)), index,
                             threads);
      });
  if (!reduced) return;
  tiles.Rest(whole, own_bytes, [&](uint64_t begin, uint64_t bytes) {
    for (uint32_t m = backend::ThreadIndex(); m < n + 1; m += backend::BlockSize()) {
      table[m] = (m < n ? source(m) : own_out) + begin;
    }
    iris::impl::SyncInsideBlock();
    ReduceRange<T, Op, N>(op, table, n, 1, bytes / sizeof(T),
                          Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll});
    iris::impl::SyncInsideBlock();
  });
  if (to_all) {
    if (!rounds.Meet()) return;
    const bool gathered = GatherByBulk(
        &rounds, &tiles, ring, row_bytes,
        [&](uint32_t m) -> const uint8_t* { return rounds.Out(m) + m * row_bytes; },
        [&](uint32_t m) { return call.out + m * row_bytes; }, bytes_of);
    if (!gathered) return;
  }
  rounds.MeetLast(false);
}

template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceBulkPull(IRIS_PARAM Common common,
                                                                   IRIS_PARAM ReduceCall call,
                                                                   PullRing ring) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  if constexpr (backend::HasBulkCopies()) {
    ReduceByBulk<T, Op, N>(common, call, ring, rounds);
  } else {
    (void)ring;
    PullAndReduce<T, Op, N>(common, call, true, rounds, [](const Op&, uint8_t**) { return false; });
  }
  rounds.Conclude();
}

// All-gather: everybody fetches the others' rows.
IRIS_DEVICE inline void GatherRowsByBulk(const Common& common, const MoveCall& call,
                                         const PullRing& ring, Rounds& rounds) {
  IRIS_SHARED(PullRow[kMaxTeamRanks], rows);
  IRIS_SHARED(uint64_t[kMaxPullStages], gates);
  IRIS_SHARED(uint64_t[1], missed);
  if (rounds.broken()) return;
  PullTiles tiles(common, ring, gates, missed, rows);
  if (!rounds.Exchange(false)) return;
  if (!rounds.in_direct()) {
    PushRows(common, call, rounds, BlockOf(common), GridOf(common));
    return;
  }
  uint8_t* own_row = call.out + common.index * call.count;
  if (own_row != call.in) {
    const Share share = {BlockOf(common) * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
                         uint64_t{GridOf(common)} * backend::BlockSize()};
    iris::impl::CopyBytes<CacheHint::kDefault>(own_row, call.in, call.count, share);
  }
  const bool gathered = GatherByBulk(
      &rounds, &tiles, ring, call.count, [&](uint32_t m) -> const uint8_t* { return rounds.In(m); },
      [&](uint32_t m) { return call.out + m * call.count; }, [&](uint32_t) { return call.count; });
  if (gathered) rounds.MeetLast(false);
}

// A template of nothing, since a kernel cannot be inline everywhere.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void GatherBulkPull(IRIS_PARAM Common common,
                                                                   IRIS_PARAM MoveCall call,
                                                                   PullRing ring) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  if constexpr (backend::HasBulkCopies()) {
    GatherRowsByBulk(common, call, ring, rounds);
  } else {
    (void)ring;
    PushRows(common, call, rounds, BlockOf(common), GridOf(common));
  }
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
