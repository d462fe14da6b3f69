// OffsetAllocator against NaiveHeap over random operations: same offsets, same refusals, same
// holes.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/heap/offset_allocator.h"
#include "tests/model/naive_heap.h"
#include "tests/model/seed.h"

namespace iris::model {
namespace {

using server::OffsetAllocator;

constexpr uint64_t kUnit = 1024;
constexpr uint64_t kOps = 200000;

class Comparison {
 public:
  explicit Comparison(uint64_t seed) : random_(seed) { Reset(); }

  void Step() {
    const uint64_t dice = random_.Below(1000);
    if (dice == 0) return Reset();
    if (dice < 10) return Grow();
    if (dice < 20) return FreeSomethingWrong();
    // Phases of filling and of emptying, so that both ends are visited.
    if (dice < 30) filling_ = !filling_;
    if (dice < 200) return CheckShortfall();
    if (random_.Below(100) < (filling_ ? 65 : 40)) return Allocate();
    Free();
  }

  void CheckSame() {
    ASSERT_TRUE(heap_.CheckInvariants().ok()) << heap_.CheckInvariants();
    ASSERT_EQ(heap_.capacity_bytes(), naive_.capacity());
    ASSERT_EQ(heap_.used_bytes(), naive_.used());
    ASSERT_EQ(heap_.n_allocations(), naive_.taken().size());
    const auto gaps = naive_.Gaps();
    ASSERT_EQ(heap_.n_holes(), gaps.size());
    uint64_t largest = 0;
    for (const auto& gap : gaps) largest = std::max(largest, gap.end - gap.begin);
    ASSERT_EQ(heap_.largest_free_bytes(), largest);
  }

 private:
  void Reset() {
    const uint64_t capacity = random_.Below(300) * kUnit;
    heap_ = OffsetAllocator(capacity, kUnit);
    naive_ = NaiveHeap(capacity, kUnit);
    offsets_.clear();
  }

  uint64_t SomeBytes() {
    switch (random_.Below(4)) {
      case 0:
        return random_.Below(3);
      case 1:
        return random_.Below(4 * kUnit);
      case 2:
        return random_.Below(16) * kUnit;
      default:
        return random_.Below(80 * kUnit);
    }
  }
  uint64_t SomeAlignment() { return random_.OneIn(2) ? kUnit : uint64_t{1} << random_.Below(18); }

  void Allocate() {
    const uint64_t bytes = SomeBytes(), alignment = SomeAlignment();
    const auto expected = naive_.Allocate(bytes, alignment);
    const auto actual = heap_.Allocate(bytes, alignment);
    ASSERT_EQ(actual.ok(), expected.has_value())
        << "allocate " << bytes << " aligned " << alignment;
    if (!expected.has_value()) {
      ASSERT_TRUE(absl::IsResourceExhausted(actual.status()));
      return;
    }
    ASSERT_EQ(*actual, *expected) << "allocate " << bytes << " aligned " << alignment;
    ASSERT_EQ(*actual % alignment, 0u);
    offsets_.push_back(*actual);
  }

  void Free() {
    if (offsets_.empty()) return;
    const size_t victim = random_.Below(offsets_.size());
    const uint64_t offset = offsets_[victim];
    offsets_[victim] = offsets_.back();
    offsets_.pop_back();
    ASSERT_TRUE(naive_.Free(offset));
    ASSERT_TRUE(heap_.Free(offset).ok()) << "free " << offset;
  }

  void FreeSomethingWrong() {
    const uint64_t offset = random_.Below(heap_.capacity_bytes() + kUnit);
    if (naive_.taken().contains(offset)) return;
    ASSERT_TRUE(absl::IsInvalidArgument(heap_.Free(offset))) << "free " << offset;
  }

  void Grow() {
    const uint64_t capacity = heap_.capacity_bytes() + random_.Below(40) * kUnit;
    if (capacity > 600 * kUnit) return;
    ASSERT_TRUE(heap_.Grow(capacity).ok());
    naive_.Grow(capacity);
  }

  void CheckShortfall() {
    if (!random_.OneIn(8)) return;  // the naive way is slow
    const uint64_t bytes = SomeBytes(), alignment = SomeAlignment();
    ASSERT_EQ(heap_.ShortfallBytes(bytes, alignment), naive_.Shortfall(bytes, alignment))
        << "shortfall of " << bytes << " aligned " << alignment;
  }

  Random random_;
  OffsetAllocator heap_{0};
  NaiveHeap naive_{0, kUnit};
  std::vector<uint64_t> offsets_;
  bool filling_ = true;
};

TEST(AllocatorModel, AgreesWithTheNaiveHeap) {
  const RandomRun run = BeginRandomRun("allocator_model_test", kOps);
  Comparison comparison(run.seed);
  for (uint64_t i = 0; i < run.n_ops; ++i) {
    comparison.Step();
    comparison.CheckSame();
    if (testing::Test::HasFailure()) {
      FAIL() << "at operation " << i << " of seed " << run.seed
             << ": replay with IRIS_TEST_SEED=" << run.seed;
    }
  }
}

}  // namespace
}  // namespace iris::model
