// Norms of sums, against sums in double; norm_cases.h has the bounds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/norm/call_record.h"
#include "iris/norm/impl/fp8.h"
#include "iris/norm/impl/row.h"
#include "iris/norm/norm.h"
#include "iris/trace_area.h"
#include "tests/conformance/norm_cases.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using namespace norm_cases;  // NOLINT(build/namespaces)

struct Dimensions {
  uint64_t rows, hidden;
};
// One number, less than a warp, ragged, fewer rows than members, rows for several blocks, several
// groups of columns, a row for several blocks.
constexpr Dimensions kDimensions[] = {{1, 1},    {1, 64},  {3, 7},    {5, 130}, {2, 1000},
                                      {17, 256}, {9, 515}, {1, 4100}, {2, 7168}};

std::vector<Case> AllCases(uint32_t members, uint32_t slower) {
  std::vector<Case> cases;
  uint32_t i = 0;
  const auto add = [&](Operation operation, Variant variant) {
    for (const DType in : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const bool residual : {false, true}) {
        for (uint32_t scaling = 0; scaling < norm::kScalingCount; ++scaling) {
          const uint32_t choice = Mix(++i);
          if (i % slower != members % slower) continue;
          const bool writes_scales = static_cast<Scaling>(scaling) == Scaling::kPerRow ||
                                     static_cast<Scaling>(scaling) == Scaling::kPerGroup;
          if (variant == Variant::kTwoLines && writes_scales) continue;
          const Dimensions& d = kDimensions[(choice >> 8) % std::size(kDimensions)];
          Case c;
          Problem& p = c.problem;
          p.operation = operation;
          p.rows = d.rows;
          p.hidden = d.hidden;
          p.in = in;
          p.scaling = static_cast<Scaling>(scaling);
          p.out = scaling != 0 ? ((choice & 1) != 0 ? DType::kF8E4M3 : DType::kF8E5M2)
                  : in != DType::kF32 || (choice & 1) != 0
                      ? in
                      : ((choice & 4) != 0 ? DType::kF16 : DType::kBf16);
          constexpr DType kWeights[] = {DType::kNone, DType::kF32, DType::kF16, DType::kBf16};
          p.weight = (choice & 2) != 0 ? in : kWeights[choice >> 2 & 3];
          if (p.weight != DType::kNone && (choice >> 4 & 1) != 0) p.weight_offset = 1;
          p.residual = residual;
          p.variant = variant;
          c.shift = choice >> 5 & 1;
          c.in_place = choice >> 6 & 1;
          c.apart = (choice >> 7 & 1) != 0 && members > 1;
          // Rows that stay aligned to 16 bytes, and such that do not.
          if ((choice >> 21 & 1) != 0) c.gap = (choice >> 22 & 1) != 0 ? 16 : 5;
          c.seed = i;
          // Some is too large for the type.
          if (choice >> 20 & 1) c.scale = p.out == DType::kF8E4M3 ? 0.003f : 0.00002f;
          cases.push_back(c);
        }
      }
    }
  };
  for (const Variant variant :
       {Variant::kPackets, Variant::kLines, Variant::kTwoShot, Variant::kTwoLines}) {
    if (variant == Variant::kPackets || members > 1) add(kAll, variant);
  }
  if (members > 1) add(kSharded, Variant::kTwoLines);
  if (members == 1) {
    add(kAll, Variant::kAlone);
    add(kSharded, Variant::kAlone);
  }
  add(kSharded, Variant::kAuto);
  add(kAll, Variant::kAuto);
  return cases;
}

// So that two-shot kernels go chunk by chunk, and rows are shared out.
ccl::Config TestConfig(const Rank& rank) {
  ccl::Config config = rank.SharedConfig();
  config.stage_bytes = 32 << 10;
  config.line_bytes = 64 << 10;
  config.packet_bytes = 8 << 10;
  return config;
}

class NormTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NormTest, testing::Values(1, 2, 3, 4, 8));

TEST_P(NormTest, AreWhatSumsInDoubleSayAndTheSameOnAllMembers) {
  const uint32_t n = GetParam();
  const std::vector<Case> cases = AllCases(n, kSlower * (n == 8 ? 3 : 2));
  std::vector<std::vector<uint8_t>> first(n);
  World(n, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    uint32_t ran = 0;
    for (const Case& c : cases) {
      Plan plan;
      const Result result = norm::Choose(member.comm, c.problem, &plan);
      if (result.code == StatusCode::kUnimplemented && !backend::Traits::kEmulated) continue;
      EXPECT_TRUE(result.ok()) << Name(c) << ": " << result.what;
      if (!result.ok()) continue;
      ++ran;
      member.Run(c, Name(c));
      const bool right = member.Check(c, Name(c));
      first[rank.rank()] = member.ReadAll(c);
      rank.HostBarrier();
      EXPECT_TRUE(first[rank.rank()] == first[0]) << Name(c) << " on member " << rank.rank();
      rank.HostBarrier();
      if (!right) return rank.HostBarrier();
    }
    EXPECT_GT(ran, 0u);
  });
}

