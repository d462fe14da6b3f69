// The driver of GPUs on a fake of the vendors' libraries, loaded as the real ones are.
#include "device/driver/vmm_driver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/driver/open.h"
#include "device/driver/testing/fake_gpu.h"
#include "tests/cc/require.h"

namespace iris::driver {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kLibrary[] = "device/driver/testing/libfake_gpu.so";
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 4 * kMiB;

int CountFds() {
  int n = 0;
  DIR* const dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

class FakeGpuTest : public ::testing::Test {
 protected:
  FakeGpuTest() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      ADD_FAILURE() << dlerror();
      abort();
    }
    fake_ = reinterpret_cast<testing::GetFakeGpu>(dlsym(library, "fake_gpu"))();
    reset_ = reinterpret_cast<testing::ResetFakeGpu>(dlsym(library, "fake_gpu_reset"));
    reset_();
  }
  ~FakeGpuTest() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  void ExpectNothingLeft() {
    EXPECT_EQ(fake_->n_handles, 0);
    EXPECT_EQ(fake_->n_mappings, 0);
    EXPECT_EQ(fake_->n_reservations, 0);
    EXPECT_EQ(fake_->n_registered, 0);
    EXPECT_THAT(fake_->violations, IsEmpty());
  }

  static absl::StatusOr<std::unique_ptr<GpuDriver>> Open(BackendKind kind = BackendKind::kCuda) {
    auto opened = OpenVmmDriver({kind, kLibrary});
    if (!opened.ok()) return opened.status();
    return std::move(opened->driver);
  }
  static std::unique_ptr<GpuDriver> MustOpen(BackendKind kind = BackendKind::kCuda) {
    auto driver = Open(kind);
    EXPECT_TRUE(driver.ok()) << driver.status();
    return *std::move(driver);
  }
  absl::Status OpenStatus(BackendKind kind = BackendKind::kCuda) { return Open(kind).status(); }

  FakeGpu* fake_ = nullptr;
  testing::ResetFakeGpu reset_ = nullptr;
};

struct Platform {
  const char* name;
  BackendKind kind;
  int version;
};

class VmmDriverTest : public FakeGpuTest, public ::testing::WithParamInterface<Platform> {
 protected:
  VmmDriverTest() {
    fake_->cuda_version = GetParam().version;
    fake_->hip_version = GetParam().version;
    fds_ = CountFds();
    irisd_ = MustOpen(GetParam().kind);
    client_ = MustOpen(GetParam().kind);
    EXPECT_TRUE(client_->MakeCurrent(0).ok());
  }
  ~VmmDriverTest() override {
    client_.reset();
    irisd_.reset();
    ExpectNothingLeft();
    EXPECT_EQ(fake_->n_streams, 0);
    EXPECT_THAT(fake_->retained, ::testing::Each(0));
    EXPECT_EQ(CountFds(), fds_);
  }

