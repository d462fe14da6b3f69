// Tests the GPU driver's Share with memory that a program has created by the platform's own calls,
// on a fake of the vendors' libraries.
#include "device/driver/vmm_share.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "device/driver/hip_api.h"
#include "device/driver/testing/fake_gpu.h"
#include "device/driver/vmm_driver.h"
#include "tests/cc/require.h"

namespace iris::driver {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using ::testing::AllOf;
using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLibrary[] = "device/driver/testing/libfake_gpu.so";
constexpr char kOldLibrary[] = "device/driver/testing/libfake_old_gpu.so";
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 4 * kMiB;
constexpr size_t kMany = 64;
constexpr int kFabric = 8;

int CountFds() {
  int n = 0;
  DIR* const dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

FakeGpu* LoadFake(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    ADD_FAILURE() << dlerror();
    abort();
  }
  reinterpret_cast<testing::ResetFakeGpu>(dlsym(library, "fake_gpu_reset"))();
  return reinterpret_cast<testing::GetFakeGpu>(dlsym(library, "fake_gpu"))();
}

std::unique_ptr<GpuDriver> MustOpen(BackendKind kind, const char* library) {
  auto opened = OpenVmmDriver({kind, library});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return std::move(opened->driver);
}

hipMemAllocationProp Shareable(int device = 0) {
  hipMemAllocationProp prop;
  prop.type = hipMemAllocationTypePinned;
  prop.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
  prop.location = {hipMemLocationTypeDevice, device};
  return prop;
}

// A range of a program's own, with mappings made by the platform's calls. It keeps a handle of each
// allocation until the end.
class UserRange {
 public:
  UserRange(HipApi& api, uint64_t bytes) : api_(api), bytes_(bytes) {
    void* base = nullptr;
    EXPECT_EQ(api.hipMemAddressReserve(&base, bytes, 0, nullptr, 0), hipSuccess);
    base_ = reinterpret_cast<uint64_t>(base);
  }
  ~UserRange() {
    for (const auto& [offset, bytes, handle] : maps_) {
      EXPECT_EQ(api_.hipMemUnmap(Pointer(base_ + offset), bytes), hipSuccess);
      EXPECT_EQ(api_.hipMemRelease(handle), hipSuccess) << "somebody else has released it";
    }
    EXPECT_EQ(api_.hipMemAddressFree(Pointer(base_), bytes_), hipSuccess);
  }
  UserRange(const UserRange&) = delete;
  UserRange& operator=(const UserRange&) = delete;

  uint64_t base() const { return base_; }
  void Map(uint64_t offset, uint64_t bytes, const hipMemAllocationProp& prop = Shareable()) {
    hipMemGenericAllocationHandle_t handle = 0;
    ASSERT_EQ(api_.hipMemCreate(&handle, bytes, &prop, 0), hipSuccess);
    ASSERT_EQ(api_.hipMemMap(Pointer(base_ + offset), bytes, 0, handle, 0), hipSuccess);
    maps_.push_back({offset, bytes, handle});
  }
  void Allow(uint64_t offset, uint64_t bytes) {
    hipMemAccessDesc desc;
    desc.location = {hipMemLocationTypeDevice, 0};
    desc.flags = hipMemAccessFlagsProtReadWrite;
    ASSERT_EQ(api_.hipMemSetAccess(Pointer(base_ + offset), bytes, &desc, 1), hipSuccess);
  }

