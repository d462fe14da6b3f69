// A job on the driver of GPUs, with a fake of the vendor's library underneath irisd and the ranks:
// who gets which device, that ranks on different devices of one process share a window, that
// nothing is left. The memory is the host's, so that the test can look into it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "device/driver/testing/install.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"
#include "tests/integration/daemon_harness.h"

namespace iris {
namespace {

using testing::Daemon;
using testing::DaemonOptions;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRanks = 4;  // on two devices
// The backend that this test is linked with is not that of its heaps.
constexpr const char* kNoKernels = nullptr;

class GpuDriverTest : public ::testing::Test {
 protected:
  // Once in this process: it keeps its driver.
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    fake_ = driver::testing::InstallFakeGpu(folder_->path());
    ASSERT_NE(fake_, nullptr);
    auto daemon = Start(driver::testing::kFakeBackend);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
    // irisd has started and sees both; here they have each other's number.
    driver::testing::SetVisibleDevices("1,0");
  }
  static void TearDownTestSuite() {
    delete daemon_;
    delete folder_;
  }
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const char* backend) {
    DaemonOptions options;
    options.backend = backend;
    return Daemon::Start(options);
  }

  static ContextOptions Rank(int rank, int n_ranks) {
    ContextOptions options;
    options.job = absl::StrCat("job", n_jobs_);
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.local_rank = rank;
    options.heap_bytes = 8 * kMiB;
    options.max_heap_bytes = 64 * kMiB;
    options.runtime_dir = daemon_->runtime_dir();
    return options;
  }
  void TearDown() override { ++n_jobs_; }

  static inline TempDir* folder_ = nullptr;
  static inline driver::testing::FakeGpu* fake_ = nullptr;
  static inline Daemon* daemon_ = nullptr;
  static inline int n_jobs_ = 0;
};

void RunRank(const ContextOptions& options, std::string* uuid) {
  auto created = Context::Create(options, kNoKernels);
  ASSERT_TRUE(created.ok()) << created.status();
  Context& context = *created;
  EXPECT_EQ(context.backend(), driver::testing::kFakeBackend);
  *uuid = context.device_uuid();
  EXPECT_EQ(context.ranks_per_device(), 2u);  // four on two devices
  const CreateTimings timings = context.create_timings();
  EXPECT_GT(timings.create, std::chrono::nanoseconds(0));
  EXPECT_GT(timings.export_fds, std::chrono::nanoseconds(0));
  EXPECT_LE(timings.create + timings.export_fds, timings.join);
  EXPECT_LE(timings.import + timings.map_memory + timings.set_access, timings.map);
  auto x = context.Allocate({.bytes = kRanks * sizeof(uint32_t), .name = "x"});
  ASSERT_TRUE(x.ok()) << x.status();
  uint32_t* const mine = x->As<uint32_t>();
  for (uint32_t to = 0; to < kRanks; ++to) {
    context.Translate(to, mine)[context.rank()] = 100 + context.rank();
  }
  ASSERT_TRUE(context.Barrier().ok());
  for (uint32_t from = 0; from < kRanks; ++from) EXPECT_EQ(mine[from], 100 + from);
  // More than the heap has: it grows by a segment.
  auto more = context.Allocate({.bytes = 16 * kMiB, .name = "more"});
  ASSERT_TRUE(more.ok()) << more.status();
  const uint32_t next = (context.rank() + 1) % kRanks;
  context.Translate(next, more->As<uint8_t>())[16 * kMiB - 1] = 7;
  ASSERT_TRUE(context.Barrier().ok());
  EXPECT_EQ(more->As<uint8_t>()[16 * kMiB - 1], 7);
  // A team's area is cleared by the device.
  const auto team = context.CreateTeam({0, 1});
  EXPECT_TRUE(team.ok()) << team.status();
  ASSERT_TRUE(context.Barrier().ok());
}

TEST_F(GpuDriverTest, RanksOfOneProcessUseItsDevicesInTurn) {
  const int handles_before = fake_->n_handles;
  std::vector<std::string> uuids(kRanks);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([r, &uuids] { RunRank(Rank(r, kRanks), &uuids[static_cast<size_t>(r)]); });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(uuids[0], uuids[2]);
  EXPECT_EQ(uuids[1], uuids[3]);
  EXPECT_TRUE(absl::EndsWith(uuids[0], "1")) << uuids[0] << ": irisd's second device is our first";
  EXPECT_TRUE(absl::EndsWith(uuids[1], "0")) << uuids[1];
  // The links to both devices stay for the life of the process, and each device's context.
  EXPECT_EQ(fake_->n_handles, handles_before + 2);
  EXPECT_EQ(fake_->n_mappings, 2);
  EXPECT_EQ(fake_->n_registered, 0);
  EXPECT_THAT(fake_->retained, Each(1));
  EXPECT_THAT(fake_->violations, IsEmpty());
}

TEST_F(GpuDriverTest, KernelsOfAnotherBackendAreRefused) {
  const Status status = Context::Create(Rank(0, 1), "emu").status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(),
              HasSubstr(absl::StrCat("link iris-device-", driver::testing::kFakeBackend)));
  EXPECT_THAT(status.message(), HasSubstr("built for the backend 'emu'"));
}

TEST_F(GpuDriverTest, ABackendThatIsNotInstalledIsNamed) {
  auto context = Context::Create(Rank(0, 1), kNoKernels);
  ASSERT_TRUE(context.ok()) << context.status();
  auto x = context->Allocate({.bytes = 64, .name = "x"});
  ASSERT_TRUE(x.ok()) << x.status();
  for (const Status& status :
       {Stream::Create(*context).status(), HostArray<uint64_t>::Create(*context).status(),
        ccl::Communicator::Create(*context).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("libiris_", driver::testing::kFakeBackend, ".so")));
    EXPECT_THAT(status.message(), HasSubstr("of the bundle beside libiris.so"));
  }
}

TEST_F(GpuDriverTest, ADeviceThatThisProcessDoesNotSeeIsNamed) {
  ContextOptions options = Rank(0, 1);
  options.device_uuid = "GPU-00000000-0000-0000-0000-000000000009";
  const Status status = Context::Create(options, kNoKernels).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.device_uuid));
  EXPECT_THAT(std::string(status.message()), HasSubstr("this process sees"));
}

TEST_F(GpuDriverTest, AHeapThatIsTooLargeIsRefused) {
  ContextOptions options = Rank(0, 1);
  options.heap_bytes = 4096 * kMiB;
  options.max_heap_bytes = 0;
  const Status status = Context::Create(options, kNoKernels).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
}

TEST_F(GpuDriverTest, IrisdSaysWhatItFoundAndWhyNotTheOthers) {
  const auto status = daemon_->GetStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->backends_size(), 3);
  EXPECT_TRUE(status->backends(0).available());
  EXPECT_THAT(status->backends(0).detail(), HasSubstr("2 x Fake 0, driver 13.0"));
  EXPECT_FALSE(status->backends(1).available());
  EXPECT_FALSE(status->backends(2).available());
  EXPECT_EQ(status->n_devices(), 2u);
}

TEST_F(GpuDriverTest, IrisdDoesNotStartOnABackendThatIsNotThere) {
  if (std::filesystem::exists("/dev/kfd")) GTEST_SKIP() << "this machine may have it";
  const auto other = Start(driver::testing::kOtherBackend);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace iris
