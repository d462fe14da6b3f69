// Codec: converts plain values to bytes and back, to text, and describes the layout of their types.
// Visit lists the parts of a value; an archive processes each part.
//
// Bytes have no names: lengths precede lists, and numbers are little-endian. Only the build that
// wrote the bytes reads them (Replay compares the layout). Pure. Bytes to be read may be hostile.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/status/code.h"
#include "server/job/shared_bytes.h"

namespace iris::server::recording {

static_assert(std::endian::native == std::endian::little);

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

// Returns references to the fields of a plain struct, in order. The compiler counts the fields, so
// a new field needs no change here.
template <typename T>
auto Fields(T& x) {
  constexpr size_t n = internal::CountFields<std::remove_const_t<T>>();
  static_assert(n <= 13, "add a line below");
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
  IRIS_FIELDS_IF(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
#undef IRIS_FIELDS_IF
}

// Returns the name of a type, without its namespaces and template arguments.
template <typename T>
constexpr std::string_view TypeName() {
  std::string_view name = __PRETTY_FUNCTION__;  // "... [with T = iris::server::Reply; ...]"
  name.remove_prefix(name.find("T = ") + 4);
  name = name.substr(0, name.find_first_of(";]<"));
  return name.substr(name.rfind(':') == name.npos ? 0 : name.rfind(':') + 1);
}

template <typename T>
concept Scalar = std::is_integral_v<T> || std::is_enum_v<T>;

template <typename T, template <typename...> class Of>
inline constexpr bool kIs = false;
template <template <typename...> class Of, typename... Parts>
inline constexpr bool kIs<Of<Parts...>, Of> = true;

template <typename T>
struct ElementOf {
  using Type = typename T::value_type;
};
template <typename Key, typename Value>
struct ElementOf<std::map<Key, Value>> {
  using Type = std::pair<Key, Value>;
};

// An archive has
//   kReads             it sets the values
//   kOfTypes           it visits each type once, also where the value is empty
//   Leaf(x)            for scalars and strings, and for what it treats in a way of its own
//   Count(n), Has(b)   length of a list or index of a variant; true if an optional has a value
//   Mark(text)         what people read between the parts
// Visit returns false as soon as Leaf, Count or Has does.
template <typename A, typename T>
bool Visit(A& a, T& x);

// Visits `to(x)` in place of x.
template <typename A, typename T, typename To, typename From>
bool VisitAs(A& a, T& x, To to, From from) {
  auto part = to(x);
  if (!Visit(a, part)) return false;
  if constexpr (A::kReads) x = from(std::move(part));
  return true;
}

template <typename A, typename List>
bool VisitList(A& a, List& list) {
  using Element = typename ElementOf<std::remove_const_t<List>>::Type;
  uint32_t n = static_cast<uint32_t>(list.size());
  if (!a.Count(n)) return false;
  a.Mark("[");
  if constexpr (A::kReads || A::kOfTypes) {
    if constexpr (A::kReads) list.clear();
    for (n = A::kOfTypes ? 1 : n; n > 0; --n) {
      Element element{};
      if (!Visit(a, element)) return false;
      if constexpr (A::kReads) list.insert(list.end(), std::move(element));
    }
  } else {
    for (const auto& element : list) {
      if (!Visit(a, element)) return false;
      a.Mark(" ");
    }
  }
  a.Mark("]");
  return true;
}

template <typename A, typename T>
bool VisitOptional(A& a, T& x) {
  bool has = x.has_value();
  if (!a.Has(has)) return false;
  if constexpr (A::kReads || A::kOfTypes) {
    typename std::remove_const_t<T>::value_type value{};
    if ((has || A::kOfTypes) && !Visit(a, value)) return false;
    if constexpr (A::kReads) x = has ? std::optional(std::move(value)) : std::nullopt;
    return true;
  } else {
    return !has || Visit(a, *x);
  }
}

template <typename A, typename T, size_t... i>
bool VisitVariant(A& a, T& x, std::index_sequence<i...>) {
  uint32_t index = static_cast<uint32_t>(x.index());
  if (!a.Count(index)) return false;
  if constexpr (A::kReads) {
    return ((i == index && Visit(a, x.template emplace<i>())) || ...);
  } else if constexpr (A::kOfTypes) {
    std::tuple<std::variant_alternative_t<i, T>...> all;
    return ((Visit(a, std::get<i>(all)) && (a.Mark("|"), true)) && ...);
  } else {
    return std::visit([&a](const auto& one) { return Visit(a, one); }, x);
  }
}

template <typename A, typename T>
bool Visit(A& a, T& x) {
  using V = std::remove_const_t<T>;
  if constexpr (requires { a.Leaf(x); }) {
    return a.Leaf(x);
  } else if constexpr (std::is_same_v<V, SharedBytes>) {
    return VisitAs(
        a, x, [](const SharedBytes& bytes) { return std::string(bytes.view()); },
        [](std::string bytes) { return SharedBytes(std::move(bytes)); });
  } else if constexpr (std::is_same_v<V, absl::Time>) {
    return VisitAs(a, x, absl::ToUnixNanos, absl::FromUnixNanos);
  } else if constexpr (std::is_same_v<V, absl::Duration>) {
    return VisitAs(a, x, absl::ToInt64Nanoseconds, absl::Nanoseconds<int64_t>);
  } else if constexpr (std::is_same_v<V, absl::Status>) {
    return VisitAs(
        a, x,
        [](const absl::Status& status) {
          return std::pair(proto::NumberOf(status.code()), std::string(status.message()));
        },
        [](const std::pair<uint32_t, std::string>& parts) {
          return absl::Status(proto::CodeOf(parts.first), parts.second);
        });
  } else if constexpr (kIs<V, std::pair>) {
    if (!Visit(a, x.first)) return false;
    a.Mark(":");
    return Visit(a, x.second);
  } else if constexpr (kIs<V, std::vector> || kIs<V, std::map>) {
    return VisitList(a, x);
  } else if constexpr (kIs<V, std::optional>) {
    return VisitOptional(a, x);
  } else if constexpr (kIs<V, std::variant>) {
    return VisitVariant(a, x, std::make_index_sequence<std::variant_size_v<V>>());
  } else {
    static_assert(std::is_aggregate_v<V>);
    a.Mark(TypeName<V>());
    a.Mark("{");
    const bool all = std::apply(
        [&a](auto&... field) { return ((Visit(a, field) && (a.Mark(" "), true)) && ...); },
        Fields(x));
    a.Mark("}");
    return all;
  }
}

class Encoder {
 public:
  static constexpr bool kReads = false, kOfTypes = false;

  template <typename T>
  void Put(const T& value) {
    Visit(*this, value);
  }
  std::string Take() { return std::move(bytes_); }

  template <Scalar T>
  bool Leaf(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return true;
  }
  bool Leaf(const std::string& text) {
    Leaf(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return true;
  }
  bool Count(uint32_t n) { return Leaf(n); }
  bool Has(bool has) { return Leaf(has); }
  void Mark(std::string_view /*text*/) {}

 private:
  std::string bytes_;
};

class Decoder {
 public:
  static constexpr bool kReads = true, kOfTypes = false;

  explicit Decoder(absl::string_view bytes) : bytes_(bytes) {}

  // Returns false, and leaves the value unspecified, if the bytes end early or are no such value.
  template <typename T>
  bool Get(T* value) {
    return Visit(*this, *value);
  }
  bool done() const { return bytes_.empty(); }

  template <Scalar T>
  bool Leaf(T& value) {
    if (bytes_.size() < sizeof(value)) return false;
    if constexpr (std::is_same_v<T, bool>) {
      if (bytes_[0] != 0 && bytes_[0] != 1) return false;
    }
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return true;
  }
  bool Leaf(std::string& text) {
    uint32_t n;
    if (!Leaf(n) || n > bytes_.size()) return false;
    text = std::string(bytes_.substr(0, n));
    bytes_.remove_prefix(n);
    return true;
  }
  bool Count(uint32_t& n) { return Leaf(n); }
  bool Has(bool& has) { return Leaf(has); }
  void Mark(std::string_view /*text*/) {}

 private:
  absl::string_view bytes_;
};

// Writes one line of text: a value, for comparisons, or, if `of_types`, the layout of its type.
template <bool of_types>
class TextWriter {
 public:
  static constexpr bool kReads = false, kOfTypes = of_types;

  std::string Take() { return std::move(text_); }

  template <Scalar T>
  bool Leaf(const T& value) {
    if constexpr (of_types) {
      return Append(sizeof(value));
    } else if constexpr (std::is_enum_v<T>) {
      return Append(static_cast<std::underlying_type_t<T>>(value));
    } else {
      return Append(value);
    }
  }
  bool Leaf(const std::string& text) { return Append("'", absl::CEscape(text), "'"); }
  bool Leaf(const absl::Duration& time) { return Append(absl::ToInt64Nanoseconds(time), "ns"); }
  bool Leaf(const absl::Status& status) {
    return Append(absl::StatusCodeToString(status.code()), " '", absl::CEscape(status.message()),
                  "'");
  }
  bool Count(uint32_t /*n*/) { return true; }
  bool Has(bool has) { return Append(of_types ? "?" : has ? "" : "none"); }
  void Mark(std::string_view text) { text_.append(text); }

 private:
  template <typename... Parts>
  bool Append(const Parts&... parts) {
    absl::StrAppend(&text_, parts...);
    return true;
  }

  std::string text_;
};

template <typename T>
std::string ValueText(const T& value) {
  TextWriter</*of_types=*/false> writer;
  Visit(writer, value);
  return writer.Take();
}

// Returns a text that is equal for types of one layout.
template <typename T>
std::string LayoutText() {
  TextWriter</*of_types=*/true> writer;
  const T value{};
  Visit(writer, value);
  return writer.Take();
}

}  // namespace iris::server::recording
