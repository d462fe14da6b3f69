#include "client/membership/heap_ranges.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

namespace iris::internal {
namespace {

std::optional<std::string> Unset(const char*) { return std::nullopt; }
std::optional<std::string> One(const char* variable) {
  return std::string(variable) == "IRIS_CHECK_ACCESS" ? std::optional<std::string>("1")
                                                      : std::nullopt;
}
std::optional<std::string> Zero(const char*) { return "0"; }

// "NAME offset bytes", or "" if none is known.
std::string At(const HeapRanges& ranges, uint32_t rank, uint64_t offset) {
  backend::HeapRange range;
  const backend::HeapMap* const map = ranges.map();
  if (!map->nearest(map, rank, offset, &range)) return "";
  return std::string(range.name) + " " + std::to_string(range.offset_bytes) + " " +
         std::to_string(range.bytes) + (range.internal != 0 ? " internal" : "");
}

TEST(HeapRangesTest, FindsTheOneAroundOrTheNearest) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  EXPECT_EQ(At(ranges, 0, 100), "");
  ranges.Add(1000, 100, "a", {0, 1});
  ranges.Add(2000, 50, "b", {0, 1});
  EXPECT_EQ(At(ranges, 0, 0), "a 1000 100");
  EXPECT_EQ(At(ranges, 0, 1000), "a 1000 100");
  EXPECT_EQ(At(ranges, 1, 1099), "a 1000 100");
  EXPECT_EQ(At(ranges, 1, 1500), "a 1000 100");
  EXPECT_EQ(At(ranges, 1, 1600), "b 2000 50");
  EXPECT_EQ(At(ranges, 1, 2049), "b 2000 50");
  EXPECT_EQ(At(ranges, 1, 1u << 30), "b 2000 50");
}

TEST(HeapRangesTest, KnowsWhoseHeapsTheyAreIn) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  ranges.Add(0, 64, "zero", {0});
  ranges.Add(64, 64, "one", {1});
  ranges.Add(128, 64, "the barrier area of team 1", {0, 63}, /*internal=*/true);
  EXPECT_EQ(At(ranges, 0, 64), "zero 0 64");
  EXPECT_EQ(At(ranges, 1, 0), "one 64 64");
  EXPECT_EQ(At(ranges, 63, 130), "the barrier area of team 1 128 64 internal");
  EXPECT_EQ(At(ranges, 2, 64), "");
  EXPECT_EQ(At(ranges, 64, 64), "");
}

TEST(HeapRangesTest, KnowsHowMuchOfTheHeapsIsMapped) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  const auto mapped = [&](uint64_t offset, uint64_t bytes) {
    return ranges.map()->mapped(ranges.map(), 0, offset, bytes);
  };
  EXPECT_TRUE(mapped(5000, 1));  // nobody can say
  HeapSize heap;
  heap.AtLeast(1000);
  ranges.Follow(&heap);
  EXPECT_TRUE(mapped(0, 1000));
  EXPECT_TRUE(mapped(999, 1));
  EXPECT_FALSE(mapped(999, 2));
  EXPECT_FALSE(mapped(1, ~uint64_t{0}));
  heap.AtLeast(2000);
  EXPECT_TRUE(mapped(999, 1001));
  // Registered above it.
  ranges.Add(5000, 100, "registered", {0});
  EXPECT_TRUE(mapped(5000, 100));
  EXPECT_TRUE(mapped(5050, 50));
  EXPECT_FALSE(mapped(5050, 51));
  EXPECT_FALSE(mapped(4999, 2));
  EXPECT_FALSE(mapped(6000, 1));
  ranges.End();
  EXPECT_TRUE(mapped(6000, 1));
}

TEST(HeapRangesTest, KnowsNothingAfterTheEnd) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  ranges.Add(0, 64, "first", {0});
  ranges.End();
  EXPECT_EQ(At(ranges, 0, 0), "");
}

