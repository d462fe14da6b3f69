#include "client/membership/window.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "device/driver/emu_driver.h"

namespace iris::internal {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGranule = driver::kEmuGranularityBytes;

// Plays irisd: creates memory and pages, hands out descriptors.
class WindowTest : public ::testing::Test {
 protected:
  wire::UniqueFd NewSegment(uint64_t bytes = kGranule) {
    auto memory = irisd_->Create(0, bytes, false);
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    return Export();
  }
  // The segment made last, again.
  wire::UniqueFd Export() {
    return wire::UniqueFd(memory_->ExportFd(driver::Access::kReadWrite).value());
  }
  wire::UniqueFd NewPage(bool seal = true, off_t bytes = wire::kPageBytes) {
    wire::UniqueFd fd(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    if (seal) {
      EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    }
    return fd;
  }
  static wire::UniqueFd Dup(const wire::UniqueFd& fd) {
    return wire::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  }
  WindowSpec Spec(uint32_t n_ranks = 2) {
    return {{1, ++job_id_, 1}, "emu", n_ranks, 4 * kGranule, 0};
  }

  std::unique_ptr<driver::GpuDriver> irisd_ = driver::CreateEmuDriver({1, 1ull << 30});
  std::unique_ptr<driver::PhysicalMemory> memory_;
  static inline uint64_t job_id_ = 0;
};

uint8_t& Byte(uint64_t address) { return *reinterpret_cast<uint8_t*>(address); }

TEST_F(WindowTest, PeersLieAStrideApart) {
  auto window = Window::Acquire(Spec());
  ASSERT_TRUE(window.ok()) << window.status();
  EXPECT_EQ((*window)->address(1, 5), (*window)->base() + 4 * kGranule + 5);
}

TEST_F(WindowTest, MappedMemoryIsTheSegment) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapSegment(0, {7, 1, 0, kGranule}, NewSegment()).ok());
  Byte(window->address(1, 100)) = 42;
  uint8_t seen = 0;
  ASSERT_TRUE(memory_->Read(100, absl::MakeSpan(&seen, 1)).ok());
  EXPECT_EQ(seen, 42);
}

TEST_F(WindowTest, SecondSegmentContinuesTheHeap) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapSegment(0, {1, 0, 0, kGranule}, NewSegment()).ok());
  ASSERT_TRUE(window->MapSegment(0, {2, 0, kGranule, kGranule}, NewSegment()).ok());
  Byte(window->address(0, kGranule - 1)) = 1;
  Byte(window->address(0, kGranule)) = 2;
  uint8_t seen = 0;
  ASSERT_TRUE(memory_->Read(0, absl::MakeSpan(&seen, 1)).ok());
  EXPECT_EQ(seen, 2);
}

TEST_F(WindowTest, RanksOfOneProcessShareTheWindow) {
  const WindowSpec spec = Spec();
  auto first = *Window::Acquire(spec);
  auto second = *Window::Acquire(spec);
  EXPECT_EQ(first.get(), second.get());
}

TEST_F(WindowTest, OtherJobsAndEpochsHaveOtherWindows) {
  WindowSpec spec = Spec();
  auto first = *Window::Acquire(spec);
  spec.key.epoch++;
  auto second = *Window::Acquire(spec);
  spec.key.daemon_id++;
  auto third = *Window::Acquire(spec);
  EXPECT_NE(first.get(), second.get());
  EXPECT_NE(second.get(), third.get());
}

TEST_F(WindowTest, SharedSegmentStaysUntilItsLastHolderLetsGo) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapSegment(0, {7, 0, 0, kGranule}, NewSegment()).ok());
  ASSERT_TRUE(window->MapSegment(1, {7, 0, 0, kGranule}, Export()).ok());
  EXPECT_EQ(window->n_segments(), 1u);
  window->UnmapAll(0);
  Byte(window->address(0, 0)) = 3;  // still mapped
  EXPECT_EQ(window->n_segments(), 1u);
  window->UnmapAll(1);
  EXPECT_EQ(window->n_segments(), 0u);
}

TEST_F(WindowTest, MappingAgainIsNoError) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapSegment(0, {7, 0, 0, kGranule}, NewSegment()).ok());
  Byte(window->address(0, 0)) = 9;
  ASSERT_TRUE(window->MapSegment(0, {7, 0, 0, kGranule}, wire::UniqueFd()).ok());
  EXPECT_EQ(Byte(window->address(0, 0)), 9);
  window->UnmapSegment(0, 7);
  EXPECT_EQ(window->n_segments(), 0u);
}

