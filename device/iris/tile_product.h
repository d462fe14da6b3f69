// TileProduct: a block multiplies a tile of two matrices, by the device's matrix instruction.
//
//   using Product = iris::TileProduct<iris::Bfloat16>;
//
//   // A block of Product::kThreads threads makes one tile of D[m, n] = A[m, k] B[k, n]; all rows
//   // are contiguous. The tile begins at row r and column c, and may end past the matrix.
//   IRIS_SHARED(Product::Shared, shared);
//   Product product(shared);
//   product.Multiply({a + r * k, k, m - r}, {b + c, n, k}, false, n - c, k);
//   product.ForEachStrip([&](uint32_t row, const float* strip) {
//     const iris::Tile part = {Product::kStripRows, Product::kColumns, n, 1, m - r - row, n - c};
//     iris::StoreTile(ctx, peer, d + (r + row) * n + c, part, strip, iris::Block{});
//   });
//
// T is Half or Bfloat16; sums are float. The instruction and the size of the tile are the
// backend's: emulated devices multiply by plain loops. The matrices may be in any memory from which
// the block can load, a peer's heap (Translate) included, and of any size: elements of a tile
// outside of them count as zeros and are not read. Reads are fastest if rows begin at multiples of
// 16 bytes. Sums are added in the order of k: the bits are the same in every run.
//
// TileProduct is a plain GEMM for kernels that fuse it with other work: loads go through registers
// into shared memory, one slice ahead. For a GEMM alone, iris::ops is faster.
//
// The threads 0 to kThreads - 1 of the block make all calls together, with the same arguments. The
// block may have more warps: they call Accompany meanwhile, and do other work.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/matrix.h"
#include "iris/backend/select.h"
#include "iris/impl/mutation.h"

namespace iris {

// An input matrix, or the rest of one: lines of contiguous elements.
template <typename T>
struct ProductOperand {
  const T* first;
  uint64_t stride;  // elements from a line to the next
  uint32_t lines;   // those that exist; a tile reads no others
  bool wide;        // all lines begin at a multiple of 16 bytes

  IRIS_DEVICE ProductOperand(const T* from, uint64_t stride_elements, uint64_t n_lines)
      : first(from),
        stride(stride_elements),
        lines(static_cast<uint32_t>(n_lines)),
        wide(((reinterpret_cast<uint64_t>(from) | stride_elements * sizeof(T)) & 15) == 0) {}
};

namespace impl {

inline constexpr uint32_t kProductPack = 8;  // elements of f16 or bf16 in 16 bytes

// Loads kProductPack elements of a line, of which `count` exist.
template <typename T>
IRIS_DEVICE inline Bytes16 LoadPack(const ProductOperand<T>& source, uint32_t line, uint64_t at,
                                    uint64_t count) {
  const T* p = source.first + line * source.stride + at;
  if (source.wide && count >= kProductPack) return backend::Load16<CacheHint::kDefault>(p);
  Bytes16 pack = {};
  IRIS_UNROLL(8)
  for (uint32_t i = 0; i < kProductPack; ++i) {
    const uint64_t bits = i < count ? backend::LoadPlain(p + i).bits : uint64_t{0};
    if (i < 4) {
      pack.lo |= bits << i * 16;
    } else {
      pack.hi |= bits << (i - 4) * 16;
    }
  }
  return pack;
}

template <typename T>
IRIS_DEVICE inline T ElementOf(const Bytes16& pack, uint32_t i) {
  return T::FromBits(static_cast<uint16_t>((i < 4 ? pack.lo : pack.hi) >> i % 4 * 16));
}

}  // namespace impl

template <typename T>
class TileProduct {
  using Unit = backend::MatrixUnit<T>;
  using Element = typename Unit::Element;

 public:
  // The rows and columns of a tile, and the threads that compute it.
  static constexpr uint32_t kRows = Unit::kTileRows;
  static constexpr uint32_t kColumns = Unit::kTileColumns;
  static constexpr uint32_t kThreads =
      Unit::kWarpRows * Unit::kWarpColumns * backend::Traits::kWarpThreads;
  static constexpr uint32_t kDepth = Unit::kTileDepth;  // of k, in a slice

