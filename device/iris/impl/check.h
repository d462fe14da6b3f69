// Checks of the device API's arguments, on the emulator alone: a mistake ends with a sentence.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/heap_map.h"
#include "iris/backend/select.h"
#include "iris/types.h"

namespace iris::impl {

inline constexpr bool kChecked = backend::Traits::kEmulated;

// Returns true if `rank` is on another node. Contexts of jobs of one node have n_mapped 0.
IRIS_HOST_DEVICE inline bool OnPort(const DeviceContext& ctx, uint32_t rank) {
  return __builtin_expect(ctx.n_mapped != 0, 0) && rank - ctx.first_mapped >= ctx.n_mapped;
}
IRIS_HOST_DEVICE constexpr bool OnPort(const HeapBases&, uint32_t) { return false; }

// Pure arithmetic: where `p`, an address in the heap of `from`, lies in the heap of `to`.
template <typename T>
IRIS_HOST_DEVICE inline T* Moved(const DeviceContext& ctx, uint32_t from, uint32_t to, T* p) {
  return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(p) +
                              (static_cast<uint64_t>(to) - from) * ctx.stride_bytes);
}

// Checks by a table of heaps.
template <typename T>
IRIS_HOST_DEVICE inline T* Moved(const HeapBases& heaps, uint32_t from, uint32_t to, T* p) {
  return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(p) +
                              (heaps.bases[to] - heaps.bases[from]));
}

// The first argument of the calls, which has the addresses of the heaps.
template <typename Heaps>
using IfHeaps =
    std::enable_if_t<std::is_base_of_v<DeviceContext, Heaps> || std::is_same_v<Heaps, HeapBases>>;

// For messages about a wrong access; stride_bytes 0, without places, if heaps are not equally
// spaced.
IRIS_HOST_DEVICE inline DeviceContext AsContext(const HeapBases& heaps) {
  DeviceContext ctx;
  ctx.rank = heaps.rank;
  ctx.n_ranks = heaps.n_ranks;
  if (heaps.n_ranks == 0) return ctx;
  ctx.base = heaps.bases[0];
  ctx.stride_bytes = heaps.n_ranks > 1 ? heaps.bases[1] - heaps.bases[0] : heaps.heap_bytes;
  for (uint32_t r = 1; r < heaps.n_ranks; ++r) {
    if (heaps.bases[r] - heaps.bases[r - 1] != ctx.stride_bytes) ctx.stride_bytes = 0;
  }
  return ctx;
}

// Templates that a GPU's compiler parses and never instantiates.

template <typename Context>
[[noreturn]] IRIS_HOST_DEVICE __attribute__((noinline)) inline void Refuse(
    const Context& ctx, backend::BadAccess::Why why, const char* call, uint32_t peer,
    uint32_t owner, uint64_t address, uint64_t bytes, uint64_t alignment_bytes) {
  backend::BadAccess access;
  access.why = why;
  access.call = call;
  access.peer = peer;
  access.owner = owner;
  access.address = address;
  access.bytes = bytes;
  access.alignment_bytes = alignment_bytes;
  access.heaps = {ctx.rank,     ctx.n_ranks,      ctx.base,    ctx.stride_bytes,
                  ctx.heap_map, ctx.first_mapped, ctx.n_mapped};
  backend::RefuseAccess(access);
}

// Ends with a sentence if HeapMap::allowed refuses the range at `offset` of rank `owner`'s heap.
template <typename Context>
IRIS_HOST_DEVICE inline void CheckAllocation(const Context& ctx, const char* call, uint32_t peer,
                                             uint32_t owner, uint64_t offset, uint64_t address,
                                             uint64_t bytes) {
  const backend::HeapMap* const map = ctx.heap_map;
  if (map == nullptr || map->struct_bytes < sizeof(*map) || map->allowed == nullptr) return;
  if (map->allowed(map, owner - ctx.first_mapped, offset, bytes, nullptr, 0)) return;
  Refuse(ctx, backend::BadAccess::Why::kAllocation, call, peer, owner, address, bytes, 1);
}

