// The kernels of all_reduce, reduce_scatter and reduce. N: members, known when compiled (2, 4, 8);
// 0: any.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/collective/impl/layout.h"
#include "device/collective/impl/protocol.h"
#include "device/collective/impl/reduce.h"
#include "device/iris/memory.h"

namespace iris::ccl::impl {

// Elements of row r.
template <typename C>
IRIS_DEVICE inline uint64_t RowCount(const C& call, uint32_t r) {
  const uint64_t begin = r * call.count;
  return begin < call.limit ? Min(call.count, call.limit - begin) : 0;
}

// Eight bytes of `bytes` at `p`, of which `count` (1 to 8) exist.
template <typename T>
IRIS_DEVICE inline uint64_t LoadWord(const uint8_t* p, uint64_t count) {
  if (count >= 8 && (reinterpret_cast<uint64_t>(p) & 7) == 0) {
    return backend::LoadPlain(reinterpret_cast<const uint64_t*>(p));
  }
  Pack<T, 8 / sizeof(T)> pack = {};
  IRIS_UNROLL(8)
  for (uint32_t k = 0; k < 8 / sizeof(T); ++k) {
    if (k * sizeof(T) < count) {
      pack.values[k] =
          iris::impl::LoadValue<CacheHint::kDefault>(reinterpret_cast<const T*>(p) + k);
    }
  }
  return iris::impl::BitCast<uint64_t>(pack);
}

template <typename T>
IRIS_DEVICE inline void StoreWord(uint8_t* p, uint64_t count, uint64_t word) {
  if (count >= 8 && (reinterpret_cast<uint64_t>(p) & 7) == 0) {
    backend::StorePlain(reinterpret_cast<uint64_t*>(p), word);
    return;
  }
  const auto pack = iris::impl::BitCast<Pack<T, 8 / sizeof(T)>>(word);
  IRIS_UNROLL(8)
  for (uint32_t k = 0; k < 8 / sizeof(T); ++k) {
    if (k * sizeof(T) < count) {
      iris::impl::StoreValue<CacheHint::kDefault>(reinterpret_cast<T*>(p) + k, pack.values[k]);
    }
  }
}

// Every member sends its rows as packets, and reduces what it gets in the order of the members.
template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReducePackets(Call call) {
  IRIS_SHARED(SharedState, shared);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? call.size : N;
  const uint32_t me = call.index;
  const uint64_t capacity = call.packet_bytes / 8;
  const uint64_t row_bytes = call.count * sizeof(T);
  const uint64_t words = (row_bytes + 7) / 8;
  const uint64_t per_block = (words + backend::GridSize() - 1) / backend::GridSize();
  const uint64_t begin = Min(words, backend::BlockIndex() * per_block);
  const uint64_t end = Min(words, begin + per_block);
  const bool gets = call.target == Call::kAll || call.target == Call::kSelf || call.target == me;
  // Only where nobody but the root gets anything does a round not show that all have come.
  const bool calls = call.check != 0 || call.target < n;

  for (uint64_t base = begin; base < end; base += capacity) {
    const uint64_t count = Min(capacity, end - base);
    session.Advance();
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = row_bytes - at;
      uint64_t word = LoadWord<T>(call.in + at, left);
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < n; ++k) {
        const uint32_t peer = session.Rotated(k);
        if (call.target < n && peer != call.target) continue;
        if (call.rows != 1) word = LoadWord<T>(call.in + peer * row_bytes + at, left);
        backend::Store16<CacheHint::kVolatile>(session.Inbox(peer, me) + w, session.Packet(word));
      }
    }
    // All threads have read the epoch and what is shared is clear; for the rounds that follow: the
    // block has read its packets of the last one.
    iris::impl::SyncInsideBlock();
    // What differs must be known before packets are waited for that will not come.
    if (calls) {
      session.SendCalls(false);
      if (!session.ReceiveCalls()) return;
    }
    for (uint64_t w = backend::ThreadIndex(); gets && w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = row_bytes - at;
      const uint64_t own = LoadWord<T>(call.in + (call.rows == 1 ? 0 : me * row_bytes) + at, left);
      using P = Pack<T, 8 / sizeof(T)>;
      Sum<T, 8 / sizeof(T)> sum;
      const Bytes16* inbox = session.Inbox(me, 0) + w;
      const uint64_t stride = call.packet_bytes / 8;
      bool whole = true;
      if constexpr (N == 0) {
        for (uint32_t m = 0; m < n; ++m) {
          uint64_t word = own;
          if (m != me) {
            const Bytes16* slot = inbox + m * stride;
            whole = whole &&
                    session.Receive(slot, backend::Load16<CacheHint::kVolatile>(slot), m, &word);
          }
          const P pack = iris::impl::BitCast<P>(word);
          if (m == 0) {
            sum = Begin(pack);
          } else {
            op.Add(&sum, pack);
          }
        }
      } else {
        Bytes16 packets[N];
        IRIS_UNROLL(8)
        for (uint32_t m = 0; m < N; ++m) {
          packets[m] = m == me ? session.Packet(own)
                               : backend::Load16<CacheHint::kVolatile>(inbox + m * stride);
        }
        IRIS_UNROLL(8)
        for (uint32_t m = 0; m < N; ++m) {
          uint64_t word = 0;
          whole = whole && session.Receive(inbox + m * stride, packets[m], m, &word);
          const P pack = iris::impl::BitCast<P>(word);
          if (m == 0) {
            sum = Begin(pack);
          } else {
            op.Add(&sum, pack);
          }
        }
      }
      if (!whole) break;
      StoreWord<T>(call.out + at, left, iris::impl::BitCast<uint64_t>(op.Finish(sum)));
    }
    if (base + capacity < end) {
      iris::impl::SyncAfterConsume();
      if (!session.Settle()) return;
    }
  }
  if (begin == end) iris::impl::SyncInsideBlock();
  session.Finish();
}