 private:
  struct Mapped {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    hipMemGenericAllocationHandle_t handle = 0;
  };
  HipApi& api_;
  const uint64_t bytes_;
  uint64_t base_ = 0;
  std::vector<Mapped> maps_;
};

struct Platform {
  const char* name;
  BackendKind kind;
  int version;
};

class VmmShareTest : public ::testing::TestWithParam<Platform> {
 protected:
  VmmShareTest() : fake_(LoadFake(kLibrary)) {
    fake_->cuda_version = GetParam().version;
    fake_->hip_version = GetParam().version;
    fds_ = CountFds();
    lender_ = MustOpen(GetParam().kind, kLibrary);
    peer_ = MustOpen(GetParam().kind, kLibrary);
    EXPECT_TRUE(lender_->MakeCurrent(0).ok());
    EXPECT_TRUE(peer_->MakeCurrent(0).ok());
    auto user = IsCuda() ? OpenHipOnCuda(kLibrary) : OpenHipNative(kLibrary);
    EXPECT_TRUE(user.ok()) << user.status();
    user_ = *std::move(user);
  }
  ~VmmShareTest() override {
    user_.reset();
    peer_.reset();
    lender_.reset();
    EXPECT_EQ(fake_->n_handles, 0);
    EXPECT_EQ(fake_->n_mappings, 0);
    EXPECT_EQ(fake_->n_reservations, 0);
    EXPECT_THAT(fake_->retained, ::testing::Each(0));
    EXPECT_THAT(fake_->violations, IsEmpty());
    EXPECT_EQ(CountFds(), fds_);
  }

  static bool IsCuda() { return GetParam().kind == BackendKind::kCuda; }
  std::string Call(const char* name) const { return (IsCuda() ? "cu" : "hip") + std::string(name); }

  // The text of the refusal, after which nothing is open.
  std::string Refused(uint64_t address, uint64_t bytes, StatusCode code, size_t max_pieces = kMany,
                      uint32_t device = 0) {
    const int fds = CountFds(), handles = fake_->n_handles;
    const absl::Status status = lender_->Share(device, address, bytes, max_pieces).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(CountFds(), fds) << status;
    EXPECT_EQ(fake_->n_handles, handles) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("at 0"));  // 0x...
    return std::string(status.message());
  }

  FakeGpu* const fake_;
  int fds_ = 0;
  std::unique_ptr<GpuDriver> lender_, peer_;
  std::unique_ptr<HipApi> user_;
};

INSTANTIATE_TEST_SUITE_P(Platforms, VmmShareTest,
                         ::testing::Values(Platform{"Cuda12", BackendKind::kCuda, 12020},
                                           Platform{"Cuda13", BackendKind::kCuda, 13000},
                                           Platform{"Rocm6", BackendKind::kHip, 60'342'131},
                                           Platform{"Rocm70", BackendKind::kHip, 70'051'831},
                                           Platform{"Rocm72", BackendKind::kHip, 70'253'211},
                                           Platform{"Rocm714", BackendKind::kHip, 71'460'850}),
                         [](const auto& platform) { return platform.param.name; });

TEST_P(VmmShareTest, APeerHasTheMemoryThatAProgramCreated) {
  UserRange mine(*user_, 2 * kBytes);
  mine.Map(0, kBytes);
  mine.Allow(0, kBytes);
  auto pieces = Require(lender_->Share(0, mine.base() + 100, 50, 1));
  ASSERT_EQ(pieces.size(), 1u);
  const SharedPiece piece = pieces.front();
  EXPECT_EQ(piece.address, mine.base());
  EXPECT_EQ(piece.bytes, kBytes);
  EXPECT_EQ(fcntl(piece.fd, F_GETFD), FD_CLOEXEC);

  auto imported = Require(peer_->Import(piece.fd, piece.bytes));
  auto range = Require(peer_->Reserve(kBytes, 1, 0));
  auto mapping = Require(peer_->Map(*range, 0, *imported, Access::kReadWrite, {0}));
  const uint64_t theirs = mapping->address();
  uint8_t seen = 0;
  ASSERT_TRUE(lender_->Fill(mine.base() + kBytes - 1, 0x31, 1).ok());
  ASSERT_TRUE(peer_->Copy(&seen, Pointer(theirs + kBytes - 1), 1).ok());
  EXPECT_EQ(seen, 0x31);
  ASSERT_TRUE(peer_->Fill(theirs, 0x32, kBytes).ok());
  ASSERT_TRUE(lender_->Copy(&seen, Pointer(mine.base() + 77), 1).ok());
  EXPECT_EQ(seen, 0x32);
}