// Where `p`, in the caller's own heap and aligned, lies in that of `peer`. `call`: for messages.
template <uint64_t kAlignment, typename T>
IRIS_DEVICE inline T* OfPeer(const DeviceContext& ctx, uint32_t peer, T* p, uint64_t bytes,
                             const char* call) {
  if constexpr (kChecked) {
    using Why = backend::BadAccess::Why;
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    const uint64_t offset = address - (ctx.base + ctx.rank * ctx.stride_bytes);
    if (__builtin_expect(ctx.stride_bytes == 0, 0)) return p;  // ranks that share one heap
    if (__builtin_expect(peer >= ctx.n_ranks, 0)) {
      Refuse(ctx, Why::kPeer, call, peer, ctx.rank, address, bytes, kAlignment);
    }
    if (OnPort(ctx, peer)) {
      Refuse(ctx, Why::kOtherNode, call, peer, ctx.rank, address, bytes, kAlignment);
    }
    if (bytes > 0) {
      if (__builtin_expect(offset >= ctx.stride_bytes || bytes > ctx.stride_bytes - offset, 0)) {
        Refuse(ctx, Why::kAddress, call, peer, ctx.rank, address, bytes, kAlignment);
      }
      if (__builtin_expect(address % kAlignment != 0, 0)) {
        Refuse(ctx, Why::kAlignment, call, peer, ctx.rank, address, bytes, kAlignment);
      }
      CheckAllocation(ctx, call, peer, peer, offset, address, bytes);
    }
  } else {
    (void)bytes;
    (void)call;
  }
  return Moved(ctx, ctx.rank, peer, p);
}

// Like OfPeer, by a table. Properties that the table lacks are not checked.
template <uint64_t kAlignment, typename T>
IRIS_DEVICE inline T* OfPeer(const HeapBases& heaps, uint32_t peer, T* p, uint64_t bytes,
                             const char* call) {
  if constexpr (kChecked) {
    using Why = backend::BadAccess::Why;
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    if (__builtin_expect(heaps.n_ranks != 0 && peer >= heaps.n_ranks, 0)) {
      Refuse(AsContext(heaps), Why::kPeer, call, peer, heaps.rank, address, bytes, kAlignment);
    }
    if (bytes > 0) {
      const uint64_t offset = address - heaps.bases[heaps.rank];
      const uint64_t room = heaps.heap_bytes;
      if (__builtin_expect(room != 0 && (offset >= room || bytes > room - offset), 0)) {
        Refuse(AsContext(heaps), Why::kAddress, call, peer, heaps.rank, address, bytes, kAlignment);
      }
      if (__builtin_expect(address % kAlignment != 0, 0)) {
        Refuse(AsContext(heaps), Why::kAlignment, call, peer, heaps.rank, address, bytes,
               kAlignment);
      }
    }
  } else {
    (void)bytes;
    (void)call;
  }
  return Moved(heaps, heaps.rank, peer, p);
}

// The memory outside the heaps, and the allocations in them, are unknown.
template <typename T>
IRIS_DEVICE inline T* AnyAddress(const HeapBases&, T* p, uint64_t, const char*) {
  return p;
}

// The other side of a copy: any memory. What lies in some rank's heap is checked as that.
template <typename T>
IRIS_DEVICE inline T* AnyAddress(const DeviceContext& ctx, T* p, uint64_t bytes, const char* call) {
  if constexpr (kChecked) {
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    const uint64_t offset = address - ctx.base;
    const uint32_t owner = bytes > 0 && offset < ctx.n_ranks * ctx.stride_bytes
                               ? static_cast<uint32_t>(offset / ctx.stride_bytes)
                               : ctx.n_ranks;
    // What is at the place of the heap of another node's rank is other memory of the process.
    if (owner < ctx.n_ranks && !OnPort(ctx, owner)) {
      const uint64_t in_heap = offset % ctx.stride_bytes;
      if (__builtin_expect(bytes > ctx.stride_bytes - in_heap, 0)) {
        Refuse(ctx, backend::BadAccess::Why::kAddress, call, owner, owner, address, bytes, 1);
      }
      CheckAllocation(ctx, call, owner, owner, in_heap, address, bytes);
    }
  } else {
    (void)ctx;
    (void)bytes;
    (void)call;
  }
  return p;
}

