#include "client/base/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace iris::internal {
namespace {

using ::testing::HasSubstr;

class WholeFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/whole_file";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    path_ = folder_ + "/a.json";
  }
  std::string Read(const std::string& path) { return ReadFile(path, 1 << 20).value_or("none"); }

  std::string folder_;
  std::string path_;
};

TEST_F(WholeFileTest, AFileIsReplacedAndKeepsItsMode) {
  ASSERT_TRUE(WriteFile(path_, "a long text").ok());
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  ASSERT_TRUE(WriteFile(path_, "short").ok());
  EXPECT_EQ(Read(path_), "short");
  struct stat now = {};
  ASSERT_EQ(stat(path_.c_str(), &now), 0);
  EXPECT_EQ(now.st_mode & 0777, 0640u);
}

TEST_F(WholeFileTest, ALinkOfOnesOwnIsFollowed) {
  const std::string target = folder_ + "/target";
  ASSERT_EQ(symlink(target.c_str(), path_.c_str()), 0);
  ASSERT_TRUE(WriteFile(path_, "first").ok());
  ASSERT_TRUE(WriteFile(path_, "text").ok());
  EXPECT_EQ(Read(target), "text");
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
}

TEST_F(WholeFileTest, AFileIsReadUpToALimit) {
  const std::string text(70000, 'x');
  ASSERT_TRUE(WriteFile(path_, text).ok());
  EXPECT_EQ(ReadFile(path_, 70000).value_or("none"), text);
  const absl::Status larger = ReadFile(path_, 69999).status();
  EXPECT_EQ(larger.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(larger.message(), path_ + ": it has more than 68.4 KiB (69999 bytes)");
  EXPECT_EQ(ReadFile("/dev/zero", 4096).status().message(), "/dev/zero: it has more than 4 KiB");
  EXPECT_EQ(ReadFile(path_ + "x", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(folder_, 1).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(WholeFileTest, DevicesAndPipesAreWritten) {
  EXPECT_TRUE(WriteFile("/dev/null", "text").ok());
  EXPECT_TRUE(WriteFile("/dev/fd/2", "").ok());
  EXPECT_EQ(WriteFile("/dev/full", "text").code(), absl::StatusCode::kUnavailable);
}

// In a folder like /tmp another user can plant a link in the file's place.
TEST_F(WholeFileTest, APlantedLinkIsNotFollowed) {
  const std::string target = folder_ + "/target";
  ASSERT_TRUE(WriteFile(target, "precious").ok());
  const std::string missing = folder_ + "/missing";
  for (const std::string& to : {target, missing}) {
    std::filesystem::remove(path_);
    ASSERT_EQ(symlink(to.c_str(), path_.c_str()), 0);
    if (lchown(path_.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root can plant one";
    const absl::Status status = WriteFile(path_, "text");
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(status.message(), HasSubstr(path_ + ": it is no file, but a link or the like, and "
                                                    "user 12345 has made it"));
  }
  EXPECT_EQ(Read(target), "precious");
  EXPECT_FALSE(std::filesystem::exists(missing));
}

}  // namespace
}  // namespace iris::internal
