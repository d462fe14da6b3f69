// The search for torn lines: what it counts, and what it refuses.
#include "iris/collective/whole_lines.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

// All members write, and when all have come to the end, all read.
ccl::LinesSeen WriteThenRead(Rank& rank, bool tears) {
  const uint64_t bytes = ccl::LineSearchBytes(rank.n());
  ccl::LineSearch search;
  search.context = rank.ctx;
  search.team = rank.ctx.world;
  search.area = rank.New<uint8_t>(bytes);
  search.tears = tears;
  search.reads = false;
  rank.HostBarrier();
  const Result wrote = ccl::SearchTornLines(search, rank.stream);
  EXPECT_TRUE(wrote.ok()) << wrote.what;
  rank.Synchronize();
  rank.HostBarrier();
  search.reads = true;
  search.writes = false;
  const Result read = ccl::SearchTornLines(search, rank.stream);
  EXPECT_TRUE(read.ok()) << read.what;
  return rank.Read(static_cast<const ccl::LinesSeen*>(search.area));
}

TEST(WholeLinesTest, LinesThatLieStillAreWhole) {
  World(3, 8 << 20).Run([](Rank& rank) {
    const ccl::LinesSeen seen = WriteThenRead(rank, /*tears=*/false);
    EXPECT_GT(seen.written, 0u);
    EXPECT_GT(seen.read, 0u);
    EXPECT_GT(seen.changed, 0u);
    EXPECT_EQ(seen.torn, 0u);
  });
}

TEST(WholeLinesTest, TornLinesAreFound) {
  World(2, 8 << 20).Run([](Rank& rank) {
    const ccl::LinesSeen seen = WriteThenRead(rank, /*tears=*/true);
    EXPECT_GT(seen.read, 0u);
    EXPECT_EQ(seen.torn, seen.read);
  });
}

TEST(WholeLinesTest, RefusesWhatCannotBe) {
  World(2, 8 << 20).Run([](Rank& rank) {
    ccl::LineSearch good;
    good.context = rank.ctx;
    good.team = rank.ctx.world;
    good.area = rank.New<uint8_t>(ccl::LineSearchBytes(rank.n()));
    const auto code = [&](auto change) {
      ccl::LineSearch search = good;
      change(search);
      return ccl::SearchTornLines(search, rank.stream).code;
    };
    const StatusCode invalid = StatusCode::kInvalidArgument;
    EXPECT_EQ(code([](auto& s) { s.area = nullptr; }), invalid);
    EXPECT_EQ(code([](auto& s) { s.area = static_cast<uint8_t*>(s.area) + 8; }), invalid);
    EXPECT_EQ(code([](auto& s) { s.team.size = 1; }), invalid);
    EXPECT_EQ(code([](auto& s) { s.team.index = 2; }), invalid);
    EXPECT_EQ(code([](auto& s) { s.duration_ns = ccl::kMaxLineSearchNs + 1; }), invalid);
    rank.HostBarrier();
  });
}

}  // namespace
}  // namespace iris::conformance