// A word that a wait polls: any address that is aligned.
template <typename T>
IRIS_DEVICE inline const T* Polled(const T* word, const char* call) {
  if constexpr (kChecked) {
    if (__builtin_expect(reinterpret_cast<uint64_t>(word) % sizeof(T) != 0, 0)) {
      Refuse(DeviceContext(), backend::BadAccess::Why::kAlignment, call, 0, 0,
             reinterpret_cast<uint64_t>(word), sizeof(T), sizeof(T));
    }
  } else {
    (void)call;
  }
  return word;
}

// Ranks and the address of a translation, which may also be the end of a heap.
template <typename T>
IRIS_HOST_DEVICE inline void CheckTranslation(const DeviceContext& ctx, uint32_t from, uint32_t to,
                                              T* p) {
  if constexpr (kChecked) {
    using Why = backend::BadAccess::Why;
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    if (__builtin_expect(ctx.stride_bytes == 0, 0)) return;  // ranks that share one heap
    if (__builtin_expect(from >= ctx.n_ranks || to >= ctx.n_ranks, 0)) {
      Refuse(ctx, Why::kPeer, "Translate", to >= ctx.n_ranks ? to : from, from, address, 0, 1);
    }
    if (OnPort(ctx, from) || OnPort(ctx, to)) {
      Refuse(ctx, Why::kOtherNode, "Translate", OnPort(ctx, to) ? to : from, from, address, 0, 1);
    }
    if (__builtin_expect(address - (ctx.base + from * ctx.stride_bytes) > ctx.stride_bytes, 0)) {
      Refuse(ctx, Why::kAddress, "Translate", to, from, address, 0, 1);
    }
  } else {
    (void)ctx;
    (void)from;
    (void)to;
    (void)p;
  }
}

// The team has a member `index`.
template <typename Team>
IRIS_HOST_DEVICE inline void CheckMember(const Team& team, uint32_t index) {
  if constexpr (kChecked) {
    if (__builtin_expect(index >= team.size, 0)) {
      backend::BadAccess access;
      access.why = backend::BadAccess::Why::kTeamIndex;
      access.call = "MemberRank";
      access.peer = index;
      access.team_size = team.size;
      backend::RefuseAccess(access);
    }
  } else {
    (void)team;
    (void)index;
  }
}

// The caller is a member of the team whose barrier it calls.
template <typename Context>
IRIS_DEVICE inline void CheckMembership(const Context& ctx, const DeviceTeam& team) {
  if constexpr (kChecked) {
    if (__builtin_expect(team.index >= team.size, 0)) {
      Refuse(ctx, backend::BadAccess::Why::kNotAMember, "Barrier", 0, ctx.rank, 0, 0, 1);
    }
  } else {
    (void)ctx;
    (void)team;
  }
}

// All ranks of the team are on this node, as `call` needs.
template <typename Context>
IRIS_DEVICE inline void CheckOneNode(const Context& ctx, const DeviceTeam& team, const char* call) {
  if constexpr (kChecked) {
    if (__builtin_expect(team.step != DeviceTeam::kListed, 0)) {
      Refuse(ctx, backend::BadAccess::Why::kTeamOfNodes, call, 0, ctx.rank, 0, 0, 1);
    }
  } else {
    (void)ctx;
    (void)team;
    (void)call;
  }
}

}  // namespace iris::impl
