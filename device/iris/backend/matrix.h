// MatrixUnit: the matrix instruction of a backend, as a warp uses it; plain loops on emulated
// devices.
//
// All threads of a warp multiply together: sum[kRows, kCols] += A[kRows, kDepth] B[kDepth, kCols].
// A and B lie in shared memory as Elements, A by rows and B by columns, `stride` elements from one
// row or column to the next. Each row or column begins at a multiple of 16 bytes. Each thread holds
// kValues values of the sum; RowOf and ColumnOf return their indices.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"

namespace iris::backend {

template <typename T>
constexpr bool MatrixUnitIsWhole() {
  using U = MatrixUnit<T>;
  return U::kRows * U::kColumns == U::kValues * Traits::kWarpThreads && U::kDepth % 8 == 0;
}
static_assert(MatrixUnitIsWhole<Half>() && MatrixUnitIsWhole<Bfloat16>());

}  // namespace iris::backend
