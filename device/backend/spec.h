// What a backend supplies. This header is documentation that compiles: select.h includes exactly
// one backend, and each declares what is listed here, in namespace iris::backend unless said
// otherwise. Nothing above this seam names a vendor.
//
// Macros (the only ones)
//   IRIS_DEVICE         qualifies a function that runs in kernels
//   IRIS_HOST_DEVICE    ... in kernels and on the host
//   IRIS_KERNEL         qualifies a kernel: IRIS_KERNEL void F(args by value)
//   IRIS_KERNEL_BOUNDS(max_threads, min_blocks)
//                       between IRIS_KERNEL and void: no launch has more threads a block; registers
//                       are given so that min_blocks blocks fit on a multiprocessor
//   IRIS_PARAM          before a struct that is a parameter of a kernel, IRIS_PARAM T name. It is
//                       constant and read where the launch put it. Without it, an array inside
//                       that is indexed by a variable makes each thread copy the struct
//   IRIS_SHARED(T[N], name)   declares `name` as N elements of T shared by the block, uninitialised
//   IRIS_UNROLL(n)      before a loop
//
// Memory (T: 1, 2, 4, 8 bytes, integral, floating, pointer, Half or Bfloat16; p aligned to
// sizeof(T))
//   T    Load<Scope, Order>(const T* p)                     kRelaxed or kAcquire
//   void Store<Scope, Order>(T* p, T value)                 kRelaxed or kRelease
//   T    FetchOp<AtomicOp, Scope, Order>(T* p, T operand)   returns the old value; floating: add,
//                         sub, exchange, min, max. Min and max leave a NaN in memory as it is, and
//                         ignore a NaN operand
//   T    CompareExchange<Scope, Order>(T* p, T expected, T desired)
//                         returns the old value; compares the bits of floats
//   void Fence<Scope, Order>()
//   Bytes16 Load16<CacheHint>(const void* p)                16-byte aligned
//   void Store16<CacheHint>(void* p, Bytes16 value)         kVolatile: each 8-byte half whole, in
//                         one instruction where the device has one, relaxed at system scope
//   T    LoadPlain(const T*), void StorePlain(T*, T)        may tear nowhere, ordered by nothing:
//                         for bulk data
//
// Threads (indices are 0-based uint32_t)
//   ThreadIndex() BlockIndex() BlockSize() GridSize() LaneIndex() WarpIndex() WarpSize()
//   bool kLaunchPublishes  constexpr: what earlier operations of a stream wrote is visible to all
//                         devices before a kernel of that stream begins, so that a relaxed system
//                         store may announce it
//   void BlockSync()      all threads of the block; also orders their memory accesses at block
//                         scope
//   void WarpSync()       all live threads of the warp; the same at warp level
//   T Shuffle(T value, uint32_t lane), ShuffleXor(T value, uint32_t mask),
//   ShuffleDown(T value, uint32_t delta)
//                         T of 1 to 16 bytes, trivially copyable; all threads of the warp call it
//                         together; a source outside the warp gives back the own value
//   uint64_t Ballot(bool), bool WarpAny(bool), bool WarpAll(bool)
//   void* DynamicShared() aligned to 16
//
// Conversions, in kernels and on the host: numeric.h is made of them
//   uint16_t HalfBitsOf(float), float FloatOfHalf(uint16_t), uint16_t BfloatBitsOf(float)
//
// Others
//   uint64_t ClockNanoseconds()   monotonic; comparable between devices of a node as far as the
//                         platform allows
//   void Pause()          inside a polling loop: lets others run
//   [[noreturn]] void Trap(const char* literal)   ends the kernel (emu: the process) as a bug
//
// Host. One device is current on each host thread: streams, events and memory are made on it.
//   uint32_t DeviceCount()        0 where the machine has none
//   Result SetDevice(uint32_t index)   makes it current on the calling thread; emu: any index
//   class Stream                  move-only; launches and copies on it run in order,
//                                 asynchronously. Thread-safe.
//     static Result Create(Stream* out)
//     static Stream Borrow(void* native)   a stream of the application, which outlives this
//     void* native() const        what Borrow takes
//     Result Synchronize()        waits for all that was put before; the first error of those, once
//     bool Idle()
//     ~Stream()                   synchronizes, unless borrowed
//   Result Launch(const LaunchConfig&, Stream&, void (*kernel)(Params...), args...)
//   Result PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0)
//                                 loads the kernel's code onto the current device now, and lets
//                                 launches ask for that much shared memory. A first launch may wait
//                                 for running kernels: prepare what is launched beside a kernel
//                                 that waits for it
//   Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream&)
//   Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream&)
//   class Graph                   move-only; not thread-safe; launches of one do not overlap
//   Result BeginCapture(Stream&)  until EndCapture, launches, copies and fills on the stream are
//                                 recorded instead of run, and Synchronize fails
//   Result EndCapture(Stream&, Graph* out)
//   Result LaunchGraph(Graph&, Stream&)   what was recorded, with the same arguments, in order. The
//                                 graph may be destroyed while it runs
//   class Event                   move-only; not thread-safe. static Result Create(Event* out)
//   Result Record(Event&, Stream&)      happens when the stream comes here
//   Result WaitEvent(Stream&, const Event&)   the stream waits for the last Record before this call
//                                 (none: for nothing). For an event that was recorded on a stream
//                                 that captures, this stream is captured too, as a branch; its work
//                                 must come back to the first stream by an event before EndCapture
//   Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out)
//                                 waits for both; not for events that were captured
//   void* MallocDevice(uint64_t bytes), void FreeDevice(void*)   device memory outside any heap;
//                                 nullptr if out of it
//   void* MallocHost(uint64_t bytes), void FreeHost(void*)       host memory that kernels of all
//                                 devices can read and write, at the same address
//   uint32_t MultiprocessorCount()  how many blocks of a normal size run truly at once
//   const char* BackendName()       "emu", "cuda", "hip"
//
// Half and Bfloat16 (device/backend/numeric.h) are the same on every backend; conversion is
// round-to-nearest-even.
#pragma once

#include "device/backend/types.h"
