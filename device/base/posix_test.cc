#include "device/base/posix.h"

#include <gtest/gtest.h>

namespace iris::base {
namespace {

TEST(RetryTest, RepeatsOnlyAnInterruptedCall) {
  int calls = 0;
  const int result = Retry([&calls] {
    errno = EINTR;
    return ++calls < 3 ? -1 : 42;
  });
  EXPECT_EQ(result, 42);
  EXPECT_EQ(calls, 3);
}

TEST(RetryTest, KeepsTheErrorOfTheCall) {
  int calls = 0;
  const long result = Retry([&calls]() -> long {
    errno = ++calls == 1 ? EINTR : EBADF;
    return -1;
  });
  EXPECT_EQ(result, -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(calls, 2);
}

TEST(RetryTest, ASuccessIsNotRepeatedWhateverErrnoSays) {
  int calls = 0;
  errno = EINTR;
  EXPECT_EQ(Retry([&calls] { return ++calls; }), 1);
}

}  // namespace
}  // namespace iris::base
