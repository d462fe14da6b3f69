// Measures irisd's memory for an allocation: its operator new counts here as in irisd.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/account/core_memory.h"
#include "server/job/job.h"

namespace iris::server {
namespace {

constexpr uint64_t kAllocations = 20'000;

uint64_t BytesOfEach(absl::string_view name_prefix, const TensorInfo& tensor) {
  Job job;
  job.allocator = OffsetAllocator(uint64_t{1} << 40);
  const uint64_t before = CoreMemory::Total();
  for (uint64_t k = 0; k < kAllocations; ++k) {
    const auto offset = job.Place({.bytes = 4096,
                                   .k = k,
                                   .label = AllocationLabel(absl::StrCat(name_prefix, k), tensor),
                                   .alignment_log2 = 10});
    EXPECT_TRUE(offset.ok()) << offset.status();
  }
  EXPECT_EQ(job.names.size(), kAllocations);
  return (CoreMemory::Total() - before) / kAllocations;
}

TEST(AllocationBytes, WithAUsualName) {
  const uint64_t bytes = BytesOfEach("layers.12.mlp.weight.", {"bfloat16", {4096, 14336}});
  EXPECT_GT(bytes, 100u) << "they are counted";
  EXPECT_LE(bytes, 300u);
}

TEST(AllocationBytes, WithTheLongestNameAndEveryDimension) {
  const uint64_t bytes =
      BytesOfEach(std::string(120, 'n'), {std::string(16, 'd'), std::vector<uint64_t>(16, 1)});
  EXPECT_LE(bytes, 600u);
}

}  // namespace
}  // namespace iris::server
