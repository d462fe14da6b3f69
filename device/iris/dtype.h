// DType: the type of an element, one word for allocations, collectives, listings and Python. C++17.
#pragma once

#include <cstdint>
#include <type_traits>

namespace iris {

// All can be allocated and moved. Reductions know kF32 to kU8. The numbers are those of the C API.
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

// Bytes of an element. 0: kNone, and numbers that are no type.
constexpr uint64_t DTypeBytes(DType type) {
  switch (type) {
    case DType::kNone:
      return 0;
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kF16:
    case DType::kBf16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
  }
  return 0;
}

// "f32", as listings show it. "": kNone. "unknown": numbers that are no type.
constexpr const char* DTypeName(DType type) {
  switch (type) {
    case DType::kNone:
      return "";
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kI8:
      return "i8";
    case DType::kI16:
      return "i16";
    case DType::kU16:
      return "u16";
    case DType::kU32:
      return "u32";
    case DType::kU64:
      return "u64";
    case DType::kBool:
      return "bool";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E5M2:
      return "f8e5m2";
  }
  return "unknown";
}

struct Half;
struct Bfloat16;

// The DType of a C++ type; kNone for a type of the program's own. It is of `const T`, too.
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
