#include "server/session/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace iris::server {
namespace {

// A connection whose last close waits for `seconds`: there is something to send, and nobody reads.
struct Slow {
  wire::UniqueFd socket, peer, listener;
  explicit Slow(int seconds) {
    listener = wire::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(at);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    socket = wire::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    peer = wire::UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string data(1 << 16, 'x');
    while (send(socket.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const struct linger linger = {1, seconds};
    EXPECT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
  }
};

bool WaitFor(const Closer& closer, size_t n_waiting) {
  for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
    if (closer.n_waiting() == n_waiting) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

void SendFd(int socket, int fd) {
  char byte = 'x';
  struct iovec part = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  *reinterpret_cast<int*>(CMSG_DATA(header)) = fd;
  ASSERT_EQ(sendmsg(socket, &message, 0), 1);
}

TEST(CloserTest, OneTenantsSlowCloseHoldsUpNobodyElse) {
  Closer closer;
  Slow slow(30);
  const absl::Time start = absl::Now();
  closer.Close(Tenant{1}, std::move(slow.socket));
  std::vector<wire::UniqueFd> more;
  for (int i = 0; i < 3; ++i) more.push_back(wire::UniqueFd(open("/dev/null", O_RDONLY)));
  closer.Close(Tenant{1}, std::move(more));
  closer.Close(Tenant{1}, wire::UniqueFd());
  closer.Close(Tenant{1}, std::vector<wire::UniqueFd>());
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const wire::UniqueFd read_end(pipe_ends[0]);
  closer.Close(Tenant{2}, wire::UniqueFd(pipe_ends[1]));
  char byte;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0) << "the other tenant's is closed";
  EXPECT_TRUE(WaitFor(closer, 3));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  // Once the peer is gone, so is the reason to wait.
  slow.peer.Reset();
  EXPECT_TRUE(WaitFor(closer, 0));
}

TEST(CloserTest, AConnectionWithNothingInItIsClosedAtOnce) {
  Closer closer;
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
    const wire::UniqueFd theirs(pair[1]);
    closer.CloseConnection(Tenant{1}, wire::UniqueFd(pair[0]));
    EXPECT_EQ(fcntl(pair[0], F_GETFD), -1);
    char byte;
    EXPECT_EQ(recv(theirs.get(), &byte, 1, 0), 0);
  }
}

// What the client has sent, and nobody has read, is let go of by the close.
TEST(CloserTest, AConnectionWithSomethingInItEndsAtOnceAndIsClosedElsewhere) {
  Closer closer;
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const wire::UniqueFd theirs(pair[1]);
  Slow slow(30);
  SendFd(theirs.get(), slow.socket.get());
  slow.socket.Reset();
  const absl::Time start = absl::Now();
  closer.CloseConnection(Tenant{1}, wire::UniqueFd(pair[0]));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  char byte;
  EXPECT_EQ(recv(theirs.get(), &byte, 1, 0), 0);
  EXPECT_EQ(send(theirs.get(), &byte, 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  slow.peer.Reset();
  EXPECT_TRUE(WaitFor(closer, 0));
}

}  // namespace
}  // namespace iris::server
