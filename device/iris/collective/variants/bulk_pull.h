// kBulkPull: a thread of each block lets the device's copy unit fetch what the members have, tile
// by tile, into a ring in shared memory; the others reduce or keep what has arrived. So a few
// blocks have as much under way as a link takes, with threads to spare.
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

// The rings of a block, and the tiles that have gone through them.
class PullTiles {
 public:
  IRIS_DEVICE PullTiles(const Common& common, const PullRing& ring, uint64_t* gates,
                        uint64_t* missed)
      : block_(BlockOf(common)),
        grid_(GridOf(common)),
        ring_(ring),
        gates_(gates),
        missed_(missed),
        memory_(static_cast<uint8_t*>(backend::DynamicShared())) {
    if (backend::ThreadIndex() != 0) return;
    missed[0] = 0;
    for (uint32_t s = 0; s < ring.stages; ++s) backend::BulkGateInit(gates + s);
  }

  // Where a tile begins in a row.
  IRIS_DEVICE uint64_t At(uint64_t tile) const {
    return (block_ + tile * grid_) * ring_.tile_bytes;
  }
  // Bytes of a tile in a row of `bytes`; and those that a bulk copy takes.
  IRIS_DEVICE uint32_t BytesIn(uint64_t tile, uint64_t bytes) const {
    const uint64_t at = At(tile);
    return at < bytes ? static_cast<uint32_t>(Min(ring_.tile_bytes, bytes - at)) : 0;
  }
  IRIS_DEVICE static uint32_t Whole(uint32_t bytes) { return bytes / 16 * 16; }
  // Where a tile of n members comes to lie, in Stream.
  IRIS_DEVICE uint8_t* MemoryOf(uint64_t tile, uint32_t n) const {
    return Memory(StageOf(tile), n);
  }

  // Fetches the tiles of rows of up to `bytes` from n members. source(m): where member m's row
  // begins; by_bulk(m, tile): the bytes of the tile that come by a bulk copy. prepare(tile): what
  // the threads write to shared memory for use(tile, memory), where memory + m * tile_bytes has
  // what came. All threads of the block together, behind a sync, which the last use needs, too.
  // False on failure, which is recorded; the same in all threads.
  template <typename Source, typename ByBulk, typename Prepare, typename Use>
  IRIS_DEVICE bool Stream(Rounds* rounds, uint32_t n, uint64_t bytes, Source source, ByBulk by_bulk,
                          Prepare prepare, Use use) {
    const uint64_t tiles = (bytes + ring_.tile_bytes - 1) / ring_.tile_bytes;
    const uint64_t count = block_ < tiles ? (tiles - block_ + grid_ - 1) / grid_ : 0;
    const auto load = [&](uint64_t tile) {
      const uint32_t stage = StageOf(tile);
      uint32_t all = 0;
      for (uint32_t m = 0; m < n; ++m) all += by_bulk(m, tile);
      backend::BulkExpect(gates_ + stage, all);
      for (uint32_t k = 0; k < n; ++k) {
        const uint32_t m = rounds->Rotated(k);
        const uint32_t length = by_bulk(m, tile);
        if (length == 0) continue;
        backend::BulkLoad(Memory(stage, n) + m * ring_.tile_bytes, source(m) + At(tile), length,
                          gates_ + stage);
      }
    };
    if (backend::ThreadIndex() == 0) {
      backend::BulkSeeOthers();
      for (uint64_t t = 0; t < count && t < ring_.stages; ++t) load(t);
    }
    if (count != 0) prepare(0);
    iris::impl::SyncInsideBlock();
    for (uint64_t t = 0; t < count; ++t) {
      const uint32_t stage = StageOf(t);
      const uint64_t* gate = gates_ + stage;
      const uint32_t parity = static_cast<uint32_t>((used_ + t) / ring_.stages & 1);
      const uint64_t since_ns = rounds->WaitBegins();
      const bool there = rounds->Await(
          rounds->Rotated(1), [gate, parity] { return backend::BulkArrived(gate, parity); });
      rounds->WaitEnds(since_ns);
      if (there) {
        use(t, Memory(stage, n));
      } else {
        backend::Store<Scope::kBlock, Order::kRelaxed>(missed_, used_ + t + 1);
      }
      if (t + 1 < count) prepare(t + 1);
      iris::impl::SyncInsideBlock();  // the tile is used
      const uint64_t in_vain = backend::Load<Scope::kBlock, Order::kRelaxed>(missed_);
      if (in_vain != 0 && in_vain <= used_ + t + 1) return false;
      if (backend::ThreadIndex() == 0 && t + ring_.stages < count) load(t + ring_.stages);
    }
    used_ += count;
    return true;
  }

 private:
  IRIS_DEVICE uint32_t StageOf(uint64_t tile) const {
    return static_cast<uint32_t>((used_ + tile) % ring_.stages);
  }
  IRIS_DEVICE uint8_t* Memory(uint32_t stage, uint32_t n) const {
    return memory_ + uint64_t{stage} * n * ring_.tile_bytes;
  }

