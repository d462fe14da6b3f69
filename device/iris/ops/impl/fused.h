// The kernel of all fused GEMMs. They share tile_at (which tile a block makes next), the waits,
// accumulate (impl/product.h), the seed from another rank, and the output of a result.
//
//   reduce_scatter, all_reduce   A ring. In step s a rank makes the tile that belongs to the rank
//                                s + 1 places before it, adds the sums from the previous rank, and
//                                sends the result to the next one; the last step is for its own
//                                tile, which it finishes and stores: to itself, or to all.
//   all_gather_matmul            Each block pushes panels of its rows to all ranks, and then makes
//                                tiles: first of its own rank's rows, then of others as these
//                                arrive. Or copies bring the rows (MatmulCall::copied).
//   matmul_all_gather, _scatter  Each tile is stored to all ranks as soon as it is made.
//
// The ring's slots. A group is kGroup tiles of each rank. The tile that a block sends in step s of
// a group has a slot of its own at the receiver, and groups alternate between two sets of slots.
// When a rank has received the data for its last step of a group, the next rank has begun that
// group, because the data started at that next rank. So the next rank has read all of the previous
// group, and the following group may overwrite its slots. Signals count tiles, including those that
// a rank with fewer tiles does not have.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/ops/impl/finish.h"
#include "iris/ops/impl/layout.h"
#include "iris/ops/impl/product.h"
#include "iris/rounds/protocol.h"

namespace iris::ops::impl {

using ccl::impl::Rounds;

// The first elements of the D's to which finished tiles are stored.
struct Places {
  uint8_t* d[kMaxTeamRanks];
};

template <typename T>
class Maker {
 public:
  IRIS_DEVICE Maker(const MatmulCall& call, void* shared) : call_(&call), product_(shared) {}

  IRIS_DEVICE Product<T>& product() { return product_; }

  // Multiplies a tile. `a` is the first element of the A that contains row tile.a_row.
  IRIS_DEVICE void Make(const T* a, uint64_t lda, const Area& tile) {
    const Source<T> rows(a + tile.a_row * lda, lda, tile.rows);
    const T* const b = reinterpret_cast<const T*>(call_->b);
    const bool transposed = call_->transposed_b != 0;
    const Source<T> other(b + (transposed ? tile.b_column * call_->ldb : tile.b_column), call_->ldb,
                          transposed ? tile.columns : call_->k);
    product_.Multiply(rows, other, transposed, tile.columns, call_->k);
  }

  IRIS_DEVICE void Emit(const Area& tile, uint8_t* const* places, uint32_t n_places) {
    const MatmulCall& call = *call_;
    const uint32_t each = PackOf(call.out);
    const uint32_t packs = kTile.columns / each;
    product_.ForEachStrip([&](uint32_t first, const float* strip) {
      for (uint32_t i = backend::ThreadIndex(); i < Product<T>::kStripRows * packs;
           i += Product<T>::kThreads) {
        const uint32_t row = i / packs;
        const uint32_t column = i % packs * each;
        if (first + row >= tile.rows || column >= tile.columns) continue;
        const uint32_t rest = tile.columns - column;
        const uint32_t count = rest < each ? rest : each;
        float values[8] = {};
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < 8; ++e) {
          if (e >= count) continue;
          float x = strip[row * kTile.columns + column + e];
          if (call.bias != nullptr) {
            x += LoadFloat(call.bias, call.bias_type, uint64_t{tile.b_column} + column + e);
          }
          values[e] = Activate(call.activation, x);
        }
        StoreToAll(places, n_places,
                   (uint64_t{tile.d_row} + first + row) * call.ldd + tile.d_column + column,
                   call.out, values, count);
      }
    });
  }

 private:
  const MatmulCall* call_;
  Product<T> product_;
};

