// One wgmma instruction each: D[64, kN] += A[64, 16] B[16, kN], A and B in shared memory.
#pragma once

#include <cstdint>

#include "iris/backend/cuda/matmul/ptx.h"

namespace iris::backend::cuda::matmul {

#define IRIS_WGMMA_REGISTERS_64                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define IRIS_WGMMA_REGISTERS_128                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define IRIS_WGMMA_REGISTERS_256                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define IRIS_WGMMA_4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define IRIS_WGMMA_16(d, i) \
  IRIS_WGMMA_4(d, i), IRIS_WGMMA_4(d, (i) + 4), IRIS_WGMMA_4(d, (i) + 8), IRIS_WGMMA_4(d, (i) + 12)
#define IRIS_WGMMA_32(d, i) IRIS_WGMMA_16(d, i), IRIS_WGMMA_16(d, (i) + 16)
#define IRIS_WGMMA_64(d, i) IRIS_WGMMA_32(d, i), IRIS_WGMMA_32(d, (i) + 32)
#define IRIS_WGMMA_128(d, i) IRIS_WGMMA_64(d, i), IRIS_WGMMA_64(d, (i) + 64)

// `a`, `b`, `adds` and the immediate are the operands after the registers of d.
#define IRIS_WGMMA(n, type, list, a_at, b_at, adds_at, major_at)                                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #adds_at                                        \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                    \
               " {" IRIS_WGMMA_REGISTERS_##n "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, %" #major_at \
                                             "; }\n"                                              \
               : list(d, 0)                                                                       \
               : "l"(a), "l"(b), "r"(adds), "n"(kColumnMajor))

// If kColumnMajor is 1, n is contiguous in B (B is stored by rows). `adds` is 0 to begin a sum.
template <uint32_t kN, bool kBfloat16, uint32_t kColumnMajor>
__device__ __forceinline__ void Wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, uint32_t adds) {
#if defined(IRIS_MATMUL_HOPPER)
  if constexpr (kN == 256 && kBfloat16) {
    IRIS_WGMMA(256, "bf16", IRIS_WGMMA_128, 128, 129, 130, 131);
  } else if constexpr (kN == 256) {
    IRIS_WGMMA(256, "f16", IRIS_WGMMA_128, 128, 129, 130, 131);
  } else if constexpr (kN == 128 && kBfloat16) {
    IRIS_WGMMA(128, "bf16", IRIS_WGMMA_64, 64, 65, 66, 67);
  } else if constexpr (kN == 128) {
    IRIS_WGMMA(128, "f16", IRIS_WGMMA_64, 64, 65, 66, 67);
  } else if constexpr (kBfloat16) {
    static_assert(kN == 64);
    IRIS_WGMMA(64, "bf16", IRIS_WGMMA_32, 32, 33, 34, 35);
  } else {
    static_assert(kN == 64);
    IRIS_WGMMA(64, "f16", IRIS_WGMMA_32, 32, 33, 34, 35);
  }
#endif
}

}  // namespace iris::backend::cuda::matmul
