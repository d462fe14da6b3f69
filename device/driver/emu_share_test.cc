// Memory that a program has made of memfds, lent on the emulated platform.
#include "device/driver/emu_share.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "device/driver/emu_driver.h"
#include "tests/cc/require.h"

namespace iris::driver {
namespace {

using absl::StatusCode;
using iris::testing::Require;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 4 * kMiB;
constexpr uint64_t kGranule = kEmuGranularityBytes;
constexpr size_t kMany = 64;

int CountFds() {
  int n = 0;
  DIR* const dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

int Memfd(const char* name, uint64_t bytes, int seals = kResizeSeals,
          unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING) {
  const int fd = memfd_create(name, flags);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  }
  return fd;
}

// Address space of a test, aligned to the granularity.
class Space {
 public:
  explicit Space(uint64_t bytes)
      : map_bytes_(bytes + kGranule),
        map_(mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  0)) {
    EXPECT_NE(map_, MAP_FAILED);
  }
  ~Space() { munmap(map_, map_bytes_); }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  uint64_t base() const {
    return (reinterpret_cast<uint64_t>(map_) + kGranule - 1) / kGranule * kGranule;
  }
  uint8_t* At(uint64_t offset) const { return reinterpret_cast<uint8_t*>(base() + offset); }
  // Maps bytes of a file from `from` on.
  void Map(uint64_t offset, int fd, uint64_t bytes, uint64_t from = 0, int flags = MAP_SHARED,
           int protection = PROT_READ | PROT_WRITE) const {
    ASSERT_EQ(mmap(At(offset), bytes, protection, flags | MAP_FIXED, fd, static_cast<off_t>(from)),
              At(offset));
  }

 private:
  const uint64_t map_bytes_;
  void* const map_;
};

class EmuShareTest : public ::testing::Test {
 protected:
  // The text of the refusal, after which nothing more is open than before.
  std::string Refused(uint64_t address, uint64_t bytes,
                      StatusCode code = StatusCode::kInvalidArgument, size_t max_pieces = kMany) {
    const int fds = CountFds();
    const absl::Status status = lender_->Share(0, address, bytes, max_pieces).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(CountFds(), fds) << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("share ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("at 0x"));
    return std::string(status.message());
  }
  std::string Refused(const Space& space, uint64_t offset = 0, uint64_t bytes = kBytes) {
    return Refused(space.base() + offset, bytes);
  }

  const std::unique_ptr<GpuDriver> lender_ = CreateEmuDriver({});
  const std::unique_ptr<GpuDriver> peer_ = CreateEmuDriver({});
};

TEST_F(EmuShareTest, APeerHasTheMemoryThatAProgramMade) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes);
  const int before = CountFds();
  auto pieces = Require(lender_->Share(7, space.base() + 100, 50, 1));
  ASSERT_EQ(pieces.size(), 1u);
  const SharedPiece piece = pieces.front();
  EXPECT_NE(piece.fd, fd);
  EXPECT_EQ(fcntl(piece.fd, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(piece.address, space.base());
  EXPECT_EQ(piece.bytes, kBytes);
  EXPECT_EQ(CountFds(), before + 1);
  EXPECT_EQ(close(fd), 0) << "once it is shared, it need not stay open";

  auto imported = Require(peer_->Import(piece.fd, piece.bytes));
  auto range = Require(peer_->Reserve(kBytes, 1, 0));
  auto mapping = Require(peer_->Map(*range, 0, *imported, Access::kReadWrite, {}));
  uint8_t* const theirs = reinterpret_cast<uint8_t*>(mapping->address());
  *space.At(kBytes - 1) = 0x31;
  EXPECT_EQ(theirs[kBytes - 1], 0x31);
  theirs[77] = 0x32;
  EXPECT_EQ(*space.At(77), 0x32);
}

TEST_F(EmuShareTest, AnotherProcessWritesIntoIt) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes);
  *space.At(0) = 0x51;
  auto pieces = Require(lender_->Share(0, space.base(), kBytes, 1));
  const pid_t child = fork();
  if (child == 0) {
    munmap(space.At(0), kBytes);
    auto imported = peer_->Import(pieces.front().fd, kBytes);
    auto range = peer_->Reserve(kBytes, 1, 0);
    if (!imported.ok() || !range.ok()) _exit(1);
    auto mapping = peer_->Map(**range, 0, **imported, Access::kReadWrite, {});
    if (!mapping.ok()) _exit(2);
    uint8_t* const theirs = reinterpret_cast<uint8_t*>((*mapping)->address());
    if (theirs[0] != 0x51) _exit(3);
    theirs[kBytes - 1] = 0x52;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*space.At(kBytes - 1), 0x52);
  close(pieces.front().fd);
  close(fd);
}