template <typename T>
IRIS_DEVICE inline T* AtWorkspace(const Common& common, const MatmulCall& call, uint32_t member,
                                  uint64_t offset_bytes) {
  return iris::AtOffset<T>(common.context, common.members[member],
                           call.workspace_offset_bytes + offset_bytes);
}

// Writes the address of D on every rank to `places`, from this rank's on. Called after Exchange.
// The GEMM of a tile syncs the block before a thread reads `places`.
IRIS_DEVICE inline void FindPlaces(const Rounds& rounds, const MatmulCall& call, Places* places) {
  for (uint32_t step = backend::ThreadIndex(); step < rounds.size(); step += backend::BlockSize()) {
    places->d[step] = step == 0 ? call.d : rounds.Out(rounds.Rotated(step));
  }
}

template <typename T>
IRIS_DEVICE inline void SumAroundRing(const Common& common, const MatmulCall& call, Rounds& rounds,
                                      Maker<T>& maker, Places* places) {
  const Operation operation = common.operation;
  const bool to_all = operation == Operation::kMatmulAllReduce;
  const uint32_t members = common.size;
  const uint32_t me = common.index;
  const uint32_t block = ccl::impl::BlockOf(common);
  const uint32_t grid = ccl::impl::GridOf(common);
  const uint32_t next = rounds.Rotated(1);
  const uint32_t previous = rounds.Rotated(members - 1);
  const uint64_t signals = rounds.Signals();
  if (!rounds.Exchange(false)) return;
  if (to_all) {
    FindPlaces(rounds, call, places);
  } else if (backend::ThreadIndex() == 0) {
    places->d[0] = call.d;
  }
  const T* const a = reinterpret_cast<const T*>(call.a);
  // Member 0 owns as many tiles as any.
  const uint32_t most = CountOwned(operation, call.m, call.n, members, 0);
  uint64_t sent = 0;
  uint64_t taken = 0;
  uint32_t set = 0;
  const auto slot = [&](uint32_t member, uint32_t step, uint32_t g) {
    const uint64_t at = ((uint64_t{block} * 2 + set) * (members - 1) + step) * kGroup + g;
    return AtWorkspace<uint8_t>(common, call, member, kArrivalBytes + at * kSlotBytes);
  };
  for (uint64_t base = block; base < most; base += uint64_t{grid} * kGroup) {
    for (uint32_t s = 0; s < members; ++s) {
      const uint32_t owner = (me + 2 * members - 1 - s) % members;
      const uint32_t owned = CountOwned(operation, call.m, call.n, members, owner);
      for (uint32_t g = 0; g < kGroup; ++g) {
        const uint64_t j = base + uint64_t{g} * grid;
        if (j >= most) break;
        const bool exists = j < owned;
        Area tile = {};
        if (exists) {
          tile = OwnedTile(operation, call.m, call.n, members, owner, static_cast<uint32_t>(j));
          maker.Make(a, call.lda, tile);
        }
        if (s != 0) {
          ++taken;
          if (backend::ThreadIndex() == 0) (void)rounds.AwaitSignalOf(previous, signals + taken);
          iris::impl::SyncAfterConsume();
          if (!rounds.Settle()) return;
          if (exists) maker.product().AddSums(slot(me, s - 1, g));
        }
        if (s + 1 < members) {
          if (exists) maker.product().StoreSums(slot(next, s, g));
          ++sent;
          iris::impl::SyncBeforePublish();
          if (backend::ThreadIndex() == 0) rounds.SignalTo(next, signals + sent);
        } else if (exists) {
          maker.Emit(tile, places->d, to_all ? members : 1);
        }
      }
    }
    set ^= 1;
  }
  iris::impl::SyncInsideBlock();
  if (sent != 0) rounds.KeepSignals(signals + sent);
  if (to_all) {
    rounds.MeetLast(true);
  } else {
    rounds.Finish();
  }
}