// A variant's sums do not depend on it: r has the same bits in all, and so has what is normed where
// rows are not shared out otherwise.
TEST(NormVariantTest, HaveTheSameSums) {
  World(4, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    constexpr Variant kVariants[] = {Variant::kPackets, Variant::kTwoShot, Variant::kLines,
                                     Variant::kTwoLines};
    std::vector<uint8_t> sums[4];
    for (uint32_t v = 0; v < 4; ++v) {
      Case c;
      c.problem = {kAll, {5, 300, DType::kF32, DType::kF32}};
      c.problem.residual = true;
      c.problem.variant = kVariants[v];
      Plan plan;
      if (!norm::Choose(member.comm, c.problem, &plan).ok()) continue;
      const Norm call = member.Fill(c);
      rank.HostBarrier();
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      rank.HostBarrier();
      sums[v] = rank.Read(static_cast<const uint8_t*>(call.residual_out), 5 * 300 * 4);
    }
    EXPECT_TRUE(sums[0] == sums[1]);
    EXPECT_TRUE(sums[2].empty() || sums[0] == sums[2]);
    EXPECT_TRUE(sums[3].empty() || sums[0] == sums[3]);
  });
}

// More rows than a launch has blocks, so that blocks go through rows by turns, with and without
// several blocks to a row; shares of which the first ones are longer; fewer rows than members; the
// calls compared each time, too; two calls of one stream, so that the second finds what the first
// has left.
TEST(NormTwoLinesTest, GoThroughRowsByTurns) {
  for (const bool check : {false, true}) {
    World(4, kHeapBytes).Run([&](Rank& rank) {
      ccl::Config config = TestConfig(rank);
      config.blocks = 3;
      config.check_calls = check;
      Member member(rank, rank.ctx.world, config);
      constexpr Dimensions kRows[] = {{23, 256}, {7, 515}, {2, 1030}, {9, 2100}, {41, 8}};
      uint32_t i = 0;
      for (const Dimensions& d : kRows) {
        for (const Operation operation : {kAll, kSharded}) {
          Case c;
          c.seed = ++i;
          c.problem = {operation,
                       {d.rows, d.hidden, DType::kBf16, DType::kBf16, DType::kBf16, true}};
          c.problem.variant = Variant::kTwoLines;
          c.shift = i % 3 == 0 ? 1 : 0;
          Plan plan;
          const Result chosen = norm::Choose(member.comm, c.problem, &plan);
          if (chosen.code == StatusCode::kUnimplemented && !backend::Traits::kEmulated) continue;
          ExpectOk(chosen);
          EXPECT_LE(plan.blocks, 3u);
          const Norm call = member.Fill(c);
          rank.HostBarrier();
          for (uint32_t k = 0; k < 2; ++k) {
            ExpectOk(norm::Launch(member.comm, call, rank.stream));
          }
          rank.Synchronize();
          ExpectOk(ccl::CheckError(member.comm));
          (void)member.Check(c, Name(c));
          rank.HostBarrier();
        }
      }
    });
  }
}
TEST(NormTwoLinesTest, RefusesWhatItDoesNotHave) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    Problem p = {kAll, {4, 100, DType::kBf16, DType::kF8E4M3}};
    p.variant = Variant::kTwoLines;
    Plan plan;
    for (const Scaling scaling : {Scaling::kPerRow, Scaling::kPerGroup}) {
      p.scaling = scaling;
      const Result result = norm::Choose(member.comm, p, &plan);
      EXPECT_EQ(result.code, StatusCode::kUnimplemented);
      if (!backend::Traits::kEmulated) continue;
      EXPECT_NE(std::string(result.what).find("two_lines writes no scales"), std::string::npos);
    }
    Comm without = member.comm;
    without.config.without_lines = true;
    p.scaling = Scaling::kStatic;
    const Result result = norm::Choose(without, p, &plan);
    EXPECT_EQ(result.code, StatusCode::kUnimplemented);
    EXPECT_NE(std::string(result.what).find("whole lines"), std::string::npos);
  });
}

