// MoE dispatch and combine of teams with ranks on several nodes, which a PortThread simulates,
// against the reference of moe_cases.h; and failures.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/moe/call_record.h"
#include "iris/moe/moe.h"
#include "iris/nodes/nodes.h"
#include "iris/translate.h"
#include "tests/conformance/moe_cases.h"
#include "tests/conformance/nodes_team.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using namespace moe_cases;  // NOLINT(build/namespaces)
using ccl::NodesErrorInfo;
using ccl::NodesPath;

// Runs body(rank, team) on all ranks of the team.
template <typename Body>
void OnTeam(const Shape& shape, Body body, uint64_t timeout_ns = kTestTimeoutNs) {
  local::WorldOptions options = OptionsOf(shape);
  options.heap_bytes = (backend::Traits::kEmulated ? 4 : 1) * kHeapBytes;
  options.timeout_ns = timeout_ns;
  World(options).Run([&](Rank& rank) {
    Team team(rank, shape, SmallPieces(NodesPath::kAuto));
    ExpectOk(moe::Prepare());
    rank.HostBarrier();
    body(rank, team);
    rank.HostBarrier();
  });
}

// A rank's side of a case, which all ranks of the world make, for memory at the same place.
Member MemberOf(Rank& rank, const Team& team, const Case& c) {
  return Member(rank, team.n(), team.index, c, team.comm.local, &team.comm);
}

void TryAll(const Shape& shape, uint32_t seed) {
  OnTeam(shape, [&](Rank& rank, Team& team) {
    for (uint32_t round = 0; round < (kSlower > 4 ? 2u : kSlower > 1 ? 5u : 20u); ++round) {
      Case c = RandomCase(seed, round);
      SCOPED_TRACE(Name(c, team.n()) + ", round " + std::to_string(round));
      Member member = MemberOf(rank, team, c);
      rank.HostBarrier();
      for (uint32_t again = 0; again < 2 && team.index != ~0u; ++again) {
        c.seed = 1000 * round + again;
        member.Run(c);
      }
      rank.HostBarrier();
    }
  });
}

TEST(MoeNodesTest, TwoNodes) {
  TryAll({2, 2}, 1);
  TryAll({2, 1}, 2);
}
TEST(MoeNodesTest, ThreeNodes) {
  TryAll({3, 2, {}, 9, 30}, 3);
  TryAll({3, 1}, 4);
}
TEST(MoeNodesTest, UnevenTeamsAndTeamsOfSomeRanks) {
  TryAll({2, 3, {0, 1, 2, 4}}, 5);
  TryAll({3, 2, {5, 0, 1, 3}}, 6);
}

// Two workspaces: the second dispatch comes before the first combine. No wait between operations,
// among which are collectives. The bits are the same each time.
TEST(MoeNodesTest, OperationsFollowEachOther) {
  OnTeam({2, 2}, [&](Rank& rank, Team& team) {
    Case c;
    c.config = ConfigOf(9, 3, 40, 10, DType::kBf16);
    Case d = c;
    d.seed = 2;
    Member first = MemberOf(rank, team, c);
    Member second = MemberOf(rank, team, d);
    uint32_t* const word = rank.New<uint32_t>(1);
    first.Fill(c);
    second.Fill(d);
    rank.Write(word, 1u);
    ExpectOk(first.Dispatch());
    ExpectOk(second.Dispatch());
    rank.Synchronize();
    first.CheckRows();
    second.CheckRows();
    ExpectOk(first.Combine());
    ExpectOk(ccl::RunOnNodes(team.comm, {{Operation::kAllReduce, 1, DType::kI32}, word, word},
                             rank.stream));
    ExpectOk(second.Combine());
    ExpectOk(first.Combine());
    rank.Synchronize();
    ExpectOk(first.CheckError());
    EXPECT_EQ(rank.Read(word), 4u);
    first.CheckOut();
    second.CheckOut();
    const std::vector<uint8_t> out = first.ReadOut();
    for (uint32_t again = 0; again < 3; ++again) {
      ExpectOk(first.Dispatch());
      ExpectOk(first.Combine());
      rank.Synchronize();
      EXPECT_EQ(first.ReadOut(), out);
    }
  });
}

// Rank 2 alone has tokens, all of them for rank 3, which hears from the other node at once.
TEST(MoeNodesTest, WaitsForRanksOfItsNode) {
  OnTeam({2, 2}, [&](Rank& rank, Team& team) {
    Case c;
    c.config = ConfigOf(4, 1, 1500, 40, DType::kF32);
    c.routing = Routing::kOneExpert;
    c.tokens = {0, 0, 40, 0};
    Member member = MemberOf(rank, team, c);
    rank.HostBarrier();
    member.Run(c);
  });
}

