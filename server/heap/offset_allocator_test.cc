#include "server/heap/offset_allocator.h"

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUnit = 1024;

uint64_t MustAllocate(OffsetAllocator& heap, uint64_t bytes, uint64_t alignment = kUnit) {
  const auto offset = heap.Allocate(bytes, alignment);
  EXPECT_TRUE(offset.ok()) << offset.status();
  EXPECT_TRUE(heap.CheckInvariants().ok()) << heap.CheckInvariants();
  return offset.value_or(std::numeric_limits<uint64_t>::max());
}

void MustFree(OffsetAllocator& heap, uint64_t offset) {
  EXPECT_TRUE(heap.Free(offset).ok()) << offset;
  EXPECT_TRUE(heap.CheckInvariants().ok()) << heap.CheckInvariants();
}

TEST(OffsetAllocator, FreshHeapIsOneHole) {
  const OffsetAllocator heap(64 * kUnit);
  EXPECT_EQ(heap.capacity_bytes(), 64 * kUnit);
  EXPECT_EQ(heap.used_bytes(), 0u);
  EXPECT_EQ(heap.free_bytes(), 64 * kUnit);
  EXPECT_EQ(heap.largest_free_bytes(), 64 * kUnit);
  EXPECT_EQ(heap.n_holes(), 1u);
}

TEST(OffsetAllocator, EmptyHeapHasNoHoleAndRefuses) {
  OffsetAllocator heap(0);
  EXPECT_EQ(heap.n_holes(), 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(1, kUnit).status()));
  EXPECT_TRUE(heap.CheckInvariants().ok());
}

TEST(OffsetAllocator, SizesAreRoundedUpToUnits) {
  OffsetAllocator heap(64 * kUnit);
  EXPECT_EQ(MustAllocate(heap, 1), 0u);
  EXPECT_EQ(heap.used_bytes(), kUnit);
  EXPECT_EQ(MustAllocate(heap, kUnit + 1), kUnit);
  EXPECT_EQ(heap.used_bytes(), 3 * kUnit);
}

TEST(OffsetAllocator, SizeZeroHasAnOffsetOfItsOwn) {
  OffsetAllocator heap(64 * kUnit);
  const uint64_t a = MustAllocate(heap, 0);
  const uint64_t b = MustAllocate(heap, 0);
  EXPECT_NE(a, b);
  EXPECT_EQ(heap.used_bytes(), 2 * kUnit);
  MustFree(heap, a);
  MustFree(heap, b);
}

TEST(OffsetAllocator, TakesTheSmallestHoleThatFits) {
  OffsetAllocator heap(64 * kUnit);
  const uint64_t big = MustAllocate(heap, 8 * kUnit);
  MustAllocate(heap, kUnit);
  const uint64_t small = MustAllocate(heap, 3 * kUnit);
  MustAllocate(heap, kUnit);
  MustFree(heap, big);
  MustFree(heap, small);
  EXPECT_EQ(MustAllocate(heap, 2 * kUnit), small);
  EXPECT_EQ(MustAllocate(heap, 4 * kUnit), big);
}

TEST(OffsetAllocator, EqualHolesAreTakenFromTheFront) {
  OffsetAllocator heap(64 * kUnit);
  const uint64_t first = MustAllocate(heap, 2 * kUnit);
  MustAllocate(heap, kUnit);
  const uint64_t second = MustAllocate(heap, 2 * kUnit);
  MustAllocate(heap, kUnit);
  MustFree(heap, second);
  MustFree(heap, first);
  EXPECT_EQ(MustAllocate(heap, 2 * kUnit), first);
}

TEST(OffsetAllocator, AlignsAndKeepsTheGapFree) {
  OffsetAllocator heap(64 * kUnit);
  MustAllocate(heap, kUnit);
  EXPECT_EQ(MustAllocate(heap, kUnit, 16 * kUnit), 16 * kUnit);
  EXPECT_EQ(heap.n_holes(), 2u);
  EXPECT_EQ(MustAllocate(heap, 15 * kUnit), kUnit);  // exactly the gap
}

