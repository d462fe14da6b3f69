// Tests the launchers' checks on the host, and a workspace's layout. tests/conformance has the
// operations.
#include "iris/collective/collective.h"

#include <cstdint>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/table.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

// One rank's heap of 4 MiB in a window of two.
class CollectiveTest : public testing::Test {
 protected:
  static constexpr uint64_t kHeapBytes = 4 << 20;

  CollectiveTest() : window_(2 * kHeapBytes + 4096) {
    DeviceContext& context = options_.context;
    context.rank = 0;
    context.n_ranks = 2;
    context.base = (reinterpret_cast<uint64_t>(window_.data()) + 4095) / 4096 * 4096;
    context.stride_bytes = kHeapBytes;
    options_.team.size = 2;
    options_.team.index = 0;
    options_.team.members[0] = 0;
    options_.team.members[1] = 1;
    options_.workspace = At(4096);
    options_.workspace_bytes = WorkspaceBytes(2);
    options_.report = &report_;
    EXPECT_TRUE(backend::Stream::Create(&stream_).ok());
  }

  char* At(uint64_t offset_bytes) { return AtOffset<char>(options_.context, 0, offset_bytes); }
  Comm Create() {
    Comm comm;
    const Result result = CreateComm(options_, &comm);
    EXPECT_TRUE(result.ok()) << result.what;
    return comm;
  }
  StatusCode CreateCode() {
    Comm comm;
    return CreateComm(options_, &comm).code;
  }
  StatusCode ReduceCode(const void* in, const void* out, uint64_t count, DType type = DType::kF32) {
    return AllReduce(Create(), in, const_cast<void*>(out), count, type, ReduceOp::kSum, stream_)
        .code;
  }

  // Returns data after the workspace.
  char* Data(uint64_t offset_bytes = 0) { return At(3 << 20) + offset_bytes; }

  std::vector<char> window_;
  ErrorReport report_;
  CommOptions options_;
  backend::Stream stream_;
};

TEST_F(CollectiveTest, CreateKeepsWhatItIsGiven) {
  const Comm comm = Create();
  EXPECT_EQ(comm.workspace_offset_bytes, 4096u);
  EXPECT_EQ(comm.team.size, 2u);
  EXPECT_EQ(comm.report, &report_);
}

TEST(MaxBlocksTest, BlocksOfAllRanksOfADeviceFit) {
  EXPECT_EQ(MaxBlocksWhenShared(1, 132), 0u);
  EXPECT_EQ(MaxBlocksWhenShared(2, 132), 66u);
  EXPECT_EQ(MaxBlocksWhenShared(3, 132), 44u);
  EXPECT_EQ(MaxBlocksWhenShared(64, 132), 2u);
  EXPECT_EQ(MaxBlocksWhenShared(200, 132), 1u);
  EXPECT_EQ(MaxBlocksWhenShared(2, 1000), kMaxBlocks);
  EXPECT_EQ(MaxBlocksWhenShared(3, 16), 5u);  // a small GPU
  EXPECT_EQ(MaxBlocksWhenShared(8, 2), 1u);
  EXPECT_EQ(MaxBlocksWhenShared(8), 0u);  // this one is emulated
}

