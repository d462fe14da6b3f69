// Communicators of teams with ranks on several nodes, over NodesJob.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "client/backend/operations.h"
#include "client/comm/communicator.h"
#include "client/context/testing/nodes_job.h"

namespace iris::internal {
namespace {

using ccl::Operation;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kWorkspace = 1 << 20;
constexpr uint64_t kMoe = 11 << 20;
constexpr uint64_t kIn = 12 << 20;
constexpr uint64_t kOut = 14 << 20;

class CommunicatorNodesTest : public NodesJob {
 protected:
  // Runs the body on all ranks of 2 nodes with 2 ranks each, with a communicator of the world.
  // `settings` are those between nodes of rank 0, as it sends them.
  void OnAllRanks(const std::function<void(uint32_t, Communicator&, backend::Stream&)>& body,
                  const CommunicatorOptions& options = {}, const std::string& settings = "") {
    heap_bytes_ = 16 << 20;
    Start(2, 2);
    OnAll([&](uint32_t r) {
      OperationResult agreed, allocated;
      agreed.value = settings;
      allocated.offset_bytes = kWorkspace;
      planes_[r]->Script({FakeControlPlane::Decided(absl::OkStatus(), agreed),
                          FakeControlPlane::Decided(absl::OkStatus(), allocated)});
      auto made = Communicator::Create(context(r), backend_, context(r).world(), options);
      ASSERT_TRUE(made.ok()) << made.status();
      backend::Stream* stream = nullptr;
      ASSERT_TRUE(backend_.CreateStream(&stream).ok());
      body(r, **made, *stream);
      EXPECT_TRUE(backend_.Synchronize(*stream).ok());
      EXPECT_TRUE(context(r).teams().Barrier(context(r).world()).ok());
      backend_.DestroyStream(stream);
      EXPECT_TRUE((*made)->Destroy().ok());
    });
  }

  // Compares what a rank's log has with what the device has finished, each as irisd reads it.
  void CheckLog(uint32_t r, uint32_t n_operations) {
    const wire::CollectiveRecord& record = context(r).control_page()->collectives[0];
    EXPECT_EQ(record.n_put, n_operations);
    EXPECT_EQ(*At<uint32_t>(r, record.workspace_offset_bytes + record.finished_at), n_operations);
  }

  // Runs two GEMMs as a pair between all-reduces, each of which is `n_each` operations to a device.
  void CheckLogOfPairs(uint32_t n_each) {
    const auto run = [&](uint32_t r, Communicator& comm, backend::Stream& stream) {
      std::fill_n(In(r), 100, 0);
      ops::Matmul call;
      call.problem = {Operation::kMatmulAllReduce, {6, 8, 10, DType::kBf16, DType::kF32}};
      call.problem.variant = ops::Variant::kPair;
      call.a = call.b = In(r);
      call.lda = 10;
      call.ldb = call.ldd = 8;
      call.d = Out(r);
      for (uint32_t n = 0; n < 2; ++n) {
        ASSERT_TRUE(
            comm.Run({{Operation::kAllReduce, 7, DType::kI32}, In(r), Out(r)}, stream).ok());
        ASSERT_TRUE(comm.Matmul(call, stream).ok());
        ASSERT_TRUE(comm.Synchronize(stream).ok());
        CheckLog(r, (n + 1) * (1 + n_each));
      }
    };
    CommunicatorOptions options;
    options.matmul_bytes = 1 << 20;
    OnAllRanks(run, options);
  }

  int32_t* In(uint32_t r) { return At<int32_t>(r, kIn); }
  int32_t* Out(uint32_t r) { return At<int32_t>(r, kOut); }

