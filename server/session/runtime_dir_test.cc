#include "server/session/runtime_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {
namespace {

using absl::StatusCode;
namespace fs = std::filesystem;

class RuntimeDirTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/iris-rd-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    root_ = path;
    options_.path = root_ + "/run";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::unique_ptr<RuntimeDir> MustCreate() {
    auto dir = RuntimeDir::Create(options_);
    EXPECT_TRUE(dir.ok()) << dir.status();
    return dir.ok() ? *std::move(dir) : nullptr;
  }
  void ExpectRefused(StatusCode code, const std::string& text) {
    const absl::Status status = RuntimeDir::Create(options_).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }
  mode_t ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  }
  int Connect(const std::string& name, int type) {
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, (options_.path + "/" + name).c_str(), sizeof(address.sun_path) - 1);
    const int result = connect(fd, reinterpret_cast<struct sockaddr*>(&address), sizeof(address));
    close(fd);
    return result;
  }

  std::string root_;
  RuntimeDirOptions options_;
};

TEST_F(RuntimeDirTest, ListensOnBothSockets) {
  auto dir = MustCreate();
  ASSERT_NE(dir, nullptr);
  EXPECT_EQ(Connect(kSessionSocketName, SOCK_SEQPACKET), 0);
  EXPECT_EQ(Connect(kAdminSocketName, SOCK_STREAM), 0);
}

// From Linux 6.16 on, a connection has the options that the listener had when it was made, not when
// it was accepted.
TEST_F(RuntimeDirTest, AClientThatSpeaksBeforeItIsAcceptedIsKnownByItsMessage) {
  auto dir = MustCreate();
  ASSERT_NE(dir, nullptr);
  const wire::UniqueFd client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, (options_.path + "/session.sock").c_str(),
          sizeof(address.sun_path) - 1);
  ASSERT_EQ(connect(client.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)),
            0);
  ASSERT_TRUE(wire::SendFrame(client.get(), wire::FrameType::kHello, wire::HelloPayload()).ok());
  const wire::UniqueFd listener = std::move(dir->session_listener().fd);
  const wire::UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto frame = wire::ReceiveFrame(accepted.get());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->sender.pid, getpid());
  EXPECT_EQ(frame->sender.uid, geteuid());
}

TEST_F(RuntimeDirTest, SocketsHaveTheirModeWhateverTheUmask) {
  options_.socket_mode = 0666;
  const mode_t old = umask(0077);
  auto dir = MustCreate();
  umask(old);
  EXPECT_EQ(ModeOf(options_.path + "/session.sock"), 0666u);
  EXPECT_EQ(ModeOf(options_.path + "/irisd.sock"), 0666u);
  EXPECT_EQ(ModeOf(options_.path), 0755u);
  EXPECT_EQ(ModeOf(options_.path + "/.irisd"), 0700u);
}

TEST_F(RuntimeDirTest, TheLockIsOfItsOwnerAlone) {
  const mode_t old = umask(0022);
  auto dir = MustCreate();
  umask(old);
  EXPECT_EQ(ModeOf(options_.path + "/lock"), 0600u);
}

