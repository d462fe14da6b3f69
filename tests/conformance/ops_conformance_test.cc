// Products of matrices with their communication, against sums in double. ops_cases.h has the bound.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
#include "iris/backend/persistent_product.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/ops/call_record.h"
#include "iris/ops/impl/layout.h"
#include "iris/ops/ops.h"
#include "iris/ops/variant.h"
#include "iris/translate.h"
#include "tests/conformance/ops_cases.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ops::LaunchPlan;
using ops::Share;
using ops::ShareOf;

// Room for the workspaces of a device's many blocks and of a library.
constexpr uint64_t kHeapBytes = backend::Traits::kEmulated ? 96 << 20 : 1024 << 20;

struct Dimensions {
  uint64_t m, n, k;
};
// Less than a tile, ragged in all directions, several tiles of the emulated devices, fewer rows or
// columns than members, whole tiles.
constexpr Dimensions kDimensions[] = {{1, 1, 1},    {37, 41, 19}, {5, 130, 40},
                                      {133, 3, 70}, {64, 96, 64}, {150, 75, 33}};

// Whether a variant that all devices have has the operation.
bool Has(Variant variant, Operation operation) {
  return variant != Variant::kCopyEngine || operation == Operation::kAllGatherMatmul;
}

std::vector<Case> AllCases(const std::vector<Variant>& variants) {
  std::vector<Case> cases;
  uint32_t i = 0;
  for (const Variant variant : variants) {
    for (const Operation operation : kOperations) {
      if (!Has(variant, operation)) continue;
      for (const DType in : {DType::kF16, DType::kBf16}) {
        for (const DType out : {DType::kF16, DType::kBf16, DType::kF32}) {
          for (const bool bias : {false, true}) {
            for (const Dimensions& d : kDimensions) {
              // Of the others a part: what they are made of has tests of its own.
              if (++i % (variant == Variant::kFused ? kSlower : 4 * kSlower) != 0) continue;
              const uint32_t choice = Mix(i);
              Case c;
              c.problem = {operation, {d.m, d.n, d.k, in, out}};
              constexpr DType kBias[] = {DType::kF16, DType::kBf16, DType::kF32};
              if (bias) c.problem.bias = kBias[choice % 3];
              c.problem.transposed_b = choice >> 4 & 1;
              c.problem.activation = static_cast<Activation>(choice >> 5 & 3);
              c.problem.variant = variant;
              constexpr uint64_t kPads[] = {0, 8, 3};
              c.pad = kPads[(choice >> 8) % 3];
              c.shift = choice >> 11 & 1;
              c.seed = i;
              cases.push_back(c);
            }
          }
        }
      }
    }
  }
  return cases;
}

// All operations by what is chosen for them, and by the copy engine.
std::vector<std::pair<Operation, Variant>> WithCopyEngine() {
  std::vector<std::pair<Operation, Variant>> all;
  for (const Operation operation : kOperations) all.emplace_back(operation, Variant::kAuto);
  all.emplace_back(Operation::kAllGatherMatmul, Variant::kCopyEngine);
  return all;
}

uint64_t BytesFor(const std::vector<Case>& cases, uint32_t members, const ccl::Config& config) {
  uint64_t most = 0;
  for (const Case& c : cases) {
    for (uint32_t m = 0; m < members; ++m) {
      const uint64_t bytes = ops::WorkspaceBytes(members, config, LocalOf(c, members, m).problem);
      EXPECT_NE(bytes, 0u) << Name(c);
      most = bytes > most ? bytes : most;
    }
  }
  return most - ccl::WorkspaceBytes(members, config);
}

ccl::Config SmallConfig() {
  ccl::Config config;
  config.max_blocks = 3;  // so that blocks have several tiles
  config.stage_bytes = 16 << 10;
  return config;
}

class OpsTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OpsTest, testing::Values(1, 2, 3, 4, 8));

TEST_P(OpsTest, AreWhatSumsInDoubleSay) {
  const std::vector<Case> cases = AllCases({Variant::kFused, Variant::kPair, Variant::kCopyEngine});
  World(GetParam(), kHeapBytes).Run([&](Rank& rank) {
    Member member(rank, rank.ctx.world, BytesFor(cases, rank.n(), SmallConfig()), SmallConfig(),
                  true);
    for (const Case& c : cases) {
      member.Run(c, Name(c));
      if (!member.Check(c, member.ReadD(c), Name(c))) return rank.HostBarrier();
    }
  });
}