  const backend::BackendOperations& backend_ = *iris_backend_operations();
};

TEST_F(CommunicatorNodesTest, CollectivesAndMessages) {
  OnAllRanks([&](uint32_t r, Communicator& comm, backend::Stream& stream) {
    for (const uint64_t count : {uint64_t{7}, uint64_t{100 * 1000}}) {
      for (uint64_t i = 0; i < count; ++i) In(r)[i] = static_cast<int32_t>(r + i);
      ASSERT_TRUE(
          comm.Run({{Operation::kAllReduce, count, DType::kI32}, In(r), Out(r)}, stream).ok());
      const absl::Status status = comm.Synchronize(stream);
      ASSERT_TRUE(status.ok()) << status;
      for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(Out(r)[i], static_cast<int32_t>(6 + 4 * i));
    }
    // The root is a world rank.
    ASSERT_TRUE(comm.Run({{Operation::kBroadcast, 9, DType::kI32}, In(r), Out(r), 3}, stream).ok());
    ASSERT_TRUE(comm.Synchronize(stream).ok());
    EXPECT_EQ(Out(r)[8], 3 + 8);
    ccl::Message messages[] = {{In(r), nullptr, 9, DType::kI32, (r + 1) % 4},
                               {nullptr, Out(r), 9, DType::kI32, (r + 3) % 4}};
    ASSERT_TRUE(comm.Exchange("sendrecv", absl::MakeSpan(messages), stream).ok());
    ASSERT_TRUE(comm.Synchronize(stream).ok());
    EXPECT_EQ(Out(r)[8], static_cast<int32_t>((r + 3) % 4 + 8));
    ASSERT_TRUE(comm.Run({{Operation::kBarrier}}, stream).ok());
    EXPECT_TRUE(comm.Synchronize(stream).ok());
  });
}

TEST_F(CommunicatorNodesTest, MoeByPorts) {
  moe::Config config;
  config.n_experts = 6;
  config.top_k = 2;
  config.hidden = 20;
  config.max_tokens = 3;
  config.in = DType::kF32;
  OnAllRanks([&](uint32_t r, Communicator& comm, backend::Stream& stream) {
    const auto sizes = Communicator::MoeSizes(context(r), backend_, 4, r, config);
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    moe::Sizes on_one_node;
    ASSERT_TRUE(backend_.MoeSizesOf(4, r, config, &on_one_node, false).ok());
    EXPECT_GT(sizes->workspace_bytes, on_one_node.workspace_bytes);
    ASSERT_TRUE(comm.PrepareMoe().ok());
    ASSERT_TRUE(context(r).teams().Barrier(context(r).world()).ok());
    void* const workspace = At<uint8_t>(r, kMoe);
    std::vector<float> rows(sizes->max_rows * config.hidden);
    auto* const x = reinterpret_cast<float*>(In(r));
    auto* const out = reinterpret_cast<float*>(Out(r));
    for (uint32_t i = 0; i < 60; ++i) x[i] = static_cast<float>(100 * r + i);
    std::vector<int32_t> ids = {0, 5, 3, 1, 4, 2};
    moe::Dispatch there;
    there.tokens = 3;
    there.x = x;
    there.ids = ids.data();
    there.rows = rows.data();
    ASSERT_TRUE(comm.MoeDispatch(config, workspace, there, stream).ok());
    ASSERT_TRUE(
        comm.MoeCombine(config, workspace, {3, rows.data(), DType::kF32, out, DType::kF32}, stream)
            .ok());
    const absl::Status status = comm.Synchronize(stream);
    ASSERT_TRUE(status.ok()) << status;
    for (uint32_t i = 0; i < 60; ++i) ASSERT_EQ(out[i], 2 * x[i]) << i;
    // All ranks are told which one is wrong.
    if (r == 3) ids[2] = 6;
    ASSERT_TRUE(comm.MoeDispatch(config, workspace, there, stream).ok());
    const absl::Status bad = comm.Synchronize(stream);
    EXPECT_EQ(bad.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(bad.message(), HasSubstr("moe_dispatch #2 of 4 ranks on 2 nodes: token 1 of rank 3 "
                                         "chooses expert 6, which there is not"));
    ASSERT_TRUE(comm.Reset().ok());
    ids[2] = 3;
    ASSERT_TRUE(comm.MoeDispatch(config, workspace, there, stream).ok());
    EXPECT_TRUE(comm.Synchronize(stream).ok());
  });
}

TEST_F(CommunicatorNodesTest, NormsByAPair) {
  OnAllRanks([&](uint32_t r, Communicator& comm, backend::Stream& stream) {
    for (const Operation operation :
         {Operation::kAllReduceRmsNorm, Operation::kReduceScatterRmsNormAllGather}) {
      norm::Norm call;
      call.problem = {operation, {6, 100, DType::kF32, DType::kF32}};
      call.problem.epsilon = 0;
      call.in = In(r);
      call.out = Out(r);
      auto* const in = reinterpret_cast<float*>(In(r));
      auto* const out = reinterpret_cast<float*>(Out(r));
      for (uint32_t i = 0; i < 600; ++i) {
        in[i] = i % 2 == 0 ? static_cast<float>(r + 1) : -static_cast<float>(r + 1);
        out[i] = 0;
      }
      const auto plan = comm.ChooseNorm(call.problem);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->variant, norm::Variant::kPair);
      ASSERT_TRUE(comm.Norm(call, stream).ok());
      const absl::Status status = comm.Synchronize(stream);
      ASSERT_TRUE(status.ok()) << status;
      for (uint32_t i = 0; i < 600; ++i) ASSERT_EQ(out[i], i % 2 == 0 ? 1 : -1);
      call.problem.variant = norm::Variant::kTwoShot;
      const absl::Status refused = comm.Norm(call, stream);
      EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(refused.message(), AllOf(HasSubstr("two_shot"), HasSubstr("use auto or pair"),
                                           HasSubstr("iris_team_local()")));
    }
  });
}

TEST_F(CommunicatorNodesTest, GemmsByAPair) {
  const auto problem_of = [](Operation operation) {
    return ops::Problem(operation, {6, 8, 10, DType::kBf16, DType::kF32});
  };
  CommunicatorOptions options;
  options.matmul_bytes = backend_.MatmulWorkspaceBytesOnNodes(
      4, problem_of(Operation::kAllGatherMatmul));  // the largest
  const auto run = [&](uint32_t r, Communicator& comm, backend::Stream& stream) {
    constexpr uint16_t kOne = 0x3f80;
    std::fill_n(reinterpret_cast<uint16_t*>(In(r)), 100, kOne);
    for (const Operation operation :
         {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter, Operation::kAllGatherMatmul,
          Operation::kMatmulAllGather, Operation::kMatmulAllScatter}) {
      ops::Matmul call;
      call.problem = problem_of(operation);
      const auto bytes = Communicator::MatmulBytes(context(r), backend_, 4, {}, call.problem);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_GE(*bytes, backend_.MatmulWorkspaceBytesOnNodes(4, call.problem));
      call.a = call.b = In(r);
      call.lda = 10;
      call.ldb = call.ldd = 8;
      call.d = Out(r);
      auto* const d = reinterpret_cast<float*>(Out(r));
      std::fill_n(d, 48, 0.0f);
      const auto plan = comm.ChooseMatmul(call);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->variant, ops::Variant::kPair);
      ASSERT_TRUE(comm.Matmul(call, stream).ok());
      const absl::Status status = comm.Synchronize(stream);
      ASSERT_TRUE(status.ok()) << status;
      const bool sums =
          operation == Operation::kMatmulAllReduce || operation == Operation::kMatmulReduceScatter;
      const uint64_t rows =
          operation == Operation::kMatmulReduceScatter ? ops::ShareOf(6, 4, r).count : 6;
      for (uint64_t i = 0; i < 48; ++i) ASSERT_EQ(d[i], i >= rows * 8 ? 0 : sums ? 40 : 10);
      call.problem.variant = ops::Variant::kPersistent;
      const absl::Status refused = comm.Matmul(call, stream);
      EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(refused.message(), AllOf(HasSubstr("persistent"), HasSubstr("use auto or pair"),
                                           HasSubstr("iris_team_local()")));
    }
    const auto bad =
        Communicator::MatmulBytes(context(r), backend_, 5, {}, problem_of(Operation::kBarrier));
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Communicator::MatmulBytes(context(r), backend_, 4, {.block_threads = 1u << 20},
                                        problem_of(Operation::kMatmulAllReduce))
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
    ops::Matmul large;
    large.problem = problem_of(Operation::kMatmulAllReduce);
    large.problem.m = 1000;
    EXPECT_EQ(comm.ChooseMatmul(large).status().code(), absl::StatusCode::kResourceExhausted);
    ops::Matmul call;
    call.problem = problem_of(Operation::kMatmulAllReduce);
    call.problem.k = 5 + r % 2;  // may differ
    call.problem.m = r < 2 ? 5 : 4;
    call.a = call.b = In(r);
    call.d = Out(r);
    call.lda = call.ldb = call.ldd = 8;
    ASSERT_TRUE(comm.Matmul(call, stream).ok());
    const absl::Status status = comm.Synchronize(stream);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("matmul_all_reduce #5 of 4 ranks on 2 nodes: rank "),
                      HasSubstr("matmul_all_reduce(m=5, n=8"), HasSubstr("(m=4, n=8"),
                      HasSubstr("variant=pair")));
  };
  OnAllRanks(run, options);
}

