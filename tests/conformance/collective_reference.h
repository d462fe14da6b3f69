// What collectives have to make of their data, written down without the code under test. For tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"

namespace iris::conformance {

using ccl::ReduceOp;
using ccl::Variant;

inline uint64_t Hash(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

// Any value of a type, the same for the same numbers. Floats: magnitudes that make the order of a
// sum show in its last bits.
template <typename T>
T ValueOf(uint64_t seed, uint64_t i) {
  const uint64_t h = Hash(seed * 1000003 + i + 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(h);  // over the whole range: sums wrap
  } else {
    const double unit = static_cast<double>(h >> 11) / 9007199254740992.0 * 2 - 1;
    const float value = static_cast<float>(unit * static_cast<double>(1 << (h % 7)));
    if constexpr (std::is_same_v<T, double>) {
      return unit * static_cast<double>(1 << (h % 7));
    } else {
      return T(value);
    }
  }
}

template <typename T>
std::vector<T> Data(uint64_t seed, uint64_t count) {
  std::vector<T> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = ValueOf<T>(seed, i);
  return values;
}

// What the contract says, written down without the code under test: in the order of members, narrow
// floats in fp32.
template <typename T>
T Reference(ReduceOp op, const std::vector<T>& values) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    T result = values[0];
    uint64_t wide = static_cast<U>(values[0]);
    for (size_t m = 1; m < values.size(); ++m) {
      wide += static_cast<U>(values[m]);
      if (sums) {
        result = static_cast<T>(static_cast<U>(result) + static_cast<U>(values[m]));
      } else if (op == ReduceOp::kProd) {
        result = static_cast<T>(static_cast<U>(result) * static_cast<U>(values[m]));
      } else if (op == ReduceOp::kMin) {
        result = std::min(result, values[m]);
      } else {
        result = std::max(result, values[m]);
      }
    }
    if (op != ReduceOp::kAvg) return result;
    const int64_t sum = sizeof(T) == 1 ? static_cast<int64_t>(wide) : static_cast<int64_t>(result);
    return static_cast<T>(sum / static_cast<int64_t>(values.size()));
  } else {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    A result = static_cast<A>(values[0]);
    for (size_t m = 1; m < values.size(); ++m) {
      const A value = static_cast<A>(values[m]);
      if (std::isnan(result)) break;
      if (sums) {
        result = result + value;
      } else if (op == ReduceOp::kProd) {
        result = result * value;
      } else if (std::isnan(value)) {
        result = value;
      } else {
        result = op == ReduceOp::kMin ? std::min(result, value) : std::max(result, value);
      }
    }
    if (op == ReduceOp::kAvg) result = result / static_cast<A>(values.size());
    return static_cast<T>(result);
  }
}

template <typename T>
std::vector<T> ReferenceAll(ReduceOp op, const std::vector<uint64_t>& seeds, uint64_t count) {
  std::vector<T> result(count);
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<T> values;
    for (uint64_t seed : seeds) values.push_back(ValueOf<T>(seed, i));
    result[i] = Reference(op, values);
  }
  return result;
}

// The same for a ring of `n` members: slice m begins with member m, and what goes from member to
// member is a T.
template <typename T>
T RingReference(ReduceOp op, std::vector<T> values, uint64_t first) {
  std::rotate(values.begin(), values.begin() + static_cast<int64_t>(first), values.end());
  T so_far = values[0];
  for (size_t m = 1; m + 1 < values.size(); ++m) {
    so_far =
        Reference(op == ReduceOp::kAvg ? ReduceOp::kSum : op, std::vector<T>{so_far, values[m]});
  }
  if (values.size() == 1) return so_far;
  if (op != ReduceOp::kAvg) return Reference(op, std::vector<T>{so_far, values.back()});
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(Reference(ReduceOp::kSum, std::vector<T>{so_far, values.back()}) /
                          static_cast<T>(values.size()));
  } else {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    return static_cast<T>((static_cast<A>(so_far) + static_cast<A>(values.back())) /
                          static_cast<A>(values.size()));
  }
}

// What all_reduce by `variant` makes of the data of `seeds`.
template <typename T>
std::vector<T> ExpectedOf(Variant variant, ReduceOp op, const std::vector<uint64_t>& seeds,
                          uint64_t count) {
  const bool bytes_by_ring = sizeof(T) == 1 && op == ReduceOp::kAvg;
  if (variant != Variant::kRing || bytes_by_ring) return ReferenceAll<T>(op, seeds, count);
  const uint64_t per_16 = 16 / sizeof(T);
  const uint64_t n = seeds.size();
  const uint64_t row = ((count + n - 1) / n + per_16 - 1) / per_16 * per_16;
  std::vector<T> result(count);
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<T> values;
    for (uint64_t seed : seeds) values.push_back(ValueOf<T>(seed, i));
    result[i] = RingReference(op, values, i / row);
  }
  return result;
}

template <typename T>
testing::AssertionResult SameBits(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
      double a;
      double b;
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
        a = static_cast<double>(static_cast<float>(got[i]));
        b = static_cast<double>(static_cast<float>(expected[i]));
      } else {
        a = static_cast<double>(got[i]);
        b = static_cast<double>(expected[i]);
      }
      return testing::AssertionFailure()
             << "element " << i << " of " << got.size() << ": got " << a << ", expected " << b;
    }
  }
  return testing::AssertionSuccess();
}

// Whether sums that went in any order are what those in the order of the members are: within n
// roundings of the largest partial sum. `seeds`: whose data it was.
template <typename T>
testing::AssertionResult Near(ReduceOp op, const std::vector<uint64_t>& seeds,
                              const std::vector<T>& got, const std::vector<T>& expected) {
  if constexpr (std::is_integral_v<T>) {
    return SameBits(got, expected);
  } else {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) return SameBits(got, expected);
    if (got.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
    const auto wide = [](T x) {
      if constexpr (std::is_same_v<T, double>) return x;
      return static_cast<double>(static_cast<float>(x));
    };
    const double sum_epsilon = std::is_same_v<T, double> ? 0x1p-52 : 0x1p-23;
    const double epsilon = std::is_same_v<T, Half>       ? 0x1p-10
                           : std::is_same_v<T, Bfloat16> ? 0x1p-7
                                                         : sum_epsilon;
    for (size_t i = 0; i < got.size(); ++i) {
      if (memcmp(&got[i], &expected[i], sizeof(T)) == 0) continue;  // infinities, too
      double size = op == ReduceOp::kProd ? 1 : 0;
      for (uint64_t seed : seeds) {
        const double x = std::abs(wide(ValueOf<T>(seed, i)));
        size = op == ReduceOp::kProd ? size * x : size + x;
      }
      const double bound = static_cast<double>(seeds.size()) * sum_epsilon * size +
                           epsilon * std::abs(wide(expected[i])) + 0x1p-24;
      if (!(std::abs(wide(got[i]) - wide(expected[i])) <= bound)) {
        return testing::AssertionFailure()
               << "element " << i << ": got " << wide(got[i]) << ", expected " << wide(expected[i]);
      }
    }
    return testing::AssertionSuccess();
  }
}

// Whether `got` is what `variant` has to make of the data of `seeds`.
template <typename T>
testing::AssertionResult Right(Variant variant, ReduceOp op, const std::vector<uint64_t>& seeds,
                               const std::vector<T>& got) {
  const std::vector<T> expected = ExpectedOf<T>(variant, op, seeds, got.size());
  return variant == Variant::kAtomic ? Near(op, seeds, got, expected) : SameBits(got, expected);
}

}  // namespace iris::conformance