// irisd has given the place again. A late segment finds it taken.
TEST_F(WindowTest, ANewerSegmentTakesThePlaceOfAnOlderOne) {
  auto window = Window::Acquire(Spec());
  ASSERT_TRUE(window.ok()) << window.status();
  ASSERT_TRUE((*window)->MapSegment(0, {7, 1, 0, 2 * kGranule}, NewSegment(2 * kGranule)).ok());
  auto* const byte = reinterpret_cast<uint8_t*>((*window)->address(1, kGranule));
  *byte = 7;
  ASSERT_TRUE((*window)->MapSegment(1, {9, 1, kGranule, kGranule}, NewSegment()).ok());
  EXPECT_EQ(*byte, 0) << "it is the older one's";
  EXPECT_EQ((*window)->n_segments(), 1u);
  *byte = 9;
  const absl::Status late =
      (*window)->MapSegment(0, {8, 1, 0, 2 * kGranule}, NewSegment(2 * kGranule));
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted) << late;
  EXPECT_EQ(*byte, 9);
  // Another rank's heap has its own place at the same offset.
  EXPECT_TRUE((*window)->MapSegment(0, {6, 0, kGranule, kGranule}, NewSegment()).ok());
  EXPECT_EQ((*window)->n_segments(), 2u);
}

TEST_F(WindowTest, UnmappingWhatIsNotMappedDoesNothing) {
  auto window = *Window::Acquire(Spec());
  window->UnmapSegment(0, 99);
  window->UnmapAll(0);
}

TEST_F(WindowTest, UnmappedRangeIsUsableAgain) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapSegment(0, {7, 0, 0, kGranule}, NewSegment()).ok());
  window->UnmapSegment(0, 7);
  ASSERT_TRUE(window->MapSegment(0, {8, 0, 0, kGranule}, NewSegment()).ok());
  Byte(window->address(0, 0)) = 1;
}

TEST_F(WindowTest, SegmentOutsideItsRanksRangeIsRefused) {
  auto window = *Window::Acquire(Spec());
  for (const Segment& bad : {Segment{1, 2, 0, kGranule},                 // rank
                             Segment{1, 0, 4 * kGranule, kGranule},      // offset
                             Segment{1, 0, 3 * kGranule, 2 * kGranule},  // end
                             Segment{1, 0, kGranule, ~0ull}}) {
    EXPECT_EQ(window->MapSegment(0, bad, NewSegment()).code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(window->n_segments(), 0u);
}

TEST_F(WindowTest, WrongDescriptorIsNamed) {
  auto window = *Window::Acquire(Spec());
  const absl::Status status = window->MapSegment(0, {7, 1, 0, kGranule}, NewPage());
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("map segment 7"));
}

TEST_F(WindowTest, UnknownBackendIsUnimplemented) {
  WindowSpec spec = Spec();
  spec.backend = "abacus";
  EXPECT_EQ(Window::Acquire(spec).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(WindowTest, AddressSpaceThatCannotBeHad) {
  WindowSpec spec = Spec(64);
  spec.stride_bytes = 1ull << 45;
  const absl::Status status = Window::Acquire(spec).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("smaller max_heap_bytes"));
}

TEST_F(WindowTest, WantedBaseIsHonoured) {
  WindowSpec spec = Spec();
  // A range that is free: where a window of the same size was just now.
  spec.wanted_base = (*Window::Acquire(Spec()))->base();
  auto window = *Window::Acquire(spec);
  EXPECT_EQ(window->base(), spec.wanted_base);
}

TEST_F(WindowTest, TakenBaseMovesTheWindowAndReplacesNothing) {
  auto first = *Window::Acquire(Spec());
  ASSERT_TRUE(first->MapSegment(0, {7, 0, 0, kGranule}, NewSegment()).ok());
  Byte(first->address(0, 0)) = 5;
  WindowSpec spec = Spec();
  spec.wanted_base = first->base();
  auto second = *Window::Acquire(spec);
  EXPECT_NE(second->base(), first->base());
  EXPECT_EQ(Byte(first->address(0, 0)), 5);
}

TEST_F(WindowTest, OwnPageIsWritable) {
  auto window = *Window::Acquire(Spec());
  const wire::UniqueFd page = NewPage();
  ASSERT_TRUE(window->MapControlPage(0, Dup(page), true).ok());
  window->control_page(0)->words[3] = 11;
  uint32_t seen = 0;
  ASSERT_EQ(pread(page.get(), &seen, sizeof(seen), 3 * sizeof(uint32_t)),
            static_cast<ssize_t>(sizeof(seen)));
  EXPECT_EQ(seen, 11u);
}

TEST_F(WindowTest, PeersPageCannotBeWritten) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapControlPage(1, NewPage(), false).ok());
  EXPECT_DEATH(window->control_page(1)->words[0] = 1, "");
}