TEST(MoeNodesTest, GraphsReplay) {
  OnTeam({2, 2}, [&](Rank& rank, Team& team) {
    for (const uint32_t capacity : {0u, 3u}) {
      Case c;
      c.config = ConfigOf(9, 3, 40, 10, DType::kF16);
      c.config.capacity = capacity;
      c.tokens = {10, 10, 10, 10};
      Member member = MemberOf(rank, team, c);
      member.Fill(c);
      rank.HostBarrier();
      backend::Graph there;
      backend::Graph back;
      ExpectOk(backend::BeginCapture(rank.stream));
      ExpectOk(member.Dispatch());
      ExpectOk(backend::EndCapture(rank.stream, &there));
      ExpectOk(backend::BeginCapture(rank.stream));
      ExpectOk(member.Combine());
      ExpectOk(backend::EndCapture(rank.stream, &back));
      for (uint32_t replay = 0; replay < 3; ++replay) {
        c.seed = replay + 5;
        member.Fill(c);
        ExpectOk(backend::LaunchGraph(there, rank.stream));
        rank.Synchronize();
        member.CheckRows();
        ExpectOk(backend::LaunchGraph(back, rank.stream));
        rank.Synchronize();
        ExpectOk(member.CheckError());
        member.CheckOut();
      }
      rank.HostBarrier();
    }
  });
}

// Makes the NodesComm usable again, and shows it.
void Mend(Rank& rank, const Team& team, Member& member, const Case& c) {
  Recover(rank, team.comm);
  member.Run(c);
  rank.HostBarrier();
}

TEST(MoeNodesTest, AllRanksAreToldOfABadId) {
  OnTeam({2, 2}, [&](Rank& rank, Team& team) {
    for (const bool repeated : {false, true}) {
      Case c;
      c.config = ConfigOf(7, 2, 16, 5, DType::kF32);
      c.config.capacity = repeated ? 2 : 0;
      c.tokens = {5, 5, 5, 5};
      Member member = MemberOf(rank, team, c);
      member.Fill(c);
      if (rank.rank() == 1) {
        member.WriteIds({0, 1, 2, 3, -1, -1, 3, repeated ? 3 : 7, 99, 5});
      }
      rank.HostBarrier();
      ExpectOk(member.Dispatch());
      // It is on the stream before the dispatch has failed, most often; then it ends at once.
      const Result behind = member.Combine();
      EXPECT_TRUE(behind.ok() || behind.code == StatusCode::kFailedPrecondition) << behind.what;
      rank.Synchronize();
      NodesErrorInfo info;
      EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kOutOfRange);
      EXPECT_EQ(info.operation, Operation::kMoeDispatch);
      EXPECT_EQ(info.sequence, repeated ? 2u : 0u);  // Mend has run two operations
      EXPECT_EQ(info.member_index, 1u);
      EXPECT_EQ(moe::BadChoiceOf(info.detail).token, 3u);
      EXPECT_EQ(moe::BadChoiceOf(info.detail).value, repeated ? 3 : 7);
      EXPECT_EQ(moe::BadChoiceOf(info.detail).why,
                repeated ? moe::BadExpert::kRepeated : moe::BadExpert::kNoSuchExpert);
      EXPECT_EQ(member.Dispatch().code, StatusCode::kFailedPrecondition);
      Mend(rank, team, member, c);
    }
  });
}

// One rank alone is wrong: all of them are told alike.
TEST(MoeNodesTest, ACombineBelongsToADispatch) {
  OnTeam({2, 2}, [&](Rank& rank, Team& team) {
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    c.tokens = {3, 4, 5, 5};
    for (const bool other_tokens : {false, true}) {
      Member member = MemberOf(rank, team, c);
      uint8_t* const fresh = rank.New<uint8_t>(member.sizes.workspace_bytes);
      rank.Write(fresh, std::vector<uint8_t>(member.sizes.workspace_bytes, 0));
      member.Fill(c);
      rank.HostBarrier();
      ExpectOk(member.Dispatch());
      moe::Combine call = member.MakeCombine();
      const bool wrong = rank.rank() == 1;
      if (wrong && other_tokens) call.tokens -= 2;
      if (wrong && !other_tokens) {
        // As of a rank that has not dispatched, in memory with any contents.
        ExpectOk(backend::CopyAsync(member.workspace, fresh, 256, rank.stream));
        ExpectOk(backend::FillAsync(member.workspace + 256, 0xee,
                                    member.sizes.workspace_bytes - 256, rank.stream));
      }
      ExpectOk(moe::LaunchCombineOnNodes(team.comm, c.config, member.workspace, call, rank.stream));
      rank.Synchronize();
      NodesErrorInfo info;
      EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kFailedPrecondition);
      EXPECT_EQ(info.operation, Operation::kMoeCombine);
      EXPECT_EQ(info.sequence, other_tokens ? 3u : 1u);
      EXPECT_EQ(info.member_index, 1u);
      EXPECT_EQ(moe::OtherTokensOf(info.detail).differ, other_tokens);
      if (other_tokens) {
        EXPECT_EQ(moe::OtherTokensOf(info.detail).dispatched, 4u);
        EXPECT_EQ(moe::OtherTokensOf(info.detail).combined, 2u);
      }
      Mend(rank, team, member, c);
    }
  });
}

