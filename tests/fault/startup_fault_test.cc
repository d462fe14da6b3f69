// What an operator can get wrong: a second irisd, directories that cannot be used, settings that do
// not exist. Each ends irisd at once with one clear error, and leaves what was there alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/sandbox/sanitizers.h"
#include "tests/cc/require.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

RunResult RunIrisd(std::vector<std::string> flags) {
  flags.insert(flags.begin(), ProgramPath("server/irisd"));
  return RunProgram(flags, kPatience);
}

// Runs irisd where `directory` is a fresh tmpfs with these mount options. Root mounts it for as
// long as that takes (a mount namespace of its own is not to be had in a chroot); others do so in a
// user namespace.
RunResult RunIrisdOnMount(const std::string& directory, const std::string& options,
                          const std::string& flags) {
  const std::string mount = absl::StrCat("mount -t tmpfs -o ", options, " none ", directory);
  const std::string irisd = absl::StrCat(ProgramPath("server/irisd"), " ", flags);
  if (::geteuid() != 0) {
    return RunProgram(
        {"/usr/bin/unshare", "-Urm", "/bin/sh", "-c", absl::StrCat(mount, " && exec ", irisd)},
        kPatience);
  }
  const std::string script =
      absl::StrCat(mount, " || exit 99; ", irisd, "; code=$?; umount ", directory, "; exit $code");
  return RunProgram({"/bin/sh", "-c", script}, kPatience);
}

TEST(StartupFaultTest, ASecondIrisdNamesTheFirstAndHarmsNothing) {
  auto first = Require(Daemon::Start());
  const RunResult second = RunIrisd({"--runtime-dir", first->runtime_dir(), "--emu-devices", "1"});
  EXPECT_EQ(second.exit_code, 1) << second.output;
  EXPECT_TRUE(absl::StrContains(second.output, absl::StrCat(first->pid()))) << second.output;
  EXPECT_TRUE(first->GetStatus().ok());
  EXPECT_TRUE(RawSession::Open(first->session_socket()).ok());
}

TEST(StartupFaultTest, AfterAKillTheNextIrisdTakesOverTheDirectory) {
  TempDir dir;
  const std::string runtime_dir = dir.path() + "/run";
  auto first = Require(Daemon::Start({.runtime_dir = runtime_dir}));
  first->Kill();
  auto second = Require(Daemon::Start({.runtime_dir = runtime_dir}));
  EXPECT_TRUE(RawSession::Open(second->session_socket()).ok());
}

TEST(StartupFaultTest, AStopLeavesNoFileBehind) {
  TempDir dir;
  const std::string runtime_dir = dir.path() + "/run";
  auto daemon = Require(Daemon::Start({.runtime_dir = runtime_dir}));
  EXPECT_EQ(Require(daemon->Stop()), 0);
  EXPECT_FALSE(std::filesystem::exists(runtime_dir));
}

TEST(StartupFaultTest, AReadOnlyRuntimeDirectoryIsNamed) {
  TempDir dir;
  const RunResult result =
      RunIrisdOnMount(dir.path(), "ro,size=1m", absl::StrCat("--runtime-dir ", dir.path(), "/run"));
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, dir.path())) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, "Read-only file system")) << result.output;
}

TEST(StartupFaultTest, AFullRuntimeDirectoryIsNamed) {
  TempDir dir;
  // Room for the mount's own directory and one more file.
  const RunResult result = RunIrisdOnMount(dir.path(), "size=4k,nr_inodes=2,mode=0755",
                                           absl::StrCat("--runtime-dir ", dir.path()));
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, dir.path())) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, "No space left")) << result.output;
}

// Runs irisd under a limit of the shell's: "-n 16".
RunResult RunLimited(const std::string& limit) {
  TempDir dir;
  return RunProgram({"/bin/bash", "-c",
                     absl::StrCat("ulimit ", limit, "; exec ", ProgramPath("server/irisd"),
                                  " --backend emu --runtime-dir ", dir.path(), "/run")},
                    kPatience);
}

