#include "server/session/peer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace iris::server {
namespace {

class AttestationTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a_.Reset(fds[0]);
    b_.Reset(fds[1]);
  }
  wire::UniqueFd a_, b_;
};

TEST_F(AttestationTest, TheKernelSaysWhoConnected) {
  auto caller = PeerCaller(a_.get());
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->pid, getpid());
  EXPECT_EQ(caller->party.uid, getuid());
  EXPECT_EQ(caller->gid, getgid());
}

TEST_F(AttestationTest, PeerPidfdIsTheProcessOrNotThere) {
  auto pidfd = PeerPidfd(a_.get());
  if (!pidfd.ok()) {
    EXPECT_TRUE(absl::IsUnimplemented(pidfd.status())) << pidfd.status();
    EXPECT_EQ(AttestationInUse(Attestation::kAuto), "nonce");
    return;
  }
  EXPECT_FALSE(ProcessHasEnded(pidfd->get()));
  EXPECT_EQ(AttestationInUse(Attestation::kAuto), "peerpidfd");
}

TEST(PidfdTest, SaysWhenTheProcessIsGone) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(pipe_fds[1]);
    _exit(read(pipe_fds[0], &byte, 1) == 0 ? 0 : 1);
  }
  auto pidfd = OpenPidfd(child);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  EXPECT_FALSE(ProcessHasEnded(pidfd->get()));
  close(pipe_fds[1]);
  close(pipe_fds[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(ProcessHasEnded(pidfd->get()));
  EXPECT_FALSE(OpenPidfd(child).ok());
}

TEST(AttestationInUseTest, NonceCanBeForced) {
  EXPECT_EQ(AttestationInUse(Attestation::kNonce), "nonce");
}

TEST(ProcessStartTest, IsTheSameTwiceAndDiffersForAChild) {
  auto first = ProcessStart(getpid());
  auto second = ProcessStart(getpid());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(*first, 0u);
  EXPECT_EQ(*first, *second);
}

TEST(ProcessStartTest, NoProcessIsAnError) { EXPECT_FALSE(ProcessStart(0x7ffffff0).ok()); }

}  // namespace
}  // namespace iris::server