TEST_F(CommunicatorNodesTest, TheLogCountsAPairOfSeveralNodesOnce) { CheckLogOfPairs(1); }

// The round that compares the calls, and the collective.
TEST_F(CommunicatorNodesTest, TheLogCountsAPairOfMappedRanksTwice) {
  fabric_ = true;
  CheckLogOfPairs(2);
}

TEST_F(CommunicatorNodesTest, GemmsNeedAWorkspace) {
  OnAllRanks([&](uint32_t, Communicator& comm, backend::Stream&) {
    ops::Matmul call;
    call.problem = {Operation::kMatmulAllReduce, {1, 1, 1}};
    const absl::Status status = comm.ChooseMatmul(call).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("matmul_bytes"));
  });
}

TEST_F(CommunicatorNodesTest, CallsThatDifferAreNamedAndResetHelps) {
  OnAllRanks([&](uint32_t r, Communicator& comm, backend::Stream& stream) {
    const uint64_t count = r < 2 ? 7 : 8;
    ASSERT_TRUE(
        comm.Run({{Operation::kAllReduce, count, DType::kI32}, In(r), Out(r)}, stream).ok());
    const absl::Status status = comm.Synchronize(stream);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("all_reduce #0 of 4 ranks on 2 nodes: rank "),
                      HasSubstr(absl::StrCat("rank ", r, " called all_reduce(count=", count)),
                      HasSubstr(absl::StrCat("all_reduce(count=", 15 - count))));
    EXPECT_EQ(comm.Run({{Operation::kBarrier}}, stream).code(),
              absl::StatusCode::kFailedPrecondition);
    const absl::Status reset = comm.Reset();
    ASSERT_TRUE(reset.ok()) << reset;
    In(r)[0] = 1;
    ASSERT_TRUE(comm.Run({{Operation::kAllReduce, 1, DType::kI32}, In(r), Out(r)}, stream).ok());
    EXPECT_TRUE(comm.Synchronize(stream).ok());
    EXPECT_EQ(Out(r)[0], 4);
  });
}