// A member alone: what it runs, and what it refuses.
TEST(NormAloneTest, IsPlannedForOneMember) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    DeviceTeam team = rank.NewTeam({0});
    if (rank.rank() == 1) team.index = team.size;
    Member both(rank, rank.ctx.world, TestConfig(rank));
    Member one(rank, team, TestConfig(rank));
    Plan plan;
    Problem p = {kAll, {4, 1000, DType::kBf16, DType::kBf16}};
    p.variant = Variant::kAlone;
    const Result refused = norm::Choose(both.comm, p, &plan);
    EXPECT_EQ(refused.code, StatusCode::kUnimplemented);
    EXPECT_NE(std::string(refused.what).find("a team of one member"), std::string::npos);
    if (rank.rank() == 1) return;
    const auto chosen = [&](Operation operation, uint64_t rows, uint64_t hidden, DType in) {
      Problem problem = {operation, {rows, hidden, in, in}};
      ExpectOk(norm::Choose(one.comm, problem, &plan));
      return plan.variant;
    };
    for (const Operation operation : {kAll, kSharded}) {
      for (const DType in : {DType::kF32, DType::kF16, DType::kBf16}) {
        const uint64_t most = (32 << 10) / DTypeBytes(in);
        for (const uint64_t hidden : {uint64_t{1}, uint64_t{130}, uint64_t{8192}, most}) {
          for (const uint64_t rows : {0, 1, 100, 4096, 1 << 20}) {
            EXPECT_EQ(chosen(operation, rows, hidden, in), Variant::kAlone) << hidden;
            EXPECT_EQ(plan.parts, 1u);
            EXPECT_GE(plan.blocks, 1u);
            EXPECT_LE(plan.blocks, std::max<uint64_t>(rows, 1));
            EXPECT_LE(plan.threads, 1024u);
          }
        }
        // Another variant shares out what a block cannot keep.
        EXPECT_EQ(chosen(operation, 4, most + 1, in), Variant::kPackets);
        EXPECT_GT(plan.parts, 1u);
        Problem longer = {operation, {4, most + 1, in, in}};
        longer.variant = Variant::kAlone;
        const Result result = norm::Choose(one.comm, longer, &plan);
        EXPECT_EQ(result.code, StatusCode::kUnimplemented);
        EXPECT_NE(std::string(result.what).find("32 KiB"), std::string::npos) << result.what;
      }
    }
    // What a Config says holds.
    Comm few = one.comm;
    few.config.blocks = 3;
    few.config.block_threads = 32;
    p = {kAll, {100, 1024, DType::kBf16, DType::kBf16}};
    ExpectOk(norm::Choose(few, p, &plan));
    EXPECT_EQ(plan.variant, Variant::kAlone);
    EXPECT_LE(plan.blocks, 3u);
    EXPECT_LE(plan.threads, ccl::impl::RoundUp(32, backend::WarpSize()));
    p.hidden = 32 * uint64_t{backend::WarpSize()} + 1;
    ExpectOk(norm::Choose(few, p, &plan));
    EXPECT_EQ(plan.variant, Variant::kPackets);
  });
}

// The longest rows, rows of a warp and of a block, more of them than blocks, ragged and apart: r
// has the bits that kPackets makes of it, and both are right.
TEST(NormAloneTest, HasTheSumsOfPackets) {
  World(1, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    constexpr Dimensions kRows[] = {{5, 8192},  {1, 8190},  {40, 1100}, {700, 64},
                                    {300, 129}, {520, 300}, {21, 2048}, {3, 8191}};
    uint32_t i = 0;
    for (const Dimensions& d : kRows) {
      for (const DType in : {DType::kF32, DType::kF16, DType::kBf16}) {
        Case c;
        c.seed = ++i;
        c.problem = {kAll, {d.rows, d.hidden, in, in, i % 2 == 0 ? DType::kF32 : in, true}};
        if (i % 4 == 0 || i % 4 == 3) {
          c.problem.scaling = static_cast<Scaling>(1 + i / 3 % 3);
          c.problem.out = i % 8 < 4 ? DType::kF8E4M3 : DType::kF8E5M2;
        }
        c.in_place = i % 3 == 0;
        c.shift = d.hidden % 2;
        std::vector<uint8_t> sums[2];
        for (const Variant variant : {Variant::kPackets, Variant::kAlone}) {
          c.problem.variant = variant;
          const Norm call = member.Fill(c);
          ExpectOk(norm::Launch(member.comm, call, rank.stream));
          rank.Synchronize();
          ExpectOk(ccl::CheckError(member.comm));
          EXPECT_TRUE(member.Check(c, Name(c)));
          sums[variant == Variant::kAlone] = rank.Read(
              static_cast<const uint8_t*>(call.residual_out), d.rows * d.hidden * DTypeBytes(in));
        }
        EXPECT_TRUE(sums[0] == sums[1]) << Name(c);
      }
    }
  });
}

