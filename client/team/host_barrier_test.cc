#include "client/team/host_barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/base/clock.h"
#include "client/team/futex.h"

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::PageRankState;

constexpr absl::Duration kLong = absl::Seconds(60);

// Pages of a job of `n` ranks, shared with forked children; the test plays irisd.
class Pages {
 public:
  explicit Pages(uint32_t n) : n_(n) {
    void* memory = mmap(nullptr, (n + 1) * wire::kPageBytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    status_ = static_cast<wire::StatusPage*>(memory);
    control_ = reinterpret_cast<wire::ControlPage*>(static_cast<char*>(memory) + wire::kPageBytes);
    for (uint32_t r = 0; r < n; ++r) Set(r, PageRankState::kReady, false);
  }
  ~Pages() { munmap(status_, (n_ + 1) * wire::kPageBytes); }

  void Set(uint32_t rank, PageRankState state, bool abort) {
    __atomic_store_n(&status_->rank_pid[rank], 1000 + rank, __ATOMIC_RELAXED);
    __atomic_store_n(&status_->rank_state[rank], static_cast<uint32_t>(state), __ATOMIC_RELAXED);
    if (abort && status_->broken_by == 0 && state != PageRankState::kReady) {
      __atomic_store_n(&status_->broken_by, rank + 1, __ATOMIC_RELAXED);
    }
    if (abort) __atomic_store_n(&status_->abort, 1u, __ATOMIC_RELAXED);
    __atomic_add_fetch(&status_->changes, 1, __ATOMIC_RELEASE);
    FutexWakeAll(&status_->changes);
  }

  HostBarrier Barrier(uint32_t rank, std::vector<uint32_t> ranks = {}, uint32_t slot = 0,
                      uint32_t start_epoch = 0) {
    if (ranks.empty()) {
      for (uint32_t r = 0; r < n_; ++r) ranks.push_back(r);
    }
    std::vector<const uint32_t*> words;
    for (const uint32_t r : ranks) words.push_back(&control_[r].words[slot]);
    return HostBarrier(ranks, start_epoch, words, &control_[rank].words[slot],
                       JobStatus(status_, 0, n_));
  }

  void SetPid(uint32_t rank, int64_t pid) {
    __atomic_store_n(&status_->rank_pid[rank], pid, __ATOMIC_RELAXED);
  }
  // Since when the rank says that it waits; 0: it does not.
  uint32_t waits_since_ms(uint32_t rank, uint32_t slot = 0) const {
    return __atomic_load_n(&control_[rank].waits_since_ms[slot], __ATOMIC_RELAXED);
  }

  uint32_t* word(uint32_t rank, uint32_t slot = 0) { return &control_[rank].words[slot]; }

 private:
  const uint32_t n_;
  wire::StatusPage* status_;
  wire::ControlPage* control_;
};

const std::atomic<bool> kNotCancelled{false};

absl::Status RunOnce(HostBarrier& barrier, absl::Duration timeout = kLong) {
  return barrier.Run(absl::Now() + timeout, kNotCancelled);
}

// Runs with futex_waitv (false) and with the fallback (true).
class HostBarrierTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { ForceFutexFallbackForTesting(GetParam()); }
  void TearDown() override { ForceFutexFallbackForTesting(false); }
};
INSTANTIATE_TEST_SUITE_P(Kernel, HostBarrierTest, ::testing::Bool(),
                         [](const auto& param_info) -> std::string {
                           return param_info.param ? "WithoutWaitv" : "WithWaitv";
                         });

TEST_P(HostBarrierTest, OneRankNeverWaits) {
  Pages pages(1);
  HostBarrier barrier = pages.Barrier(0);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(RunOnce(barrier).ok());
  EXPECT_EQ(barrier.epoch(), 10u);
}

TEST_P(HostBarrierTest, NobodyPassesBeforeEverybodyCame) {
  constexpr uint32_t kRanks = 4;
  constexpr int kRounds = 200;
  Pages pages(kRanks);
  int counts[kRanks] = {};  // plain memory: the barrier orders it
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      HostBarrier barrier = pages.Barrier(r);
      for (int i = 1; i <= kRounds; ++i) {
        counts[r] = i;
        ASSERT_TRUE(RunOnce(barrier).ok());
        for (const int count : counts) ASSERT_EQ(count, i);
        ASSERT_TRUE(RunOnce(barrier).ok());
      }
    });
  }
  for (auto& t : threads) t.join();
}