// Each node has rules of its own. Pieces of different sizes would mix up the data.
TEST_F(CommunicatorNodesTest, TheRulesOfTheFirstRankHoldForAll) {
  heap_bytes_ = 16 << 20;
  Start(2, 2);
  const absl::StatusOr<Rules> rules[] = {
      ParseRules("nodes any any leaders_most_bytes 1\nnodes any any piece_bytes 8KiB\n",
                 backend_.HasVariant),
      ParseRules("nodes any any piece_bytes 64KiB\nnodes any any leader_bytes 8KiB\n",
                 backend_.HasVariant)};
  std::mutex mu;
  std::set<uint64_t> workspaces;
  OnAll([&](uint32_t r) {
    CommunicatorOptions options;
    options.nodes_rules = rules[r / 2]->nodes;
    OperationResult agreed, allocated;
    agreed.value = FormatNodesConfig(NodesConfigOf(rules[0]->nodes, 2));
    allocated.offset_bytes = kWorkspace;
    planes_[r]->Script({FakeControlPlane::Decided(absl::OkStatus(), agreed),
                        FakeControlPlane::Decided(absl::OkStatus(), allocated)});
    planes_[r]->on_operate = [&](const OperationCall& call) {
      std::lock_guard<std::mutex> lock(mu);
      if (const auto* broadcast = std::get_if<BroadcastOp>(&call.op)) {
        EXPECT_EQ(broadcast->root, 0u);
        EXPECT_EQ(broadcast->value, r == 0 ? agreed.value : "");
      }
      if (const auto* wanted = std::get_if<AllocateOptions>(&call.op)) {
        workspaces.insert(wanted->bytes);
      }
    };
    auto made = Communicator::Create(context(r), backend_, context(r).world(), options);
    ASSERT_TRUE(made.ok()) << made.status();
    backend::Stream* stream = nullptr;
    ASSERT_TRUE(backend_.CreateStream(&stream).ok());
    constexpr uint64_t kCount = 100 * 1000;
    for (uint64_t i = 0; i < kCount; ++i) In(r)[i] = static_cast<int32_t>(r + i);
    ASSERT_TRUE(
        (*made)->Run({{Operation::kAllReduce, kCount, DType::kI32}, In(r), Out(r)}, *stream).ok());
    const absl::Status status = (*made)->Synchronize(*stream);
    EXPECT_TRUE(status.ok()) << status;
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(Out(r)[i], static_cast<int32_t>(6 + 4 * i));
    EXPECT_TRUE(context(r).teams().Barrier(context(r).world()).ok());
    backend_.DestroyStream(stream);
    EXPECT_TRUE((*made)->Destroy().ok());
  });
  EXPECT_EQ(workspaces.size(), 1u);
}

// The heap bounds what rules may take, and what comes from another node is checked.
TEST_F(CommunicatorNodesTest, SettingsOfTheFirstRankAreBoundedAndChecked) {
  OnAllRanks(
      [&](uint32_t r, Communicator& comm, backend::Stream& stream) {
        In(r)[0] = 1;
        ASSERT_TRUE(
            comm.Run({{Operation::kAllReduce, 1, DType::kI32}, In(r), Out(r)}, stream).ok());
        EXPECT_TRUE(comm.Synchronize(stream).ok());
        EXPECT_EQ(Out(r)[0], 4);
        OperationResult agreed;
        agreed.value = "nodes any any piece_bytes 3\n";
        planes_[r]->Script({FakeControlPlane::Decided(absl::OkStatus(), agreed)});
        const absl::Status status =
            Communicator::Create(context(r), backend_, context(r).world()).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(),
                    AllOf(HasSubstr("the settings between nodes of rank 0: line 1 of the rules"),
                          HasSubstr("piece_bytes is \"3\"")));
      },
      {}, "nodes any any piece_bytes 1GiB\nnodes any any leader_bytes 1GiB\n");
}

}  // namespace
}  // namespace iris::internal