// An all-reduce in two rounds of packets: everybody gets the words of its row, and then from
// everybody what came of its row. Rows are sent as if all were whole, so that every block hears of
// every member in both rounds.
template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceTwoPackets(Call call) {
  IRIS_SHARED(SharedState, shared);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const Op op(call);
  const uint32_t me = call.index;
  const uint64_t capacity = call.packet_bytes / 8;
  const uint64_t row_bytes = call.count * sizeof(T);  // a multiple of 16
  const uint64_t words = row_bytes / 8;
  const uint64_t per_block = (words + backend::GridSize() - 1) / backend::GridSize();
  const uint64_t begin = Min(words, backend::BlockIndex() * per_block);
  const uint64_t end = Min(words, begin + per_block);
  const uint64_t limit = call.limit * sizeof(T);
  const auto left = [&](uint32_t row, uint64_t at) {
    const uint64_t from = row * row_bytes + at;
    return from < limit ? limit - from : 0;
  };

  for (uint64_t base = begin; base < end; base += capacity) {
    const uint64_t count = Min(capacity, end - base);
    session.Advance();
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      uint64_t values[N];
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        const uint32_t peer = session.Rotated(k);
        values[k] = LoadWord<T>(call.in + peer * row_bytes + at, left(peer, at));
      }
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        backend::Store16<CacheHint::kVolatile>(session.Inbox(session.Rotated(k), me) + w,
                                               session.Packet(values[k]));
      }
    }
    iris::impl::SyncInsideBlock();  // as in ReducePackets
    if (call.check != 0) {
      session.SendCalls(false);
      if (!session.ReceiveCalls()) return;
    }
    const uint64_t stride = call.packet_bytes / 8;
    bool whole = true;
    const Bytes16* rows = session.Inbox(me, 0);
    Session second = session;
    second.Advance();
    for (uint64_t w = backend::ThreadIndex(); whole && w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      using P = Pack<T, 8 / sizeof(T)>;
      const uint64_t own = LoadWord<T>(call.in + me * row_bytes + at, left(me, at));
      Bytes16 packets[N];
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        packets[m] = m == me ? session.Packet(own)
                             : backend::Load16<CacheHint::kVolatile>(rows + m * stride + w);
      }
      Sum<T, 8 / sizeof(T)> sum;
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        uint64_t word = 0;
        whole = whole && session.Receive(rows + m * stride + w, packets[m], m, &word);
        const P pack = iris::impl::BitCast<P>(word);
        if (m == 0) {
          sum = Begin(pack);
        } else {
          op.Add(&sum, pack);
        }
      }
      if (!whole) break;
      const uint64_t result = iris::impl::BitCast<uint64_t>(op.Finish(sum));
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        backend::Store16<CacheHint::kVolatile>(second.Inbox(second.Rotated(k), me) + w,
                                               second.Packet(result));
      }
      StoreWord<T>(call.out + me * row_bytes + at, left(me, at), result);
    }
    session = second;
    rows = session.Inbox(me, 0);
    for (uint64_t w = backend::ThreadIndex(); whole && w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      Bytes16 packets[N];
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m != me) packets[m] = backend::Load16<CacheHint::kVolatile>(rows + m * stride + w);
      }
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m == me) continue;
        uint64_t word = 0;
        whole = whole && session.Receive(rows + m * stride + w, packets[m], m, &word);
        if (whole) StoreWord<T>(call.out + m * row_bytes + at, left(m, at), word);
      }
    }
    if (base + capacity < end) {
      iris::impl::SyncAfterConsume();
      if (!session.Settle()) return;
    }
  }
  if (begin == end) iris::impl::SyncInsideBlock();
  session.Finish();
}

