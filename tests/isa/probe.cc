// What tests/isa compiles to assembly and reads: one small kernel per property. Each has the name
// that the test asks for; nothing runs them.
#include <cstdint>

#include "iris/copy_ring.h"
#include "iris/device.h"
#include "iris/ring.h"
#include "iris/split_barrier.h"
#include "iris/tile_put.h"

namespace iris {

// Order of single accesses.

#define PROBE_LOAD(order, scope)                                                     \
  extern "C" IRIS_KERNEL void Load##order##scope(const uint32_t* p, uint32_t* out) { \
    const uint32_t before = backend::Load<Scope::k##scope, Order::k##order>(p);      \
    *out = before;                                                                   \
  }
#define PROBE_STORE(order, scope)                                                \
  extern "C" IRIS_KERNEL void Store##order##scope(uint32_t* data, uint32_t* p) { \
    *data = 1;                                                                   \
    backend::Store<Scope::k##scope, Order::k##order>(p, 2u);                     \
  }
#define PROBE_FENCE(order, scope)                                                \
  extern "C" IRIS_KERNEL void Fence##order##scope(uint32_t* data, uint32_t* p) { \
    *data = 1;                                                                   \
    backend::Fence<Scope::k##scope, Order::k##order>();                          \
    *p = 2;                                                                      \
  }
#define PROBE_ADD(order, scope)                                                       \
  extern "C" IRIS_KERNEL void Add##order##scope(uint32_t* p, uint32_t* out) {         \
    *out = backend::FetchOp<AtomicOp::kAdd, Scope::k##scope, Order::k##order>(p, 1u); \
  }
#define PROBE_CAS(order, scope)                                                           \
  extern "C" IRIS_KERNEL void Cas##order##scope(uint64_t* p, uint64_t* out) {             \
    *out = backend::CompareExchange<Scope::k##scope, Order::k##order>(p, out[0], out[1]); \
  }
#define PROBE_SCOPES(probe, order) probe(order, Block) probe(order, Device) probe(order, System)

PROBE_SCOPES(PROBE_LOAD, Relaxed)
PROBE_SCOPES(PROBE_LOAD, Acquire)
PROBE_SCOPES(PROBE_STORE, Relaxed)
PROBE_SCOPES(PROBE_STORE, Release)
PROBE_SCOPES(PROBE_FENCE, Acquire)
PROBE_SCOPES(PROBE_FENCE, Release)
PROBE_SCOPES(PROBE_FENCE, AcqRel)
PROBE_SCOPES(PROBE_FENCE, SeqCst)
PROBE_SCOPES(PROBE_ADD, Relaxed)
PROBE_SCOPES(PROBE_ADD, Acquire)
PROBE_SCOPES(PROBE_ADD, Release)
PROBE_SCOPES(PROBE_ADD, AcqRel)
PROBE_SCOPES(PROBE_CAS, Relaxed)
PROBE_SCOPES(PROBE_CAS, Acquire)
PROBE_SCOPES(PROBE_CAS, Release)
PROBE_SCOPES(PROBE_CAS, AcqRel)

// Publishes what other threads wrote: this one has nothing of its own to wait for.
extern "C" IRIS_KERNEL void ReleaseAlone(uint32_t* p) {
  backend::Store<Scope::kSystem, Order::kRelease>(p, 2u);
}

// Types and operations of atomics.

#define PROBE_OP(op, name, type)                                                       \
  extern "C" IRIS_KERNEL void op##name(type* p, const type* in, type* out) {           \
    *out = backend::FetchOp<AtomicOp::k##op, Scope::kSystem, Order::kRelaxed>(p, *in); \
  }
#define PROBE_INTEGER(name, type) \
  PROBE_OP(Sub, name, type)       \
  PROBE_OP(Exchange, name, type)  \
  PROBE_OP(And, name, type)       \
  PROBE_OP(Or, name, type)        \
  PROBE_OP(Xor, name, type)       \
  PROBE_OP(Min, name, type)       \
  PROBE_OP(Max, name, type)
PROBE_OP(Add, I32, int32_t)
PROBE_OP(Add, U64, uint64_t)
PROBE_OP(Add, I64, int64_t)
PROBE_INTEGER(I32, int32_t)
PROBE_INTEGER(U32, uint32_t)
PROBE_INTEGER(I64, int64_t)
PROBE_INTEGER(U64, uint64_t)
PROBE_OP(Add, F32, float)
PROBE_OP(Add, F64, double)
PROBE_OP(Add, F16, Half)
PROBE_OP(Add, Bf16, Bfloat16)
PROBE_OP(Exchange, F32, float)
PROBE_OP(Min, F32, float)
PROBE_OP(Max, F64, double)
PROBE_OP(Add, U8, uint8_t)
PROBE_OP(Exchange, U16, uint16_t)

// 16 bytes.

#define PROBE_COPY16(hint)                                                                       \
  extern "C" IRIS_KERNEL void Copy16##hint(Bytes16* to, const Bytes16* from) {                   \
    const uint32_t i = backend::ThreadIndex();                                                   \
    backend::Store16<CacheHint::k##hint>(to + i, backend::Load16<CacheHint::k##hint>(from + i)); \
  }
