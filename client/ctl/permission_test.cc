#include "client/ctl/permission.h"

#include <grp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;
constexpr gid_t kOtherGroup = 4711;

// Root becomes nobody for as long as this lives; any other user stays the same.
class AsNobody {
 public:
  AsNobody() {
    if (!was_root_) return;
    const int n = getgroups(0, nullptr);
    groups_.resize(static_cast<size_t>(n));
    EXPECT_EQ(getgroups(n, groups_.data()), n);
    EXPECT_EQ(setgroups(0, nullptr), 0);
    EXPECT_EQ(setegid(kNobody), 0);
    EXPECT_EQ(seteuid(kNobody), 0);
  }
  ~AsNobody() {
    if (!was_root_) return;
    EXPECT_EQ(seteuid(0), 0);
    EXPECT_EQ(setegid(0), 0);
    EXPECT_EQ(setgroups(groups_.size(), groups_.data()), 0);
  }

 private:
  const bool was_root_ = geteuid() == 0;
  std::vector<gid_t> groups_;
};

class PermissionTest : public ::testing::Test {
 protected:
  PermissionTest() {
    char name[] = "/tmp/iris-perm-XXXXXX";
    dir_ = mkdtemp(name);
    chmod(dir_.c_str(), 0755);
    std::filesystem::create_directory(dir_ + "/run");
    chmod((dir_ + "/run").c_str(), 0755);
    path_ = dir_ + "/run/irisd.sock";
    std::ofstream(path_) << "x";
    chmod(path_.c_str(), 0666);
  }
  ~PermissionTest() override {
    chmod((dir_ + "/run").c_str(), 0755);
    std::filesystem::remove_all(dir_);
  }

  std::optional<AccessProblem> Problem() const {
    const AsNobody nobody;
    return FindAccessProblem(path_, "ask somebody");
  }

  std::string dir_;
  std::string path_;
};

TEST_F(PermissionTest, WhatIsOpenIsNoProblem) {
  EXPECT_FALSE(Problem().has_value());
  EXPECT_FALSE(FindAccessProblem(dir_ + "/none", "").has_value()) << "missing is another problem";
}

TEST_F(PermissionTest, AClosedFileIsNamedWithItsOwnerGroupAndMode) {
  chmod(path_.c_str(), 0);
  const auto problem = Problem();
  ASSERT_TRUE(problem.has_value());
  EXPECT_THAT(problem->what, HasSubstr(absl::StrCat(path_, " (mode 0000, owner ",
                                                    UserName(geteuid()), ", group ")));
  EXPECT_THAT(problem->what, HasSubstr(" is closed to user "));
  EXPECT_EQ(problem->remedy, "ask somebody");
}

TEST_F(PermissionTest, OneThatMayOnlyBeReadIsClosed) {
  chmod(path_.c_str(), 0444);
  EXPECT_TRUE(Problem().has_value());
}

TEST_F(PermissionTest, AClosedFolderOnTheWayIsTheProblem) {
  chmod((dir_ + "/run").c_str(), 0600);
  const auto problem = Problem();
  ASSERT_TRUE(problem.has_value());
  EXPECT_THAT(problem->what, HasSubstr(dir_ + "/run (mode 0600"));
  EXPECT_THAT(problem->remedy, HasSubstr("open it (chmod o+x " + dir_ + "/run), or ask somebody"));
}

TEST_F(PermissionTest, AGroupThatMayIsTheRemedy) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another group";
  ASSERT_EQ(chown(path_.c_str(), 0, kOtherGroup), 0);
  chmod(path_.c_str(), 0660);
  const auto problem = Problem();
  ASSERT_TRUE(problem.has_value());
  EXPECT_THAT(problem->remedy, HasSubstr(absl::StrCat("usermod -aG ", kOtherGroup, " ",
                                                      UserName(kNobody), ", then log in again")));
  // A group that may only read is none, and nobody is sent into root's.
  chmod(path_.c_str(), 0640);
  EXPECT_EQ(Problem()->remedy, "ask somebody");
  ASSERT_EQ(chown(path_.c_str(), 0, 0), 0);
  chmod(path_.c_str(), 0660);
  EXPECT_EQ(Problem()->remedy, "ask somebody");
}

TEST_F(PermissionTest, NamesOrNumbers) {
  EXPECT_EQ(UserName(0), "root");
  EXPECT_EQ(GroupName(0), "root");
  EXPECT_EQ(UserName(4000000000u), "4000000000");
}

}  // namespace
}  // namespace iris::ctl
