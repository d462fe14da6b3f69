// Memory of GPUs for other nodes of an NVLink domain, on fakes of the vendor's libraries. Two
// drivers of this process stand for two nodes.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/driver/fabric.h"
#include "device/driver/testing/fake_gpu.h"
#include "device/driver/vmm_driver.h"
#include "tests/cc/require.h"

namespace iris::driver {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLibrary[] = "device/driver/testing/libfake_gpu.so";
constexpr uint64_t kBytes = 4 << 20;

class VmmFabricTest : public ::testing::Test {
 protected:
  VmmFabricTest() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr ||
        dlopen("device/driver/testing/libfake_nvml.so", RTLD_NOW | RTLD_LOCAL) == nullptr) {
      ADD_FAILURE() << dlerror();
      abort();
    }
    fake_ = reinterpret_cast<testing::GetFakeGpu>(dlsym(library, "fake_gpu"))();
    reinterpret_cast<testing::ResetFakeGpu>(dlsym(library, "fake_gpu_reset"))();
    fake_->fabric = true;
  }
  ~VmmFabricTest() override {
    EXPECT_EQ(fake_->n_handles, 0);
    EXPECT_EQ(fake_->n_mappings, 0);
    EXPECT_THAT(fake_->violations, IsEmpty());
  }

  static std::unique_ptr<GpuDriver> Open(bool fabric = true,
                                         BackendKind kind = BackendKind::kCuda) {
    auto opened = OpenVmmDriver({kind, kLibrary, fabric});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return std::move(opened->driver);
  }
  static std::string WhyNot(bool fabric = true, BackendKind kind = BackendKind::kCuda) {
    const auto driver = Open(fabric, kind);
    EXPECT_FALSE(driver->FabricDomain().ok());
    // Without a domain everything else works as ever.
    const auto memory = driver->Create(0, kBytes, false);
    EXPECT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->ExportFabric().status().code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(base::UniqueFd((*memory)->ExportFd(Access::kReadWrite).value_or(-1)).valid());
    return std::string(driver->FabricDomain().status().message());
  }

  testing::FakeGpu* fake_ = nullptr;
};

TEST_F(VmmFabricTest, AnotherNodeMapsTheMemory) {
  const auto irisd = Open();
  EXPECT_EQ(irisd->FabricDomain().value_or("none"), "nvlink 75757575757575757575757575757575.7");
  auto memory = Require(irisd->Create(1, kBytes, false));
  const auto handle = Require(memory->ExportFabric());
  auto wrapped = Require(WrapFabricHandle(BackendKind::kCuda, handle));

  const auto client = Open(/*fabric=*/false);  // clients only import
  ASSERT_TRUE(client->MakeCurrent(0).ok());
  auto imported = Require(client->Import(wrapped.Release(), kBytes));
  EXPECT_EQ(imported->ExportFabric().status().code(), StatusCode::kFailedPrecondition);
  auto range = Require(client->Reserve(kBytes, 1, 0));
  auto mapping = Require(client->Map(*range, 0, *imported, Access::kReadWrite, {0}));
  ASSERT_TRUE(client->Fill(mapping->address() + 5, 0x77, 1).ok());

  // The node's own processes still get a descriptor.
  auto fd = Require(memory->ExportFd(Access::kReadWrite));
  auto local = Require(client->Import(fd, kBytes));
  auto local_range = client->Reserve(kBytes, 1, 0);
  auto local_mapping = Require(client->Map(**local_range, 0, *local, Access::kReadWrite, {0}));
  char seen = 0;
  ASSERT_TRUE(client->Copy(&seen, reinterpret_cast<void*>(local_mapping->address() + 5), 1).ok());
  EXPECT_EQ(seen, 0x77);

  // The importer's mapping outlives the exporter.
  memory.reset();
  ASSERT_TRUE(client->Copy(&seen, reinterpret_cast<void*>(mapping->address() + 5), 1).ok());
}

TEST_F(VmmFabricTest, RefusesHandlesThatNobodyHas) {
  fake_->channel = true;
  const auto irisd = Open();
  std::string gone;
  {
    auto memory = Require(irisd->Create(0, kBytes, false));
    gone = memory->ExportFabric().value_or("");
  }
  const absl::Status late =
      irisd->Import(WrapFabricHandle(BackendKind::kCuda, gone)->Release(), kBytes).status();
  EXPECT_EQ(late.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(late.message()), HasSubstr("its irisd must run"));
  fake_->channel = false;
  const absl::Status denied =
      irisd->Import(WrapFabricHandle(BackendKind::kCuda, gone)->Release(), kBytes).status();
  EXPECT_EQ(denied.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(denied.message()), HasSubstr("nvidia-caps-imex-channels"));
  const absl::Status other =
      irisd->Import(WrapFabricHandle(BackendKind::kEmu, gone)->Release(), kBytes).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("the same backend"));
}

TEST_F(VmmFabricTest, SaysWhyThereIsNoDomain) {
  EXPECT_THAT(WhyNot(/*fabric=*/false), HasSubstr("network.fabric"));
  EXPECT_THAT(WhyNot(true, BackendKind::kHip), HasSubstr("does not say"));
  fake_->channel = false;
  EXPECT_THAT(WhyNot(), HasSubstr("nvidia-imex"));
  fake_->channel = true;
  fake_->registrations[1].clique_id = 8;
  EXPECT_THAT(WhyNot(), HasSubstr("several fabric domains"));
  fake_->registrations[1].cluster_uuid = std::string(16, '\0');
  EXPECT_THAT(WhyNot(),
              HasSubstr("device 1: the NVLink domain of this device has this node alone"));
  fake_->registrations[1].state = 2;
  EXPECT_THAT(WhyNot(), HasSubstr("state 2"));
  fake_->fabric = false;
  EXPECT_THAT(WhyNot(), HasSubstr("no fabric handles"));
}

}  // namespace
}  // namespace iris::driver