PROBE_COPY16(Default)
PROBE_COPY16(Streaming)
PROBE_COPY16(Volatile)

// Words that are touched once.

#define PROBE_STREAM(name, type)                                         \
  extern "C" IRIS_KERNEL void Stream##name(type* to, const type* from) { \
    const uint32_t i = backend::ThreadIndex();                           \
    backend::StoreStreaming(to + i, backend::LoadStreaming(from + i));   \
  }
PROBE_STREAM(U8, uint8_t)
PROBE_STREAM(U16, uint16_t)
PROBE_STREAM(U32, uint32_t)
PROBE_STREAM(U64, uint64_t)

// The device API.

extern "C" IRIS_KERNEL void PutBlock(DeviceContext ctx, uint32_t peer, void* dst, const void* src,
                                     uint64_t bytes) {
  Put(ctx, peer, dst, src, bytes, Block{});
}

extern "C" IRIS_KERNEL void GetBlockStreaming(DeviceContext ctx, uint32_t peer, void* dst,
                                              const void* src, uint64_t bytes) {
  Get<CacheHint::kStreaming>(ctx, peer, dst, src, bytes, Block{});
}

extern "C" IRIS_KERNEL void PutSignalBlock(DeviceContext ctx, uint32_t peer, void* dst,
                                           const void* src, uint64_t bytes, uint64_t* signal) {
  PutSignal(ctx, peer, dst, src, bytes, {signal, 1}, Block{});
}

extern "C" IRIS_KERNEL void PutSignalWarp(DeviceContext ctx, uint32_t peer, void* dst,
                                          const void* src, uint64_t bytes, uint64_t* signal) {
  PutSignal(ctx, peer, dst, src, bytes, {signal, 1, SignalOp::kAdd}, Warp{});
}

extern "C" IRIS_KERNEL void WaitThread(DeviceContext ctx, const uint64_t* signal, uint64_t value,
                                       uint32_t* out) {
  *out = static_cast<uint32_t>(WaitUntil(ctx, signal, Compare::kGe, value));
}

extern "C" IRIS_KERNEL void WaitBlock(DeviceContext ctx, const uint64_t* signal, uint64_t value,
                                      uint32_t* out) {
  out[backend::ThreadIndex()] =
      static_cast<uint32_t>(WaitUntil(ctx, signal, Compare::kGe, value, Block{}));
}

extern "C" IRIS_KERNEL void BarrierWorld(DeviceContext ctx, uint32_t* out) {
  out[backend::ThreadIndex()] = static_cast<uint32_t>(Barrier(ctx, ctx.world));
}

extern "C" IRIS_KERNEL void ArriveAndWait(DeviceContext ctx, const uint32_t* work, uint32_t* out) {
  const BarrierToken token = BarrierArrive(ctx, ctx.world, 5, Block{});
  const uint32_t done = *work;
  out[backend::ThreadIndex()] =
      done + static_cast<uint32_t>(BarrierWait(ctx, ctx.world, token, Block{}));
}

extern "C" IRIS_KERNEL void StoreTileSignalBlock(DeviceContext ctx, uint32_t peer, float* dst,
                                                 const float* local, uint64_t* signal) {
  StoreTileSignal(ctx, peer, dst, Tile{32, 64, 4096}, local, {signal, 1}, Block{});
}

// Shared memory that one warp writes and another one's first thread sends.
extern "C" IRIS_KERNEL void TileBulk(DeviceContext ctx, uint32_t peer, float* dst, float* from,
                                     uint64_t* signal) {
  IRIS_SHARED(float[32 * 64], tile);
  for (uint32_t i = backend::ThreadIndex(); i < 32 * 64; i += backend::BlockSize()) {
    tile[i] = from[i];
  }
  backend::BulkPublishShared();
  backend::BlockSync();
  BulkStoreTileSignal(ctx, peer, dst, Tile{32, 64, 4096}, &tile[0], {signal, 1}, Block{});
}

extern "C" IRIS_KERNEL void TileBulkQueue(DeviceContext ctx, uint32_t peer, float* dst,
                                          uint64_t* signal, uint32_t n) {
  IRIS_SHARED(float[32 * 64], tile);
  backend::BlockSync();
  if (backend::ThreadIndex() != 0) return;
  BulkTileQueue<2> queue;
  for (uint32_t i = 0; i < n; ++i) {
    queue.Store(ctx, peer, dst + i * 64, Tile{32, 64, 4096}, &tile[0], {signal, 1, SignalOp::kAdd});
    queue.AwaitRead();
  }
  queue.Finish(ctx);
}