// Back to back, each on what the one before wrote, with collectives of the Comm among them.
TEST(NormAloneTest, FollowEachOther) {
  for (const bool early : {false, true}) {
    World(1, kHeapBytes).Run([&](Rank& rank) {
      ccl::Config config = TestConfig(rank);
      config.early = early;
      Member member(rank, rank.ctx.world, config);
      for (const uint64_t rows : {1, 3, 200}) {
        Case c;
        c.problem = {kAll, {rows, 200, DType::kF32, DType::kF32, DType::kNone, true}};
        Norm call = member.Fill(c);
        std::vector<float> ones(rows * 200, 1.0f);
        rank.Write(static_cast<float*>(const_cast<void*>(call.in)), ones);
        rank.Write(static_cast<float*>(const_cast<void*>(call.residual)), ones);
        call.residual_out = const_cast<void*>(call.residual);
        const auto* const words =
            iris::AtOffset<uint32_t>(rank.ctx, rank.rank(), member.comm.workspace_offset_bytes);
        const uint32_t before = rank.Read(words, 2)[1];
        constexpr uint32_t kCalls = 12;
        for (uint32_t k = 0; k < kCalls; ++k) {
          call.problem.variant = k % 4 == 3 ? Variant::kPackets : Variant::kAuto;
          ExpectOk(norm::Launch(member.comm, call, rank.stream));
        }
        rank.Synchronize();
        ExpectOk(ccl::CheckError(member.comm));
        const auto sums = rank.Read(static_cast<const float*>(call.residual_out), rows * 200);
        const auto out = rank.Read(static_cast<const float*>(call.out), rows * 200);
        for (uint64_t k = 0; k < rows * 200; ++k) {
          ASSERT_EQ(sums[k], 1.0f + kCalls) << k;
          ASSERT_NEAR(out[k], 1.0f, 1e-5f) << k;
        }
        EXPECT_EQ(rank.Read(words, 2)[1], before + kCalls);
      }
    });
  }
}

// A trace has an event of each block, of the same operation of the Comm.
TEST(NormAloneTest, EachBlockIsTraced) {
  World(1, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    constexpr uint32_t kCapacity = 64;
    auto* const area = reinterpret_cast<TraceArea*>(
        rank.New<uint64_t>(TraceAreaBytes(kCapacity) / sizeof(uint64_t), 4096));
    TraceArea header = {};
    header.until_ns = ~uint64_t{0};
    header.generation = 3;
    header.capacity = kCapacity;
    rank.Write(area, header);
    member.comm.context.trace = area;
    Case c;
    c.problem = {kAll, {5, 2000, DType::kF32, DType::kF32}};
    Plan plan;
    ExpectOk(norm::Choose(member.comm, c.problem, &plan));
    EXPECT_EQ(plan.blocks, 5u);
    const Norm call = member.Fill(c);
    for (uint32_t k = 0; k < 3; ++k) ExpectOk(norm::Launch(member.comm, call, rank.stream));
    rank.Synchronize();
    EXPECT_EQ(rank.Read(area).position, 3 * plan.blocks);
    const auto events =
        rank.Read(reinterpret_cast<const TraceEvent*>(area + 1), uint64_t{3} * plan.blocks);
    uint32_t seen[3] = {};
    for (const TraceEvent& event : events) {
      ASSERT_LT(event.number - events[0].number, 3u);
      ASSERT_LT(event.block, 5u);
      seen[event.number - events[0].number] |= 1u << event.block;
      EXPECT_LE(event.start_ns, event.end_ns);
    }
    for (const uint32_t blocks : seen) EXPECT_EQ(blocks, 31u);
  });
}

// A replayed graph does not ask the host: behind a failure nothing is written.
TEST(NormAloneTest, DoesNothingBehindAFailure) {
  World(1, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    auto* const failed =
        iris::AtOffset<uint32_t>(rank.ctx, rank.rank(), member.comm.workspace_offset_bytes);
    for (const bool residual : {false, true}) {
      Case c;
      c.problem = {kAll, {3, 2000, DType::kBf16, DType::kBf16, DType::kNone, residual}};
      const Norm call = member.Fill(c);
      rank.Write(failed, 1u);
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      const std::vector<uint8_t> bytes = rank.Read(static_cast<const uint8_t*>(call.out), 12000);
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == kGuard; }));
      if (residual) {
        const auto sums = rank.Read(static_cast<const uint8_t*>(call.residual_out), 12000);
        EXPECT_TRUE(std::all_of(sums.begin(), sums.end(), [](uint8_t b) { return b == kGuard; }));
      }
      rank.Write(failed, 0u);
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      EXPECT_TRUE(member.Check(c, Name(c)));
    }
  });
}

