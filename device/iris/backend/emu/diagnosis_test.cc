// Tests the report for a kernel that touches missing memory, and which handler gets the signal.
#include "iris/backend/emu/diagnosis.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace emu {
namespace {

using ::testing::ContainsRegex;
using ::testing::KilledBySignal;
using ::testing::Not;

void ExportedNowhere(uint32_t* p) { *p = 1; }
template <typename T>
void Templated(T* p) {
  *p = 1;
}

TEST(NameOfFunctionTest, FindsStaticFunctionsInTheFile) {
  char name[256];
  NameOfFunction(reinterpret_cast<const void*>(&ExportedNowhere), name, sizeof(name));
  EXPECT_STREQ(name, "iris::backend::emu::ExportedNowhere");
  NameOfFunction(reinterpret_cast<const void*>(&Templated<float>), name, sizeof(name));
  EXPECT_STREQ(name, "iris::backend::emu::Templated<>");
  char cut[8];
  NameOfFunction(reinterpret_cast<const void*>(&ExportedNowhere), cut, sizeof(cut));
  EXPECT_LT(strlen(cut), sizeof(cut));
  // This function is a library's.
  NameOfFunction(reinterpret_cast<const void*>(&malloc), name, sizeof(name));
  EXPECT_THAT(name, testing::HasSubstr("malloc"));
}

#if !defined(IRIS_ASAN) && !defined(IRIS_TSAN)

class FaultTest : public testing::Test {
 protected:
  // A forked child has no workers: start a new process instead.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Has the fields that the emulator needs of a DeviceContext.
struct Context {
  uint32_t rank = 3;
  uint32_t n_ranks = 4;
  uint64_t base = 0x10000000;
  uint64_t stride_bytes = 0x1000000;
  const HeapMap* heap_map = nullptr;
  uint32_t first_mapped = 0;
  uint32_t n_mapped = 0;
};

struct Inside {
  uint32_t other;
  Context context;
};

void WriteAt(Context, uint64_t address) {
  if (BlockIndex() == 1 && ThreadIndex() == 2) *reinterpret_cast<volatile uint8_t*>(address) = 1;
}
void ReadAt(uint64_t address) {
  asm("" : "+r"(address));  // or the optimizer sees that nothing is there
  (void)*reinterpret_cast<volatile uint8_t*>(address);
}
void ReadInside(Inside, uint64_t address) { (void)*reinterpret_cast<volatile uint8_t*>(address); }

TEST_F(FaultTest, AFaultIsToldAndHasTheDefaultAction) {
  EXPECT_EXIT(RunKernel({2, 4, 0}, &WriteAt, Context(), uint64_t{16}), KilledBySignal(SIGSEGV),
              ContainsRegex("iris: rank 3: kernel iris::backend::emu::WriteAt, block 1, thread 2: "
                            "it wrote to 0x10, where no memory is mapped.*a null pointer plus 16"));
}

TEST_F(FaultTest, ReadsAndKernelsWithoutAContext) {
  EXPECT_EXIT(RunKernel({1, 1, 0}, &ReadAt, uint64_t{16}), KilledBySignal(SIGSEGV),
              ContainsRegex("iris: kernel iris::backend::emu::ReadAt, block 0, thread 0: it read "
                            "0x10, where"));
}

TEST_F(FaultTest, AContextInsideAnArgumentAndAPlaceBehindTheHeaps) {
  EXPECT_DEATH(RunKernel({1, 1, 0}, &ReadInside, Inside(), uint64_t{0x14000010}),
               "iris: rank 3: .*16 bytes behind the last heap");
}

TEST_F(FaultTest, AnAddressThatNoMemoryCanHave) {
  EXPECT_DEATH(RunKernel({1, 1, 0}, &ReadAt, uint64_t{0xdead000000000000}),
               "an address that no memory can have");
}

TEST_F(FaultTest, AFileThatIsTooShort) {
  const int descriptor = memfd_create("iris-diagnosis-test", 0);
  ASSERT_GE(descriptor, 0);
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, descriptor, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EXIT(RunKernel({1, 1, 0}, &ReadAt, reinterpret_cast<uint64_t>(mapped)),
              KilledBySignal(SIGBUS), "no memory is behind 0x");
  munmap(mapped, 4096);
  close(descriptor);
}

void EndByEarlierHandler(int) {
  const char text[] = "the program's own handler";
  if (write(STDERR_FILENO, text, sizeof(text)) < 0) _exit(1);
  _exit(7);
}

TEST_F(FaultTest, AHandlerThatWasThereBeforeIsCalledBehindTheText) {
  EXPECT_EXIT(
      {
        signal(SIGSEGV, &EndByEarlierHandler);
        RunKernel({1, 1, 0}, &ReadAt, uint64_t{16});
      },
      testing::ExitedWithCode(7), "it read 0x10.*the program's own handler");
}

void Nothing() {}

TEST_F(FaultTest, AFaultOutsideOfKernelsIsNotTheEmulators) {
  EXPECT_EXIT(
      {
        RunKernel({1, 1, 0}, &Nothing);
        ReadAt(16);
      },
      KilledBySignal(SIGSEGV), Not(ContainsRegex("iris:")));
  EXPECT_EXIT(
      {
        RunKernel({1, 1, 0}, &Nothing);
        kill(getpid(), SIGSEGV);
        pause();
      },
      KilledBySignal(SIGSEGV), Not(ContainsRegex("iris:")));
}

#endif

}  // namespace
}  // namespace emu
}  // namespace iris::backend