TEST_F(RuntimeDirTest, SocketsHaveTheirGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give files to any group";
  options_.socket_group = 4242;
  auto dir = MustCreate();
  struct stat info = {};
  ASSERT_EQ(stat((options_.path + "/session.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 4242u);
}

TEST_F(RuntimeDirTest, LeavesNothingBehind) {
  MustCreate().reset();
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(RuntimeDirTest, KeepsADirectoryThatWasThere) {
  fs::create_directory(options_.path);
  MustCreate().reset();
  EXPECT_TRUE(fs::is_empty(options_.path));
}

TEST_F(RuntimeDirTest, KeepsAStrangersFile) {
  auto dir = MustCreate();
  std::ofstream(options_.path + "/notes") << "x";
  dir.reset();
  EXPECT_TRUE(fs::exists(options_.path + "/notes"));
  EXPECT_FALSE(fs::exists(options_.path + "/session.sock"));
}

TEST_F(RuntimeDirTest, ASecondOneNamesTheFirstsPid) {
  auto dir = MustCreate();
  ExpectRefused(StatusCode::kAlreadyExists, absl::StrCat("(pid ", getpid(), ")"));
  EXPECT_EQ(Connect(kSessionSocketName, SOCK_SEQPACKET), 0);
}

TEST_F(RuntimeDirTest, TheNextOneServesAfterTheFirst) {
  MustCreate().reset();
  EXPECT_NE(MustCreate(), nullptr);
}

TEST_F(RuntimeDirTest, TakesOverWhatADeadOneLeft) {
  fs::create_directory(options_.path);
  fs::create_directory(options_.path + "/.irisd");
  fs::permissions(options_.path + "/.irisd", fs::perms::owner_all);
  std::ofstream(options_.path + "/lock") << "999999\n";
  std::ofstream(options_.path + "/session.sock") << "stale";
  std::ofstream(options_.path + "/.irisd/session.sock") << "stale";
  auto dir = MustCreate();
  ASSERT_NE(dir, nullptr);
  EXPECT_EQ(Connect(kSessionSocketName, SOCK_SEQPACKET), 0);
}

TEST_F(RuntimeDirTest, RemoveSocketsKeepsTheLock) {
  auto dir = MustCreate();
  dir->RemoveSockets();
  EXPECT_FALSE(fs::exists(options_.path + "/session.sock"));
  ExpectRefused(StatusCode::kAlreadyExists, "another irisd");
}

TEST_F(RuntimeDirTest, RefusesAPathTooLongForASocket) {
  options_.path = root_ + "/" + std::string(100, 'd');
  ExpectRefused(StatusCode::kInvalidArgument, "107");
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(RuntimeDirTest, TakesTheLongestPathThatFits) {
  const size_t room = 107 - strlen("/.irisd/session.sock") - root_.size() - 1;
  options_.path = root_ + "/" + std::string(room, 'd');
  EXPECT_NE(MustCreate(), nullptr);
  options_.path += "d";
  ExpectRefused(StatusCode::kInvalidArgument, absl::StrCat("at most ", root_.size() + 1 + room));
}

TEST_F(RuntimeDirTest, RefusesARelativePath) {
  options_.path = "run/iris";
  ExpectRefused(StatusCode::kInvalidArgument, "absolute");
}

TEST_F(RuntimeDirTest, DoesNotMakeParents) {
  options_.path = root_ + "/no/run";
  ExpectRefused(StatusCode::kNotFound, "parent");
}

TEST_F(RuntimeDirTest, RefusesAFile) {
  std::ofstream(options_.path) << "x";
  ExpectRefused(StatusCode::kInvalidArgument, "not a directory");
}

TEST_F(RuntimeDirTest, RefusesADirectoryThatAnybodyCanWrite) {
  fs::create_directory(options_.path);
  fs::permissions(options_.path, fs::perms::all);
  ExpectRefused(StatusCode::kPermissionDenied, "writable by everybody");
}

TEST_F(RuntimeDirTest, RefusesADirectoryThatAnotherGroupCanWrite) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give files to any group";
  fs::create_directory(options_.path);
  fs::permissions(options_.path, fs::perms::owner_all | fs::perms::group_all);
  ASSERT_EQ(chown(options_.path.c_str(), static_cast<uid_t>(-1), 4242), 0);
  ExpectRefused(StatusCode::kPermissionDenied, "writable by group 4242");
  ExpectRefused(StatusCode::kPermissionDenied, absl::StrCat("chmod go-w ", options_.path));
  EXPECT_TRUE(fs::is_empty(options_.path));
  // A group that may only read is fine.
  fs::permissions(options_.path, fs::perms::group_write, fs::perm_options::remove);
  EXPECT_NE(MustCreate(), nullptr);
}

TEST_F(RuntimeDirTest, TakesADirectoryThatItsOwnGroupCanWrite) {
  fs::create_directory(options_.path);
  fs::permissions(options_.path, fs::perms::owner_all | fs::perms::group_all);
  ASSERT_EQ(chown(options_.path.c_str(), static_cast<uid_t>(-1), getegid()), 0);
  EXPECT_NE(MustCreate(), nullptr);
}

TEST_F(RuntimeDirTest, RefusesAPrivateDirectoryThatIsNot) {
  fs::create_directory(options_.path);
  fs::create_directory(options_.path + "/.irisd");
  fs::permissions(options_.path + "/.irisd", fs::perms::owner_all | fs::perms::group_all);
  ExpectRefused(StatusCode::kPermissionDenied, "private");
}

TEST_F(RuntimeDirTest, TrailingSlashesMeanTheSameDirectory) {
  auto dir = MustCreate();
  options_.path += "//";
  ExpectRefused(StatusCode::kAlreadyExists, "another irisd");
}

// Clients may wait in its sockets for the next irisd.
TEST_F(RuntimeDirTest, WhereAnotherIsToGoOnAFailureTakesNothingAway) {
  auto dir = MustCreate();
  RuntimeDir::Listeners earlier{std::move(dir->session_listener().fd),
                                std::move(dir->admin_listener().fd)};
  dir->Leave(true);
  dir.reset();
  fs::permissions(options_.path + "/.irisd", fs::perms::owner_all | fs::perms::group_all);
  EXPECT_FALSE(RuntimeDir::Create(options_, {}, /*leave=*/true).ok());
  fs::permissions(options_.path + "/.irisd", fs::perms::owner_all);
  auto next = RuntimeDir::Create(options_, std::move(earlier));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE((*next)->session_listener().made);
  EXPECT_FALSE((*next)->admin_listener().made);
}

TEST_F(RuntimeDirTest, AFailureLeavesNothingBehind) {
  options_.socket_group = ~gid_t{0} - 1;  // nobody but root may give to it
  if (geteuid() == 0) GTEST_SKIP() << "root may";
  EXPECT_FALSE(RuntimeDir::Create(options_).ok());
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST(DefaultRuntimeDirTest, NeverTmp) {
  const auto path = DefaultRuntimeDir();
  if (path.ok()) {
    EXPECT_FALSE(absl::StartsWith(*path, "/tmp")) << *path;
  } else {
    EXPECT_TRUE(absl::StrContains(path.status().message(), "--runtime-dir")) << path.status();
  }
}

}  // namespace
}  // namespace iris::server
