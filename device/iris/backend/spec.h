// Checks at compile time that a backend is complete. A source of each backend and host.cc include
// this file. A new backend is a header that select.h chooses, and one source for the host; it is
// complete when these compile and //tests/conformance passes.
//
// Macros (the only ones of the seam):
//
//   IRIS_DEVICE        qualifies a function that runs in kernels.
//   IRIS_HOST_DEVICE   qualifies one that runs in kernels and on the host.
//   IRIS_KERNEL        qualifies a kernel: IRIS_KERNEL void F(arguments by value).
//   IRIS_KERNEL_BOUNDS(max_threads, min_blocks)
//                      stands between IRIS_KERNEL and void: the most threads of a block, and the
//                      number of blocks whose registers must fit on a multiprocessor.
//   IRIS_PARAM         stands before a struct that is a parameter of a kernel: the struct is
//                      constant, and read where the launch put it. Without it each thread copies
//                      the struct if an array in it is indexed by a variable.
//   IRIS_SHARED(T[N], name)
//                      declares `name` as N elements of T that the block shares, uninitialised.
//   IRIS_UNROLL(n)     stands before a loop.
//
// Traits: the constants of a backend. Code outside the backends uses these, never a backend's name.
//
//   kName              for messages.
//   kEmulated          kernels run on the CPUs of this process, in its memory.
//   kWarpThreads       a power of two, at most 64.
//   kLaunchPublishes   data that earlier operations of a stream wrote to the memory of their own
//                      device is visible to all devices before a kernel of that stream begins, so a
//                      relaxed system store may announce it. Data that they stored to other devices
//                      was seen to arrive after such a store: only a release announces that data.
//   kStoresWholeLines  when eight neighbouring lanes store 16 bytes each, kVolatile, to a line of
//                      128 aligned bytes in one call, lanes that load the line in one call see all
//                      of it or nothing, in the heap of a peer, too. No platform promises this: it
//                      is true where long searches never saw a torn line, and the doctor searches.
//   kMaxDynamicSharedBytes
//                      the limit of LaunchConfig::shared_bytes on every device.
//   kNullIsAStream     the platform has a default stream, whose handle is null.
//   kOrdersByFences    fences around a relaxed store or read-modify-write give it an order. The
//                      backend's StoreWord, CompareExchangeWord and Fetch then are only relaxed.
//   kNarrowestExchangeBytes
//                      the smallest word that CompareExchangeWord takes: 1 or 4.
//   kHasVolatile16     Load16 and Store16 take kVolatile, too.
//
// For kernels, a backend defines in namespace iris::backend the functions that primitives.h
// declares without a body, and in iris::backend::raw those that are checked below. For hosts, it
// defines the functions of raw_host.h, those of host.h about devices, and raw::Launch. C++17.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "iris/backend/select.h"

#if !defined(IRIS_DEVICE) || !defined(IRIS_HOST_DEVICE) || !defined(IRIS_KERNEL) ||  \
    !defined(IRIS_KERNEL_BOUNDS) || !defined(IRIS_PARAM) || !defined(IRIS_SHARED) || \
    !defined(IRIS_UNROLL)
#error "a backend defines each macro of spec.h"
#endif

