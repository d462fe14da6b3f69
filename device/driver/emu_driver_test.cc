#include "device/driver/emu_driver.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/cc/require.h"

namespace iris::driver {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using ::testing::HasSubstr;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 4 * kMiB;

int CountFds() {
  int n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

// Returns true if a forked child can read the byte.
bool ChildCanRead(uint64_t address) {
  const pid_t child = fork();
  if (child == 0) {
    // A write of an unmapped byte to a pipe fails with EFAULT: no signal, so no noise from
    // sanitizers.
    int pipe_fds[2];
    if (pipe(pipe_fds) != 0) _exit(2);
    _exit(write(pipe_fds[1], reinterpret_cast<const void*>(address), 1) == 1 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool Readable(uint64_t address) {
  int pipe_fds[2];
  EXPECT_EQ(pipe(pipe_fds), 0);
  const bool ok = write(pipe_fds[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  return ok;
}

class EmuDriverTest : public ::testing::Test {
 protected:
  std::unique_ptr<PhysicalMemory> MustCreate(uint64_t bytes = kBytes, bool prealloc = false) {
    auto memory = irisd_->Create(0, bytes, prealloc);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  int MustExport(PhysicalMemory& memory, Access access = Access::kReadWrite) {
    auto fd = memory.ExportFd(access);
    EXPECT_TRUE(fd.ok()) << fd.status();
    return fd.value_or(-1);
  }

  std::unique_ptr<GpuDriver> irisd_ = CreateEmuDriver({2, 64 * kMiB});
  std::unique_ptr<GpuDriver> client_ = CreateEmuDriver({});
};

TEST_F(EmuDriverTest, NamesItsDevices) {
  ASSERT_EQ(irisd_->devices().size(), 2u);
  EXPECT_EQ(irisd_->devices()[1].uuid, "EMU-00000000-0000-0000-0000-000000000001");
  EXPECT_EQ(irisd_->devices()[1].index, 1u);
  EXPECT_EQ(irisd_->devices()[1].memory_bytes, 64 * kMiB);
  EXPECT_EQ(irisd_->devices()[1].granularity_bytes, kEmuGranularityBytes);
  EXPECT_TRUE(client_->devices().empty());
  EXPECT_EQ(client_->kind(), BackendKind::kEmu);
  EXPECT_EQ(client_->backend(), "emu");
}

TEST_F(EmuDriverTest, FreshMemoryIsZeroAndOfItsSize) {
  auto memory = MustCreate();
  EXPECT_EQ(memory->bytes(), kBytes);
  std::vector<uint8_t> bytes(4096, 1);
  ASSERT_TRUE(memory->Read(kBytes - 4096, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes, std::vector<uint8_t>(4096, 0));
}

TEST_F(EmuDriverTest, RefusesBadSizesAndDevices) {
  EXPECT_EQ(irisd_->Create(0, 0, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(irisd_->Create(0, kBytes + 1, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(irisd_->Create(0, ~0ull << 21, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(irisd_->Create(2, kBytes, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Create(0, kBytes, false).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EmuDriverTest, MemoryHasMode0600) {
  auto memory = MustCreate();
  const int fd = MustExport(*memory);
  struct stat info = {};
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  close(fd);
}

TEST_F(EmuDriverTest, NobodyCanResizeOrUnsealMemory) {
  auto memory = MustCreate();
  const int fd = MustExport(*memory);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_NE(ftruncate(fd, 2 * kBytes), 0);
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  close(fd);
}

TEST_F(EmuDriverTest, PreallocReservesEveryPage) {
  auto lazy = MustCreate();
  auto full = MustCreate(kBytes, true);
  struct stat lazy_info = {}, full_info = {};
  const int lazy_fd = MustExport(*lazy), full_fd = MustExport(*full);
  ASSERT_EQ(fstat(lazy_fd, &lazy_info), 0);
  ASSERT_EQ(fstat(full_fd, &full_info), 0);
  EXPECT_EQ(lazy_info.st_blocks, 0);
  EXPECT_GE(static_cast<uint64_t>(full_info.st_blocks) * 512, kBytes);
  close(lazy_fd);
  close(full_fd);
}

TEST_F(EmuDriverTest, ExportIsCloseOnExec) {
  auto memory = MustCreate();
  for (const Access access : {Access::kReadWrite, Access::kReadOnly}) {
    const int fd = MustExport(*memory, access);
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
  }
}

TEST_F(EmuDriverTest, ReadOnlyExportCannotBeMappedWritable) {
  auto memory = MustCreate();
  const int fd = MustExport(*memory, Access::kReadOnly);
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  auto imported = Require(client_->Import(fd, kBytes));
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  EXPECT_FALSE(client_->Map(*range, 0, *imported, Access::kReadWrite, {}).ok());
  EXPECT_TRUE(client_->Map(*range, 0, *imported, Access::kReadOnly, {}).ok());
}

TEST_F(EmuDriverTest, ImportedMemoryIsTheSameMemory) {
  auto memory = MustCreate();
  auto imported = Require(client_->Import(MustExport(*memory), kBytes));
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  auto mapping = Require(client_->Map(*range, 0, *imported, Access::kReadWrite, {}));
  ASSERT_TRUE(client_->Fill(mapping->address() + 100, 0xab, 50).ok());
  std::vector<uint8_t> bytes(50);
  ASSERT_TRUE(memory->Read(100, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes, std::vector<uint8_t>(50, 0xab));
}

TEST_F(EmuDriverTest, MemoryOutlivesItsCreator) {
  auto memory = MustCreate();
  auto imported = Require(client_->Import(MustExport(*memory), kBytes));
  memory.reset();
  std::vector<uint8_t> bytes(1, 1);
  EXPECT_TRUE(imported->Read(0, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes[0], 0);
}

TEST_F(EmuDriverTest, ImportedMemoryCannotBeExportedAgain) {
  auto memory = MustCreate();
  auto imported = Require(client_->Import(MustExport(*memory), kBytes));
  EXPECT_EQ(imported->ExportFd(Access::kReadWrite).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(EmuDriverTest, ImportRefusesAnotherSize) {
  auto memory = MustCreate();
  EXPECT_EQ(client_->Import(MustExport(*memory), 2 * kBytes).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Import(MustExport(*memory), 0).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EmuDriverTest, ImportRefusesWhatCouldBeTruncated) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  auto imported = client_->Import(fd, kBytes);
  EXPECT_EQ(imported.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(imported.status().message(), "resize")) << imported.status();
}

TEST_F(EmuDriverTest, ImportRefusesWhatCouldOnlyShrink) {
  const int fd = memfd_create("half sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(client_->Import(fd, kBytes).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EmuDriverTest, ImportRefusesOtherDescriptorsAndClosesThem) {
  const int before = CountFds();
  EXPECT_EQ(client_->Import(open("/dev/null", O_RDWR), kBytes).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Import(-1, kBytes).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CountFds(), before);
}

// Memory that another process of this program created, and the descriptor that it left.
class AdoptTest : public EmuDriverTest {
 protected:
  // A child that ends at once, as an irisd that is replaced does.
  int CreateInAnotherProcess() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    const pid_t child = fork();
    if (child == 0) {
      auto driver = CreateEmuDriver({2, 64 * kMiB});
      auto memory = driver->Create(1, kBytes, false);
      if (!memory.ok()) _exit(1);
      auto fd = (*memory)->ExportFd(Access::kReadWrite);
      const uint8_t data[4] = {1, 2, 3, 4};
      if (!fd.ok() || pwrite(*fd, data, 4, 4096) != 4) _exit(2);
      _exit(SendFd(sockets[1], *fd) ? 0 : 3);
    }
    const int fd = ReceiveFd(sockets[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    close(sockets[0]);
    close(sockets[1]);
    return fd;
  }

  // The text of the refusal. The descriptor is closed.
  std::string Refused(int fd, uint64_t bytes = kBytes, uint32_t device = 0) {
    const absl::Status status = irisd_->Adopt(device, fd, bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(fcntl(fd, F_GETFD), -1);
    return std::string(status.message());
  }

  // As Create makes it, but for what is asked.
  static int Memfd(int seals, mode_t mode = 0600) {
    const int fd = memfd_create("planted", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(fchmod(fd, mode), 0);
    EXPECT_EQ(ftruncate(fd, kBytes), 0);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  }
  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

 private:
  static bool SendFd(int socket, int fd) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    return sendmsg(socket, &message, 0) == 1;
  }
  static int ReceiveFd(int socket) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    EXPECT_EQ(recvmsg(socket, &message, 0), 1);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (header != nullptr) memcpy(&fd, CMSG_DATA(header), sizeof(int));
    return fd;
  }
};

TEST_F(AdoptTest, MemoryOfAnotherProcessIsAsIfCreatedHere) {
  auto adopted = Require(irisd_->Adopt(1, CreateInAnotherProcess(), kBytes));
  EXPECT_EQ(adopted->bytes(), kBytes);
  EXPECT_EQ(adopted->times().create, absl::ZeroDuration());
  std::vector<uint8_t> seen(4);
  ASSERT_TRUE(adopted->Read(4096, absl::MakeSpan(seen)).ok());
  EXPECT_EQ(seen, (std::vector<uint8_t>{1, 2, 3, 4}));

  // A client maps it, and its writes are seen here; a reader cannot write.
  auto imported = Require(client_->Import(MustExport(*adopted), kBytes));
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  auto mapping = Require(client_->Map(*range, 0, *imported, Access::kReadWrite, {}));
  EXPECT_EQ(*reinterpret_cast<uint8_t*>(mapping->address() + 4098), 3);
  ASSERT_TRUE(client_->Fill(mapping->address() + 4096, 9, 1).ok());
  ASSERT_TRUE(adopted->Read(4096, absl::MakeSpan(seen)).ok());
  EXPECT_EQ(seen, (std::vector<uint8_t>{9, 2, 3, 4}));
  const int reader = MustExport(*adopted, Access::kReadOnly);
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0), MAP_FAILED);
  close(reader);
}

TEST_F(AdoptTest, AdoptedMemoryCanBeAdoptedAgain) {
  auto first = Require(irisd_->Adopt(1, CreateInAnotherProcess(), kBytes));
  auto second = Require(CreateEmuDriver({2, 64 * kMiB})->Adopt(1, MustExport(*first), kBytes));
  first.reset();
  std::vector<uint8_t> seen(1);
  ASSERT_TRUE(second->Read(4099, absl::MakeSpan(seen)).ok());
  EXPECT_EQ(seen[0], 4);
}

TEST_F(AdoptTest, TheDescriptorDoesNotLeakIntoPrograms) {
  const int fd = CreateInAnotherProcess();
  ASSERT_EQ(fcntl(fd, F_SETFD, 0), 0);
  auto adopted = Require(irisd_->Adopt(0, fd, kBytes));
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
}

TEST_F(AdoptTest, RefusesAnotherSizeAndDevice) {
  EXPECT_THAT(Refused(CreateInAnotherProcess(), 2 * kBytes), HasSubstr("it has 4194304 bytes"));
  EXPECT_THAT(Refused(CreateInAnotherProcess(), kBytes / 2), HasSubstr("it has 4194304 bytes"));
  EXPECT_THAT(Refused(CreateInAnotherProcess(), kBytes - 1), HasSubstr("not a multiple"));
  EXPECT_THAT(Refused(CreateInAnotherProcess(), 0), HasSubstr("it has 4194304 bytes"));
  EXPECT_THAT(Refused(CreateInAnotherProcess(), kBytes, 2), HasSubstr("device 2 does not exist"));
}

TEST_F(AdoptTest, RefusesWhatIsNotSealedAsCreateSeals) {
  EXPECT_THAT(Refused(Memfd(0)), HasSubstr("could still resize it"));
  EXPECT_THAT(Refused(Memfd(F_SEAL_SHRINK | F_SEAL_SEAL)), HasSubstr("could still resize it"));
  EXPECT_THAT(Refused(Memfd(F_SEAL_SHRINK | F_SEAL_GROW)), HasSubstr("its seals are"));
  EXPECT_THAT(Refused(Memfd(kSeals | F_SEAL_WRITE)), HasSubstr("its seals are"));
}

TEST_F(AdoptTest, RefusesWhatOthersMayOpenAndWhatCannotBeWritten) {
  EXPECT_THAT(Refused(Memfd(kSeals, 0777)), HasSubstr("has mode 0777"));
  auto memory = MustCreate();
  EXPECT_THAT(Refused(MustExport(*memory, Access::kReadOnly)), HasSubstr("reading and writing"));
}

TEST_F(AdoptTest, RefusesOtherDescriptorsAndClosesThem) {
  const int before = CountFds();
  EXPECT_THAT(Refused(-1), HasSubstr("not a descriptor"));
  EXPECT_THAT(Refused(1 << 20), HasSubstr("Bad file descriptor"));
  EXPECT_THAT(Refused(open("/dev/null", O_RDWR)), HasSubstr("is not a memfd"));
  EXPECT_THAT(Refused(open("/proc/self/exe", O_RDONLY)), HasSubstr("is not a memfd"));
  char path[] = "/tmp/iris-adopt-XXXXXX";
  const int file = mkstemp(path);
  unlink(path);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  EXPECT_FALSE(irisd_->Adopt(0, file, kBytes).ok());
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  EXPECT_THAT(Refused(pipe_fds[0]), HasSubstr("is not a memfd"));
  EXPECT_THAT(Refused(pipe_fds[1]), HasSubstr("is not a memfd"));
  EXPECT_EQ(CountFds(), before);
}

TEST_F(EmuDriverTest, ReadOutsideIsRefused) {
  auto memory = MustCreate();
  std::vector<uint8_t> bytes(2);
  EXPECT_EQ(memory->Read(kBytes - 1, absl::MakeSpan(bytes)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->Read(~0ull, absl::MakeSpan(bytes)).code(), StatusCode::kInvalidArgument);
}

TEST_F(EmuDriverTest, ReservesAtTheWantedBaseWhenItIsFree) {
  // Find a free range first: which addresses are free depends on the sanitizer.
  auto probe = Require(client_->Reserve(kBytes, 1, 0));
  const uint64_t wanted = probe->base();
  probe.reset();
  auto range = Require(client_->Reserve(kBytes, 1, wanted));
  EXPECT_EQ(range->base(), wanted);
  EXPECT_EQ(range->bytes(), kBytes);
}

TEST_F(EmuDriverTest, ReserveNeverReplacesWhatIsThere) {
  auto first = Require(client_->Reserve(kBytes, 1, 0));
  auto second = Require(client_->Reserve(kBytes, 1, first->base()));
  EXPECT_NE(second->base(), first->base());
}

TEST_F(EmuDriverTest, ReservationsAreAligned) {
  std::vector<std::unique_ptr<Reservation>> ranges;
  for (int i = 0; i < 8; ++i) {
    auto range =
        Require(client_->Reserve(kEmuGranularityBytes * static_cast<uint64_t>(i + 1), 1, 0x1234));
    EXPECT_EQ(range->base() % kEmuGranularityBytes, 0u);
    ranges.push_back(std::move(range));
  }
}

TEST_F(EmuDriverTest, ReserveRefusesBadSizes) {
  EXPECT_EQ(client_->Reserve(0, 1, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Reserve(kBytes, 0, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Reserve(1ull << 60, 1u << 31, 0).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Reserve(4096, 1, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Reserve(~0ull << 21, 1, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(client_->Reserve(1ull << 60, 1, 0).ok());  // more than an address space
}

TEST_F(EmuDriverTest, ReservedButUnmappedMemoryIsNotAccessible) {
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  EXPECT_FALSE(Readable(range->base()));
}

TEST_F(EmuDriverTest, DestroyingAMappingKeepsTheReservation) {
  auto memory = MustCreate();
  auto range = Require(irisd_->Reserve(2 * kBytes, 1, 0));
  const uint64_t base = range->base();
  {
    auto mapping = Require(irisd_->Map(*range, kBytes, *memory, Access::kReadWrite, {}));
    EXPECT_EQ(mapping->address(), base + kBytes);
    EXPECT_EQ(mapping->bytes(), kBytes);
    EXPECT_TRUE(Readable(base + kBytes));
    EXPECT_FALSE(Readable(base));
  }
  EXPECT_FALSE(Readable(base + kBytes));
  auto other = Require(irisd_->Reserve(2 * kBytes, 1, base));
  EXPECT_NE(other->base(), base);
}

TEST_F(EmuDriverTest, DestroyingAReservationFreesTheRange) {
  auto range = Require(client_->Reserve(kBytes, 1, 0));
  const uint64_t base = range->base();
  range.reset();
  EXPECT_FALSE(Readable(base));
  auto again = Require(client_->Reserve(kBytes, 1, base));
  EXPECT_EQ(again->base(), base);
}

TEST_F(EmuDriverTest, MapRefusesToLeaveTheReservation) {
  auto memory = MustCreate();
  auto range = Require(irisd_->Reserve(kBytes, 1, 0));
  for (const uint64_t offset : {kEmuGranularityBytes, kBytes, uint64_t{4096}, ~uint64_t{0} << 21}) {
    EXPECT_EQ(irisd_->Map(*range, offset, *memory, Access::kReadWrite, {}).status().code(),
              StatusCode::kInvalidArgument)
        << offset;
  }
}

TEST_F(EmuDriverTest, MapRefusesToCrossFromOnePieceToTheNext) {
  auto memory = MustCreate();
  auto range = Require(irisd_->Reserve(kBytes, 3, 0));
  EXPECT_EQ(range->bytes(), 3 * kBytes);
  EXPECT_EQ(range->piece_bytes(), kBytes);
  EXPECT_EQ(irisd_->Map(*range, kBytes + kEmuGranularityBytes, *memory, Access::kReadWrite, {})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  auto mapping = Require(irisd_->Map(*range, 2 * kBytes, *memory, Access::kReadWrite, {}));
  EXPECT_TRUE(mapping->Allow(1).ok());
}

TEST_F(EmuDriverTest, AnyDeviceIsCurrentAndReachesItsPeers) {
  EXPECT_TRUE(client_->MakeCurrent(0).ok());
  EXPECT_TRUE(irisd_->CanAccessPeer(0, 1).ok());
  EXPECT_EQ(irisd_->CanAccessPeer(0, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(irisd_->DeviceMemory(0).status().code(), StatusCode::kUnimplemented);
}

TEST_F(EmuDriverTest, ForkedChildrenDoNotInheritTheWindow) {
  auto memory = MustCreate();
  auto range = irisd_->Reserve(kBytes, 1, 0);
  ASSERT_TRUE(range.ok());
  auto mapping = irisd_->Map(**range, 0, *memory, Access::kReadWrite, {});
  ASSERT_TRUE(mapping.ok());
  EXPECT_TRUE(Readable((*mapping)->address()));
  EXPECT_FALSE(ChildCanRead((*mapping)->address()));
}

TEST_F(EmuDriverTest, CopiesBetweenHostAndMappedMemory) {
  auto memory = MustCreate();
  auto range = Require(irisd_->Reserve(kBytes, 1, 0));
  auto mapping = Require(irisd_->Map(*range, 0, *memory, Access::kReadWrite, {}));
  const std::string text = "symmetric";
  void* const mapped = reinterpret_cast<void*>(mapping->address() + 4000);
  ASSERT_TRUE(irisd_->Copy(mapped, text.data(), text.size()).ok());
  std::string back(text.size(), ' ');
  ASSERT_TRUE(irisd_->Copy(back.data(), mapped, text.size()).ok());
  EXPECT_EQ(back, text);
}

TEST_F(EmuDriverTest, RegistersHostPagesAsThemselves) {
  alignas(4096) static uint8_t page[4096];
  EXPECT_EQ(Require(client_->RegisterHost(page, sizeof(page), Access::kReadOnly)), page);
  EXPECT_TRUE(client_->UnregisterHost(page).ok());
  EXPECT_FALSE(client_->RegisterHost(nullptr, 4096, Access::kReadOnly).ok());
}

TEST_F(EmuDriverTest, ALifeCycleLeaksNoDescriptor) {
  const int before = CountFds();
  {
    auto memory = MustCreate();
    auto imported = client_->Import(MustExport(*memory), kBytes);
    auto read_only = client_->Import(MustExport(*memory, Access::kReadOnly), kBytes);
    ASSERT_TRUE(imported.ok() && read_only.ok());
    auto range = Require(client_->Reserve(kBytes, 1, 0));
    ASSERT_TRUE(client_->Map(*range, 0, **imported, Access::kReadWrite, {}).ok());
  }
  EXPECT_EQ(CountFds(), before);
}

}  // namespace
}  // namespace iris::driver
