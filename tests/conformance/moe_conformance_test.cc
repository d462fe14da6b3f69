// Dispatch and combine of a mixture of experts, against the reference of moe_cases.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/moe/call_record.h"
#include "iris/moe/moe.h"
#include "tests/conformance/moe_cases.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using namespace moe_cases;  // NOLINT(build/namespaces)

// Of 2 ranks, and of 9, each has half of the cases: together they have all.
void RunAll(uint32_t ranks, std::vector<Case> cases) {
  if (ranks == 2 || ranks == 9) {
    std::vector<Case> half;
    for (size_t i = ranks == 2 ? 1 : 0; i < cases.size(); i += 2) half.push_back(cases[i]);
    cases = half;
  }
  World(ranks, kHeapBytes).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    for (const Case& c : cases) {
      SCOPED_TRACE(Name(c, ranks));
      Member member(rank, rank.ctx.world, c, comm);
      rank.HostBarrier();
      member.Run(c);
      rank.HostBarrier();
    }
  });
}

class MoeTest : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MoeTest, ::testing::Values(1, 2, 3, 9));

TEST_P(MoeTest, IsWhatAPlainReferenceSays) {
  const uint32_t ranks = GetParam();
  std::vector<Case> cases;
  // Each type, each way; hidden that is not a multiple of anything; unaligned buffers.
  for (const DType in : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3}) {
    for (const bool small : {false, true}) {
      if (small && in == DType::kF8E4M3) continue;
      Case c;
      c.config = ConfigOf(2 * ranks + 1, 3, small ? 150 : 37, 9, in);
      if (small) c.config.rows = DType::kF8E4M3;
      c.seed = 10 + static_cast<uint32_t>(cases.size());
      c.y_type = in == DType::kF16 ? DType::kF16 : DType::kBf16;
      c.out_type = in == DType::kF8E4M3 ? DType::kF32 : in;
      c.shift = static_cast<uint32_t>(cases.size()) % 3;
      c.sources = cases.size() % 2 == 1;
      c.ids_type = cases.size() % 2 == 0 ? DType::kI32 : DType::kI64;
      cases.push_back(c);
    }
  }
  // As models have it: all choices taken, rows of whole packs, sums back in f32.
  for (const uint32_t top_k : {1u, 2u, 12u}) {
    Case c;
    c.config = ConfigOf(12 * ranks, top_k, 64, 9, DType::kBf16);
    c.config.partials = DType::kF32;
    c.routing = Routing::kOften;
    c.weights = top_k != 2;
    c.sources = top_k == 2;
    c.seed = 30 + top_k;
    cases.push_back(c);
  }
  RunAll(ranks, cases);
}

TEST_P(MoeTest, HasOddTeamsOfTokens) {
  const uint32_t ranks = GetParam();
  std::vector<Case> cases;
  for (const uint32_t capacity : {0u, 1u, 5u, 1000u}) {
    for (const Routing routing :
         {Routing::kAnywhere, Routing::kOneExpert, Routing::kEvenExperts, Routing::kNowhere}) {
      Case c;
      c.config = ConfigOf(ranks + 2, 2, 24, 12, DType::kBf16);
      c.config.capacity = capacity;
      c.routing = routing;
      c.seed = capacity + 40;
      // One token, none, and as many as there may be.
      c.tokens = {1, 0, 12, 7};
      c.out_type = DType::kBf16;
      c.sources = cases.size() % 3 != 0;
      cases.push_back(c);
    }
  }
  // Fewer experts than members: some have none.
  Case c;
  c.config = ConfigOf(1, 1, 16, 70, DType::kF32);
  c.routing = Routing::kOneExpert;
  cases.push_back(c);
  c.tokens = std::vector<uint32_t>(ranks, 0);
  cases.push_back(c);
  RunAll(ranks, cases);
}