// What is large becomes the largest number, a NaN stays one, zeros have the scale 1.
void ExpectNoNumbersAndZeros(uint32_t members, std::vector<Variant> variants) {
  World(members, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    for (const Variant variant : variants) {
      Case c;
      c.problem = {kAll, {3, 200, DType::kBf16, DType::kF8E4M3}};
      c.problem.scaling = Scaling::kPerGroup;
      c.problem.variant = variant;
      Norm call = member.Fill(c);
      std::vector<uint16_t> rows(600);
      for (uint32_t j = 0; j < 200; ++j) rows[200 + j] = Bfloat16(j == 150 ? NAN : 1.0f).bits;
      for (uint32_t j = 0; j < 128; ++j) rows[400 + j] = Bfloat16(2.0f).bits;
      rank.Write(static_cast<uint16_t*>(const_cast<void*>(call.in)), rows);
      rank.HostBarrier();
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      const std::vector<uint8_t> out = rank.Read(static_cast<const uint8_t*>(call.out), 600);
      const std::vector<float> scales = rank.Read(static_cast<const float*>(call.scales), 6);
      for (uint32_t j = 0; j < 200; ++j) EXPECT_EQ(out[j], 0u);
      EXPECT_EQ(scales[0], 1.0f);
      EXPECT_EQ(scales[1], 1.0f);
      for (uint32_t j = 0; j < 200; ++j) EXPECT_EQ(out[200 + j], 0x7fu) << j;
      EXPECT_TRUE(std::isnan(scales[2]));
      for (uint32_t j = 0; j < 200; ++j) EXPECT_EQ(out[400 + j], j < 128 ? 0x7eu : 0u) << j;
      EXPECT_EQ(scales[5], 1.0f);
      rank.HostBarrier();
    }
  });
}
TEST(NormVariantTest, KeepsWhatIsNoNumberAndZeros) {
  ExpectNoNumbersAndZeros(2, {Variant::kPackets, Variant::kTwoShot});
  ExpectNoNumbersAndZeros(1, {Variant::kAlone});
}

// Back to back, without the host between them, with collectives of the same Comm among them; more
// rows than blocks; the calls compared each time, too.
// `in` and `out` are columns of one matrix, in turns.
TEST(NormStrideTest, BuffersLieInTheGapsOfOthers) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    constexpr uint64_t kRows = 5, kHidden = 40;
    uint16_t* const both = rank.New<uint16_t>(kRows * 2 * kHidden);
    for (const Variant variant : {Variant::kPackets, Variant::kTwoShot, Variant::kTwoLines}) {
      rank.Write(both, std::vector<uint16_t>(kRows * 2 * kHidden, Bfloat16(3.0f).bits));
      rank.HostBarrier();
      Norm call;
      call.problem = {kAll, {kRows, kHidden, DType::kBf16, DType::kBf16}};
      call.problem.epsilon = 0;
      call.problem.variant = variant;
      Plan plan;
      if (!norm::Choose(member.comm, call.problem, &plan).ok()) continue;
      // The second one begins in the first gap, behind it or before it.
      const bool before = variant == Variant::kTwoShot;
      call.in = both + (before ? kHidden : 0);
      call.out = both + (before ? 0 : kHidden);
      call.in_stride = call.out_stride = 2 * kHidden;
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      const std::vector<uint16_t> got = rank.Read(both, kRows * 2 * kHidden);
      for (uint64_t k = 0; k < got.size(); ++k) {
        const bool is_out = (k / kHidden % 2 == 0) == before;
        ASSERT_EQ(got[k], Bfloat16(is_out ? 1.0f : 3.0f).bits) << k;
      }
      rank.HostBarrier();
    }
  });
}