 private:
  static constexpr uint32_t kStride = kDepth + impl::kProductPack;
  static constexpr uint32_t kSliceA = kRows * kStride;
  static constexpr uint32_t kSliceB = kColumns * kStride;
  static constexpr uint32_t kPacksA = kRows * kDepth / impl::kProductPack / kThreads;
  static constexpr uint32_t kPacksB = kColumns * kDepth / impl::kProductPack / kThreads;
  static constexpr uint32_t kDown = kRows / Unit::kWarpRows / Unit::kRows;
  static constexpr uint32_t kAcross = kColumns / Unit::kWarpColumns / Unit::kColumns;
  static_assert(kPacksA * impl::kProductPack * kThreads == kRows * kDepth);
  static_assert(kPacksB * impl::kProductPack * kThreads == kColumns * kDepth);

 public:
  // Sums of a thread.
  static constexpr uint32_t kValues = kDown * kAcross * Unit::kValues;
  static_assert(kValues * kThreads == kRows * kColumns && kValues % 4 == 0);
  // Rows that ForEachStrip has in shared memory at once.
  static constexpr uint32_t kStripRows = 32;
  static_assert(kRows % kStripRows == 0);
  // A block needs kSharedBytes of shared memory, aligned to 16. Declare a Shared with IRIS_SHARED,
  // or launch with LaunchConfig::shared_bytes = kSharedBytes and use DynamicShared.
  static constexpr uint32_t kSharedBytes = (kSliceA + kSliceB) * sizeof(Element);
  static_assert(kSharedBytes >= kStripRows * kColumns * sizeof(float));
  static_assert(kSharedBytes % sizeof(Bytes16) == 0);
  using Shared = Bytes16[kSharedBytes / sizeof(Bytes16)];

  // Only this object uses `shared`: a Shared of the block, or kSharedBytes of DynamicShared.
  IRIS_DEVICE explicit TileProduct(void* shared) : shared_(static_cast<uint8_t*>(shared)) {}

  // Computes the sums of a tile over all k >= 1. The lines of `a` are the rows of A from the tile's
  // first on. The lines of `b` are the rows of B, from the tile's first column on, `columns` of
  // which exist; or, if B is transposed, the columns of B from the tile's first on. More lines
  // and columns may exist than the tile has.
  IRIS_DEVICE void Multiply(const ProductOperand<T>& a, const ProductOperand<T>& b, bool transposed,
                            uint32_t columns, uint32_t k) {
    Clear();
    Fetch(a, b, transposed, columns, k, 0);
    for (uint32_t at = 0; at < k; at += kDepth) {
      impl::SyncInsideBlock();  // the previous contents have been read
      Keep(transposed);
      impl::SyncInsideBlock();
      if (k - at > kDepth) Fetch(a, b, transposed, columns, k, at + kDepth);
      MultiplySlice();
    }
  }

  // Sets the sums to zero.
  IRIS_DEVICE void Clear() {
    IRIS_UNROLL(64)
    for (uint32_t v = 0; v < kValues; ++v) Value(v) = 0;
  }

  // Pass sums, as the registers have them, to another block of the same kind: StoreSums writes
  // kRows * kColumns floats to `slot`, AddSums adds them. `slot` is in any memory, aligned to 16.
  IRIS_DEVICE void StoreSums(void* slot) const {
    IRIS_UNROLL(16)
    for (uint32_t v = 0; v < kValues; v += 4) {
      backend::Store16<CacheHint::kDefault>(
          static_cast<Bytes16*>(slot) + v / 4 * kThreads + backend::ThreadIndex(),
          {Pair(Value(v), Value(v + 1)), Pair(Value(v + 2), Value(v + 3))});
    }
  }
  IRIS_DEVICE void AddSums(const void* slot) {
    IRIS_UNROLL(16)
    for (uint32_t v = 0; v < kValues; v += 4) {
      const Bytes16 pack = backend::Load16<CacheHint::kDefault>(
          static_cast<const Bytes16*>(slot) + v / 4 * kThreads + backend::ThreadIndex());
      Value(v) += numeric::FloatOf(static_cast<uint32_t>(pack.lo));
      Value(v + 1) += numeric::FloatOf(static_cast<uint32_t>(pack.lo >> 32));
      Value(v + 2) += numeric::FloatOf(static_cast<uint32_t>(pack.hi));
      Value(v + 3) += numeric::FloatOf(static_cast<uint32_t>(pack.hi >> 32));
    }
  }

