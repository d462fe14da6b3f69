#include "server/host/registered_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

namespace iris::server {
namespace {

using driver::Access;
using driver::BackendKind;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 2 << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

wire::UniqueFd Memfd(uint64_t bytes = kBytes, int seals = kSeals) {
  wire::UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

int n_closed = 0;

std::function<void(wire::UniqueFd)> CountClosed() {
  n_closed = 0;
  return [](const wire::UniqueFd& fd) { n_closed += fd.valid() ? 1 : 0; };
}

TEST(RegisteredMemoryTest, IsLentAndRead) {
  wire::UniqueFd fd = Memfd();
  ASSERT_EQ(pwrite(fd.get(), "mine", 4, 100), 4);
  auto memory = KeepRegistered(BackendKind::kEmu, fd, kBytes, CountClosed());
  ASSERT_TRUE(memory.ok()) << memory.status();
  fd.Reset();
  EXPECT_EQ((*memory)->bytes(), kBytes);
  std::string seen(4, '\0');
  const auto span = absl::MakeSpan(reinterpret_cast<uint8_t*>(seen.data()), seen.size());
  ASSERT_TRUE((*memory)->Read(100, span).ok());
  EXPECT_EQ(seen, "mine");
  EXPECT_EQ((*memory)->Read(kBytes - 3, span).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*memory)->Read(~uint64_t{0}, span).code(), absl::StatusCode::kInvalidArgument);
  for (const Access access : {Access::kReadWrite, Access::kReadOnly}) {
    const auto lent = (*memory)->ExportFd(access);
    ASSERT_TRUE(lent.ok()) << lent.status();
    const wire::UniqueFd owned(*lent);
    EXPECT_EQ(fcntl(*lent, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(fcntl(*lent, F_GETFL) & O_ACCMODE, access == Access::kReadOnly ? O_RDONLY : O_RDWR);
  }
  EXPECT_EQ(n_closed, 0);
  memory->reset();
  EXPECT_EQ(n_closed, 1) << "whoever gave it is asked to close it";
}

TEST(RegisteredMemoryTest, WhatCouldChangeOrWaitIsRefused) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const wire::UniqueFd write_end(pipe_ends[1]);
  const auto refused = [](const wire::UniqueFd& fd, const char* why) {
    const auto memory = KeepRegistered(BackendKind::kEmu, fd, kBytes, CountClosed());
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(memory.status().message()), HasSubstr(why));
  };
  const char* const not_sealed = "no memfd that is sealed against resizing";
  refused(wire::UniqueFd(pipe_ends[0]), not_sealed);
  refused(wire::UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), not_sealed);
  refused(wire::UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), not_sealed);
  refused(wire::UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), not_sealed);
  refused(wire::UniqueFd(), not_sealed);
  refused(Memfd(kBytes, F_SEAL_GROW), not_sealed);
  refused(Memfd(kBytes, F_SEAL_SHRINK), not_sealed);
  refused(Memfd(kBytes - 4096), "has 2.00 MiB (2093056 bytes), and the request says 2 MiB");
}

// irisd cannot look into a GPU's memory: only importing shows what it is.
TEST(RegisteredMemoryTest, OfGpusIsLentAsItIs) {
  const wire::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  auto memory = KeepRegistered(driver::kBackendKinds[1], null, kBytes, CountClosed());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto lent = (*memory)->ExportFd(Access::kReadOnly);
  ASSERT_TRUE(lent.ok()) << lent.status();
  const wire::UniqueFd owned(*lent);
  uint8_t byte = 0;
  EXPECT_EQ((*memory)->Read(0, absl::MakeSpan(&byte, 1)).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace iris::server
