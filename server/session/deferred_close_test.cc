#include "server/session/deferred_close.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/link/drop_unread.h"
#include "server/session/testing/slow_socket.h"

namespace iris::server {
namespace {

bool WaitFor(const DeferredClose& closer, size_t n_waiting) {
  for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
    if (closer.n_waiting() == n_waiting) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

TEST(DeferredCloseTest, OneTenantsSlowCloseHoldsUpNobodyElse) {
  DeferredClose closer;
  testing::SlowSocket slow(30);
  const absl::Time start = absl::Now();
  closer.CloseUnknown(Party{1}, std::move(slow.socket));
  std::vector<wire::UniqueFd> more;
  for (int i = 0; i < 3; ++i) more.push_back(wire::UniqueFd(open("/dev/null", O_RDONLY)));
  closer.CloseUnknown(Party{1}, std::move(more));
  closer.CloseUnknown(Party{1}, wire::UniqueFd());
  closer.CloseUnknown(Party{1}, std::vector<wire::UniqueFd>());
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const wire::UniqueFd read_end(pipe_ends[0]);
  closer.CloseUnknown(Party{2}, wire::UniqueFd(pipe_ends[1]));
  char byte;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0) << "the other tenant's is closed";
  EXPECT_TRUE(WaitFor(closer, 3));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  // Once the peer is gone, so is the reason to wait.
  slow.peer.Reset();
  EXPECT_TRUE(WaitFor(closer, 0));
}

TEST(DeferredCloseTest, AConnectionWithNothingInItIsClosedAtOnce) {
  DeferredClose closer;
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
    const wire::UniqueFd theirs(pair[1]);
    closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
    EXPECT_EQ(fcntl(pair[0], F_GETFD), -1);
    char byte;
    EXPECT_EQ(recv(theirs.get(), &byte, 1, 0), 0);
  }
}

// The close drops the client's unread data.
TEST(DeferredCloseTest, AConnectionWithSomethingInItEndsAtOnceAndIsClosedElsewhere) {
  DeferredClose closer;
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const wire::UniqueFd theirs(pair[1]);
  testing::SlowSocket slow(30);
  testing::SendFd(theirs.get(), slow.socket.get());
  slow.socket.Reset();
  const absl::Time start = absl::Now();
  closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  char byte;
  EXPECT_EQ(recv(theirs.get(), &byte, 1, 0), 0);
  EXPECT_EQ(send(theirs.get(), &byte, 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  slow.peer.Reset();
  EXPECT_TRUE(WaitFor(closer, 0));
}

// However much a client has said: packets without descriptors cost nobody a thread.
TEST(DeferredCloseTest, PlainPacketsAreDropped) {
  DeferredClose closer({.per_tenant = 1}, [](const std::function<void()>&) { return false; });
  for (const bool with_credentials : {false, true}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    const wire::UniqueFd theirs(pair[1]);
    const int on = with_credentials ? 1 : 0;
    ASSERT_EQ(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
    for (int i = 0; i < 5; ++i) ASSERT_EQ(send(theirs.get(), "word", 4, 0), 4);
    closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
    EXPECT_EQ(fcntl(pair[0], F_GETFD), -1) << "it waits for a thread";
    EXPECT_EQ(closer.n_waiting(), 0u);
  }
  // Up to the first descriptor.
  for (const bool with_credentials : {false, true}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    const wire::UniqueFd theirs(pair[1]);
    const int on = with_credentials ? 1 : 0;
    ASSERT_EQ(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
    ASSERT_EQ(send(theirs.get(), "word", 4, 0), 4);
    testing::SendFd(theirs.get(), theirs.get());
    const size_t before = closer.n_waiting();
    closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
    EXPECT_EQ(closer.n_waiting(), before + 1);
  }
}

wire::UniqueFd Memfd() { return wire::UniqueFd(memfd_create("memory", MFD_CLOEXEC)); }

bool IsClosedSoon(int fd) {
  for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
    if (fcntl(fd, F_GETFD) < 0) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

// However slow the threads are: it ends no session, and says when to wait.
TEST(DeferredCloseTest, MemoryDoesNotCountAsWhatDoesNotClose) {
  bool has_threads = false;
  DeferredClose closer({.per_tenant = 3}, [&](std::function<void()> body) {
    if (has_threads) std::thread(std::move(body)).detach();
    return has_threads;
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(closer.RoomForMemory(Party{1}).ok());
    closer.Close(Party{1}, Memfd());
  }
  const absl::Status room = closer.Room(Party{1});
  EXPECT_TRUE(room.ok()) << room;
  EXPECT_EQ(closer.n_waiting(), 0u);
  const absl::Status waits = closer.RoomForMemory(Party{1});
  EXPECT_EQ(waits.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(waits.message(), "memory that was registered")) << waits;
  EXPECT_FALSE(absl::StrContains(waits.message(), "linger")) << waits;
  EXPECT_TRUE(closer.RoomForMemory(Party{2}).ok());
  has_threads = true;
  closer.Close(Party{1}, Memfd());
  for (const absl::Time end = absl::Now() + absl::Seconds(20);
       !closer.RoomForMemory(Party{1}).ok() && absl::Now() < end;) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(closer.RoomForMemory(Party{1}).ok());
}

TEST(DeferredCloseTest, MemoryWaitsForNothingThatDoesNotClose) {
  DeferredClose closer({.per_tenant = 1});
  testing::SlowSocket slow(30);
  closer.CloseUnknown(Party{1}, std::move(slow.socket));
  closer.CloseUnknown(Party{1}, Memfd());
  wire::UniqueFd memory = Memfd();
  const int number = memory.get();
  closer.Close(Party{1}, std::move(memory));
  EXPECT_TRUE(IsClosedSoon(number));
  EXPECT_TRUE(closer.IsFull(Party{1}));
  EXPECT_TRUE(closer.RoomForMemory(Party{1}).ok());
}

// Memory has the rest of what all tenants together may have.
TEST(DeferredCloseTest, MemoryAndTheRestHaveOneLimitTogether) {
  DeferredClose closer({.per_tenant = 8, .total = 5},
                       [](const std::function<void()>&) { return false; });
  for (int i = 0; i < 4; ++i) closer.CloseUnknown(Party{1}, Memfd());
  for (const uint32_t uid : {1, 2, 1}) closer.Close(Party{uid}, Memfd());
  EXPECT_TRUE(closer.RoomForMemory(Party{2}).ok());
  closer.Close(Party{2}, Memfd());  // each has 2 of 4, its part
  EXPECT_FALSE(closer.RoomForMemory(Party{1}).ok());
  EXPECT_FALSE(closer.RoomForMemory(Party{2}).ok());
  EXPECT_TRUE(closer.RoomForMemory(Party{3}).ok());
  EXPECT_FALSE(closer.IsFull(Party{1}));
}

// A machine may be out of threads for a while.
TEST(DeferredCloseTest, WithoutAThreadItWaitsForTheNextCall) {
  bool has_threads = false;
  DeferredClose closer({.per_tenant = 3}, [&](std::function<void()> body) {
    if (has_threads) std::thread(std::move(body)).detach();
    return has_threads;
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(closer.IsFull(Party{1}));
    closer.CloseUnknown(Party{1}, wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  }
  EXPECT_TRUE(closer.IsFull(Party{1}));
  EXPECT_FALSE(closer.IsFull(Party{2}));
  EXPECT_EQ(closer.n_waiting(), 3u);
  has_threads = true;
  closer.CloseUnknown(Party{2}, wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  EXPECT_TRUE(WaitFor(closer, 0)) << "a thread that has done its own looks after others'";
  EXPECT_FALSE(closer.IsFull(Party{1}));
}

TEST(DeferredCloseTest, AThreadIsAskedForAgain) {
  bool has_threads = false;
  DeferredClose closer({}, [&](std::function<void()> body) {
    if (has_threads) std::thread(std::move(body)).detach();
    return has_threads;
  });
  EXPECT_FALSE(closer.needs_thread());
  closer.CloseUnknown(Party{1}, wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  EXPECT_TRUE(closer.needs_thread());
  closer.Retry();
  EXPECT_EQ(closer.n_waiting(), 1u);
  has_threads = true;
  closer.Retry();
  EXPECT_FALSE(closer.needs_thread());
  EXPECT_TRUE(WaitFor(closer, 0));
}

// Where all tenants together have too many, nothing more is taken from those that have their part.
TEST(DeferredCloseTest, AllTenantsTogetherHaveALimit) {
  DeferredClose closer({.per_tenant = 8, .total = 9},
                       [](const std::function<void()>&) { return false; });
  const auto add = [&closer](uint32_t uid, int n) {
    for (int i = 0; i < n; ++i) {
      closer.CloseUnknown(Party{uid}, wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
    }
  };
  add(1, 6);
  add(2, 2);
  EXPECT_FALSE(closer.IsFull(Party{1}));
  add(2, 1);  // 9 of 9; a part is 4
  EXPECT_TRUE(closer.IsFull(Party{1}));
  EXPECT_FALSE(closer.IsFull(Party{2}));
  EXPECT_FALSE(closer.IsFull(Party{3})) << "it has none";
  add(2, 1);
  const absl::Status full = closer.Room(Party{2});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(full.message(), "10 descriptors of all tenants")) << full;
  EXPECT_TRUE(absl::StrContains(full.message(), "sessions.max_closing")) << full;
  add(3, 1);  // a part is 3
  EXPECT_FALSE(closer.IsFull(Party{3}));
  add(3, 2);
  EXPECT_TRUE(closer.IsFull(Party{3}));
}

// A connection with descriptors in it goes to a process that may hang, or else to a thread.
TEST(DeferredCloseTest, AConnectionWithDescriptorsIsHandedOver) {
  DeferredClose closer({}, [](const std::function<void()>&) { return false; });
  bool takes = true;
  std::vector<wire::UniqueFd> handed_over;
  closer.SetHandOver([&](int socket) {
    if (takes) handed_over.emplace_back(dup(socket));
    return takes;
  });
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    handed_over.clear();
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
    const wire::UniqueFd theirs(pair[1]);
    ASSERT_EQ(send(theirs.get(), "word", 4, 0), 4);
    testing::SendFd(theirs.get(), theirs.get());
    ASSERT_EQ(send(pair[0], "told", 4, 0), 4);
    closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
    EXPECT_EQ(fcntl(pair[0], F_GETFD), -1) << "irisd still has it";
    ASSERT_EQ(handed_over.size(), 1u);
    char bytes[8];
    EXPECT_EQ(recv(theirs.get(), bytes, sizeof(bytes), 0), 4) << "what irisd said last is lost";
    EXPECT_EQ(recv(theirs.get(), bytes, sizeof(bytes), 0), 0);
    EXPECT_EQ(closer.n_waiting(), 0u);
  }
  takes = false;
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const wire::UniqueFd theirs(pair[1]);
  testing::SendFd(theirs.get(), theirs.get());
  closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
  EXPECT_EQ(closer.n_waiting(), 1u);
}

// A reset would reach the peer before what irisd said last.
TEST(DeferredCloseTest, WhatWasSaidLastIsReadAlsoWhenAThreadCloses) {
  DeferredClose closer;
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const wire::UniqueFd theirs(pair[1]);
  for (int i = 0; i < 3; ++i) testing::SendFd(theirs.get(), STDERR_FILENO);
  ASSERT_EQ(send(pair[0], "told", 4, 0), 4);
  const wire::UniqueFd open_still(dup(pair[0]));
  closer.CloseConnection(Party{1}, wire::UniqueFd(pair[0]));
  for (const absl::Time end = absl::Now() + absl::Seconds(20);
       HasUnread(open_still.get()) && absl::Now() < end;) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(HasUnread(open_still.get()));
  char bytes[8];
  EXPECT_EQ(recv(theirs.get(), bytes, sizeof(bytes), 0), 4);
}

TEST(DeferredCloseTest, MoreTenantsThanThreadsAreServedInTurn) {
  DeferredClose closer;
  std::vector<testing::SlowSocket> slow;
  for (size_t i = 0; i < DeferredClose::kMaxThreads; ++i) {
    closer.CloseUnknown(Party{static_cast<uint32_t>(i + 1)},
                        std::move(slow.emplace_back(30).socket));
  }
  ASSERT_TRUE(WaitFor(closer, 0)) << "each is being closed by a thread of its own";
  for (uint32_t i = 0; i < 3; ++i) {
    closer.CloseUnknown(Party{1000 + i}, wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  }
  EXPECT_EQ(closer.n_waiting(), 3u);
  slow.front().peer.Reset();
  EXPECT_TRUE(WaitFor(closer, 0));
}

}  // namespace
}  // namespace iris::server
