#include "iris/translate.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace iris {
namespace {

DeviceContext ThreeHeaps() {
  DeviceContext ctx;
  ctx.rank = 1;
  ctx.n_ranks = 3;
  ctx.base = 0x400000000000;
  ctx.stride_bytes = 0x10000;
  return ctx;
}

int* Address(uint64_t address) { return reinterpret_cast<int*>(address); }

TEST(ContextTest, TranslateToALaterRankAddsStrides) {
  EXPECT_EQ(Translate(ThreeHeaps(), 2, Address(0x400000010010)), Address(0x400000020010));
}

TEST(ContextTest, TranslateToAnEarlierRankSubtracts) {
  EXPECT_EQ(Translate(ThreeHeaps(), 0, Address(0x400000010010)), Address(0x400000000010));
}

TEST(ContextTest, TranslateToItselfChangesNothing) {
  EXPECT_EQ(Translate(ThreeHeaps(), 1, Address(0x400000010010)), Address(0x400000010010));
}

TEST(ContextTest, TranslateBetweenTwoOthers) {
  EXPECT_EQ(Translate(ThreeHeaps(), 2, 0, Address(0x40000002fffc)), Address(0x40000000fffc));
}

TEST(ContextTest, TranslateThereAndBackIsTheIdentity) {
  DeviceContext ctx = ThreeHeaps();
  ctx.stride_bytes = 3ull << 30;  // no power of two
  int* p = Address(ctx.base + ctx.stride_bytes + 12345 * 4);
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(Translate(ctx, r, 1, Translate(ctx, 1, r, p)), p);
}

TEST(ContextTest, TranslateKeepsConst) {
  const int* p = Address(0x400000010000);
  static_assert(std::is_same_v<decltype(Translate(ThreeHeaps(), 0, p)), const int*>);
  EXPECT_EQ(Translate(ThreeHeaps(), 0, p), Address(0x400000000000));
}

TEST(ContextTest, InHeapCoversExactlyTheOwnHeap) {
  const DeviceContext ctx = ThreeHeaps();
  EXPECT_FALSE(InHeap(ctx, Address(0x40000000ffff)));
  EXPECT_TRUE(InHeap(ctx, Address(0x400000010000)));
  EXPECT_TRUE(InHeap(ctx, Address(0x40000001ffff)));
  EXPECT_FALSE(InHeap(ctx, Address(0x400000020000)));
  EXPECT_FALSE(InHeap(ctx, nullptr));
}

TEST(ContextTest, InHeapOfAPeer) {
  EXPECT_TRUE(InHeapOf(ThreeHeaps(), 2, Address(0x400000020000)));
  EXPECT_FALSE(InHeapOf(ThreeHeaps(), 2, Address(0x400000010000)));
}

TEST(ContextTest, MemberRankIsTheMembersEntry) {
  DeviceTeam team;
  team.size = kMaxTeamRanks;
  for (uint32_t i = 0; i < kMaxTeamRanks; ++i) team.members[i] = static_cast<uint8_t>(i * 37 + 200);
  for (uint32_t i = 0; i < kMaxTeamRanks; ++i) EXPECT_EQ(MemberRank(team, i), team.members[i]) << i;
}

TEST(ContextTest, OffsetAndAddressAreInverse) {
  const DeviceContext ctx = ThreeHeaps();
  EXPECT_EQ(OffsetBytes(ctx, Address(0x400000010123)), 0x123u);
  EXPECT_EQ(AtOffset<int>(ctx, 2, 0x120), Address(0x400000020120));
}

}  // namespace
}  // namespace iris