// A reduction of much, all buffers in the heap: members push chunks of each other's rows into the
// stages, a chunk ahead of what they reduce. Stores use the links better than loads do.
//
// Slots: chunk c goes where c - 4 was. It is pushed after this block has waited for c - 2 of all,
// which they sent after they had reduced c - 4.
inline constexpr uint32_t kPipelineSlots = 4;

template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReducePushed(const Call& call, Session* session, const Op& op,
                                     uint8_t** table) {
  const uint32_t me = call.index;
  const uint32_t n_to = call.target == Call::kAll ? N : 1;
  const uint64_t chunk = 2 * call.stage_bytes / kPipelineSlots / N / 16 * 16;
  const uint64_t row_bytes = call.count * sizeof(T);
  const uint64_t step = chunk * backend::GridSize();
  const auto whole = [&](uint32_t row) { return RowCount(call, row) * sizeof(T) / 16 * 16; };
  // Bytes of a row in the chunk that begins at byte j.
  const auto in_chunk = [&](uint32_t row, uint64_t j) {
    const uint64_t all = whole(row);
    return j < all ? Min(chunk, all - j) : 0;
  };
  const auto slot = [&](uint32_t member, uint32_t k, uint32_t from) {
    return session->StageIn(member) + ((k % kPipelineSlots) * N + from) * chunk;
  };
  const auto push = [&](uint32_t k, uint64_t j) {
    constexpr uint32_t kUnroll = 4;
    const uint32_t units = static_cast<uint32_t>(Min(chunk, row_bytes - j) + 15) / 16;
    const uint32_t all = units * (N - 1);
    for (uint32_t first = backend::ThreadIndex(); first < all;
         first += kUnroll * backend::BlockSize()) {
      Bytes16 values[kUnroll];
      uint8_t* to[kUnroll];
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * backend::BlockSize();
        const uint32_t peer = session->Rotated(1 + i / units);
        const uint64_t at = uint64_t{i % units} * 16;
        to[u] = nullptr;
        if (i < all && at < in_chunk(peer, j)) {
          values[u] = backend::Load16<CacheHint::kDefault>(call.in + peer * row_bytes + j + at);
          to[u] = slot(peer, k, me) + at;
        }
      }
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        if (to[u] != nullptr) backend::Store16<CacheHint::kDefault>(to[u], values[u]);
      }
    }
  };

  const uint64_t signals = session->Signals();  // so far
  const uint64_t begin = backend::BlockIndex() * chunk;
  if (begin < row_bytes) {
    push(0, begin);
    iris::impl::SyncBeforePublish();
    session->Signal(signals + 1);
  }
  uint32_t k = 0;
  for (uint64_t j = begin; j < row_bytes; j += step, ++k) {
    if (j + step < row_bytes) push(k + 1, j + step);
    iris::impl::SyncBeforePublish();  // and all have reduced the chunk before
    if (j + step < row_bytes) session->Signal(signals + k + 2);
    for (uint32_t i = backend::ThreadIndex(); i < N + n_to; i += backend::BlockSize()) {
      if (i < N) {
        table[i] =
            i == me ? const_cast<uint8_t*>(call.in) + call.row * row_bytes + j : slot(me, k, i);
      } else {
        table[i] = n_to == 1 ? call.out + j
                             : session->Out(session->Rotated(i - N)) + call.row * row_bytes + j;
      }
    }
    session->AwaitSignal(signals + k + 1);
    iris::impl::SyncAfterConsume();
    if (!session->Settle()) return;
    ReduceUnits<T, Op, N>(op, table, N, n_to, 0, in_chunk(call.row, j),
                          Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll});
  }
  if (k != 0) session->KeepSignals(signals + k);
  // Elements behind the last 16 bytes of this member's row: by one block, as ReduceDirect.
  if (backend::BlockIndex() != 0 || whole(call.row) == RowCount(call, call.row) * sizeof(T)) return;
  iris::impl::SyncInsideBlock();
  for (uint32_t i = backend::ThreadIndex(); i < N + n_to; i += backend::BlockSize()) {
    if (i < N) {
      table[i] = session->In(i) + call.row * row_bytes;
    } else {
      table[i] =
          n_to == 1 ? call.out : session->Out(session->Rotated(i - N)) + call.row * row_bytes;
    }
  }
  iris::impl::SyncInsideBlock();
  for (uint64_t at = whole(call.row) + backend::ThreadIndex() * sizeof(T);
       at < RowCount(call, call.row) * sizeof(T); at += backend::BlockSize() * sizeof(T)) {
    ReduceUnit<T, Op, T>(op, table, N, n_to, at);
  }
}

