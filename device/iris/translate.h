// Translates a pointer into one heap to the same offset in another, by arithmetic only: no table,
// no memory access. Device and host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/types.h"

namespace iris {

// Returns true if loads and stores of this rank reach the heap of `rank`: it is on this node, or on
// one that shares a fabric with it, which counts as this node in the comments of these headers.
// Ranks of other nodes are reached by Put, Get, PutSignal, signals and atomics alone.
IRIS_HOST_DEVICE inline bool Reaches(const DeviceContext& ctx, uint32_t rank) {
  return !impl::OnPort(ctx, rank);
}

// Returns true if `p` lies in the heap that rank `rank` has in this process's window.
IRIS_HOST_DEVICE inline bool InHeapOf(const DeviceContext& ctx, uint32_t rank, const void* p) {
  const uint64_t offset = reinterpret_cast<uint64_t>(p) - (ctx.base + rank * ctx.stride_bytes);
  return offset < ctx.stride_bytes;
}

// Returns true if `p` lies in the caller's own heap.
IRIS_HOST_DEVICE inline bool InHeap(const DeviceContext& ctx, const void* p) {
  return InHeapOf(ctx, ctx.rank, p);
}

// Returns the address in the heap of `to` that corresponds to `p` in the heap of `from`.
template <typename T>
IRIS_HOST_DEVICE inline T* Translate(const DeviceContext& ctx, uint32_t from, uint32_t to, T* p) {
  impl::CheckTranslation(ctx, from, to, p);
  return impl::Moved(ctx, from, to, p);
}

// Returns the address in the heap of `to` that corresponds to `p` in the caller's own heap.
template <typename T>
IRIS_HOST_DEVICE inline T* Translate(const DeviceContext& ctx, uint32_t to, T* p) {
  return Translate(ctx, ctx.rank, to, p);
}

// Returns the world rank at `index` of the team. Prefer it to members[index], which is a rank only
// in a job of one node, and by which every thread of a GPU would keep a copy of the team in memory.
IRIS_HOST_DEVICE inline uint32_t MemberRank(const DeviceTeam& team, uint32_t index) {
  static_assert(offsetof(DeviceTeam, members) % 8 == 0 && kMaxTeamRanks % 8 == 0);
  impl::CheckMember(team, index);
  if (__builtin_expect(team.step != DeviceTeam::kListed, 0)) {
    if (team.step != DeviceTeam::kTable) return team.first + index * team.step;
    uint64_t table = 0;
    __builtin_memcpy(&table, team.members, sizeof(table));
    return reinterpret_cast<const uint32_t*>(table)[index];
  }
  uint64_t eight = 0;
  for (uint32_t k = 0; k < kMaxTeamRanks / 8; ++k) {
    uint64_t candidate = 0;
    __builtin_memcpy(&candidate, reinterpret_cast<const uint64_t*>(team.members + 8 * k), 8);
    eight = index / 8 == k ? candidate : eight;
  }
  return team.first + (static_cast<uint32_t>(eight >> (index % 8 * 8)) & 0xff);
}

// Returns the distance of `p` from the beginning of the caller's heap. A symmetric object has the
// same offset on every rank.
IRIS_HOST_DEVICE inline uint64_t OffsetBytes(const DeviceContext& ctx, const void* p) {
  return reinterpret_cast<uint64_t>(p) - (ctx.base + ctx.rank * ctx.stride_bytes);
}

// Returns the address at `offset_bytes` in the heap of `rank`.
template <typename T>
IRIS_HOST_DEVICE inline T* AtOffset(const DeviceContext& ctx, uint32_t rank,
                                    uint64_t offset_bytes) {
  return reinterpret_cast<T*>(ctx.base + rank * ctx.stride_bytes + offset_bytes);
}

}  // namespace iris
