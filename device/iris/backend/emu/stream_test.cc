// Launches, streams, copies and device memory, as the host sees them.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

void Nothing() {}

Stream NewStream() {
  Stream stream;
  EXPECT_TRUE(Stream::Create(&stream).ok());
  return stream;
}

void ExpectRefused(const LaunchConfig& config, const char* reason) {
  Stream stream = NewStream();
  const Result result = Launch(config, stream, &Nothing);
  EXPECT_EQ(result.code, StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(result.what).find(reason), std::string::npos) << result.what;
  EXPECT_TRUE(stream.Idle());
  // The stream is as good as before.
  EXPECT_TRUE(Launch({1, 1, 0}, stream, &Nothing).ok());
  EXPECT_TRUE(stream.Synchronize().ok());
}

TEST(LaunchErrorTest, NoBlocks) { ExpectRefused({0, 1, 0}, "0 blocks"); }
TEST(LaunchErrorTest, NoThreads) { ExpectRefused({1, 0, 0}, "0 threads"); }
TEST(LaunchErrorTest, TooManyThreads) { ExpectRefused({1, 1025, 0}, "too many threads"); }
TEST(LaunchErrorTest, FarTooManyThreads) { ExpectRefused({1, 0xffffffff, 0}, "too many threads"); }
TEST(LaunchErrorTest, TooMuchSharedMemory) {
  ExpectRefused({1, 1, Traits::kMaxDynamicSharedBytes + 1}, "too much shared memory");
}
TEST(LaunchErrorTest, HugeSharedMemory) { ExpectRefused({1, 1, 0xffffffff}, "too much shared"); }

TEST(LaunchErrorTest, TheLargestConfigurationsAreAccepted) {
  RunKernel({1, kMaxBlockThreads, Traits::kMaxDynamicSharedBytes}, &Nothing);
}

TEST(LaunchErrorTest, NullKernel) {
  Stream stream = NewStream();
  void (*kernel)() = nullptr;
  EXPECT_EQ(Launch({1, 1, 0}, stream, kernel).code, StatusCode::kInvalidArgument);
}

