#include "client/ctl/peek.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::ListAllocationsReply SomeAllocations() {
  v1::ListAllocationsReply reply;
  const auto add = [&](const char* name, uint64_t offset_bytes, uint64_t bytes, const char* dtype) {
    v1::Allocation* allocation = reply.add_allocations();
    allocation->set_name(name);
    allocation->set_offset_bytes(offset_bytes);
    allocation->set_bytes(bytes);
    allocation->mutable_tensor()->set_dtype(dtype);
  };
  add("weights", 0x1000, 400, "f32");
  reply.mutable_allocations(0)->mutable_tensor()->add_shape(10);
  reply.mutable_allocations(0)->mutable_tensor()->add_shape(10);
  add("", 0x2000, 100, "");
  add("raw", 0x3000, 100, "");
  add("odd", 0x4000, 100, "complex64");
  add("twice", 0x5000, 8, "u64");
  add("twice", 0x6000, 8, "u64");
  return reply;
}

PeekWish Wish(const std::string& place) {
  PeekWish wish;
  wish.job = "train";
  wish.place = place;
  return wish;
}

std::string ErrorOf(const PeekWish& wish, absl::StatusCode code) {
  const auto plan = PlanPeek(wish, SomeAllocations());
  EXPECT_EQ(plan.status().code(), code);
  return std::string(plan.status().message());
}

TEST(PeekTest, ANumberIsAnOffset) {
  for (const char* place : {"4096", "0x1000", "4KiB"}) {
    EXPECT_FALSE(NamesAllocation(Wish(place)));
    const auto plan = PlanPeek(Wish(place), {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->offset_bytes, 4096u);
    EXPECT_EQ(plan->bytes, 256u);
    EXPECT_EQ(plan->type, nullptr);
  }
}

TEST(PeekTest, WhatARankAllocatedAloneIsThatRanks) {
  v1::ListAllocationsReply reply = SomeAllocations();
  for (const uint32_t rank : {0, 2}) {
    v1::Allocation* own = reply.add_allocations();
    own->set_name("own");
    own->set_offset_bytes(0x7000 + 0x1000 * rank);
    own->set_bytes(8);
    own->set_owner(rank);
  }
  PeekWish wish = Wish("own");
  wish.rank = 2;
  const auto plan = PlanPeek(wish, reply);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->offset_bytes, 0x9000u);
  wish.rank = 1;
  const absl::Status missing = PlanPeek(wish, reply).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("allocated alone by rank 0, rank 2; give that rank"));
}

TEST(PeekTest, AnAllocationIsShownAsItsOwnType) {
  EXPECT_TRUE(NamesAllocation(Wish("weights")));
  const auto plan = PlanPeek(Wish("weights"), SomeAllocations());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_STREQ(plan->type->name, "f32");
  EXPECT_EQ(plan->offset_bytes, 0x1000u);
  EXPECT_EQ(plan->bytes, 64u * 4);
  EXPECT_EQ(plan->what, "f32 10x10, 400 B");
}

TEST(PeekTest, ElementsAreCountedFromThePlace) {
  PeekWish wish = Wish("weights");
  wish.first_element = 90;
  auto plan = PlanPeek(wish, SomeAllocations());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->offset_bytes, 0x1000u + 90 * 4);
  EXPECT_EQ(plan->bytes, 10u * 4);  // what is left
  wish.count = 10;
  EXPECT_TRUE(PlanPeek(wish, SomeAllocations()).ok());
  wish.dtype = "u8";
  wish.count = 3;
  plan = PlanPeek(wish, SomeAllocations());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->offset_bytes, 0x1000u + 90);
  EXPECT_EQ(plan->bytes, 3u);
}

TEST(PeekTest, BeyondTheAllocationIsAnError) {
  PeekWish wish = Wish("weights");
  wish.count = 101;
  EXPECT_EQ(ErrorOf(wish, absl::StatusCode::kInvalidArgument),
            "101 elements from number 0 on go beyond allocation 'weights' of 100 elements");
  wish.first_element = 1;
  wish.count = ~uint64_t{0};
  ErrorOf(wish, absl::StatusCode::kInvalidArgument);
  wish.first_element = 100;
  wish.count = 1;
  EXPECT_EQ(ErrorOf(wish, absl::StatusCode::kInvalidArgument),
            "--from 100 is behind allocation 'weights' of 100 elements");
  wish = Wish("0x10");
  wish.dtype = "u64";
  wish.first_element = ~uint64_t{0};
  ErrorOf(wish, absl::StatusCode::kInvalidArgument);
}