TEST(StartupFaultTest, TooFewDescriptorsAreNamedWithTheWayToMore) {
  for (const char* limit : {"-n 16", "-n 191"}) {
    const RunResult result = RunLimited(limit);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    for (const char* part : {limit + 3, "RLIMIT_NOFILE", "192", "LimitNOFILE=", "ulimit -n"}) {
      EXPECT_TRUE(absl::StrContains(result.output, part)) << part << ": " << result.output;
    }
  }
}

TEST(StartupFaultTest, TooLittleAddressSpaceIsNamedWithTheWayToMore) {
  if (server::kSanitized) GTEST_SKIP() << "sanitizers need more";
  const RunResult result = RunLimited("-v 65536");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  for (const char* part : {"64 MiB", "RLIMIT_AS", "128 MiB", "LimitAS=", "ulimit -v"}) {
    EXPECT_TRUE(absl::StrContains(result.output, part)) << part << ": " << result.output;
  }
}

// With stacks that do not fit, no thread can be started: whatever the limits that are checked say.
TEST(StartupFaultTest, WantOfThreadsIsSaidToo) {
  if (server::kSanitized) GTEST_SKIP() << "sanitizers need more";
  const RunResult result = RunLimited("-s 102400; ulimit -v 163840");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, "starts no more threads")) << result.output;
}

TEST(StartupFaultTest, APathTooLongForASocketIsNamed) {
  TempDir dir;
  const RunResult result =
      RunIrisd({"--runtime-dir", absl::StrCat(dir.path(), "/", std::string(120, 'd'))});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, "107")) << result.output;
}

TEST(StartupFaultTest, ARuntimeDirectoryThatIsAFileIsNamed) {
  TempDir dir;
  std::ofstream(dir.path() + "/file") << "x";
  const RunResult result = RunIrisd({"--runtime-dir", dir.path() + "/file"});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, dir.path() + "/file")) << result.output;
}

TEST(StartupFaultTest, AnUnknownFlagIsAUsageError) {
  const RunResult result = RunIrisd({"--emu-devises", "4"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(result.output, "--emu-devises")) << result.output;
}

struct BadConfig {
  const char* name;
  const char* text;
  const char* says;
};

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, SaysWhereAndWhat) {
  TempDir dir;
  const std::string path = dir.path() + "/irisd.toml";
  std::ofstream(path) << GetParam().text;
  const RunResult result = RunIrisd({"--config", path, "--runtime-dir", dir.path() + "/run"});
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_NE(result.exit_code, -1) << "irisd started with " << GetParam().text;
  EXPECT_TRUE(absl::StrContains(result.output, path)) << result.output;
  EXPECT_TRUE(absl::StrContains(result.output, GetParam().says)) << result.output;
}

INSTANTIATE_TEST_SUITE_P(
    Configs, BadConfigTest,
    ::testing::Values(BadConfig{"unknown_section", "[emulator]\ndevices = 4\n", "emulator"},
                      BadConfig{"unknown_key", "[emu]\ndevises = 4\n", "devises"},
                      BadConfig{"wrong_type", "[emu]\ndevices = \"many\"\n", "devices"},
                      BadConfig{"negative", "[emu]\ndevices = -1\n", "devices"},
                      BadConfig{"syntax", "[emu\ndevices = 4\n", "1"},
                      BadConfig{"bad_size", "[emu]\nmemory = \"4 bananas\"\n", "memory"}),
    [](const auto& test) { return test.param.name; });

TEST(StartupFaultTest, AConfigThatIsNotThereIsNamed) {
  const RunResult result = RunIrisd({"--config", "/nowhere/irisd.toml"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(result.output, "/nowhere/irisd.toml")) << result.output;
}

TEST(StartupFaultTest, TwoIrisdInTwoDirectoriesLiveSideBySide) {
  auto first = Daemon::Start(), second = Daemon::Start();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(RawSession::Open((*first)->session_socket()).ok());
  EXPECT_TRUE(RawSession::Open((*second)->session_socket()).ok());
}

}  // namespace
}  // namespace iris::testing
