// Bodies of memory.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/backend/words.h"
#include "iris/impl/coop.h"
#include "iris/types.h"

namespace iris::impl {

template <typename T>
struct NotDeduced {
  using Type = T;
};

// The backends' own: an unsigned word of so many bytes, and the same bits as another type.
template <uint64_t kBytes>
using UnsignedOf = backend::WordOf<kBytes>;
using backend::BitCast;

template <CacheHint H, typename T>
IRIS_DEVICE inline T LoadValue(const T* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  if constexpr (sizeof(T) == 16) {
    return BitCast<T>(backend::Load16<H>(p));
  } else {
    using U = typename UnsignedOf<sizeof(T)>::Type;
    const U* u = reinterpret_cast<const U*>(p);
    if constexpr (H == CacheHint::kVolatile) {
      return BitCast<T>(backend::Load<Scope::kSystem, Order::kRelaxed>(u));
    } else if constexpr (H == CacheHint::kStreaming) {
      return BitCast<T>(backend::LoadStreaming(u));
    } else {
      return BitCast<T>(backend::LoadPlain(u));
    }
  }
}

template <CacheHint H, typename T>
IRIS_DEVICE inline void StoreValue(T* p, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if constexpr (sizeof(T) == 16) {
    backend::Store16<H>(p, BitCast<Bytes16>(value));
  } else {
    using U = typename UnsignedOf<sizeof(T)>::Type;
    U* u = reinterpret_cast<U*>(p);
    if constexpr (H == CacheHint::kVolatile) {
      backend::Store<Scope::kSystem, Order::kRelaxed>(u, BitCast<U>(value));
    } else if constexpr (H == CacheHint::kStreaming) {
      backend::StoreStreaming(u, BitCast<U>(value));
    } else {
      backend::StorePlain(u, BitCast<U>(value));
    }
  }
}

// Thread `index` of `n` copies its share of `count` units, with hints L and S. Eight loads go
// before the first store, also at the end: a link is as fast as what is in flight on it.
template <CacheHint L, CacheHint S, typename U>
IRIS_DEVICE inline void CopyUnits(U* dst, const U* src, uint64_t count, uint32_t index,
                                  uint32_t n) {
  constexpr uint64_t kUnroll = 8;
  const Units mine = UnitsOf(count, index, n);
  uint64_t i = mine.first;
  for (; i + (kUnroll - 1) * mine.step < mine.end; i += kUnroll * mine.step) {
    U unit[kUnroll];
    IRIS_UNROLL(8)
    for (uint64_t k = 0; k < kUnroll; ++k) unit[k] = LoadValue<L>(src + i + k * mine.step);
    IRIS_UNROLL(8)
    for (uint64_t k = 0; k < kUnroll; ++k) StoreValue<S>(dst + i + k * mine.step, unit[k]);
  }
  if (i >= mine.end) return;
  U unit[kUnroll] = {};
  IRIS_UNROLL(8)
  for (uint64_t k = 0; k < kUnroll; ++k) {
    if (i + k * mine.step < mine.end) unit[k] = LoadValue<L>(src + i + k * mine.step);
  }
  IRIS_UNROLL(8)
  for (uint64_t k = 0; k < kUnroll; ++k) {
    if (i + k * mine.step < mine.end) StoreValue<S>(dst + i + k * mine.step, unit[k]);
  }
}

// Bytes up to a multiple of sizeof(U), then units, then bytes. Remainders of `dst` and `src` agree.
template <CacheHint L, CacheHint S, typename U>
IRIS_DEVICE inline void CopyPeeled(uint8_t* dst, const uint8_t* src, uint64_t bytes, uint32_t index,
                                   uint32_t n) {
  uint64_t head = (0 - reinterpret_cast<uint64_t>(dst)) & (sizeof(U) - 1);
  if (head > bytes) head = bytes;
  const uint64_t units = (bytes - head) / sizeof(U);
  const uint64_t body = head + units * sizeof(U);
  CopyUnits<L, S>(dst, src, head, index, n);
  CopyUnits<L, S>(reinterpret_cast<U*>(dst + head), reinterpret_cast<const U*>(src + head), units,
                  index, n);
  CopyUnits<L, S>(dst + body, src + body, bytes - body, index, n);
}

template <CacheHint L, CacheHint S, typename Coop>
IRIS_DEVICE inline void CopyBytes(void* dst_bytes, const void* src_bytes, uint64_t bytes,
                                  Coop coop) {
  uint8_t* dst = static_cast<uint8_t*>(dst_bytes);
  const uint8_t* src = static_cast<const uint8_t*>(src_bytes);
  const uint32_t index = CoopIndex(coop);
  const uint32_t n = CoopSize(coop);
  const uint64_t differ = reinterpret_cast<uint64_t>(dst) ^ reinterpret_cast<uint64_t>(src);
  if ((differ & 15) == 0) {
    CopyPeeled<L, S, Bytes16>(dst, src, bytes, index, n);
  } else if ((differ & 7) == 0) {
    CopyPeeled<L, S, uint64_t>(dst, src, bytes, index, n);
  } else if ((differ & 3) == 0) {
    CopyPeeled<L, S, uint32_t>(dst, src, bytes, index, n);
  } else if ((differ & 1) == 0) {
    CopyPeeled<L, S, uint16_t>(dst, src, bytes, index, n);
  } else {
    CopyUnits<L, S>(dst, src, bytes, index, n);
  }
}

// With one hint for both sides.
template <CacheHint H, typename Coop>
IRIS_DEVICE inline void CopyBytes(void* dst, const void* src, uint64_t bytes, Coop coop) {
  CopyBytes<H, H>(dst, src, bytes, coop);
}

// Bytes of so many elements; those of void are bytes.
template <typename T>
IRIS_HOST_DEVICE constexpr uint64_t BytesOf(uint64_t count) {
  if constexpr (std::is_void_v<T>) {
    return count;
  } else {
    static_assert(std::is_trivially_copyable_v<T>, "only plain data can be copied");
    return count * sizeof(T);
  }
}

// Returns the rows with lengths and strides in bytes.
template <typename T>
IRIS_HOST_DEVICE constexpr Strided InBytes(const Strided& rows) {
  return {rows.rows, BytesOf<T>(rows.length), BytesOf<T>(rows.dst_stride),
          BytesOf<T>(rows.src_stride)};
}

// Returns the bytes from the beginning of the first row to the end of the last one.
template <typename T>
IRIS_HOST_DEVICE constexpr uint64_t SpanBytes(const Strided& rows, uint64_t stride) {
  return rows.rows == 0 || rows.length == 0 ? 0
                                            : BytesOf<T>((rows.rows - 1) * stride + rows.length);
}

// Rows that are short: each thread has units of U of any row.
template <CacheHint L, CacheHint S, typename U>
IRIS_DEVICE inline void CopyShortRows(uint8_t* dst, uint64_t dst_stride, const uint8_t* src,
                                      uint64_t src_stride, uint64_t rows, uint64_t row_bytes,
                                      uint32_t index, uint32_t n) {
  const uint64_t units = row_bytes / sizeof(U);
  for (uint64_t i = index; i < rows * units; i += n) {
    const uint64_t row = units == 1 ? i : i / units;
    const uint64_t at = (i - row * units) * sizeof(U);
    StoreValue<S>(reinterpret_cast<U*>(dst + row * dst_stride + at),
                  LoadValue<L>(reinterpret_cast<const U*>(src + row * src_stride + at)));
  }
}

template <CacheHint L, CacheHint S, typename T, typename Coop>
IRIS_DEVICE inline void CopyRows(T* dst_rows, const T* src_rows, const Strided& rows, Coop coop) {
  uint8_t* dst = reinterpret_cast<uint8_t*>(dst_rows);
  const uint8_t* src = reinterpret_cast<const uint8_t*>(src_rows);
  const uint64_t row_bytes = BytesOf<T>(rows.length);
  const uint64_t dst_stride = BytesOf<T>(rows.dst_stride);
  const uint64_t src_stride = BytesOf<T>(rows.src_stride);
  const uint32_t n = CoopSize(coop);
  if (row_bytes >= uint64_t{16} * n) {
    for (uint64_t row = 0; row < rows.rows; ++row) {
      CopyBytes<L, S>(dst + row * dst_stride, src + row * src_stride, row_bytes, coop);
    }
    return;
  }
  if (row_bytes == 0) return;
  const uint32_t index = CoopIndex(coop);
  // The common alignment of all rows.
  const uint64_t all = reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src) |
                       dst_stride | src_stride | row_bytes;
  if ((all & 15) == 0) {
    CopyShortRows<L, S, Bytes16>(dst, dst_stride, src, src_stride, rows.rows, row_bytes, index, n);
  } else if ((all & 7) == 0) {
    CopyShortRows<L, S, uint64_t>(dst, dst_stride, src, src_stride, rows.rows, row_bytes, index, n);
  } else if ((all & 3) == 0) {
    CopyShortRows<L, S, uint32_t>(dst, dst_stride, src, src_stride, rows.rows, row_bytes, index, n);
  } else if ((all & 1) == 0) {
    CopyShortRows<L, S, uint16_t>(dst, dst_stride, src, src_stride, rows.rows, row_bytes, index, n);
  } else {
    CopyShortRows<L, S, uint8_t>(dst, dst_stride, src, src_stride, rows.rows, row_bytes, index, n);
  }
}

// With one hint for both sides.
template <CacheHint H, typename T, typename Coop>
IRIS_DEVICE inline void CopyRows(T* dst, const T* src, const Strided& rows, Coop coop) {
  CopyRows<H, H>(dst, src, rows, coop);
}

}  // namespace iris::impl