TEST(MoeRandomTest, AnythingAfterAnything) {
  const uint32_t rounds = kSlower > 1 ? 3 : 8;
  for (const uint32_t ranks : {3u, 4u}) {
    World(ranks, 2 * kHeapBytes).Run([&](Rank& rank) {
      const Comm comm = rank.NewComm(rank.ctx.world);
      for (uint32_t round = 0; round < rounds; ++round) {
        Case c = RandomCase(ranks, round);
        SCOPED_TRACE(Name(c, ranks));
        Member member(rank, rank.ctx.world, c, comm);
        rank.HostBarrier();
        for (uint32_t again = 0; again < 2; ++again) {
          c.seed = 1000 * round + again;
          member.Run(c);
        }
        rank.HostBarrier();
      }
    });
  }
}

// Two workspaces: the second dispatch comes before the first combine. No wait between operations.
TEST(MoeSequenceTest, TwoAreUnderWayAtOnce) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(7, 3, 40, 10, DType::kBf16);
    Case d = c;
    d.seed = 2;
    Member first(rank, rank.ctx.world, c);
    Member second(rank, rank.ctx.world, d);
    second.comm = first.comm;
    first.Fill(c);
    second.Fill(d);
    ExpectOk(first.Dispatch());
    ExpectOk(second.Dispatch());
    rank.Synchronize();
    first.CheckRows();
    second.CheckRows();
    ExpectOk(first.Combine());
    ExpectOk(second.Combine());
    // Nothing is used up: the same again.
    ExpectOk(first.Combine());
    rank.Synchronize();
    ExpectOk(ccl::CheckError(first.comm));
    first.CheckOut();
    second.CheckOut();
    const std::vector<uint8_t> out = first.ReadOut();
    for (uint32_t again = 0; again < 3; ++again) {
      ExpectOk(first.Dispatch());
      ExpectOk(first.Combine());
      rank.Synchronize();
      EXPECT_EQ(first.ReadOut(), out);
    }
    rank.HostBarrier();
  });
}

TEST(MoeGraphTest, ReplaysWithFreshIdsAndData) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(7, 3, 40, 10, DType::kBf16);
    c.tokens = {10, 6, 1};
    Member member(rank, rank.ctx.world, c);
    member.Fill(c);
    backend::Graph there;
    ExpectOk(backend::BeginCapture(rank.stream));
    ExpectOk(member.Dispatch());
    ExpectOk(backend::EndCapture(rank.stream, &there));
    backend::Graph back;
    ExpectOk(backend::BeginCapture(rank.stream));
    ExpectOk(member.Combine());
    ExpectOk(backend::EndCapture(rank.stream, &back));
    for (uint32_t replay = 0; replay < 3; ++replay) {
      c.seed = 100 + replay;
      c.routing = replay % 2 == 0 ? Routing::kAnywhere : Routing::kOneExpert;
      member.Fill(c);
      ExpectOk(backend::LaunchGraph(there, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      member.CheckRows();
      ExpectOk(backend::LaunchGraph(back, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(member.comm));
      member.CheckOut();
    }
    rank.HostBarrier();
  });
}

TEST(MoeTeamTest, AnyRanksInAnyOrder) {
  World(4, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(5, 2, 40, 10, DType::kF16);
    const DeviceTeam team = rank.NewTeam({3, 0, 2});
    DeviceTeam as = team;
    if (rank.rank() == 1) as.index = as.size;
    Member member(rank, as, c);
    rank.HostBarrier();
    if (rank.rank() != 1) member.Run(c);
    rank.HostBarrier();
  });
}

// What failed can be mended: it runs then, and the next operation is the first one again.
void Mend(Rank& rank, Member& member, const Case& c) {
  const auto prepare = [&] {
    ExpectOk(ccl::PrepareWorkspace(member.comm, rank.stream));
    rank.Synchronize();
  };
  rank.HostBarrier();
  prepare();
  ccl::ResetError(member.comm);
  rank.HostBarrier();
  member.Run(c);
  rank.HostBarrier();
  prepare();
  rank.HostBarrier();
}