  // Calls use(first_row, strip) for each dense strip of kStripRows rows of kColumns sums in shared
  // memory, as Out: float, Half or Bfloat16. `use` reads the strip, and does not sync the block.
  template <typename Out = float, typename Use>
  IRIS_DEVICE void ForEachStrip(Use use) const {
    Out* const strip = reinterpret_cast<Out*>(shared_);
    const uint32_t warp_row = WarpRow();
    const uint32_t warp_column = WarpColumn();
    for (uint32_t first = 0; first < kRows; first += kStripRows) {
      impl::SyncInsideBlock();  // the previous contents have been read
      IRIS_UNROLL(16)
      for (uint32_t i = 0; i < kDown; ++i) {
        const uint32_t rows = warp_row + i * Unit::kRows;
        if (rows / kStripRows != first / kStripRows) continue;
        IRIS_UNROLL(16)
        for (uint32_t j = 0; j < kAcross; ++j) {
          IRIS_UNROLL(16)
          for (uint32_t v = 0; v < Unit::kValues; ++v) {
            strip[(rows - first + Unit::RowOf(v)) * kColumns + warp_column + j * Unit::kColumns +
                  Unit::ColumnOf(v)] = static_cast<Out>(values_[i * kAcross + j][v]);
          }
        }
      }
      impl::SyncInsideBlock();
      use(first, static_cast<const Out*>(strip));
    }
  }

  // Makes, in warps that do not multiply, the syncs of one Multiply over `k` and one ForEachStrip,
  // and calls work(step, steps) between them. Each side can read the other's writes after the next
  // BlockSync. `work` does not sync the block.
  template <typename Work>
  IRIS_DEVICE static void Accompany(uint32_t k, Work work) {
    const uint32_t steps = (k + kDepth - 1) / kDepth + kRows / kStripRows;
    for (uint32_t step = 0; step < steps; ++step) {
      impl::SyncInsideBlock();
      impl::SyncInsideBlock();
      work(step, steps);
    }
  }

 private:
  static_assert(kStripRows % Unit::kRows == 0);

  IRIS_DEVICE float& Value(uint32_t v) { return values_[v / Unit::kValues][v % Unit::kValues]; }
  IRIS_DEVICE float Value(uint32_t v) const {
    return values_[v / Unit::kValues][v % Unit::kValues];
  }
  IRIS_DEVICE static uint64_t Pair(float low, float high) {
    return static_cast<uint64_t>(backend::BitCast<uint32_t>(high)) << 32 |
           backend::BitCast<uint32_t>(low);
  }
  IRIS_DEVICE static uint32_t WarpRow() {
    return backend::WarpIndex() / Unit::kWarpColumns * (kRows / Unit::kWarpRows);
  }
  IRIS_DEVICE static uint32_t WarpColumn() {
    return backend::WarpIndex() % Unit::kWarpColumns * (kColumns / Unit::kWarpColumns);
  }
  IRIS_DEVICE Element* SliceA() const { return reinterpret_cast<Element*>(shared_); }
  IRIS_DEVICE Element* SliceB() const { return SliceA() + kSliceA; }

