// Figures of cgroups and of the machine, as the kernel writes them, in a temporary folder.
#include "server/host/limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace iris::server {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    char name[] = "/tmp/iris-host-memory-XXXXXX";
    root_ = mkdtemp(name);
    Write("/proc/meminfo", absl::StrCat("MemTotal:       ", 16 << 20, " kB\nMemFree: 1 kB\n",
                                        "MemAvailable:   ", 8 << 20, " kB\n"));
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Cgroup2(const std::string& path, const std::string& max, uint64_t current,
               uint64_t cache = 0) {
    const std::string folder = "/sys/fs/cgroup" + path;
    Write(folder + "/memory.max", max + "\n");
    Write(folder + "/memory.current", absl::StrCat(current, "\n"));
    Write(folder + "/memory.stat", absl::StrCat("anon 7\ninactive_file ", cache, "\n"));
  }
  void Mounted2() {
    Write("/proc/self/mountinfo",
          "24 1 0:22 / /proc rw - proc proc rw\n"
          "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    Write("/proc/self/cgroup", "0::/system.slice/irisd.service\n");
  }

  std::string root_;
};

TEST_F(HostMemoryTest, WithoutCgroupsTheMachineLimits) {
  const MemoryLeft left = TightestMemory(root_);
  EXPECT_EQ(left.left_bytes, 8192 * kMiB);
  EXPECT_EQ(left.limit_bytes, 16384 * kMiB);
  EXPECT_EQ(left.whose, "this machine (MemAvailable)");
}

TEST_F(HostMemoryTest, NothingToReadLimitsNothing) {
  EXPECT_EQ(TightestMemory(root_ + "/missing").left_bytes, ~uint64_t{0});
}

TEST_F(HostMemoryTest, ItsOwnCgroupLimits) {
  Mounted2();
  Cgroup2("/system.slice/irisd.service", absl::StrCat(400 * kMiB), 100 * kMiB, 30 * kMiB);
  Cgroup2("/system.slice", "max", 200 * kMiB);
  const MemoryLeft left = TightestMemory(root_);
  EXPECT_EQ(left.left_bytes, 330 * kMiB);
  EXPECT_EQ(left.limit_bytes, 400 * kMiB);
  EXPECT_EQ(left.whose, "cgroup /system.slice/irisd.service (memory.max)");
}

TEST_F(HostMemoryTest, ACgroupAboveLimitsToo) {
  Mounted2();
  Cgroup2("/system.slice/irisd.service", "max", 10 * kMiB);
  Cgroup2("/system.slice", absl::StrCat(100 * kMiB), 300 * kMiB);  // over its limit
  const MemoryLeft left = TightestMemory(root_);
  EXPECT_EQ(left.left_bytes, 0u);
  EXPECT_EQ(left.whose, "cgroup /system.slice (memory.max)");
}

TEST_F(HostMemoryTest, AContainerOfVersion1SeesItsOwnAsTheTopmost) {
  Write("/proc/self/mountinfo",
        "33 24 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "34 24 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  Write("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu:/docker/abc\n");
  const std::string folder = "/sys/fs/cgroup/memory";
  Write(folder + "/memory.limit_in_bytes", absl::StrCat(500 * kMiB, "\n"));
  Write(folder + "/memory.usage_in_bytes", absl::StrCat(450 * kMiB, "\n"));
  Write(folder + "/memory.stat", "total_inactive_file 0\ntotal_active_file 1048576\n");
  const MemoryLeft left = TightestMemory(root_);
  EXPECT_EQ(left.left_bytes, 51 * kMiB);
  EXPECT_EQ(left.whose, "cgroup / (memory.limit_in_bytes)");
}

TEST_F(HostMemoryTest, MoreThanIsLeftIsNotPromised) {
  Mounted2();
  Cgroup2("/system.slice/irisd.service", absl::StrCat(400 * kMiB), 100 * kMiB);
  HostMemory memory(root_);
  const absl::Status refused = memory.Promise(1024 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  for (const char* part :
       {"1 GiB", "300 MiB of 400 MiB", "irisd.service", "64 MiB", "MemoryMax="}) {
    EXPECT_TRUE(absl::StrContains(refused.message(), part)) << part << ": " << refused;
  }
  EXPECT_TRUE(memory.Promise(236 * kMiB).ok());
  memory.Taken(236 * kMiB);
}

TEST_F(HostMemoryTest, WhatIsPromisedAndNotTakenYetIsWaitedFor) {
  Mounted2();
  Cgroup2("/system.slice/irisd.service", absl::StrCat(400 * kMiB), 100 * kMiB);
  HostMemory memory(root_);
  ASSERT_TRUE(memory.Promise(200 * kMiB).ok());
  auto second = std::async(std::launch::async, [&] { return memory.Promise(200 * kMiB); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  Cgroup2("/system.slice/irisd.service", absl::StrCat(400 * kMiB), 300 * kMiB);
  memory.Taken(200 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(second.get()));
}

}  // namespace
}  // namespace iris::server