TEST(MoeFailureTest, AllMembersAreToldOfABadId) {
  struct Bad {
    int32_t value;
    bool repeated;
  };
  World(3, kHeapBytes).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    for (const Bad bad : {Bad{7, false}, Bad{-2, false}, Bad{0x7fffffff, false}, Bad{3, true}}) {
      Case c;
      c.config = ConfigOf(7, 2, 16, 5, DType::kF32);
      c.config.capacity = bad.repeated ? 2 : 0;
      c.tokens = {5, 5, 5};
      Member member(rank, rank.ctx.world, c, comm);
      member.Fill(c);
      if (rank.rank() == 1) {
        member.WriteIds({0, 1, 2, 3, -1, -1, 3, bad.value, 99, 5});
      }
      rank.HostBarrier();
      ExpectOk(member.Dispatch());
      // Is on the stream before the other has failed, most often; then it ends at once.
      const Result behind = member.Combine();
      EXPECT_TRUE(behind.ok() || behind.code == StatusCode::kFailedPrecondition) << behind.what;
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kOutOfRange);
      EXPECT_EQ(info.operation, Operation::kMoeDispatch);
      EXPECT_EQ(info.sequence, 0u);
      EXPECT_EQ(info.member_index, 1u);
      EXPECT_EQ(moe::BadChoiceOf(info).token, 3u);
      EXPECT_EQ(moe::BadChoiceOf(info).value, bad.value);
      EXPECT_EQ(moe::BadChoiceOf(info).why,
                bad.repeated ? moe::BadExpert::kRepeated : moe::BadExpert::kNoSuchExpert);
      EXPECT_EQ(member.Dispatch().code, StatusCode::kFailedPrecondition);
      Mend(rank, member, c);
    }
  });
}

// One member alone is wrong: all of them are told, at once and alike.
TEST(MoeFailureTest, ACombineBelongsToADispatch) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    c.tokens = {3, 4, 5};
    for (const bool other_tokens : {false, true}) {
      Member member(rank, rank.ctx.world, c, comm);
      uint8_t* const fresh = rank.New<uint8_t>(member.sizes.workspace_bytes);
      member.Fill(c);
      rank.HostBarrier();
      ExpectOk(member.Dispatch());
      moe::Combine call = member.MakeCombine();
      const bool wrong = rank.rank() == 1;
      if (wrong && other_tokens) call.tokens -= 2;
      if (wrong && !other_tokens) {
        // As of a member that has not dispatched.
        ExpectOk(backend::CopyAsync(member.workspace, fresh, 256, rank.stream));
      }
      ExpectOk(moe::LaunchCombine(member.comm, c.config, member.workspace, call, rank.stream));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kFailedPrecondition);
      EXPECT_EQ(info.operation, Operation::kMoeCombine);
      EXPECT_EQ(info.sequence, 1u);
      EXPECT_EQ(info.member_index, 1u);
      EXPECT_EQ(moe::OtherTokensOf(info).differ, other_tokens);
      if (other_tokens) {
        EXPECT_EQ(moe::OtherTokensOf(info).dispatched, 4u);
        EXPECT_EQ(moe::OtherTokensOf(info).combined, 2u);
      }
      EXPECT_EQ(member.Dispatch().code, StatusCode::kFailedPrecondition);
      Mend(rank, member, c);
    }
  });
}

TEST(MoeFailureTest, NamesTheMemberThatDoesNotCome) {
  World(3, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    ccl::Config config;
    config.timeout_ns = 300ull * 1000 * 1000;
    for (const bool back : {false, true}) {
      Member member(rank, rank.ctx.world, c, config);
      member.Fill(c);
      rank.HostBarrier();
      if (back) {
        ExpectOk(member.Dispatch());
        rank.Synchronize();
        rank.HostBarrier();
      }
      if (rank.rank() != 1) {
        ExpectOk(back ? member.Combine() : member.Dispatch());
        rank.Synchronize();
        ccl::ErrorInfo info;
        EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kDeadlineExceeded);
        EXPECT_EQ(info.operation, back ? Operation::kMoeCombine : Operation::kMoeDispatch);
        EXPECT_EQ(info.member_index, 1u);
      }
      rank.HostBarrier();
    }
  });
}

