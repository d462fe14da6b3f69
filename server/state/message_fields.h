// Tables of fields: a table describes a struct and its message once, for reading and writing.
//
//   IRIS_FIELDS(TeamInfo, state::TeamInfo, id, ranks, (barrier_slot, slot));
//   Write(team, &message);
//   Read(message, &team);
//
// A row is a name that member and field share, or (member, field), or (member, field, ms) for times
// and durations in milliseconds instead of nanoseconds. `member` may be an expression for Write,
// such as info.id or label.name(), and a path for Read.
//
// A field may be a scalar, a text, a message with a table of its own, or a list of these. Its
// member is then a scalar, an enum, an Id, a time or a duration; a text or SharedBytes; a struct,
// an absl::Status or an optional of a struct; or a container. Pure; nothing is checked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "proto/status/code.h"
#include "server/job/ids.h"
#include "server/job/shared_bytes.h"

// Combines the functions that protobuf generates for a field into one function.
#define IRIS_ACCESS(field)                                                 \
  [](auto use, auto& message, auto&&... value) -> decltype(auto) {         \
    if constexpr (use == ::iris::server::FieldUse::kHas) {                 \
      return message.has_##field();                                        \
    } else if constexpr (use == ::iris::server::FieldUse::kGet) {          \
      return message.field();                                              \
    } else if constexpr (use == ::iris::server::FieldUse::kMutable) {      \
      return message.mutable_##field();                                    \
    } else if constexpr (use == ::iris::server::FieldUse::kAdd) {          \
      return message.add_##field(std::forward<decltype(value)>(value)...); \
    } else {                                                               \
      return message.set_##field(std::forward<decltype(value)>(value)...); \
    }                                                                      \
  }

// Use it in namespace iris::server.
#define IRIS_FIELDS(Struct, Message, ...)                                      \
  template <>                                                                  \
  struct FieldsOf<Struct, Message> {                                           \
    static constexpr auto All() { return std::tuple(IRIS_ROWS(__VA_ARGS__)); } \
  }

// Applies IRIS_ROW to each of at most 64 arguments.
#define IRIS_ROWS(...) __VA_OPT__(IRIS_EXPAND(IRIS_ROWS_(__VA_ARGS__)))
#define IRIS_ROWS_(row, ...) IRIS_ROW(row) __VA_OPT__(, IRIS_MORE_ROWS IRIS_PARENS(__VA_ARGS__))
#define IRIS_MORE_ROWS() IRIS_ROWS_
#define IRIS_PARENS ()
#define IRIS_EXPAND(...) IRIS_EXPAND2(IRIS_EXPAND2(IRIS_EXPAND2(IRIS_EXPAND2(__VA_ARGS__))))
#define IRIS_EXPAND2(...) IRIS_EXPAND1(IRIS_EXPAND1(IRIS_EXPAND1(IRIS_EXPAND1(__VA_ARGS__))))
#define IRIS_EXPAND1(...) IRIS_EXPAND0(IRIS_EXPAND0(IRIS_EXPAND0(IRIS_EXPAND0(__VA_ARGS__))))
#define IRIS_EXPAND0(...) __VA_ARGS__

// If the row is in parentheses, IRIS_PAIR_OR expands, and IRIS_OF_PAIR becomes the second argument.
#define IRIS_ROW(row) IRIS_SECOND(IRIS_PAIR_OR row, IRIS_OF_NAME, ~)(row)
#define IRIS_PAIR_OR(...) ~, IRIS_OF_PAIR
#define IRIS_SECOND(...) IRIS_SECOND_(__VA_ARGS__)
#define IRIS_SECOND_(first, second, ...) second
#define IRIS_OF_NAME(name) IRIS_FIELD(name, name)
#define IRIS_OF_PAIR(row) IRIS_FIELD row
#define IRIS_FIELD(member, field, ...)                                                       \
  MakeField<sizeof(#__VA_ARGS__) != 1>([](auto& x) -> decltype(auto) { return (x.member); }, \
                                       IRIS_ACCESS(field))