TEST(NormSequenceTest, FollowEachOtherAndCollectives) {
  for (const bool check : {false, true}) {
    World(3, kHeapBytes).Run([&](Rank& rank) {
      ccl::Config config = TestConfig(rank);
      config.check_calls = check;
      Member member(rank, rank.ctx.world, config);
      float* x = rank.New<float>(1000);
      for (const Variant variant :
           {Variant::kPackets, Variant::kLines, Variant::kTwoShot, Variant::kTwoLines}) {
        Case c;
        c.problem = {kAll, {11, 700, DType::kBf16, DType::kF8E4M3, DType::kBf16, true}};
        c.problem.scaling = variant == Variant::kTwoLines ? Scaling::kStatic : Scaling::kPerRow;
        c.problem.variant = variant;
        Plan plan;
        if (!norm::Choose(member.comm, c.problem, &plan).ok()) continue;
        const Norm call = member.Fill(c);
        rank.HostBarrier();
        for (uint32_t k = 0; k < (kSlower == 1 ? 12 : 4); ++k) {
          ExpectOk(norm::Launch(member.comm, call, rank.stream));
          ExpectOk(ccl::AllReduce(member.comm, x, x, 1000, DType::kF32, ccl::ReduceOp::kSum,
                                  rank.stream));
        }
        rank.Synchronize();
        ExpectOk(ccl::CheckError(member.comm));
        (void)member.Check(c, Name(c));
        rank.HostBarrier();
      }
    });
  }
}

// Of four ranks, three in another order than that of their numbers.
TEST(NormTeamTest, AnyRanksInAnyOrder) {
  World(4, kHeapBytes).Run([&](Rank& rank) {
    DeviceTeam team = rank.NewTeam({3, 0, 2});
    std::vector<Case> cases = AllCases(3, 8 * kSlower);
    if (rank.rank() == 1) team.index = team.size;
    Member member(rank, team, TestConfig(rank));
    for (const Case& c : cases) {
      if (rank.rank() != 1) {
        member.Run(c, Name(c));
        (void)member.Check(c, Name(c));
      } else {
        rank.HostBarrier();
        rank.HostBarrier();
      }
    }
  });
}

TEST(NormGraphTest, ReplaysWithFreshData) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, TestConfig(rank));
    for (const Operation operation : {kAll, kSharded}) {
      Case c;
      c.problem = {operation, {6, 500, DType::kBf16, DType::kF8E4M3, DType::kF32, true}};
      c.problem.scaling = Scaling::kPerGroup;
      const Norm call = member.Fill(c);
      ExpectOk(backend::BeginCapture(rank.stream));
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      backend::Graph graph;
      ExpectOk(backend::EndCapture(rank.stream, &graph));
      for (uint32_t replay = 0; replay < 4; ++replay) {
        c.seed = 100 + replay;
        (void)member.Fill(c);
        rank.HostBarrier();
        ExpectOk(backend::LaunchGraph(graph, rank.stream));
        rank.Synchronize();
        ExpectOk(ccl::CheckError(member.comm));
        (void)member.Check(c, Name(c));
        rank.HostBarrier();
      }
    }
  });
}

TEST(NormFailureTest, NamesTheMemberThatDoesNotCome) {
  for (const Variant variant :
       {Variant::kPackets, Variant::kLines, Variant::kTwoShot, Variant::kTwoLines}) {
    World(3, kHeapBytes).Run([&](Rank& rank) {
      Case c;
      c.problem = {kAll, {4, 2000, DType::kBf16, DType::kBf16, DType::kBf16, true}};
      c.problem.variant = variant;
      ccl::Config config = TestConfig(rank);
      config.timeout_ns = 300ull * 1000 * 1000;
      Member member(rank, rank.ctx.world, config);
      Plan plan;
      if (!norm::Choose(member.comm, c.problem, &plan).ok()) return;
      const Norm call = member.Fill(c);
      rank.HostBarrier();
      if (rank.rank() != 1) {
        ExpectOk(norm::Launch(member.comm, call, rank.stream));
        rank.Synchronize();
        ccl::ErrorInfo info;
        EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kDeadlineExceeded);
        EXPECT_EQ(info.operation, kAll);
        EXPECT_EQ(info.member_index, 1u);
        EXPECT_EQ(norm::Launch(member.comm, call, rank.stream).code,
                  StatusCode::kFailedPrecondition);
      }
      rank.HostBarrier();  // memory that is given back earlier may hold up the launch of another
    });
  }
}