TEST(OffsetAllocator, AlignmentBelowTheUnitIsTheUnit) {
  OffsetAllocator heap(64 * kUnit);
  MustAllocate(heap, 1, 1);
  EXPECT_EQ(MustAllocate(heap, 1, 8), kUnit);
}

TEST(OffsetAllocator, FindsTheOnlyHoleWhoseAlignedPartFits) {
  OffsetAllocator heap(64 * kUnit);
  // Holes [1, 8) and [16, 22): only the second has four units from a multiple of 16 on.
  MustAllocate(heap, kUnit);
  const uint64_t front = MustAllocate(heap, 7 * kUnit);
  MustAllocate(heap, 8 * kUnit);
  const uint64_t back = MustAllocate(heap, 6 * kUnit);
  MustAllocate(heap, 42 * kUnit);
  MustFree(heap, front);
  MustFree(heap, back);
  EXPECT_EQ(MustAllocate(heap, 4 * kUnit, 16 * kUnit), 16 * kUnit);
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(kUnit, 16 * kUnit).status()));
}

TEST(OffsetAllocator, AlignmentsSeenLaterKnowTheHolesThatWere) {
  OffsetAllocator heap(64 * kUnit);
  const uint64_t a = MustAllocate(heap, 10 * kUnit);
  MustAllocate(heap, kUnit);
  MustFree(heap, a);
  EXPECT_EQ(MustAllocate(heap, 2 * kUnit, 4 * kUnit), 0u);
  EXPECT_EQ(MustAllocate(heap, 2 * kUnit, 8 * kUnit), 8 * kUnit);
}

TEST(OffsetAllocator, RefusesAnAlignmentThatIsNoPowerOfTwo) {
  OffsetAllocator heap(64 * kUnit);
  for (const uint64_t alignment : {uint64_t{0}, uint64_t{3}, uint64_t{1025}, ~uint64_t{0}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(heap.Allocate(1, alignment).status())) << alignment;
  }
  EXPECT_EQ(heap.n_allocations(), 0u);
}

TEST(OffsetAllocator, ExhaustionNamesFreeBytesAndTheLargestHole) {
  OffsetAllocator heap(8 * kUnit);
  const uint64_t a = MustAllocate(heap, 2 * kUnit);
  MustAllocate(heap, kUnit);
  MustFree(heap, a);
  const absl::Status status = heap.Allocate(6 * kUnit, kUnit).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("7 KiB free"));
  EXPECT_THAT(status.message(), HasSubstr("largest hole 5 KiB"));
  EXPECT_EQ(heap.used_bytes(), kUnit);
}

TEST(OffsetAllocator, HugeSizesAndAlignmentsAreRefusedNotWrapped) {
  OffsetAllocator heap(64 * kUnit);
  MustAllocate(heap, 1);
  const uint64_t max = std::numeric_limits<uint64_t>::max();
  for (const uint64_t bytes : {max, max - 1, max - kUnit, max / 2}) {
    EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(bytes, kUnit).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(heap.Allocate(1, uint64_t{1} << 63).status()));
  EXPECT_TRUE(heap.CheckInvariants().ok());
}

TEST(OffsetAllocator, CoalescesWithTheHoleBefore) {
  OffsetAllocator heap(8 * kUnit);
  const uint64_t a = MustAllocate(heap, 2 * kUnit);
  const uint64_t b = MustAllocate(heap, 2 * kUnit);
  MustAllocate(heap, 4 * kUnit);
  MustFree(heap, a);
  MustFree(heap, b);
  EXPECT_EQ(heap.n_holes(), 1u);
  EXPECT_EQ(heap.largest_free_bytes(), 4 * kUnit);
}

TEST(OffsetAllocator, CoalescesWithTheHoleBehind) {
  OffsetAllocator heap(8 * kUnit);
  const uint64_t a = MustAllocate(heap, 2 * kUnit);
  const uint64_t b = MustAllocate(heap, 2 * kUnit);
  MustAllocate(heap, 4 * kUnit);
  MustFree(heap, b);
  MustFree(heap, a);
  EXPECT_EQ(heap.n_holes(), 1u);
}