// Pushes the panels that this block has of this member's rows to all others.
template <typename T>
IRIS_DEVICE inline void PushPanels(const Common& common, const MatmulCall& call, Rounds& rounds,
                                   uint64_t tag) {
  const uint32_t members = common.size;
  const Share mine = ShareOf(call.m, members, common.index);
  const uint32_t panel_rows = PanelRows(call.m, members);
  const uint32_t rows = static_cast<uint32_t>(mine.count);
  const uint32_t panels = CountPanels(rows, panel_rows);
  const uint64_t stride = GatheredStride(call.k);
  const uint32_t packs = static_cast<uint32_t>(stride / kPack);
  const Source<T> source(reinterpret_cast<const T*>(call.a), call.lda, rows);
  for (uint32_t panel = ccl::impl::BlockOf(common); panel < panels;
       panel += ccl::impl::GridOf(common)) {
    const uint32_t first = panel * panel_rows;
    const uint32_t last = rows - first < panel_rows ? rows : first + panel_rows;
    for (uint32_t row = first; row < last; ++row) {
      for (uint32_t i = backend::ThreadIndex(); i < packs; i += backend::BlockSize()) {
        const uint64_t at = uint64_t{i} * kPack;
        const Bytes16 pack = LoadPack(source, row, at, call.k - at);
        const uint64_t to = ((mine.begin + row) * stride + at) * sizeof(T);
        for (uint32_t step = 1; step < members; ++step) {
          backend::Store16<CacheHint::kDefault>(
              AtWorkspace<uint8_t>(common, call, rounds.Rotated(step), kArrivalBytes + to), pack);
        }
      }
    }
    iris::impl::SyncBeforePublish();
    for (uint32_t step = 1 + backend::ThreadIndex(); step < members; step += backend::BlockSize()) {
      uint64_t* const arrivals = AtWorkspace<uint64_t>(common, call, rounds.Rotated(step), 0);
      backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(
          arrivals + common.index * (kArrivals / members) + panel, tag);
    }
  }
}

template <typename T>
IRIS_DEVICE inline void MultiplyGathered(const Common& common, const MatmulCall& call,
                                         Rounds& rounds, Maker<T>& maker, Places* places) {
  const uint32_t members = common.size;
  const uint32_t me = common.index;
  const uint64_t tag = backend::LoadPlain(AtWorkspace<uint64_t>(common, call, me, 0) + kArrivals);
  if (!rounds.Exchange(false)) return;
  if (backend::ThreadIndex() == 0) places->d[0] = call.d;
  if (members > 1 && call.copied == 0) PushPanels<T>(common, call, rounds, tag);
  const uint32_t panel_rows = PanelRows(call.m, members);
  const uint64_t* const arrivals = AtWorkspace<uint64_t>(common, call, me, 0);
  const T* const gathered = AtWorkspace<T>(common, call, me, kArrivalBytes);
  uint64_t before = 0;  // tiles of the members that came before
  uint64_t j = ccl::impl::BlockOf(common);
  for (uint32_t s = 0; s < members; ++s) {
    const uint32_t owner = (me + members - s) % members;
    const Area area = AreaOf(Operation::kAllGatherMatmul, call.m, call.n, members, owner);
    const uint32_t tiles = CountTiles(area);
    const T* const a = s == 0 ? reinterpret_cast<const T*>(call.a)
                              : gathered + area.d_row * GatheredStride(call.k);
    const uint64_t lda = s == 0 ? call.lda : GatheredStride(call.k);
    for (; j < before + tiles; j += ccl::impl::GridOf(common)) {
      const Area tile = TileOf(area, static_cast<uint32_t>(j - before));
      if (s != 0) {
        if (backend::ThreadIndex() == 0) {
          const uint64_t* const word =
              arrivals + owner * (kArrivals / members) + tile.a_row / panel_rows;
          (void)rounds.Await(owner, [word, tag] {
            return backend::Load<Scope::kSystem, iris::impl::kConsumeOrder>(word) == tag;
          });
        }
        iris::impl::SyncAfterConsume();
        if (!rounds.Settle()) return;
      }
      maker.Make(a, lda, tile);
      maker.Emit(tile, places->d, 1);
    }
    before += tiles;
  }
  iris::impl::SyncInsideBlock();
  if (call.copied != 0) {
    // Copies of the next call start even if the members do not meet for it. They overwrite the rows
    // of this call, so this round waits until no member reads them any more.
    rounds.MeetLast(false);
  } else {
    rounds.Finish();
  }
}