TEST(NormFailureTest, AllMembersAreToldBothCalls) {
  const std::vector<std::function<void(Problem*)>> mistakes = {
      [](Problem* p) { p->rows -= 1; },
      [](Problem* p) { p->hidden -= 1; },
      [](Problem* p) { p->in = p->out = DType::kF16; },
      [](Problem* p) { p->epsilon = 1e-5f; },
      [](Problem* p) { p->weight_offset = 1; },
      [](Problem* p) { p->residual = false; },
      [](Problem* p) {
        p->out = DType::kF8E4M3;
        p->scaling = Scaling::kPerRow;
      },
      [](Problem* p) {
        p->operation = kSharded;
        p->variant = Variant::kAuto;
      },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    std::vector<ccl::Mismatch> told(3);
    Problem good, wrong;
    good = {kAll, {4, 200, DType::kBf16, DType::kBf16, DType::kBf16, true}};
    good.variant = i % 2 == 0 ? Variant::kPackets : Variant::kTwoShot;
    wrong = good;
    mistakes[i](&wrong);
    World(3, kHeapBytes).Run([&](Rank& rank) {
      Case c;
      c.problem = rank.rank() == 2 ? wrong : good;
      Member member(rank, rank.ctx.world, TestConfig(rank));
      const Norm call = member.Fill(c);
      rank.HostBarrier();
      ExpectOk(norm::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kInvalidArgument) << i;
      EXPECT_EQ(info.member_index, 2u);
      told[rank.rank()] = info.mismatch;
    });
    for (const ccl::Mismatch& mismatch : told) {
      EXPECT_EQ(mismatch.most, 3u);
      EXPECT_EQ(mismatch.other, 4u);
      const auto expect = [](const ccl::PackedCall& packed, const Problem& p) {
        const norm::CallRecord call = norm::Unpack(packed);
        EXPECT_EQ(call.problem.operation, p.operation);
        EXPECT_EQ(call.problem.rows, p.rows);
        EXPECT_EQ(call.problem.hidden, p.hidden);
        EXPECT_EQ(call.problem.in, p.in);
        EXPECT_EQ(call.problem.out, p.out);
        EXPECT_EQ(call.problem.weight, p.weight);
        EXPECT_EQ(call.problem.residual, p.residual);
        EXPECT_EQ(call.problem.scaling, p.scaling);
        EXPECT_EQ(call.problem.epsilon, p.epsilon);
        EXPECT_EQ(call.problem.weight_offset, p.weight_offset);
        EXPECT_NE(call.plan.variant, Variant::kAuto);
      };
      expect(mismatch.most_call, good);
      expect(mismatch.other_call, wrong);
    }
  }
}

