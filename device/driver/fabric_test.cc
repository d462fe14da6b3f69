// Wrapped fabric handles, and the emulated fabric between processes.
#include "device/driver/fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "device/driver/emu_driver.h"
#include "tests/cc/require.h"

namespace iris::driver {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = kEmuGranularityBytes;
const std::string kHandle(kFabricHandleBytes, 'h');

TEST(FabricHandleTest, ComesOutAsItWentIn) {
  auto fd = Require(WrapFabricHandle(BackendKind::kEmu, kHandle));
  EXPECT_EQ(Require(UnwrapFabricHandle(BackendKind::kEmu, fd.get())), kHandle);
  EXPECT_EQ(UnwrapFabricHandle(BackendKind::kCuda, fd.get()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(WrapFabricHandle(BackendKind::kEmu, "short").status().code(),
            StatusCode::kInvalidArgument);
  // Nobody who has the descriptor changes what others get.
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 20), -1);
  EXPECT_EQ(ftruncate(fd.get(), 4096), -1);
}

TEST(FabricHandleTest, OtherDescriptorsAreNone) {
  char contents[80];
  auto wrapped = WrapFabricHandle(BackendKind::kEmu, kHandle);
  ASSERT_EQ(pread(wrapped->get(), contents, sizeof(contents), 0), 80);
  // Unsealed, so that it could change between two looks.
  const base::UniqueFd copy(memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(write(copy.get(), contents, sizeof(contents)), 80);
  const base::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int fd : {copy.get(), null.get(), -1}) {
    const auto handle = Require(UnwrapFabricHandle(BackendKind::kEmu, fd));
    EXPECT_FALSE(handle.has_value()) << fd;
  }
}

class EmulatedFabricTest : public ::testing::Test {
 protected:
  EmulatedFabricTest() {
    EmuOptions options{.n_devices = 1, .memory_bytes_per_device = 1 << 30};
    options.fabric_domain = "rack";
    irisd_ = CreateEmuDriver(options);
  }
  // Imports in this process, as on another node.
  absl::Status Import(const std::string& handle, uint64_t bytes = kBytes) {
    auto fd = WrapFabricHandle(BackendKind::kEmu, handle);
    if (!fd.ok()) return fd.status();
    auto imported = client_->Import(fd->Release(), bytes);
    if (imported.ok()) imported_ = *std::move(imported);
    return imported.status();
  }

  std::unique_ptr<GpuDriver> irisd_;
  std::unique_ptr<GpuDriver> client_ = CreateEmuDriver({});
  std::unique_ptr<PhysicalMemory> imported_;
};

TEST_F(EmulatedFabricTest, AnotherProcessMapsTheMemory) {
  EXPECT_EQ(irisd_->FabricDomain().value_or("none"), "emulated rack");
  auto memory = Require(irisd_->Create(0, kBytes, false));
  const std::string handle = memory->ExportFabric().value_or("");
  ASSERT_EQ(handle.size(), kFabricHandleBytes);
  const pid_t child = fork();
  if (child == 0) {
    // Has the parent's descriptors, of which none is used: the handle names the parent.
    if (!Import(handle).ok()) _exit(1);
    auto range = client_->Reserve(kBytes, 1, 0);
    if (!range.ok()) _exit(2);
    auto mapping = client_->Map(**range, 0, *imported_, Access::kReadWrite, {});
    if (!mapping.ok()) _exit(3);
    *reinterpret_cast<char*>((*mapping)->address() + 7) = 'w';
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  uint8_t seen = 0;
  ASSERT_TRUE(memory->Read(7, absl::MakeSpan(&seen, 1)).ok());
  EXPECT_EQ(seen, 'w');
}

TEST_F(EmulatedFabricTest, ImportedMemoryOutlivesItsCreator) {
  auto memory = Require(irisd_->Create(0, kBytes, false));
  const std::string handle = memory->ExportFabric().value_or("");
  ASSERT_TRUE(Import(handle).ok());
  memory.reset();
  uint8_t seen = 1;
  EXPECT_TRUE(imported_->Read(0, absl::MakeSpan(&seen, 1)).ok());
  EXPECT_EQ(seen, 0);
  // The number of the descriptor may be that of other memory by now.
  auto other = Require(irisd_->Create(0, kBytes, false));
  EXPECT_EQ(Import(handle).code(), StatusCode::kNotFound);
}

TEST_F(EmulatedFabricTest, RefusesWhatIsNotThatMemory) {
  auto memory = Require(irisd_->Create(0, kBytes, false));
  const std::string handle = memory->ExportFabric().value_or("");
  EXPECT_EQ(Import(handle, 2 * kBytes).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Import(kHandle).code(), StatusCode::kInvalidArgument);
  std::string guessed = handle;
  guessed[guessed.find('\0') - 1] ^= 1;
  EXPECT_EQ(Import(guessed).code(), StatusCode::kNotFound);
  std::string of_nobody = "4294967295/3/iris-fabric-00";
  of_nobody.resize(kFabricHandleBytes);
  EXPECT_EQ(Import(of_nobody).code(), StatusCode::kNotFound);
}

TEST_F(EmulatedFabricTest, IsThereOnlyIfConfigured) {
  const auto alone = CreateEmuDriver({.n_devices = 1, .memory_bytes_per_device = 1 << 30});
  EXPECT_THAT(std::string(alone->FabricDomain().status().message()), HasSubstr("emu.fabric"));
  auto memory = Require(alone->Create(0, kBytes, false));
  EXPECT_EQ(memory->ExportFabric().status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace iris::driver