namespace iris::backend::spec {

static_assert(std::is_same_v<decltype(Traits::kName), const char* const>);
static_assert(std::is_same_v<decltype(Traits::kEmulated), const bool>);
static_assert(std::is_same_v<decltype(Traits::kLaunchPublishes), const bool>);
static_assert(std::is_same_v<decltype(Traits::kMaxDynamicSharedBytes), const uint32_t>);
static_assert(std::is_same_v<decltype(Traits::kStoresWholeLines), const bool>);
static_assert(std::is_same_v<decltype(Traits::kNullIsAStream), const bool>);
static_assert(std::is_same_v<decltype(Traits::kOrdersByFences), const bool>);
static_assert(std::is_same_v<decltype(Traits::kHasVolatile16), const bool>);
static_assert(Traits::kWarpThreads > 0 && Traits::kWarpThreads <= 64 &&
                  (Traits::kWarpThreads & (Traits::kWarpThreads - 1)) == 0,
              "a warp has a power of two of threads, at most as many as Ballot has bits");
static_assert(Traits::kNarrowestExchangeBytes == 1 || Traits::kNarrowestExchangeBytes == 4);

template <typename W>
constexpr bool SuppliesWord() {
  constexpr Order kOrder = Traits::kOrdersByFences ? Order::kRelaxed : Order::kAcqRel;
  constexpr Order kStoreOrder = Traits::kOrdersByFences ? Order::kRelaxed : Order::kRelease;
  static_assert(std::is_same_v<W, decltype(raw::LoadWord<Scope::kSystem, Order::kAcquire, W>(
                                      std::declval<const void*>()))>,
                "LoadWord<S, O, W>(const void*) gives a W");
  static_assert(std::is_void_v<decltype(raw::StoreWord<Scope::kDevice, kStoreOrder, W>(
                    std::declval<void*>(), W()))>,
                "StoreWord<S, O, W>(void*, W)");
  if constexpr (sizeof(W) >= Traits::kNarrowestExchangeBytes) {
    static_assert(std::is_same_v<W, decltype(raw::CompareExchangeWord<Scope::kBlock, kOrder, W>(
                                        std::declval<void*>(), W(), W()))>,
                  "CompareExchangeWord<S, O, W>(void*, W expected, W desired) gives the old W");
  }
  // If kHasFetch is true, FetchOp is one instruction, otherwise a loop over CompareExchangeWord.
  static_assert(std::is_same_v<decltype(raw::kHasFetch<AtomicOp::kMax, W>), const bool>,
                "kHasFetch<Op, T> is a bool");
  if constexpr (raw::kHasFetch<AtomicOp::kAdd, W>) {
    static_assert(std::is_same_v<W, decltype(raw::Fetch<AtomicOp::kAdd, Scope::kSystem, kOrder, W>(
                                        std::declval<void*>(), W()))>,
                  "Fetch<Op, S, O, T>(void*, T operand) gives the old T");
  }
  return true;
}
static_assert(SuppliesWord<uint8_t>() && SuppliesWord<uint16_t>() && SuppliesWord<uint32_t>() &&
              SuppliesWord<uint64_t>());

// Bulk data. Values of up to 8 bytes do not tear.
static_assert(std::is_same_v<float, decltype(raw::LoadPlain(std::declval<const float*>()))>);
static_assert(std::is_void_v<decltype(raw::StorePlain(std::declval<float*>(), 0.0f))>);
static_assert(
    std::is_same_v<uint16_t, decltype(raw::LoadStreaming<uint16_t>(std::declval<const void*>()))>);
static_assert(
    std::is_void_v<decltype(raw::StoreStreaming<uint16_t>(std::declval<void*>(), uint16_t()))>);
static_assert(std::is_same_v<
              Bytes16, decltype(raw::Load16<CacheHint::kStreaming>(std::declval<const void*>()))>);
static_assert(std::is_void_v<decltype(raw::Store16<CacheHint::kStreaming>(std::declval<void*>(),
                                                                          Bytes16()))>);

// Called before each load that may be part of a poll, and with each write that others may await.
static_assert(std::is_void_v<decltype(raw::NotePoll())>);
static_assert(std::is_void_v<decltype(raw::NoteStore())>);

// Lanes. A value is shuffled in units. ShuffleSource returns the lane whose value to take: the
// caller's own if `lane` is outside the warp, unless ShuffleOne already ensures that.
static_assert(sizeof(raw::ShuffleUnit) == 4 || sizeof(raw::ShuffleUnit) == 16);
static_assert(std::is_same_v<uint32_t, decltype(raw::ShuffleSource(uint32_t()))>);
static_assert(
    std::is_same_v<raw::ShuffleUnit, decltype(raw::ShuffleOne(raw::ShuffleUnit(), uint32_t()))>);

// Launches. The tuple has the arguments; the launch may move them out.
static_assert(std::is_same_v<
              Result, decltype(raw::Launch(std::declval<const LaunchConfig&>(),
                                           std::declval<const raw::StreamHandle&>(),
                                           std::declval<void (*)(uint32_t, const void*)>(),
                                           std::declval<std::tuple<uint32_t, const void*>&>()))>);

}  // namespace iris::backend::spec
