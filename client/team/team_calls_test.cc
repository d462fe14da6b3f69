#include "client/team/team_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "client/session/testing/fake_control_plane.h"
#include "tests/cc/require.h"

namespace iris::internal {
namespace {

using iris::testing::Require;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fake = FakeControlPlane;

// Two ranks of one job as threads of this process; the test plays irisd.
class TeamCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    window_ = Require(Window::Acquire({{77, ++job_id_, 1}, "emu", 2, 4 * FakeMemory::kGranule, 0}));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(window_->MapControlPage(rank, FakeMemory::NewPage(), true).ok());
      ASSERT_TRUE(
          window_->MapSegment(0, {rank, rank, 0, FakeMemory::kGranule}, memory_.NewSegment()).ok());
    }
    ASSERT_TRUE(window_->MapStatusPage(FakeMemory::NewPage()).ok());
    zero_.emplace(TeamCalls::Options{job_id_, 0, absl::Seconds(60), "job", {}}, &guard_, &plane_,
                  window_.get(), &heap_);
    one_.emplace(TeamCalls::Options{job_id_, 1, absl::Seconds(60), "job", {}}, &guard_, &plane_,
                 window_.get(), &heap_);
    plane_.on_operate = [this](const OperationCall& call) {
      if (const auto* free = std::get_if<FreeOp>(&call.op)) freed_.push_back(free->offset_bytes);
    };
    world_ = zero_->AddTeam(WorldInfo());
    one_->AddTeam(WorldInfo());
  }
  static TeamInfo WorldInfo() { return {0, {0, 1}, 0, 0, 0}; }
  // A team of rank 0 alone.
  static TeamInfo AloneInfo() { return {4, {0}, 1, 0, 0}; }
  Team CreateAlone() {
    plane_.Script({Fake::Decided(absl::OkStatus(), {.team = AloneInfo()})});
    const uint32_t ranks[] = {0};
    auto team = zero_->CreateTeam(ranks, world_);
    EXPECT_TRUE(team.ok()) << team.status();
    return team.ok() ? *team : Team();
  }

  FakeMemory memory_;
  ContextGuard guard_;
  Fake plane_;
  HeapSize heap_;
  std::shared_ptr<Window> window_;
  std::optional<TeamCalls> zero_;
  std::optional<TeamCalls> one_;
  Team world_;
  std::vector<uint64_t> freed_;  // what irisd was asked to free
  static inline uint64_t job_id_ = 2000;
};

TEST_F(TeamCallsTest, AllocationIsWhereIrisdPutsIt) {
  plane_.Script({Fake::Decided(absl::OkStatus(), {.offset_bytes = 2048, .heap_bytes = 4096})});
  auto x = Require(zero_->Allocate({.bytes = 100, .name = "x"}, world_));
  EXPECT_EQ(x.offset_bytes, 2048u);
  EXPECT_EQ(x.bytes, 100u);
  EXPECT_EQ(x.address, reinterpret_cast<void*>(window_->address(0, 2048)));
  backend::HeapRange range;
  ASSERT_TRUE(zero_->heap_map()->nearest(zero_->heap_map(), 0, 2048, &range));
  EXPECT_EQ(std::string(range.name), "x");
  EXPECT_EQ(x.team_id, 0u);
  EXPECT_EQ(heap_.bytes(), 4096u);
}

TEST_F(TeamCallsTest, MemoryIsFreshForItsFirstUserOnly) {
  const auto fresh = [&](TeamCalls& calls, uint64_t offset_bytes, uint64_t bytes) {
    plane_.Script({Fake::Decided(absl::OkStatus(), {.offset_bytes = offset_bytes})});
    bool answer = false;
    EXPECT_TRUE(calls.Allocate({.bytes = bytes}, world_, std::nullopt, &answer).ok());
    return answer;
  };
  TeamCalls first({job_id_, 0, absl::Seconds(60), "job", {}, {}, /*new_heaps=*/true}, &guard_,
                  &plane_, window_.get(), &heap_);
  first.AddTeam(WorldInfo());
  EXPECT_FALSE(fresh(first, kSyncAreaBytes - 1024, 100));  // the barrier area of the world
  EXPECT_TRUE(fresh(first, kSyncAreaBytes, 1024));
  EXPECT_FALSE(fresh(first, kSyncAreaBytes, 2048));
  EXPECT_FALSE(fresh(first, kSyncAreaBytes + 1024, 1024));
  plane_.Script({Fake::Decided(absl::OkStatus(), {.offset_bytes = kSyncAreaBytes + (64 << 10)})});
  ASSERT_TRUE(first.AllocateLocal({.bytes = 1024}).ok());
  EXPECT_FALSE(fresh(first, kSyncAreaBytes + (64 << 10), 1024));
  EXPECT_TRUE(fresh(first, kSyncAreaBytes + (65 << 10), 1024));
  EXPECT_FALSE(fresh(*zero_, kSyncAreaBytes + (66 << 10), 1024));  // of an earlier epoch, perhaps
}