  uint64_t block_;  // of the call's blocks
  uint64_t grid_;
  PullRing ring_;
  uint64_t* gates_;
  uint64_t* missed_;  // 1 + the tile for which a thread waited in vain
  uint8_t* memory_;
  uint64_t used_ = 0;
};

IRIS_DEVICE inline bool IsAligned16(const uint8_t* p) {
  return (reinterpret_cast<uint64_t>(p) & 15) == 0;
}

// Rows from the members but this one to where they belong here. source(m), to(m): where row m
// begins; bytes_of(m): how long it is, at most `bytes`.
template <typename Source, typename To, typename BytesOf>
IRIS_DEVICE inline bool GatherByBulk(Rounds* rounds, PullTiles* tiles, const PullRing& ring,
                                     uint64_t bytes, Source source, To to, BytesOf bytes_of) {
  const uint32_t n = rounds->size();
  const uint32_t me = rounds->index();
  const auto by_bulk = [&](uint32_t m, uint64_t tile) {
    return m != me && IsAligned16(source(m)) ? PullTiles::Whole(tiles->BytesIn(tile, bytes_of(m)))
                                             : 0;
  };
  return tiles->Stream(
      rounds, n, bytes, source, by_bulk, [](uint64_t) {},
      [&](uint64_t tile, const uint8_t* memory) {
        const uint64_t at = tiles->At(tile);
        const Jobs jobs =
            WarpJobs(backend::WarpIndex(), backend::BlockSize() / backend::WarpSize(), n - 1);
        for (uint32_t job = jobs.job; job + 1 < n; job += jobs.step) {
          const uint32_t m = rounds->Rotated(job + 1);
          const uint32_t length = tiles->BytesIn(tile, bytes_of(m));
          const uint32_t whole = by_bulk(m, tile);
          iris::impl::CopyBytes<CacheHint::kDefault>(to(m) + at, memory + m * ring.tile_bytes,
                                                     whole, jobs.share);
          iris::impl::CopyBytes<CacheHint::kDefault>(to(m) + at + whole, source(m) + at + whole,
                                                     length - whole, jobs.share);
        }
      });
}

// This member's row of all, reduced; then, where all get it, what the others have made of theirs.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByBulk(const Common& common, const ReduceCall& call,
                                     const PullRing& ring, Rounds& rounds) {
  constexpr uint32_t kEntries = kMaxTeamRanks + 1;
  // For tiles by turns, where the parts and the sum of what came by bulk copies lie, and the same
  // of the rest.
  IRIS_SHARED(uint8_t * [4 * kEntries], tables);
  IRIS_SHARED(uint64_t[kMaxPullStages], gates);
  IRIS_SHARED(uint64_t[1], missed);
  if (rounds.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? common.size : N;
  const bool to_all = call.target == ReduceCall::kAll;
  const uint64_t row_bytes = call.count * sizeof(T);
  PullTiles tiles(common, ring, gates, missed);
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
  bool aligned = true;
  for (uint32_t m = 0; m < n; ++m) aligned = aligned && IsAligned16(source(m));
  const auto by_bulk = [&](uint32_t, uint64_t tile) {
    return aligned ? PullTiles::Whole(tiles.BytesIn(tile, own_bytes)) : 0;
  };
  const auto table_of = [&](uint64_t tile) { return tables + tile % 2 * (2 * kEntries); };
  const Share share = {backend::ThreadIndex(), backend::BlockSize(), call.unroll};
  const bool reduced = tiles.Stream(
      &rounds, n, own_bytes, source, by_bulk,
      [&](uint64_t tile) {
        uint8_t** table = table_of(tile);
        const uint64_t at = tiles.At(tile);
        const uint32_t whole = by_bulk(0, tile);
        uint8_t* memory = tiles.MemoryOf(tile, n);
        for (uint32_t m = backend::ThreadIndex(); m < n + 1; m += backend::BlockSize()) {
          table[m] = m < n ? memory + m * ring.tile_bytes : own_out + at;
          table[kEntries + m] = (m < n ? source(m) : own_out) + at + whole;
        }
      },
      [&](uint64_t tile, const uint8_t*) {
        uint8_t** table = table_of(tile);
        const uint32_t whole = by_bulk(0, tile);
        const uint32_t rest = tiles.BytesIn(tile, own_bytes) - whole;
        ReduceRange<T, Op, N>(op, table, n, 1, whole / sizeof(T), share);
        ReduceRange<T, Op, N>(op, table + kEntries, n, 1, rest / sizeof(T), share);
      });
  if (!reduced) return;
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
  IRIS_SHARED(uint64_t[kMaxPullStages], gates);
  IRIS_SHARED(uint64_t[1], missed);
  if (rounds.broken()) return;
  PullTiles tiles(common, ring, gates, missed);
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