TEST_P(VmmShareTest, ARangeOverSeveralAllocationsHasEachOfThem) {
  UserRange mine(*user_, 4 * kBytes);
  const uint64_t sizes[] = {2 * kMiB, kBytes, 2 * kMiB, 2 * kMiB};
  uint64_t offset = 0;
  for (const uint64_t bytes : sizes) {
    mine.Map(offset, bytes);
    offset += bytes;
  }
  mine.Allow(0, offset);
  // All but the last, from the middle of the first to the first byte of the third.
  auto pieces = Require(lender_->Share(0, mine.base() + kMiB, kMiB + kBytes + 1, 3));
  ASSERT_EQ(pieces.size(), 3u);
  uint64_t at = mine.base();
  for (size_t i = 0; i < 3; ++i) {
    const SharedPiece& piece = pieces[i];
    EXPECT_EQ(piece.address, at);
    EXPECT_EQ(piece.bytes, sizes[i]);
    auto imported = Require(peer_->Import(piece.fd, piece.bytes));
    auto range = peer_->Reserve(piece.bytes, 1, 0);
    auto mapping = Require(peer_->Map(**range, 0, *imported, Access::kReadWrite, {0}));
    ASSERT_TRUE(peer_->Fill(mapping->address(), static_cast<uint8_t>(7 + i), 1).ok());
    uint8_t seen = 0;
    ASSERT_TRUE(lender_->Copy(&seen, Pointer(at), 1).ok());
    EXPECT_EQ(seen, 7 + i);
    at += piece.bytes;
  }
}

TEST_P(VmmShareTest, MorePiecesThanAllowedAreRefusedAndNothingIsSpoilt) {
  UserRange mine(*user_, 4 * kBytes);
  for (uint64_t i = 0; i < 3; ++i) mine.Map(i * kBytes, kBytes);
  mine.Allow(0, 3 * kBytes);
  EXPECT_THAT(Refused(mine.base(), 3 * kBytes, StatusCode::kResourceExhausted, 2),
              HasSubstr("more than 2 allocations"));
  EXPECT_THAT(Refused(mine.base(), 1, StatusCode::kResourceExhausted, 0), HasSubstr("lend less"));
  auto pieces = Require(lender_->Share(0, mine.base(), 3 * kBytes, 3));
  for (const SharedPiece& piece : pieces) close(piece.fd);
}

TEST_P(VmmShareTest, TheDescriptorKeepsMemoryThatItsProgramHasFreed) {
  int fd = -1;
  {
    UserRange mine(*user_, kBytes);
    mine.Map(0, kBytes);
    mine.Allow(0, kBytes);
    ASSERT_TRUE(lender_->Fill(mine.base(), 0x44, kBytes).ok());
    auto pieces = Require(lender_->Share(0, mine.base(), kBytes, 1));
    fd = pieces.front().fd;
  }
  EXPECT_EQ(fake_->n_handles, 0) << "the driver holds it, too";
  auto imported = Require(peer_->Import(fd, kBytes));
  std::vector<uint8_t> seen(1);
  ASSERT_TRUE(imported->Read(kBytes - 1, absl::MakeSpan(seen)).ok());
  EXPECT_EQ(seen[0], 0x44);
}

