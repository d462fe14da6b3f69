// Shared code of the emulator's tests.
#pragma once

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"
#include "iris/backend/select.h"

namespace iris::backend {

// ThreadSanitizer makes a thread of a kernel some hundred times dearer: tests that repeat do so
// less often.
#ifdef IRIS_TSAN
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

// Launches on a stream of its own and waits.
template <typename... Params, typename... Args>
void RunKernel(const LaunchConfig& config, void (*kernel)(Params...), Args... args) {
  Stream stream;
  ASSERT_TRUE(Stream::Create(&stream).ok());
  const Result launched = Launch(config, stream, kernel, args...);
  ASSERT_TRUE(launched.ok()) << launched.what;
  const Result finished = stream.Synchronize();
  ASSERT_TRUE(finished.ok()) << finished.what;
}

inline uint32_t CountUp(uint32_t* p) {
  return FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kAcqRel>(p, 1u);
}

}  // namespace iris::backend
