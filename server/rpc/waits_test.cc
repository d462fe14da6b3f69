#include "server/rpc/waits.h"

#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "iris/ccl_types.h"

namespace iris::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kRanks = 4;
constexpr uint64_t kWorkspace = 1 << 20;
constexpr uint32_t kSlot = 5;
constexpr int64_t kNowMs = 10'000'000;
constexpr uint32_t kSecondAgo = kNowMs - 1000;
constexpr uint32_t kFinishedAt = 4;
constexpr uint32_t kWaitingAt = 16;

// A job of four ranks with one team, the world; the test writes its pages and its heaps.
class WaitsTest : public testing::Test {
 protected:
  WaitsTest() : pages_(kRanks) {
    job_.id = JobId{7};
    job_.name = "train";
    job_.party = {3001};
    job_.n_ranks = job_.n_local = kRanks;
    TeamInfo world;
    world.barrier_slot = kSlot;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      job_.ranks.push_back({.rank = rank, .state = RankState::kReady, .pid = 100 + rank});
      world.ranks.push_back(rank);
    }
    waits_.teams.push_back(world);
  }

  // Sets how many operations, of 256 f32 each, a rank has put on its streams.
  void Put(Rank rank, uint32_t n_put, uint32_t put_ms = kSecondAgo) {
    wire::CollectiveRecord& record = pages_[rank].collectives[rank % 2];  // whichever it took
    record = {.n_members = kRanks, .n_put = n_put};
    record.workspace_offset_bytes = kWorkspace;
    record.finished_at = kFinishedAt;
    record.waiting_at = kWaitingAt;
    for (wire::CollectiveEntry& entry : record.last) {
      entry = {.count = 256, .put_ms = put_ms};
      entry.call = static_cast<uint8_t>(ccl::Operation::kAllReduce);
      entry.dtype = 1;
    }
  }
  // How far its device is.
  void Device(Rank rank, uint32_t finished, uint32_t waited_long_in = 0) {
    devices_[rank] = {finished, waited_long_in};
  }
  void Arrive(Rank rank, uint32_t epoch, uint32_t since_ms) {
    pages_[rank].words[kSlot] = epoch;
    pages_[rank].waits_since_ms[kSlot] = since_ms;
  }

  std::vector<v1::Wait> Find() {
    const auto read = [this](Rank rank, uint64_t offset_bytes, absl::Span<uint8_t> out) {
      const auto found = devices_.find(rank);
      if (found == devices_.end()) return false;
      const uint64_t waiting = uint64_t{0xabcd} << 32 | found->second.second;
      if (offset_bytes == kWorkspace + kFinishedAt && out.size() == 4) {
        std::memcpy(out.data(), &found->second.first, 4);
      } else if (offset_bytes == kWorkspace + kWaitingAt && out.size() == 8) {
        std::memcpy(out.data(), &waiting, 8);
      } else {
        return false;
      }
      return true;
    };
    const auto is_stopped = [this](int64_t pid) { return stopped_.contains(pid); };
    const absl::Time now = absl::FromUnixMillis(kNowMs);
    std::vector<v1::Wait> waits;
    uint64_t last = 0;
    for (FoundWait& found : FindWaits({job_, waits_, pages_, now, read, is_stopped})) {
      EXPECT_GT(found.key, last) << "keys are in order, and none is there twice";
      last = found.key;
      waits.push_back(std::move(found.wait));
    }
    return waits;
  }
  static std::vector<uint32_t> Waiting(const v1::Wait& wait) {
    std::vector<uint32_t> ranks;
    for (const v1::WaitMember& each : wait.waiting()) ranks.push_back(each.rank());
    return ranks;
  }
  static std::vector<uint32_t> Missing(const v1::Wait& wait) {
    std::vector<uint32_t> ranks;
    for (const v1::WaitMember& each : wait.missing()) ranks.push_back(each.rank());
    return ranks;
  }

  JobSnapshot job_;
  WaitsSnapshot waits_;
  std::vector<wire::ControlPage> pages_;
  std::map<Rank, std::pair<uint32_t, uint32_t>> devices_;
  std::set<int64_t> stopped_;
};

