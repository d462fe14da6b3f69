// The lock of irisd's directory: nobody but irisd can hold it, whatever the umask and whatever an
// earlier irisd left.
#include "server/session/directory_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace iris::server {
namespace {

using absl::StatusCode;
namespace fs = std::filesystem;

class DirectoryLockTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/iris-lock-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    directory_ = path;
    path_ = directory_ + "/lock";
    ASSERT_EQ(chmod(path, 0755), 0);
  }
  void TearDown() override { fs::remove_all(directory_); }

  wire::UniqueFd MustLock() {
    auto lock = LockDirectory(directory_);
    EXPECT_TRUE(lock.ok()) << lock.status();
    return lock.ok() ? *std::move(lock) : wire::UniqueFd();
  }
  std::string Refusal(StatusCode code) {
    const absl::Status status = LockDirectory(directory_).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
  struct stat Look() {
    struct stat info = {};
    EXPECT_EQ(lstat(path_.c_str(), &info), 0);
    return info;
  }
  void Leave(mode_t mode) {
    std::ofstream(path_) << "999999\n";
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }

  std::string directory_;
  std::string path_;
};

TEST_F(DirectoryLockTest, IsOfThisUserAloneWhateverTheUmask) {
  for (const mode_t mask : {0000, 0022, 0027, 0077, 0277, 0777}) {
    const mode_t old = umask(mask);
    const wire::UniqueFd lock = MustLock();
    umask(old);
    EXPECT_EQ(Look().st_mode & 07777, 0600u) << mask;
    EXPECT_EQ(Look().st_uid, geteuid());
    unlink(path_.c_str());
  }
}

TEST_F(DirectoryLockTest, AnotherUserCannotOpenIt) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const mode_t old = umask(0022);
  const wire::UniqueFd lock = MustLock();
  umask(old);
  const pid_t child = fork();
  if (child == 0) {
    const bool became = setgid(65534) == 0 && setuid(65534) == 0;
    _exit(!became ? 2 : open(path_.c_str(), O_RDONLY) >= 0 ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: it could; 2: the test could not";
}

TEST_F(DirectoryLockTest, ASecondHolderIsRefusedByName) {
  const wire::UniqueFd lock = MustLock();
  const std::string text = Refusal(StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("(pid ", getpid(), ")"))) << text;
  EXPECT_FALSE(absl::StrContains(text, "remove")) << text;
}

TEST_F(DirectoryLockTest, WhatADeadOneLeftIsUsedAgain) {
  Leave(0600);
  const ino_t inode = Look().st_ino;
  const wire::UniqueFd lock = MustLock();
  EXPECT_EQ(Look().st_ino, inode);
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, absl::StrCat(getpid()));
}

// irisd can be killed while it starts a worker, between fork and exec.
TEST_F(DirectoryLockTest, AChildOfADeadOneThatHasNotComeToItsExecIsWaitedFor) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t irisd = fork();
  if (irisd == 0) {
    const wire::UniqueFd lock = MustLock();
    if (fork() == 0) {
      usleep(100'000);
      _exit(0);
    }
    (void)!write(ready[1], "x", 1);
    _exit(0);
  }
  char x;
  ASSERT_EQ(read(ready[0], &x, 1), 1);
  ASSERT_EQ(waitpid(irisd, nullptr, 0), irisd);
  const wire::UniqueFd lock = MustLock();
  EXPECT_TRUE(lock.valid());
  close(ready[0]);
  close(ready[1]);
}

TEST_F(DirectoryLockTest, AFileThatOthersMayHaveOpenIsReplaced) {
  for (const mode_t mode : {0644, 0666, 0640, 0602}) {
    Leave(mode);
    const wire::UniqueFd theirs(open(path_.c_str(), O_RDONLY));
    const wire::UniqueFd lock = MustLock();
    EXPECT_EQ(Look().st_mode & 07777, 0600u);
    // Their locks are not the one for which the next irisd asks.
    EXPECT_EQ(flock(theirs.get(), LOCK_SH | LOCK_NB), 0);
    Refusal(StatusCode::kAlreadyExists);
    unlink(path_.c_str());
  }
}

TEST_F(DirectoryLockTest, AnOldFileThatSomebodyHoldsIsRefusedWithTheRemedy) {
  Leave(0644);
  const wire::UniqueFd theirs(open(path_.c_str(), O_RDONLY));
  ASSERT_EQ(flock(theirs.get(), LOCK_SH | LOCK_NB), 0);
  const std::string text = Refusal(StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(text, "its mode, 644, lets others open it")) << text;
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("remove ", path_))) << text;
}

TEST_F(DirectoryLockTest, AnotherUsersFileIsRefusedWithTheRemedy) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give files away";
  Leave(0600);
  ASSERT_EQ(chown(path_.c_str(), 4242, 4242), 0);
  const std::string text = Refusal(StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(text, "belongs to uid 4242")) << text;
  EXPECT_TRUE(absl::StrContains(text, "remove it")) << text;
}

TEST_F(DirectoryLockTest, WhatIsNoFileIsRefused) {
  ASSERT_EQ(symlink("/etc/passwd", path_.c_str()), 0);
  EXPECT_TRUE(absl::StrContains(Refusal(StatusCode::kPermissionDenied), "not a plain file"));
  unlink(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_TRUE(absl::StrContains(Refusal(StatusCode::kPermissionDenied), "not a plain file"));
}

}  // namespace
}  // namespace iris::server
