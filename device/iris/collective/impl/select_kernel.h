// Selects the kernels of reductions: specific ones for sums and averages of the common float types
// on 2, 4 and 8 ranks, else general ones. Host code of the variants.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/collective/impl/kernel_types.h"
#include "iris/collective/impl/reduce.h"
#include "iris/dtype.h"

namespace iris::ccl::impl {

// Returns true for reductions that have kernels of their own.
constexpr bool HasFixedKernel(DType type, ReduceOp op, uint32_t members) {
  return (type == DType::kF32 || type == DType::kF16 || type == DType::kBf16) &&
         (op == ReduceOp::kSum || op == ReduceOp::kAvg) &&
         (members == 2 || members == 4 || members == 8);
}

// Defines `Kernels`, whose Of<T, Op, N>() is the kernel named by the other argument. N is 0 for any
// number of ranks and operator.
#define IRIS_REDUCTION_KERNELS(Kernels, ...)       \
  struct Kernels {                                 \
    template <typename T, typename Op, uint32_t N> \
    static auto Of() {                             \
      return &__VA_ARGS__;                         \
    }                                              \
  }

// Returns null if the type has no kernels.
template <typename Kernels, typename T, typename Op, uint32_t N>
auto KernelOf() {
  if constexpr (kHasKernels<T>) {
    return Kernels::template Of<T, Op, N>();
  } else {
    using Bf16Op = std::conditional_t<N == 0, AnyOp<Bfloat16>, FixedOp<Bfloat16, ReduceOp::kSum>>;
    return decltype(Kernels::template Of<Bfloat16, Bf16Op, N>()){nullptr};
  }
}

template <typename Kernels, typename T>
auto FixedKernel(uint32_t members) {
  using Op = FixedOp<T, ReduceOp::kSum>;
  if (members == 2) return KernelOf<Kernels, T, Op, 2>();
  if (members == 4) return KernelOf<Kernels, T, Op, 4>();
  return KernelOf<Kernels, T, Op, 8>();
}

// Returns the kernel of a call for which HasFixedKernel is true.
template <typename Kernels>
auto SelectFixed(DType type, uint32_t members) {
  if (type == DType::kF16) return FixedKernel<Kernels, Half>(members);
  if (type == DType::kBf16) return FixedKernel<Kernels, Bfloat16>(members);
  return FixedKernel<Kernels, float>(members);
}

// Returns the kernel for any operator and number of ranks.
template <typename Kernels>
auto SelectGeneral(DType type) {
  switch (type) {
    case DType::kF32:
      return KernelOf<Kernels, float, AnyOp<float>, 0>();
    case DType::kF64:
      return KernelOf<Kernels, double, AnyOp<double>, 0>();
    case DType::kF16:
      return KernelOf<Kernels, Half, AnyOp<Half>, 0>();
    case DType::kBf16:
      return KernelOf<Kernels, Bfloat16, AnyOp<Bfloat16>, 0>();
    case DType::kI32:
      return KernelOf<Kernels, int32_t, AnyOp<int32_t>, 0>();
    case DType::kI64:
      return KernelOf<Kernels, int64_t, AnyOp<int64_t>, 0>();
    default:  // kU8: CheckRequest knows no other
      break;
  }
  return KernelOf<Kernels, uint8_t, AnyOp<uint8_t>, 0>();
}

template <typename Kernels>
auto Select(DType type, ReduceOp op, uint32_t members) {
  return HasFixedKernel(type, op, members) ? SelectFixed<Kernels>(type, members)
                                           : SelectGeneral<Kernels>(type);
}

template <typename Kernels>
Result PrepareFixed() {
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (uint32_t members : {2u, 4u, 8u}) {
      const Result result = backend::PrepareKernel(SelectFixed<Kernels>(type, members));
      if (!result.ok()) return result;
    }
  }
  return {};
}

template <typename Kernels>
Result PrepareGeneral() {
  for (DType type : {DType::kF32, DType::kF64, DType::kF16, DType::kBf16, DType::kI32, DType::kI64,
                     DType::kU8}) {
    const Result result = backend::PrepareKernel(SelectGeneral<Kernels>(type));
    if (!result.ok()) return result;
  }
  return {};
}

template <typename Kernels>
Result PrepareAll() {
  const Result result = PrepareFixed<Kernels>();
  return result.ok() ? PrepareGeneral<Kernels>() : result;
}

}  // namespace iris::ccl::impl
