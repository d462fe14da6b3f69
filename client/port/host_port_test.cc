#include "client/port/host_port.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "device/driver/emu_driver.h"
#include "device/local/port_thread.h"

namespace iris::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kStride = 4 << 20;

// Rank 0, and rank 1 on another node, whose heap the test sees.
class HostPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    heaps_.resize(2 * kStride);
    memory_fd_ = wire::UniqueFd(memfd_create("port", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    wake_fd_ = wire::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ASSERT_EQ(ftruncate(memory_fd_.get(), sizeof(PortMemory)), 0);
    ASSERT_EQ(fcntl(memory_fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    void* const mapped =
        mmap(nullptr, sizeof(PortMemory), PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd_.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<PortMemory*>(mapped);
    memory_->magic = kPortMagic;
    memory_->version = kPortVersion;
  }
  void TearDown() override {
    thread_.reset();
    port_.reset();
    munmap(memory_, sizeof(PortMemory));
  }

  static wire::UniqueFd Dup(const wire::UniqueFd& fd) {
    return wire::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  }
  absl::Status Map(absl::Duration timeout = absl::Seconds(60)) {
    HostPort::Options options;
    options.heap_address = reinterpret_cast<uint64_t>(heaps_.data());
    options.stride_bytes = kStride;
    options.timeout = timeout;
    options.over = [this] { return over_ ? absl::AbortedError("rank 1 died") : absl::OkStatus(); };
    auto port = HostPort::Map(options, driver_.get(), Dup(memory_fd_), Dup(wake_fd_));
    if (port.ok()) port_ = *std::move(port);
    return port.status();
  }
  void Serve(local::PortThread::Options options = {}) {
    // By the port's own mapping, so that ThreadSanitizer sees what orders the two.
    auto* const memory = reinterpret_cast<PortMemory*>(
        reinterpret_cast<uint8_t*>(port_->device()->asleep) - offsetof(PortMemory, asleep));
    thread_ = std::make_unique<local::PortThread>(
        std::vector<local::PortThread::Rank>{{memory, heaps_.data(), kStride, wake_fd_.get()},
                                             {nullptr, Theirs(), kStride, -1}},
        options);
  }
  uint8_t* Mine() { return heaps_.data(); }
  uint8_t* Theirs() { return heaps_.data() + kStride; }
  static std::vector<uint8_t> Numbers(size_t n) {
    std::vector<uint8_t> numbers(n);
    for (size_t i = 0; i < n; ++i) numbers[i] = static_cast<uint8_t>(i * 7 + i / 251);
    return numbers;
  }

  std::unique_ptr<driver::GpuDriver> driver_ = driver::CreateEmuDriver({});
  std::vector<uint8_t> heaps_;
  wire::UniqueFd memory_fd_, wake_fd_;
  PortMemory* memory_ = nullptr;
  std::atomic<bool> over_ = false;
  std::unique_ptr<local::PortThread> thread_;
  std::unique_ptr<HostPort> port_;
};

TEST_F(HostPortTest, PutsAndGetsOfAllSizesFromHeapAndHost) {
  ASSERT_TRUE(Map().ok());
  Serve({.seed = 5});
  for (const size_t n : {1, 7, 8, 9, 4096, 300 << 10, 3 << 20}) {
    const std::vector<uint8_t> values = Numbers(n);
    std::vector<uint8_t> copy = values;
    ASSERT_TRUE(port_->Put(1, 3, copy.data(), n).ok());
    std::fill(copy.begin(), copy.end(), 0);  // the source may be reused
    ASSERT_TRUE(port_->Quiet().ok());
    EXPECT_EQ(std::memcmp(Theirs() + 3, values.data(), n), 0) << n;
    ASSERT_TRUE(port_->Get(1, copy.data(), 3, n).ok());
    EXPECT_EQ(copy, values) << n;

    std::memset(Theirs(), 0, kStride);
    std::memcpy(Mine() + 5, values.data(), n);
    ASSERT_TRUE(port_->Put(1, 11, Mine() + 5, n).ok());
    std::memset(Mine(), 0, kStride);
    ASSERT_TRUE(port_->Get(1, Mine(), 11, n).ok());
    EXPECT_EQ(std::memcmp(Mine(), values.data(), n), 0) << n;
  }
  EXPECT_TRUE(port_->Put(1, 0, nullptr, 0).ok());
  EXPECT_TRUE(port_->Get(1, nullptr, 0, 0).ok());
}

TEST_F(HostPortTest, Rows) {
  ASSERT_TRUE(Map().ok());
  Serve();
  std::vector<uint8_t> matrix = Numbers(100 * 10);
  const RowsToCopy column = {10, 3, 4, 100};
  ASSERT_TRUE(port_->PutRows(1, 50, matrix.data() + 20, column, HostPort::Signal{0, 1}).ok());
  std::memcpy(Mine(), matrix.data(), matrix.size());
  ASSERT_TRUE(port_->PutRows(1, 250, Mine() + 20, column, HostPort::Signal{8, 1}).ok());
  std::vector<uint8_t> back(100 * 10);
  ASSERT_TRUE(port_->GetRows(1, back.data() + 20, 50, {10, 3, 100, 4}).ok());
  ASSERT_TRUE(port_->GetRows(1, Mine() + 2000, 250, {10, 3, 5, 4}).ok());
  for (int row = 0; row < 10; ++row) {
    EXPECT_EQ(std::memcmp(&back[20 + 100 * row], &matrix[20 + 100 * row], 3), 0);
    EXPECT_EQ(std::memcmp(Mine() + 2000 + 5 * row, &matrix[20 + 100 * row], 3), 0);
  }
  ASSERT_TRUE(port_->Quiet().ok());
  EXPECT_EQ(Theirs()[0], 1);
  EXPECT_EQ(Theirs()[8], 1);
}

TEST_F(HostPortTest, ASignalComesAfterAllPieces) {
  ASSERT_TRUE(Map().ok());
  Serve({.seed = 9});
  auto* const signal = reinterpret_cast<uint64_t*>(Theirs());
  std::vector<uint8_t> values(700 << 10);
  for (uint64_t round = 1; round <= 20; ++round) {
    std::fill(values.begin(), values.end(), static_cast<uint8_t>(round));
    const HostPort::Signal add = {0, 1, SignalOp::kAdd};
    ASSERT_TRUE(port_->Put(1, 64, values.data(), values.size(), add).ok());
    while (__atomic_load_n(signal, __ATOMIC_ACQUIRE) < round) std::this_thread::yield();
    ASSERT_EQ(std::memcmp(Theirs() + 64, values.data(), values.size()), 0);
  }
  ASSERT_TRUE(port_->Put(1, 0, nullptr, 0, HostPort::Signal{8, 77}).ok());
  ASSERT_TRUE(port_->Quiet().ok());
  EXPECT_EQ(signal[1], 77u);
}

TEST_F(HostPortTest, Atomics) {
  ASSERT_TRUE(Map().ok());
  Serve();
  const auto atomic = [&](PortAtomic op, PortType type, uint64_t value, uint64_t compare = 0) {
    return port_->Atomic(1, 16, op, type, value, compare).value();
  };
  EXPECT_EQ(atomic(PortAtomic::kAdd, PortType::kUint32, 5), 0u);
  EXPECT_EQ(atomic(PortAtomic::kSub, PortType::kInt32, 7), 5u);
  EXPECT_EQ(atomic(PortAtomic::kMax, PortType::kInt32, 3), 0xfffffffeu);
  EXPECT_EQ(atomic(PortAtomic::kCompareExchange, PortType::kUint32, 9, 4), 3u);
  EXPECT_EQ(atomic(PortAtomic::kCompareExchange, PortType::kUint32, 9, 3), 3u);
  EXPECT_EQ(atomic(PortAtomic::kLoad, PortType::kUint64, 0), 9u);
}

TEST_F(HostPortTest, ManyThreadsShareTheRingAndTheValues) {
  ASSERT_TRUE(Map().ok());
  Serve({.seed = 3});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint32_t> values(5000), back(5000);
      for (uint32_t i = 0; i < 300; ++i) {
        std::iota(values.begin(), values.end(), t * 1000000 + i);
        const uint64_t place = 1024 + t * 65536;
        if (!port_->Put(1, place, values.data(), values.size() * 4).ok()) ++wrong;
        if (!port_->Get(1, back.data(), place, back.size() * 4).ok() || back != values) ++wrong;
        if (!port_->Atomic(1, 0, PortAtomic::kAdd, PortType::kUint64, 1, 0).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(Theirs()), 1200u);
}

TEST_F(HostPortTest, WhatFailsIsToldOnce) {
  ASSERT_TRUE(Map().ok());
  Serve();
  const uint64_t word = 1;
  EXPECT_TRUE(port_->Put(1, kStride, &word, 8).ok());
  EXPECT_TRUE(port_->Put(1, kStride, &word, 8).ok());
  const absl::Status quiet = port_->Quiet();
  EXPECT_EQ(quiet.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(quiet.message()), HasSubstr("2 puts to other nodes have failed"));
  EXPECT_TRUE(port_->Quiet().ok());
  uint64_t back[3];
  const absl::Status get = port_->Get(1, back, kStride - 8, sizeof(back));
  EXPECT_EQ(get.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(get.message()), HasSubstr("request to rank 1: there is no memory"));
  EXPECT_TRUE(port_->Quiet().ok());
}

TEST_F(HostPortTest, WaitsEnd) {
  ASSERT_TRUE(Map(absl::Milliseconds(50)).ok());
  const uint64_t word = 1;
  // A small put waits only for room.
  for (uint32_t i = 0; i < kPortSlots; ++i) ASSERT_TRUE(port_->Put(1, 0, &word, 8).ok());
  EXPECT_EQ(port_->Put(1, 0, &word, 8).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(port_->Quiet().code(), absl::StatusCode::kDeadlineExceeded);
  over_ = true;
  EXPECT_EQ(port_->Quiet(absl::Hours(1)), absl::AbortedError("rank 1 died"));
  over_ = false;
  memory_->words[kPortHostRing].stopped = 14;
  const absl::Status stopped = port_->Quiet(absl::Hours(1));
  EXPECT_EQ(stopped.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("the port process has stopped"));
}

TEST_F(HostPortTest, WhatFailsSinceSomebodyIsLostNamesHim) {
  ASSERT_TRUE(Map().ok());
  PortRingWords& words = memory_->words[kPortHostRing];
  const auto fail = [&words](absl::StatusCode code) {
    words.first_failed = 1 << 8 | static_cast<uint64_t>(code);
    ++words.failed;
  };
  fail(absl::StatusCode::kAborted);
  std::thread irisd([this] {
    absl::SleepFor(absl::Milliseconds(30));
    over_ = true;
  });
  EXPECT_THAT(std::string(port_->Quiet().message()),
              AllOf(HasSubstr("1 puts to other nodes have failed"), HasSubstr("rank 1 died")));
  irisd.join();
  over_ = false;
  fail(absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(port_->Quiet().message()), HasSubstr("a rank on it, is lost"));
  over_ = true;  // that is not why
  fail(absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(port_->Quiet().message()), HasSubstr("there is no memory"));
}

TEST_F(HostPortTest, SleepersAreWokenAndOthersNot) {
  ASSERT_TRUE(Map().ok());
  const uint64_t word = 1;
  uint64_t count = 0;
  ASSERT_TRUE(port_->Put(1, 0, &word, 8).ok());
  EXPECT_EQ(read(wake_fd_.get(), &count, sizeof(count)), -1);
  memory_->asleep = 1;
  ASSERT_TRUE(port_->Put(1, 0, &word, 8).ok());
  ASSERT_TRUE(port_->Put(1, 0, &word, 8).ok());
  EXPECT_EQ(memory_->asleep, 0u);
  EXPECT_EQ(read(wake_fd_.get(), &count, sizeof(count)), 8);
  EXPECT_EQ(count, 1u);
}

TEST_F(HostPortTest, OtherMemoryIsRefused) {
  memory_->version = kPortVersion + 1;
  EXPECT_EQ(Map().code(), absl::StatusCode::kInternal);
  memory_->version = kPortVersion;
  memory_->rank = 1;
  EXPECT_EQ(Map().code(), absl::StatusCode::kInternal);
  memory_fd_ = wire::UniqueFd(memfd_create("port", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory_fd_.get(), sizeof(PortMemory)), 0);
  EXPECT_THAT(std::string(Map().message()), HasSubstr("not a sealed file"));
}

TEST_F(HostPortTest, KernelsFindTheirRing) {
  ASSERT_TRUE(Map().ok());
  const DevicePort& device = *port_->device();
  // The mapping is another one than the test's.
  device.slots[5].dst = 42;
  EXPECT_EQ(memory_->rings[kPortKernelRing].slots[5].dst, 42u);
  EXPECT_GE(device.wake_fd, 0);
}

}  // namespace
}  // namespace iris::internal
