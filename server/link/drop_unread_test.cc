#include "server/link/drop_unread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "proto/wire/unique_fd.h"
#include "server/link/pass_descriptor.h"

namespace iris::server {
namespace {

struct Pair {
  wire::UniqueFd ours, theirs;
};

Pair Connect(int type) {
  int pair[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  const int on = 1;
  EXPECT_EQ(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
  return {wire::UniqueFd(pair[0]), wire::UniqueFd(pair[1])};
}

void Say(const Pair& pair) { EXPECT_EQ(send(pair.theirs.get(), "plain", 5, 0), 5); }
void SendDescriptor(const Pair& pair) {
  const wire::UniqueFd fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(PassDescriptor(pair.theirs.get(), "x", 1, fd.get()), Passed::kYes);
}

TEST(NextOfTest, TellsWhatAReceiveWouldBring) {
  Pair pair = Connect(SOCK_SEQPACKET);
  EXPECT_EQ(NextOf(pair.ours.get()), Next::kNothing);
  Say(pair);
  SendDescriptor(pair);
  char buffer[8];
  EXPECT_EQ(NextOf(pair.ours.get()), Next::kPlain);
  EXPECT_EQ(recv(pair.ours.get(), buffer, 5, 0), 5);
  EXPECT_EQ(NextOf(pair.ours.get()), Next::kDescriptors);
  EXPECT_EQ(NextOf(pair.ours.get()), Next::kDescriptors) << "it takes nothing";
  EXPECT_TRUE(HasUnread(pair.ours.get()));
  EXPECT_EQ(recv(pair.ours.get(), buffer, 1, 0), 1);
  pair.theirs.Reset();
  EXPECT_EQ(NextOf(pair.ours.get()), Next::kEnd);
  EXPECT_FALSE(HasUnread(pair.ours.get()));
}

// Closing with unread data resets the connection, and a peek gets that error first.
TEST(NextOfTest, LooksBehindAReset) {
  for (const bool plain : {false, true}) {
    Pair pair = Connect(SOCK_SEQPACKET);
    ASSERT_EQ(send(pair.ours.get(), "unread", 6, 0), 6);
    if (plain) Say(pair);
    SendDescriptor(pair);
    pair.theirs.Reset();
    EXPECT_EQ(NextOf(pair.ours.get()), plain ? Next::kPlain : Next::kDescriptors);
  }
}

class DropTest : public ::testing::TestWithParam<int> {};

TEST_P(DropTest, BehindAResetLeavesDescriptors) {
  Pair pair = Connect(GetParam());
  ASSERT_EQ(send(pair.ours.get(), "unread", 6, 0), 6);
  Say(pair);
  SendDescriptor(pair);
  pair.theirs.Reset();
  DropPlain(pair.ours.get());
  EXPECT_EQ(NextOf(pair.ours.get()), Next::kDescriptors);
  EXPECT_TRUE(HasUnread(pair.ours.get()));
}

INSTANTIATE_TEST_SUITE_P(Sockets, DropTest, ::testing::Values(SOCK_SEQPACKET, SOCK_STREAM));

TEST(NextOfTest, WhatIsNoSocketFails) {
  const wire::UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(NextOf(file.get()), Next::kFailed);
}

}  // namespace
}  // namespace iris::server
