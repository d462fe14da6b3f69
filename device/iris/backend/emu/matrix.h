// The matrix unit of emulated devices: loops over floats.
#pragma once

#include <cstdint>

#include "iris/backend/words.h"

namespace iris::backend {

template <typename T>
struct MatrixUnit {
  using Element = float;
  static constexpr uint32_t kRows = 16;
  static constexpr uint32_t kColumns = 16;
  static constexpr uint32_t kDepth = 16;
  static constexpr uint32_t kValues = 8;
  // Tile sizes of a GEMM that suit this unit; see iris/ops/impl/product.h.
  static constexpr uint32_t kTileRows = 32;
  static constexpr uint32_t kTileColumns = 32;
  static constexpr uint32_t kTileDepth = 32;
  static constexpr uint32_t kWarpRows = 1;
  static constexpr uint32_t kWarpColumns = 1;

  struct Piece {
    const float* first;
    uint32_t stride;
  };
  using A = Piece;
  using B = Piece;

  static Element Convert(T value) { return static_cast<float>(value); }
  static A LoadA(const Element* rows, uint32_t stride) { return {rows, stride}; }
  static B LoadB(const Element* columns, uint32_t stride) { return {columns, stride}; }

  static void MultiplyAdd(const A& a, const B& b, float (&sum)[kValues]) {
    const float* row = a.first + RowOf(0) * a.stride;
    for (uint32_t v = 0; v < kValues; ++v) {
      const float* column = b.first + ColumnOf(v) * b.stride;
      float total = sum[v];
      for (uint32_t k = 0; k < kDepth; ++k) total += row[k] * column[k];
      sum[v] = total;
    }
  }

  // A thread has half of a row.
  static uint32_t RowOf(uint32_t) { return Lane() / 2; }
  static uint32_t ColumnOf(uint32_t v) { return Lane() % 2 * kValues + v; }

 private:
  static uint32_t Lane() { return ThreadIndex() % Traits::kWarpThreads; }
};

}  // namespace iris::backend
