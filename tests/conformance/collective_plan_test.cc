// What Choose says is what a launcher launches: for every operation, type, op, size and variant.
// The launches are captured in graphs that nobody runs.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/collective/table.h"
#include "iris/device.h"
#include "iris/rounds/launch.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Config;
using ccl::LaunchTrace;
using ccl::Operation;
using ccl::Plan;
using ccl::ReduceOp;
using ccl::Shape;
using ccl::Variant;

constexpr Operation kEvery[] = {
    Operation::kAllReduce, Operation::kReduceScatter, Operation::kReduce,   Operation::kAllGather,
    Operation::kGather,    Operation::kScatter,       Operation::kAllToAll, Operation::kBroadcast,
    Operation::kSendRecv,  Operation::kAllToAllV,     Operation::kBarrier};

bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

Result Make(Rank& rank, const Comm& comm, const Shape& s, uint8_t* in, uint8_t* out) {
  const uint32_t n = comm.team.size;
  const uint32_t me = comm.team.index;
  backend::Stream& stream = rank.stream;
  switch (s.operation) {
    case Operation::kAllReduce:
      return ccl::AllReduce(comm, in, out, s.count, s.type, s.op, stream, s.variant);
    case Operation::kReduceScatter:
      return ccl::ReduceScatter(comm, in, out, s.count, s.type, s.op, stream, s.variant);
    case Operation::kReduce:
      return ccl::Reduce(comm, in, out, s.count, s.type, s.op, 0, stream, s.variant);
    case Operation::kAllGather:
      return ccl::AllGather(comm, in, out, s.count, s.type, stream, s.variant);
    case Operation::kGather:
      return ccl::Gather(comm, in, out, s.count, s.type, 0, stream, s.variant);
    case Operation::kScatter:
      return ccl::Scatter(comm, in, out, s.count, s.type, 0, stream, s.variant);
    case Operation::kAllToAll:
      return ccl::AllToAll(comm, in, out, s.count, s.type, stream, s.variant);
    case Operation::kBroadcast:
      return ccl::Broadcast(comm, in, out, s.count, s.type, 0, stream, s.variant);
    case Operation::kSendRecv:
      return me == 0 ? ccl::Send(comm, in, s.count, s.type, 1, stream)
                     : ccl::Recv(comm, out, s.count, s.type, 0, stream);
    case Operation::kAllToAllV: {
      std::vector<uint64_t> counts(n, s.count);
      std::vector<uint64_t> offsets(n);
      for (uint32_t m = 0; m < n; ++m) offsets[m] = m * s.count;
      return ccl::AllToAllV(comm, in, {counts.data(), offsets.data()}, out,
                            {counts.data(), offsets.data()}, s.type, stream);
    }
    default:
      return ccl::Barrier(comm, stream);
  }
}

// Calls `body` while the stream records instead of running.
template <typename F>
void WithoutRunning(backend::Stream& stream, const F& body) {
  backend::Graph graph;
  const Result begun = backend::BeginCapture(stream);
  ASSERT_TRUE(begun.ok()) << begun.what;
  body();
  const Result ended = backend::EndCapture(stream, &graph);
  if (testing::Test::HasFatalFailure()) return;  // a launch that was refused has spoiled it
  ASSERT_TRUE(ended.ok()) << ended.what;
}

// Which kernel a variant is, in an operation.
std::string KernelOf(Variant variant, Operation operation) {
  if (operation == Operation::kBarrier) return "BarrierKernel";
  if (operation == Operation::kAllToAllV) return "MoveVector";
  switch (variant) {
    case Variant::kPackets:
      return Reduces(operation) ? "ReducePackets" : "MovePackets";
    case Variant::kDirect:
      return Reduces(operation) ? "ReduceDirect" : "MoveDirect";
    case Variant::kTwoShot:
      return Reduces(operation) ? "ReduceDirect" : "BroadcastSlices";
    case Variant::kTwoPhase:
      return "ReduceDirect";
    case Variant::kTwoPackets:
      return "ReduceTwoPackets";
    case Variant::kLines:
      return Reduces(operation) ? "ReduceLines" : "GatherLines";
    case Variant::kTwoLines:
      return "ReduceTwoLines";
    case Variant::kPush:
      return "ReducePush";
    case Variant::kCopyEngine:
      return Reduces(operation) ? "ReduceDirect" : "BarrierKernel";
    case Variant::kRing:
      return "ReduceRing";
    case Variant::kAtomic:
    case Variant::kSpinlock:
      return "ReduceAtOwner";
    default:
      return "none";
  }
}

