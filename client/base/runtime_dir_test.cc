#include "client/base/runtime_dir.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Dirs(absl::string_view explicit_dir,
                              std::map<std::string, std::string> variables) {
  return RuntimeDirs(explicit_dir, [&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

TEST(RuntimeDirTest, GivenDirectoryAlone) {
  EXPECT_THAT(Dirs("/x", {{"IRIS_RUNTIME_DIR", "/y"}, {"XDG_RUNTIME_DIR", "/z"}}),
              ElementsAre("/x"));
}

TEST(RuntimeDirTest, VariableAlone) {
  EXPECT_THAT(Dirs("", {{"IRIS_RUNTIME_DIR", "/y"}, {"XDG_RUNTIME_DIR", "/z"}}), ElementsAre("/y"));
}

TEST(RuntimeDirTest, SystemThenUser) {
  EXPECT_THAT(Dirs("", {{"XDG_RUNTIME_DIR", "/run/user/7"}}),
              ElementsAre("/run/iris", "/run/user/7/iris"));
  EXPECT_THAT(Dirs("", {}), ElementsAre("/run/iris"));
}

TEST(RuntimeDirTest, EmptyVariablesAreAsIfNotSet) {
  EXPECT_THAT(Dirs("", {{"IRIS_RUNTIME_DIR", ""}, {"XDG_RUNTIME_DIR", ""}}),
              ElementsAre("/run/iris"));
}

TEST(RuntimeDirTest, MissingSocketSaysHowToStartIrisd) {
  const absl::Status status = CannotReach({"/run/iris"}, "session.sock", ENOENT);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(
      status.message(),
      "cannot reach irisd at /run/iris/session.sock: No such file or directory. Start it with "
      "`irisd --runtime-dir /run/iris` (or systemctl start irisd), or set IRIS_RUNTIME_DIR");
}

TEST(RuntimeDirTest, OtherDirectoriesTriedAreNamed) {
  EXPECT_THAT(
      std::string(CannotReach({"/run/iris", "/a/iris"}, "session.sock", ECONNREFUSED).message()),
      HasSubstr("(also tried: /a/iris)"));
}

TEST(RuntimeDirTest, RefusedAccessIsNotAMissingDaemon) {
  const absl::Status status = CannotReach({"/run/iris"}, "session.sock", EACCES);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Permission denied"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("iris-ctl doctor"));
}

}  // namespace
}  // namespace iris::internal
