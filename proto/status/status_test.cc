#include "proto/status/status.h"

#include <gtest/gtest.h>

namespace iris::proto {
namespace {

TEST(StatusTest, GoesToGrpcAndBack) {
  for (uint32_t number = 0; number <= NumberOf(absl::StatusCode::kUnauthenticated); ++number) {
    const absl::Status status(CodeOf(number), number == 0 ? "" : "text");
    EXPECT_EQ(static_cast<uint32_t>(ToGrpc(status).error_code()), number);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << number;
  }
}

TEST(StatusTest, CutsTheText) {
  EXPECT_EQ(ToGrpc(absl::InternalError("0123456789"), 4).error_message(), "0123");
  EXPECT_EQ(ToGrpc(absl::InternalError("01"), 4).error_message(), "01");
}

TEST(StatusTest, ANumberThatIsNoCodeIsUnknown) {
  EXPECT_EQ(CodeOf(17), absl::StatusCode::kUnknown);
  EXPECT_EQ(CodeOf(~0u), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace iris::proto
