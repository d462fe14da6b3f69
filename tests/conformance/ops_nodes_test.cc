// GEMMs of teams with ranks on several nodes, which a PortThread simulates: all operations against
// sums in double, and failures.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/nodes/nodes.h"
#include "iris/ops/call_record.h"
#include "iris/ops/ops.h"
#include "iris/translate.h"
#include "tests/conformance/nodes_team.h"
#include "tests/conformance/ops_cases.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::NodesErrorInfo;
using ccl::NodesPath;
using ops::LaunchPlan;

// A rank of a team with room for GEMMs. Null `mine` in ranks that are not in it.
struct GemmTeam {
  GemmTeam(Rank& rank, const Shape& shape, const std::vector<Case>& cases, NodesPath path)
      : team(rank, shape, SmallPieces(path), [&](const DeviceTeam& of_node) {
          uint64_t bytes = 0;
          const auto n = static_cast<uint32_t>(MembersOf(shape).size());
          for (const Case& c : cases) {
            for (uint32_t m = 0; m < n; ++m) {
              bytes = std::max(bytes, ops::WorkspaceBytesOnNodes(n, LocalOf(c, n, m).problem));
            }
          }
          EXPECT_NE(bytes, 0u);
          auto made = std::make_unique<Member>(rank, of_node, bytes, ccl::Config{}, true);
          const ccl::Comm comm = made->comm;
          if (comm.team.size != 0) mine = std::move(made);
          return comm;
        }) {
    if (mine != nullptr) mine->nodes = &team.comm;
  }

  std::unique_ptr<Member> mine;
  Team team;
};

// Runs body(rank, gemms) on all ranks of the team.
template <typename Body>
void OnTeam(const Shape& shape, const std::vector<Case>& cases, NodesPath path, Body body) {
  local::WorldOptions options = OptionsOf(shape);
  options.heap_bytes = 96 << 20;
  World(options).Run([&](Rank& rank) {
    GemmTeam gemms(rank, shape, cases, path);
    if (gemms.mine != nullptr) body(rank, gemms);
    rank.HostBarrier();
  });
}

// Each operation with random shapes, types, biases, activations and leading dimensions.
std::vector<Case> RandomCases(uint32_t seed, uint32_t each) {
  std::vector<Case> cases;
  for (const Operation operation : kOperations) {
    for (uint32_t i = 0; i < each; ++i) {
      uint32_t state = Mix(seed * 1000 + static_cast<uint32_t>(cases.size()) + 1);
      const auto below = [&state](uint32_t limit) { return (state = Mix(state)) % limit; };
      constexpr DType kTypes[] = {DType::kF16, DType::kBf16, DType::kF32, DType::kNone};
      Case c;
      c.problem = {
          operation,
          {1 + below(90), 1 + below(90), 1 + below(60), kTypes[below(2)], kTypes[below(3)]}};
      c.problem.bias = kTypes[below(4)];
      c.problem.transposed_b = below(2) != 0;
      c.problem.activation = static_cast<Activation>(below(ops::kActivationCount));
      c.problem.variant = below(2) != 0 ? Variant::kPair : Variant::kAuto;
      constexpr uint64_t kPads[] = {0, 8, 3};
      c.pad = kPads[below(3)];
      c.shift = below(2);
      c.seed = state % 10000 + 1;
      cases.push_back(c);
    }
  }
  // Whole rows and no bias, so that the collective writes D itself; and fewer rows than ranks.
  for (const Operation operation : kOperations) {
    Case c;
    c.problem = {operation, {24, 40, 16, DType::kBf16, DType::kF32}};
    cases.push_back(c);
    c.problem.m = c.problem.n = 2;
    cases.push_back(c);
  }
  return cases;
}

