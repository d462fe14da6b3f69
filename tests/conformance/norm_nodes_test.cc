// Norms of sums of teams with ranks on several nodes, which a PortThread simulates: both operations
// against sums in double, and failures.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/call_record.h"
#include "iris/norm/norm.h"
#include "iris/translate.h"
#include "tests/conformance/nodes_team.h"
#include "tests/conformance/norm_cases.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using namespace norm_cases;  // NOLINT(build/namespaces)
using ccl::NodesErrorInfo;
using ccl::NodesPath;

// A rank of a team with buffers for norms. Null `mine` in ranks that are not in it.
struct NormTeam {
  NormTeam(Rank& rank, const Shape& shape, NodesPath path)
      : team(rank, shape, SmallPieces(path), [&](const DeviceTeam& of_node) {
          auto made = std::make_unique<Member>(rank, of_node, ccl::Config{});
          const Comm comm = made->comm;
          if (comm.team.size != 0) mine = std::move(made);
          return comm;
        }) {
    if (mine != nullptr) mine->nodes = &team.comm;
  }

  std::unique_ptr<Member> mine;
  Team team;
};

// Runs body(rank, norms) on all ranks of the team.
template <typename Body>
void OnTeam(const Shape& shape, NodesPath path, Body body, uint64_t timeout_ns = kTestTimeoutNs) {
  local::WorldOptions options = OptionsOf(shape);
  options.heap_bytes = backend::Traits::kEmulated ? 64 << 20 : 512 << 20;
  options.timeout_ns = timeout_ns;
  World(options).Run([&](Rank& rank) {
    NormTeam norms(rank, shape, path);
    if (norms.mine != nullptr) body(rank, norms);
    rank.HostBarrier();
  });
}

// Random shapes, of fewer rows than ranks, of one chunk and of several, and a row of 32 KiB.
std::vector<Case> RandomCases(uint32_t seed, uint32_t n) {
  struct Dimensions {
    uint64_t rows, hidden;
  };
  constexpr Dimensions kDimensions[] = {{1, 1},     {3, 7},    {5, 130},  {2, 1000},
                                        {40, 1024}, {9, 515},  {1, 8192}, {64, 64},
                                        {23, 1400}, {30, 128}, {4, 4096}};
  std::vector<Case> cases;
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t state = Mix(seed * 1000 + i + 1);
    const auto below = [&state](uint32_t limit) { return (state = Mix(state)) % limit; };
    constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBf16, DType::kNone};
    Case c;
    Problem& p = c.problem;
    p.operation = i % 2 == 0 ? kAll : kSharded;
    const Dimensions& d = kDimensions[below(std::size(kDimensions))];
    p.rows = d.rows;
    // A row of each rank has room in the scratch memory.
    p.hidden = p.operation == kSharded ? std::min<uint64_t>(d.hidden, 1024) : d.hidden;
    p.in = kTypes[below(3)];
    p.scaling = static_cast<Scaling>(below(norm::kScalingCount));
    p.out = p.scaling != Scaling::kNone ? (below(2) != 0 ? DType::kF8E4M3 : DType::kF8E5M2)
            : p.in == DType::kF32       ? kTypes[below(3)]
                                        : p.in;
    p.weight = kTypes[below(4)];
    if (p.weight != DType::kNone && below(2) != 0) p.weight_offset = 1;
    p.residual = below(2) != 0;
    p.variant = below(2) != 0 ? Variant::kPair : Variant::kAuto;
    c.shift = below(2);
    c.in_place = below(2) != 0;
    c.apart = below(2) != 0;
    constexpr uint64_t kGaps[] = {0, 16, 5};
    c.gap = kGaps[below(3)];
    c.seed = state % 10000 + 1;
    cases.push_back(c);
  }
  return cases;
}