namespace iris::server {

template <typename Struct, typename Message>
struct FieldsOf;

enum class FieldUse { kHas, kGet, kMutable, kAdd, kSet };
template <FieldUse use>
inline constexpr std::integral_constant<FieldUse, use> kUse;

template <bool ms, typename Member, typename Access>
struct Field {
  static constexpr bool kMs = ms;
  Member member;
  Access access;
};
template <bool ms, typename Member, typename Access>
constexpr Field<ms, Member, Access> MakeField(Member member, Access access) {
  return {member, access};
}

// Returns a request's duration, cut to a year.
inline absl::Duration DurationOfMs(uint64_t ms) {
  constexpr uint64_t kYearMs = 365ull * 24 * 3600 * 1000;
  return absl::Milliseconds(static_cast<int64_t>(std::min(ms, kYearMs)));
}

template <typename T>
inline constexpr bool kIsId = false;
template <typename Tag>
inline constexpr bool kIsId<Id<Tag>> = true;
template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
concept IsMessage = std::is_base_of_v<google::protobuf::MessageLite, T>;
// True for the type of a repeated field.
template <typename T>
concept IsRepeated = !std::is_same_v<T, std::string> && requires {
  typename T::value_type;
};

// The table for entries of a map is that of std::pair<Key, Value>.
template <typename T>
struct Described {
  using Type = T;
};
template <typename Key, typename Value>
struct Described<std::pair<const Key, Value>> {
  using Type = std::pair<Key, Value>;
};

template <bool ms, typename To, typename T>
decltype(auto) ToScalar(const T& value) {
  if constexpr (kIsId<T>) {
    return static_cast<To>(value.value);
  } else if constexpr (std::is_same_v<T, absl::Time>) {
    return static_cast<To>(ms ? absl::ToUnixMillis(value) : absl::ToUnixNanos(value));
  } else if constexpr (std::is_same_v<T, absl::Duration>) {
    return static_cast<To>(ms ? absl::ToInt64Milliseconds(value) : absl::ToInt64Nanoseconds(value));
  } else if constexpr (std::is_same_v<T, SharedBytes>) {
    return std::string(value.view());
  } else if constexpr (std::is_same_v<T, std::string>) {
    return (value);
  } else {
    return static_cast<To>(value);
  }
}

template <bool ms, typename To, typename T>
To OfScalar(const T& value) {
  if constexpr (std::is_same_v<To, absl::Time>) {
    return ms ? absl::FromUnixMillis(value) : absl::FromUnixNanos(value);
  } else if constexpr (std::is_same_v<To, absl::Duration>) {
    if constexpr (ms) return DurationOfMs(value);
    return absl::Nanoseconds(value);
  } else if constexpr (std::is_same_v<To, SharedBytes>) {
    return value.empty() ? SharedBytes() : SharedBytes(value);
  } else if constexpr (kIsId<To>) {
    return To{value};
  } else {
    return static_cast<To>(value);
  }
}

template <typename Struct, typename Message>
void Write(const Struct& from, Message* to);
template <typename Struct, typename Message>
void Read(const Message& from, Struct* to);

template <bool ms, typename T, typename Access, typename Message>
void WriteField(const T& value, Access access, Message* to) {
  using Type = std::decay_t<decltype(access(kUse<FieldUse::kGet>, *to))>;
  if constexpr (kIsOptional<T>) {
    if (value.has_value()) WriteField<ms>(*value, access, to);
  } else if constexpr (std::is_same_v<T, absl::Status>) {
    auto* const status = access(kUse<FieldUse::kMutable>, *to);
    status->set_code(proto::NumberOf(value.code()));
    status->set_text(std::string(value.message()));
  } else if constexpr (IsMessage<Type>) {
    Write(value, access(kUse<FieldUse::kMutable>, *to));
  } else if constexpr (IsRepeated<Type>) {
    for (const auto& one : value) {
      if constexpr (IsMessage<typename Type::value_type>) {
        Write(one, access(kUse<FieldUse::kAdd>, *to));
      } else {
        access(kUse<FieldUse::kAdd>, *to, ToScalar<ms, typename Type::value_type>(one));
      }
    }
  } else {
    access(kUse<FieldUse::kSet>, *to, ToScalar<ms, Type>(value));
  }
}

template <typename T, typename From>
T ReadElement(const From& from) {
  if constexpr (IsMessage<From>) {
    T element{};
    Read(from, &element);
    return element;
  } else {
    return OfScalar<false, T>(from);
  }
}

template <bool ms, typename T, typename Access, typename Message>
void ReadField(const Message& from, Access access, T* value) {
  const auto& got = access(kUse<FieldUse::kGet>, from);
  using Type = std::decay_t<decltype(got)>;
  if constexpr (kIsOptional<T>) {
    if (access(kUse<FieldUse::kHas>, from)) ReadField<ms>(from, access, &value->emplace());
  } else if constexpr (std::is_same_v<T, absl::Status>) {
    *value = absl::Status(proto::CodeOf(got.code()), got.text());
  } else if constexpr (IsMessage<Type>) {
    Read(got, value);
  } else if constexpr (IsRepeated<Type>) {
    for (const auto& one : got) {
      if constexpr (requires { typename T::mapped_type; }) {
        auto [key, mapped] =
            ReadElement<std::pair<typename T::key_type, typename T::mapped_type>>(one);
        (*value)[key] = std::move(mapped);
      } else {
        value->insert(value->end(), ReadElement<typename T::value_type>(one));
      }
    }
  } else {
    *value = OfScalar<ms, T>(got);
  }
}

// Sets the fields of the table, and no others.
template <typename Struct, typename Message>
void Write(const Struct& from, Message* to) {
  std::apply(
      [&](const auto&... field) {
        (WriteField<std::decay_t<decltype(field)>::kMs>(field.member(from), field.access, to), ...);
      },
      FieldsOf<typename Described<Struct>::Type, Message>::All());
}

// Reads the fields of the table. `to` is default-constructed.
template <typename Struct, typename Message>
void Read(const Message& from, Struct* to) {
  std::apply(
      [&](const auto&... field) {
        (ReadField<std::decay_t<decltype(field)>::kMs>(from, field.access, &field.member(*to)),
         ...);
      },
      FieldsOf<Struct, Message>::All());
}

}  // namespace iris::server