TEST_F(CollectiveTest, CreateRefusesASmallWorkspace) {
  options_.workspace_bytes -= 1;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesAWorkspaceOutsideTheHeap) {
  options_.workspace = &report_;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesAWorkspaceThatEndsOutsideTheHeap) {
  options_.workspace = At(kHeapBytes - 4096);
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesAMisalignedWorkspace) {
  options_.workspace = At(4096 + 128);
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesNoReport) {
  options_.report = nullptr;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesAnEmptyTeam) {
  options_.team.size = 0;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesATeamThatIsTooLarge) {
  options_.team.size = kMaxTeamRanks + 1;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesATeamWithoutThisRank) {
  options_.team.index = 1;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesARankTwice) {
  options_.team.members[1] = 0;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesAMemberThatIsNoRank) {
  options_.team.members[1] = 2;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesAContextWithoutHeap) {
  options_.context.stride_bytes = 0;
  EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CreateRefusesABadConfig) {
  const std::vector<void (*)(Config*)> mistakes = {
      [](Config* c) { c->max_blocks = kMaxBlocks + 1; },
      [](Config* c) { c->block_threads = kMaxThreads + 1; },
      [](Config* c) { c->unroll = kMaxUnroll + 1; },
      [](Config* c) { c->blocks = 9; },
      [](Config* c) { c->packet_blocks = 9; },
      [](Config* c) { c->packet_bytes = 24; },
      [](Config* c) { c->packet_bytes = ~0ull & ~15ull; },
      [](Config* c) { c->line_blocks = 9; },
      [](Config* c) { c->line_bytes = 4096; },
      [](Config* c) { c->line_bytes = 9000; },
      [](Config* c) { c->line_bytes = 1ull << 60; },
      [](Config* c) { c->push_blocks = 1000; },
      [](Config* c) { c->push_bytes = 2048; },
      [](Config* c) { c->push_bytes = 5000; },
      [](Config* c) { c->push_bytes = 1ull << 60; },
      [](Config* c) { c->stage_bytes = 1000; },
      [](Config* c) { c->stage_bytes = 1ull << 60; },
  };
  for (size_t k = 0; k < mistakes.size(); ++k) {
    Config& config = options_.config;
    config = {};
    config.max_blocks = 8;
    EXPECT_NE(WorkspaceBytes(2, config), 0u);
    mistakes[k](&config);
    EXPECT_EQ(CreateCode(), StatusCode::kInvalidArgument) << k;
    EXPECT_EQ(WorkspaceBytes(2, config), 0u) << k;
  }
}

