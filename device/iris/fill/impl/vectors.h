// Kernels that fill 16 bytes at a time. Random kinds use all words of each Philox block.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/fill/impl/value.h"

namespace iris::fill::impl {

// Units of 16 bytes to fill, from element `first` on, for random kinds a multiple of
// ElementsOfABlock. If `to` is null, the kernel is loaded, and nothing is launched.
struct Vectors {
  void* to = nullptr;
  uint64_t first = 0;
  uint64_t units = 0;
};

// Returns the number of elements that one Philox block makes.
IRIS_HOST_DEVICE constexpr uint32_t ElementsOfABlock(Kind kind, DType type) {
  return 128 / RandomBits(kind, type);
}

inline LaunchConfig ConfigFor(uint64_t units) {
  // A thread of the emulator is expensive, and one is as fast as many.
  constexpr uint32_t kBlock = backend::Traits::kEmulated ? 8 : 256;
  constexpr uint64_t kUnitsEach = backend::Traits::kEmulated ? 512 : 1;
  const uint64_t blocks_max =
      uint64_t{backend::MultiprocessorCount()} * (backend::Traits::kEmulated ? 1 : 16);
  const uint64_t wanted = (units + kBlock * kUnitsEach - 1) / (kBlock * kUnitsEach);
  LaunchConfig config;
  config.grid = static_cast<uint32_t>(wanted < 1 ? 1 : wanted < blocks_max ? wanted : blocks_max);
  config.block = kBlock;
  return config;
}

template <DType kType>
inline constexpr uint32_t kWidth = static_cast<uint32_t>(DTypeBytes(kType));

template <Kind kKind, DType kType>
IRIS_KERNEL void FillVectors(IRIS_PARAM Sequence s, IRIS_PARAM Vectors v) {
  constexpr uint32_t kElements = 16 / kWidth<kType>;
  using W = typename backend::WordOf<kWidth<kType>>::Type;
  const RandomDraw draw = {s.seed, s.call};
  const uint64_t threads = uint64_t{backend::GridSize()} * backend::BlockSize();
  uint64_t unit = uint64_t{backend::BlockIndex()} * backend::BlockSize() + backend::ThreadIndex();
  for (; unit < v.units; unit += threads) {
    const uint64_t begin = v.first + unit * kElements;
    W elements[kElements];
    if constexpr (IsRandom(kKind)) {
      constexpr uint32_t kInBlock = ElementsOfABlock(kKind, kType);
      constexpr uint32_t kBits = RandomBits(kKind, kType);
      constexpr uint32_t kBlocks = (kElements + kInBlock - 1) / kInBlock;
      IRIS_UNROLL(8)
      for (uint32_t b = 0; b < kBlocks; ++b) {
        const PhiloxBlock block = draw.Block(begin / kInBlock + b);
        IRIS_UNROLL(8)
        for (uint32_t k = 0; k < kInBlock; ++k) {
          uint64_t random = block.words[k * kBits / 32];
          if constexpr (kBits == 64) {
            random |= static_cast<uint64_t>(block.words[k * 2 + 1]) << 32;
          } else if constexpr (kBits == 16) {
            random = k % 2 == 0 ? random & 0xffffu : random >> 16;
          }
          const uint32_t at = b * kInBlock + k;
          if constexpr (kKind == Kind::kUniform && kBits == 16) {
            elements[at] = UniformInFloats(s, kType, static_cast<uint32_t>(random));
          } else {
            elements[at] = static_cast<W>(ValueOf(s, kKind, kType, begin + at, random));
          }
        }
      }
    } else {
      IRIS_UNROLL(16)
      for (uint32_t k = 0; k < kElements; ++k) {
        elements[k] = static_cast<W>(ValueOf(s, kKind, kType, begin + k, 0));
      }
    }
    Bytes16 bytes;
    __builtin_memcpy(&bytes, elements, 16);
    backend::Store16<CacheHint::kDefault>(static_cast<char*>(v.to) + unit * 16, bytes);
  }
}

template <Kind kKind, DType kType>
Result LaunchVectors(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  if (v.to == nullptr) return backend::PrepareKernel(FillVectors<kKind, kType>);
  return backend::Launch(ConfigFor(v.units), stream, FillVectors<kKind, kType>, s, v);
}

// Launch the kernel of the sequence's type; integers have one for each width. kUnimplemented if
// elements of the type are filled one by one.
Result FillRange(const Sequence& s, const Vectors& v, backend::Stream& stream);
Result FillUniform(const Sequence& s, const Vectors& v, backend::Stream& stream);
Result FillNormal(const Sequence& s, const Vectors& v, backend::Stream& stream);
Result FillWhole(const Sequence& s, const Vectors& v, backend::Stream& stream);

template <Kind kKind>
Result LaunchFloats(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  switch (s.dtype) {
    case DType::kF32:
      return LaunchVectors<kKind, DType::kF32>(s, v, stream);
    case DType::kF64:
      return LaunchVectors<kKind, DType::kF64>(s, v, stream);
    case DType::kF16:
      return LaunchVectors<kKind, DType::kF16>(s, v, stream);
    case DType::kBf16:
      return LaunchVectors<kKind, DType::kBf16>(s, v, stream);
    default:
      return {StatusCode::kUnimplemented, "no kernel"};
  }
}

template <Kind kKind>
Result LaunchAll(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  if (IsFloat(s.dtype)) return LaunchFloats<kKind>(s, v, stream);
  // Values that are computed as doubles convert differently to i64 and to u64.
  if (s.dtype == DType::kI64) return LaunchVectors<kKind, DType::kI64>(s, v, stream);
  switch (DTypeBytes(s.dtype)) {
    case 1:
      return LaunchVectors<kKind, DType::kU8>(s, v, stream);
    case 2:
      return LaunchVectors<kKind, DType::kU16>(s, v, stream);
    case 4:
      return LaunchVectors<kKind, DType::kU32>(s, v, stream);
    default:
      return LaunchVectors<kKind, DType::kU64>(s, v, stream);
  }
}

}  // namespace iris::fill::impl