void TryAll(const Shape& shape, NodesPath path, uint32_t seed) {
  const std::vector<Case> cases = RandomCases(seed, kSlower > 4 ? 3 : kSlower > 1 ? 8 : 30);
  const auto n = static_cast<uint32_t>(MembersOf(shape).size());
  std::vector<std::vector<std::vector<uint8_t>>> results(cases.size());
  for (auto& each : results) each.resize(n);
  OnTeam(shape, path, [&](Rank& rank, NormTeam& norms) {
    Member& member = *norms.mine;
    auto* const word = static_cast<uint32_t*>(backend::MallocDevice(sizeof(uint32_t)));
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const std::string what = Name(c);
      // Not in place, a norm gives the same twice. A collective follows at once.
      const Norm call = member.Fill(c);
      rank.Write(word, 1u);
      for (int k = 0; k < (c.in_place ? 1 : 2); ++k) {
        ExpectOk(member.Launch(call));
        ExpectOk(ccl::RunOnNodes(
            norms.team.comm, {{Operation::kAllReduce, 1, DType::kI32}, word, word}, rank.stream));
      }
      EXPECT_EQ(rank.Read(word), c.in_place ? n : n * n);
      ExpectOk(member.CheckError());
      results[i][member.index()] = member.ReadAll(c);
      (void)member.Check(c, what);
    }
    backend::FreeDevice(word);
  });
  for (size_t i = 0; i < cases.size(); ++i) {
    for (uint32_t m = 1; m < n; ++m) {
      EXPECT_EQ(results[i][m], results[i][0]) << Name(cases[i]) << ", member " << m;
    }
  }
}

TEST(NormNodesTest, TwoNodes) {
  TryAll({2, 2}, NodesPath::kLeaders, 1);
  TryAll({2, 2}, NodesPath::kRails, 2);
  TryAll({2, 1}, NodesPath::kRails, 3);
}
TEST(NormNodesTest, ThreeNodes) {
  TryAll({3, 2, {}, 9, 30}, NodesPath::kRails, 4);
  TryAll({3, 1}, NodesPath::kAuto, 5);
}
TEST(NormNodesTest, UnevenTeamsAndTeamsOfSomeRanks) {
  TryAll({2, 3, {0, 1, 2, 4}}, NodesPath::kAuto, 6);
  TryAll({3, 2, {5, 0, 1, 3}}, NodesPath::kAuto, 7);
}

TEST(NormNodesTest, GraphsReplay) {
  OnTeam({2, 2}, NodesPath::kAuto, [&](Rank& rank, NormTeam& norms) {
    Member& member = *norms.mine;
    for (Case c : RandomCases(9, 4)) {
      c.in_place = false;
      const Norm call = member.Fill(c);
      rank.Synchronize();
      backend::Graph graph;
      ExpectOk(backend::BeginCapture(rank.stream));
      ExpectOk(member.Launch(call));
      ExpectOk(backend::EndCapture(rank.stream, &graph));
      for (const uint32_t seed : {c.seed, c.seed + 77}) {
        c.seed = seed;
        (void)member.Fill(c);
        ExpectOk(backend::LaunchGraph(graph, rank.stream));
        ExpectOk(backend::LaunchGraph(graph, rank.stream));
        rank.Synchronize();
        (void)member.Check(c, Name(c));
      }
      ExpectOk(member.CheckError());
    }
  });
}

Case SomeCase(Operation operation) {
  Case c;
  c.problem = {operation, {24, 640}};
  c.problem.residual = true;
  return c;
}