TEST_F(TeamCallsTest, AnAllocationMayHaveATimeOfItsOwn) {
  std::vector<absl::Duration> timeouts;
  plane_.on_operate = [&](const OperationCall& call) { timeouts.push_back(call.timeout); };
  EXPECT_TRUE(zero_->Allocate({.bytes = 64}, world_).ok());
  EXPECT_TRUE(zero_->Allocate({.bytes = 64}, world_, absl::Seconds(7)).ok());
  EXPECT_THAT(timeouts, ElementsAre(absl::Seconds(60), absl::Seconds(7)));
}

TEST_F(TeamCallsTest, KernelsCanAskWhatLiesWhere) {
  const auto at = [&](uint64_t offset) {
    const backend::HeapMap* const map = zero_->heap_map();
    backend::HeapRange range;
    return map->nearest(map, 1, offset, &range) ? std::string(range.name) : "nothing";
  };
  EXPECT_EQ(at(0), "the barrier area of team 0");
  plane_.Script({Fake::Decided(absl::OkStatus(), {.offset_bytes = 1 << 20, .heap_bytes = 4096})});
  auto x = Require(zero_->Allocate({.bytes = 100, .name = "x"}, world_));
  EXPECT_EQ(at((1 << 20) + 50), "x");
  // It stays until irisd has freed it.
  plane_.Script({Fake::Refused(absl::AbortedError("no"))});
  EXPECT_FALSE(zero_->Free(x).ok());
  EXPECT_EQ(at((1 << 20) + 50), "x");
  EXPECT_TRUE(zero_->Free(x).ok());
  EXPECT_EQ(at((1 << 20) + 50), "the barrier area of team 0");
}

TEST_F(TeamCallsTest, ErrorsSayWhatWasAttempted) {
  const auto refused = [&](absl::string_view text) {
    plane_.Script({Fake::Refused(absl::AbortedError(text))});
  };
  refused("a");
  EXPECT_EQ(zero_->Allocate({.bytes = 8, .name = "x"}, world_).status(),
            absl::AbortedError("allocate 8 bytes \"x\": a"));
  refused("allocate #3 (team 0): a");  // as irisd says it
  EXPECT_EQ(zero_->Allocate({.bytes = 8, .name = "x"}, world_).status(),
            absl::AbortedError("allocate 8 bytes \"x\" #3 (team 0): a"));
  refused("no room (of the team)");
  EXPECT_EQ(zero_->Allocate({.bytes = 8, .name = "x"}, world_).status(),
            absl::AbortedError("allocate 8 bytes \"x\": no room (of the team)"));
  refused("b");
  EXPECT_EQ(zero_->Free({.offset_bytes = 64}),
            absl::AbortedError("free the allocation at offset 64: b"));
  refused("c");
  EXPECT_EQ(zero_->Grow(7, world_), absl::AbortedError("grow the heap by 7 bytes: c"));
  refused("d");
  EXPECT_EQ(zero_->Broadcast("v", 1, world_).status(),
            absl::AbortedError("broadcast from rank 1: d"));
  refused("e");
  const uint32_t both[] = {1, 0};
  EXPECT_EQ(zero_->CreateTeam(both, world_).status(),
            absl::AbortedError("create a team of 2 ranks: e"));
  refused("create_team #3 (team 0): e");
  EXPECT_EQ(zero_->CreateTeam(both, world_).status(),
            absl::AbortedError("create a team of 2 ranks #3 (team 0): e"));
  refused("split #4 (team 0): f");
  EXPECT_EQ(zero_->SplitTeam(1, 0, world_).status(),
            absl::AbortedError("split a team #4 (team 0): f"));
}