TEST_F(CollectiveTest, AFailedCreateLeavesTheCommAlone) {
  Comm comm;
  options_.report = nullptr;
  EXPECT_FALSE(CreateComm(options_, &comm).ok());
  EXPECT_EQ(comm.team.size, 0u);
  EXPECT_EQ(Barrier(comm, stream_).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(PrepareWorkspace(comm, stream_).code, StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, ReduceRefusesNull) {
  EXPECT_EQ(ReduceCode(nullptr, Data(), 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(), nullptr, 1), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, ReduceOfNothingTakesAnyPointer) {
  EXPECT_EQ(ReduceCode(nullptr, nullptr, 0), StatusCode::kOk);
}

TEST_F(CollectiveTest, ReduceRefusesMisalignedElements) {
  EXPECT_EQ(ReduceCode(Data(2), Data(64), 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(0), Data(66), 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(4), Data(64), 1, DType::kF64), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(1), Data(64), 1, DType::kF16), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, ReduceRefusesPartialOverlap) {
  EXPECT_EQ(ReduceCode(Data(0), Data(36), 10), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(36), Data(0), 10), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, ReduceRefusesTheWorkspace) {
  EXPECT_EQ(ReduceCode(At(4096), Data(), 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(), At(4096 - 4), 2), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, ReduceRefusesCountsThatOverflow) {
  EXPECT_EQ(ReduceCode(Data(0), Data(64), ~0ull), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(0), Data(64), 1ull << 62), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceCode(Data(0), Data(0), (1ull << 61) / 2), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, ReduceRefusesABufferThatLeavesTheHeap) {
  EXPECT_EQ(ReduceCode(At(kHeapBytes - 8), At(kHeapBytes - 8), 3), StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, UnknownEnumsAreRefused) {
  const Comm comm = Create();
  float x = 0;
  EXPECT_EQ(AllReduce(comm, &x, &x, 1, DType::kNone, ReduceOp::kSum, stream_).code,
            StatusCode::kInvalidArgument);
  // It can be moved, but nobody can add it.
  EXPECT_EQ(AllReduce(comm, &x, &x, 1, DType::kU32, ReduceOp::kSum, stream_).code,
            StatusCode::kUnimplemented);
  EXPECT_EQ(AllReduce(comm, &x, &x, 1, static_cast<DType>(99), ReduceOp::kSum, stream_).code,
            StatusCode::kInvalidArgument);
  EXPECT_EQ(AllReduce(comm, &x, &x, 1, DType::kF32, static_cast<ReduceOp>(99), stream_).code,
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      AllReduce(comm, &x, &x, 1, DType::kF32, ReduceOp::kSum, stream_, static_cast<Variant>(99))
          .code,
      StatusCode::kInvalidArgument);
  EXPECT_EQ(AllGather(comm, &x, &x, 1, static_cast<DType>(99), stream_).code,
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Broadcast(comm, &x, &x, 1, static_cast<DType>(99), 0, stream_).code,
            StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, GatherRefusesAnInputInAnothersPlace) {
  const Comm comm = Create();
  EXPECT_EQ(AllGather(comm, Data(40), Data(0), 10, DType::kF32, stream_).code,
            StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, GatherRefusesCountsThatOverflow) {
  const Comm comm = Create();
  EXPECT_EQ(AllGather(comm, Data(0), Data(64), 1ull << 60, DType::kF32, stream_).code,
            StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, BroadcastRefusesARootThatIsNoMember) {
  EXPECT_EQ(Broadcast(Create(), Data(), Data(), 1, DType::kF32, 2, stream_).code,
            StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, BroadcastNeedsTheRootsInput) {
  EXPECT_EQ(Broadcast(Create(), nullptr, Data(), 1, DType::kF32, 0, stream_).code,
            StatusCode::kInvalidArgument);
}

TEST_F(CollectiveTest, CheckErrorTellsWhatIsRecorded) {
  const Comm comm = Create();
  ErrorInfo info;
  EXPECT_TRUE(CheckError(comm, &info).ok());
  EXPECT_EQ(info.operation, Operation::kNone);
  EXPECT_EQ(info.member_index, ErrorInfo::kNoMember);
  report_.word = impl::PackError(StatusCode::kAborted, Operation::kBroadcast, 63, 7);
  EXPECT_EQ(CheckError(comm, &info).code, StatusCode::kAborted);
  EXPECT_EQ(info.operation, Operation::kBroadcast);
  EXPECT_EQ(info.member_index, 63u);
  EXPECT_EQ(info.sequence, 7u);
  EXPECT_EQ(Barrier(comm, stream_).code, StatusCode::kFailedPrecondition);
  ResetError(comm);
  EXPECT_TRUE(CheckError(comm).ok());
}

TEST_F(CollectiveTest, ACommThatWasNotMadeIsRefused) {
  const Comm none;
  ErrorInfo info;
  info.operation = Operation::kAllReduce;
  EXPECT_EQ(CheckError(none, &info).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(info.operation, Operation::kNone);
  EXPECT_EQ(CheckError(none).code, StatusCode::kInvalidArgument);
  ResetError(none);
  uint64_t missing = 0;
  EXPECT_EQ(CopyMissing(none, &missing, stream_).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(PrepareWorkspace(none, stream_).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(Barrier(none, stream_).code, StatusCode::kInvalidArgument);
  Comm released;
  ReleaseComm(&released);
}

TEST_F(CollectiveTest, PrepareWorkspaceZeroesItAndNothingElse) {
  std::fill(window_.begin(), window_.end(), 1);
  ASSERT_TRUE(PrepareWorkspace(Create(), stream_).ok());
  ASSERT_TRUE(stream_.Synchronize().ok());
  EXPECT_EQ(At(0)[4095], 1);
  EXPECT_EQ(At(4096)[0], 0);
  EXPECT_EQ(At(4096)[options_.workspace_bytes - 1], 0);
  EXPECT_EQ(At(4096)[options_.workspace_bytes], 1);
}

TEST(LayoutTest, RegionsDoNotOverlap) {
  for (uint32_t n : {1u, 2u, 3u, 8u, 64u}) {
    for (uint64_t packet_bytes : {16u, 48u, 8192u}) {
      Config config;
      config.packet_bytes = packet_bytes;
      config = impl::Complete(config);
      const impl::Offsets offsets = impl::OffsetsOf(n, config);
      EXPECT_GE(offsets.sync_bytes, sizeof(impl::Header));
      EXPECT_GE(impl::SyncBytes(n),
                sizeof(impl::BlockState) + 2 * n * sizeof(impl::CallWords) + 8 * n);
      EXPECT_GE(offsets.pair_bytes, offsets.sync_bytes + config.max_blocks * impl::SyncBytes(n));
      EXPECT_GE(offsets.packet_bytes,
                offsets.pair_bytes + n * (n - 1) / 2 * impl::kPairBlocks * impl::SyncBytes(2));
      EXPECT_GE(offsets.line_bytes,
                offsets.packet_bytes + config.packet_blocks * 2 * n * 2 * packet_bytes);
      EXPECT_EQ(offsets.line_bytes % impl::kLineBytes, 0u);
      const uint64_t inbox_bytes = impl::LineInboxBytes(n, config.line_bytes);
      EXPECT_EQ(inbox_bytes % impl::kLineUnitBytes, 0u);
      if (n <= impl::kMaxLineMembers) {
        EXPECT_GE(inbox_bytes, impl::kLineUnitBytes);
        EXPECT_GE(offsets.push_bytes,
                  offsets.line_bytes + config.line_blocks * 2 * n * inbox_bytes);
      } else {
        EXPECT_EQ(offsets.push_bytes, offsets.line_bytes);
      }
      const uint64_t chunk_bytes = impl::PushInboxBytes(n, config.push_bytes);
      EXPECT_GE(chunk_bytes, 16u);
      EXPECT_EQ(chunk_bytes % 16, 0u);
      EXPECT_LE(impl::kPushSlots * (n - 1) * chunk_bytes, config.push_bytes);
      EXPECT_EQ(offsets.push_bytes % impl::kLineBytes, 0u);
      EXPECT_GE(offsets.stage_bytes, offsets.push_bytes + config.push_blocks * config.push_bytes);
      EXPECT_GE(offsets.total_bytes,
                offsets.stage_bytes + config.max_blocks * 2 * config.stage_bytes);
      EXPECT_EQ(offsets.stage_bytes % kWorkspaceAlignmentBytes, 0u);
      EXPECT_EQ(WorkspaceBytes(n, config), offsets.total_bytes);
    }
  }
}

TEST(ConfigTest, BarriersAloneNeedFewWords) {
  Config config;
  config.barriers_only = true;
  config.stage_bytes = 1000;  // ignored, as all sizes
  EXPECT_LE(WorkspaceBytes(2, config), 1024u);
  EXPECT_LE(WorkspaceBytes(kMaxTeamRanks, config), 8192u);
}

TEST(ConfigTest, FewMultiprocessorsAreFewBlocks) {
  Config config;
  config.max_multiprocessors = 3;
  const Config complete = impl::Complete(config);
  EXPECT_EQ(complete.max_blocks, 3u);
  EXPECT_EQ(complete.packet_blocks, 3u);
  EXPECT_EQ(complete.line_blocks, 3u);
  EXPECT_EQ(complete.push_blocks, 3u);
  EXPECT_LT(WorkspaceBytes(2, config), WorkspaceBytes(2));
  config.max_blocks = 2;  // what is less holds
  EXPECT_EQ(impl::Complete(config).max_blocks, 2u);
}

TEST(ConfigTest, FewBlocksHaveRulesOfTheirOwn) {
  const impl::Table all = impl::BuiltInTable(/*emulated=*/false);
  for (uint32_t blocks : {8u, impl::kFewBlocks}) {
    const impl::Table few = impl::FewBlocksTable(blocks);
    // After these come the usual rules, except those of kPush.
    std::vector<Rule> others;
    for (uint32_t k = 0; k < all.n_rules; ++k) {
      if (all.rules[k].variant != Variant::kPush) others.push_back(all.rules[k]);
    }
    ASSERT_LT(others.size(), all.n_rules);
    ASSERT_GT(few.n_rules, others.size());
    const size_t n_own = few.n_rules - others.size();
    for (size_t k = 0; k < n_own; ++k) {
      EXPECT_LE(few.rules[k].blocks, blocks) << k;
      EXPECT_NE(few.rules[k].variant, Variant::kCopyEngine) << k;
    }
    for (size_t k = 0; k < others.size(); ++k) {
      EXPECT_EQ(few.rules[n_own + k].operation, others[k].operation);
      EXPECT_EQ(few.rules[n_own + k].max_bytes, others[k].max_bytes);
      EXPECT_EQ(few.rules[n_own + k].variant, others[k].variant);
    }
    Comm comm;
    comm.team.size = 2;
    EXPECT_TRUE(UseRules(few.rules, few.n_rules, &comm).ok());
  }
}

TEST(EpochTest, SkipsZeroAndKeepsItsParity) {
  EXPECT_EQ(impl::NextEpoch(0), 1u);
  EXPECT_EQ(impl::NextEpoch(0xfffffffeu), 0xffffffffu);
  EXPECT_EQ(impl::NextEpoch(0xffffffffu), 2u);
}

TEST(TagTest, IsNeverThatOfNoOperation) {
  EXPECT_EQ(impl::TagOf(0), 1u);
  EXPECT_EQ(impl::TagOf(0xfffffffeu), 0xffffffffu);
  // Neither 0 nor the tag of a neighbour.
  EXPECT_EQ(impl::TagOf(0xffffffffu), 0x80000000u);
}

TEST(LayoutTest, NoWorkspaceForTeamsThatCannotBe) {
  EXPECT_EQ(WorkspaceBytes(0), 0u);
  EXPECT_EQ(WorkspaceBytes(kMaxTeamRanks + 1), 0u);
  EXPECT_GT(WorkspaceBytes(kMaxTeamRanks), 0u);
}

TEST(NamesTest, EveryOperationHasOne) {
  const char* const names[] = {"none",
                               "all_reduce",
                               "all_gather",
                               "broadcast",
                               "barrier",
                               "reduce_scatter",
                               "all_to_all",
                               "reduce",
                               "gather",
                               "scatter",
                               "send_recv",
                               "all_to_all_v",
                               "matmul_all_reduce",
                               "matmul_reduce_scatter",
                               "all_gather_matmul",
                               "matmul_all_gather",
                               "matmul_all_scatter",
                               "all_reduce_rms_norm",
                               "reduce_scatter_rms_norm_all_gather",
                               "moe_dispatch",
                               "moe_combine",
                               "unknown"};
  for (uint8_t k = 0; k < std::size(names); ++k) {
    EXPECT_STREQ(OperationName(static_cast<Operation>(k)), names[k]);
  }
  EXPECT_STREQ(VariantName(Variant::kOneShot), "packets");
  EXPECT_STREQ(VariantName(Variant::kPush), "push");
  EXPECT_STREQ(VariantName(static_cast<Variant>(4)), "unknown");  // reserved
}

TEST(ElementBytesTest, OfEveryType) {
  EXPECT_EQ(DTypeBytes(DType::kF16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kI32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kF64), 8u);
  EXPECT_EQ(DTypeBytes(DType::kI64), 8u);
  EXPECT_EQ(DTypeBytes(DType::kU8), 1u);
  EXPECT_EQ(DTypeBytes(static_cast<DType>(99)), 0u);
}

}  // namespace
}  // namespace iris::ccl
