// Collectives of a tile, which a block calls inside a kernel; fused kernels are built of them.
//
//   IRIS_KERNEL void Step(iris::DeviceContext ctx, iris::DeviceTeam team, float* tiles) {
//     // The same offset in each heap:
//     float* tile = tiles + iris::backend::BlockIndex() * 1024;
//     ... every thread writes its part of the tile ...
//     if (iris::ccl::TileAllReduce(ctx, team, tile, tile, 1024, iris::ccl::ReduceOp::kSum) !=
//         iris::WaitResult::kOk) {
//       return;
//     }
//     ... every thread reads the sum ...
//   }
//
// All threads of the block call it, and on every rank the block of the same index, with the same
// arguments. The other blocks see the block's earlier writes, and all see the result afterwards.
// Buffers lie in the heap, at the same offset on all ranks, aligned to the element (fast if to 16
// bytes). `out` may be `in`; otherwise they do not overlap.
//
// Rounds go through the team's own barrier area, with the rules of iris::Barrier: at most
// SyncArea::kMaxBlocks blocks, one kernel at a time on a team. Any number of teams. There is no
// workspace. iris::Barrier lists the results other than kOk; the buffers are then undefined.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/barrier.h"
#include "iris/collective/collective.h"
#include "iris/collective/impl/reduce.h"
#include "iris/memory.h"
#include "iris/rounds/layout.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris::ccl {

// Calls iris::Barrier. It is here for completeness.
IRIS_DEVICE inline WaitResult TileBarrier(const DeviceContext& ctx, const DeviceTeam& team,
                                          uint64_t timeout_ns = 0, uint32_t* missing = nullptr) {
  return Barrier(ctx, team, timeout_ns, missing);
}

namespace impl {

// Fills the block's table with the addresses of `in` on every rank, and of `out` on all or here.
template <typename T>
IRIS_DEVICE inline uint8_t** TileTable(const DeviceContext& ctx, const DeviceTeam& team,
                                       const T* in, T* out, bool to_all) {
  IRIS_SHARED(uint8_t * [2 * kMaxTeamRanks], table);
  const uint32_t n = team.size;
  for (uint32_t i = backend::ThreadIndex(); i < n + (to_all ? n : 1); i += backend::BlockSize()) {
    if (i < n) {
      table[i] = reinterpret_cast<uint8_t*>(const_cast<T*>(Translate(ctx, team.members[i], in)));
    } else {
      const uint32_t member = (team.index + i - n) % n;
      table[i] =
          reinterpret_cast<uint8_t*>(to_all ? Translate(ctx, team.members[member], out) : out);
    }
  }
  iris::impl::SyncInsideBlock();
  return table;
}

}  // namespace impl

// Computes out[i] = op over the ranks of in[i].
template <typename T>
IRIS_DEVICE inline WaitResult TileAllReduce(const DeviceContext& ctx, const DeviceTeam& team,
                                            const T* in, T* out, uint64_t count, ReduceOp op,
                                            uint64_t timeout_ns = 0) {
  WaitResult result = Barrier(ctx, team, timeout_ns);
  if (result != WaitResult::kOk) return result;
  const uint64_t slice = impl::RoundUp((count + team.size - 1) / team.size, 16 / sizeof(T));
  const uint64_t begin = impl::Min(count, team.index * slice);
  const uint64_t mine = impl::Min(slice, count - begin);
  uint8_t** table = impl::TileTable(ctx, team, in + begin, out + begin, true);
  const impl::AnyOp<T> reduce(op, team.size);
  impl::ReduceRange<T, impl::AnyOp<T>, 0>(reduce, table, team.size, team.size, mine,
                                          {backend::ThreadIndex(), backend::BlockSize()});
  return Barrier(ctx, team, timeout_ns);
}

// Computes out[i] = op over the ranks of in[index * count_per_member + i].
template <typename T>
IRIS_DEVICE inline WaitResult TileReduceScatter(const DeviceContext& ctx, const DeviceTeam& team,
                                                const T* in, T* out, uint64_t count_per_member,
                                                ReduceOp op, uint64_t timeout_ns = 0) {
  WaitResult result = Barrier(ctx, team, timeout_ns);
  if (result != WaitResult::kOk) return result;
  uint8_t** table = impl::TileTable(ctx, team, in + team.index * count_per_member, out, false);
  const impl::AnyOp<T> reduce(op, team.size);
  impl::ReduceRange<T, impl::AnyOp<T>, 0>(reduce, table, team.size, 1, count_per_member,
                                          {backend::ThreadIndex(), backend::BlockSize()});
  return Barrier(ctx, team, timeout_ns);
}

// Sets out[m * count_per_member + i] = in[i] of m. In place: in == out + index * count_per_member.
template <typename T>
IRIS_DEVICE inline WaitResult TileAllGather(const DeviceContext& ctx, const DeviceTeam& team,
                                            const T* in, T* out, uint64_t count_per_member,
                                            uint64_t timeout_ns = 0) {
  // After this barrier no rank reads its `out` any more.
  WaitResult result = Barrier(ctx, team, timeout_ns);
  if (result != WaitResult::kOk) return result;
  T* row = out + team.index * count_per_member;
  uint8_t** table = impl::TileTable(ctx, team, row, row, true);
  impl::CopyToAll(table + team.size, team.size, reinterpret_cast<const uint8_t*>(in),
                  count_per_member * sizeof(T), {backend::ThreadIndex(), backend::BlockSize()});
  return Barrier(ctx, team, timeout_ns);
}

}  // namespace iris::ccl