TEST_P(OpsTest, HaveTheSameBitsOnAllMembersAndAgain) {
  const uint32_t n = GetParam();
  std::vector<std::vector<std::vector<uint8_t>>> first(2 * std::size(kOperations));
  for (auto& each : first) each.resize(n);
  World(n, kHeapBytes).Run([&](Rank& rank) {
    std::vector<Case> cases;
    for (const Operation operation : kOperations) {
      for (const Variant variant : {Variant::kFused, Variant::kPair}) {
        Case c;
        c.problem = {operation, {70, 67, 45, DType::kBf16, DType::kF32}};
        c.problem.variant = variant;
        cases.push_back(c);
      }
    }
    Member member(rank, rank.ctx.world, BytesFor(cases, rank.n(), SmallConfig()), SmallConfig(),
                  true);
    for (size_t i = 0; i < cases.size(); ++i) {
      member.Run(cases[i], Name(cases[i]));
      const std::vector<uint8_t> once = member.ReadD(cases[i]);
      first[i][rank.rank()] = once;
      member.Run(cases[i], Name(cases[i]));
      EXPECT_EQ(member.ReadD(cases[i]), once) << Name(cases[i]);
    }
  });
  for (size_t i = 0; i < first.size(); ++i) {
    if (!ToAll(kOperations[i / 2])) continue;
    for (uint32_t m = 1; m < n; ++m) {
      EXPECT_EQ(first[i][m], first[i][0]) << ccl::OperationName(kOperations[i / 2]) << " " << m;
    }
  }
}

// Where the device has one. Whole tiles and ragged ones, of all sizes that the kernel has, few and
// many of them, with the rows of leading dimensions apart.
TEST_P(OpsTest, PersistentProductsAreWhatSumsInDoubleSay) {
  const uint32_t n = GetParam();
  constexpr Dimensions kAligned[] = {{40, 72, 24},    {64, 512, 256}, {130, 200, 104},
                                     {300, 136, 520}, {513, 256, 64}, {129, 264, 72},
                                     {512, 384, 512}, {600, 328, 200}};
  std::vector<Case> cases;
  uint32_t i = 0;
  for (const Operation operation : kOperations) {
    for (const DType in : {DType::kF16, DType::kBf16}) {
      for (const bool wide : {false, true}) {
        for (const Dimensions& d : kAligned) {
          const uint32_t choice = Mix(++i);
          Case c;
          c.problem = {operation, {d.m, d.n, d.k, in, wide ? DType::kF32 : in}};
          constexpr DType kBias[] = {DType::kNone, DType::kF16, DType::kBf16, DType::kF32};
          c.problem.bias = kBias[choice % 4];
          c.problem.transposed_b = choice >> 4 & 1;
          c.problem.activation = static_cast<Activation>(choice >> 5 & 3);
          c.problem.variant = Variant::kPersistent;
          c.pad = (choice >> 8 & 1) * 8;
          if (operation == Operation::kMatmulAllGather && d.m / n < n) continue;
          c.seed = i;
          cases.push_back(c);
        }
      }
    }
  }
  if (n == 1) GTEST_SKIP() << "a persistent product has two members or more";
  if (!backend::HasPersistentProduct()) GTEST_SKIP() << "it is a kernel for Hopper GPUs alone";
  World(n, kHeapBytes).Run([&](Rank& rank) {
    ccl::Config config = rank.SharedConfig();
    config.timeout_ns = 5'000'000'000;
    Member member(rank, rank.ctx.world, BytesFor(cases, n, config), config);
    for (int round = 0; round < 2; ++round) {
      for (const Case& c : cases) {
        member.Run(c, Name(c));
        if (!member.Check(c, member.ReadD(c), Name(c))) return rank.HostBarrier();
      }
    }
  });
}