// An all-reduce around a ring: each row begins at the member of its number, goes on from neighbour
// to neighbour, each of which adds its own, and the whole sum once more around to all. Each member
// stores into the stage of the next one alone, so buffers may be anywhere. Patarasuk and Yuan,
// "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
//
// Step s of a chunk takes what step s - 1 of the member before has stored, and stores for the next.
// Slots: step s goes where s - kRingSlots was, after the next member has taken that. Steps are
// counted through all chunks, and signalled to both neighbours: to the next one that data is there,
// to the one before that its slot is free.
inline constexpr uint32_t kRingSlots = 4;

template <typename T, typename Op>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceRing(Call call) {
  IRIS_SHARED(SharedState, shared);
  IRIS_SHARED(uint8_t* [4], table);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const Op last(call);
  Op hop = last;
  hop.divide = 1;
  const uint32_t n = call.size;
  const uint32_t next = session.Rotated(1);
  const uint32_t previous = session.Rotated(n - 1);
  const uint32_t n_steps = 2 * n - 2;
  const uint64_t chunk = 2 * call.stage_bytes / kRingSlots / 16 * 16;
  const uint64_t row_bytes = call.count * sizeof(T);
  const Share share = {backend::ThreadIndex(), backend::BlockSize()};
  const uint64_t signals = session.Signals();  // so far
  uint64_t sent = 0;
  if (!session.Exchange(false)) return;

  for (uint64_t j = backend::BlockIndex() * chunk; j < row_bytes;
       j += chunk * backend::GridSize()) {
    for (uint32_t s = 0; s <= n_steps; ++s) {
      const bool takes = s != 0;
      const bool gives = s != n_steps;
      const uint32_t row = (call.index + 2 * n - s) % n;
      const uint64_t in_row = RowCount(call, row) * sizeof(T);
      const uint64_t bytes = j < in_row ? Min(chunk, in_row - j) : 0;
      const uint64_t at = row * row_bytes + j;
      uint8_t* const from =
          session.StageIn(call.index) + (sent + kRingSlots - 1) % kRingSlots * chunk;
      uint8_t* const to = session.StageIn(next) + sent % kRingSlots * chunk;
      uint8_t* const own = const_cast<uint8_t*>(call.in) + at;
      uint8_t* const out = call.out + at;
      // Reduced: from and own, to `to`, in the end to `out` as well. Copied: to `out` and `to`.
      for (uint32_t i = backend::ThreadIndex(); i < 4; i += backend::BlockSize()) {
        const bool reduces = s < n;
        table[i] = i == 0   ? (reduces ? from : out)
                   : i == 1 ? (reduces ? own : to)
                   : i == 2 ? (s == n - 1 ? out : to)
                            : to;
      }
      for (uint32_t i = backend::ThreadIndex(); i < 2; i += backend::BlockSize()) {
        if (i == 0 && takes && !session.AwaitSignalOf(previous, signals + sent)) break;
        if (i == 1 && gives && sent + 2 > kRingSlots &&
            !session.AwaitSignalOf(next, signals + sent + 2 - kRingSlots)) {
          break;
        }
      }
      iris::impl::SyncAfterConsume();
      if (!session.Settle()) return;
      if (s == 0) {
        iris::impl::CopyBytes<CacheHint::kDefault>(to, own, bytes, share);
      } else if (s < n) {
        ReduceRange<T, Op, 2>(s == n - 1 ? last : hop, table, 2, s == n - 1 ? 2 : 1,
                              bytes / sizeof(T), share);
      } else {
        CopyToAll(table, gives ? 2 : 1, from, bytes, share);
      }
      iris::impl::SyncBeforePublish();  // and all have read the table
      if (!gives) continue;
      ++sent;
      for (uint32_t i = backend::ThreadIndex(); i < 2; i += backend::BlockSize()) {
        session.SignalTo(i == 0 ? next : previous, signals + sent);
      }
    }
  }
  iris::impl::SyncInsideBlock();
  if (sent != 0) session.KeepSignals(signals + sent);
  session.Finish();
}

