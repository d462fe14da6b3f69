// What a backend supplies. This header is documentation that compiles: select.h includes exactly
// one backend, and each declares what is listed here, in namespace iris::backend unless said
// otherwise. Nothing above this seam names a vendor.
//
// Macros (the only ones)
//   IRIS_DEVICE         qualifies a function that runs in kernels
//   IRIS_HOST_DEVICE    ... in kernels and on the host
//   IRIS_KERNEL         qualifies a kernel: IRIS_KERNEL void F(args by value)
//   IRIS_SHARED(T[N], name)   declares `name` as N elements of T shared by the block, uninitialised
//   IRIS_UNROLL(n)      before a loop
//
// Memory (T: 1, 2, 4, 8 bytes, integral, floating, pointer, Half or Bfloat16; p aligned to
// sizeof(T))
//   T    Load<Scope, Order>(const T* p)                     kRelaxed or kAcquire
//   void Store<Scope, Order>(T* p, T value)                 kRelaxed or kRelease
//   T    FetchOp<AtomicOp, Scope, Order>(T* p, T operand)   returns the old value; floating: add,
//   sub, exchange, min, max T    CompareExchange<Scope, Order>(T* p, T expected, T desired) returns
//   the old value; compares the bits of floats void Fence<Scope, Order>() Bytes16
//   Load16<CacheHint>(const void* p), void Store16<CacheHint>(void* p, Bytes16 value)    16-byte
//   aligned T    LoadPlain(const T*), void StorePlain(T*, T)        may tear nowhere, ordered by
//   nothing: for bulk data
//
// Threads (indices are 0-based uint32_t)
//   ThreadIndex() BlockIndex() BlockSize() GridSize() LaneIndex() WarpIndex() WarpSize()
//   void BlockSync()      all threads of the block; also orders their memory accesses at block
//   scope void WarpSync()       all live threads of the warp; the same at warp level T Shuffle(T
//   value, uint32_t lane), ShuffleXor(T value, uint32_t mask), ShuffleDown(T value, uint32_t delta)
//                         T of 1 to 16 bytes, trivially copyable; all threads of the warp call it
//                         together; a source outside the warp gives back the own value
//   uint64_t Ballot(bool), bool WarpAny(bool), bool WarpAll(bool)
//   void* DynamicShared() aligned to 16
//
// Others
//   uint64_t ClockNanoseconds()   monotonic; comparable between devices of a node as far as the
//   platform allows void Pause()                  inside a polling loop: lets others run
//   [[noreturn]] void Trap(const char* literal)   ends the kernel (emu: the process) as a bug
//
// Host
//   class Stream                  move-only; Launches and copies on it run in order,
//   asynchronously. Thread-safe.
//     static Result Create(Stream* out)
//     Result Synchronize()        waits for all that was put before; the first error of those, once
//     bool Idle()
//     ~Stream()                   synchronizes
//   Result Launch(const LaunchConfig&, Stream&, void (*kernel)(Params...), args...)
//   Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream&)
//   Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream&)
//   void* MallocDevice(uint64_t bytes), void FreeDevice(void*)   device memory outside any heap;
//   nullptr if out of it void* MallocHost(uint64_t bytes), void FreeHost(void*)       host memory
//   that kernels can read and write uint32_t MultiprocessorCount()  how many blocks of a normal
//   size run truly at once const char* BackendName()       "emu", "cuda", "hip"
//
// Half and Bfloat16 (device/backend/numeric.h) are the same on every backend; conversion is
// round-to-nearest-even.
#pragma once

#include "device/backend/types.h"