// An irisd that only splits: it answers when all ranks have asked.
class SplittingPlane : public FakeControlPlane {
 public:
  explicit SplittingPlane(size_t n_ranks) : wishes_(n_ranks) {}
  absl::StatusOr<Outcome> Operate(const OperationCall& call, absl::Time, absl::Time,
                                  bool*) override {
    const SplitOp& mine = std::get<SplitOp>(call.op);
    absl::MutexLock lock(&mu_);
    ++n_calls_;
    wishes_[mine.rank] = mine;
    mu_.Await(absl::Condition(this, &SplittingPlane::AllCame));
    TeamInfo team = {static_cast<uint32_t>(mine.color) + 1, {}, 0, 0, 0};
    team.barrier_slot = team.team_id;
    for (const auto& wish : wishes_) {
      if (wish->color == mine.color) team.ranks.push_back(wish->rank);
    }
    return Outcome{call.k, absl::OkStatus(), {.team = team}};
  }
  int n_calls() const {
    absl::MutexLock lock(&mu_);
    return n_calls_;
  }

 private:
  bool AllCame() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::all_of(wishes_.begin(), wishes_.end(), [](const auto& w) { return w.has_value(); });
  }

  mutable absl::Mutex mu_;
  int n_calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::optional<SplitOp>> wishes_ ABSL_GUARDED_BY(mu_);
};

TEST_F(TeamCallsTest, SplitIsOneRoundTripOfEachRank) {
  constexpr uint32_t kRanks = 64;
  auto window =
      Require(Window::Acquire({{77, ++job_id_, 1}, "emu", kRanks, 2 * FakeMemory::kGranule, 0}));
  TeamInfo world = {0, {}, 0, 0, 0};
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(window->MapControlPage(rank, FakeMemory::NewPage(), true).ok());
    ASSERT_TRUE(
        window->MapSegment(0, {rank, rank, 0, FakeMemory::kGranule}, memory_.NewSegment()).ok());
    world.ranks.push_back(rank);
  }
  ASSERT_TRUE(window->MapStatusPage(FakeMemory::NewPage()).ok());
  SplittingPlane plane(kRanks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      TeamCalls calls({job_id_, rank, absl::Seconds(60), "job", {}}, &guard_, &plane, window.get(),
                      &heap_);
      const auto team = calls.SplitTeam(static_cast<int32_t>(rank % 8), 0, calls.AddTeam(world));
      ASSERT_TRUE(team.ok()) << team.status();
      EXPECT_EQ(team->id, 1 + rank % 8);
      EXPECT_EQ(team->ranks.size(), kRanks / 8);
      EXPECT_EQ(team->index, static_cast<int>(rank / 8));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(plane.n_calls(), static_cast<int>(kRanks));
}

TEST_F(TeamCallsTest, ASplitThatGivesNoTeam) {
  const auto team = Require(zero_->SplitTeam(-1, 0, world_));
  EXPECT_FALSE(team.member());
  EXPECT_TRUE(team.ranks.empty());
}

TEST_F(TeamCallsTest, OnlyRootSendsItsValue) {
  std::vector<std::string> values;
  plane_.on_operate = [&](const OperationCall& call) {
    values.emplace_back(std::get<BroadcastOp>(call.op).value);
  };
  plane_.Script({Fake::Decided(absl::OkStatus(), {.value = "zero's"}),
                 Fake::Decided(absl::OkStatus(), {.value = "one's"})});
  EXPECT_EQ(zero_->Broadcast("mine", 0, world_).value(), "zero's");
  EXPECT_EQ(zero_->Broadcast("mine", 1, world_).value(), "one's");
  EXPECT_THAT(values, ElementsAre("mine", ""));
}

TEST_F(TeamCallsTest, EachTeamCountsItsOwnOperations) {
  const Team alone = CreateAlone();
  EXPECT_TRUE(zero_->Allocate({.bytes = 1}, alone).ok());
  EXPECT_TRUE(zero_->Allocate({.bytes = 1}, world_).ok());
  EXPECT_TRUE(zero_->Allocate({.bytes = 1}, alone).ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 0u, 1u, 1u));
}

TEST_F(TeamCallsTest, NewTeamsAreaIsCleared) {
  uint64_t* const area = reinterpret_cast<uint64_t*>(window_->address(0, 0));
  *area = 42;  // another team's
  const Team alone = CreateAlone();
  EXPECT_TRUE(alone.member());
  EXPECT_EQ(*area, 0u);
}