// Rank 3 of the second node, or all its ranks, give another capacity, or combine.
TEST(MoeNodesTest, CallsThatDifferFailOnAllRanks) {
  for (const uint32_t first : {2u, 3u}) {
    for (const bool combines : {false, true}) {
      OnTeam({2, 2}, [&](Rank& rank, Team& team) {
        Case c;
        c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
        Member member = MemberOf(rank, team, c);
        member.Fill(c);
        rank.HostBarrier();
        const bool differs = rank.rank() >= first;
        Config config = c.config;
        if (differs && !combines) config.top_k = 1;
        ExpectOk(differs && combines
                     ? member.Combine()
                     : moe::LaunchDispatchOnNodes(team.comm, config, member.workspace,
                                                  member.MakeDispatch(), rank.stream));
        rank.Synchronize();
        NodesErrorInfo info;
        EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kInvalidArgument);
        if (first == 2) {
          ASSERT_TRUE(info.has_calls);
          EXPECT_EQ(moe::Unpack(info.mine).setup.top_k, config.top_k);
          EXPECT_EQ(moe::Unpack(info.theirs).setup.top_k, combines || differs ? 2u : 1u);
          EXPECT_EQ(info.theirs.operation(),
                    combines && !differs ? Operation::kMoeCombine : Operation::kMoeDispatch);
        } else {
          EXPECT_EQ(info.local, team.comm.node == 1);
          EXPECT_EQ(info.elsewhere, team.comm.node == 0);
        }
        Mend(rank, team, member, c);
      });
    }
  }
}

TEST(MoeNodesTest, AMissingRankIsNamed) {
  for (const bool combine : {false, true}) {
    for (const uint32_t missing : {1u, 3u}) {
      OnTeam(
          {2, 2},
          [&](Rank& rank, Team& team) {
            Case c;
            c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
            Member member = MemberOf(rank, team, c);
            member.Fill(c);
            rank.HostBarrier();
            if (combine) ExpectOk(member.Dispatch());
            rank.Synchronize();
            rank.HostBarrier();
            if (rank.rank() == missing) return;
            ExpectOk(combine ? member.Combine() : member.Dispatch());
            rank.Synchronize();
            NodesErrorInfo info;
            EXPECT_EQ(ccl::CheckNodesError(team.comm, &info).code, StatusCode::kDeadlineExceeded);
            EXPECT_EQ(info.operation, combine ? Operation::kMoeCombine : Operation::kMoeDispatch);
            EXPECT_EQ(info.member_index, missing) << "rank " << rank.rank();
          },
          (combine ? 2000ull : 600ull) * 1000 * 1000);
    }
  }
}

TEST(MoeNodesTest, RefusesBeforeAnythingStarts) {
  OnTeam({2, 1}, [&](Rank& rank, Team& team) {
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    Member member = MemberOf(rank, team, c);
    moe::Sizes here;
    ExpectOk(moe::SizesOf(2, 0, c.config, &here));
    EXPECT_LT(here.workspace_bytes, member.sizes.workspace_bytes);
    member.Fill(c);
    const moe::Dispatch good = member.MakeDispatch();
    const auto refused = [&](void* workspace, const moe::Dispatch& call) {
      const Result result =
          moe::LaunchDispatchOnNodes(team.comm, c.config, workspace, call, rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument) << result.what;
    };
    refused(nullptr, good);
    refused(member.workspace + 16, good);
    refused(AtOffset<uint8_t>(rank.ctx, rank.rank(), team.comm.workspace_offset_bytes), good);
    moe::Dispatch call = good;
    call.x = AtOffset<uint8_t>(rank.ctx, rank.rank(), team.comm.workspace_offset_bytes);
    call.tokens = 1;
    refused(member.workspace, call);
    call = good;
    call.tokens = 6;
    refused(member.workspace, call);
    ExpectOk(member.CheckError());
  });
}

}  // namespace
}  // namespace iris::conformance
