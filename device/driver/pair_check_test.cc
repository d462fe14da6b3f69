// The check of device pairs on emulated devices, and of children that hang, die or never start.
#include "device/driver/pair_check.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// Emulated memory begins here: a child hangs in it if the test says so, as in a driver.
extern "C" int memfd_create(const char* name, unsigned int flags) noexcept {
  if (getenv("PAIR_CHECK_TEST_HANGS") != nullptr) pause();
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

namespace iris::driver {
namespace {

class PairCheckTest : public testing::Test {
 protected:
  PairCheckTest() {
    char name[] = "/tmp/iris-pairs-XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~PairCheckTest() override {
    unsetenv("PAIR_CHECK_TEST_HANGS");
    std::filesystem::remove_all(dir_);
  }
  PairTable Check(PairCheckOptions options, uint32_t n_devices) {
    options.open.backend = "emu";
    options.open.emu.n_devices = n_devices;
    const auto driver = CreateEmuDriver(options.open.emu);
    return CheckPairs(*driver, options);
  }
  std::string Script(const std::string& body) {
    const std::string path = dir_ + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << body;
    chmod(path.c_str(), 0700);
    return path;
  }
  static void ExpectAllFail(const PairTable& table, const std::string& step,
                            const std::string& cause) {
    EXPECT_EQ(table.n_failed(), table.pairs.size());
    for (const PairResult& pair : table.pairs) {
      EXPECT_EQ(pair.step, step);
      EXPECT_TRUE(absl::StrContains(pair.cause, cause)) << pair.cause;
      EXPECT_FALSE(pair.remedy.empty());
      EXPECT_EQ(pair.conclusive, step == "create");
    }
  }
  std::string dir_;
};

TEST_F(PairCheckTest, EveryOrderedPairIsProvenAndMeasured) {
  const PairTable table = Check({}, 3);
  ASSERT_EQ(table.pairs.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    const PairResult& pair = table.pairs[i];
    EXPECT_EQ(pair.from, i / 3);
    EXPECT_EQ(pair.to, i % 3);
    EXPECT_TRUE(pair.ok) << pair.step << ": " << pair.cause;
    EXPECT_GT(pair.bytes_per_second, 0);
  }
}

TEST_F(PairCheckTest, APairWithoutAccessIsNamedAndTheOthersWork) {
  PairCheckOptions options;
  options.open.emu.denied = {{1, 0}};
  const PairTable table = Check(options, 2);
  EXPECT_EQ(table.n_failed(), 1u);
  const PairResult& pair = table.pairs[2];
  EXPECT_EQ(pair.step, "access");
  EXPECT_TRUE(pair.conclusive);
  EXPECT_TRUE(absl::StrContains(pair.cause, "device 1 has no access to memory of device 0"));
  EXPECT_TRUE(absl::StrContains(PairTableText(table), "fail"));
}

TEST_F(PairCheckTest, MemoryThatCannotBeMadeFailsAtThatStep) {
  PairCheckOptions options;
  options.open.emu.memory_bytes_per_device = 1;
  options.bytes = 1ull << 63;
  ExpectAllFail(Check(options, 2), "create", "multiple of");
}

TEST_F(PairCheckTest, AProgramThatDoesNotExistIsSaid) {
  ExpectAllFail(Check({.program = dir_ + "/none"}, 2), "start", "cannot execute " + dir_ + "/none");
}

TEST_F(PairCheckTest, AChildThatNeverSpeaksIsKilledAtTheDeadline) {
  ExpectAllFail(
      Check({.program = Script(absl::StrCat("echo $$ > ", dir_, "/pid\nexec sleep 1000\n")),
             .start_timeout = absl::Seconds(3)},
            2),
      "start", "no end within 3s");
  pid_t pid = 0;
  ASSERT_TRUE(std::ifstream(dir_ + "/pid") >> pid);
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(PairCheckTest, ADriverThatHangsIsNamedByItsStep) {
  setenv("PAIR_CHECK_TEST_HANGS", "1", 1);
  ExpectAllFail(Check({.step_timeout = absl::Milliseconds(200)}, 2), "create",
                "no end within 200ms");
}

TEST_F(PairCheckTest, AChildThatCrashesIsNamedByItsSignal) {
  // The first is the owner; the second, which uses the memory, crashes.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  PairCheckOptions options;
  options.program = Script(absl::StrCat("mkdir ", dir_, "/first 2>/dev/null && exec ", self,
                                        " \"$@\"\nkill -SEGV $$\n"));
  const PairTable table = Check(options, 2);
  ExpectAllFail(table, "start", "signal 11");
}

TEST_F(PairCheckTest, WhatThereIsNoTimeForIsNotTried) {
  ExpectAllFail(Check({.timeout = absl::ZeroDuration()}, 2), "not tried", "time");
}

TEST_F(PairCheckTest, StopsWhenAsked) {
  int asked = 0;
  PairCheckOptions options;
  options.stop = [&asked] { return ++asked > 2; };
  EXPECT_EQ(Check(options, 2).n_failed(), 2u);
}

TEST_F(PairCheckTest, OnlyTheFirstDevicesIfThereAreMany) {
  EXPECT_EQ(Check({.max_devices = 2}, 100).pairs.size(), 4u);
}

}  // namespace
}  // namespace iris::driver

int main(int argc, char** argv) {
  if (iris::driver::IsPairCheckChild(argc, argv)) return iris::driver::RunPairCheckChild(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