// What others have told of is fetched to shared memory, and read by all threads.
extern "C" IRIS_KERNEL void BulkPull(const uint64_t* told, const float* from, float* to) {
  IRIS_SHARED(uint64_t[1], gate);
  IRIS_SHARED(float[32 * 64], part);
  constexpr uint32_t kBytes = 32 * 64 * sizeof(float);
  if (backend::ThreadIndex() == 0) {
    backend::BulkGateInit(&gate[0]);
    while (backend::Load<Scope::kSystem, Order::kAcquire>(told) == 0) backend::Pause();
    backend::BulkSeeOthers();
    backend::BulkExpect(&gate[0], kBytes);
    backend::BulkLoad(&part[0], from, kBytes, &gate[0]);
  }
  backend::BlockSync();
  while (!backend::BulkArrived(&gate[0], 0)) backend::Pause();
  to[backend::ThreadIndex()] = part[backend::ThreadIndex()];
}

extern "C" IRIS_KERNEL void RingOfWarps(DeviceContext ctx, const uint32_t* from, uint32_t* to,
                                        uint32_t n, uint32_t* out) {
  IRIS_SHARED(RingWords<4>[1], words);
  IRIS_SHARED(uint32_t[4 * 64], items);
  InitRing(&words[0]);
  Ring<4> ring(ctx, &words[0]);
  WaitResult result = WaitResult::kOk;
  if (backend::WarpIndex() == 0) {
    result = Produce(ring, 0, n, 1, Warp{}, [&](uint64_t item, uint32_t slot) {
      items[slot * 64 + backend::LaneIndex()] = from[item * 64 + backend::LaneIndex()];
    });
  } else {
    result = Consume(ring, 0, n, 1, Warp{}, [&](uint64_t item, uint32_t slot) {
      to[item * 64 + backend::LaneIndex()] = items[slot * 64 + backend::LaneIndex()];
    });
  }
  out[backend::ThreadIndex()] = static_cast<uint32_t>(result);
}

extern "C" IRIS_KERNEL void PostACopy(DeviceContext ctx, DeviceCopyQueue queue, uint32_t peer,
                                      void* dst, const void* src, uint64_t bytes, uint32_t* out) {
  CopyRequest request;
  request.to = peer;
  request.dst = dst;
  request.src = src;
  request.bytes = bytes;
  *out = static_cast<uint32_t>(PostCopy(ctx, queue, request));
}

extern "C" IRIS_KERNEL void FenceFunction(uint32_t* data, uint32_t* p) {
  *data = 1;
  Fence();
  *p = 2;
}

extern "C" IRIS_KERNEL void QuietFunction(uint32_t* data, const uint32_t* p, uint32_t* out) {
  *data = 1;
  Quiet();
  *out = backend::Load<Scope::kSystem, Order::kRelaxed>(p);
}

// The widest rows and the most rows that a tile in registers may have, and their smallest type.
template <typename T, uint32_t kRows, uint32_t kColumns>
IRIS_DEVICE void ThroughRegisters(const DeviceContext& ctx, const T* from, T* to, Tile tile) {
  T values[kRows][kColumns];
  LoadTile(ctx, 1, from, tile, values);
  StoreTile(ctx, 0, to, tile, values);
}
extern "C" IRIS_KERNEL void TileWideRows(DeviceContext ctx, const float* from, float* to,
                                         Tile tile) {
  ThroughRegisters<float, 2, 32>(ctx, from, to, tile);
}
extern "C" IRIS_KERNEL void TileManyRows(DeviceContext ctx, const uint16_t* from, uint16_t* to,
                                         Tile tile) {
  ThroughRegisters<uint16_t, 32, 2>(ctx, from, to, tile);
}
extern "C" IRIS_KERNEL void TileOfBytes(DeviceContext ctx, const uint8_t* from, uint8_t* to,
                                        Tile tile) {
  ThroughRegisters<uint8_t, 2, 32>(ctx, from, to, tile);
}

// Threads.

extern "C" IRIS_KERNEL void Shuffle16(Bytes16* x, uint32_t lane) {
  x[backend::ThreadIndex()] = backend::Shuffle(x[backend::ThreadIndex()], lane);
}

extern "C" IRIS_KERNEL void Shuffle2(uint16_t* x) {
  x[backend::ThreadIndex()] = backend::ShuffleDown(x[backend::ThreadIndex()], 1);
}

extern "C" IRIS_KERNEL void BallotBits(const uint32_t* x, uint64_t* out) {
  *out = backend::Ballot(x[backend::ThreadIndex()] != 0);
}

extern "C" IRIS_KERNEL void SyncOfBlock(uint32_t* x, uint32_t* y) {
  IRIS_SHARED(uint32_t[1024], words);
  words[backend::ThreadIndex()] = x[backend::ThreadIndex()];
  backend::BlockSync();
  y[backend::ThreadIndex()] = words[backend::BlockSize() - 1 - backend::ThreadIndex()];
}

extern "C" IRIS_KERNEL void SyncOfWarp(uint32_t* x, uint32_t* y) {
  uint32_t* words = static_cast<uint32_t*>(backend::DynamicShared());
  words[backend::ThreadIndex()] = x[backend::ThreadIndex()];
  backend::WarpSync();
  y[backend::ThreadIndex()] = words[backend::ThreadIndex() ^ 1];
}

extern "C" IRIS_KERNEL void Clock(uint64_t* out) { *out = backend::ClockNanoseconds(); }

extern "C" IRIS_KERNEL void TrapAlways() { backend::Trap("probe"); }

}  // namespace iris
