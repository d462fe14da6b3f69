// Atomics that a device carries out: those of HeapMemory by the kernel, on an emulated device, and
// DeviceQueue with a device that is late or fails.
#include "server/port/atomics.h"

#include <gtest/gtest.h>
#include <string.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "device/driver/emu_driver.h"
#include "device/iris/port_atomic.h"
#include "device/iris/types.h"
#include "server/port/memory.h"
#include "server/port/testing/fake_atomics.h"

namespace iris::port {
namespace {

constexpr uint64_t kStride = 1ull << 30, kHeap = 4 << 20;

class AtomicsTest : public testing::Test {
 protected:
  void Open(const HeapMemory::Options& options) {
    auto memory = HeapMemory::Open("emu", kStride, options);
    ASSERT_TRUE(memory.ok());
    memory_ = *std::move(memory);
    driver::EmuOptions emu;
    emu.n_devices = 1;
    emu.memory_bytes_per_device = 1 << 30;
    driver_ = driver::CreateEmuDriver(emu);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto physical = driver_->Create(0, kHeap, false);
      ASSERT_TRUE(physical.ok());
      const auto fd = (*physical)->ExportFd(driver::Access::kReadWrite);
      ASSERT_TRUE(fd.ok());
      ASSERT_TRUE(memory_->Add(rank + 1, rank, 0, kHeap, "x", wire::UniqueFd(*fd)).ok());
    }
  }

  StatusCode Atomic(uint64_t offset, PortAtomic op, PortType type, uint64_t value,
                    HeapMemory::Later* later, uint64_t compare = 0, uint32_t rank = 0) {
    uint64_t old = 0;
    return memory_->Atomic(rank, offset, op, type, value, compare, &old, later);
  }
  HeapMemory::Later Add1(uint64_t offset = 0) {
    HeapMemory::Later later;
    EXPECT_EQ(Atomic(offset, PortAtomic::kAdd, PortType::kUint64, 1, &later), StatusCode::kOk);
    return later;
  }
  uint64_t WordAt(uint64_t offset) {
    uint64_t word = 0;
    EXPECT_EQ(memory_->Read(0, offset, &word, sizeof(word)), StatusCode::kOk);
    return word;
  }
  void Finish() {
    while (memory_->Poll()) {
    }
  }