void TryAll(const Shape& shape, NodesPath path, uint32_t seed) {
  const std::vector<Case> cases = RandomCases(seed, kSlower > 4 ? 2 : 8);
  const auto n = static_cast<uint32_t>(MembersOf(shape).size());
  std::vector<std::vector<std::vector<uint8_t>>> results(cases.size());
  for (auto& each : results) each.resize(n);
  OnTeam(shape, cases, path, [&](Rank& rank, GemmTeam& gemms) {
    Member& member = *gemms.mine;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const std::string what = Name(c) + " seed " + std::to_string(seed);
      const Matmul call = member.Fill(c);
      // Twice without a barrier, and a collective between them.
      auto* const word = static_cast<uint32_t*>(backend::MallocDevice(sizeof(uint32_t)));
      rank.Write(word, 1u);
      for (int k = 0; k < 2; ++k) {
        ExpectOk(member.Launch(call));
        ExpectOk(ccl::RunOnNodes(
            gemms.team.comm, {{Operation::kAllReduce, 1, DType::kI32}, word, word}, rank.stream));
      }
      EXPECT_EQ(rank.Read(word), n * n);
      backend::FreeDevice(word);
      ExpectOk(member.CheckError());
      results[i][member.index()] = member.ReadD(c);
      (void)member.Check(c, results[i][member.index()], what);
    }
  });
  for (size_t i = 0; i < cases.size(); ++i) {
    for (uint32_t m = 1; m < n && ToAll(cases[i].problem.operation); ++m) {
      EXPECT_EQ(results[i][m], results[i][0]) << Name(cases[i]) << ", member " << m;
    }
  }
}

TEST(OpsNodesTest, TwoNodes) {
  TryAll({2, 2}, NodesPath::kLeaders, 1);
  TryAll({2, 2}, NodesPath::kRails, 2);
  TryAll({2, 1}, NodesPath::kRails, 3);
}
TEST(OpsNodesTest, ThreeNodes) {
  TryAll({3, 2, {}, 9, 30}, NodesPath::kRails, 4);
  TryAll({3, 1}, NodesPath::kLeaders, 5);
}
TEST(OpsNodesTest, UnevenTeamsAndTeamsOfSomeRanks) {
  TryAll({2, 3, {0, 1, 2, 4}}, NodesPath::kAuto, 6);
  TryAll({3, 2, {5, 0, 1, 3}}, NodesPath::kAuto, 7);
  TryAll({3, 2, {1, 3, 5}}, NodesPath::kAuto, 8);
}

TEST(OpsNodesTest, GraphsReplay) {
  const std::vector<Case> cases = RandomCases(9, 1);
  OnTeam({2, 2}, cases, NodesPath::kAuto, [&](Rank& rank, GemmTeam& gemms) {
    Member& member = *gemms.mine;
    for (const Case& c : cases) {
      const Matmul call = member.Fill(c);
      rank.Synchronize();
      backend::Graph graph;
      ExpectOk(backend::BeginCapture(rank.stream));
      ExpectOk(member.Launch(call));
      ExpectOk(backend::EndCapture(rank.stream, &graph));
      Case other = c;
      other.seed += 77;
      for (const Case& data : {c, other}) {
        (void)member.Fill(data);
        ExpectOk(backend::LaunchGraph(graph, rank.stream));
        ExpectOk(backend::LaunchGraph(graph, rank.stream));
        (void)member.Check(data, member.ReadD(data), Name(data));
      }
      ExpectOk(member.CheckError());
    }
  });
}

Case SumCase() {
  Case c;
  c.problem = {Operation::kMatmulAllReduce, {40, 30, 20, DType::kBf16, DType::kF32}};
  return c;
}

// Rank 3 of the second node, or all its ranks, call something else: another shape, one with which
// the collective takes the other path, or only another activation. All ranks are told, and go on
// after a reset.
TEST(OpsNodesTest, CallsThatDifferFailOnAllRanks) {
  const Case c = SumCase();
  std::vector<Case> others(3, c);
  others[0].problem.n = 31;
  others[1].problem.n = 20;
  others[2].problem.activation = Activation::kRelu;
  for (const uint32_t first : {2u, 3u}) {
    for (const Case& other : others) {
      OnTeam({2, 2}, {c, other}, NodesPath::kAuto, [&](Rank& rank, GemmTeam& gemms) {
        Member& member = *gemms.mine;
        const ccl::NodesComm& comm = gemms.team.comm;
        const bool differs = rank.rank() >= first;
        ExpectOk(member.Launch(member.Fill(differs ? other : c)));
        rank.Synchronize();
        NodesErrorInfo info;
        EXPECT_EQ(ccl::CheckNodesError(comm, &info).code, StatusCode::kInvalidArgument);
        EXPECT_EQ(info.operation, Operation::kMatmulAllReduce);
        if (first == 2) {
          EXPECT_TRUE(info.has_calls);
          const Problem& mine = differs ? other.problem : c.problem;
          const Problem& theirs = differs ? c.problem : other.problem;
          EXPECT_EQ(ops::Unpack(info.mine).n, mine.n);
          EXPECT_EQ(ops::Unpack(info.theirs).n, theirs.n);
          EXPECT_EQ(ops::Unpack(info.mine).activation, mine.activation);
          EXPECT_EQ(ops::Unpack(info.theirs).activation, theirs.activation);
        } else {
          EXPECT_EQ(info.local, comm.node == 1);
          EXPECT_EQ(info.elsewhere, comm.node == 0);
        }
        EXPECT_EQ(member.Launch(member.Fill(c)).code, StatusCode::kFailedPrecondition);
        Recover(rank, comm);
        member.Run(c, "after the reset");
        (void)member.Check(c, member.ReadD(c), "after the reset");
      });
    }
  }
}