TEST_F(WindowTest, PageBecomesWritableInPlaceForARankOfTheSameProcess) {
  auto window = *Window::Acquire(Spec());
  const wire::UniqueFd page = NewPage();
  ASSERT_TRUE(window->MapControlPage(1, Dup(page), false).ok());
  wire::ControlPage* const before = window->control_page(1);
  ASSERT_TRUE(window->MapControlPage(1, Dup(page), true).ok());
  before->words[0] = 8;
  // A peer that maps it again takes nothing away.
  ASSERT_TRUE(window->MapControlPage(1, Dup(page), false).ok());
  before->words[0] = 9;
  EXPECT_EQ(window->control_page(1), before);
}

TEST_F(WindowTest, StatusPageIsReadAndGivesTheAbortWord) {
  auto window = *Window::Acquire(Spec());
  const wire::UniqueFd page = NewPage();
  ASSERT_TRUE(window->MapStatusPage(Dup(page)).ok());
  EXPECT_EQ(*window->abort_word(), 0u);
  const uint32_t one = 1;
  ASSERT_EQ(pwrite(page.get(), &one, sizeof(one), offsetof(wire::StatusPage, abort)),
            static_cast<ssize_t>(sizeof(one)));
  EXPECT_EQ(*window->abort_word(), 1u);
  EXPECT_TRUE(window->status().aborted());
}

TEST_F(WindowTest, KernelsWriteOwnPagesAlone) {
  auto window = *Window::Acquire(Spec());
  const wire::UniqueFd page = NewPage();
  ASSERT_TRUE(window->MapControlPage(0, NewPage(), false).ok());
  ASSERT_TRUE(window->MapControlPage(1, Dup(page), true).ok());
  EXPECT_EQ(window->kernel_waits(0), nullptr);
  window->kernel_waits(1)[7].seen = 5;
  wire::ControlPage seen = {};
  ASSERT_EQ(pread(page.get(), &seen, sizeof(seen), 0), static_cast<ssize_t>(sizeof(seen)));
  EXPECT_EQ(seen.kernel_waits[7].seen, 5u);
}

TEST_F(WindowTest, PageThatCouldShrinkIsRefused) {
  auto window = *Window::Acquire(Spec());
  EXPECT_FALSE(window->MapStatusPage(NewPage(/*seal=*/false)).ok());
  EXPECT_FALSE(window->MapControlPage(0, NewPage(true, 100), true).ok());
  EXPECT_FALSE(window->MapControlPage(5, NewPage(), true).ok());
}

TEST_F(WindowTest, NothingIsInheritedByAForkedChild) {
  auto window = *Window::Acquire(Spec());
  ASSERT_TRUE(window->MapSegment(0, {7, 0, 0, kGranule}, NewSegment()).ok());
  ASSERT_TRUE(window->MapControlPage(0, NewPage(), true).ok());
  ASSERT_TRUE(window->MapStatusPage(NewPage()).ok());
  const pid_t child = fork();
  if (child == 0) {
    // msync answers ENOMEM for what is not mapped at all.
    bool gone = true;
    for (const uint64_t at : {window->address(0, 0), window->address(1, 0),
                              reinterpret_cast<uint64_t>(window->control_page(0)),
                              reinterpret_cast<uint64_t>(window->control_page(1))}) {
      gone = gone && msync(reinterpret_cast<void*>(at), wire::kPageBytes, MS_ASYNC) != 0;
    }
    _exit(gone ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(WindowTest, EverythingIsUnmappedAndClosedAtTheEnd) {
  const auto count_maps = [] {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find("iris-emu") != line.npos;
    return n;
  };
  const auto next_fd = [] { return wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)).get(); };
  const int maps_before = count_maps();
  wire::UniqueFd first_segment = NewSegment();
  wire::UniqueFd page = NewPage();
  const int fd_before = next_fd();
  {
    auto window = *Window::Acquire(Spec());
    ASSERT_TRUE(window->MapSegment(0, {1, 0, 0, kGranule}, Dup(first_segment)).ok());
    ASSERT_TRUE(window->MapSegment(0, {2, 1, 0, kGranule}, Dup(first_segment)).ok());
    ASSERT_TRUE(window->MapControlPage(0, Dup(page), true).ok());
    EXPECT_EQ(count_maps(), maps_before + 2);
  }
  EXPECT_EQ(count_maps(), maps_before);
  EXPECT_EQ(next_fd(), fd_before);
}

}  // namespace
}  // namespace iris::internal
