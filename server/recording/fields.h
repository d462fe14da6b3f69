// Fields: a plain struct as the list of its fields. The compiler counts them, so a new field needs
// nothing here. Pure.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

namespace iris::server::recording {

namespace internal {

struct AnyField {
  template <typename T>
  operator T() const;  // NOLINT: implicit, to initialize any field; never defined
};

template <typename T, size_t... I>
constexpr bool CanBeMadeOf(std::index_sequence<I...>) {
  return requires { T{((void)I, AnyField())...}; };
}

template <typename T, size_t n = 16>
constexpr size_t CountFields() {
  if constexpr (CanBeMadeOf<T>(std::make_index_sequence<n>())) {
    return n;
  } else {
    static_assert(n > 0, "not a plain struct");
    return CountFields<T, n - 1>();
  }
}

}  // namespace internal

// References to the fields of `x`, in order.
template <typename T>
auto Fields(T& x) {
  constexpr size_t n = internal::CountFields<std::remove_const_t<T>>();
  static_assert(n <= 12, "add a line below");
#define IRIS_FIELDS_IF(count, ...) \
  if constexpr (n == count) {      \
    auto& [__VA_ARGS__] = x;       \
    return std::tie(__VA_ARGS__);  \
  }
  if constexpr (n == 0) return std::tie();
  IRIS_FIELDS_IF(1, a)
  IRIS_FIELDS_IF(2, a, b)
  IRIS_FIELDS_IF(3, a, b, c)
  IRIS_FIELDS_IF(4, a, b, c, d)
  IRIS_FIELDS_IF(5, a, b, c, d, e)
  IRIS_FIELDS_IF(6, a, b, c, d, e, f)
  IRIS_FIELDS_IF(7, a, b, c, d, e, f, g)
  IRIS_FIELDS_IF(8, a, b, c, d, e, f, g, h)
  IRIS_FIELDS_IF(9, a, b, c, d, e, f, g, h, i)
  IRIS_FIELDS_IF(10, a, b, c, d, e, f, g, h, i, j)
  IRIS_FIELDS_IF(11, a, b, c, d, e, f, g, h, i, j, k)
  IRIS_FIELDS_IF(12, a, b, c, d, e, f, g, h, i, j, k, l)
#undef IRIS_FIELDS_IF
}

// The name of a type, without its namespaces and template arguments.
template <typename T>
constexpr std::string_view TypeName() {
  std::string_view name = __PRETTY_FUNCTION__;  // "... [with T = iris::server::Reply; ...]"
  name.remove_prefix(name.find("T = ") + 4);
  name = name.substr(0, name.find_first_of(";]<"));
  return name.substr(name.rfind(':') == name.npos ? 0 : name.rfind(':') + 1);
}

}  // namespace iris::server::recording