TEST_P(VmmShareTest, RefusesWhatIsNotMappedMemoryOfADevice) {
  std::vector<char> host(4096);
  const std::string create = IsCuda() ? "allocate it with cuMemCreate and "
                                        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
                                      : "allocate it with hipMemCreate and "
                                        "hipMemHandleTypePosixFileDescriptor";
  EXPECT_THAT(Refused(reinterpret_cast<uint64_t>(host.data()), 4096, StatusCode::kInvalidArgument),
              AllOf(HasSubstr("host memory, or nothing is mapped"), HasSubstr(create),
                    HasSubstr("or copy it into the heap")));
  UserRange mine(*user_, 4 * kBytes);
  EXPECT_THAT(Refused(mine.base(), 1, StatusCode::kInvalidArgument),
              HasSubstr("nothing is mapped there"));
  // There is a hole after the first allocation.
  mine.Map(0, kBytes);
  mine.Allow(0, kBytes);
  mine.Map(2 * kBytes, kBytes);
  mine.Allow(2 * kBytes, kBytes);
  EXPECT_THAT(Refused(mine.base(), 3 * kBytes, StatusCode::kInvalidArgument),
              HasSubstr(absl::StrFormat("at %#x this process has no memory of a device",
                                        mine.base() + kBytes)));
  EXPECT_THAT(Refused(mine.base(), 0, StatusCode::kInvalidArgument),
              HasSubstr("no such range of memory"));
  EXPECT_THAT(Refused(mine.base(), ~uint64_t{0}, StatusCode::kInvalidArgument),
              HasSubstr("no such range of memory"));
  EXPECT_THAT(Refused(mine.base(), kBytes, StatusCode::kInvalidArgument, kMany, 2),
              HasSubstr("device 2 does not exist"));
}

TEST_P(VmmShareTest, RefusesWhatNoDeviceMayUseYet) {
  UserRange mine(*user_, kBytes);
  mine.Map(0, kBytes);
  EXPECT_THAT(Refused(mine.base(), 1, StatusCode::kInvalidArgument),
              HasSubstr(IsCuda() ? "no device may use it yet: call cuMemSetAccess first"
                                 : "or device 0 may not use it yet (hipMemSetAccess)"));
  mine.Allow(0, kBytes);
  auto pieces = Require(lender_->Share(0, mine.base(), 1, 1));
  close(pieces.front().fd);
}

