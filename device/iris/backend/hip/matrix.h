// The matrix unit of AMD GPUs: v_mfma of 16 x 16 x 16, which all GPUs from gfx90a on have.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/words.h"

namespace iris::backend {

template <typename T>
struct MatrixUnit {
  using Element = uint16_t;
  static constexpr uint32_t kRows = 16;
  static constexpr uint32_t kColumns = 16;
  static constexpr uint32_t kDepth = 16;
  static constexpr uint32_t kValues = 4;
  // Tile sizes of a GEMM that suit this unit; see iris/ops/impl/product.h.
  static constexpr uint32_t kTileRows = 128;
  static constexpr uint32_t kTileColumns = 128;
  static constexpr uint32_t kTileDepth = 32;
  static constexpr uint32_t kWarpRows = 2;
  static constexpr uint32_t kWarpColumns = 2;

  // Four elements. Lane l has those from 4 (l / 16) on of row, or column, l % 16.
  struct Piece {
    uint64_t word;
  };
  using A = Piece;
  using B = Piece;

  IRIS_DEVICE static Element Convert(T value) { return value.bits; }
  IRIS_DEVICE static A LoadA(const Element* rows, uint32_t stride) {
    return {*reinterpret_cast<const uint64_t*>(rows + Lane() % 16 * stride + Lane() / 16 * 4)};
  }
  IRIS_DEVICE static B LoadB(const Element* columns, uint32_t stride) {
    return LoadA(columns, stride);
  }

  IRIS_DEVICE static void MultiplyAdd(const A& a, const B& b, float (&sum)[kValues]) {
#if defined(__HIP_DEVICE_COMPILE__)
    using Sum = float __attribute__((ext_vector_type(4)));
    Sum total = {sum[0], sum[1], sum[2], sum[3]};
    if constexpr (std::is_same_v<T, Half>) {
      using Four = _Float16 __attribute__((ext_vector_type(4)));
      total =
          __builtin_amdgcn_mfma_f32_16x16x16f16(BitCast<Four>(a), BitCast<Four>(b), total, 0, 0, 0);
    } else {
      using Four = short __attribute__((ext_vector_type(4)));
      total = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(BitCast<Four>(a), BitCast<Four>(b), total,
                                                        0, 0, 0);
    }
    for (uint32_t v = 0; v < kValues; ++v) sum[v] = total[v];
#else
    (void)a;
    (void)b;
    (void)sum;
#endif
  }

  IRIS_DEVICE static uint32_t RowOf(uint32_t v) { return Lane() / 16 * 4 + v; }
  IRIS_DEVICE static uint32_t ColumnOf(uint32_t) { return Lane() % 16; }

 private:
  IRIS_DEVICE static uint32_t Lane() { return ThreadIndex() % Traits::kWarpThreads; }
};

}  // namespace iris::backend
