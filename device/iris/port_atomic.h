// Atomics of port_types.h on memory that this CPU maps. For the host.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "iris/port_types.h"

// The conversions of narrow floats need a backend's qualifiers, of which hosts have none.
#ifdef IRIS_HOST_DEVICE
#include "iris/backend/numeric_soft.h"
#else
#define IRIS_HOST_DEVICE
#include "iris/backend/numeric_soft.h"
#undef IRIS_HOST_DEVICE
#endif

namespace iris {

constexpr uint64_t PortTypeBytes(PortType type) {
  switch (type) {
    case PortType::kHalf:
    case PortType::kBfloat16:
      return 2;
    case PortType::kInt32:
    case PortType::kUint32:
    case PortType::kFloat:
      return 4;
    default:
      return 8;
  }
}

// Returns true if there is such an operation on words of this type.
constexpr bool IsPortAtomic(PortAtomic op, PortType type) {
  if (op > PortAtomic::kLoad || type > PortType::kBfloat16) return false;
  if (type == PortType::kHalf || type == PortType::kBfloat16) return op == PortAtomic::kAdd;
  const bool bitwise = op == PortAtomic::kAnd || op == PortAtomic::kOr || op == PortAtomic::kXor;
  return !bitwise || (type != PortType::kFloat && type != PortType::kDouble);
}

namespace impl {

template <typename T>
T ApplyPortAtomic(PortAtomic op, T old, T value) {
  switch (op) {
    case PortAtomic::kMin:
      return value < old ? value : old;
    case PortAtomic::kMax:
      return old < value ? value : old;
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op == PortAtomic::kAdd) return old + value;
    if (op == PortAtomic::kSub) return old - value;
  } else {
    using U = std::make_unsigned_t<T>;
    const U x = static_cast<U>(old), y = static_cast<U>(value);
    if (op == PortAtomic::kAdd) return static_cast<T>(x + y);
    if (op == PortAtomic::kSub) return static_cast<T>(x - y);
    if (op == PortAtomic::kAnd) return static_cast<T>(x & y);
    if (op == PortAtomic::kOr) return static_cast<T>(x | y);
    if (op == PortAtomic::kXor) return static_cast<T>(x ^ y);
  }
  return value;
}

// Replaces the word by update(old), and returns the old value. `update` returns false to keep it.
template <typename W, typename Update>
W UpdatePortWord(void* place, Update update) {
  W* const word = static_cast<W*>(place);
  W old = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  W desired = old;
  while (update(old, &desired) &&
         !__atomic_compare_exchange_n(word, &old, desired, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE)) {
  }
  return old;
}

template <typename T, typename W>
uint64_t DoPortAtomicAs(void* place, PortAtomic op, uint64_t value, uint64_t compare) {
  return UpdatePortWord<W>(place, [=](W old, W* desired) {
    if (op == PortAtomic::kLoad) return false;
    if (op == PortAtomic::kCompareExchange) {
      *desired = static_cast<W>(value);
      return old == static_cast<W>(compare);
    }
    T before, operand;
    const W bits = static_cast<W>(value);
    std::memcpy(&before, &old, sizeof(before));
    std::memcpy(&operand, &bits, sizeof(operand));
    const T after = ApplyPortAtomic(op, before, operand);
    std::memcpy(desired, &after, sizeof(after));
    return true;
  });
}

}  // namespace impl

// Carries out the operation, for which IsPortAtomic is true, on the aligned word at `place`.
// Returns the old value. Operands and result are in the lowest bytes.
inline uint64_t DoPortAtomic(void* place, PortAtomic op, PortType type, uint64_t value,
                             uint64_t compare) {
  switch (type) {
    case PortType::kInt32:
      return impl::DoPortAtomicAs<int32_t, uint32_t>(place, op, value, compare);
    case PortType::kUint32:
      return impl::DoPortAtomicAs<uint32_t, uint32_t>(place, op, value, compare);
    case PortType::kInt64:
      return impl::DoPortAtomicAs<int64_t, uint64_t>(place, op, value, compare);
    case PortType::kUint64:
      return impl::DoPortAtomicAs<uint64_t, uint64_t>(place, op, value, compare);
    case PortType::kFloat:
      return impl::DoPortAtomicAs<float, uint32_t>(place, op, value, compare);
    case PortType::kDouble:
      return impl::DoPortAtomicAs<double, uint64_t>(place, op, value, compare);
    case PortType::kHalf:
      return impl::UpdatePortWord<uint16_t>(place, [=](uint16_t old, uint16_t* desired) {
        *desired = numeric::HalfBitsOf(numeric::FloatOfHalf(old) +
                                       numeric::FloatOfHalf(static_cast<uint16_t>(value)));
        return true;
      });
    case PortType::kBfloat16:
      return impl::UpdatePortWord<uint16_t>(place, [=](uint16_t old, uint16_t* desired) {
        const auto wide = [](uint64_t bits) {
          return numeric::FloatOf(static_cast<uint32_t>(bits) << 16);
        };
        *desired = numeric::BfloatBitsOf(wide(old) + wide(static_cast<uint16_t>(value)));
        return true;
      });
  }
  return 0;
}

}  // namespace iris