TEST_P(VmmShareTest, RefusesWhatThePlainAllocatorGave) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  void* plain = nullptr;
  const char* const allocate = IsCuda() ? "cuMemAlloc_v2" : "hipMalloc";
  const char* const release = IsCuda() ? "cuMemFree_v2" : "hipFree";
  ASSERT_EQ(reinterpret_cast<int (*)(void**, size_t)>(dlsym(library, allocate))(&plain, kBytes), 0);
  const std::string text =
      Refused(reinterpret_cast<uint64_t>(plain) + 8, 8, StatusCode::kInvalidArgument);
  EXPECT_THAT(text, HasSubstr(IsCuda() ? "was not created by cuMemCreate (cudaMalloc, "
                                       : "was not created by hipMemCreate (hipMalloc, "));
  if (IsCuda()) {
    EXPECT_THAT(text, HasSubstr("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
  }
  EXPECT_EQ(reinterpret_cast<int (*)(void*)>(dlsym(library, release))(plain), 0);
}

TEST_P(VmmShareTest, RefusesWhatWasNotCreatedToBeLent) {
  UserRange mine(*user_, 4 * kBytes);
  hipMemAllocationProp none = Shareable(), fabric = Shareable(), host = Shareable();
  none.requestedHandleTypes = 0;
  fabric.requestedHandleTypes = kFabric;
  host.location.type = 3;
  mine.Map(0, kBytes, none);
  mine.Map(kBytes, kBytes, fabric);
  mine.Map(2 * kBytes, kBytes, host);
  mine.Map(3 * kBytes, kBytes, Shareable(1));
  mine.Allow(0, 4 * kBytes);
  const auto refused = [&](uint64_t offset) {
    return Refused(mine.base() + offset, 1, StatusCode::kInvalidArgument);
  };
  EXPECT_THAT(refused(0),
              AllOf(HasSubstr("was created for no shareable handle"),
                    HasSubstr(IsCuda() ? "not with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
                                       : "not with hipMemHandleTypePosixFileDescriptor")));
  EXPECT_THAT(refused(kBytes), HasSubstr("was created for fabric handles alone"));
  EXPECT_THAT(refused(2 * kBytes), HasSubstr("is not a device's (it is of location type 3)"));
  EXPECT_THAT(refused(3 * kBytes),
              HasSubstr("is on device 1, and this process lends memory of its device 0 alone"));
}

TEST_P(VmmShareTest, RefusesWhatIsOffTheGranularity) {
  if (IsCuda()) GTEST_SKIP() << "cuMemCreate gives no such memory";
  UserRange mine(*user_, 4 * kBytes);
  mine.Map(0, 4096);
  mine.Map(4096, kBytes);
  mine.Allow(0, kBytes + 4096);
  EXPECT_THAT(Refused(mine.base(), 1, StatusCode::kInvalidArgument),
              HasSubstr("not a multiple of them long"));
  EXPECT_THAT(Refused(mine.base() + 4096, 1, StatusCode::kInvalidArgument),
              HasSubstr("is not at a multiple of 2 MiB"));
}

TEST_P(VmmShareTest, RefusesToLendOnWhatAnotherHasLent) {
  auto memory = Require(peer_->Create(0, kBytes, false));
  auto fd = Require(memory->ExportFd(Access::kReadWrite));
  auto imported = Require(lender_->Import(fd, kBytes));
  auto range = lender_->Reserve(kBytes, 1, 0);
  auto mapping = Require(lender_->Map(**range, 0, *imported, Access::kReadWrite, {0}));
  EXPECT_THAT(Refused(mapping->address(), kBytes, StatusCode::kInvalidArgument),
              HasSubstr(IsCuda() ? "by another process" : "can be lent by its creator alone"));
}

TEST_P(VmmShareTest, AFailureAtAnyCallIsToldAndLeavesNothing) {
  for (const char* const call :
       {"MemGetAddressRange", "MemRetainAllocationHandle", "MemGetAllocationPropertiesFromHandle",
        "MemExportToShareableHandle"}) {
    UserRange mine(*user_, 2 * kBytes);
    mine.Map(0, kBytes);
    mine.Map(kBytes, kBytes);
    mine.Allow(0, 2 * kBytes);
    fake_->fail_call = Call(call);
    fake_->fail_error = 304;
    fake_->fail_after = 0;
    Refused(mine.base(), 2 * kBytes, StatusCode::kInternal);
    // A library that has the entry point, but says that it cannot.
    fake_->fail_error = hipErrorNotSupported;
    EXPECT_THAT(Refused(mine.base(), 2 * kBytes, StatusCode::kUnimplemented),
                HasSubstr("install a newer driver"));
    fake_->fail_call.clear();
  }
}

TEST_P(VmmShareTest, AFailureAtTheSecondDescriptorClosesTheFirst) {
  UserRange mine(*user_, 2 * kBytes);
  mine.Map(0, kBytes);
  mine.Map(kBytes, kBytes);
  mine.Allow(0, 2 * kBytes);
  fake_->fail_call = Call("MemExportToShareableHandle");
  fake_->fail_error = 304;
  fake_->fail_after = 1;
  Refused(mine.base(), 2 * kBytes, StatusCode::kInternal);
}

TEST_P(VmmShareTest, RefusesBeforeDescriptorsRunOut) {
  UserRange mine(*user_, kBytes);
  mine.Map(0, kBytes);
  mine.Allow(0, kBytes);
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(CountFds()) + 10;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::Status status = lender_->Share(0, mine.base(), kBytes, 1).status();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
}

TEST_P(VmmShareTest, AnOldLibraryOpensButCannotShare) {
  FakeGpu* const old = LoadFake(kOldLibrary);
  old->cuda_version = GetParam().version;
  old->hip_version = GetParam().version;
  auto driver = MustOpen(GetParam().kind, kOldLibrary);
  auto memory = driver->Create(0, kBytes, false);
  EXPECT_TRUE(memory.ok()) << memory.status();
  const absl::Status status = driver->Share(0, kBytes, kBytes, kMany).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("install a newer driver"));
}

}  // namespace
}  // namespace iris::driver