// Whatever a tile of this device is: several, whole and ragged ones, on few blocks and on many.
TEST(OpsTileTest, SeveralTilesOfThisDevice) {
  for (const uint32_t n : {2u, 3u}) {
    World(n, kHeapBytes).Run([&](Rank& rank) {
      for (const uint32_t blocks : {1u, 3u, 16u}) {
        std::vector<Case> cases;
        for (const Operation operation : kOperations) {
          Case c;
          c.problem = {operation,
                       {3 * ops::impl::kTile.rows + 5, 2 * ops::impl::kTile.columns + 3, 70,
                        DType::kBf16, DType::kBf16}};
          c.problem.bias = DType::kF32;
          c.problem.transposed_b = blocks == 3;
          cases.push_back(c);
        }
        ccl::Config config;
        config.max_blocks = blocks;
        Member member(rank, rank.ctx.world, BytesFor(cases, n, config), config);
        for (const Case& c : cases) {
          member.Run(c, Name(c));
          (void)member.Check(c, member.ReadD(c), Name(c));
        }
      }
    });
  }
}

// Of four ranks, three in another order than that of their numbers.
TEST(OpsTeamTest, AnyRanksInAnyOrder) {
  World(4, kHeapBytes).Run([&](Rank& rank) {
    DeviceTeam team = rank.NewTeam({3, 0, 2});
    std::vector<Case> cases = AllCases({Variant::kFused});
    if (cases.size() > 60) cases.resize(60);
    for (size_t i = 0; i < cases.size(); i += 2) cases[i].problem.variant = Variant::kPair;
    if (rank.rank() == 1) team.index = team.size;
    Member member(rank, team, BytesFor(cases, 3, SmallConfig()), SmallConfig(), true);
    for (const Case& c : cases) {
      if (rank.rank() != 1) {
        member.Run(c, Name(c));
        (void)member.Check(c, member.ReadD(c), Name(c));
      } else {
        rank.HostBarrier();
        rank.HostBarrier();
      }
    }
  });
}

// Back to back, without the host between them, with collectives of the same Comm among them.
TEST(OpsSequenceTest, FollowEachOtherAndCollectives) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    std::vector<Case> cases;
    for (const Operation operation : kOperations) {
      Case c;
      c.problem = {operation, {90, 70, 50, DType::kF16, DType::kF32}};
      cases.push_back(c);
      c.problem.variant = Variant::kCopyEngine;
      if (Has(c.problem.variant, operation)) cases.push_back(c);
    }
    const ccl::Config config = SmallConfig();
    std::vector<Member*> members;
    const uint64_t bytes = BytesFor(cases, 3, config);
    Member member(rank, rank.ctx.world, bytes, config);
    float* x = rank.New<float>(1000);
    for (const Case& c : cases) {
      const Matmul call = member.Fill(c);
      rank.HostBarrier();
      for (uint32_t k = 0; k < (kSlower == 1 ? 40 : 8); ++k) {
        ExpectOk(ops::Launch(member.comm, call, rank.stream));
        ExpectOk(
            ccl::AllReduce(member.comm, x, x, 1000, DType::kF32, ccl::ReduceOp::kSum, rank.stream));
      }
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      (void)member.Check(c, member.ReadD(c), Name(c));
      rank.HostBarrier();
    }
  });
}

// One member comes late, and takes long for its product: the others wait twice in a pair.
TEST(OpsLateTest, WaitingForLongIsNoMistake) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.problem = {Operation::kMatmulAllReduce, {32, 32, 40, DType::kBf16, DType::kF32}};
    c.problem.variant = Variant::kPair;
    Member member(rank, rank.ctx.world, BytesFor({c}, 3, SmallConfig()), SmallConfig());
    Matmul call = member.Fill(c);
    const uint64_t k = backend::Traits::kEmulated ? 10000 : 40;
    std::vector<uint16_t> zeros(32 * k);
    uint16_t* a = rank.New<uint16_t>(32 * k);
    rank.Write(a, zeros);
    rank.HostBarrier();
    if (rank.rank() == 1) {
      call.problem.k = k;
      call.a = call.b = a;
      call.lda = k;
      call.ldb = 32;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    ExpectOk(ops::Launch(member.comm, call, rank.stream));
    rank.Synchronize();
    ExpectOk(ccl::CheckError(member.comm));
    rank.HostBarrier();
  });
}