template <typename T>
IRIS_DEVICE inline void MultiplyForAll(const Common& common, const MatmulCall& call, Rounds& rounds,
                                       Maker<T>& maker, Places* places) {
  if (!rounds.Exchange(false)) return;
  FindPlaces(rounds, call, places);
  const Area area = AreaOf(common.operation, call.m, call.n, common.size, common.index);
  const uint32_t tiles = CountTiles(area);
  for (uint64_t t = ccl::impl::BlockOf(common); t < tiles; t += ccl::impl::GridOf(common)) {
    const Area tile = TileOf(area, static_cast<uint32_t>(t));
    maker.Make(reinterpret_cast<const T*>(call.a), call.lda, tile);
    maker.Emit(tile, places->d, common.size);
  }
  rounds.MeetLast(true);
}

// Numbers the operation before all_gather_matmul, in one thread, so that all blocks of the next
// kernel get the same number, however late they begin. After an opening it also sets the number
// that copies report.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(1, 1) void CountGather(IRIS_PARAM Common common,
                                                      IRIS_PARAM MatmulCall call) {
  uint64_t* const number = AtWorkspace<uint64_t>(common, call, common.index, 0) + kArrivals;
  const uint64_t next = backend::LoadPlain(number) + 1;
  backend::StorePlain(number, next);
  const auto* const header = iris::AtOffset<ccl::impl::Header>(common.context, common.context.rank,
                                                               common.header_offset_bytes);
  const bool met = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->failed) == 0;
  backend::StorePlain(number + 1, met ? next : 0);
}

// Follows a copy on its stream, in one warp, and signals `member` that `count` panels of this
// member's rows, from `first` on, have arrived.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(backend::Traits::kWarpThreads,
                               1) void TellPanels(IRIS_PARAM Common common,
                                                  IRIS_PARAM MatmulCall call, uint32_t member,
                                                  uint32_t first, uint32_t count) {
  const uint64_t tag =
      backend::LoadPlain(AtWorkspace<uint64_t>(common, call, common.index, 0) + kArrivals + 1);
  if (tag == 0) return;  // the members have not met
  uint64_t* const arrivals = AtWorkspace<uint64_t>(common, call, member, 0) +
                             common.index * (kArrivals / common.size) + first;
  for (uint32_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    backend::Store<Scope::kSystem, iris::impl::kPublishOrder>(arrivals + i, tag);
  }
}

template <typename T>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product<T>::kThreads,
                               1) void FusedMatmul(IRIS_PARAM Common common,
                                                   IRIS_PARAM MatmulCall call) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  IRIS_SHARED(Places, places);
  IRIS_SHARED(Bytes16[Product<T>::kSharedBytes / sizeof(Bytes16)], slices);
  Rounds rounds(common, &shared, ccl::impl::BlockOf(common));
  if (!rounds.broken()) {
    Maker<T> maker(call, slices);
    switch (common.operation) {
      case Operation::kAllGatherMatmul:
        MultiplyGathered(common, call, rounds, maker, &places);
        break;
      case Operation::kMatmulAllGather:
      case Operation::kMatmulAllScatter:
        MultiplyForAll(common, call, rounds, maker, &places);
        break;
      default:
        SumAroundRing(common, call, rounds, maker, &places);
        break;
    }
  }
  rounds.Conclude();
}

}  // namespace iris::ops::impl