// Rank 3 of the second node, or all its ranks, call something else: other rows, or only another
// epsilon. All ranks are told, and go on after a reset.
TEST(NormNodesTest, CallsThatDifferFailOnAllRanks) {
  for (const uint32_t first : {2u, 3u}) {
    for (const bool rows : {true, false}) {
      OnTeam({2, 2}, NodesPath::kAuto, [&](Rank& rank, NormTeam& norms) {
        Member& member = *norms.mine;
        const ccl::NodesComm& comm = norms.team.comm;
        const Case c = SomeCase(rows ? kAll : kSharded);
        Case mine = c;
        Case other = c;
        if (rows) {
          other.problem.rows = 2;
        } else {
          other.problem.epsilon = 1e-5f;
        }
        const bool differs = rank.rank() >= first;
        if (differs) mine = other;
        ExpectOk(member.Launch(member.Fill(mine)));
        rank.Synchronize();
        NodesErrorInfo info;
        EXPECT_EQ(ccl::CheckNodesError(comm, &info).code, StatusCode::kInvalidArgument);
        EXPECT_EQ(info.operation, c.problem.operation);
        if (first == 2) {
          ASSERT_TRUE(info.has_calls);
          const Problem& theirs = differs ? c.problem : other.problem;
          EXPECT_EQ(norm::Unpack(info.mine).problem.rows, mine.problem.rows);
          EXPECT_EQ(norm::Unpack(info.mine).problem.epsilon, mine.problem.epsilon);
          EXPECT_EQ(norm::Unpack(info.theirs).problem.rows, theirs.rows);
          EXPECT_EQ(norm::Unpack(info.theirs).problem.epsilon, theirs.epsilon);
        } else {
          EXPECT_EQ(info.local, comm.node == 1);
          EXPECT_EQ(info.elsewhere, comm.node == 0);
        }
        EXPECT_EQ(member.Launch(member.Fill(c)).code, StatusCode::kFailedPrecondition);
        Recover(rank, comm);
        member.Run(c, "after the reset");
        (void)member.Check(c, "after the reset");
      });
    }
  }
}

TEST(NormNodesTest, AMissingRankIsNamed) {
  for (const uint32_t missing : {1u, 3u}) {
    OnTeam(
        {2, 2}, NodesPath::kAuto,
        [&](Rank& rank, NormTeam& norms) {
          const Norm call = norms.mine->Fill(SomeCase(kSharded));
          rank.HostBarrier();
          if (rank.rank() == missing) return;
          ExpectOk(norms.mine->Launch(call));
          rank.Synchronize();
          NodesErrorInfo info;
          EXPECT_EQ(ccl::CheckNodesError(norms.team.comm, &info).code,
                    StatusCode::kDeadlineExceeded);
          EXPECT_EQ(info.operation, kSharded);
          EXPECT_EQ(info.member_index, missing) << "rank " << rank.rank();
        },
        600 * 1000 * 1000);
  }
}

TEST(NormNodesTest, ChoosesPairAndRefusesWhatItCannotDo) {
  OnTeam({2, 2}, NodesPath::kAuto, [&](Rank& rank, NormTeam& norms) {
    Member& member = *norms.mine;
    const ccl::NodesComm& comm = norms.team.comm;
    const Case c = SomeCase(kAll);
    const Norm good = member.Fill(c);
    Plan plan;
    ExpectOk(norm::ChooseOnNodes(comm, good.problem, &plan));
    EXPECT_EQ(plan.variant, Variant::kPair);
    EXPECT_GT(plan.blocks, 0u);
    for (const Variant variant : {Variant::kPackets, Variant::kLines, Variant::kTwoShot,
                                  Variant::kTwoLines, Variant::kAlone}) {
      Norm call = good;
      call.problem.variant = variant;
      const Result result = member.Launch(call);
      EXPECT_EQ(result.code, StatusCode::kUnimplemented);
      EXPECT_NE(std::string(result.what).find(std::string("variant ") + norm::VariantName(variant)),
                std::string::npos)
          << result.what;
    }
    // On one node there are better ones.
    Problem pair = c.problem;
    pair.variant = Variant::kPair;
    EXPECT_EQ(norm::Choose(member.comm, pair, &plan).code, StatusCode::kUnimplemented);
    Norm call = good;
    call.in = AtOffset<void>(rank.ctx, rank.rank(), comm.workspace_offset_bytes);
    EXPECT_EQ(member.Launch(call).code, StatusCode::kInvalidArgument);
    call = good;
    call.residual = nullptr;
    EXPECT_EQ(member.Launch(call).code, StatusCode::kInvalidArgument);
    call = good;
    call.problem.hidden = call.in_stride = call.out_stride = call.residual_stride =
        call.residual_out_stride = 16385;
    EXPECT_EQ(member.Launch(call).code, StatusCode::kUnimplemented);
    call.problem.operation = kSharded;
    EXPECT_EQ(member.Launch(call).code, StatusCode::kResourceExhausted);
    call = good;
    call.problem.rows = 0;
    ExpectOk(member.Launch(call));
    rank.Synchronize();
    ExpectOk(member.CheckError());
  });
}

}  // namespace
}  // namespace iris::conformance
