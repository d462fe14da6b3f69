#include "server/session/poller.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace iris::server {
namespace {

class PollerTest : public ::testing::Test {
 protected:
  PollerTest() : poller_(*Poller::Create()) {}

  // The two ends of a connection.
  static std::pair<wire::UniqueFd, wire::UniqueFd> MakePair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    return {wire::UniqueFd(fds[0]), wire::UniqueFd(fds[1])};
  }

  std::unique_ptr<Poller> poller_;
};

TEST_F(PollerTest, RunsTheHandlerOfWhatHappened) {
  auto [ours, theirs] = MakePair();
  auto [other, silent] = MakePair();
  int n_ours = 0, n_other = 0;
  auto watched = poller_->Watch(&ours, EPOLLIN, [&](uint32_t events) {
    EXPECT_NE(events & EPOLLIN, 0u);
    ++n_ours;
  });
  auto second = poller_->Watch(&other, EPOLLIN, [&](uint32_t) { ++n_other; });
  ASSERT_TRUE(watched.ok() && second.ok());
  EXPECT_FALSE(ours.valid()) << "it is the watch's now";
  ASSERT_EQ(write(theirs.get(), "x", 1), 1);
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(n_ours, 1);
  EXPECT_EQ(n_other, 0);
}

TEST_F(PollerTest, AFailedWatchLeavesTheDescriptor) {
  wire::UniqueFd nothing;
  EXPECT_FALSE(poller_->Watch(&nothing, EPOLLIN, [](uint32_t) {}).ok());
  auto [ours, theirs] = MakePair();
  const int number = ours.get();
  auto watched = poller_->Watch(&ours, EPOLLIN, [](uint32_t) {});
  ASSERT_TRUE(watched.ok());
  wire::UniqueFd again(number);  // the same number is watched already
  EXPECT_FALSE(poller_->Watch(&again, EPOLLIN, [](uint32_t) {}).ok());
  EXPECT_EQ(again.Release(), number);
}

TEST_F(PollerTest, AHandlerMayLetGoOfItself) {
  auto [ours, theirs] = MakePair();
  Poller::Watched watched;
  int runs = 0;
  watched = *poller_->Watch(&ours, EPOLLIN, [&](uint32_t) {
    watched.Reset();
    ++runs;
  });
  ASSERT_EQ(write(theirs.get(), "x", 1), 1);
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(watched.valid());
  poller_->Wait(absl::ZeroDuration());
  EXPECT_EQ(runs, 1);
}

TEST_F(PollerTest, NoHandlerRunsOfWhatAnEarlierOneOfTheTurnLetGo) {
  auto [a, to_a] = MakePair();
  auto [b, to_b] = MakePair();
  std::vector<Poller::Watched> watched(2);
  int runs = 0;
  const auto handler = [&](uint32_t) {
    ++runs;
    watched.clear();
  };
  watched[0] = *poller_->Watch(&a, EPOLLIN, handler);
  watched[1] = *poller_->Watch(&b, EPOLLIN, handler);
  ASSERT_EQ(write(to_a.get(), "x", 1), 1);
  ASSERT_EQ(write(to_b.get(), "x", 1), 1);
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(runs, 1);
}

TEST_F(PollerTest, ADuplicateElsewhereKeepsNoWatchAlive) {
  auto [ours, theirs] = MakePair();
  const wire::UniqueFd duplicate(dup(ours.get()));
  int runs = 0;
  auto watched = poller_->Watch(&ours, EPOLLIN, [&](uint32_t) { ++runs; });
  ASSERT_TRUE(watched.ok());
  watched->Reset();
  ASSERT_EQ(write(theirs.get(), "x", 1), 1);
  poller_->Wait(absl::ZeroDuration());
  EXPECT_EQ(runs, 0);
}

TEST_F(PollerTest, WakeEndsAWait) {
  std::thread waker([this] {
    absl::SleepFor(absl::Milliseconds(20));
    poller_->Wake();
  });
  poller_->Wait(absl::InfiniteDuration());
  waker.join();
  poller_->Wake();
  poller_->Wait(absl::InfiniteDuration());  // one wake ends one wait, also if it came before
}

TEST_F(PollerTest, ATimeoutIsNotShorterThanAsked) {
  const absl::Time start = absl::Now();
  poller_->Wait(absl::Microseconds(1500));
  EXPECT_GE(absl::Now() - start, absl::Microseconds(1500));
}

}  // namespace
}  // namespace iris::server