TEST(HeapRangesTest, ForgetsWhatWasFreedAndUsesItAgain) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  ranges.Add(0, 64, "first", {0});
  std::optional<HeapRanges::Range> removed = ranges.Remove(0);
  EXPECT_FALSE(ranges.Remove(32).has_value());
  EXPECT_EQ(At(ranges, 0, 0), "");
  ranges.Restore(0, std::move(removed));
  ranges.Restore(32, std::nullopt);
  EXPECT_EQ(At(ranges, 0, 40), "first 0 64");
  ranges.Remove(0);
  ranges.Add(0, 32, "second", {0});
  EXPECT_EQ(At(ranges, 0, 40), "second 0 32");
}

TEST(HeapRangesTest, CutsLongNames) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  ranges.Add(0, 64, std::string(200, 'x'), {0});
  EXPECT_EQ(At(ranges, 0, 0), std::string(131, 'x') + " 0 64");
}

TEST(HeapRangesTest, SaysWhoMadeItAndWhetherToCheck) {
  EXPECT_EQ(HeapRanges::Make(&Zero)->map()->allowed, nullptr);
  EXPECT_NE(HeapRanges::Make(&Unset)->map()->allowed, nullptr);
  EXPECT_EQ(HeapRanges::Make(&One)->map()->pid, getpid());
}

// Why the range is refused, as kernels ask; "" if it is not.
std::string Refused(const HeapRanges& ranges, uint32_t rank, uint64_t offset, uint64_t bytes) {
  char why[200] = {};
  const backend::HeapMap* const map = ranges.map();
  const bool allowed = map->allowed(map, rank, offset, bytes, why, sizeof(why));
  EXPECT_EQ(allowed, why[0] == '\0');
  return why;
}

TEST(HeapRangesTest, RefusesWhatNoAllocationOfOthersCanMakeRight) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  ranges.Add(4096, 256, "x", {0, 1});
  ranges.Add(8192, 2048, "", {0, 1});
  ranges.Add(0, 1024, "the barrier area of team 0", {0, 1}, /*internal=*/true);
  for (int again = 0; again < 2; ++again) {  // the second time from memory
    EXPECT_EQ(Refused(ranges, 0, 4096, 256), "");
    EXPECT_EQ(Refused(ranges, 0, 4096, 400), "x has 256 bytes, the call 400");
    EXPECT_EQ(Refused(ranges, 1, 4344, 16), "x has 256 bytes, the call 16 from byte 248 on");
    // The next allocation of anybody begins at 5120.
    EXPECT_EQ(Refused(ranges, 1, 4352, 8), "x has 256 bytes, the call 8 from byte 256 on");
    EXPECT_EQ(Refused(ranges, 1, 5120, 3072), "");
    EXPECT_EQ(Refused(ranges, 1, 5120, 3073),
              "the range begins in no allocation and runs into one");
    EXPECT_EQ(Refused(ranges, 1, 8192, 4096), "the allocation has 2 KiB, the call 4 KiB");
    EXPECT_EQ(Refused(ranges, 0, 8, 8),
              "the range is the barrier area of team 0, which is of Iris itself");
    EXPECT_EQ(Refused(ranges, 2, 4096, 400), "");  // nothing is known of rank 2
    EXPECT_EQ(Refused(ranges, 0, 1 << 20, 1 << 20), "");
    EXPECT_EQ(Refused(ranges, 0, 4096, 0), "");
  }
}

TEST(HeapRangesTest, ForgetsWhatItAllowedWithTheAllocation) {
  HeapRanges& ranges = *HeapRanges::Make(&Unset);
  ranges.Add(4096, 2048, "x", {0});
  EXPECT_EQ(Refused(ranges, 0, 4096, 2048), "");
  ranges.Remove(4096);
  ranges.Add(4096, 256, "y", {0});
  EXPECT_EQ(Refused(ranges, 0, 4096, 2048), "y has 256 bytes, the call 2 KiB");
}

TEST(HeapRangesTest, RefusesAllThatIsNotKnownWhereThatWasAskedFor) {
  HeapRanges& ranges = *HeapRanges::Make(&One);
  ranges.Add(4096, 256, "x", {0});
  EXPECT_EQ(Refused(ranges, 0, 4096, 256), "");
  EXPECT_EQ(Refused(ranges, 0, 4096, 400), "x has 256 bytes, the call 400");
  EXPECT_NE(Refused(ranges, 0, 5120, 8), "");
  EXPECT_NE(Refused(ranges, 1, 4096, 8), "");
}

}  // namespace
}  // namespace iris::internal
