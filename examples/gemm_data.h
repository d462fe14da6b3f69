// The test data of the examples 08, 09, 11 and 12: their matrices, what their sizes have to be, and
// what the product is. No part of Iris: a program that has matrices of its own needs none of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "iris/context.h"
#include "iris/device.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace example {

enum Matrix : uint32_t { kMatrixA, kMatrixB };

// Small whole numbers: sums of their products are exact, whatever the order.
inline float GemmElement(Matrix matrix, uint64_t row, uint64_t column) {
  return static_cast<float>((row * 31 + column * 17 + row * column % 13 + matrix * 5) % 8) - 3.0f;
}

// A part of a matrix, row behind row: rows x columns elements, from first_row and first_column on.
inline std::vector<iris::Bfloat16> GemmValues(Matrix matrix, uint64_t rows, uint64_t columns,
                                              uint64_t first_row, uint64_t first_column) {
  std::vector<iris::Bfloat16> values(rows * columns);
  for (uint64_t i = 0; i < values.size(); ++i) {
    values[i] =
        iris::Bfloat16(GemmElement(matrix, first_row + i / columns, first_column + i % columns));
  }
  return values;
}

// The same on the device: a part of A, and a part of B.
inline auto GemmA(const iris::Context& context, iris::Stream& stream, uint64_t rows,
                  uint64_t columns, uint64_t first_row = 0, uint64_t first_column = 0) {
  const auto values = GemmValues(kMatrixA, rows, columns, first_row, first_column);
  return iris::DeviceArray<iris::Bfloat16>::Create(context, values, stream);
}
inline auto GemmB(const iris::Context& context, iris::Stream& stream, uint64_t rows,
                  uint64_t columns, uint64_t first_row = 0, uint64_t first_column = 0) {
  const auto values = GemmValues(kMatrixB, rows, columns, first_row, first_column);
  return iris::DeviceArray<iris::Bfloat16>::Create(context, values, stream);
}

// kInvalidArgument unless there is something to multiply, and the ranks divide the size that is
// dealt out to them: 'm', 'n' or 'k'.
inline iris::Status CheckSizes(uint32_t m, uint32_t n, uint32_t k, char dealt, uint32_t n_ranks) {
  const uint32_t size = dealt == 'm' ? m : dealt == 'n' ? n : k;
  if (m > 0 && n > 0 && k > 0 && size % n_ranks == 0) return iris::OkStatus();
  return {iris::StatusCode::kInvalidArgument,
          std::string("m, n and k are at least 1, and ") + dealt +
              " is a multiple of the number of ranks, " + std::to_string(n_ranks)};
}

// Compares D[m, n] = A[m, k] B[k, n], whose B begins at first_column, with a plain product: all
// elements if the matrices are small, else some 2^26 / k of them. `device_d` is memory of the
// device; what `stream` has to do before is waited for. kInternal names the first wrong element.
template <typename T>
iris::Status CheckGemm(iris::Stream& stream, const T* device_d, uint64_t m, uint64_t n, uint64_t k,
                       uint64_t first_column = 0) {
  std::vector<T> d(m * n);
  IRIS_RETURN_IF_ERROR(stream.Copy(d.data(), device_d, m * n * sizeof(T)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  for (uint64_t i = 0; i < m * n; i += 1 + m * n * k / (uint64_t{1} << 26)) {
    float sum = 0;
    for (uint64_t j = 0; j < k; ++j) {
      sum += GemmElement(kMatrixA, i / n, j) * GemmElement(kMatrixB, j, first_column + i % n);
    }
    const float right = static_cast<float>(T(sum)), is = static_cast<float>(d[i]);
    if (is != right) {
      return {iris::StatusCode::kInternal,
              "D[" + std::to_string(i / n) + ", " + std::to_string(i % n) + "] is " +
                  std::to_string(is) + " instead of " + std::to_string(right)};
    }
  }
  return iris::OkStatus();
}

}  // namespace example