TEST_F(TeamCallsTest, RanksOutsideANewTeamGetOneThatTheyCannotUse) {
  plane_.Script({Fake::Decided()});  // irisd describes a team to its members alone
  const uint32_t ranks[] = {0};
  auto other = Require(one_->CreateTeam(ranks, world_));
  EXPECT_FALSE(other.member());
  EXPECT_THAT(other.ranks, ElementsAre(0u));
  const absl::Status status = one_->Allocate({.bytes = 1}, other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 is not a member"));
}

TEST_F(TeamCallsTest, TeamWhoseDestructionWasRefusedStaysUsable) {
  const Team alone = CreateAlone();
  plane_.Script({Fake::Decided(absl::FailedPreconditionError("1 live allocation"))});
  EXPECT_EQ(zero_->DestroyTeam(alone).code(), absl::StatusCode::kFailedPrecondition);
  // irisd demands that the allocation is freed first; then the team can be destroyed.
  EXPECT_TRUE(zero_->Free({.offset_bytes = 0, .team_id = alone.id}).ok());
  EXPECT_TRUE(zero_->DestroyTeam(alone).ok());
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 0u, 1u, 2u));
  EXPECT_EQ(zero_->Barrier(alone, absl::Seconds(60)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TeamCallsTest, DestructionTellsTheLastBarrier) {
  const Team alone = CreateAlone();  // its members meet once
  EXPECT_TRUE(zero_->Barrier(alone, absl::Seconds(60)).ok());
  EXPECT_TRUE(zero_->Barrier(alone, absl::Seconds(60)).ok());
  uint32_t told = 0;
  plane_.on_operate = [&](const OperationCall& call) {
    told = std::get<DestroyTeamOp>(call.op).last_barrier_epoch;
  };
  EXPECT_TRUE(zero_->DestroyTeam(alone).ok());
  EXPECT_EQ(told, 3u);
}

TEST_F(TeamCallsTest, ARankAllocatesAloneByItsOwnTeam) {
  std::vector<uint32_t> teams;
  plane_.on_operate = [&](const OperationCall& call) { teams.push_back(call.team_id); };
  plane_.Script({Fake::Decided(absl::OkStatus(), {.offset_bytes = 4096})});
  auto x = Require(one_->AllocateLocal({.bytes = 100}));
  EXPECT_EQ(x.address, reinterpret_cast<void*>(window_->address(1, 4096)));
  EXPECT_EQ(x.team_id, wire::kFirstOwnTeam + 1);
  EXPECT_TRUE(one_->Free(x).ok());
  EXPECT_THAT(teams, ElementsAre(wire::kFirstOwnTeam + 1, wire::kFirstOwnTeam + 1));
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u));
  // It is the other rank's to free.
  EXPECT_EQ(zero_->Free(x).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TeamCallsTest, WhatGetsANameIsClearedBefore) {
  auto* const words = reinterpret_cast<uint64_t*>(window_->address(1, 4096));
  words[0] = words[11] = words[12] = 42;  // of somebody before
  std::vector<std::string> asked;
  plane_.on_operate = [&](const OperationCall& call) {
    if (const auto* allocate = std::get_if<AllocateOptions>(&call.op)) {
      asked.push_back(absl::StrCat("allocate '", allocate->name, "'"));
    } else if (const auto* publish = std::get_if<PublishOp>(&call.op)) {
      asked.push_back(absl::StrCat("publish ", publish->offset_bytes, " '", publish->name, "' ",
                                   words[0] + words[11]));
    } else {
      asked.push_back("free");
    }
  };
  const auto there = Fake::Decided(absl::OkStatus(), {.offset_bytes = 4096, .heap_bytes = 8192});
  plane_.Script({there});
  Require(one_->AllocateLocal({.bytes = 96, .name = "x"}));
  backend::HeapRange range;
  ASSERT_TRUE(one_->heap_map()->nearest(one_->heap_map(), 1, 4096, &range));
  EXPECT_EQ(std::string(range.name), "x");
  EXPECT_EQ(words[12], 42u);
  EXPECT_THAT(asked, ElementsAre("allocate ''", "publish 4096 'x' 0"));
  // Without the name it is not kept.
  asked.clear();
  plane_.Script({there, Fake::Decided(absl::AlreadyExistsError("'x' is live"))});
  EXPECT_EQ(one_->AllocateLocal({.bytes = 96, .name = "x"}).status(),
            absl::AlreadyExistsError("allocate 96 bytes \"x\" in its own heap: 'x' is live"));
  EXPECT_THAT(asked, ElementsAre("allocate ''", "publish 4096 'x' 0", "free"));
}