TEST(NormCheckTest, RefusesBeforeAnythingStarts) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.problem = {kAll, {4, 200, DType::kBf16, DType::kF8E4M3, DType::kBf16, true}};
    c.problem.scaling = Scaling::kPerRow;
    Member member(rank, rank.ctx.world, TestConfig(rank));
    const Norm good = member.Fill(c);
    const auto expect = [&](StatusCode code, const char* text,
                            const std::function<void(Norm*)>& change) {
      Norm call = good;
      change(&call);
      const Result result = norm::Launch(member.comm, call, rank.stream);
      EXPECT_EQ(result.code, code) << text << ": " << result.what;
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    constexpr StatusCode kBad = StatusCode::kInvalidArgument;
    const uint64_t huge = uint64_t{1} << 31;
    expect(kBad, "at least 1", [](Norm* x) { x->problem.hidden = 0; });
    expect(kBad, "2^31 - 1", [&](Norm* x) { x->problem.hidden = huge; });
    expect(kBad, "2^31 - 1", [&](Norm* x) { x->problem.rows = huge; });
    expect(kBad, "2^42", [&](Norm* x) { x->problem.rows = x->problem.hidden = huge - 1; });
    expect(kBad, "type of `in`", [](Norm* x) { x->problem.in = DType::kF64; });
    expect(kBad, "type of `out`", [](Norm* x) { x->problem.out = DType::kF32; });
    expect(kBad, "type of the weight", [](Norm* x) { x->problem.weight = DType::kI32; });
    expect(kBad, "scaling", [](Norm* x) { x->problem.scaling = Scaling::kNone; });
    expect(kBad, "scaling", [](Norm* x) { x->problem.out = DType::kBf16; });
    expect(kBad, "scaling", [](Norm* x) { x->problem.scaling = static_cast<Scaling>(9); });
    expect(kBad, "epsilon", [](Norm* x) { x->problem.epsilon = -1; });
    expect(kBad, "epsilon", [](Norm* x) { x->problem.epsilon = NAN; });
    expect(kBad, "weight_offset", [](Norm* x) { x->problem.weight_offset = INFINITY; });
    expect(kBad, "weight_offset", [](Norm* x) {
      x->problem.weight = DType::kNone;
      x->problem.weight_offset = 1;
    });
    expect(kBad, "variant", [](Norm* x) { x->problem.variant = static_cast<Variant>(9); });
    expect(kBad, "no norm", [](Norm* x) { x->problem.operation = Operation::kAllReduce; });
    expect(kBad, "in is null", [](Norm* x) { x->in = nullptr; });
    expect(kBad, "residual_out is null", [](Norm* x) { x->residual_out = nullptr; });
    expect(kBad, "weight is null", [](Norm* x) { x->weight = nullptr; });
    expect(kBad, "scales are null", [](Norm* x) { x->scales = nullptr; });
    expect(kBad, "in is not aligned",
           [](Norm* x) { x->in = static_cast<const uint8_t*>(x->in) + 1; });
    expect(kBad, "scales are not aligned", [](Norm* x) {
      x->scales = reinterpret_cast<float*>(static_cast<uint8_t*>(x->out) + 2);
    });
    // A buffer that the problem knows nothing of.
    expect(kBad, "a residual is given", [](Norm* x) { x->problem.residual = false; });
    expect(kBad, "a weight is given", [](Norm* x) { x->problem.weight = DType::kNone; });
    expect(kBad, "out overlaps", [](Norm* x) { x->out = const_cast<void*>(x->in); });
    expect(kBad, "residual_out overlaps", [](Norm* x) {
      x->residual_out = static_cast<uint8_t*>(const_cast<void*>(x->residual)) + 2;
    });
    // Each begins in the gap of the other, but reaches into its next row.
    expect(kBad, "out overlaps", [](Norm* x) {
      x->problem.rows = 2;
      x->problem.scaling = Scaling::kNone;
      x->problem.out = x->problem.in;
      x->in_stride = x->out_stride = 500;
      x->out = static_cast<uint8_t*>(const_cast<void*>(x->in)) + 400 * 2;
    });
    expect(kBad, "a stride is hidden", [](Norm* x) { x->in_stride = 199; });
    expect(kBad, "a stride is hidden", [](Norm* x) { x->residual_stride = 1; });
    expect(kBad, "a stride is hidden", [](Norm* x) { x->residual_out_stride = uint64_t{1} << 31; });
    expect(kBad, "a stride is hidden", [](Norm* x) { x->out_stride = ~uint64_t{0}; });
    expect(kBad, "residual_out overlaps", [](Norm* x) {
      x->residual_out = const_cast<void*>(x->residual);
      x->residual_out_stride = 201;
    });
    expect(kBad, "scales overlap",
           [](Norm* x) { x->scales = static_cast<float*>(const_cast<void*>(x->in)); });
    expect(kBad, "workspace", [&](Norm* x) {
      x->weight = iris::AtOffset<void>(rank.ctx, rank.rank(), member.comm.workspace_offset_bytes);
    });
    expect(StatusCode::kUnimplemented, "all_reduce_rms_norm", [](Norm* x) {
      x->problem.operation = kSharded;
      x->problem.variant = Variant::kPackets;
    });
    expect(StatusCode::kResourceExhausted, "stage_bytes",
           [](Norm* x) { x->problem.hidden = 3 << 20; });
    // Zero rows: nothing, whatever the buffers.
    Norm none;
    none.problem = good.problem;
    none.problem.rows = 0;
    ExpectOk(norm::Launch(member.comm, none, rank.stream));
    // None of it has harmed the Comm.
    member.Run(c, "after all that");
    (void)member.Check(c, "after all that");
  });
}

// Each number of fp8 is its own, and what lies between two goes to the nearer one, to the even one
// of two that are as near.
TEST(NormFp8Test, RoundsToNearestAndEven) {
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const uint8_t largest = type == DType::kF8E4M3 ? 0x7e : 0x7b;
    for (uint32_t bits = 0; bits <= largest; ++bits) {
      const float value = DecodeF8(type, static_cast<uint8_t>(bits));
      EXPECT_EQ(norm::impl::Fp8Bits(type, value), bits);
      EXPECT_EQ(norm::impl::Fp8Bits(type, -value), bits | 0x80);
      if (bits == largest) break;
      const float next = DecodeF8(type, static_cast<uint8_t>(bits + 1));
      const float middle = (value + next) / 2;
      EXPECT_EQ(norm::impl::Fp8Bits(type, middle), bits + bits % 2);
      EXPECT_EQ(norm::impl::Fp8Bits(type, std::nextafter(middle, 0.0f)), bits);
      EXPECT_EQ(norm::impl::Fp8Bits(type, std::nextafter(middle, next)), bits + 1);
    }
    EXPECT_EQ(norm::impl::Fp8Bits(type, 1e30f), largest);
    EXPECT_EQ(norm::impl::Fp8Bits(type, -INFINITY), largest | 0x80u);
    EXPECT_EQ(norm::impl::Fp8Bits(type, NAN) & 0x7f, 0x7fu);
  }
}

}  // namespace
}  // namespace iris::conformance