std::string Text(const Shape& s, uint32_t n) {
  return std::string(ccl::OperationName(s.operation)) + " of " + std::to_string(s.count) + " " +
         DTypeName(s.type) + " " + ccl::ReduceOpName(s.op) + " as " + ccl::VariantName(s.variant) +
         " on " + std::to_string(n);
}

class PlanTest : public testing::TestWithParam<uint32_t> {
 protected:
  // Whether `comm` launches what Choose says of it.
  static void Check(Rank& rank, Comm comm, const Shape& shape, bool in_place, uint8_t* in,
                    uint8_t* out) {
    if (testing::Test::HasFatalFailure()) return;  // the capture has ended: so would all others
    SCOPED_TRACE(Text(shape, comm.team.size) + (in_place ? " in place" : ""));
    LaunchTrace trace;
    comm.trace = &trace;
    const Plan plan = ccl::Choose(comm, shape);
    const Result made = Make(rank, comm, shape, in_place ? out : in, out);
    ASSERT_TRUE(made.ok()) << made.what;
    if (plan.blocks == 0) {
      EXPECT_EQ(trace.n, 0u);
      EXPECT_EQ(comm.team.size, 1u);
      return;
    }
    ASSERT_GE(trace.n, 1u);
    const ccl::LaunchNote& note = trace.notes[0];
    EXPECT_EQ(note.plan.variant, plan.variant)
        << ccl::VariantName(note.plan.variant) << " " << ccl::VariantName(plan.variant);
    EXPECT_EQ(note.plan.blocks, plan.blocks);
    EXPECT_EQ(note.plan.threads, plan.threads);
    if (note.plan.unroll != 0) {
      EXPECT_EQ(note.plan.unroll, plan.unroll);
    }
    EXPECT_EQ(note.kernel, KernelOf(plan.variant, shape.operation));
    EXPECT_EQ(trace.n, plan.variant == Variant::kCopyEngine ? 2u : 1u);
  }
};
INSTANTIATE_TEST_SUITE_P(Members, PlanTest, testing::Values(1, 2, 3, 4, 5, 6, 7, 8));

TEST_P(PlanTest, ChooseSaysWhatIsLaunched) {
  const uint32_t n = GetParam();
  Config config;
  config.max_blocks = 4;
  World(n, (4 << 20) + ccl::WorkspaceBytes(n, config)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    uint8_t* in = rank.New<uint8_t>(1 << 20);
    uint8_t* out = rank.New<uint8_t>(1 << 20);
    rank.HostBarrier();
    uint32_t k = 0;
    for (Operation operation : kEvery) {
      if (operation == Operation::kSendRecv && (n == 1 || rank.rank() > 1)) continue;
      WithoutRunning(rank.stream, [&] {
        for (uint32_t v = 0; v < ccl::kVariantCount; ++v) {
          if (!ccl::IsVariant(v)) continue;
          for (uint32_t t = 1; t <= static_cast<uint32_t>(DType::kU8); ++t) {
            for (uint32_t o = 0; o <= static_cast<uint32_t>(ReduceOp::kAvg); ++o) {
              if (o != 0 && !Reduces(operation)) continue;
              for (uint64_t count : {1, 700, 3000, 15000}) {
                const Shape shape = {operation, count, static_cast<DType>(t),
                                     static_cast<ReduceOp>(o), static_cast<Variant>(v)};
                const bool in_place = operation == Operation::kAllReduce && ++k % 2 == 0;
                Check(rank, comm, shape, in_place, in, out);
              }
            }
          }
        }
      });
    }
  });
}