TEST(OffsetAllocator, CoalescesWithBothNeighbours) {
  OffsetAllocator heap(8 * kUnit);
  const uint64_t a = MustAllocate(heap, 2 * kUnit);
  const uint64_t b = MustAllocate(heap, 2 * kUnit);
  const uint64_t c = MustAllocate(heap, 2 * kUnit);
  MustAllocate(heap, 2 * kUnit);
  MustFree(heap, a);
  MustFree(heap, c);
  EXPECT_EQ(heap.n_holes(), 2u);
  MustFree(heap, b);
  EXPECT_EQ(heap.n_holes(), 1u);
  EXPECT_EQ(heap.largest_free_bytes(), 6 * kUnit);
}

TEST(OffsetAllocator, DoubleFreeIsRefused) {
  OffsetAllocator heap(8 * kUnit);
  const uint64_t a = MustAllocate(heap, kUnit);
  MustFree(heap, a);
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Free(a)));
  EXPECT_EQ(heap.used_bytes(), 0u);
}

TEST(OffsetAllocator, FreeInsideAnAllocationIsRefused) {
  OffsetAllocator heap(8 * kUnit);
  MustAllocate(heap, 4 * kUnit);
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Free(kUnit)));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Free(1)));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Free(~uint64_t{0})));
  EXPECT_EQ(heap.n_allocations(), 1u);
}

TEST(OffsetAllocator, GrowthExtendsTheLastHole) {
  OffsetAllocator heap(8 * kUnit);
  MustAllocate(heap, 6 * kUnit);
  ASSERT_TRUE(heap.Grow(16 * kUnit).ok());
  EXPECT_EQ(heap.n_holes(), 1u);
  EXPECT_EQ(MustAllocate(heap, 10 * kUnit), 6 * kUnit);
}

TEST(OffsetAllocator, GrowthOfAFullHeapMakesAHole) {
  OffsetAllocator heap(8 * kUnit);
  MustAllocate(heap, 8 * kUnit);
  ASSERT_TRUE(heap.Grow(9 * kUnit).ok());
  EXPECT_EQ(MustAllocate(heap, kUnit), 8 * kUnit);
}

TEST(OffsetAllocator, GrowthFromNothing) {
  OffsetAllocator heap(0);
  ASSERT_TRUE(heap.Grow(2 * kUnit).ok());
  EXPECT_EQ(MustAllocate(heap, 2 * kUnit), 0u);
}

TEST(OffsetAllocator, ShrinkingIsRefused) {
  OffsetAllocator heap(8 * kUnit);
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Grow(7 * kUnit)));
  EXPECT_TRUE(heap.Grow(8 * kUnit).ok());
  EXPECT_EQ(heap.capacity_bytes(), 8 * kUnit);
}

TEST(OffsetAllocator, ShortfallIsZeroWhenItFits) {
  const OffsetAllocator heap(8 * kUnit);
  EXPECT_EQ(heap.ShortfallBytes(8 * kUnit, kUnit), 0u);
}

TEST(OffsetAllocator, ShortfallCountsTheFreeTailAndTheAlignment) {
  OffsetAllocator heap(8 * kUnit);
  MustAllocate(heap, 5 * kUnit);
  EXPECT_EQ(heap.ShortfallBytes(4 * kUnit, kUnit), kUnit);
  // From 5 up to 16, then 2 units: 18 in all.
  EXPECT_EQ(heap.ShortfallBytes(2 * kUnit, 16 * kUnit), 10 * kUnit);
  const uint64_t shortfall = heap.ShortfallBytes(2 * kUnit, 16 * kUnit);
  ASSERT_TRUE(heap.Grow(8 * kUnit + shortfall - kUnit).ok());
  EXPECT_FALSE(heap.Allocate(2 * kUnit, 16 * kUnit).ok());
  ASSERT_TRUE(heap.Grow(8 * kUnit + shortfall).ok());
  EXPECT_EQ(MustAllocate(heap, 2 * kUnit, 16 * kUnit), 16 * kUnit);
}