  // Return the line and the element of this thread's pack i.
  IRIS_DEVICE static uint32_t LineOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) / (kDepth / impl::kProductPack);
  }
  IRIS_DEVICE static uint32_t AtOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) % (kDepth / impl::kProductPack) *
           impl::kProductPack;
  }
  // Return these for B by rows: lanes have neighbouring k, and so store to different banks.
  IRIS_DEVICE static uint32_t DepthOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) % kDepth;
  }
  IRIS_DEVICE static uint32_t ColumnOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) / kDepth * impl::kProductPack;
  }

  IRIS_DEVICE static Bytes16 LoadLine(const ProductOperand<T>& source, uint32_t line, uint64_t at,
                                      uint64_t end) {
    if (line >= source.lines || at >= end) return {};
    return impl::LoadPack(source, line, at, end - at);
  }

  IRIS_DEVICE void Fetch(const ProductOperand<T>& a, const ProductOperand<T>& b, bool transposed,
                         uint32_t columns, uint32_t k, uint32_t at) {
    IRIS_UNROLL(8)
    for (uint32_t i = 0; i < kPacksA; ++i) {
      packs_a_[i] = LoadLine(a, LineOf(i), uint64_t{at} + AtOf(i), k);
    }
    if (transposed) {
      IRIS_UNROLL(8)
      for (uint32_t i = 0; i < kPacksB; ++i) {
        packs_b_[i] = LoadLine(b, LineOf(i), uint64_t{at} + AtOf(i), k);
      }
    } else {
      IRIS_UNROLL(8)
      for (uint32_t i = 0; i < kPacksB; ++i) {
        packs_b_[i] = LoadLine(b, at + DepthOf(i), ColumnOf(i), columns);
      }
    }
  }

  IRIS_DEVICE static void KeepLine(Element* to, const Bytes16& pack) {
    if constexpr (sizeof(Element) == 2) {
      backend::Store16<CacheHint::kDefault>(to, pack);
    } else {
      for (uint32_t e = 0; e < impl::kProductPack; ++e)
        to[e] = Unit::Convert(impl::ElementOf<T>(pack, e));
    }
  }
  IRIS_DEVICE void Keep(bool transposed) const {
    IRIS_UNROLL(8)
    for (uint32_t i = 0; i < kPacksA; ++i) {
      KeepLine(SliceA() + LineOf(i) * kStride + AtOf(i), packs_a_[i]);
    }
    if (transposed) {
      IRIS_UNROLL(8)
      for (uint32_t i = 0; i < kPacksB; ++i) {
        KeepLine(SliceB() + LineOf(i) * kStride + AtOf(i), packs_b_[i]);
      }
    } else {
      IRIS_UNROLL(8)
      for (uint32_t i = 0; i < kPacksB; ++i) {
        Element* to = SliceB() + ColumnOf(i) * kStride + DepthOf(i);
        IRIS_UNROLL(8)
        for (uint32_t e = 0; e < impl::kProductPack; ++e) {
          to[e * kStride] = Unit::Convert(impl::ElementOf<T>(packs_b_[i], e));
        }
      }
    }
  }

  IRIS_DEVICE void MultiplySlice() {
    const Element* const rows = SliceA() + WarpRow() * kStride;
    const Element* const columns = SliceB() + WarpColumn() * kStride;
    IRIS_UNROLL(2)
    for (uint32_t at = 0; at < kDepth; at += Unit::kDepth) {
      typename Unit::B b[kAcross];
      IRIS_UNROLL(16)
      for (uint32_t j = 0; j < kAcross; ++j) {
        b[j] = Unit::LoadB(columns + j * Unit::kColumns * kStride + at, kStride);
      }
      IRIS_UNROLL(16)
      for (uint32_t i = 0; i < kDown; ++i) {
        const typename Unit::A a = Unit::LoadA(rows + i * Unit::kRows * kStride + at, kStride);
        IRIS_UNROLL(16)
        for (uint32_t j = 0; j < kAcross; ++j) {
          Unit::MultiplyAdd(a, b[j], values_[i * kAcross + j]);
        }
      }
    }
  }

  uint8_t* shared_;
  float values_[kDown * kAcross][Unit::kValues];
  Bytes16 packs_a_[kPacksA];
  Bytes16 packs_b_[kPacksB];
};

}  // namespace iris