TEST(LaunchErrorTest, StreamThatWasNotCreated) {
  Stream stream;
  EXPECT_EQ(Launch({1, 1, 0}, stream, &Nothing).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(stream.Synchronize().code, StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream.Idle());
}

TEST(LaunchErrorTest, FromInsideAKernel) {
  struct Answers {
    StatusCode launch, synchronize, copy;
  };
  Stream inner = NewStream();
  Answers answers = {};
  RunKernel(
      {1, 1, 0},
      +[](Stream* stream, Answers* out) {
        out->launch = Launch({1, 1, 0}, *stream, &Nothing).code;
        out->synchronize = stream->Synchronize().code;
        out->copy = FillAsync(out, 0, 0, *stream).code;
      },
      &inner, &answers);
  EXPECT_EQ(answers.launch, StatusCode::kFailedPrecondition);
  EXPECT_EQ(answers.synchronize, StatusCode::kFailedPrecondition);
  EXPECT_EQ(answers.copy, StatusCode::kFailedPrecondition);
}

#ifndef IRIS_TSAN  // ThreadSanitizer ends a child that was forked from a program with threads
TEST(LaunchErrorTest, InAForkedChild) {
  Stream stream = NewStream();
  Event event;
  ASSERT_TRUE(Event::Create(&event).ok());
  ASSERT_TRUE(Record(event, stream).ok());
  RunKernel({1, 1, 0}, &Nothing);
  const pid_t child = fork();
  if (child == 0) {
    // Also: the destructor of a stream does not wait for ever.
    const auto refused = [](const Result& result) {
      return result.code == StatusCode::kFailedPrecondition &&
             std::string(result.what).find("in a forked child") != std::string::npos;
    };
    Stream mine;
    Event moment;
    Graph graph;
    uint64_t nanoseconds = 0;
    uint8_t bytes[2] = {};
    bool right = refused(Stream::Create(&mine)) && refused(Event::Create(&moment));
    right = right && refused(Launch({1, 1, 0}, stream, &Nothing));
    right = right && refused(stream.Synchronize());
    right = right && refused(CopyAsync(bytes, bytes + 1, 1, stream));
    right = right && refused(FillAsync(bytes, 0, 1, stream));
    right = right && refused(BeginCapture(stream)) && refused(EndCapture(stream, &graph));
    right = right && refused(Record(event, stream)) && refused(WaitEvent(stream, event));
    right = right && refused(ElapsedNanoseconds(event, event, &nanoseconds));
    Stream moved = std::move(stream);
    right = right && moved.Idle();
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  RunKernel({2, 2, 0}, &Nothing);  // the parent goes on
}
#endif

void Append(uint32_t value, uint32_t* log, uint32_t* n) {
  if (BlockIndex() == 0 && ThreadIndex() == 0) log[(*n)++] = value;
}

TEST(StreamTest, RunsLaunchesInOrder) {
  constexpr uint32_t kLaunches = 200;
  Stream stream = NewStream();
  std::vector<uint32_t> log(kLaunches);
  uint32_t n = 0;
  for (uint32_t i = 0; i < kLaunches; ++i) {
    ASSERT_TRUE(Launch({1 + i % 3, 1 + i % 5, 0}, stream, &Append, i, log.data(), &n).ok());
  }
  ASSERT_TRUE(stream.Synchronize().ok());
  ASSERT_EQ(n, kLaunches);
  for (uint32_t i = 0; i < kLaunches; ++i) EXPECT_EQ(log[i], i);
}

void AddOne(uint32_t* words, uint32_t n) {
  for (uint32_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < n;
       i += GridSize() * BlockSize()) {
    ++words[i];
  }
}

// Different shapes: each word changes its thread, block and worker from launch to launch.
TEST(StreamTest, ALaunchSeesWhatTheOneBeforeWrote) {
  Stream stream = NewStream();
  std::vector<uint32_t> words(1000, 0);
  for (uint32_t i = 0; i < 30; ++i) {
    ASSERT_TRUE(Launch({1 + i % 7, 1 + i * 11 % 64, 0}, stream, &AddOne, words.data(), 1000u).ok());
  }
  ASSERT_TRUE(stream.Synchronize().ok());
  for (uint32_t word : words) ASSERT_EQ(word, 30u);
}

TEST(StreamTest, CopiesAndFillsKeepTheirPlaceInTheOrder) {
  Stream stream = NewStream();
  std::vector<uint32_t> a(5000, 0), b(5000, 0), c(5000, 0);
  const uint64_t bytes = a.size() * sizeof(uint32_t);
  ASSERT_TRUE(FillAsync(a.data(), 0x01, bytes, stream).ok());
  ASSERT_TRUE(Launch({2, 32, 0}, stream, &AddOne, a.data(), 5000u).ok());
  ASSERT_TRUE(CopyAsync(b.data(), a.data(), bytes, stream).ok());
  ASSERT_TRUE(Launch({3, 16, 0}, stream, &AddOne, b.data(), 5000u).ok());
  ASSERT_TRUE(CopyAsync(c.data(), b.data(), bytes, stream).ok());
  ASSERT_TRUE(FillAsync(a.data(), 0xff, bytes, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i], 0xffffffffu);
    ASSERT_EQ(b[i], 0x01010103u);
    ASSERT_EQ(c[i], 0x01010103u);
  }
}

void WaitForGo(const uint32_t* go) {
  while (Load<Scope::kSystem, Order::kAcquire>(go) == 0) Pause();
}

TEST(StreamTest, LaunchReturnsBeforeTheKernelHasEnded) {
  Stream stream = NewStream();
  uint32_t go = 0;
  ASSERT_TRUE(Launch({1, 1, 0}, stream, &WaitForGo, static_cast<const uint32_t*>(&go)).ok());
  EXPECT_FALSE(stream.Idle());
  Store<Scope::kSystem, Order::kRelease>(&go, 1u);
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_TRUE(stream.Idle());
}

TEST(StreamTest, AStreamDoesNotWaitForAnother) {
  Stream blocked = NewStream();
  Stream free = NewStream();
  uint32_t go = 0;
  uint32_t counted = 0;
  ASSERT_TRUE(Launch({4, 4, 0}, blocked, &WaitForGo, static_cast<const uint32_t*>(&go)).ok());
  ASSERT_TRUE(Launch(
                  {4, 4, 0}, free, +[](uint32_t* n) { CountUp(n); }, &counted)
                  .ok());
  ASSERT_TRUE(free.Synchronize().ok());
  EXPECT_EQ(counted, 16u);
  EXPECT_FALSE(blocked.Idle());
  Store<Scope::kSystem, Order::kRelease>(&go, 1u);
  ASSERT_TRUE(blocked.Synchronize().ok());
}

TEST(StreamTest, DestructionWaits) {
  uint32_t counted = 0;
  for (int i = 0; i < 20; ++i) {
    Stream stream = NewStream();
    ASSERT_TRUE(Launch(
                    {3, 16, 0}, stream,
                    +[](uint32_t* n) {
                      for (int k = 0; k < 5; ++k) Pause();
                      CountUp(n);
                    },
                    &counted)
                    .ok());
  }
  EXPECT_EQ(counted, 20u * 48);
}

TEST(StreamTest, MovesWithItsWork) {
  uint32_t counted = 0;
  Stream first = NewStream();
  ASSERT_TRUE(Launch(
                  {1, 8, 0}, first, +[](uint32_t* n) { CountUp(n); }, &counted)
                  .ok());
  Stream second = std::move(first);
  EXPECT_EQ(first.Synchronize().code,
            StatusCode::kFailedPrecondition);  // NOLINT(bugprone-use-after-move)
  ASSERT_TRUE(second.Synchronize().ok());
  EXPECT_EQ(counted, 8u);
  first = std::move(second);
  EXPECT_TRUE(first.Synchronize().ok());
}

TEST(StreamTest, AssignmentWaitsForTheOldStream) {
  uint32_t counted = 0;
  Stream stream = NewStream();
  ASSERT_TRUE(Launch(
                  {1, 8, 0}, stream,
                  +[](uint32_t* n) {
                    for (int k = 0; k < 20; ++k) Pause();
                    CountUp(n);
                  },
                  &counted)
                  .ok());
  stream = NewStream();
  EXPECT_EQ(counted, 8u);
}

TEST(StreamTest, SynchronizeWithNothingToWaitFor) {
  Stream stream = NewStream();
  EXPECT_TRUE(stream.Idle());
  EXPECT_TRUE(stream.Synchronize().ok());
  EXPECT_TRUE(stream.Synchronize().ok());
}

TEST(StreamTest, ManyThreadsShareOne) {
  Stream stream = NewStream();
  uint32_t counted = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(Launch(
                        {1, 4, 0}, stream, +[](uint32_t* n) { CountUp(n); }, &counted)
                        .ok());
        if (i % 10 == 0) {
          EXPECT_TRUE(stream.Synchronize().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(counted, 4u * 50 * 4);
}

TEST(StreamTest, ManyStreamsAtOnce) {
  constexpr int kStreams = 100;
  std::vector<Stream> streams(kStreams);
  uint32_t counted = 0;
  for (Stream& stream : streams) {
    ASSERT_TRUE(Stream::Create(&stream).ok());
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(Launch(
                      {2, 3, 0}, stream, +[](uint32_t* n) { CountUp(n); }, &counted)
                      .ok());
    }
  }
  for (Stream& stream : streams) ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(counted, kStreams * 18u);
}

class CopyTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, CopyTest,
                         testing::Values(0, 1, 7, 4096, 262143, 262144, 262145, 3000001));

TEST_P(CopyTest, MovesExactlyTheBytes) {
  const uint64_t bytes = GetParam();
  std::vector<uint8_t> from(bytes + 2), to(bytes + 2, 0xee);
  for (uint64_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 31 + i / 256);
  Stream stream = NewStream();
  ASSERT_TRUE(CopyAsync(to.data() + 1, from.data() + 1, bytes, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(to.front(), 0xee);
  EXPECT_EQ(to.back(), 0xee);
  EXPECT_EQ(std::memcmp(to.data() + 1, from.data() + 1, bytes), 0);
}

TEST_P(CopyTest, FillsExactlyTheBytes) {
  const uint64_t bytes = GetParam();
  std::vector<uint8_t> to(bytes + 2, 0xee);
  Stream stream = NewStream();
  ASSERT_TRUE(FillAsync(to.data() + 1, 0x3c, bytes, stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(to.front(), 0xee);
  EXPECT_EQ(to.back(), 0xee);
  for (uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(to[i + 1], 0x3c) << i;
}

TEST(CopyErrorTest, NullPointers) {
  Stream stream = NewStream();
  uint8_t byte = 0;
  EXPECT_EQ(CopyAsync(nullptr, &byte, 1, stream).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyAsync(&byte, nullptr, 1, stream).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(FillAsync(nullptr, 0, 1, stream).code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(CopyAsync(nullptr, nullptr, 0, stream).ok());
}

TEST(MemoryTest, DeviceAndHostMemoryAreAlignedAndWritable) {
  for (uint64_t bytes : {uint64_t{1}, uint64_t{100}, uint64_t{1} << 20}) {
    void* device = MallocDevice(bytes);
    void* host = MallocHost(bytes);
    ASSERT_NE(device, nullptr);
    ASSERT_NE(host, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % 16, 0u);
    Stream stream = NewStream();
    ASSERT_TRUE(FillAsync(device, 0x11, bytes, stream).ok());
    ASSERT_TRUE(CopyAsync(host, device, bytes, stream).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
    EXPECT_EQ(static_cast<uint8_t*>(host)[bytes - 1], 0x11);
    FreeDevice(device);
    FreeHost(host);
  }
}

#if !defined(IRIS_ASAN) && !defined(IRIS_TSAN)  // the sanitizers end the process instead
TEST(MemoryTest, MoreThanThereIsGivesNull) {
  EXPECT_EQ(MallocDevice(uint64_t{1} << 60), nullptr);
  EXPECT_EQ(MallocHost(uint64_t{1} << 60), nullptr);
}
#endif

TEST(MemoryTest, NullMayBeFreed) {
  FreeDevice(nullptr);
  FreeHost(nullptr);
}

size_t CountLines(const char* path) {
  std::ifstream file(path);
  size_t n = 0;
  for (std::string line; std::getline(file, line);) ++n;
  return n;
}

size_t CountEntries(const char* path) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    (void)entry;
    ++n;
  }
  return n;
}

void SyncTwice() {
  IRIS_SHARED(uint32_t[1], word);
  if (ThreadIndex() == 0) word[0] = 1;
  BlockSync();
  BlockSync();
}

TEST(LeakTest, ThousandsOfLaunchesKeepDescriptorsThreadsAndMappings) {
  auto batch = [](int n) {
    for (int i = 0; i < n; ++i) RunKernel({2, 32, 64}, &SyncTwice);
  };
  batch(50);  // whatever is made at first use
  const size_t descriptors = CountEntries("/proc/self/fd");
  const size_t threads = CountEntries("/proc/self/task");
  const size_t mappings = CountLines("/proc/self/maps");
  batch(kSlow ? 200 : 3000);
  EXPECT_EQ(CountEntries("/proc/self/fd"), descriptors);
  EXPECT_EQ(CountEntries("/proc/self/task"), threads);
  // The allocator's own may change; ThreadSanitizer's follow the memory.
  const size_t slack = kSlow ? 1000 : 16;
  EXPECT_LE(CountLines("/proc/self/maps"), mappings + slack);
}

TEST(LeakTest, ALargeGridLeavesFewMappings) {
  const uint32_t blocks = kSlow ? 16 : 64;
  uint32_t arrived = 0;
  // All threads suspended at the same time.
  RunKernel(
      {blocks, 256, 0},
      +[](uint32_t* word) {
        BlockSync();
        if (ThreadIndex() == 0) {
          CountUp(word);
          while (Load<Scope::kDevice, Order::kAcquire>(word) < GridSize()) Pause();
        }
        BlockSync();
      },
      &arrived);
  EXPECT_EQ(arrived, blocks);
  // On kernels that need a mapping for each guard: two for each of the stacks.
  EXPECT_LT(CountLines("/proc/self/maps"), 40000u);
}

}  // namespace
}  // namespace iris::backend