TEST(OpsNodesTest, AMissingRankIsNamed) {
  for (const uint32_t missing : {1u, 3u}) {
    local::WorldOptions options = OptionsOf({2, 2});
    options.heap_bytes = 96 << 20;
    options.timeout_ns = 600 * 1000 * 1000;
    World(options).Run([&](Rank& rank) {
      GemmTeam gemms(rank, {2, 2}, {SumCase()}, NodesPath::kAuto);
      const Matmul call = gemms.mine->Fill(SumCase());
      rank.HostBarrier();
      if (rank.rank() == missing) return rank.HostBarrier();
      ExpectOk(gemms.mine->Launch(call));
      rank.Synchronize();
      NodesErrorInfo info;
      EXPECT_EQ(ccl::CheckNodesError(gemms.team.comm, &info).code, StatusCode::kDeadlineExceeded);
      EXPECT_EQ(info.operation, Operation::kMatmulAllReduce);
      EXPECT_EQ(info.member_index, missing) << "rank " << rank.rank();
      rank.HostBarrier();
    });
  }
}

TEST(OpsNodesTest, ChoosesPairAndRefusesWhatNeedsMapping) {
  const Case c = SumCase();
  OnTeam({2, 2}, {c}, NodesPath::kAuto, [&](Rank& rank, GemmTeam& gemms) {
    Member& member = *gemms.mine;
    const ccl::NodesComm& comm = gemms.team.comm;
    const Matmul good = member.Fill(c);
    LaunchPlan plan;
    ExpectOk(ops::ChooseOnNodes(comm, good, &plan));
    EXPECT_EQ(plan.variant, Variant::kPair);
    // A table does not choose what cannot run.
    ASSERT_NE(comm.local.products, nullptr);
    comm.local.products->rules = {{Operation::kMatmulAllReduce, 0, 0, 0, 0, Variant::kFused}};
    ExpectOk(ops::LaunchOnNodes(comm, good, rank.stream, &plan));
    EXPECT_EQ(plan.variant, Variant::kPair);
    EXPECT_EQ(plan.workspace_bytes, ops::WorkspaceBytesOnNodes(4, c.problem));
    rank.Synchronize();
    for (const Variant variant : {Variant::kFused, Variant::kPersistent, Variant::kCopyEngine}) {
      Matmul call = good;
      call.problem.variant = variant;
      const Result result = member.Launch(call);
      EXPECT_EQ(result.code, StatusCode::kUnimplemented);
      EXPECT_NE(std::string(result.what).find(std::string("variant ") + ops::VariantName(variant)),
                std::string::npos)
          << result.what;
      EXPECT_EQ(ops::WorkspaceBytesOnNodes(4, call.problem), 0u);
    }
    Matmul call = good;
    call.a = AtOffset<void>(rank.ctx, rank.rank(), comm.workspace_offset_bytes);
    EXPECT_EQ(member.Launch(call).code, StatusCode::kInvalidArgument);
    call = good;
    call.b = AtOffset<void>(rank.ctx, rank.rank(), comm.local.workspace_offset_bytes);
    EXPECT_EQ(member.Launch(call).code, StatusCode::kInvalidArgument);
    call = good;
    call.problem.m = call.problem.k = call.lda = 3000;
    EXPECT_EQ(member.Launch(call).code, StatusCode::kResourceExhausted);
    EXPECT_EQ(ops::WorkspaceBytesOnNodes(0, c.problem), 0u);
    ExpectOk(member.CheckError());
  });
}

}  // namespace
}  // namespace iris::conformance