TEST(MoeFailureTest, AllMembersAreToldBothCalls) {
  const std::function<void(Config*)> mistakes[] = {
      [](Config* g) { g->hidden = 17; },
      [](Config* g) { g->n_experts = 5; },
      [](Config* g) { g->top_k = 1; },
      [](Config* g) { g->max_tokens = 4; },
      [](Config* g) { g->capacity = 3; },
      [](Config* g) { g->in = DType::kF16; },
      [](Config* g) { g->rows = DType::kF8E4M3; },
      [](Config* g) { g->partials = DType::kBf16; },
  };
  World(3, kHeapBytes).Run([&](Rank& rank) {
    for (size_t i = 0; i <= std::size(mistakes); ++i) {
      Case c;
      c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
      c.tokens = {3, 4, 0};
      Member member(rank, rank.ctx.world, c);
      uint8_t* const other = rank.New<uint8_t>(member.sizes.workspace_bytes);
      member.Fill(c);
      rank.HostBarrier();
      Config config = c.config;
      moe::Dispatch call = member.MakeDispatch();
      call.rows = nullptr;
      uint8_t* workspace = member.workspace;
      if (rank.rank() == 2) {
        if (i < std::size(mistakes)) {
          mistakes[i](&config);
        } else {
          workspace = other;
        }
      }
      ExpectOk(moe::LaunchDispatch(member.comm, config, workspace, call, rank.stream));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(member.comm, &info).code, StatusCode::kInvalidArgument) << i;
      EXPECT_EQ(info.member_index, 2u);
      EXPECT_EQ(info.mismatch.most, 3u);
      EXPECT_EQ(info.mismatch.other, 4u);
      const moe::CallRecord most = moe::Unpack(info.mismatch.most_call);
      EXPECT_EQ(most.operation, Operation::kMoeDispatch);
      EXPECT_EQ(most.setup.hidden, 16u);
      EXPECT_EQ(most.setup.n_experts, 4u);
      EXPECT_EQ(most.setup.top_k, 2u);
      EXPECT_EQ(most.setup.max_tokens, 5u);
      EXPECT_EQ(most.setup.capacity, 0u);
      EXPECT_EQ(most.type, DType::kF32);
      EXPECT_EQ(most.travels, DType::kF32);
      EXPECT_EQ(most.out_type, DType::kF32);
      rank.HostBarrier();
    }
  });
}