TEST(OpsGraphTest, ReplaysWithFreshData) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    for (const auto& [operation, variant] : WithCopyEngine()) {
      Case c;
      c.problem = {operation, {60, 50, 40, DType::kBf16, DType::kF32}};
      c.problem.variant = variant;
      Member member(rank, rank.ctx.world, BytesFor({c}, 3, SmallConfig()), SmallConfig());
      const Matmul call = member.Fill(c);
      ExpectOk(backend::BeginCapture(rank.stream));
      // Twice: what the first has forked is one stream again for the second.
      ExpectOk(ops::Launch(member.comm, call, rank.stream));
      ExpectOk(ops::Launch(member.comm, call, rank.stream));
      backend::Graph graph;
      ExpectOk(backend::EndCapture(rank.stream, &graph));
      for (uint32_t replay = 0; replay < 5; ++replay) {
        c.seed = 100 + replay;
        (void)member.Fill(c);
        rank.HostBarrier();
        ExpectOk(backend::LaunchGraph(graph, rank.stream));
        rank.Synchronize();
        ExpectOk(ccl::CheckError(member.comm));
        (void)member.Check(c, member.ReadD(c), Name(c));
        rank.HostBarrier();
      }
    }
  });
}

TEST(OpsFailureTest, NamesTheMemberThatDoesNotCome) {
  std::vector<std::pair<Operation, Variant>> all = WithCopyEngine();
  for (const Operation operation : kOperations) {
    if (!backend::HasPersistentProduct()) break;
    all.emplace_back(operation, Variant::kPersistent);
  }
  for (const auto& [o, v] : all) {
    const Operation operation = o;
    const Variant variant = v;
    World(3, kHeapBytes).Run([&](Rank& rank) {
      Case c;
      c.alike = true;
      c.problem = {operation, {60, 48, 48, DType::kBf16, DType::kF32}};
      c.problem.variant = variant;
      ccl::Config config = rank.SharedConfig();
      config.timeout_ns = 300ull * 1000 * 1000;
      Member member(rank, rank.ctx.world, BytesFor({c}, 3, config), config);
      const Matmul call = member.Fill(c);
      rank.HostBarrier();
      if (rank.rank() != 1) {
        ExpectOk(ops::Launch(member.comm, call, rank.stream));
        rank.Synchronize();
        ccl::ErrorInfo info;
        EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kDeadlineExceeded);
        EXPECT_EQ(info.operation, operation);
        EXPECT_EQ(info.member_index, 1u);
        EXPECT_EQ(ops::Launch(member.comm, call, rank.stream).code,
                  StatusCode::kFailedPrecondition);
      }
      rank.HostBarrier();  // memory that is given back earlier may hold up the launch of another
    });
  }
}

TEST(OpsFailureTest, AllMembersAreToldBothCalls) {
  const std::vector<std::function<void(Matmul*)>> mistakes = {
      [](Matmul* call) { call->problem.m -= 1; },
      [](Matmul* call) { call->problem.n -= 1; },
      [](Matmul* call) { call->problem.in = DType::kF16; },
      [](Matmul* call) { call->problem.out = DType::kBf16; },
      [](Matmul* call) { call->problem.activation = Activation::kRelu; },
      [](Matmul* call) { call->problem.operation = Operation::kMatmulReduceScatter; },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    std::vector<ccl::Mismatch> told(3);
    Problem wrong;
    World(3, kHeapBytes).Run([&](Rank& rank) {
      Case c;
      c.problem = {Operation::kMatmulAllReduce, {60, 50, 40, DType::kBf16, DType::kF32}};
      const ccl::Config config = rank.SharedConfig();
      Member member(rank, rank.ctx.world, BytesFor({c}, 3, config) * 2, config);
      Matmul call = member.Fill(c);
      rank.HostBarrier();
      if (rank.rank() == 2) {
        mistakes[i](&call);
        wrong = call.problem;
      }
      ExpectOk(ops::Launch(member.comm, call, rank.stream));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kInvalidArgument) << i;
      EXPECT_EQ(info.member_index, 2u);
      told[rank.rank()] = info.mismatch;
    });
    for (const ccl::Mismatch& mismatch : told) {
      EXPECT_EQ(mismatch.most, 3u);
      EXPECT_EQ(mismatch.other, 4u);
      const ops::CallRecord most = ops::Unpack(mismatch.most_call);
      EXPECT_EQ(most.operation, Operation::kMatmulAllReduce);
      EXPECT_EQ(most.m, 60u);
      EXPECT_EQ(most.n, 50u);
      EXPECT_EQ(most.type, DType::kBf16);
      EXPECT_EQ(most.out_type, DType::kF32);
      EXPECT_EQ(most.activation, Activation::kNone);
      EXPECT_NE(most.variant, Variant::kAuto);
      const ops::CallRecord other = ops::Unpack(mismatch.other_call);
      EXPECT_EQ(other.operation, wrong.operation);
      EXPECT_EQ(other.m, wrong.m);
      EXPECT_EQ(other.n, wrong.n);
      EXPECT_EQ(other.type, wrong.in);
      EXPECT_EQ(other.out_type, wrong.out);
      EXPECT_EQ(other.activation, wrong.activation);
    }
  }
}