TEST_P(HostBarrierTest, BetweenProcesses) {
  constexpr uint32_t kRanks = 3;
  Pages pages(kRanks);
  std::vector<pid_t> children;
  for (uint32_t r = 1; r < kRanks; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      HostBarrier barrier = pages.Barrier(r);
      for (int i = 0; i < 100; ++i) {
        if (!RunOnce(barrier).ok()) _exit(1);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  HostBarrier barrier = pages.Barrier(0);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(RunOnce(barrier).ok());
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST_P(HostBarrierTest, EpochsWrap) {
  Pages pages(2);
  const uint32_t start = 0xfffffffdu;
  *pages.word(0) = *pages.word(1) = start;
  std::thread peer([&] {
    HostBarrier barrier = pages.Barrier(1, {}, 0, start);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(RunOnce(barrier).ok());
  });
  HostBarrier barrier = pages.Barrier(0, {}, 0, start);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(RunOnce(barrier).ok());
  peer.join();
  EXPECT_EQ(barrier.epoch(), 7u);
}

TEST_P(HostBarrierTest, WordsOfAnOlderTeamInTheSlotAreNotArrivals) {
  Pages pages(2);
  *pages.word(1, 5) = 100;  // left over; the new team starts at 100
  HostBarrier barrier = pages.Barrier(0, {0, 1}, 5, 100);
  EXPECT_EQ(RunOnce(barrier, absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(HostBarrierTest, DeadlineNamesWhoIsMissing) {
  Pages pages(4);
  *pages.word(2) = 1;
  HostBarrier barrier = pages.Barrier(0);
  const absl::Status status = RunOnce(barrier, absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("missing: rank 1 (pid 1001), rank 3 (pid 1003)"));
}

TEST_P(HostBarrierTest, LateRanksStayInStepAfterADeadline) {
  Pages pages(2);
  HostBarrier zero = pages.Barrier(0);
  HostBarrier one = pages.Barrier(1);
  EXPECT_EQ(RunOnce(zero, absl::Milliseconds(10)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(RunOnce(one).ok());  // rank 0 has arrived at this one
  std::thread late([&] { EXPECT_TRUE(RunOnce(one).ok()); });
  EXPECT_TRUE(RunOnce(zero).ok());
  late.join();
}

TEST_P(HostBarrierTest, HangUpWakesAndNamesRankAndPid) {
  Pages pages(3);
  std::thread irisd([&] { pages.Set(2, PageRankState::kEnding, true); });
  HostBarrier barrier = pages.Barrier(0);
  const absl::Status status = RunOnce(barrier);
  irisd.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  // Its session has ended; nobody knows yet whether the process has.
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 2 (pid 1002) hung up (its process may still run)"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("died")));
}

TEST_P(HostBarrierTest, AProcessThatIsEndingHasDied) {
  Pages pages(2);
  pages.SetPid(0, getpid());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  siginfo_t ended = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  pages.Set(1, PageRankState::kEnding, true);
  pages.SetPid(1, child);
  HostBarrier barrier = pages.Barrier(0);
  EXPECT_THAT(std::string(RunOnce(barrier).message()),
              HasSubstr(absl::StrCat("rank 1 (pid ", child, ") died; make a new Context")));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(std::string(RunOnce(barrier).message()), HasSubstr(") died"));
  pages.SetPid(1, getpid());
  EXPECT_THAT(std::string(RunOnce(barrier).message()), HasSubstr("hung up"));
}

TEST_P(HostBarrierTest, TheRankThatBrokeTheJobIsNamedAlone) {
  Pages pages(4);
  pages.Set(2, PageRankState::kEnding, true);
  pages.Set(1, PageRankState::kEnding, true);
  pages.Set(3, PageRankState::kDead, true);
  HostBarrier barrier = pages.Barrier(0);
  EXPECT_THAT(std::string(RunOnce(barrier).message()),
              HasSubstr(": rank 2 (pid 1002) hung up (its process may still run); make a new"));
  pages.Set(2, PageRankState::kDead, true);
  EXPECT_THAT(std::string(RunOnce(barrier).message()),
              HasSubstr(": rank 2 (pid 1002) died; make a new Context"));
}

TEST_P(HostBarrierTest, DeathOfARankOutsideTheTeamEndsItToo) {
  Pages pages(3);
  pages.Set(2, PageRankState::kDead, true);
  HostBarrier barrier = pages.Barrier(0, {0, 1}, 1);
  const absl::Status status = RunOnce(barrier);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 (pid 1002) died"));
}

TEST_P(HostBarrierTest, ReachedBarrierSucceedsThoughAPeerDiedAfterIt) {
  Pages pages(2);
  *pages.word(1) = 1;
  pages.Set(1, PageRankState::kDead, true);
  HostBarrier barrier = pages.Barrier(0);
  EXPECT_TRUE(RunOnce(barrier).ok());
  EXPECT_EQ(RunOnce(barrier).code(), absl::StatusCode::kAborted);
}

TEST_P(HostBarrierTest, DeathOutsideTheTeamShowsThoughNobodyEverWaits) {
  Pages pages(3);
  *pages.word(1, 1) = 100;  // is always there first
  HostBarrier barrier = pages.Barrier(0, {0, 1}, 1);
  EXPECT_TRUE(RunOnce(barrier).ok());
  pages.Set(2, PageRankState::kDead, true);
  EXPECT_TRUE(RunOnce(barrier).ok());
  EXPECT_EQ(RunOnce(barrier).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*pages.word(0, 1), 3u);  // arrived nevertheless
}

TEST_P(HostBarrierTest, MemberThatLeftIsNamed) {
  Pages pages(2);
  std::thread irisd([&] { pages.Set(1, PageRankState::kLeft, false); });
  HostBarrier barrier = pages.Barrier(0);
  const absl::Status status = RunOnce(barrier);
  irisd.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 (pid 1001) left the job"));
}

TEST_P(HostBarrierTest, MemberThatArrivedAndLeftIsNoError) {
  Pages pages(2);
  *pages.word(1) = 1;
  pages.Set(1, PageRankState::kLeft, false);
  HostBarrier barrier = pages.Barrier(0);
  EXPECT_TRUE(RunOnce(barrier).ok());
}

TEST_P(HostBarrierTest, MemberThatArrivedAndLeftDoesNotEndTheWaitForAnother) {
  Pages pages(3);
  *pages.word(1) = 1;
  pages.Set(1, PageRankState::kLeft, false);
  HostBarrier barrier = pages.Barrier(0);
  const absl::Status status = RunOnce(barrier, absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing: rank 2 (pid 1002)"));
}

TEST_P(HostBarrierTest, AMemberThatGaveUpIsNotMissingAndIsNamedAsThat) {
  Pages pages(3);
  HostBarrier one = pages.Barrier(1);
  const absl::Status hasty = RunOnce(one, absl::Milliseconds(20));
  EXPECT_EQ(hasty.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(hasty.message()), HasSubstr("time is up after "));
  EXPECT_THAT(std::string(hasty.message()), Not(HasSubstr("gave up")));
  HostBarrier zero = pages.Barrier(0);
  const absl::Status patient = RunOnce(zero, absl::Milliseconds(60));
  EXPECT_THAT(std::string(patient.message()), HasSubstr("missing: rank 2 (pid 1002); rank 1 (pid "
                                                        "1001) came and gave up after "));
  EXPECT_THAT(std::string(patient.message()), HasSubstr("ms (its own timeout)"));
  // The next barrier is another one.
  EXPECT_THAT(std::string(RunOnce(zero, absl::Milliseconds(20)).message()),
              Not(HasSubstr("rank 1 (pid 1001) came")));
}

TEST_P(HostBarrierTest, WhereAMemberGaveUpAndDiedTheMissingOnesAreNamedToo) {
  Pages pages(4);
  HostBarrier one = pages.Barrier(1);
  EXPECT_EQ(RunOnce(one, absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
  pages.Set(1, PageRankState::kDead, true);
  HostBarrier zero = pages.Barrier(0);
  const absl::Status status = RunOnce(zero);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 (pid 1001) died; make a new Context; missing besides: rank 2 (pid "
                        "1002), rank 3 (pid 1003); rank 1 (pid 1001) came and gave up after "));
}

TEST_P(HostBarrierTest, RankOutsideTheTeamMayLeave) {
  Pages pages(3);
  pages.Set(2, PageRankState::kLeft, false);
  std::thread peer([&] {
    HostBarrier barrier = pages.Barrier(1, {0, 1}, 1);
    EXPECT_TRUE(RunOnce(barrier).ok());
  });
  HostBarrier barrier = pages.Barrier(0, {0, 1}, 1);
  EXPECT_TRUE(RunOnce(barrier).ok());
  peer.join();
}

TEST_P(HostBarrierTest, AbortWithoutADeadRankSaysSo) {
  Pages pages(2);
  pages.Set(1, PageRankState::kReady, true);
  HostBarrier barrier = pages.Barrier(0);
  EXPECT_THAT(std::string(RunOnce(barrier).message()), HasSubstr("aborted by irisd"));
}

TEST_P(HostBarrierTest, Cancelled) {
  Pages pages(2);
  std::atomic<bool> cancelled{false};
  std::thread leaver([&] { cancelled.store(true); });
  HostBarrier barrier = pages.Barrier(0);
  const absl::Status status = barrier.Run(absl::Now() + kLong, cancelled);
  leaver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(HostBarrierTest, ManyRanksAsThreads) {
  constexpr uint32_t kRanks = 16;
  Pages pages(kRanks);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      HostBarrier barrier = pages.Barrier(r);
      for (int i = 0; i < 20; ++i) failures += RunOnce(barrier).ok() ? 0 : 1;
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST(FutexTest, WaitReturnsAtOnceWhenAWordHasChanged) {
  uint32_t a = 1, b = 2;
  const FutexWord words[] = {{&a, 1}, {&b, 1}};
  const absl::Time start = absl::Now();
  FutexWaitAny(words, kLong);
  EXPECT_LT(absl::Now() - start, kLong) << "it did not look at the second word";
}

TEST(FutexTest, NoWordsOrNoTimeIsNoWait) {
  uint32_t a = 1;
  const FutexWord word[] = {{&a, 1}};
  FutexWaitAny({}, kLong);
  FutexWaitAny(word, absl::ZeroDuration());
  FutexWaitAny(word, absl::Milliseconds(-5));
}

TEST(FutexTest, InfiniteTimeoutIsAccepted) {
  uint32_t a = 1;
  const FutexWord word[] = {{&a, 2}};
  FutexWaitAny(word, absl::InfiniteDuration());
}

TEST_P(HostBarrierTest, SaysSinceWhenItWaits) {
  Pages pages(2);
  HostBarrier mine = pages.Barrier(0);
  HostBarrier peer = pages.Barrier(1);
  EXPECT_EQ(pages.waits_since_ms(0), 0u);
  absl::Status status;
  std::thread waiter([&] { status = RunOnce(mine); });
  while (pages.waits_since_ms(0) == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_LT(PageNow() - pages.waits_since_ms(0), 60'000u);
  EXPECT_EQ(pages.waits_since_ms(1), 0u);
  EXPECT_TRUE(RunOnce(peer).ok());
  waiter.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(pages.waits_since_ms(0), 0u);
  // Also after a barrier that failed.
  EXPECT_FALSE(RunOnce(mine, absl::Milliseconds(5)).ok());
  EXPECT_EQ(pages.waits_since_ms(0), 0u);
}

TEST_P(HostBarrierTest, ATimeoutTellsThatTheMissingProcessIsStopped) {
  Pages pages(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(state));
  pages.SetPid(0, getpid());
  pages.SetPid(1, child);
  HostBarrier mine = pages.Barrier(0);
  const absl::Status status = RunOnce(mine, absl::Milliseconds(5));
  EXPECT_THAT(status.message(),
              HasSubstr(absl::StrCat("missing: rank 1 (pid ", child, ", stopped)")));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &state, 0), child);
}

// Stands for irisd's knowledge.
class Help : public BarrierHelp {
 public:
  std::string WhyItCannotEnd(uint32_t epoch, const std::vector<uint32_t>& missing) override {
    EXPECT_EQ(epoch, 1u);
    EXPECT_THAT(missing, ElementsAre(1));
    return ++n_asked == 2 ? why : "";
  }
  std::string WhereAre(uint32_t, const std::vector<uint32_t>& missing) override {
    EXPECT_THAT(missing, ElementsAre(1));
    return "rank 1 is in allocate #3";
  }
  std::string WhyItCouldNotEnd() override { return why; }
  std::string why;
  int n_asked = 0;
};

TEST_P(HostBarrierTest, OneThatCannotEndFailsWithTheReason) {
  Pages pages(2);
  HostBarrier barrier = pages.Barrier(0);
  Help help;
  help.why = "it cannot end";
  const absl::Status status = barrier.Run(absl::Now() + kLong, kNotCancelled, &help);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("host barrier #1 of 2 ranks: it cannot end"));
  EXPECT_EQ(pages.waits_since_ms(0), 0u);
}

TEST_P(HostBarrierTest, OneThatCouldNotEndSaysSoAfterARankHasLeft) {
  Pages pages(2);
  HostBarrier barrier = pages.Barrier(0);
  Help help;
  help.why = "it cannot end";
  pages.Set(1, PageRankState::kLeft, false);
  const absl::Status status = barrier.Run(absl::Now() + kLong, kNotCancelled, &help);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it cannot end"));
}

TEST_P(HostBarrierTest, OneThatTimesOutSaysWhereTheMissingAre) {
  Pages pages(2);
  HostBarrier barrier = pages.Barrier(0);
  Help help;
  const absl::Status status =
      barrier.Run(absl::Now() + absl::Milliseconds(1), kNotCancelled, &help);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("missing: rank 1 (pid 1001); rank 1 is in allocate #3"));
  EXPECT_EQ(help.n_asked, 0) << "asked of a barrier that has just begun";
}

}  // namespace
}  // namespace iris::internal
