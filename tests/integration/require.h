// What a rank of a test requires. It prints what does not hold. The macros then return 1 from the
// function that uses them, which is the rank's main; Require ends the rank.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "iris/status.h"

namespace iris::testing {

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}
inline std::string Text(const Status& status) { return status.ToString(); }

// Whether the message of a status has all of these texts.
inline bool HasTexts(const Status& status, std::initializer_list<std::string_view> texts) {
  return std::all_of(texts.begin(), texts.end(), [&status](std::string_view text) {
    return status.message().find(text) != std::string::npos;
  });
}

// Returns the value of a result that must be OK.
template <typename T>
T Require(StatusOr<T> result, int line = __builtin_LINE()) {
  if (!result.ok()) {
    std::cout << "line " << line << ": " << Text(result.status()) << std::endl;
    std::_Exit(1);
  }
  return *std::move(result);
}

}  // namespace iris::testing

// A condition that must hold.
#define REQUIRE(...)                                                                      \
  do {                                                                                    \
    if (!(__VA_ARGS__)) {                                                                 \
      std::cout << "REQUIRE failed, line " << __LINE__ << ": " #__VA_ARGS__ << std::endl; \
      return 1;                                                                           \
    }                                                                                     \
  } while (false)

// A Status or StatusOr that must be OK.
#define REQUIRE_OK(...)                                                                \
  do {                                                                                 \
    if (const auto& require_ok_result = (__VA_ARGS__); !require_ok_result.ok()) {      \
      std::cout << "line " << __LINE__ << ": "                                         \
                << ::iris::testing::Text(::iris::testing::StatusOf(require_ok_result)) \
                << std::endl;                                                          \
      return 1;                                                                        \
    }                                                                                  \
  } while (false)

// A Status or StatusOr that must have this code, and whose text must have all that follows. The
// text is printed in any case.
#define REQUIRE_FAILS(expression, wanted, ...)                                   \
  do {                                                                           \
    const ::iris::Status require_failed = ::iris::testing::StatusOf(expression); \
    std::cout << ::iris::testing::Text(require_failed) << std::endl;             \
    REQUIRE(require_failed.code() == (wanted));                                  \
    REQUIRE(::iris::testing::HasTexts(require_failed, {__VA_ARGS__}));           \
  } while (false)