TEST_F(WaitsTest, NobodyWaitsInFreshPages) {
  EXPECT_THAT(Find(), IsEmpty());
  pages_.clear();
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(WaitsTest, AnOperationOfTheControlPlane) {
  waits_.pending.push_back({.kind = PendingSnapshot::Kind::kOperation,
                            .n_members = kRanks,
                            .k = 3,
                            .call = "allocate(1 KiB)",
                            .since = absl::FromUnixMillis(kNowMs - 1500),
                            .waiting = {0, 1, 3},
                            .missing = {2}});
  stopped_ = {102};
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].kind(), v1::WAIT_KIND_OPERATION);
  EXPECT_EQ(waits[0].call(), "allocate(1 KiB)");
  EXPECT_EQ(waits[0].number(), 3u);
  EXPECT_EQ(waits[0].waited_ms(), 1500);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0, 1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_EQ(waits[0].missing(0).pid(), 102);
  EXPECT_TRUE(waits[0].missing(0).stopped());
  EXPECT_FALSE(waits[0].waiting(0).stopped());
}

TEST_F(WaitsTest, AHostBarrier) {
  for (const Rank rank : {0, 1}) Arrive(rank, 9, kSecondAgo);
  Arrive(3, 9, kSecondAgo + 500);
  Arrive(2, 8, 0);
  auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].kind(), v1::WAIT_KIND_HOST_BARRIER);
  EXPECT_EQ(waits[0].number(), 9u);
  EXPECT_EQ(waits[0].waited_ms(), 1000);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0, 1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  // All have come, and some are not awake yet.
  Arrive(2, 9, 0);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(WaitsTest, AHostBarrierThatWasGivenUp) {
  Arrive(0, 9, 0);  // gave up
  Arrive(1, 9, kSecondAgo);
  Arrive(2, 8, 0);
  Arrive(3, 8, 0);
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(1));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2, 3));
}

TEST_F(WaitsTest, WhatADeadRankHasLeftInItsPageIsOld) {
  Arrive(0, 9, kSecondAgo);
  Put(0, 18);
  Device(0, 17, 18);
  for (const Rank rank : {1, 2, 3}) {
    Put(rank, 17);
    Device(rank, 17);
  }
  EXPECT_THAT(Find(), SizeIs(2));
  job_.ranks[0].state = RankState::kDead;
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(WaitsTest, EpochsWrap) {
  for (const Rank rank : {0, 1, 3}) Arrive(rank, 1, kSecondAgo);
  Arrive(2, 0xffffffff, 0);
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
}

TEST_F(WaitsTest, ACollectiveThatAMemberHasNotCalled) {
  for (const Rank rank : {0, 1, 3}) {
    Put(rank, 18);
    Device(rank, 17, 18);
  }
  Put(2, 17);
  Device(2, 17);
  stopped_ = {102};
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].kind(), v1::WAIT_KIND_COLLECTIVE);
  EXPECT_EQ(waits[0].call(), "all_reduce");
  EXPECT_EQ(waits[0].number(), 17u);
  EXPECT_EQ(waits[0].bytes(), 1024u);
  EXPECT_EQ(waits[0].dtype(), "f32");
  EXPECT_EQ(waits[0].waited_ms(), 1000);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0, 1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_EQ(waits[0].missing(0).place(), v1::WAIT_PLACE_NOT_COME);
  EXPECT_TRUE(waits[0].missing(0).stopped());
  EXPECT_FALSE(waits[0].device_unknown());
}

TEST_F(WaitsTest, ACollectiveInWhichAMemberIsStopped) {
  for (Rank rank = 0; rank < kRanks; ++rank) {
    Put(rank, 18);
    Device(rank, 17, 18);
  }
  stopped_ = {102};
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0, 1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_EQ(waits[0].missing(0).place(), v1::WAIT_PLACE_INSIDE);
}

TEST_F(WaitsTest, ACollectiveThatOnlyTheFirstBlocksOfOthersHaveFinished) {
  for (Rank rank = 0; rank < kRanks; ++rank) {
    Put(rank, 18);
    Device(rank, rank == 2 ? 17 : 18);
  }
  stopped_ = {102};
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].number(), 17u);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0, 1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
}