TEST(PeekTest, AnAllocationWithoutAKnownTypeIsShownAsBytes) {
  for (const char* name : {"raw", "odd"}) {
    const auto plan = PlanPeek(Wish(name), SomeAllocations());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->type, nullptr);
    EXPECT_EQ(plan->bytes, 100u);
  }
  PeekWish wish = Wish("weights");
  wish.dtype = "hex";
  EXPECT_EQ(PlanPeek(wish, SomeAllocations())->type, nullptr);
  wish.count = 4;
  EXPECT_THAT(ErrorOf(wish, absl::StatusCode::kInvalidArgument), HasSubstr("give --dtype"));
}

TEST(PeekTest, ContradictionsAreErrors) {
  PeekWish wish = Wish("weights");
  wish.bytes = 6;
  EXPECT_EQ(ErrorOf(wish, absl::StatusCode::kInvalidArgument),
            "--bytes 6 is no whole number of f32, which have 4 bytes each");
  wish.bytes = 0;
  EXPECT_EQ(ErrorOf(wish, absl::StatusCode::kInvalidArgument), "nothing to show: 0 elements");
  wish.count = 1;
  EXPECT_THAT(ErrorOf(wish, absl::StatusCode::kInvalidArgument), HasSubstr("give one"));
}

TEST(PeekTest, AMissingNameGetsThoseLikeIt) {
  EXPECT_EQ(ErrorOf(Wish("wieghts"), absl::StatusCode::kNotFound),
            "job 'train' has no allocation named 'wieghts'; did you mean 'weights'?");
  EXPECT_THAT(ErrorOf(Wish("gradients"), absl::StatusCode::kNotFound),
              HasSubstr("; it has 'weights', 'raw', 'odd', 'twice', 'twice': see"));
  EXPECT_THAT(PlanPeek(Wish("x"), {}).status().message(), HasSubstr("none that has a name"));
}

TEST(PeekTest, OfManyNamesAFewAreShown) {
  v1::ListAllocationsReply reply;
  for (int i = 0; i < 100; ++i) reply.add_allocations()->set_name(absl::StrCat("layer", i));
  const auto plan = PlanPeek(Wish("bias"), reply);
  EXPECT_THAT(plan.status().message(), HasSubstr("'layer7' and more"));
  EXPECT_THAT(plan.status().message(), Not(HasSubstr("layer8")));
}

TEST(PeekTest, OfSeveralOfANameOneMustBeChosen) {
  EXPECT_THAT(ErrorOf(Wish("twice"), absl::StatusCode::kFailedPrecondition),
              HasSubstr("by its offset instead: 0x5000, 0x6000"));
}

TEST(PeekTest, TextAndJson) {
  PeekWish wish = Wish("weights");
  wish.rank = 3;
  wish.first_element = 2;
  wish.count = 2;
  const auto plan = PlanPeek(wish, SomeAllocations());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string data("\0\0\x80\x3f\0\0\0\xc0", 8);
  EXPECT_EQ(PeekText(wish, *plan, data),
            "weights of rank 3: f32 10x10, 400 B; f32 2 to 3, at offset 0x1008\n"
            "2   1 -2\n");
  EXPECT_EQ(PeekJson(wish, *plan, data).dump(),
            R"({"job":"train","rank":3,"name":"weights","offset_bytes":4104,"bytes":8,)"
            R"("dtype":"f32","first_element":2,"values":[1.0,-2.0],)"
            R"("data_hex":"0000803f000000c0"})");
  const auto hex = PlanPeek(Wish("16"), {});
  EXPECT_EQ(PeekJson(Wish("16"), *hex, "A").dump(),
            R"({"job":"train","rank":0,"name":"","offset_bytes":16,"bytes":1,)"
            R"("dtype":"hex","data_hex":"41"})");
}

}  // namespace
}  // namespace iris::ctl
