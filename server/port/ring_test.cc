#include "server/port/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "device/iris/port_atomic.h"
#include "server/port/testing/port_requester.h"

namespace iris::port {
namespace {

wire::UniqueFd NewMemory(uint64_t bytes, int seals) {
  wire::UniqueFd fd(memfd_create("port", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

class RingTest : public testing::Test {
 protected:
  void SetUp() override {
    wire::UniqueFd fd;
    memory_ = NewPortMemory(3, &fd);
    ASSERT_NE(memory_, nullptr);
    auto mapping = PortMapping::Map(std::move(fd), 3);
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    ring_.Attach(*mapping);
  }
  void TearDown() override { munmap(memory_, sizeof(PortMemory)); }

  PortRequest Request() {
    PortRequest request = {};
    request.op = PortOp::kPut;
    request.to = 9;
    request.signal = kNoPortSignal;
    return request;
  }

  PortMemory* memory_ = nullptr;
  Ring ring_{3, kPortHostRing, 0};
};

TEST(PortMappingTest, RefusesWhatIsNoPortMemory) {
  EXPECT_FALSE(PortMapping::Map(wire::UniqueFd(), 0).ok());
  EXPECT_FALSE(PortMapping::Map(NewMemory(sizeof(PortMemory), 0), 0).ok()) << "not sealed";
  EXPECT_FALSE(PortMapping::Map(NewMemory(4096, F_SEAL_SHRINK), 0).ok()) << "too short";
  EXPECT_FALSE(PortMapping::Map(NewMemory(sizeof(PortMemory), F_SEAL_SHRINK), 0).ok())
      << "no magic";
  EXPECT_FALSE(PortMapping::Map(wire::UniqueFd(open("/dev/null", O_RDWR)), 0).ok());
}

TEST_F(RingTest, CompletesInOrderAndReusesSlots) {
  PortRequester requester(memory_, -1);
  for (int round = 0; round < 5; ++round) {
    std::vector<uint64_t> numbers;
    std::vector<uint32_t> taken;
    for (uint32_t i = 0; i < kPortSlots / 2; ++i) numbers.push_back(requester.Add(Request()));
    uint32_t index = 0;
    while (ring_.Take(&index)) taken.push_back(index);
    ASSERT_EQ(taken.size(), numbers.size());
    EXPECT_FALSE(ring_.HasNext());
    // The last ones first.
    StatusCode code = StatusCode::kUnknown;
    while (taken.size() > 1) {
      ring_.Complete(taken.back(), StatusCode::kOk, taken.size());
      taken.pop_back();
      ring_.Publish();
      EXPECT_EQ(requester.Completed(), numbers.front());
    }
    uint64_t value = 0;
    EXPECT_TRUE(requester.Done(numbers[4], &code, &value));
    EXPECT_EQ(value, 5u);
    EXPECT_FALSE(requester.Done(numbers[0], &code));
    ring_.Complete(taken[0], StatusCode::kAborted, 0);
    ring_.Publish();
    EXPECT_EQ(requester.Completed(), numbers.back() + 1);
    EXPECT_TRUE(requester.Done(numbers[0], &code));
    EXPECT_EQ(code, StatusCode::kAborted);
    EXPECT_EQ(memory_->words[0].failed, static_cast<uint64_t>(round) + 1);
  }
  EXPECT_EQ(memory_->words[0].first_failed, 1u << 8 | 10u);
  EXPECT_EQ(memory_->words[0].read, memory_->words[0].completed);
}

TEST_F(RingTest, TakesNoMoreThanItHasSlots) {
  // A hostile rank numbers slots before they are free.
  for (uint64_t number = 0; number < kPortSlots; ++number) {
    memory_->rings[0].slots[number].op = PortOp::kPut;
    memory_->rings[0].slots[number].sequence = number + 1;
  }
  uint32_t index = 0, n = 0;
  while (ring_.Take(&index)) ++n;
  EXPECT_EQ(n, kPortSlots);
  memory_->rings[0].slots[0].sequence = kPortSlots + 1;
  EXPECT_FALSE(ring_.Take(&index));
  ring_.Complete(0, StatusCode::kOk, 0);
  ring_.Publish();
  EXPECT_TRUE(ring_.Take(&index));
  EXPECT_EQ(index, 0u);
}

TEST_F(RingTest, RowsNeedBothSlots) {
  PortRequest request = Request();
  request.op = PortOp::kPutRows;
  request.sequence = 1;
  memory_->rings[0].slots[0] = request;
  uint32_t index = 0;
  EXPECT_FALSE(ring_.Take(&index));
  auto* const rows = reinterpret_cast<PortRows*>(&memory_->rings[0].slots[1]);
  rows->rows = 7;
  rows->sequence = 2;
  ASSERT_TRUE(ring_.Take(&index));
  EXPECT_EQ(ring_.slot(index).rows.rows, 7u);
  ring_.Complete(index, StatusCode::kOk, 0);
  ring_.Publish();
  EXPECT_EQ(memory_->words[0].completed, 2u);
}

TEST_F(RingTest, ReadGoesBeforeCompleted) {
  PortRequester requester(memory_, -1);
  uint32_t first = 0, second = 0;
  requester.Add(Request());
  requester.Add(Request());
  ASSERT_TRUE(ring_.Take(&first) && ring_.Take(&second));
  ring_.MarkRead(second);
  ring_.Publish();
  EXPECT_EQ(memory_->words[0].read, 0u);
  ring_.MarkRead(first);
  ring_.Publish();
  EXPECT_EQ(memory_->words[0].read, 2u);
  EXPECT_EQ(memory_->words[0].completed, 0u);
}

TEST(PortAtomicTest, KnowsTypesAndOperations) {
  EXPECT_FALSE(IsPortAtomic(PortAtomic::kAdd, static_cast<PortType>(8)));
  EXPECT_FALSE(IsPortAtomic(static_cast<PortAtomic>(10), PortType::kInt32));
  EXPECT_FALSE(IsPortAtomic(PortAtomic::kAnd, PortType::kFloat));
  EXPECT_FALSE(IsPortAtomic(PortAtomic::kLoad, PortType::kHalf));
  EXPECT_TRUE(IsPortAtomic(PortAtomic::kAdd, PortType::kBfloat16));
}

}  // namespace
}  // namespace iris::port
