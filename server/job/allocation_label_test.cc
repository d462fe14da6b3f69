#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/job/job.h"

namespace iris::server {
namespace {

void ExpectKept(const std::string& name, const TensorInfo& tensor) {
  AllocationLabel label(name, tensor);
  const AllocationLabel moved = std::move(label);
  EXPECT_EQ(moved.name(), name);
  EXPECT_EQ(moved.tensor(), tensor);
}

TEST(AllocationLabel, KeepsEveryPart) {
  ExpectKept("", {});
  ExpectKept("weights", {});
  ExpectKept("", {"f32", {}});
  ExpectKept("", {"", {~uint64_t{0}}});
  ExpectKept("x", {"bfloat16", {0, 1, 1ull << 63}});
  ExpectKept(std::string(128, '\xff'), {std::string(16, 'd'), std::vector<uint64_t>(16, 7)});
  EXPECT_EQ(AllocationLabel().name(), "");
  EXPECT_EQ(AllocationLabel().tensor(), TensorInfo());
}

TEST(AllocationLabelDeathTest, WhatWasNotCheckedIsABug) {
  EXPECT_DEATH(AllocationLabel(std::string(129, 'n'), {}), "check failed");
  EXPECT_DEATH(AllocationLabel("", {"", std::vector<uint64_t>(17)}), "check failed");
}

}  // namespace
}  // namespace iris::server