// *p = op(*p, value) at once, for whoever else does the same.
template <typename A>
IRIS_DEVICE inline void CombineAtomic(ReduceOp op, A* p, A value) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelaxed>(p, value);
    return;
  }
  using U = typename iris::impl::UnsignedOf<sizeof(A)>::Type;
  U* word = reinterpret_cast<U*>(p);
  U seen = backend::Load<Scope::kSystem, Order::kRelaxed>(word);
  for (;;) {
    const A old = iris::impl::BitCast<A>(seen);
    const A made = op == ReduceOp::kProd  ? Combine<ReduceOp::kProd, A>(old, value)
                   : op == ReduceOp::kMin ? Combine<ReduceOp::kMin, A>(old, value)
                                          : Combine<ReduceOp::kMax, A>(old, value);
    const U bits = iris::impl::BitCast<U>(made);
    if (bits == seen) return;
    const U now = backend::CompareExchange<Scope::kSystem, Order::kRelaxed>(word, seen, bits);
    if (now == seen) return;
    seen = now;
  }
}

// An all-reduce in the heaps of the owners: member r keeps the sum of row r in its stage, in the
// type that sums are made in; everybody adds its own there, and fetches what came of it. Buffers
// may be anywhere.
// call.lock: one member at a time, in their order, under a lock of the block's row. Otherwise by
// atomics, in any order.
template <typename T, typename Op>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceAtOwner(Call call) {
  IRIS_SHARED(SharedState, shared);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  using A = typename Accumulator<T>::Type;
  const Op op(call);
  const uint32_t n = call.size;
  const uint32_t me = call.index;
  const uint64_t room = 2 * call.stage_bytes / sizeof(A);
  const uint64_t span = backend::GridSize() * room;
  uint64_t turns = session.Turns();
  // Elements of a row that this block works on, of those from j on.
  const auto in_window = [&](uint32_t row, uint64_t j) {
    const uint64_t all = RowCount(call, row);
    return j < all ? Min(room, all - j) : 0;
  };
  const auto own = [&](uint32_t row, uint64_t i) {
    return iris::impl::LoadValue<CacheHint::kDefault>(reinterpret_cast<const T*>(call.in) +
                                                      row * call.count + i);
  };
  const auto sums = [&](uint32_t owner) { return reinterpret_cast<A*>(session.StageIn(owner)); };
  // This member's row begins with its own.
  const auto seed = [&](uint64_t j) {
    const uint64_t count = in_window(me, j);
    for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
      iris::impl::StoreValue<CacheHint::kDefault>(sums(me) + i, static_cast<A>(own(me, j + i)));
    }
  };

  if (call.lock == 0) seed(backend::BlockIndex() * room);
  if (!session.Exchange(call.lock == 0)) return;
  for (uint64_t base = 0; base < call.count; base += span) {
    const uint64_t j = base + backend::BlockIndex() * room;
    if (base != 0) {
      if (!session.Meet()) return;  // all have fetched what the stages had
      if (call.lock == 0) {
        seed(j);
        if (!session.Meet()) return;
      }
    }
    for (uint32_t k = 0; k < n; ++k) {
      const uint32_t owner = call.lock != 0 ? k : session.Rotated(k);
      const uint64_t count = in_window(owner, j);
      if (call.lock == 0) {
        for (uint64_t i = backend::ThreadIndex(); k != 0 && i < count; i += backend::BlockSize()) {
          CombineAtomic<A>(call.op, sums(owner) + i, static_cast<A>(own(owner, j + i)));
        }
        continue;
      }
      if (backend::ThreadIndex() == 0) (void)session.AwaitTurn(owner, turns);
      iris::impl::SyncAfterConsume();
      if (!session.Settle()) return;
      for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
        Pack<T, 1> pack;
        pack.values[0] = own(owner, j + i);
        Sum<T, 1> sum = Begin(pack);
        if (me != 0) {
          sum.values[0] = iris::impl::LoadValue<CacheHint::kDefault>(sums(owner) + i);
          op.Add(&sum, pack);
        }
        iris::impl::StoreValue<CacheHint::kDefault>(sums(owner) + i, sum.values[0]);
      }
      iris::impl::SyncBeforePublish();
      if (backend::ThreadIndex() == 0) session.PassTurn(owner, turns);
    }
    turns += n;
    if (!session.Meet()) return;
    for (uint32_t k = 0; k < n; ++k) {
      const uint32_t owner = session.Rotated(k);
      const uint64_t count = in_window(owner, j);
      for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
        Sum<T, 1> sum;
        sum.values[0] = iris::impl::LoadValue<CacheHint::kDefault>(sums(owner) + i);
        iris::impl::StoreValue<CacheHint::kDefault>(
            reinterpret_cast<T*>(call.out) + owner * call.count + j + i, op.Finish(sum).values[0]);
      }
    }
  }
  session.MeetLast(false);
}

