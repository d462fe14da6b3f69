#include "client/membership/device_warmup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "device/driver/emu_driver.h"

namespace iris::internal {
namespace {

constexpr uint64_t kBytes = driver::kEmuGranularityBytes;

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class LinksTest : public ::testing::Test {
 protected:
  wire::UniqueFd NewFd() {
    auto memory = irisd_->Create(0, kBytes, false);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return wire::UniqueFd((*memory)->ExportFd(driver::Access::kReadOnly).value());
  }
  absl::Status Keep(const std::string& uuid, wire::UniqueFd fd, uint64_t bytes = kBytes) {
    return KeepLink(client_, uuid, bytes, std::move(fd), {});
  }
  std::unique_ptr<driver::GpuDriver> irisd_ = driver::CreateEmuDriver({1, 1ull << 30});
  std::shared_ptr<driver::GpuDriver> client_ = driver::CreateEmuDriver({});
};

TEST_F(LinksTest, EachDeviceIsMappedOnce) {
  const size_t before = LinkCount();
  ASSERT_TRUE(Keep("a", NewFd()).ok());
  ASSERT_TRUE(Keep("b", NewFd()).ok());
  EXPECT_EQ(LinkCount(), before + 2);
  const size_t open = OpenDescriptors();
  ASSERT_TRUE(Keep("a", NewFd()).ok());
  EXPECT_EQ(LinkCount(), before + 2);
  EXPECT_EQ(OpenDescriptors(), open) << "a descriptor that is not needed is closed";
}

TEST_F(LinksTest, FailureNamesTheDeviceAndKeepsNothing) {
  const size_t before = LinkCount();
  const size_t open = OpenDescriptors();
  const absl::Status status = Keep("c", NewFd(), 2 * kBytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("link to device c"), absl::string_view::npos) << status;
  EXPECT_EQ(LinkCount(), before);
  EXPECT_EQ(OpenDescriptors(), open);
  EXPECT_TRUE(Keep("c", NewFd()).ok());
}

TEST_F(LinksTest, OutlivesTheDriverOfItsMaker) {
  auto driver = client_;
  client_.reset();
  ASSERT_TRUE(KeepLink(driver, "d", kBytes, NewFd(), {}).ok());
  driver.reset();
  client_ = driver::CreateEmuDriver({});
  EXPECT_TRUE(Keep("d", NewFd()).ok());
}

}  // namespace
}  // namespace iris::internal
