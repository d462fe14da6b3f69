// Codec: plain values as bytes, and back. Field by field, little-endian, lengths before what is
// repeated; no names, so bytes are read by the build that wrote them (Recording checks the Layout).
// Pure. Bytes to be read may be hostile.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/status/code.h"
#include "server/job/shared_bytes.h"
#include "server/recording/fields.h"

namespace iris::server::recording {

static_assert(std::endian::native == std::endian::little);

template <typename T>
concept Scalar = std::is_integral_v<T> || std::is_enum_v<T>;

class Encoder {
 public:
  std::string Take() { return std::move(bytes_); }

  template <Scalar T>
  void Put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void Put(const SharedBytes& bytes) { Put(std::string(bytes.view())); }
  void Put(absl::Time time) { Put(absl::ToUnixNanos(time)); }
  void Put(absl::Duration duration) { Put(absl::ToInt64Nanoseconds(duration)); }
  void Put(const absl::Status& status) {
    Put(static_cast<int32_t>(status.code()));
    Put(std::string(status.message()));
  }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& pair) {
    Put(pair.first);
    Put(pair.second);
  }
  template <typename T>
  void Put(const std::vector<T>& all) {
    PutAll(all);
  }
  template <typename K, typename V>
  void Put(const std::map<K, V>& all) {
    PutAll(all);
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value.has_value()) Put(*value);
  }
  template <typename... T>
  void Put(const std::variant<T...>& value) {
    Put(static_cast<uint32_t>(value.index()));
    std::visit([this](const auto& one) { this->Put(one); }, value);
  }
  template <typename T>
  requires std::is_aggregate_v<T>
  void Put(const T& value) {
    std::apply(
        [this](const auto&... field) {
          (void)this;  // of a struct without fields
          (Put(field), ...);
        },
        Fields(value));
  }

 private:
  template <typename All>
  void PutAll(const All& all) {
    Put(static_cast<uint32_t>(all.size()));
    for (const auto& one : all) Put(one);
  }

  std::string bytes_;
};

// Each Get is false, and the value unspecified, if the bytes end early or are no such value.
class Decoder {
 public:
  explicit Decoder(absl::string_view bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }

  template <Scalar T>
  bool Get(T* value) {
    if (bytes_.size() < sizeof(*value)) return false;
    if constexpr (std::is_same_v<T, bool>) {
      if (bytes_[0] != 0 && bytes_[0] != 1) return false;
    }
    std::memcpy(value, bytes_.data(), sizeof(*value));
    bytes_.remove_prefix(sizeof(*value));
    return true;
  }
  bool Get(std::string* text) {
    uint32_t n;
    if (!Get(&n) || n > bytes_.size()) return false;
    *text = std::string(bytes_.substr(0, n));
    bytes_.remove_prefix(n);
    return true;
  }
  bool Get(SharedBytes* bytes) {
    std::string text;
    if (!Get(&text)) return false;
    *bytes = SharedBytes(std::move(text));
    return true;
  }
  bool Get(absl::Time* time) {
    int64_t ns;
    if (!Get(&ns)) return false;
    *time = absl::FromUnixNanos(ns);
    return true;
  }
  bool Get(absl::Duration* duration) {
    int64_t ns;
    if (!Get(&ns)) return false;
    *duration = absl::Nanoseconds(ns);
    return true;
  }
  bool Get(absl::Status* status) {
    int32_t code;
    std::string text;
    if (!Get(&code) || !Get(&text)) return false;
    *status = absl::Status(proto::CodeOf(static_cast<uint32_t>(code)), text);
    return true;
  }
  template <typename A, typename B>
  bool Get(std::pair<A, B>* pair) {
    return Get(&pair->first) && Get(&pair->second);
  }
  template <typename T>
  bool Get(std::vector<T>* all) {
    uint32_t n;
    if (!Get(&n)) return false;
    all->clear();
    for (; n > 0; --n) {
      if (!Get(&all->emplace_back())) return false;
    }
    return true;
  }
  template <typename K, typename V>
  bool Get(std::map<K, V>* all) {
    uint32_t n;
    if (!Get(&n)) return false;
    all->clear();
    for (; n > 0; --n) {
      std::pair<K, V> entry;
      if (!Get(&entry)) return false;
      all->insert(std::move(entry));
    }
    return true;
  }
  template <typename T>
  bool Get(std::optional<T>* value) {
    bool has;
    if (!Get(&has)) return false;
    value->reset();
    return !has || Get(&value->emplace());
  }
  template <typename... T>
  bool Get(std::variant<T...>* value) {
    uint32_t index;
    return Get(&index) && GetAlternative<0>(value, index);
  }
  template <typename T>
  requires std::is_aggregate_v<T>
  bool Get(T* value) {
    return std::apply(
        [this](auto&... field) {
          (void)this;  // of a struct without fields
          return (Get(&field) && ...);
        },
        Fields(*value));
  }

 private:
  template <size_t i, typename... T>
  bool GetAlternative(std::variant<T...>* value, uint32_t index) {
    if constexpr (i == sizeof...(T)) {
      return false;
    } else {
      return i == index ? Get(&value->template emplace<i>()) : GetAlternative<i + 1>(value, index);
    }
  }

  absl::string_view bytes_;
};

// How a type is laid out in bytes: the same text, the same layout.
template <typename T>
struct Layout {
  static std::string Text() {
    if constexpr (Scalar<T>) {
      return absl::StrCat(sizeof(T));
    } else if constexpr (std::is_aggregate_v<T>) {
      std::string text =
          absl::StrCat(absl::string_view(TypeName<T>().data(), TypeName<T>().size()), "{");
      T* none = nullptr;
      AppendFields(&text, none);
      return text + "}";
    } else {
      return absl::StrCat(absl::string_view(TypeName<T>().data(), TypeName<T>().size()));
    }
  }

 private:
  template <typename S>
  static void AppendFields(std::string* text, S*) {
    using Tuple = decltype(Fields(std::declval<S&>()));
    [text]<typename... F>(std::type_identity<std::tuple<F...>>) {
      (absl::StrAppend(text, Layout<std::remove_reference_t<F>>::Text(), ","), ...);
    }(std::type_identity<Tuple>());
  }
};
template <typename T>
struct Layout<std::vector<T>> {
  static std::string Text() { return absl::StrCat("[", Layout<T>::Text(), "]"); }
};
template <typename T>
struct Layout<std::optional<T>> {
  static std::string Text() { return absl::StrCat(Layout<T>::Text(), "?"); }
};
template <typename A, typename B>
struct Layout<std::pair<A, B>> {
  static std::string Text() { return absl::StrCat(Layout<A>::Text(), "&", Layout<B>::Text()); }
};
template <typename K, typename V>
struct Layout<std::map<K, V>> {
  static std::string Text() { return absl::StrCat("[", Layout<std::pair<K, V>>::Text(), "]"); }
};
template <typename... T>
struct Layout<std::variant<T...>> {
  static std::string Text() {
    std::string text;
    (absl::StrAppend(&text, Layout<T>::Text(), "|"), ...);
    return text;
  }
};

}  // namespace iris::server::recording