  std::unique_ptr<PhysicalMemory> Create(uint64_t bytes = kBytes, uint32_t device = 0) {
    auto memory = irisd_->Create(device, bytes, false);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  std::unique_ptr<PhysicalMemory> Lend(PhysicalMemory& memory) {
    auto fd = memory.ExportFd(Access::kReadWrite);
    EXPECT_TRUE(fd.ok()) << fd.status();
    auto imported = client_->Import(*fd, memory.bytes());
    EXPECT_TRUE(imported.ok()) << imported.status();
    return *std::move(imported);
  }

  int fds_ = 0;
  std::unique_ptr<GpuDriver> irisd_, client_;
};

INSTANTIATE_TEST_SUITE_P(Platforms, VmmDriverTest,
                         ::testing::Values(Platform{"Cuda12", BackendKind::kCuda, 12020},
                                           Platform{"Cuda13", BackendKind::kCuda, 13000},
                                           Platform{"Rocm6", BackendKind::kHip, 60'342'131},
                                           Platform{"Rocm70", BackendKind::kHip, 70'051'831},
                                           Platform{"Rocm71", BackendKind::kHip, 70'151'831},
                                           Platform{"Rocm72", BackendKind::kHip, 70'253'211},
                                           Platform{"Rocm714", BackendKind::kHip, 71'460'850}),
                         [](const auto& platform) { return platform.param.name; });

TEST_P(VmmDriverTest, DescribesItsDevices) {
  ASSERT_EQ(irisd_->devices().size(), 2u);
  const DeviceInfo& second = irisd_->devices()[1];
  EXPECT_EQ(irisd_->kind(), GetParam().kind);
  EXPECT_EQ(second.backend, NameOf(GetParam().kind));
  EXPECT_EQ(second.name, "Fake 1");
  EXPECT_EQ(second.index, 1u);
  EXPECT_EQ(second.memory_bytes, 1024 * kMiB);
  EXPECT_EQ(second.granularity_bytes, 2 * kMiB);
  EXPECT_EQ(second.uuid, GetParam().kind == BackendKind::kCuda
                             ? "GPU-fa000000-0000-0000-0000-000000000001"
                             : "GPU-fa00000000000001");
}

TEST_P(VmmDriverTest, MemoryIsFreshAndSharedBetweenProcesses) {
  auto memory = Create();
  auto imported = Lend(*memory);
  auto range = Require(client_->Reserve(2 * kBytes, 2, 0));
  EXPECT_EQ(range->bytes(), 4 * kBytes);
  auto mapping = Require(client_->Map(*range, 2 * kBytes, *imported, Access::kReadWrite, {0}));
  const uint64_t address = mapping->address();
  EXPECT_EQ(address, range->base() + 2 * kBytes);

  std::vector<uint8_t> seen(kBytes, 1);
  ASSERT_TRUE(client_->Copy(seen.data(), reinterpret_cast<void*>(address), kBytes).ok());
  EXPECT_EQ(seen, std::vector<uint8_t>(kBytes, 0)) << "as the last owner left it";

  ASSERT_TRUE(client_->Fill(address + 100, 0xab, 50).ok());
  std::vector<uint8_t> part(50);
  const absl::Status read = imported->Read(100, absl::MakeSpan(part));
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_EQ(part, std::vector<uint8_t>(50, 0xab));
  EXPECT_EQ(imported->Read(kBytes - 1, absl::MakeSpan(part)).code(), StatusCode::kInvalidArgument);
}

TEST_P(VmmDriverTest, MemoryOutlivesItsCreator) {
  auto memory = Create();
  auto imported = Lend(*memory);
  memory.reset();
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  EXPECT_TRUE(client_->Map(*range, 0, *imported, Access::kReadWrite, {0}).ok());
}

TEST_P(VmmDriverTest, ExportsDuplicatesThatDoNotLeakIntoPrograms) {
  auto memory = Create();
  for (int i = 0; i < 2; ++i) {
    auto fd = Require(memory->ExportFd(Access::kReadWrite));
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
  }
  auto imported = Lend(*memory);
  EXPECT_EQ(imported->ExportFd(Access::kReadWrite).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(VmmDriverTest, AHeapGrowsBySegmentsBehindEachOther) {
  auto first = Create(), second = Create(2 * kMiB), third = Create(2 * kBytes);
  auto a = Lend(*first), b = Lend(*second), c = Lend(*third);
  auto range = Require(client_->Reserve(8 * kBytes, 3, 0));
  // Another rank's piece before it must not matter.
  auto other = Create();
  auto d = Lend(*other);
  auto m0 = client_->Map(*range, 0, *d, Access::kReadWrite, {0});
  const uint64_t piece = 8 * kBytes;
  auto m1 = client_->Map(*range, piece, *a, Access::kReadWrite, {0});
  auto m2 = client_->Map(*range, piece + kBytes, *b, Access::kReadWrite, {0});
  auto m3 = client_->Map(*range, piece + kBytes + 2 * kMiB, *c, Access::kReadWrite, {0});
  for (const auto* m : {&m0, &m1, &m2, &m3}) ASSERT_TRUE(m->ok()) << m->status();
  for (const auto* m : {&m1, &m2, &m3}) {
    EXPECT_TRUE(client_->Fill((**m)->address(), 7, (**m)->bytes()).ok());
  }
}

TEST_P(VmmDriverTest, EachDeviceMustBeLetIn) {
  auto memory = Create(kBytes, 1);
  auto range = Require(irisd_->Reserve(kBytes, 1, 0));
  auto mapping = Require(irisd_->Map(*range, 0, *memory, Access::kReadWrite, {1, 0}));
  mapping.reset();

  auto again = Require(client_->Reserve(kBytes, 1, 0));
  auto imported = Lend(*memory);
  auto one = Require(client_->Map(*again, 0, *imported, Access::kReadWrite, {0}));
  std::thread other([&] {
    ASSERT_TRUE(client_->MakeCurrent(1).ok());
    const absl::Status kept_out = client_->Fill(one->address(), 1, 8);
    EXPECT_EQ(kept_out.code(), StatusCode::kUnavailable) << kept_out;
    ASSERT_TRUE(one->Allow(1).ok());
    ASSERT_TRUE(one->Allow(1).ok());
    EXPECT_TRUE(client_->Fill(one->address(), 1, 8).ok());
  });
  other.join();
  EXPECT_TRUE(client_->Fill(one->address(), 1, 8).ok()) << "the first is still let in";
  EXPECT_EQ(one->Allow(7).code(), StatusCode::kInvalidArgument);
}

TEST_P(VmmDriverTest, AThreadWithoutADeviceUsesTheFirstOne) {
  auto memory = Create();
  auto imported = Lend(*memory);
  auto range = client_->Reserve(kBytes, 1, 0);
  auto mapping = client_->Map(**range, 0, *imported, Access::kReadWrite, {0});
  ASSERT_TRUE(mapping.ok());
  std::thread thread([&] { EXPECT_TRUE(client_->Fill((*mapping)->address(), 1, 8).ok()); });
  thread.join();
}

TEST_P(VmmDriverTest, RegistersAPageThatIsMappedWithoutWritePermission) {
  const int fd = memfd_create("page", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  void* const page = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_EQ(Require(client_->RegisterHost(page, 4096, Access::kReadOnly)), page);
  EXPECT_EQ(client_->RegisterHost(page, 4096, Access::kReadOnly).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(client_->UnregisterHost(page).ok());
  EXPECT_EQ(client_->UnregisterHost(page).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->RegisterHost(nullptr, 4096, Access::kReadOnly).status().code(),
            StatusCode::kInvalidArgument);
  munmap(page, 4096);
  close(fd);
}

TEST_P(VmmDriverTest, RegistersAPageThatKernelsWrite) {
  alignas(4096) static char page[4096];
  Require(client_->RegisterHost(page, sizeof(page), Access::kReadWrite));
  EXPECT_EQ(fake_->n_registered_read_only, 0);
  EXPECT_TRUE(client_->UnregisterHost(page).ok());
}

TEST_P(VmmDriverTest, ReservesAtTheWantedBaseAndReplacesNothing) {
  auto probe = Require(client_->Reserve(kBytes, 4, 0));
  const uint64_t wanted = probe->base();
  probe.reset();
  auto first = Require(client_->Reserve(kBytes, 4, wanted));
  EXPECT_EQ(first->base(), wanted);
  auto second = Require(client_->Reserve(kBytes, 4, wanted));
  EXPECT_NE(second->base(), wanted);
  EXPECT_EQ(second->base() % (2 * kMiB), 0u);
}

TEST_P(VmmDriverTest, RefusesWhatDoesNotFit) {
  auto memory = Create();
  auto range = Require(irisd_->Reserve(kBytes, 2, 0));
  const auto map = [&](uint64_t offset, absl::Span<const uint32_t> devices) {
    return irisd_->Map(*range, offset, *memory, Access::kReadWrite, devices).status().code();
  };
  EXPECT_EQ(map(2 * kMiB, {0}), StatusCode::kInvalidArgument) << "across two pieces";
  EXPECT_EQ(map(2 * kBytes, {0}), StatusCode::kInvalidArgument) << "behind the end";
  EXPECT_EQ(map(4096, {0}), StatusCode::kInvalidArgument) << "off the granularity";
  EXPECT_EQ(map(0, {}), StatusCode::kInvalidArgument) << "for nobody";
  EXPECT_EQ(map(0, {2}), StatusCode::kInvalidArgument) << "for a device that does not exist";
  EXPECT_EQ(client_->Map(*range, 0, *memory, Access::kReadWrite, {0}).status().code(),
            StatusCode::kInvalidArgument)
      << "another driver's memory";
  for (const uint64_t bytes : {uint64_t{0}, kBytes + 1, ~uint64_t{0} << 21}) {
    EXPECT_EQ(irisd_->Create(0, bytes, false).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(irisd_->Reserve(bytes, 1, 0).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(irisd_->Create(2, kBytes, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(irisd_->Reserve(kBytes, 0, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(VmmDriverTest, CopiesKeepTheirOrderAndTakeTurnsWithNobody) {
  const auto memory = Create();
  const auto lent = Lend(*memory);
  const auto reservation = Require(client_->Reserve(kBytes, 1, 0));
  const auto mapping = Require(client_->Map(*reservation, 0, *lent, Access::kReadWrite, {1}));
  auto copies = Require(client_->CopiesOf(1));
  std::string model(kBytes, '\0'), data(kBytes, '\0');
  std::mt19937 random(7);
  for (char& byte : data) byte = static_cast<char>(random());
  const auto number = [&](uint64_t most) { return random() % (most + 1); };
  std::vector<std::pair<std::shared_ptr<const uint8_t>, std::string>> fetched;
  for (int i = 0; i < 3000; ++i) {
    const uint64_t sizes[] = {1, 2, 4, 8, number(40), number(70'000), number(kBytes)};
    const uint64_t bytes = sizes[number(i % 50 == 0 ? 6 : 5)];
    uint64_t at = number(kBytes - bytes);
    if (number(1) == 0 && bytes > 0 && bytes <= 8) at -= at % bytes;
    const uint64_t from = number(kBytes - bytes), address = mapping->address() + at;
    const int turns = fake_->n_writes_in_turn;
    switch (number(4)) {
      case 0: {
        std::string seen(bytes, '\0');
        ASSERT_TRUE(copies->Read(seen.data(), address, bytes).ok());
        ASSERT_EQ(seen, model.substr(at, bytes)) << i;
        break;
      }
      case 1: {
        const auto buffer = Require(copies->Fetch(address, bytes));
        if (buffer == nullptr) {
          ASSERT_TRUE(bytes > HostCopies::kFetchBytes || fetched.size() == 31);
          fetched.clear();
        } else {
          fetched.emplace_back(buffer, model.substr(at, bytes));
        }
        break;
      }
      case 2:
        ASSERT_TRUE(copies->Idle().ok());
        break;
      default:
        ASSERT_TRUE(copies->Write(address, data.data() + from, bytes).ok());
        memcpy(model.data() + at, data.data() + from, bytes);
    }
    // As many bytes at the end of a long write go in turn, too.
    const uint64_t last = bytes % HostCopies::kFetchBytes;
    ASSERT_TRUE(fake_->n_writes_in_turn == turns || last == 1 || last == 2) << bytes;
  }
  ASSERT_TRUE(copies->Finish().ok());
  EXPECT_EQ(memcmp(reinterpret_cast<void*>(mapping->address()), model.data(), kBytes), 0);
  copies.reset();
  for (const auto& [buffer, wanted] : fetched) {
    EXPECT_EQ(memcmp(buffer.get(), wanted.data(), wanted.size()), 0);
  }
}

TEST_P(VmmDriverTest, OutOfMemorySaysHowMuchIsFree) {
  ASSERT_TRUE(irisd_->MakeCurrent(0).ok());
  const absl::Status status = irisd_->Create(0, 2048 * kMiB, false).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(status), HasSubstr("1 GiB of 1 GiB free"));
  EXPECT_THAT(Text(status), HasSubstr(irisd_->devices()[0].uuid));
}

TEST_P(VmmDriverTest, OtherDescriptorsAreRefusedAndClosed) {
  const int before = CountFds();
  const absl::Status status = client_->Import(open("/dev/null", O_RDWR), kBytes).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(Text(status), HasSubstr("not of exported device memory"));
  EXPECT_EQ(client_->Import(-1, kBytes).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CountFds(), before);
}

TEST_P(VmmDriverTest, AnotherDriverAdoptsWhatOneHasCreated) {
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  int left = -1;
  {
    auto earlier = MustOpen(GetParam().kind);
    auto memory = Require(earlier->Create(1, kBytes, false));
    auto imported = Lend(*memory);
    auto mapping = Require(client_->Map(*range, 0, *imported, Access::kReadWrite, {0}));
    ASSERT_TRUE(client_->Fill(mapping->address(), 0x7b, kBytes).ok());
    auto fd = Require(memory->ExportFd(Access::kReadWrite));
    left = fd;
  }
  auto adopted = Require(irisd_->Adopt(1, left, kBytes));
  EXPECT_EQ(adopted->bytes(), kBytes);
  EXPECT_EQ(fake_->n_handles, 1);
  EXPECT_EQ(fake_->n_mappings, 0);
  for (int i = 0; i < 2; ++i) {  // exported and mapped as often as wanted
    auto imported = Lend(*adopted);
    auto mapping = Require(client_->Map(*range, 0, *imported, Access::kReadWrite, {0, 1}));
    std::vector<uint8_t> seen(kBytes);
    ASSERT_TRUE(
        client_->Copy(seen.data(), reinterpret_cast<const void*>(mapping->address()), kBytes).ok());
    EXPECT_EQ(seen, std::vector<uint8_t>(kBytes, 0x7b)) << "not as it was left";
  }
  // The irisd after that one adopts the memory once more.
  auto fd = Require(adopted->ExportFd(Access::kReadWrite));
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  auto again = client_->Adopt(1, fd, kBytes);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_P(VmmDriverTest, AdoptsNothingElse) {
  const int before = CountFds();
  auto memory = Create();
  const auto export_it = [&] { return memory->ExportFd(Access::kReadWrite).value_or(-1); };
  const auto adopt = [&](int fd, uint64_t bytes, uint32_t device) {
    const absl::Status status = irisd_->Adopt(device, fd, bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    return Text(status);
  };
  EXPECT_THAT(adopt(export_it(), 2 * kBytes, 0),
              HasSubstr("not of so much exported device memory"));
  EXPECT_THAT(adopt(export_it(), kBytes / 2, 0),
              HasSubstr("not of so much exported device memory"));
  EXPECT_THAT(adopt(export_it(), kBytes + 1, 0), HasSubstr("multiple"));
  EXPECT_THAT(adopt(export_it(), kBytes, 2), HasSubstr("device 2 does not exist"));
  EXPECT_THAT(adopt(-1, kBytes, 0), HasSubstr("not a descriptor"));
  EXPECT_THAT(adopt(open("/dev/null", O_RDWR), kBytes, 0),
              HasSubstr("not of exported device memory"));
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  adopt(pipe_fds[0], kBytes, 0);
  adopt(pipe_fds[1], kBytes, 0);
  memory.reset();
  EXPECT_EQ(CountFds(), before);
  EXPECT_EQ(fake_->n_handles, 0);
}

TEST_P(VmmDriverTest, AFailureAtAnyStepLeavesNothing) {
  const std::string prefix = GetParam().kind == BackendKind::kCuda ? "cu" : "hip";
  for (const char* call :
       {"MemCreate", "MemExportToShareableHandle", "MemImportFromShareableHandle",
        "MemAddressReserve", "MemMap", "MemSetAccess"}) {
    fake_->fail_call = prefix + call;
    fake_->fail_error = 304;
    auto memory = irisd_->Create(0, kBytes, false);
    if (memory.ok()) {
      auto imported = client_->Import((*memory)->ExportFd(Access::kReadWrite).value(), kBytes);
      auto range = client_->Reserve(kBytes, 2, 0);
      if (imported.ok() && range.ok()) {
        EXPECT_FALSE(client_->Map(**range, 0, **imported, Access::kReadWrite, {0}).ok()) << call;
      }
    } else {
      EXPECT_EQ(memory.status().code(), StatusCode::kInternal) << memory.status();
      EXPECT_THAT(Text(memory.status()), HasSubstr("dmesg"));
    }
    memory = absl::UnknownError("");
    ExpectNothingLeft();
  }
}

// A program captures a stream for all threads, while the library maps what a heap has grown by.
TEST_P(VmmDriverTest, ACaptureOfAnotherThreadIsNotInTheWay) {
  auto first = Create();
  fake_->capturing = true;
  {
    auto memory = Create();
    auto lent = Lend(*memory);
    auto range = client_->Reserve(4 * kBytes, 2, 0);
    ASSERT_TRUE(range.ok()) << range.status();
    auto mapping = client_->Map(**range, 0, *lent, Access::kReadWrite, {0});
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    EXPECT_TRUE((*mapping)->Allow(1).ok());
    EXPECT_TRUE(client_->Fill((*mapping)->address(), 7, kBytes).ok());
    uint8_t bytes[16] = {};
    EXPECT_TRUE(lent->Read(0, absl::MakeSpan(bytes)).ok());
    EXPECT_EQ(bytes[15], 7);
    EXPECT_TRUE(client_->DeviceMemory(0).ok());
    (void)client_->Share(0, (*mapping)->address(), kBytes, 4);  // refused calls are counted
    alignas(4096) static char page[4096];
    const auto registered = client_->RegisterHost(page, sizeof(page), Access::kReadOnly);
    EXPECT_TRUE(registered.ok()) << registered.status();
    EXPECT_TRUE(client_->UnregisterHost(page).ok());
  }
  EXPECT_EQ(fake_->n_refused_for_capture, 0);
  fake_->capturing = false;
}

TEST_P(VmmDriverTest, ALostDeviceIsUnavailable) {
  auto memory = Create();
  auto imported = Lend(*memory);
  auto range = client_->Reserve(kBytes, 1, 0);
  auto mapping = Require(client_->Map(**range, 0, *imported, Access::kReadWrite, {0}));
  fake_->fail_call =
      GetParam().kind == BackendKind::kCuda ? "cuStreamSynchronize" : "hipStreamSynchronize";
  fake_->fail_error = 719;
  const absl::Status status = client_->Fill(mapping->address(), 1, 8);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Text(status), HasSubstr("end this process"));
}

TEST_P(VmmDriverTest, DevicesWithoutAPathAreNamed) {
  EXPECT_TRUE(irisd_->CanAccessPeer(0, 1).ok());
  fake_->peers = false;
  EXPECT_TRUE(irisd_->CanAccessPeer(1, 1).ok());
  const absl::Status status = irisd_->CanAccessPeer(0, 1);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr(irisd_->devices()[0].uuid));
  EXPECT_THAT(Text(status), HasSubstr(irisd_->devices()[1].uuid));
  EXPECT_EQ(irisd_->CanAccessPeer(0, 2).code(), StatusCode::kInvalidArgument);
}

TEST_P(VmmDriverTest, SegmentsAreRefusedBeforeDescriptorsRunOut) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(CountFds()) + 40;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<std::unique_ptr<PhysicalMemory>> memories;
  absl::Status status;
  while (status.ok() && memories.size() < 100) {
    auto memory = irisd_->Create(0, 2 * kMiB, false);
    status = memory.status();
    if (memory.ok()) memories.push_back(*std::move(memory));
  }
  const int still_free = open("/dev/null", O_RDONLY | O_CLOEXEC);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(status), HasSubstr("LimitNOFILE"));
  EXPECT_GE(still_free, 0) << "the system itself has run out";
  close(still_free);
}

TEST_F(FakeGpuTest, IrisdCreatesAndExportsWithoutAContext) {
  auto irisd = MustOpen();
  auto memory = Require(irisd->Create(1, kBytes, false));
  auto fd = Require(memory->ExportFd(Access::kReadOnly));
  close(fd);
  EXPECT_THAT(fake_->retained, ::testing::Each(0));
  EXPECT_EQ(fake_->calls_needing_context, 0u);
  std::vector<uint8_t> byte(1);
  EXPECT_EQ(memory->Read(0, absl::MakeSpan(byte)).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(irisd->Fill(4096, 0, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(irisd->RegisterHost(this, 1, Access::kReadOnly).status().code(),
            StatusCode::kFailedPrecondition);
  // Without the management library nobody tells; with it, a machine's own answer.
  const auto info = irisd->DeviceMemory(0);
  EXPECT_TRUE(info.ok() || info.status().code() == StatusCode::kUnimplemented) << info.status();
  EXPECT_GT(irisd->link_bytes(), 0u);
}

TEST_F(FakeGpuTest, AContextIsRetainedOnceAndReleased) {
  auto client = MustOpen();
  ASSERT_TRUE(client->MakeCurrent(1).ok());
  ASSERT_TRUE(client->MakeCurrent(1).ok());
  EXPECT_THAT(fake_->retained, ::testing::ElementsAre(0, 1));
  const auto info = Require(client->DeviceMemory(1));
  EXPECT_EQ(info.total_bytes, 1024 * kMiB);
  EXPECT_EQ(client->MakeCurrent(2).code(), StatusCode::kInvalidArgument);
  client.reset();
  EXPECT_THAT(fake_->retained, ::testing::ElementsAre(0, 0));
}

TEST_F(FakeGpuTest, VisibleDevicesAreRenumberedButKeepTheirUuid) {
  const std::string second = MustOpen()->devices()[1].uuid;
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  auto client = MustOpen();
  ASSERT_EQ(client->devices().size(), 1u);
  EXPECT_EQ(client->devices()[0].index, 0u);
  EXPECT_EQ(client->devices()[0].uuid, second);
}

TEST_F(FakeGpuTest, AnOldDriverIsNamedWithWhatIsNeeded) {
  fake_->cuda_version = 11020;
  absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("too old: it speaks CUDA 11.2, needed is 11.4"));
  fake_->hip_version = 50'221'153;
  status = OpenStatus(BackendKind::kHip);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("too old: it speaks ROCm 5.2, needed is 6.1"));
}

TEST_F(FakeGpuTest, ErrorsOfTheInstallationSayWhatToDo) {
  const struct {
    const char* call;
    int error;
    StatusCode code;
    const char* text;
  } cases[] = {
      {"cuInit", 100, StatusCode::kFailedPrecondition, "VISIBLE_DEVICES"},
      {"cuInit", 34, StatusCode::kFailedPrecondition, "stub"},
      {"cuInit", 803, StatusCode::kFailedPrecondition, "different versions"},
      {"cuInit", 802, StatusCode::kFailedPrecondition, "fabric manager"},
      {"cuInit", 804, StatusCode::kFailedPrecondition, "forward-compatibility"},
      {"cuInit", 999, StatusCode::kInternal, "dmesg"},
      {"cuDeviceGetCount", 3, StatusCode::kFailedPrecondition, "forked child"},
      {"cuDeviceGetName", 800, StatusCode::kPermissionDenied, "may not use"},
      {"cuDeviceTotalMem", 12345, StatusCode::kInternal, "12345"},
  };
  for (const auto& c : cases) {
    reset_();
    fake_->fail_call = c.call;
    fake_->fail_error = c.error;
    const absl::Status status = OpenStatus();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(Text(status), HasSubstr(c.text));
  }
}

TEST_F(FakeGpuTest, ADeviceWithoutExportableMemoryIsNamed) {
  fake_->exportable = false;
  const absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("Fake 0"));
}

TEST_F(FakeGpuTest, AMissingOrForeignLibraryIsNamed) {
  const absl::Status missing =
      OpenVmmDriver({BackendKind::kCuda, "/nowhere/libcuda.so.1"}).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(Text(missing), HasSubstr("/nowhere/libcuda.so.1"));
  const absl::Status foreign = OpenVmmDriver({BackendKind::kCuda, "libm.so.6"}).status();
  EXPECT_EQ(foreign.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(foreign), HasSubstr("libm.so.6 has no cuCtxGetDevice"));
}

OpenOptions Options(const std::string& backend) {
  OpenOptions options;
  options.backend = backend;
  options.emu = {1, kBytes, 0};
  options.library_path = kLibrary;
  return options;
}

TEST_F(FakeGpuTest, AutoTakesCudaThenHipThenEmuAndSaysWhyNotTheOthers) {
  auto opened = OpenDriver(Options("auto"));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->driver->kind(), BackendKind::kCuda);
  ASSERT_EQ(opened->reports.size(), 3u);
  EXPECT_TRUE(opened->reports[0].available);
  EXPECT_EQ(opened->reports[0].detail, "2 x Fake 0, driver 13.0");
  EXPECT_THAT(opened->reports[1].detail, HasSubstr("cuda has devices"));
  EXPECT_FALSE(opened->reports[2].available);

  fake_->cuda_version = 10000;
  opened = OpenDriver(Options("auto"));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->driver->kind(), BackendKind::kHip);
  EXPECT_THAT(opened->reports[0].detail, HasSubstr("too old"));
  EXPECT_EQ(opened->reports[1].detail, "2 x Fake 0, driver 7.2");

  fake_->hip_version = 50'000'000;
  opened = OpenDriver(Options("auto"));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->driver->kind(), BackendKind::kEmu);
  EXPECT_THAT(opened->reports[1].detail, HasSubstr("too old"));
  EXPECT_TRUE(opened->reports[2].available);
}

TEST_F(FakeGpuTest, ABackendThatIsAskedForAndNotThereIsAnError) {
  EXPECT_EQ(OpenDriver(Options("hip"))->driver->kind(), BackendKind::kHip);
  fake_->n_devices = 0;
  const absl::Status status = OpenDriver(Options("hip")).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("backend hip"));
  EXPECT_EQ(OpenDriver(Options("abacus")).status().code(), StatusCode::kInvalidArgument);
  auto emu = Require(OpenDriver(Options("emu")));
  EXPECT_THAT(emu.reports[0].detail, HasSubstr("not looked for"));
}

TEST(ProcessesTakeTurnsTest, OnlyWhereNoServiceRunsThemTogether) {
  const std::string folder = ::testing::TempDir() + "/mps";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const auto variable = [&](const char* name) {
    return strcmp(name, "CUDA_MPS_PIPE_DIRECTORY") == 0 ? folder.c_str() : nullptr;
  };
  EXPECT_THAT(ProcessesTakeTurns("cuda", variable), HasSubstr("nvidia-cuda-mps-control -d"));
  EXPECT_EQ(ProcessesTakeTurns("hip", variable), "");
  EXPECT_EQ(ProcessesTakeTurns("emu", variable), "");
  fclose(fopen((folder + "/control").c_str(), "w"));
  EXPECT_EQ(ProcessesTakeTurns("cuda", variable), "");
}

}  // namespace
}  // namespace iris::driver
