// Product: a tile of A B in the registers of a block, over the backend's MatrixUnit.
//
// A slice of kDepth columns of A and rows of B is fetched into registers while the one before, in
// shared memory, is multiplied. What lies outside the matrices counts as zeros.
#pragma once

#include <cstdint>

#include "iris/backend/matrix.h"
#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/ops/impl/layout.h"

namespace iris::ops::impl {

// A matrix of T that is read: `lines` of them, `stride` elements from one to the next.
template <typename T>
struct Source {
  const T* first;
  uint64_t stride;
  uint32_t lines;
  bool wide;  // all lines begin at a multiple of 16 bytes

  IRIS_DEVICE Source(const T* from, uint64_t stride_elements, uint32_t n_lines)
      : first(from),
        stride(stride_elements),
        lines(n_lines),
        wide(((reinterpret_cast<uint64_t>(from) | stride_elements * sizeof(T)) & 15) == 0) {}
};

// kPack elements of a line, of which `count` exist.
template <typename T>
IRIS_DEVICE inline Bytes16 LoadPack(const Source<T>& source, uint32_t line, uint64_t at,
                                    uint64_t count) {
  const T* p = source.first + line * source.stride + at;
  if (source.wide && count >= kPack) return backend::Load16<CacheHint::kDefault>(p);
  Bytes16 pack = {};
  IRIS_UNROLL(8)
  for (uint32_t i = 0; i < kPack; ++i) {
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

template <typename T>
class Product {
  using Unit = backend::MatrixUnit<T>;
  using Element = typename Unit::Element;

 public:
  static constexpr uint32_t kThreads = kTile.threads;
  static constexpr uint32_t kDepth = Unit::kTileDepth;

 private:
  static constexpr uint32_t kStride = kDepth + kPack;
  static constexpr uint32_t kSliceA = kTile.rows * kStride;
  static constexpr uint32_t kSliceB = kTile.columns * kStride;
  static constexpr uint32_t kPacksA = kTile.rows * kDepth / kPack / kThreads;
  static constexpr uint32_t kPacksB = kTile.columns * kDepth / kPack / kThreads;
  static constexpr uint32_t kDown = kTile.rows / Unit::kWarpRows / Unit::kRows;
  static constexpr uint32_t kAcross = kTile.columns / Unit::kWarpColumns / Unit::kColumns;
  static_assert(kPacksA * kPack * kThreads == kTile.rows * kDepth);
  static_assert(kPacksB * kPack * kThreads == kTile.columns * kDepth);

 public:
  static constexpr uint32_t kValues = kDown * kAcross * Unit::kValues;
  static_assert(kValues * kThreads == kTile.rows * kTile.columns && kValues % 4 == 0);
  // Rows that are in shared memory at once on their way out.
  static constexpr uint32_t kStripRows = 32;
  static_assert(kTile.rows % kStripRows == 0);
  static constexpr uint32_t kSharedBytes = (kSliceA + kSliceB) * sizeof(Element);
  static_assert(kSharedBytes >= kStripRows * kTile.columns * sizeof(float));

  // `shared`: kSharedBytes of the block, aligned to 16.
  IRIS_DEVICE explicit Product(void* shared) : shared_(static_cast<uint8_t*>(shared)) {}

  // Multiplies a tile over all k. a: lines are rows. b: lines are columns if it is transposed, else
  // they run along k, and `columns` of each exist.
  IRIS_DEVICE void Multiply(const Source<T>& a, const Source<T>& b, bool transposed,
                            uint32_t columns, uint32_t k) {
    IRIS_UNROLL(64)
    for (uint32_t v = 0; v < kValues; ++v) Value(v) = 0;
    Fetch(a, b, transposed, columns, k, 0);
    for (uint32_t at = 0; at < k; at += kDepth) {
      iris::impl::SyncInsideBlock();  // what was there has been read
      Keep(transposed);
      iris::impl::SyncInsideBlock();
      if (k - at > kDepth) Fetch(a, b, transposed, columns, k, at + kDepth);
      MultiplySlice();
    }
  }

  // The sums as they travel: kValues / 4 packs, each thread's beside those of the others.
  IRIS_DEVICE void Give(void* slot) const {
    IRIS_UNROLL(16)
    for (uint32_t v = 0; v < kValues; v += 4) {
      backend::Store16<CacheHint::kDefault>(
          static_cast<Bytes16*>(slot) + v / 4 * kThreads + backend::ThreadIndex(),
          {Pair(Value(v), Value(v + 1)), Pair(Value(v + 2), Value(v + 3))});
    }
  }
  IRIS_DEVICE void Add(const void* slot) {
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

  // Calls use(first_row, strip) for each strip of kStripRows rows of kTile.columns sums, in shared
  // memory.
  template <typename Use>
  IRIS_DEVICE void ForEachStrip(Use use) const {
    float* const strip = reinterpret_cast<float*>(shared_);
    const uint32_t warp_row = WarpRow();
    const uint32_t warp_column = WarpColumn();
    for (uint32_t first = 0; first < kTile.rows; first += kStripRows) {
      iris::impl::SyncInsideBlock();  // what was there has been read
      IRIS_UNROLL(16)
      for (uint32_t i = 0; i < kDown; ++i) {
        const uint32_t rows = warp_row + i * Unit::kRows;
        if (rows / kStripRows != first / kStripRows) continue;
        IRIS_UNROLL(16)
        for (uint32_t j = 0; j < kAcross; ++j) {
          IRIS_UNROLL(16)
          for (uint32_t v = 0; v < Unit::kValues; ++v) {
            strip[(rows - first + Unit::RowOf(v)) * kTile.columns + warp_column +
                  j * Unit::kColumns + Unit::ColumnOf(v)] = values_[i * kAcross + j][v];
          }
        }
      }
      iris::impl::SyncInsideBlock();
      use(first, static_cast<const float*>(strip));
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
    return backend::WarpIndex() / Unit::kWarpColumns * (kTile.rows / Unit::kWarpRows);
  }
  IRIS_DEVICE static uint32_t WarpColumn() {
    return backend::WarpIndex() % Unit::kWarpColumns * (kTile.columns / Unit::kWarpColumns);
  }
  IRIS_DEVICE Element* SliceA() const { return reinterpret_cast<Element*>(shared_); }
  IRIS_DEVICE Element* SliceB() const { return SliceA() + kSliceA; }

  // Where pack i of this thread is: the line, and the element in it.
  IRIS_DEVICE static uint32_t LineOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) / (kDepth / kPack);
  }
  IRIS_DEVICE static uint32_t AtOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) % (kDepth / kPack) * kPack;
  }
  // The same of B by rows: neighbours in a warp have neighbouring k, so that they store to
  // different banks.
  IRIS_DEVICE static uint32_t DepthOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) % kDepth;
  }
  IRIS_DEVICE static uint32_t ColumnOf(uint32_t i) {
    return (i * kThreads + backend::ThreadIndex()) / kDepth * kPack;
  }

  IRIS_DEVICE static Bytes16 LoadLine(const Source<T>& source, uint32_t line, uint64_t at,
                                      uint64_t end) {
    if (line >= source.lines || at >= end) return {};
    return LoadPack(source, line, at, end - at);
  }

  IRIS_DEVICE void Fetch(const Source<T>& a, const Source<T>& b, bool transposed, uint32_t columns,
                         uint32_t k, uint32_t at) {
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
      for (uint32_t e = 0; e < kPack; ++e) to[e] = Unit::Convert(ElementOf<T>(pack, e));
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
        for (uint32_t e = 0; e < kPack; ++e) {
          to[e * kStride] = Unit::Convert(ElementOf<T>(packs_b_[i], e));
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

}  // namespace iris::ops::impl