// Some blocks of a stopped rank had arrived, and with them all that rank 0 needed: it waits in the
// next operation already. Both waits are listed; the first names the stopped rank.
TEST_F(WaitsTest, ACollectiveThatAStoppedMemberHasEnteredForSomeOthersOnly) {
  for (const Rank rank : {1, 2, 3}) {
    Put(rank, 18);
    Device(rank, 17);
  }
  Put(0, 19);
  Device(0, 18);
  stopped_ = {102};
  for (const uint32_t finished_by_rank_3 : {17, 18}) {  // 18: by its first block
    Device(3, finished_by_rank_3);
    const auto waits = Find();
    ASSERT_THAT(waits, SizeIs(2));
    EXPECT_EQ(waits[0].number(), 17u);
    EXPECT_THAT(Waiting(waits[0]), ElementsAre(1, 3));
    EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
    EXPECT_TRUE(waits[0].missing(0).stopped());
    EXPECT_EQ(waits[1].number(), 18u);
    EXPECT_THAT(Waiting(waits[1]), ElementsAre(0));
    EXPECT_THAT(Missing(waits[1]), ElementsAre(1, 2, 3));
  }
}

TEST_F(WaitsTest, ACollectiveBehindOtherWorkOfAStream) {
  for (Rank rank = 0; rank < kRanks; ++rank) {
    Put(rank, 20);
    Device(rank, 17, rank == 2 ? 0 : 18);
  }
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_EQ(waits[0].missing(0).place(), v1::WAIT_PLACE_QUEUED);
}

TEST_F(WaitsTest, ACollectiveThatAllAreInIsToldAfterAWhile) {
  for (Rank rank = 0; rank < kRanks; ++rank) {
    Put(rank, 18, kNowMs - 300);
    Device(rank, 17, 18);
  }
  EXPECT_THAT(Find(), IsEmpty());
  for (Rank rank = 0; rank < kRanks; ++rank) Put(rank, 18, kNowMs - 3000);
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Waiting(waits[0]), SizeIs(kRanks));
  EXPECT_THAT(Missing(waits[0]), IsEmpty());
}

TEST_F(WaitsTest, ARootThatIsAheadWaitsForAllOthers) {
  Put(0, 20);
  Device(0, 18);
  for (const Rank rank : {1, 3}) {
    Put(rank, 20);
    Device(rank, 17);
  }
  Put(2, 17);
  Device(2, 17);
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(2));
  EXPECT_EQ(waits[0].number(), 17u);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_EQ(waits[1].number(), 18u);
  EXPECT_THAT(Waiting(waits[1]), ElementsAre(0));
  EXPECT_THAT(Missing(waits[1]), ElementsAre(1, 2, 3));
}

TEST_F(WaitsTest, AnOperationThatIsLongAgoHasNoName) {
  for (const Rank rank : {0, 1, 3}) {
    Put(rank, 100);
    Device(rank, 17, 18);
  }
  Put(2, 17);
  Device(2, 17);
  const auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].call(), "collective");
  EXPECT_EQ(waits[0].number(), 17u);
  EXPECT_EQ(waits[0].waited_ms(), -1);
}

TEST_F(WaitsTest, WhereDevicesCannotBeReadTheStreamsTell) {
  for (const Rank rank : {0, 1, 3}) Put(rank, 18);
  Put(2, 17);
  auto waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_TRUE(waits[0].device_unknown());
  EXPECT_EQ(waits[0].number(), 17u);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0, 1, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  // To be ahead for a moment is nothing to tell; nor, where nothing is known, to be equal.
  for (const Rank rank : {0, 1, 3}) Put(rank, 18, kNowMs - 10);
  EXPECT_THAT(Find(), IsEmpty());
  // A stopped rank is reported at once.
  stopped_ = {102};
  waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_TRUE(waits[0].missing(0).stopped());
  stopped_ = {100};
  EXPECT_THAT(Find(), IsEmpty());
  stopped_.clear();
  for (Rank rank = 0; rank < kRanks; ++rank) Put(rank, 18);
  EXPECT_THAT(Find(), IsEmpty());
}

// Of ranks on other nodes there are neither pages nor devices here.
class NodesWaitsTest : public WaitsTest {
 protected:
  NodesWaitsTest() {
    job_.first_local = 2;
    job_.n_local = 2;
    job_.leader = "host-a";
    for (const Rank rank : {0u, 1u}) {
      job_.ranks[rank].node = "host-a";
      job_.ranks[rank].node_rank = 0;
    }
    pages_.resize(2);
    waits_.teams[0].barrier_start_epoch = kStart;
  }
  void ArriveHere(Rank rank, uint32_t epoch, uint32_t since_ms) {
    Arrive(rank - 2, kStart + epoch, since_ms);
  }
  static constexpr uint32_t kStart = 7;
};