TEST_F(EmuShareTest, ARangeOverSeveralFilesHasEachOfThem) {
  const Space space(4 * kBytes);
  const uint64_t sizes[] = {kGranule, kBytes, kGranule, kGranule};
  std::vector<int> fds;
  uint64_t offset = 0;
  for (const uint64_t bytes : sizes) {
    fds.push_back(Memfd("mine", bytes));
    space.Map(offset, fds.back(), bytes);
    offset += bytes;
  }
  auto pieces = Require(lender_->Share(0, space.base() + kMiB, kMiB + kBytes + 1, 3));
  ASSERT_EQ(pieces.size(), 3u);
  uint64_t at = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pieces[i].address, space.base() + at);
    EXPECT_EQ(pieces[i].bytes, sizes[i]);
    const uint8_t mark = static_cast<uint8_t>(60 + i);
    EXPECT_EQ(pwrite(pieces[i].fd, &mark, 1, 9), 1);
    EXPECT_EQ(*space.At(at + 9), mark);
    at += sizes[i];
    close(pieces[i].fd);
  }
  EXPECT_THAT(Refused(space.base(), offset, StatusCode::kResourceExhausted, 3),
              HasSubstr("more than 3 memfds"));
  for (const int fd : fds) close(fd);
}

TEST_F(EmuShareTest, APartThatIsMappedStandsForTheWholeFile) {
  const Space space(4 * kBytes);
  const int fd = Memfd("mine", 2 * kBytes);
  space.Map(kBytes, fd, kBytes, kBytes);  // the second half, where it would be
  auto pieces = Require(lender_->Share(0, space.base() + kBytes, kBytes, 1));
  EXPECT_EQ(pieces.front().address, space.base());
  EXPECT_EQ(pieces.front().bytes, 2 * kBytes);
  close(pieces.front().fd);
  close(fd);
}

TEST_F(EmuShareTest, AMappingInPartsIsOnePiece) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes);
  ASSERT_EQ(mprotect(space.At(kMiB), kMiB, PROT_READ), 0);  // three lines for the kernel
  auto pieces = Require(lender_->Share(0, space.base(), kBytes, 1));
  EXPECT_EQ(pieces.front().address, space.base());
  close(pieces.front().fd);
  close(fd);
}

TEST_F(EmuShareTest, MemoryOfTheHeapIsSharedToo) {
  auto memory = Require(CreateEmuDriver({1, 64 * kMiB})->Create(0, kBytes, false));
  auto range = lender_->Reserve(kBytes, 1, 0);
  auto mapping = Require(lender_->Map(**range, 0, *memory, Access::kReadWrite, {}));
  auto pieces = Require(lender_->Share(0, mapping->address(), kBytes, 1));
  close(pieces.front().fd);
}

TEST_F(EmuShareTest, RefusesMemoryWithoutAFile) {
  const Space space(kBytes);
  const std::string text = Refused(space);
  EXPECT_THAT(
      text, AllOf(HasSubstr("private memory of this process (malloc"),
                  HasSubstr("allocate it with memfd_create"), HasSubstr("or copy it into the heap"),
                  HasSubstr(absl::StrFormat("at %#x", space.base()))));
  const std::vector<char> heap(1 << 16);
  EXPECT_THAT(Refused(reinterpret_cast<uint64_t>(heap.data()), heap.size()), HasSubstr("malloc"));
  EXPECT_THAT(Refused(4096, 4096), HasSubstr("nothing is mapped there"));
  space.Map(0, -1, kBytes, 0, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_THAT(Refused(space), HasSubstr("not a memfd"));
  EXPECT_THAT(Refused(space, 0, 0), HasSubstr("no such range"));
  EXPECT_THAT(Refused(space, 0, ~uint64_t{0}), HasSubstr("no such range"));
}

TEST_F(EmuShareTest, RefusesOtherFiles) {
  const Space space(kBytes);
  for (const char* const folder : {"/tmp", "/dev/shm"}) {
    std::string path = absl::StrCat(folder, "/iris-share-XXXXXX");
    const int fd = mkstemp(path.data());
    if (fd < 0 && std::string(folder) == "/dev/shm") continue;
    ASSERT_GE(fd, 0) << path;
    ASSERT_EQ(ftruncate(fd, kBytes), 0);
    space.Map(0, fd, kBytes);
    EXPECT_THAT(Refused(space), AllOf(HasSubstr(absl::StrCat("there is ", path)),
                                      HasSubstr("not a memfd, whose size alone can be sealed")));
    unlink(path.c_str());
    close(fd);
  }
}

TEST_F(EmuShareTest, RefusesPrivateMappings) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes, 0, MAP_PRIVATE);
  EXPECT_THAT(Refused(space), HasSubstr("map it MAP_SHARED"));
  close(fd);
}

TEST_F(EmuShareTest, RefusesWhatCouldBeResizedAndSaysWhichSealsToAdd) {
  const Space space(kBytes);
  int fd = Memfd("mine", kBytes, 0);
  space.Map(0, fd, kBytes);
  EXPECT_THAT(Refused(space), HasSubstr(absl::StrFormat(
                                  "call fcntl(%d, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)", fd)));
  ASSERT_EQ(fcntl(fd, F_GET_SEALS), 0) << "seals were added";
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_THAT(Refused(space), HasSubstr("F_ADD_SEALS, F_SEAL_SHRINK)"));
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
  EXPECT_THAT(Refused(space), HasSubstr("takes no more seals"));
  close(fd);
  fd = Memfd("mine", kBytes, 0, MFD_CLOEXEC);
  space.Map(0, fd, kBytes);
  EXPECT_THAT(Refused(space), HasSubstr("create it with MFD_ALLOW_SEALING"));
  close(fd);
}

