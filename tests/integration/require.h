// What a rank of a test requires: the function that uses these is the rank's main, prints what does
// not hold and returns 1.
#pragma once

#include <iostream>
#include <string>

#include "iris/status.h"

namespace iris::testing {

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}
inline std::string Text(const Status& status) { return status.ToString(); }

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