TEST(MoeCheckTest, RefusesBeforeAnythingStarts) {
  World(2, kHeapBytes).Run([&](Rank& rank) {
    Case c;
    c.config = ConfigOf(4, 2, 16, 5, DType::kF32);
    c.tokens = {5, 5};
    Member member(rank, rank.ctx.world, c);
    member.Fill(c);
    rank.HostBarrier();
    const auto expect = [&](const char* text, const std::function<void(Config*)>& change,
                            const std::function<void(moe::Dispatch*)>& change_call) {
      Config config = c.config;
      moe::Dispatch call = member.MakeDispatch();
      if (change) change(&config);
      if (change_call) change_call(&call);
      const Result result =
          moe::LaunchDispatch(member.comm, config, member.workspace, call, rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument) << text;
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    const auto bad = [&](const char* text, const std::function<void(Config*)>& change) {
      expect(text, change, nullptr);
      Config config = c.config;
      change(&config);
      Sizes sizes;
      EXPECT_EQ(moe::SizesOf(2, 0, config, &sizes).code, StatusCode::kInvalidArgument);
    };
    bad("n_experts", [](Config* g) { g->n_experts = 0; });
    bad("n_experts", [](Config* g) { g->n_experts = 4097; });
    bad("top_k", [](Config* g) { g->top_k = 0; });
    bad("top_k", [](Config* g) { g->top_k = 5; });
    bad("hidden", [](Config* g) { g->hidden = 0; });
    bad("hidden", [](Config* g) { g->hidden = (1 << 20) + 1; });
    bad("max_tokens", [](Config* g) { g->max_tokens = 0; });
    bad("2^31 - 1 rows", [](Config* g) { g->max_tokens = 1u << 31; });
    bad("smaller capacity", [](Config* g) { g->capacity = 1u << 31; });
    bad("x is of", [](Config* g) { g->in = DType::kF64; });
    bad("rows are of", [](Config* g) { g->rows = DType::kF16; });
    bad("partials are of", [](Config* g) { g->partials = DType::kF8E4M3; });
    const auto bad_call = [&](const char* text, const std::function<void(moe::Dispatch*)>& change) {
      expect(text, nullptr, change);
    };
    bad_call("more tokens", [](moe::Dispatch* d) { d->tokens = 6; });
    bad_call("x is null", [](moe::Dispatch* d) { d->x = nullptr; });
    bad_call("ids are null", [](moe::Dispatch* d) { d->ids = nullptr; });
    bad_call("ids are of", [](moe::Dispatch* d) { d->ids_type = DType::kF32; });
    bad_call("rows: it overlaps", [](moe::Dispatch* d) { d->rows = const_cast<void*>(d->x); });
    bad_call("dropped: it overlaps", [](moe::Dispatch* d) { d->dropped = d->counts + 1; });
    bad_call("rows: it overlaps with the workspace of moe",
             [&](moe::Dispatch* d) { d->rows = member.workspace + 64; });
    bad_call("x is not aligned",
             [](moe::Dispatch* d) { d->x = static_cast<const uint8_t*>(d->x) + 2; });
    bad_call("leave x_scales out", [&](moe::Dispatch* d) { d->x_scales = d->weights; });
    bad_call("rows have scales only", [&](moe::Dispatch* d) {
      d->scales = reinterpret_cast<float*>(static_cast<uint8_t*>(d->rows));
    });
    const auto bad_place = [&](const char* text, void* workspace) {
      const Result result =
          moe::LaunchDispatch(member.comm, c.config, workspace, member.MakeDispatch(), rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument);
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    bad_place("null", nullptr);
    bad_place("aligned", member.workspace + 16);
    static uint8_t elsewhere[512];
    bad_place("not in the symmetric heap",
              reinterpret_cast<void*>((reinterpret_cast<uint64_t>(elsewhere) + 255) / 256 * 256));
    const auto bad_combine = [&](const char* text,
                                 const std::function<void(moe::Combine*)>& change) {
      moe::Combine call = member.MakeCombine();
      change(&call);
      const Result result =
          moe::LaunchCombine(member.comm, c.config, member.workspace, call, rank.stream);
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument);
      EXPECT_NE(std::string(result.what).find(text), std::string::npos) << result.what;
    };
    bad_combine("y is null", [](moe::Combine* d) { d->y = nullptr; });
    bad_combine("out is null", [](moe::Combine* d) { d->out = nullptr; });
    bad_combine("y is of", [](moe::Combine* d) { d->y_type = DType::kF8E4M3; });
    bad_combine("out is of", [](moe::Combine* d) { d->out_type = DType::kI32; });
    bad_combine("more tokens", [](moe::Combine* d) { d->tokens = 6; });
    bad_combine("overlap", [](moe::Combine* d) { d->out = const_cast<void*>(d->y); });
    // Nothing has started: all is well.
    rank.HostBarrier();
    member.Run(c);
    rank.HostBarrier();
  });
}

}  // namespace
}  // namespace iris::conformance