// Whether everything that ReducePushed touches is in the heap and aligned: the same on all members.
IRIS_DEVICE inline bool CanPush(const Call& call, const Session& session, uint64_t row_bytes) {
  uint64_t bits = row_bytes;
  for (uint32_t m = 0; m < call.size; ++m) {
    bits |= reinterpret_cast<uint64_t>(session.In(m)) | reinterpret_cast<uint64_t>(session.Out(m));
  }
  return session.in_direct() && session.out_direct() && (bits & 15) == 0;
}

// This member's row is pulled from all, reduced and stored to its target at once. Rows of the
// workspace stand for buffers that are not in the heap.
// kPush: in the way of ReducePushed, if that can be.
template <typename T, typename Op, uint32_t N, bool kPush>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceDirect(Call call) {
  IRIS_SHARED(SharedState, shared);
  IRIS_SHARED(uint8_t * [2 * kMaxTeamRanks], table);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? call.size : N;
  const uint32_t me = call.index;
  const uint32_t block = backend::BlockIndex();
  const bool to_self = call.target == Call::kSelf;
  const bool to_all = call.target == Call::kAll;
  const uint32_t n_to = to_all ? n : 1;
  const bool in_staged = call.in_offset_bytes == kNotInHeap;
  const uint64_t room = call.stage_bytes / call.rows / 16 * (16 / sizeof(T));  // of a row
  const uint64_t row_begin = call.row * call.count;
  const uint64_t row_count = RowCount(call, call.row);

  const auto stage_in = [&](uint64_t j) {
    for (uint32_t r = 0; r < call.rows; ++r) {
      const uint64_t count = RowCount(call, r);
      if (j >= count) break;
      Copy(session.StageIn(me) + r * room * sizeof(T), call.in + (r * call.count + j) * sizeof(T),
           Min(room, count - j) * sizeof(T), Block{});
    }
  };
  if (in_staged) stage_in(block * room);
  if (!session.Exchange(in_staged)) return;
  if constexpr (kPush) {
    if (CanPush(call, session, call.count * sizeof(T))) {
      ReducePushed<T, Op, N>(call, &session, op, table);
      iris::impl::SyncInsideBlock();
      if (session.Settle()) session.MeetLast(!to_self);
      return;
    }
  }
  const bool direct = session.in_direct() && (to_self || session.out_direct());
  const uint64_t span = direct ? call.count : backend::GridSize() * room;
  for (uint64_t base = 0; base < call.count; base += span) {
    // Which elements of a row this block works on now.
    const uint64_t j = direct ? 0 : base + block * room;
    if (base != 0) {
      if (in_staged) stage_in(j);
      if (!session.Meet()) return;
    }
    for (uint32_t i = backend::ThreadIndex(); i < n + n_to; i += backend::BlockSize()) {
      uint8_t* p = nullptr;
      if (i < n) {
        uint8_t* in = session.In(i);
        p = in != nullptr ? in + (row_begin + j) * sizeof(T)
                          : session.StageIn(i) + call.row * room * sizeof(T);
      } else if (to_self) {
        p = call.out + j * sizeof(T);
      } else {
        const uint32_t to = to_all ? session.Rotated(i - n) : call.target;
        uint8_t* out = to == me ? call.out : session.Out(to);
        p = out != nullptr ? out + (row_begin + j) * sizeof(T)
                           : session.StageOut(to) + call.row * room * sizeof(T);
      }
      table[i] = p;
    }
    iris::impl::SyncInsideBlock();
    if (j < row_count) {
      const Share share =
          direct ? Share{block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
                         uint64_t{backend::GridSize()} * backend::BlockSize(), call.unroll}
                 : Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll};
      const uint64_t count = direct ? row_count : Min(room, row_count - j);
      if (direct && to_all && call.phases != 0 && Straight(table, n + n_to) &&
          ((reinterpret_cast<uint64_t>(table[0]) | count * sizeof(T)) & 15) == 0) {
        // This member's own row first; each thread then gives the others what it has made.
        ReduceRange<T, Op, N>(op, table, n, 1, count, share);
        CopyToAll(table + n + 1, n - 1, table[n], count * sizeof(T), share);
      } else {
        ReduceRange<T, Op, N>(op, table, n, n_to, count, share);
      }
    }
    if (direct) break;
    if (!session.Meet()) return;
    if (call.out_offset_bytes == kNotInHeap && !to_self && (to_all || call.target == me)) {
      // All rows but this member's own, which it has stored where it belongs.
      for (uint32_t r = 0; r < call.rows; ++r) {
        const uint64_t count = RowCount(call, r);
        if (j >= count) break;
        if (r == call.row) continue;
        Copy(call.out + (r * call.count + j) * sizeof(T),
             session.StageOut(me) + r * room * sizeof(T), Min(room, count - j) * sizeof(T),
             Block{});
      }
    }
  }
  if (direct) {
    session.MeetLast(!to_self);
  } else {
    iris::impl::SyncInsideBlock();
    session.Finish();
  }
}

}  // namespace iris::ccl::impl