TEST_F(TeamCallsTest, NamesThatIrisdCouldNotReadAreNotSent) {
  for (const std::string& name : {std::string("\xff"), std::string(129, 'x')}) {
    EXPECT_EQ(zero_->AllocateLocal({.bytes = 1, .name = name}).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(zero_->Publish({}, name).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(zero_->Open(1, name, absl::Seconds(1)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(plane_.ks().empty());
}

TEST_F(TeamCallsTest, OpenAsksUntilItIsThere) {
  plane_.Script({Fake::Decided(), Fake::Decided(),
                 Fake::Decided(absl::OkStatus(), {.opened = OpenedRange{8192, 100, "f32"}})});
  auto x = Require(zero_->Open(1, "x", absl::Seconds(60)));
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u, 2u));
  EXPECT_EQ(x.rank, 1u);
  EXPECT_EQ(x.bytes, 100u);
  EXPECT_EQ(x.address, reinterpret_cast<void*>(window_->address(1, 8192)));
  EXPECT_EQ(x.symmetric_address, reinterpret_cast<void*>(window_->address(0, 8192)));
  EXPECT_EQ(x.dtype, DType::kF32);
}

TEST_F(TeamCallsTest, OpenNamesWhatItWaitedFor) {
  const absl::Status status = zero_->Open(1, "x", absl::Milliseconds(30)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("open \"x\" of rank 1: time is up after "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has allocated nothing of this name"));
  EXPECT_GE(plane_.ks().size(), 2u);
  EXPECT_LT(plane_.ks().size(), 30u);
  plane_.Script({Fake::Decided(absl::AbortedError("it died"))});
  EXPECT_EQ(zero_->Open(1, "x", absl::Seconds(60)).status(),
            absl::AbortedError("open \"x\" of rank 1: it died"));
}

TEST_F(TeamCallsTest, WhatIsOpenIsClosedOnceForEachOpen) {
  const auto known = [&] {
    const backend::HeapMap* const map = zero_->heap_map();
    backend::HeapRange range;
    return map->nearest(map, 1, 8192, &range) && std::string(range.name) == "x";
  };
  const auto there = Fake::Decided(absl::OkStatus(), {.opened = OpenedRange{8192, 100, ""}});
  plane_.Script({there, there});
  auto x = zero_->Open(1, "x", absl::Seconds(60));
  ASSERT_TRUE(x.ok() && zero_->Open(1, "x", absl::Seconds(60)).ok());
  EXPECT_TRUE(zero_->Close(*x).ok());
  EXPECT_TRUE(known());
  plane_.Script({Fake::Refused(absl::UnavailableError("no"))});
  EXPECT_EQ(zero_->Close(*x).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(known());
  EXPECT_TRUE(zero_->Close(*x).ok());
  EXPECT_FALSE(known());
  const size_t n_asked = plane_.ks().size();
  EXPECT_EQ(zero_->Close(*x).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plane_.ks().size(), n_asked);
}

// irisd lends memory that a rank has registered. It is mapped above the owner's heap, and unmapped
// with the last close.
TEST_F(TeamCallsTest, OpensWhatIsRegistered) {
  constexpr uint64_t kAt = 3 * FakeMemory::kGranule;
  const auto there = Fake::Decided(
      absl::OkStatus(), {.opened = OpenedRange{kAt + 100, 50, "u8", /*registered=*/true}});
  const auto lend = [&](uint32_t owner = 1) {
    plane_.lent.clear();
    plane_.lent.push_back({{70, owner, kAt, FakeMemory::kGranule}, memory_.NewSegment()});
  };
  plane_.Script({there, there});
  lend();
  auto x = Require(zero_->Open(1, "x", absl::Seconds(60)));
  ASSERT_EQ(plane_.borrowed.size(), 1u);
  EXPECT_EQ(plane_.borrowed[0].job, "job");
  EXPECT_EQ(plane_.borrowed[0].rank, 1u);
  EXPECT_EQ(plane_.borrowed[0].offset_bytes, kAt + 100);
  EXPECT_EQ(plane_.borrowed[0].bytes, 50u);
  EXPECT_EQ(x.address, reinterpret_cast<void*>(window_->address(1, kAt + 100)));
  static_cast<uint8_t*>(x.address)[49] = 7;
  EXPECT_TRUE(zero_->Borrows(1, kAt + 100, 50));
  EXPECT_TRUE(zero_->Borrows(1, kAt + 120, 30));
  EXPECT_FALSE(zero_->Borrows(1, kAt + 100, 51));
  EXPECT_FALSE(zero_->Borrows(1, kAt + 99, 1));
  EXPECT_FALSE(zero_->Borrows(0, kAt + 100, 50));
  EXPECT_EQ(window_->n_segments(), 3u);
  lend();
  ASSERT_TRUE(zero_->Open(1, "x", absl::Seconds(60)).ok());
  EXPECT_EQ(static_cast<uint8_t*>(x.address)[49], 7) << "mapped once";
  EXPECT_TRUE(zero_->Close(x).ok());
  EXPECT_EQ(window_->n_segments(), 3u);
  EXPECT_TRUE(zero_->Close(x).ok());
  EXPECT_EQ(window_->n_segments(), 2u);
  EXPECT_FALSE(zero_->Borrows(1, kAt + 100, 50));

  // If the memory cannot be mapped, it is closed again.
  plane_.Script({there});
  plane_.borrow_answer = absl::NotFoundError("the memory is gone");
  EXPECT_EQ(zero_->Open(1, "x", absl::Seconds(60)).status(),
            absl::NotFoundError("open \"x\" of rank 1: the memory is gone"));
  plane_.borrow_answer = absl::OkStatus();
  EXPECT_EQ(freed_, std::vector<uint64_t>({kAt + 100, kAt + 100, kAt + 100}));
  plane_.Script({there});
  lend(/*owner=*/0);
  EXPECT_EQ(zero_->Open(1, "x", absl::Seconds(60)).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(window_->n_segments(), 2u);
  EXPECT_EQ(freed_.size(), 4u);
}

TEST_F(TeamCallsTest, RegistersOnlyWhatOthersCanMap) {
  std::vector<uint8_t> own(10);
  const auto code = [&](void* memory, uint64_t bytes) {
    return zero_->Register(memory, {.bytes = bytes}).status().code();
  };
  EXPECT_EQ(code(own.data(), 10), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(nullptr, 10), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(own.data(), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(own.data(), ~uint64_t{0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(reinterpret_cast<void*>(window_->address(1, 0)), 10),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(plane_.ks().empty());
}

// Memory that irisd has taken of both ranks, as rank 0 sees it.
class RegisteredTogetherTest : public TeamCallsTest {
 protected:
  static constexpr uint64_t kAt = 3 * FakeMemory::kGranule + 100;

  void SetUp() override {
    TeamCallsTest::SetUp();
    const int fd = memory_.NewSegment().Release();
    own_ = static_cast<uint8_t*>(
        mmap(nullptr, FakeMemory::kGranule, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    ASSERT_NE(static_cast<void*>(own_), MAP_FAILED);
    plane_.lend = [this](const HeapPart& part) {
      std::vector<ControlPlane::Lent> lent;
      lent.push_back(
          {{70 + part.rank, part.rank, kAt - 100, FakeMemory::kGranule}, memory_.NewSegment()});
      return lent;
    };
    plane_.on_operate = [this](const OperationCall& call) {
      if (const auto* registers = std::get_if<RegisterOp>(&call.op)) {
        asked_.push_back(absl::StrCat("register ", registers->error.message(), " of ",
                                      registers->descriptors.size()));
      } else if (const auto* confirm = std::get_if<ConfirmOp>(&call.op)) {
        asked_.push_back(
            absl::StrCat("confirm ", confirm->offset_bytes - kAt, " ", confirm->mapped.message()));
      } else {
        asked_.push_back("free");
      }
    };
  }
  void TearDown() override { munmap(own_, FakeMemory::kGranule); }
  absl::StatusOr<Allocation> Register(uint64_t bytes = 50) {
    return zero_->RegisterTogether(own_ + 100, {.bytes = bytes, .name = "x"}, world_);
  }
  static Fake::Answer Placed() { return Fake::Decided(absl::OkStatus(), {.offset_bytes = kAt}); }

  uint8_t* own_ = nullptr;
  std::vector<std::string> asked_;
};

TEST_F(RegisteredTogetherTest, IsMappedOfAllMembersUntilItIsFreed) {
  plane_.Script({Placed()});
  const auto x = Require(Register());
  EXPECT_EQ(x.address, reinterpret_cast<void*>(window_->address(0, kAt)));
  EXPECT_EQ(x.team_id, 0u);
  EXPECT_THAT(asked_, ElementsAre("register  of 1", "confirm 0 "));
  EXPECT_THAT(plane_.ks(), ElementsAre(0u, 1u));
  EXPECT_EQ(window_->n_segments(), 4u);
  static_cast<uint8_t*>(x.address)[49] = 7;
  *reinterpret_cast<uint8_t*>(window_->address(1, kAt)) = 7;
  for (const uint32_t rank : {0, 1}) {
    EXPECT_TRUE(zero_->Borrows(rank, kAt, 50));
    EXPECT_FALSE(zero_->Borrows(rank, kAt, 51));
  }
  const uint32_t both[] = {1, 0}, other[] = {0, 1, 2};
  EXPECT_TRUE(zero_->HaveTogether(both, kAt, 50));
  EXPECT_TRUE(zero_->HaveTogether(both, kAt + 50, 0));
  EXPECT_FALSE(zero_->HaveTogether(both, kAt + 1, 50));
  EXPECT_FALSE(zero_->HaveTogether(both, kAt - 1, 1));
  EXPECT_FALSE(zero_->HaveTogether(other, kAt, 1));
  // Memory that was not freed stays. Freed memory is not mapped, because its place may be
  // another's.
  plane_.Script({Fake::Decided(absl::DeadlineExceededError("rank 1 is missing"))});
  EXPECT_EQ(zero_->Free(x).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(window_->n_segments(), 4u);
  EXPECT_TRUE(zero_->HaveTogether(both, kAt, 50));
  size_t n_mapped = 9;
  plane_.on_operate = [&](const OperationCall&) { n_mapped = window_->n_segments(); };
  EXPECT_TRUE(zero_->Free(x).ok());
  EXPECT_EQ(n_mapped, 2u);
  EXPECT_FALSE(zero_->HaveTogether(both, kAt, 50));
  EXPECT_FALSE(zero_->Borrows(1, kAt, 50));
}

TEST_F(RegisteredTogetherTest, TellsTheOthersWhatGoesWrongHere) {
  // If memory cannot be shared, irisd reports so to all ranks.
  std::vector<uint8_t> plain(10);
  plane_.Script({Fake::Decided(absl::InvalidArgumentError("rank 0 (pid 5): plain"))});
  EXPECT_THAT(
      std::string(zero_->RegisterTogether(plain.data(), {.bytes = 10}, world_).status().message()),
      HasSubstr(" together: rank 0 (pid 5): plain"));
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_THAT(asked_[0], HasSubstr("copy it into the heap"));
  EXPECT_THAT(asked_[0], HasSubstr(" of 0"));
  EXPECT_EQ(window_->n_segments(), 2u);
  // The memory cannot be mapped here.
  asked_.clear();
  plane_.borrow_answer = absl::NotFoundError("the memory is gone");
  plane_.Script({Placed(), Fake::Decided(absl::ResourceExhaustedError("rank 0: could not"))});
  EXPECT_EQ(Register().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(asked_,
              ElementsAre("register  of 1", "confirm 0 the memory of rank 0: the memory is gone"));
  plane_.borrow_answer = absl::OkStatus();
  // If another rank could not map the memory, it is not mapped here either.
  plane_.Script({Placed(), Fake::Decided(absl::ResourceExhaustedError("rank 1: could not"))});
  EXPECT_EQ(Register().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(window_->n_segments(), 2u);
  const uint32_t zero[] = {0};
  EXPECT_FALSE(zero_->HaveTogether(zero, kAt, 1));
  // Nor what nobody heard the end of; and then its k is asked for again.
  plane_.Script({Placed(), Fake::Lost()});
  EXPECT_EQ(Register().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(window_->n_segments(), 2u);
  const uint64_t lost = plane_.ks().back();
  EXPECT_TRUE(zero_->Allocate({.bytes = 1}, world_).ok());
  EXPECT_EQ(plane_.ks()[plane_.ks().size() - 2], lost);
}

// irisd has undone a registration, and gives its place to another team, before this rank has heard
// of it.
TEST_F(RegisteredTogetherTest, APlaceThatIsGivenAgainHasWhatIsThereNow) {
  const Team alone = CreateAlone();
  uint64_t first_id = 70;
  plane_.lend = [&](const HeapPart& part) {
    std::vector<ControlPlane::Lent> lent;
    lent.push_back(
        {{first_id + part.rank, part.rank, kAt - 100, FakeMemory::kGranule}, memory_.NewSegment()});
    return lent;
  };
  absl::StatusOr<Allocation> second = absl::UnknownError("nothing");
  bool inside = false;
  plane_.on_operate = [&](const OperationCall& call) {
    if (!std::holds_alternative<ConfirmOp>(call.op) || std::exchange(inside, true)) return;
    *reinterpret_cast<uint8_t*>(window_->address(0, kAt)) = 7;
    first_id = 80;
    second = zero_->RegisterTogether(own_ + 100, {.bytes = 60, .name = "y"}, alone);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(*static_cast<uint8_t*>(second->address), 0) << "it is what was there before";
    *static_cast<uint8_t*>(second->address) = 8;
  };
  plane_.Script({Placed(), Placed(), Fake::Decided(),
                 Fake::Decided(absl::ResourceExhaustedError("rank 1: could not"))});
  EXPECT_EQ(Register().status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(second.ok()) << second.status();
  const uint32_t zero[] = {0};
  EXPECT_TRUE(zero_->HaveTogether(zero, kAt, 60));
  EXPECT_TRUE(zero_->Borrows(0, kAt, 60));
  EXPECT_FALSE(zero_->Borrows(1, kAt, 1)) << "nobody has registered that";
  ASSERT_EQ(window_->n_segments(), 3u);
  EXPECT_EQ(*static_cast<uint8_t*>(second->address), 8);
  EXPECT_TRUE(zero_->Free(*second).ok());
  EXPECT_EQ(window_->n_segments(), 2u);
}

// This rank comes so late that its memory lies where another's is by now.
TEST_F(RegisteredTogetherTest, WhatIsUndoneAlreadyIsNotMappedOverWhatIsThereNow) {
  const Team alone = CreateAlone();
  absl::StatusOr<Allocation> second = absl::UnknownError("nothing");
  bool inside = false;
  plane_.lend = [&](const HeapPart& part) {
    const bool is_first = !std::exchange(inside, true);
    if (is_first) second = zero_->RegisterTogether(own_ + 100, {.bytes = 60}, alone);
    std::vector<ControlPlane::Lent> lent;
    lent.push_back({{(is_first ? 70 : 80) + part.rank, part.rank, kAt - 100, FakeMemory::kGranule},
                    memory_.NewSegment()});
    return lent;
  };
  plane_.Script({Placed(), Placed(), Fake::Decided(),
                 Fake::Decided(absl::ResourceExhaustedError("rank 1: time is up"))});
  EXPECT_EQ(Register().status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(asked_.back(), HasSubstr("given back"));
  const uint32_t zero[] = {0};
  EXPECT_TRUE(zero_->HaveTogether(zero, kAt, 60));
  EXPECT_EQ(window_->n_segments(), 3u);
}

TEST_F(TeamCallsTest, BarrierNeedsNoCallOfIrisd) {
  std::thread peer([&] { EXPECT_TRUE(one_->Barrier(world_, absl::Seconds(60)).ok()); });
  EXPECT_TRUE(zero_->Barrier(world_, absl::Seconds(60)).ok());
  peer.join();
  EXPECT_TRUE(plane_.ks().empty());
}

TEST_F(TeamCallsTest, NothingIsAskedOnceTheContextIsClosed) {
  guard_.Close();
  const auto closed = [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kFailedPrecondition &&
           absl::StrContains(status.message(), ": this context has left the job");
  };
  EXPECT_TRUE(closed(zero_->Allocate({.bytes = 1}, world_).status()));
  EXPECT_TRUE(closed(zero_->Free({})));
  EXPECT_TRUE(closed(zero_->AllocateLocal({.bytes = 1}).status()));
  EXPECT_TRUE(closed(zero_->Open(1, "x", absl::Seconds(60)).status()));
  EXPECT_TRUE(closed(zero_->Close({})));
  EXPECT_TRUE(closed(zero_->Publish({}, "x")));
  EXPECT_TRUE(closed(zero_->Grow(1, world_)));
  EXPECT_TRUE(closed(zero_->Broadcast("", 0, world_).status()));
  EXPECT_TRUE(closed(zero_->CreateTeam({}, world_).status()));
  EXPECT_TRUE(closed(zero_->DestroyTeam(world_)));
  EXPECT_TRUE(closed(zero_->Barrier(world_, absl::Seconds(60))));
  EXPECT_TRUE(plane_.ks().empty());
}

}  // namespace
}  // namespace iris::internal
