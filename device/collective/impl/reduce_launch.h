// Bodies of launch.h, for the translation unit of one type.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/backend/numeric.h"
#include "device/backend/select.h"
#include "device/collective/impl/launch.h"
#include "device/collective/impl/reduce_kernels.h"

namespace iris::ccl::impl {

using Kernel = void (*)(Call);

// What is worth kernels of its own: sums of the types that models are made of.
template <typename T>
inline constexpr bool kHasFixed =
    std::is_same_v<T, float> || std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

// N: 0 for any number and operator.
template <typename T, typename Op, uint32_t N>
Kernel KernelFor(Variant variant) {
  if (variant == Variant::kPackets) return ReducePackets<T, Op, N>;
  if constexpr (N != 0) {
    if (variant == Variant::kPipeline) return ReduceDirect<T, Op, N, true>;
    if (variant == Variant::kTwoPackets) return ReduceTwoPackets<T, Op, N>;
  }
  return ReduceDirect<T, Op, N, false>;
}

template <typename T>
Kernel KernelOf(Variant variant, uint32_t members, ReduceOp op) {
  if (variant == Variant::kRing) return ReduceRing<T, AnyOp<T>>;
  if (variant == Variant::kAtomic || variant == Variant::kSpinlock)
    return ReduceAtOwner<T, AnyOp<T>>;
  if constexpr (kHasFixed<T>) {
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
      using Op = FixedOp<T, ReduceOp::kSum>;
      if (members == 2) return KernelFor<T, Op, 2>(variant);
      if (members == 4) return KernelFor<T, Op, 4>(variant);
      if (members == 8) return KernelFor<T, Op, 8>(variant);
    }
  }
  return KernelFor<T, AnyOp<T>, 0>(variant);
}

template <typename T>
Result LaunchReduce(const LaunchConfig& launch, backend::Stream& stream, Variant variant,
                    const Call& call) {
  return backend::Launch(launch, stream, KernelOf<T>(variant, call.size, call.op), call);
}

template <typename T>
Result PrepareReduce() {
  for (Variant variant : {Variant::kPackets, Variant::kTwoShot, Variant::kPipeline,
                          Variant::kTwoPackets, Variant::kRing, Variant::kAtomic}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (uint32_t members : {2u, 3u, 4u, 8u}) {
        const Result result = backend::PrepareKernel(KernelOf<T>(variant, members, op));
        if (!result.ok()) return result;
      }
    }
  }
  return {};
}

}  // namespace iris::ccl::impl