// The rules for GPUs as well.
TEST_P(PlanTest, TheRulesOfGpusAreLaunchedAsTheySay) {
  const uint32_t n = GetParam();
  if (n == 1) GTEST_SKIP() << "one member launches nothing";
  Config config;
  constexpr uint64_t kMost = 16 << 20;
  config.symmetric = true;
  config.stage_bytes = 1024;
  config.packet_bytes = 256;
  config.line_bytes = 8192;
  config.max_blocks = ccl::kMaxBlocks;
  config.packet_blocks = 64;
  const ccl::impl::Table table = ccl::impl::BuiltInTable(/*emulated=*/false);
  config.rules = table.rules;
  config.n_rules = table.n_rules;
  World(n, 2 * kMost + (1 << 20) + ccl::WorkspaceBytes(n, config)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    uint8_t* in = rank.New<uint8_t>(kMost);
    uint8_t* out = rank.New<uint8_t>(kMost);
    rank.HostBarrier();
    for (Operation operation : kEvery) {
      if (operation == Operation::kSendRecv) continue;
      const bool one_row = operation == Operation::kAllReduce || operation == Operation::kReduce ||
                           operation == Operation::kBroadcast;
      WithoutRunning(rank.stream, [&] {
        for (uint64_t bytes = 1 << 10; bytes <= kMost; bytes = bytes * 3 / 2) {
          for (DType type : {DType::kF32, DType::kBf16, DType::kI32}) {
            const uint64_t all = bytes / DTypeBytes(type);
            Check(rank, comm, {operation, one_row ? all : all / n, type}, false, in, out);
          }
        }
      });
    }
  });
}

TEST(SharesProcessTest, RanksThatAreThreadsDoAndOthersDoNot) {
  Config config;
  config.max_blocks = 4;
  World(3, (1 << 20) + ccl::WorkspaceBytes(3, config)).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    rank.HostBarrier();
    EXPECT_TRUE(ccl::SharesProcess(comm));
    if (rank.rank() != 0) return;
    // Heaps elsewhere, which nothing here touches: of one rank, and then of two.
    ccl::CommOptions options;
    options.context = comm.context;
    options.context.base += uint64_t{1} << 50;
    options.team = comm.team;
    options.workspace_bytes = comm.workspace_bytes;
    options.report = comm.report;
    options.config = comm.config;
    Comm others[2];
    for (uint32_t r = 0; r < 2; ++r) {
      options.context.rank = options.team.index = r;
      options.workspace = AtOffset<void>(options.context, r, comm.workspace_offset_bytes);
      const Result made = ccl::CreateComm(options, &others[r]);
      ASSERT_TRUE(made.ok()) << made.what;
      EXPECT_EQ(ccl::SharesProcess(others[0]), r == 1);
    }
    EXPECT_TRUE(ccl::SharesProcess(others[1]));
    for (Comm& other : others) ccl::ReleaseComm(&other);
  });
}

TEST(ChooseTest, WithoutLinesTheNextRuleHolds) {
  const std::vector<ccl::Rule> rules = {
      {Operation::kAllReduce, 64, 1 << 20, Variant::kTwoLines, 2, 64},
      {Operation::kAllReduce, 64, 1 << 20, Variant::kTwoPackets, 3, 64},
  };
  Comm comm;
  comm.team.size = 4;
  comm.config = ccl::impl::Complete({});
  ASSERT_TRUE(ccl::UseRules(rules.data(), 2, &comm).ok());
  const Shape shape = {Operation::kAllReduce, 1 << 16, DType::kF32};
  EXPECT_EQ(ccl::Choose(comm, shape).variant, Variant::kTwoLines);
  Shape wanted = shape;
  wanted.variant = Variant::kLines;
  EXPECT_EQ(ccl::Choose(comm, wanted).variant, Variant::kLines);
  comm.config.without_lines = true;
  EXPECT_EQ(ccl::Choose(comm, shape).variant, Variant::kTwoPackets);
  EXPECT_EQ(ccl::Choose(comm, wanted).variant, Variant::kTwoShot);
}

