#include "iris/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace iris {
namespace {

using Pair = std::pair<int, int>;

Status Refuse(const std::string& why) { return Status(StatusCode::kInvalidArgument, why); }
Status Check(const Pair& pair) {
  return pair.first <= pair.second ? OkStatus() : Refuse("the first is greater");
}
StatusOr<std::unique_ptr<int>> Make(const Pair& pair) {
  IRIS_RETURN_IF_ERROR(Check(pair));
  return std::make_unique<int>(pair.second - pair.first);
}

TEST(StatusTest, SaysWhatItIs) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status(), OkStatus());
  EXPECT_EQ(Status(StatusCode::kOk, "dropped"), OkStatus());
  EXPECT_EQ(OkStatus().message(), "");
  EXPECT_EQ(OkStatus().ToString(), "OK");
  const Status refused = Refuse("too far");
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "too far");
  EXPECT_NE(refused, Refuse("too near"));
  std::ostringstream out;
  out << refused;
  EXPECT_EQ(out.str(), "INVALID_ARGUMENT: too far");
}

TEST(StatusOrTest, HoldsAValueOrAnError) {
  StatusOr<std::string> text("value");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->size(), 5u);
  EXPECT_EQ(*std::move(text), "value");
  const StatusOr<std::string> none(Refuse("none"));
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.value_or("other"), "other");
  EXPECT_EQ(none.status().message(), "none");
  EXPECT_EQ(StatusOr<int>(OkStatus()).status().code(), StatusCode::kInternal);
  EXPECT_DEATH((void)*none, "a StatusOr has no value.*none");
}

// An expression with a comma outside round brackets is one argument, too.
StatusOr<int> Sum(const std::vector<Pair>& pairs) {
  int sum = 0;
  for (const Pair& pair : pairs) {
    IRIS_RETURN_IF_ERROR(Check(Pair{pair.first, pair.second}));
    IRIS_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, Make(Pair{pair.first, pair.second}));
    std::unique_ptr<int> again;
    IRIS_ASSIGN_OR_RETURN(again, Make({pair.first, pair.second}));
    sum += *value + *again;
  }
  return sum;
}

TEST(StatusMacroTest, GivesTheValueOrReturnsTheError) {
  ASSERT_TRUE(Sum({{1, 2}, {3, 7}}).ok());
  EXPECT_EQ(*Sum({{1, 2}, {3, 7}}), 10);
  EXPECT_EQ(Sum({{1, 2}, {3, 1}}).status(), Refuse("the first is greater"));
}

}  // namespace
}  // namespace iris
