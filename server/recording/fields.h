// Fields: a plain struct as the list of its fields, so that one piece of code writes, reads or
// prints any of them. Pure; everything is known when it is compiled.
//
// A struct that gets a field needs nothing here: its fields are counted by the compiler, and a
// count that were wrong would not compile.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

namespace iris::server::recording {

namespace internal {

// Can be made into a field of any type.
struct AnyField {
  template <typename T>
  operator T() const;  // NOLINT: implicit on purpose; never defined
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

// How many fields T has. Specialised for structs that the compiler cannot count.
template <typename T>
inline constexpr size_t kFieldCount = internal::CountFields<T>();

// References to the fields of `x`, in order.
template <typename T>
auto Fields(T& x) {
  constexpr size_t n = kFieldCount<std::remove_const_t<T>>;
  static_assert(n <= 12, "add a line below");
  if constexpr (n == 0) {
    return std::tie();
  } else if constexpr (n == 1) {
    auto& [a] = x;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = x;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = x;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = x;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = x;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = x;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = x;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, f, g, h] = x;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (n == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = x;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (n == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (n == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  }
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