TEST_F(NodesWaitsTest, AHostBarrierNamesTheNodesOnceAllOfThisOneHaveCome) {
  ArriveHere(2, 2, 0);  // has passed the first barrier
  ArriveHere(3, 2, 0);
  EXPECT_THAT(Find(), IsEmpty());
  ArriveHere(3, 3, kSecondAgo);
  std::vector<v1::Wait> waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  // Rank 2 leads the node: it meets the others, and rank 3 waits for its release.
  ArriveHere(2, 3, kSecondAgo);
  ArriveHere(3, 4, kSecondAgo);
  waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].number(), kStart + 3);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(2, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(0, 1));
  for (const v1::WaitMember& each : waits[0].missing()) {
    EXPECT_EQ(each.node(), "host-a");
    EXPECT_TRUE(each.has_node_rank());
    EXPECT_EQ(each.node_rank(), 0u);
    EXPECT_EQ(each.place(), v1::WAIT_PLACE_UNSPECIFIED) << "not known here";
    EXPECT_FALSE(each.stopped());
  }
  EXPECT_FALSE(waits[0].waiting(0).has_node());
  EXPECT_FALSE(waits[0].waiting(0).has_node_rank());
}

TEST_F(NodesWaitsTest, ACollectiveThatAllOfThisNodeAreInWaitsForTheOthers) {
  for (const Rank rank : {2u, 3u}) {
    Put(rank - 2, 1);
    Device(rank, 0, 1);
  }
  const std::vector<v1::Wait> waits = Find();
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0].call(), "all_reduce");
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(2, 3));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(0, 1));
}

TEST_F(NodesWaitsTest, OnlyTheLeaderKnowsWhoHasCalled) {
  waits_.pending.push_back({.kind = PendingSnapshot::Kind::kOperation,
                            .n_members = kRanks,
                            .call = "free",
                            .since = absl::FromUnixMillis(kNowMs),
                            .waiting = {2},
                            .missing = {0, 1, 3}});
  v1::Wait wait = Find().at(0);
  EXPECT_EQ(wait.leader(), "host-a");
  EXPECT_EQ(wait.missing(0).place(), v1::WAIT_PLACE_UNSPECIFIED);
  EXPECT_EQ(wait.missing(2).place(), v1::WAIT_PLACE_NOT_COME);
  job_.leader.reset();
  wait = Find().at(0);
  EXPECT_FALSE(wait.has_leader());
  EXPECT_EQ(wait.missing(0).place(), v1::WAIT_PLACE_NOT_COME);
}

