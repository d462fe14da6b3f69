// MatrixUnit: the matrix instruction of a backend, as a warp uses it; plain loops on emulated
// devices.
//
// All threads of a warp multiply together: sum[kRows, kCols] += A[kRows, kDepth] B[kDepth, kCols].
// The pieces lie in shared memory as Elements, A by rows and B by columns, `stride` elements from
// one to the next; both begin at a multiple of 16 bytes, and so does every row or column. Each
// thread holds kValues values of the sum; RowOf and ColumnOf say which.
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