  std::unique_ptr<HeapMemory> memory_;
  std::unique_ptr<driver::GpuDriver> driver_;
};

// The value of a small number as a word of this type.
uint64_t BitsOf(PortType type, int value) {
  const auto bits = [](auto number) {
    uint64_t word = 0;
    memcpy(&word, &number, sizeof(number));
    return word;
  };
  switch (type) {
    case PortType::kFloat:
      return bits(static_cast<float>(value) / 4);
    case PortType::kDouble:
      return bits(static_cast<double>(value) / 4);
    case PortType::kHalf:
      return bits(numeric::HalfBitsOf(static_cast<float>(value) / 4));
    case PortType::kBfloat16:
      return bits(numeric::BfloatBitsOf(static_cast<float>(value) / 4));
    case PortType::kInt32:
    case PortType::kUint32:
      return bits(static_cast<int32_t>(value));
    default:
      return bits(static_cast<int64_t>(value));
  }
}

TEST_F(AtomicsTest, AllOperationsOnAllTypesAreThoseOfTheCpu) {
  Open({.atomics = iris_device_atomics()});
  const char* const chosen = getenv("IRIS_TEST_SEED");
  const uint64_t seed = chosen == nullptr ? std::random_device()() : strtoull(chosen, nullptr, 10);
  SCOPED_TRACE(testing::Message() << "IRIS_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr uint32_t kTypes = static_cast<uint32_t>(PortType::kBfloat16) + 1;
  constexpr uint32_t kOps = static_cast<uint32_t>(PortAtomic::kLoad) + 1;
  constexpr uint32_t kWords = 4;  // of each type and rank, 8 bytes apart
  uint64_t model[2][kTypes][kWords] = {};
  struct Called {
    HeapMemory::Later later;
    uint64_t expected = 0;
    uint32_t op = 0, type = 0;
  };
  uint32_t count[kOps][kTypes] = {};
  for (int round = 0; round < 60; ++round) {
    std::vector<Called> called;
    for (uint64_t n = random() % 150; n > 0; --n) {
      const uint32_t rank = random() % 2, word = random() % kWords;
      Called call;
      call.type = random() % kTypes;
      call.op = random() % kOps;
      const auto type = static_cast<PortType>(call.type);
      const auto op = static_cast<PortAtomic>(call.op);
      uint64_t* const place = &model[rank][call.type][word];
      const uint64_t value = BitsOf(type, static_cast<int>(random() % 64) - 32);
      // Half of the exchanges are to succeed.
      const uint64_t compare = random() % 2 == 0 ? *place : value;
      const uint64_t offset = (call.type * kWords + word) * 8;
      const StatusCode code = Atomic(offset, op, type, value, &call.later, compare, rank);
      if (!IsPortAtomic(op, type)) {
        EXPECT_EQ(code, StatusCode::kInvalidArgument);
        continue;
      }
      ASSERT_EQ(code, StatusCode::kOk);
      ASSERT_NE(call.later, nullptr);
      call.expected = DoPortAtomic(place, op, type, value, compare);
      ++count[call.op][call.type];
      called.push_back(call);
      if (random() % 16 == 0) (void)memory_->Poll();
    }
    Finish();
    for (const Called& each : called) {
      ASSERT_TRUE(each.later->done);
      ASSERT_EQ(each.later->code, StatusCode::kOk);
      ASSERT_EQ(each.later->old, each.expected) << "op " << each.op << " of type " << each.type;
    }
    for (uint32_t rank = 0; rank < 2; ++rank) {
      uint64_t heap[kTypes][kWords];
      ASSERT_EQ(memory_->Read(rank, 0, heap, sizeof(heap)), StatusCode::kOk);
      ASSERT_EQ(memcmp(heap, model[rank], sizeof(heap)), 0) << "rank " << rank;
    }
  }
  for (uint32_t op = 0; op < kOps; ++op) {
    for (uint32_t type = 0; type < kTypes; ++type) {
      EXPECT_EQ(count[op][type] > 0,
                IsPortAtomic(static_cast<PortAtomic>(op), static_cast<PortType>(type)))
          << "op " << op << " of type " << type;
    }
  }
  EXPECT_TRUE(memory_->TakeFailure().ok());
}

TEST_F(AtomicsTest, RefusesWhatTheCpuRefuses) {
  Open({.atomics = iris_device_atomics()});
  HeapMemory::Later later;
  const auto add = [&](uint64_t offset, PortType type, uint32_t rank = 0) {
    return Atomic(offset, PortAtomic::kAdd, type, 1, &later, 0, rank);
  };
  EXPECT_EQ(add(4, PortType::kUint64), StatusCode::kInvalidArgument);
  EXPECT_EQ(add(2, PortType::kFloat), StatusCode::kInvalidArgument);
  EXPECT_EQ(add(1, PortType::kHalf), StatusCode::kInvalidArgument);
  EXPECT_EQ(Atomic(0, static_cast<PortAtomic>(10), PortType::kUint32, 1, &later),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(add(kHeap, PortType::kUint32), StatusCode::kOutOfRange);
  EXPECT_EQ(add(~0ull - 7, PortType::kUint64), StatusCode::kOutOfRange);
  EXPECT_EQ(add(0, PortType::kUint32, 2), StatusCode::kOutOfRange);
  EXPECT_EQ(memory_->Signal(0, 12, 1, 1, &later), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory_->Signal(0, 8, 2, 1, &later), StatusCode::kInvalidArgument);
  EXPECT_EQ(later, nullptr);
  EXPECT_FALSE(memory_->Poll());
  EXPECT_EQ(add(kHeap - 8, PortType::kUint64), StatusCode::kOk);
  Finish();
  EXPECT_EQ(WordAt(kHeap - 8), 1u);
}

TEST_F(AtomicsTest, ManyGoInOneLaunchAndTheRestInTheNext) {
  FakeAtomics device;
  Open({.atomics = device.table()});
  std::vector<HeapMemory::Later> all;
  for (uint32_t i = 0; i < 2 * kMaxDeviceAtomics + 5; ++i) all.push_back(Add1());
  EXPECT_TRUE(memory_->Poll());
  all.push_back(Add1());
  EXPECT_TRUE(memory_->Poll());
  EXPECT_FALSE(all.front()->done);
  device.runs = true;
  Finish();
  EXPECT_EQ(device.list_lengths, (std::vector<uint32_t>{kMaxDeviceAtomics, kMaxDeviceAtomics, 6}));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i]->old, i);
  EXPECT_EQ(WordAt(0), all.size());
}

TEST_F(AtomicsTest, MemoryStaysMappedUntilTheDeviceIsDone) {
  FakeAtomics device;
  Open({.atomics = device.table()});
  const HeapMemory::Later later = Add1();
  EXPECT_TRUE(memory_->Poll());
  memory_->Forget(1);
  HeapMemory::Later next;
  EXPECT_EQ(Atomic(0, PortAtomic::kAdd, PortType::kUint64, 1, &next), StatusCode::kOutOfRange);
  device.runs = true;
  Finish();  // unmapped memory would end the test
  EXPECT_EQ(later->code, StatusCode::kOk);
}

TEST_F(AtomicsTest, ADeviceThatIsLateIsGivenUpAndComesBack) {
  FakeAtomics device;
  Open({.atomics = device.table(), .give_up_after = absl::Milliseconds(20)});
  const HeapMemory::Later first = Add1(), second = Add1();
  EXPECT_TRUE(memory_->Poll());
  const HeapMemory::Later third = Add1();
  Finish();
  for (const HeapMemory::Later& each : {first, second, third, Add1()}) {
    EXPECT_TRUE(each->done);
    EXPECT_EQ(each->code, StatusCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(absl::StrContains(memory_->TakeFailure().message(),
                                "device x did not come to atomics of other nodes within 20ms"));
  EXPECT_TRUE(memory_->TakeFailure().ok());
  EXPECT_FALSE(memory_->Poll());
  device.runs = true;
  EXPECT_FALSE(memory_->Poll());
  EXPECT_EQ(WordAt(0), 2u) << "what was started has happened after all, and nothing else";
  const HeapMemory::Later last = Add1();
  Finish();
  EXPECT_EQ(last->code, StatusCode::kOk);
  EXPECT_EQ(last->old, 2u);
}

TEST_F(AtomicsTest, ADeviceThatFailsEndsAllAtomics) {
  for (const bool at_start : {true, false}) {
    FakeAtomics device;
    Open({.atomics = device.table()});
    (at_start ? device.starts : device.polls) = {StatusCode::kUnavailable, "the GPU fell off"};
    const HeapMemory::Later first = Add1(), second = Add1();
    Finish();
    for (const HeapMemory::Later& each : {first, second, Add1()}) {
      EXPECT_EQ(each->code, StatusCode::kInternal);
    }
    EXPECT_TRUE(absl::StrContains(memory_->TakeFailure().message(), "the GPU fell off"));
    memory_ = nullptr;
  }
}

TEST_F(AtomicsTest, ADeviceWithoutTheKernelRefusesAtomicsAlone) {
  FakeAtomics device;
  device.creates = {StatusCode::kFailedPrecondition, "no code for this GPU"};
  Open({.atomics = device.table()});
  HeapMemory::Later later;
  EXPECT_EQ(Atomic(0, PortAtomic::kAdd, PortType::kUint64, 1, &later), StatusCode::kUnimplemented);
  EXPECT_EQ(memory_->Signal(0, 0, 1, 1, &later), StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StrContains(memory_->TakeFailure().message(), "no code for this GPU"));
  const uint64_t value = 3;
  EXPECT_EQ(memory_->Write(0, 0, &value, sizeof(value)), StatusCode::kOk);
  EXPECT_EQ(WordAt(0), 3u);
}

TEST_F(AtomicsTest, ALibraryThatIsMissingIsNamedWithTheRemedy) {
  const auto missing = LoadDeviceAtomics("none");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(missing.status().message(), "put libiris_none.so of the bundle"))
      << missing.status();
  EXPECT_EQ(LoadDeviceAtomics("../x").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace iris::port
