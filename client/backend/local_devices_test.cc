#include "client/backend/local_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/driver/emu_driver.h"

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Emulated devices stand for those that a process sees.
class LocalDevicesTest : public ::testing::Test {
 protected:
  static std::string Uuid(int i) {
    return "EMU-00000000-0000-0000-0000-00000000000" + std::to_string(i);
  }
  std::unique_ptr<driver::GpuDriver> three_ = driver::CreateEmuDriver({3, 1ull << 30});
  std::unique_ptr<driver::GpuDriver> none_ = driver::CreateEmuDriver({});
};

TEST_F(LocalDevicesTest, LocalRanksGoRoundTheVisibleDevices) {
  for (const int rank : {0, 2, 4}) {
    auto chosen = ChooseDevice(*three_, "", rank);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->uuid, Uuid(rank % 3));
    EXPECT_THAT(chosen->indices, ElementsAre(static_cast<uint32_t>(rank % 3)));
  }
}

TEST_F(LocalDevicesTest, AUuidNamesTheDeviceWhateverTheRank) {
  auto chosen = ChooseDevice(*three_, "emu-00000000-0000-0000-0000-000000000001", 0);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->uuid, Uuid(1));  // as irisd writes it
  EXPECT_THAT(chosen->indices, ElementsAre(1u));
}

TEST_F(LocalDevicesTest, ADeviceThatIsNotVisibleIsRefusedWithThoseThatAre) {
  const absl::Status status = ChooseDevice(*three_, Uuid(7), 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("device_uuid=" + Uuid(7)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(Uuid(2)));
  EXPECT_EQ(ChooseDevice(*three_, "", -1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LocalDevicesTest, WhereIrisdAloneKnowsDevicesItChooses) {
  auto chosen = ChooseDevice(*none_, Uuid(5), 3);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->uuid, Uuid(5));
  EXPECT_THAT(chosen->indices, IsEmpty());
}

TEST_F(LocalDevicesTest, AProcessHasOneDriverOfABackend) {
  auto first = ProcessDriver("emu");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->get(), ProcessDriver("emu")->get());
  for (const char* unknown : {"abacus", "auto", ""}) {
    const absl::Status status = ProcessDriver(unknown).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("install matching versions"));
  }
}

}  // namespace
}  // namespace iris::internal
