// DType: the type of an element, one word for allocations, collectives, listings and Python. C++17.
#pragma once

#include <cstdint>
#include <type_traits>

namespace iris {

// All can be allocated and moved, and kF32 to kU8 reduced. The numbers are those of the C API.
enum class DType : uint8_t {
  kNone = 0,  // bytes of no type
  kF32 = 1,
  kF64 = 2,
  kF16 = 3,
  kBf16 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
  kI8 = 8,
  kI16 = 9,
  kU16 = 10,
  kU32 = 11,
  kU64 = 12,
  kBool = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
};
inline constexpr uint32_t kDTypeCount = 16;

// Returns the bytes of an element, or 0 for kNone and unknown numbers.
constexpr uint64_t DTypeBytes(DType type) {
  constexpr uint8_t kBytes[] = {0, 4, 8, 2, 2, 4, 8, 1, 1, 2, 2, 4, 8, 1, 1, 1};
  static_assert(sizeof(kBytes) == kDTypeCount);
  const uint32_t number = static_cast<uint32_t>(type);
  return number < kDTypeCount ? kBytes[number] : 0;
}

// Returns "f32", as in listings; "" for kNone, and "unknown" for other numbers.
constexpr const char* DTypeName(DType type) {
  constexpr const char* kNames[] = {"",   "f32", "f64", "f16", "bf16", "i32",  "i64",    "u8",
                                    "i8", "i16", "u16", "u32", "u64",  "bool", "f8e4m3", "f8e5m2"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kDTypeCount);
  const uint32_t number = static_cast<uint32_t>(type);
  return number < kDTypeCount ? kNames[number] : "unknown";
}

struct Half;
struct Bfloat16;

// Returns the DType of a C++ type, const or not; kNone for a type of the program's own.
template <typename T>
constexpr DType DTypeOf() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_same_v<U, Half>) {
    return DType::kF16;
  } else if constexpr (std::is_same_v<U, Bfloat16>) {
    return DType::kBf16;
  } else if constexpr (std::is_floating_point_v<U>) {
    return sizeof(U) == 4 ? DType::kF32 : sizeof(U) == 8 ? DType::kF64 : DType::kNone;
  } else if constexpr (std::is_integral_v<U>) {
    constexpr bool kSigned = std::is_signed_v<U>;
    switch (sizeof(U)) {
      case 1:
        return kSigned && !std::is_same_v<U, char> ? DType::kI8 : DType::kU8;
      case 2:
        return kSigned ? DType::kI16 : DType::kU16;
      case 4:
        return kSigned ? DType::kI32 : DType::kU32;
      default:
        return kSigned ? DType::kI64 : DType::kU64;
    }
  } else {
    return DType::kNone;
  }
}

}  // namespace iris
