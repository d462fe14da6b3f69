// The matrix unit of NVIDIA GPUs: mma.sync of 16 x 8 x 16, which all GPUs from sm_80 on have.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/words.h"

namespace iris::backend {

template <typename T>
struct MatrixUnit {
  using Element = uint16_t;
  static constexpr uint32_t kRows = 16;
  static constexpr uint32_t kColumns = 8;
  static constexpr uint32_t kDepth = 16;
  static constexpr uint32_t kValues = 4;
  // Tile sizes of a GEMM that suit this unit; see iris/ops/impl/product.h.
  static constexpr uint32_t kTileRows = 128;
  static constexpr uint32_t kTileColumns = 128;
  static constexpr uint32_t kTileDepth = 32;
  static constexpr uint32_t kWarpRows = 2;
  static constexpr uint32_t kWarpColumns = 4;

  struct A {
    uint32_t words[4];
  };
  struct B {
    uint32_t words[2];
  };

  IRIS_DEVICE static Element Convert(T value) { return value.bits; }

  // Lane l has elements c, c + 1, c + 8, c + 9 of rows l / 4 and l / 4 + 8, with c = 2 (l % 4).
  IRIS_DEVICE static A LoadA(const Element* rows, uint32_t stride) {
    const Element* p = rows + Lane() / 4 * stride + Lane() % 4 * 2;
    return {{Pair(p), Pair(p + 8 * stride), Pair(p + 8), Pair(p + 8 * stride + 8)}};
  }
  IRIS_DEVICE static B LoadB(const Element* columns, uint32_t stride) {
    const Element* p = columns + Lane() / 4 * stride + Lane() % 4 * 2;
    return {{Pair(p), Pair(p + 8)}};
  }

  IRIS_DEVICE static void MultiplyAdd(const A& a, const B& b, float (&sum)[kValues]) {
    if constexpr (std::is_same_v<T, Half>) {
      IRIS_PTX_PURE(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]),
            "r"(b.words[1]));
    } else {
      IRIS_PTX_PURE(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
          "%7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]),
            "r"(b.words[1]));
    }
  }

  IRIS_DEVICE static uint32_t RowOf(uint32_t v) { return Lane() / 4 + v / 2 * 8; }
  IRIS_DEVICE static uint32_t ColumnOf(uint32_t v) { return Lane() % 4 * 2 + v % 2; }

 private:
  IRIS_DEVICE static uint32_t Lane() { return ThreadIndex() % Traits::kWarpThreads; }
  IRIS_DEVICE static uint32_t Pair(const Element* p) {
    return *reinterpret_cast<const uint32_t*>(p);
  }
};

}  // namespace iris::backend