TEST(OffsetAllocator, ShortfallSaturates) {
  OffsetAllocator heap(8 * kUnit);
  MustAllocate(heap, kUnit);
  const uint64_t max = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(heap.ShortfallBytes(max, kUnit), max);
  EXPECT_EQ(heap.ShortfallBytes(max - kUnit, kUnit), max);
  EXPECT_EQ(heap.ShortfallBytes(1, 3), max);
}

TEST(OffsetAllocator, CapacityIsRoundedDownToUnits) {
  OffsetAllocator heap(2 * kUnit + 5);
  EXPECT_EQ(heap.capacity_bytes(), 2 * kUnit);
  MustAllocate(heap, 2 * kUnit);
  EXPECT_FALSE(heap.Allocate(1, 1).ok());
}

TEST(OffsetAllocator, MovesWithItsContents) {
  OffsetAllocator heap(8 * kUnit);
  const uint64_t a = MustAllocate(heap, kUnit);
  OffsetAllocator moved = std::move(heap);
  EXPECT_EQ(moved.n_allocations(), 1u);
  MustFree(moved, a);
}

TEST(OffsetAllocator, MadeAnewItGoesOnTheSame) {
  OffsetAllocator heap(64 * kUnit);
  std::map<uint64_t, uint64_t> sizes;  // by offset
  for (const uint64_t size : {uint64_t{1}, 3 * kUnit, kUnit, 7 * kUnit, 2 * kUnit}) {
    sizes[*heap.Allocate(size, 2 * kUnit)] = size;
  }
  const uint64_t second = std::next(sizes.begin())->first;
  MustFree(heap, second);
  sizes.erase(second);
  OffsetAllocator copy(64 * kUnit);
  for (const auto& [offset, size] : sizes) ASSERT_TRUE(copy.Occupy(offset, size).ok());
  EXPECT_TRUE(copy.CheckInvariants().ok());
  EXPECT_EQ(copy.used_bytes(), heap.used_bytes());
  EXPECT_EQ(copy.n_holes(), heap.n_holes());
  for (const uint64_t size : {2 * kUnit, kUnit, 5 * kUnit, 60 * kUnit}) {
    const auto one = heap.Allocate(size, 4 * kUnit), other = copy.Allocate(size, 4 * kUnit);
    ASSERT_EQ(one.ok(), other.ok());
    EXPECT_EQ(one.value_or(0), other.value_or(0));
  }
}

TEST(OffsetAllocator, OccupyRefusesWhatIsNotFree) {
  OffsetAllocator heap(8 * kUnit);
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(1, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(8 * kUnit, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(7 * kUnit, 2 * kUnit)));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(0, ~uint64_t{0})));
  EXPECT_TRUE(heap.Occupy(2 * kUnit, kUnit).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(2 * kUnit, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(0, 1)));  // out of order
  EXPECT_TRUE(heap.Occupy(3 * kUnit, 5 * kUnit).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(heap.Occupy(8 * kUnit, 1)));
  EXPECT_TRUE(heap.CheckInvariants().ok());
}

TEST(OffsetAllocator, ManyAllocationsFreedLeaveOneHole) {
  OffsetAllocator heap(1000 * kUnit);
  std::vector<uint64_t> offsets;
  for (int i = 0; i < 1000; ++i) offsets.push_back(*heap.Allocate(kUnit, kUnit));
  EXPECT_FALSE(heap.Allocate(1, 1).ok());
  for (size_t i = 0; i < offsets.size(); i += 2) ASSERT_TRUE(heap.Free(offsets[i]).ok());
  EXPECT_EQ(heap.n_holes(), 500u);
  for (size_t i = 1; i < offsets.size(); i += 2) ASSERT_TRUE(heap.Free(offsets[i]).ok());
  EXPECT_EQ(heap.n_holes(), 1u);
  EXPECT_TRUE(heap.CheckInvariants().ok());
}

}  // namespace
}  // namespace iris::server