TEST_F(WaitsTest, KernelsThatWaitForSignals) {
  const auto note = [this](Rank rank, uint32_t slot, uint32_t from) {
    pages_[rank].kernel_waits[slot] = {.state = wire::kKernelWaitNoted,
                                       .from = from,
                                       .block = 3,
                                       .waited_ms = 2500,
                                       .wanted = uint64_t{1} << 40,
                                       .seen = 6};
  };
  note(0, 2, 2);
  note(3, 0, 0);
  note(3, 2, 2);
  stopped_ = {102};
  auto waits = Find();
  ASSERT_THAT(waits, SizeIs(3));
  EXPECT_EQ(waits[0].kind(), v1::WAIT_KIND_KERNEL);
  EXPECT_EQ(waits[0].call(), "kernel signal");
  EXPECT_EQ(waits[0].block(), 3u);
  EXPECT_EQ(waits[0].wanted(), uint64_t{1} << 40);
  EXPECT_EQ(waits[0].seen(), 6u);
  EXPECT_EQ(waits[0].waited_ms(), 2500);
  EXPECT_THAT(Waiting(waits[0]), ElementsAre(0));
  EXPECT_THAT(Missing(waits[0]), ElementsAre(2));
  EXPECT_EQ(waits[0].missing(0).pid(), 102);
  EXPECT_TRUE(waits[0].missing(0).stopped());
  EXPECT_THAT(Waiting(waits[1]), ElementsAre(3));
  EXPECT_THAT(Missing(waits[1]), ElementsAre(0));
  EXPECT_THAT(Missing(waits[2]), ElementsAre(2));
  // The kernel writes the note, or has taken it back; and a rank that no job has.
  pages_[0].kernel_waits[2].state = 1;
  pages_[3].kernel_waits[0].state = 0;
  note(3, 2, kRanks);
  EXPECT_THAT(Find(), IsEmpty());
  // A dead rank does not wait.
  note(3, 2, 2);
  job_.ranks[3].state = RankState::kDead;
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(WaitsTest, WhatIsWrittenByARankIsNotBelieved) {
  for (wire::ControlPage& page : pages_) std::memset(&page, 0xff, sizeof(page));
  EXPECT_THAT(Find(), IsEmpty());
  for (wire::ControlPage& page : pages_) {
    std::memset(&page, 0x7e, sizeof(page));
    for (wire::CollectiveRecord& record : page.collectives) {
      record.team_id = 0;
      record.n_members = kRanks;
    }
  }
  for (const v1::Wait& wait : Find()) EXPECT_LE(wait.waiting_size() + wait.missing_size(), 4);
}

// Whatever ranks write into their pages and heaps, the answer names ranks of the job, each once in
// a wait, and is no longer than the pages have room for.
TEST_F(WaitsTest, PagesOfNonsense) {
  std::mt19937_64 random(20261122);
  const auto one_in = [&random](uint32_t n) { return random() % n == 0; };
  const auto noise = [&random](void* to, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(random());
  };
  size_t n_found = 0;
  for (int round = 0; round < 1000; ++round) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      wire::ControlPage& page = pages_[rank];
      noise(&page, sizeof(page));
      // Fields that are compared first are mostly right.
      for (wire::CollectiveRecord& record : page.collectives) {
        if (!one_in(4)) record.version &= ~1u;
        if (!one_in(4)) record.n_members = kRanks;
        if (!one_in(4)) record.team_id = 0;
        if (!one_in(4)) record.workspace_offset_bytes = kWorkspace;
        if (!one_in(4)) record.n_put = static_cast<uint32_t>(random() % 8);
        if (!one_in(4)) record.finished_at = kFinishedAt;
        if (!one_in(4)) record.waiting_at = kWaitingAt;
      }
      if (!one_in(2)) page.words[kSlot] = static_cast<uint32_t>(random() % 3);
      for (wire::KernelWait& noted : page.kernel_waits) {
        if (!one_in(4)) noted.state = wire::kKernelWaitNoted;
        if (!one_in(4)) noted.from = static_cast<uint32_t>(random() % (2 * kRanks));
      }
      Device(rank, static_cast<uint32_t>(one_in(4) ? random() : random() % 8),
             static_cast<uint32_t>(one_in(4) ? random() : random() % 8));
    }
    const std::vector<v1::Wait> waits = Find();
    n_found += waits.size();
    ASSERT_LE(waits.size(),
              1 + kRanks * (std::size(pages_[0].collectives) + std::size(pages_[0].kernel_waits)));
    for (const v1::Wait& wait : waits) {
      std::set<uint32_t> ranks;
      for (const uint32_t rank : Waiting(wait))
        EXPECT_TRUE(rank < kRanks && ranks.insert(rank).second);
      // A kernel may wait for another one of its own rank.
      if (wait.kind() == v1::WAIT_KIND_KERNEL) ranks.clear();
      for (const uint32_t rank : Missing(wait))
        EXPECT_TRUE(rank < kRanks && ranks.insert(rank).second);
    }
  }
  EXPECT_GT(n_found, 100u) << "this looks at nothing";
}

TEST(AgeOfPageTimeTest, WrapsAndBearsAWriterThatIsAMomentLater) {
  const absl::Time now = absl::FromUnixMillis((int64_t{3} << 32) + 500);
  EXPECT_EQ(AgeOfPageTime(0, now), -1);
  EXPECT_EQ(AgeOfPageTime(400, now), 100);
  EXPECT_EQ(AgeOfPageTime(0xffffffff, now), 501);
  EXPECT_EQ(AgeOfPageTime(510, now), 0);
}

}  // namespace
}  // namespace iris::server
