// ValueText: any plain value as one line of text, the same for equal values. For comparing, and for
// people who look for the difference. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/job/shared_bytes.h"
#include "server/recording/codec.h"
#include "server/recording/fields.h"

namespace iris::server::recording {

template <Scalar T>
void AppendText(std::string* out, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    absl::StrAppend(out, static_cast<std::underlying_type_t<T>>(value));
  } else {
    absl::StrAppend(out, value);
  }
}
inline void AppendText(std::string* out, const std::string& text) {
  absl::StrAppend(out, "'", absl::CEscape(text), "'");
}
inline void AppendText(std::string* out, const SharedBytes& bytes) {
  absl::StrAppend(out, "'", absl::CEscape(bytes.view()), "'");
}
inline void AppendText(std::string* out, absl::Time time) {
  absl::StrAppend(out, absl::ToUnixNanos(time));
}
inline void AppendText(std::string* out, absl::Duration duration) {
  absl::StrAppend(out, absl::ToInt64Nanoseconds(duration), "ns");
}
inline void AppendText(std::string* out, const absl::Status& status) {
  absl::StrAppend(out, absl::StatusCodeToString(status.code()), " ");
  AppendText(out, std::string(status.message()));
}
template <typename A, typename B>
void AppendText(std::string* out, const std::pair<A, B>& pair);
template <typename T>
void AppendText(std::string* out, const std::vector<T>& all);
template <typename T>
void AppendText(std::string* out, const std::optional<T>& value);
template <typename... T>
void AppendText(std::string* out, const std::variant<T...>& value);
template <typename T>
requires std::is_aggregate_v<T>
void AppendText(std::string* out, const T& value);

template <typename A, typename B>
void AppendText(std::string* out, const std::pair<A, B>& pair) {
  AppendText(out, pair.first);
  absl::StrAppend(out, ":");
  AppendText(out, pair.second);
}
template <typename T>
void AppendText(std::string* out, const std::vector<T>& all) {
  absl::StrAppend(out, "[");
  for (const T& one : all) {
    AppendText(out, one);
    absl::StrAppend(out, " ");
  }
  absl::StrAppend(out, "]");
}
template <typename T>
void AppendText(std::string* out, const std::optional<T>& value) {
  if (value.has_value()) {
    AppendText(out, *value);
  } else {
    absl::StrAppend(out, "none");
  }
}
template <typename... T>
void AppendText(std::string* out, const std::variant<T...>& value) {
  std::visit([out](const auto& one) { AppendText(out, one); }, value);
}
template <typename T>
requires std::is_aggregate_v<T>
void AppendText(std::string* out, const T& value) {
  absl::StrAppend(out, absl::string_view(TypeName<T>().data(), TypeName<T>().size()), "{");
  std::apply(
      [out](const auto&... field) {
        (void)out;  // of a struct without fields
        ((AppendText(out, field), absl::StrAppend(out, " ")), ...);
      },
      Fields(value));
  absl::StrAppend(out, "}");
}

template <typename T>
std::string ValueText(const T& value) {
  std::string out;
  AppendText(&out, value);
  return out;
}

}  // namespace iris::server::recording