// Copies stand on the stream whether the members meet or not.
TEST(OpsFailureTest, CopiesOfCallsThatDifferTellNobody) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.problem = {Operation::kAllGatherMatmul, {60, 50, 40, DType::kBf16, DType::kF32}};
    c.problem.variant = Variant::kCopyEngine;
    const ccl::Config config = rank.SharedConfig();
    Member member(rank, rank.ctx.world, BytesFor({c}, 3, config), config);
    Matmul call = member.Fill(c);
    rank.HostBarrier();
    if (rank.rank() == 2) call.problem.variant = Variant::kFused;
    ExpectOk(ops::Launch(member.comm, call, rank.stream));
    // What comes behind it does nothing, or is refused if the first one has failed by now.
    const Result next = ops::Launch(member.comm, call, rank.stream);
    EXPECT_TRUE(next.ok() || next.code == StatusCode::kFailedPrecondition) << next.what;
    rank.Synchronize();
    ccl::ErrorInfo info;
    EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kInvalidArgument);
    EXPECT_EQ(info.member_index, 2u);
    EXPECT_EQ(ops::Unpack(info.mismatch.most_call).variant, Variant::kCopyEngine);
    EXPECT_EQ(ops::Unpack(info.mismatch.other_call).variant, Variant::kFused);
    // No row has been told to be there, and D is as it was.
    const std::vector<uint64_t> told = rank.Read(
        AtOffset<uint64_t>(rank.ctx, rank.rank(), ops::impl::WorkspaceOffset(member.comm)),
        ops::impl::kArrivals);
    EXPECT_EQ(std::count(told.begin(), told.end(), 0), static_cast<std::ptrdiff_t>(told.size()));
    const std::vector<uint8_t> d = member.ReadD(c);
    EXPECT_EQ(std::count(d.begin(), d.end(), kGuard), static_cast<std::ptrdiff_t>(d.size()));
    rank.HostBarrier();
  });
}