TEST_F(EmuShareTest, RefusesWhatPeersCouldNotWrite) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes);
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_THAT(Refused(space), HasSubstr("sealed against writing"));
  close(fd);

  const int whole = Memfd("mine", kBytes);
  const int reader = open(absl::StrCat("/proc/self/fd/", whole).c_str(), O_RDONLY | O_CLOEXEC);
  space.Map(0, whole, kBytes);
  close(whole);
  EXPECT_THAT(Refused(space), HasSubstr("open for reading alone"));
  close(reader);
}

TEST_F(EmuShareTest, RefusesWhatIsClosedAlready) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes), other = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes);
  close(fd);
  EXPECT_THAT(Refused(space), AllOf(HasSubstr("/memfd:mine"),
                                    HasSubstr("keep it open until the memory is registered")));
  close(other);
}

TEST_F(EmuShareTest, RefusesSizesOffTheGranularity) {
  const Space space(4 * kBytes);
  int fd = Memfd("mine", kBytes + 4096);
  space.Map(0, fd, kBytes);
  EXPECT_THAT(Refused(space), HasSubstr("of 4198400 bytes, which is not a positive multiple"));
  close(fd);
}

TEST_F(EmuShareTest, SharesWhatIsMappedAtAnyPage) {
  const Space space(4 * kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(4096, fd, kBytes);
  const auto pieces = Require(lender_->Share(0, space.base() + 8192, 1, 1));
  EXPECT_EQ(pieces.front().address, space.base() + 4096);
  EXPECT_EQ(pieces.front().bytes, kBytes);
  close(pieces.front().fd);
  close(fd);
}

TEST_F(EmuShareTest, RefusesMappingsThatEndBeforeTheRange) {
  const Space space(4 * kBytes);
  const int fd = Memfd("first", kBytes), next = Memfd("second", 2 * kBytes);
  // Its second half is not there, and something else is.
  space.Map(0, fd, kGranule);
  space.Map(kGranule, next, 2 * kBytes);
  EXPECT_THAT(Refused(space), AllOf(HasSubstr("/memfd:first"), HasSubstr("has ended"),
                                    HasSubstr(absl::StrFormat("at %#x", space.base() + kGranule))));
  // The other one's bytes where its own would be, and a private copy of its own.
  space.Map(kGranule, next, kGranule, kGranule);
  EXPECT_THAT(Refused(space), HasSubstr("has ended"));
  space.Map(kGranule, fd, kGranule, kGranule, MAP_PRIVATE);
  EXPECT_THAT(Refused(space), HasSubstr("has ended"));
  // The file twice: at one place it would have to be at two.
  space.Map(kGranule, fd, kGranule);
  EXPECT_THAT(Refused(space), HasSubstr("has ended"));
  // More than the file has.
  space.Map(0, fd, 2 * kBytes);
  EXPECT_THAT(Refused(space, kBytes, kBytes), HasSubstr("map no more than the file has"));
  // The next one from its middle on.
  space.Map(0, fd, kBytes);
  space.Map(kBytes, next, kBytes, kBytes);
  EXPECT_THAT(Refused(space, 0, 2 * kBytes), HasSubstr("from its byte 4194304 on"));
  // Nothing is mapped after it.
  ASSERT_EQ(munmap(space.At(kBytes), kBytes), 0);
  EXPECT_THAT(Refused(space, 0, 2 * kBytes), HasSubstr("nothing is mapped there"));
  space.Map(kBytes, -1, kBytes, 0, MAP_PRIVATE | MAP_ANONYMOUS);
  close(fd);
  close(next);
}

TEST_F(EmuShareTest, SaysThatDescriptorsHaveRunOut) {
  const Space space(kBytes);
  const int fd = Memfd("mine", kBytes);
  space.Map(0, fd, kBytes);
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<absl::StatusCode> codes;
  for (rlim_t spare = 0; spare < 3; ++spare) {
    // With 0, the maps cannot be read; with 1, there is no descriptor for the duplicate.
    const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(lowest);
    struct rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(lowest) + spare;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    auto pieces = lender_->Share(0, space.base(), kBytes, 1);
    setrlimit(RLIMIT_NOFILE, &before);
    codes.push_back(pieces.status().code());
    if (pieces.ok()) close(pieces->front().fd);
  }
  EXPECT_EQ(codes,
            (std::vector<absl::StatusCode>{StatusCode::kResourceExhausted,
                                           StatusCode::kResourceExhausted, StatusCode::kOk}));
  close(fd);
}

}  // namespace
}  // namespace iris::driver
