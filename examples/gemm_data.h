// The test data of the examples 08, 09, 11 and 12: what they are run with, their matrices, what
// their sizes have to be, and what the product is. No part of Iris: a program that has matrices of
// its own needs none of it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "examples/flags.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace example {

// What a product is run with: one of its patterns, if it has any, and the sizes.
struct GemmWords {
  std::string pattern;
  uint32_t m, n, k;
};

// Ends the program after --help, and after words that cannot be.
inline GemmWords ParseGemm(int argc, char** argv,
                           std::initializer_list<const char*> patterns = {}) {
  constexpr uint32_t kMost = 1 << 20;
  const int first = patterns.size() == 0 ? 1 : 2;  // the word that is m
  const auto size = [&](int i) { return Number(argc, argv, first + i, 256, kMost); };
  const GemmWords words = {patterns.size() != 0 && argc > 1 ? argv[1] : "", size(0), size(1),
                           size(2)};
  std::string usage;
  const bool wrong = words.m == 0 || words.n == 0 || words.k == 0;
  bool known = patterns.size() == 0;
  for (const char* pattern : patterns) {
    usage.append(usage.empty() ? "" : "|").append(pattern);
    known = known || words.pattern == pattern;
  }
  usage.append(usage.empty() ? "" : " ").append("[m [n [k]]], whole numbers from 1 to ");
  usage.append(std::to_string(kMost)).append("; 256 where there is none");
  Usage(argc, argv, wrong || !known, first + 2, usage.c_str());
  return words;
}

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

// kInvalidArgument unless the ranks divide the size that is dealt out to them: 'm', 'n' or 'k'.
inline iris::Status CheckSizes(uint32_t m, uint32_t n, uint32_t k, char dealt, uint32_t n_ranks) {
  const uint32_t size = dealt == 'm' ? m : dealt == 'n' ? n : k;
  if (size % n_ranks == 0) return iris::OkStatus();
  return {iris::StatusCode::kInvalidArgument,
          std::string(1, dealt) + " is " + std::to_string(size) +
              ", and has to be a multiple of the number of ranks, " + std::to_string(n_ranks)};
}

// Compares D[m, n] = A[m, k] B[k, n], whose B begins at first_column, with a plain product: all
// elements if the matrices are small, else some 2^26 / k of them. `device_d` is memory of the
// device; what `stream` has to do before is waited for. kInternal names the first wrong element.
template <typename T>
iris::Status CheckGemm(iris::Stream& stream, const T* device_d, uint64_t m, uint64_t n, uint64_t k,
                       uint64_t first_column = 0) {
  IRIS_ASSIGN_OR_RETURN(const std::vector<T> d, stream.Read(device_d, m * n));
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