// The job breaks while one member waits at the opening of a call with copies, and another, which
// has `n` columns, still makes its products of an earlier call, of the rows that these copies
// overwrite. Whether that one is told; if it is not, its products have to be right.
bool IsToldOfOverwrittenRows(Variant earlier, uint64_t n) {
  constexpr uint64_t kRows = 60, kDepth = 240;
  bool is_told = false;
  World world(3, kHeapBytes);
  world.Run([&](Rank& rank) {
    Case c;
    c.alike = true;
    c.problem = {Operation::kAllGatherMatmul, {kRows, 24, kDepth, DType::kBf16, DType::kF32}};
    Case of_copies = c;
    of_copies.problem.variant = Variant::kCopyEngine;
    c.problem.variant = earlier;
    const ccl::Config config = rank.SharedConfig();
    Member member(rank, rank.ctx.world, BytesFor({c, of_copies}, 3, config), config);
    const bool is_slow = rank.rank() == 1;
    const uint64_t columns = is_slow ? n : 24;
    const auto make = [&rank](uint64_t count, float value) {
      auto* const p = static_cast<uint16_t*>(backend::MallocDevice(count * sizeof(uint16_t)));
      rank.Write(p, std::vector<uint16_t>(count, Bfloat16(value).bits));
      return p;
    };
    uint16_t* const ones = make(kRows * kDepth, 1);
    uint16_t* const twos = make(kRows * kDepth, 2);
    uint16_t* const b = make(kDepth * columns, 1);
    auto* const d = static_cast<float*>(backend::MallocDevice(kRows * columns * sizeof(float)));
    Matmul call;
    call.problem = c.problem;
    call.problem.n = columns;
    call.a = ones;
    call.lda = kDepth;
    call.b = b;
    call.ldb = call.ldd = columns;
    call.d = d;
    rank.HostBarrier();
    ExpectOk(ops::Launch(member.comm, call, rank.stream));
    if (rank.rank() == 0) {
      call.problem.variant = Variant::kCopyEngine;
      call.a = twos;
      ExpectOk(ops::Launch(member.comm, call, rank.stream));
      // Enough for the rows of the first call to be where they belong.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      world.Abort();
    }
    rank.Synchronize();
    ccl::ErrorInfo info;
    const Result result = ccl::CheckError(member.comm, &info);
    EXPECT_TRUE(rank.rank() != 0 || result.code == StatusCode::kAborted) << result.what;
    if (is_slow && result.ok()) {
      const std::vector<float> sums = rank.Read(d, kRows * columns);
      EXPECT_EQ(std::count(sums.begin(), sums.end(), float{kDepth}),
                static_cast<std::ptrdiff_t>(sums.size()))
          << ops::VariantName(earlier) << ": the products are wrong, and nobody says so";
    } else if (is_slow) {
      is_told = true;
      EXPECT_EQ(result.code, StatusCode::kAborted) << result.what;
      EXPECT_EQ(info.operation, Operation::kAllGatherMatmul);
      EXPECT_EQ(info.member_index, 0u);
      // The number of the operation: kPair is two.
      EXPECT_EQ(info.sequence, earlier == Variant::kPair ? 1u : 0u);
      EXPECT_EQ(ops::Launch(member.comm, call, rank.stream).code, StatusCode::kFailedPrecondition);
    }
    rank.HostBarrier();
    for (void* const p : {static_cast<void*>(ones), static_cast<void*>(twos), static_cast<void*>(b),
                          static_cast<void*>(d)}) {
      backend::FreeDevice(p);
    }
  });
  return is_told;
}

TEST(OpsFailureTest, WhoseRowsAreOverwrittenIsTold) {
#if defined(IRIS_TSAN)
  GTEST_SKIP() << "rows are overwritten while they are read: a race that the operation allows";
#endif
  for (const Variant earlier : {Variant::kFused, Variant::kPair, Variant::kCopyEngine}) {
    // A machine that multiplies fast has read all rows before: then with more columns.
    const bool is_told =
        IsToldOfOverwrittenRows(earlier, backend::Traits::kEmulated ? 20'000 : 24) ||
        (backend::Traits::kEmulated && IsToldOfOverwrittenRows(earlier, 160'000));
    EXPECT_TRUE(is_told || !backend::Traits::kEmulated) << ops::VariantName(earlier);
  }
}

TEST(OpsCheckTest, CopiesNeedResources) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.problem = {Operation::kAllGatherMatmul, {60, 50, 40, DType::kBf16, DType::kF32}};
    c.problem.variant = Variant::kCopyEngine;
    Member member(rank, rank.ctx.world, BytesFor({c}, 2, {}), {});
    Matmul call = member.Fill(c);
    member.comm.products = nullptr;
    Result result = ops::Launch(member.comm, call, rank.stream);
    EXPECT_EQ(result.code, StatusCode::kUnimplemented);
    EXPECT_NE(std::string(result.what).find("CommOptions::products"), std::string::npos);
    call.problem.operation = Operation::kMatmulAllGather;
    result = ops::Launch(member.comm, call, rank.stream);
    EXPECT_NE(std::string(result.what).find("all_gather_matmul alone"), std::string::npos);
    rank.HostBarrier();
  });
}