// The built-in rules take kPush only where its prototype won: four members, above 8 MiB.
TEST(ChooseTest, PushesOnlyWhereItsPrototypeWon) {
  const ccl::impl::Table table = ccl::impl::BuiltInTable(/*emulated=*/false);
  Config config;
  config.max_blocks = config.push_blocks = ccl::kMaxBlocks;
  config.rules = table.rules;
  config.n_rules = table.n_rules;
  const auto choose = [&](Operation operation, uint32_t members, uint64_t mebibytes) {
    Comm comm;
    comm.team.size = members;
    comm.config = ccl::impl::Complete(config);
    EXPECT_TRUE(ccl::UseRules(table.rules, table.n_rules, &comm).ok());
    const uint64_t rows = operation == Operation::kReduceScatter ? members : 1;
    return ccl::Choose(comm, {operation, (mebibytes << 20) / 4 / rows, DType::kF32});
  };
  const ccl::Plan plan = choose(Operation::kAllReduce, 4, 16);
  EXPECT_EQ(plan.variant, Variant::kPush);
  EXPECT_EQ(plan.blocks, 64u);
  EXPECT_EQ(choose(Operation::kAllReduce, 4, 128).blocks, 128u);
  EXPECT_EQ(choose(Operation::kReduceScatter, 4, 16).variant, Variant::kPush);
  for (uint32_t members : {2u, 3u, 8u}) {
    for (uint64_t mebibytes : {16, 128, 256}) {
      EXPECT_EQ(choose(Operation::kAllReduce, members, mebibytes).variant, Variant::kTwoPhase);
      EXPECT_EQ(choose(Operation::kReduceScatter, members, mebibytes).variant, Variant::kDirect);
    }
  }
  for (uint64_t mebibytes : {8, 256}) {
    EXPECT_EQ(choose(Operation::kAllReduce, 4, mebibytes).variant, Variant::kTwoPhase);
    EXPECT_EQ(choose(Operation::kReduceScatter, 4, mebibytes).variant, Variant::kDirect);
  }
}

// A Comm of three members, of which nothing is launched.
Comm ThreeMembers(const std::vector<ccl::Rule>& rules) {
  Comm comm;
  comm.team.size = 3;
  comm.config = ccl::impl::Complete({});
  const Result used = ccl::UseRules(rules.data(), static_cast<uint32_t>(rules.size()), &comm);
  EXPECT_TRUE(used.ok()) << used.what;
  return comm;
}

TEST(ChooseTest, ReplacesWhatACallDoesNotHave) {
  const Comm comm = ThreeMembers({});
  const auto variant = [&](const Shape& shape) { return ccl::Choose(comm, shape).variant; };
  const uint64_t count = 1 << 16;
  EXPECT_EQ(
      variant({Operation::kAllReduce, count, DType::kF32, ReduceOp::kSum, Variant::kTwoPackets}),
      Variant::kTwoShot);
  EXPECT_EQ(variant({Operation::kAllReduce, count, DType::kU8, ReduceOp::kAvg, Variant::kRing}),
            Variant::kTwoShot);
  EXPECT_EQ(variant({Operation::kAllReduce, count, DType::kU8, ReduceOp::kSum, Variant::kRing}),
            Variant::kRing);
  EXPECT_EQ(variant({Operation::kReduce, count, DType::kF32, ReduceOp::kSum, Variant::kDirect}),
            Variant::kTwoShot);
  EXPECT_EQ(
      variant({Operation::kReduceScatter, count, DType::kF32, ReduceOp::kSum, Variant::kLines}),
      Variant::kDirect);
  EXPECT_EQ(variant({Operation::kAllGather, count, DType::kF32, ReduceOp::kSum, Variant::kRing}),
            Variant::kDirect);
}

TEST(ChooseTest, PassesOverRulesThatACallDoesNotHave) {
  const Comm comm = ThreeMembers({
      {Operation::kAllReduce, 64, 1 << 20, Variant::kTwoPackets, 2, 64},
      {Operation::kAllReduce, 2, 1 << 20, Variant::kDirect, 3, 64},
      {Operation::kAllReduce, 64, 1 << 20, Variant::kTwoPhase, 4, 128},
  });
  const Plan plan = ccl::Choose(comm, {Operation::kAllReduce, 1 << 16, DType::kF32});
  EXPECT_EQ(plan.variant, Variant::kTwoPhase);
  EXPECT_EQ(plan.blocks, 4u);
  EXPECT_EQ(plan.threads, 128u);
}

TEST(ChooseTest, RulesThatNoCallReachesTakeNoRoom) {
  std::vector<ccl::Rule> rules;
  for (uint32_t i = 0; i < 1000; ++i) {
    rules.push_back({Operation::kAllReduce, 64, 1000 - i, Variant::kPackets, 1, 32});
  }
  const Comm comm = ThreeMembers(rules);
  EXPECT_EQ(comm.rules.end[ccl::kOperationCount - 1], 1u);
  for (uint32_t i = 0; i < 1000; ++i) rules[i].max_bytes = i + 1;
  Comm other = comm;
  EXPECT_EQ(ccl::UseRules(rules.data(), 1000, &other).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(other.rules.end[ccl::kOperationCount - 1], 1u);
}

}  // namespace
}  // namespace iris::conformance