TEST(OpsCheckTest, RefusesBeforeAnythingStarts) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.problem = {Operation::kMatmulAllReduce, {60, 50, 40, DType::kBf16, DType::kF32}};
    Member member(rank, rank.ctx.world, BytesFor({c}, 2, {}), {});
    const Matmul good = member.Fill(c);
    const auto expect = [&](StatusCode code, const std::function<void(Matmul*)>& change,
                            const char* text) {
      Matmul call = good;
      change(&call);
      const Result result = ops::Launch(member.comm, call, rank.stream);
      EXPECT_EQ(result.code, code) << text << ": " << result.what;
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    constexpr StatusCode kBad = StatusCode::kInvalidArgument;
    const uint64_t huge = uint64_t{1} << 31;
    expect(
        kBad, [](Matmul* x) { x->problem.m = 0; }, "at least 1");
    expect(
        kBad, [](Matmul* x) { x->problem.n = 0; }, "at least 1");
    expect(
        kBad, [](Matmul* x) { x->problem.k = 0; }, "at least 1");
    expect(
        kBad, [&](Matmul* x) { x->problem.m = huge; }, "2^31 - 1");
    expect(
        kBad, [&](Matmul* x) { x->problem.k = ~uint64_t{0}; }, "2^31 - 1");
    expect(
        kBad, [&](Matmul* x) { x->problem.m = x->problem.n = huge - 1; }, "2^42");
    expect(
        kBad, [](Matmul* x) { x->problem.in = DType::kF32; }, "f16 or bf16");
    expect(
        kBad, [](Matmul* x) { x->problem.out = DType::kI32; }, "D is of");
    expect(
        kBad, [](Matmul* x) { x->problem.bias = DType::kU8; }, "the bias is of");
    expect(
        kBad, [](Matmul* x) { x->problem.activation = static_cast<Activation>(9); }, "activation");
    expect(
        kBad, [](Matmul* x) { x->problem.variant = static_cast<Variant>(9); }, "variant");
    expect(
        kBad, [](Matmul* x) { x->problem.operation = Operation::kAllReduce; }, "no product");
    expect(
        kBad, [](Matmul* x) { x->lda = 39; }, "lda");
    expect(
        kBad, [](Matmul* x) { x->ldb = 49; }, "ldb");
    expect(
        kBad, [](Matmul* x) { x->ldd = 49; }, "ldd");
    expect(
        kBad, [&](Matmul* x) { x->lda = huge; }, "leading dimension");
    expect(
        kBad, [](Matmul* x) { x->a = nullptr; }, "null");
    expect(
        kBad, [](Matmul* x) { x->a = static_cast<const uint8_t*>(x->a) + 1; }, "aligned");
    expect(
        kBad, [](Matmul* x) { x->d = static_cast<uint8_t*>(x->d) + 2; }, "aligned");
    expect(
        kBad, [](Matmul* x) { x->d = const_cast<void*>(x->a); }, "overlaps");
    expect(
        kBad, [](Matmul* x) { x->d = x; }, "symmetric heap");
    expect(
        kBad, [](Matmul* x) { x->ldd = uint64_t{1} << 30; }, "beyond");
    expect(
        kBad,
        [&](Matmul* x) {
          x->b = iris::AtOffset<void>(rank.ctx, rank.rank(), member.comm.workspace_offset_bytes);
        },
        "workspace");
    expect(
        StatusCode::kResourceExhausted,
        [](Matmul* x) {
          x->problem.operation = Operation::kAllGatherMatmul;
          x->problem.m = x->problem.k = 30000;
        },
        "matmul_bytes");
    Comm small = member.comm;
    small.workspace_bytes = ccl::WorkspaceBytes(2, {});
    LaunchPlan plan;
    EXPECT_EQ(ops::Choose(small, good.problem, &plan).code, StatusCode::kResourceExhausted);
    EXPECT_EQ(ops::WorkspaceBytes(0, {}, good.problem), 0u);
    ExpectOk(ops::Choose(member.comm, good.problem, &plan));
    EXPECT_NE(plan.variant, Variant::kAuto);
    EXPECT_GT(plan.blocks, 0u);
    // None of it has harmed the Comm.
    member.Run(c, "after all that");
    (void)member.Check(c, member.ReadD(c), "after all that");
  });
}

TEST(OpsShareTest, SharesCoverADimension) {
  for (uint64_t dimension = 1; dimension < 40; ++dimension) {
    for (uint32_t members = 1; members < 12; ++members) {
      uint64_t next = 0;
      for (uint32_t m = 0; m < members; ++m) {
        const Share share = ShareOf(dimension, members, m);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.count, ShareOf(dimension, members, 0).count);
        EXPECT_GE(share.count + 1, ShareOf(dimension, members, 0).count);
        next += share.count;
      }
      EXPECT_EQ(next, dimension);
    }
  }
}

}  // namespace
}  // namespace iris::conformance
