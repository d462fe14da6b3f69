#include "iris/collective/table.h"

#include <array>
#include <cstddef>

#include "iris/backend/select.h"

namespace iris::ccl::impl {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kAny = ~0ull;
constexpr uint32_t kMany = kMaxTeamRanks;

// Rules: operation, most ranks, most bytes, variant, blocks, threads (0: by size), unroll (1).
constexpr Rule kEmuRules[] = {
    {Operation::kAllReduce, kMany, 16 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, kMany, kAny, Variant::kTwoShot, 0, 0},
    {Operation::kReduceScatter, kMany, 16 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduceScatter, kMany, kAny, Variant::kDirect, 0, 0},
    {Operation::kReduce, kMany, 4 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduce, kMany, kAny, Variant::kTwoShot, 0, 0},
    {Operation::kAllGather, kMany, 16 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllToAll, kMany, 16 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kBroadcast, kMany, 4 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kBroadcast, kMany, 256 * kKiB, Variant::kDirect, 0, 0},
    {Operation::kBroadcast, kMany, kAny, Variant::kTwoShot, 0, 0},
    {Operation::kGather, kMany, 16 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kScatter, kMany, 16 * kKiB, Variant::kPackets, 0, 0},
};

// Measured by `iris_bench tune`, and again for close calls, on two and four GPUs of 4.8 TB/s of one
// host with a switch (docs/benchmarks.md). The results for four ranks stand for more. Among rules
// within 2 %, the one with the fewest threads was taken. Rules for lines precede those that apply
// without lines. Lines were measured on two GPUs; on four, the rules for lines and kPush follow
// prototypes of these kernels, if a prototype won by more than 2 %. The rules for three ranks were
// not measured again.
constexpr Rule kGpuRules[] = {
    {Operation::kAllReduce, 2, 48 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, 2, 192 * kKiB, Variant::kLines, 64, 256},
    {Operation::kAllReduce, 2, 384 * kKiB, Variant::kLines, 64, 512},
    {Operation::kAllReduce, 2, 768 * kKiB, Variant::kTwoLines, 64, 512},
    {Operation::kAllReduce, 2, 5 * kMiB, Variant::kTwoLines, 128, 512},
    {Operation::kAllReduce, 2, 128 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, 2, 512 * kKiB, Variant::kPackets, 64, 512},
    {Operation::kAllReduce, 2, 2 * kMiB, Variant::kDirect, 64, 256},
    {Operation::kAllReduce, 2, 6 * kMiB, Variant::kTwoShot, 64, 256, 2},
    {Operation::kAllReduce, 2, 24 * kMiB, Variant::kTwoPhase, 64, 256},
    {Operation::kAllReduce, 2, 48 * kMiB, Variant::kTwoPhase, 32, 256},
    {Operation::kAllReduce, 2, 384 * kMiB, Variant::kTwoPhase, 64, 256},
    {Operation::kAllReduce, 2, kAny, Variant::kCopyEngine, 32, 512},
    {Operation::kAllReduce, 2, kAny, Variant::kTwoPhase, 64, 256},
    {Operation::kAllReduce, kMany, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, 4, 128 * kKiB, Variant::kLines, 64, 256},
    {Operation::kAllReduce, 4, 384 * kKiB, Variant::kTwoLines, 64, 128},
    {Operation::kAllReduce, 4, 768 * kKiB, Variant::kTwoLines, 64, 256},
    {Operation::kAllReduce, 4, 2 * kMiB, Variant::kTwoLines, 128, 256},
    {Operation::kAllReduce, 4, 128 * kKiB, Variant::kPackets, 16, 256},
    {Operation::kAllReduce, kMany, 512 * kKiB, Variant::kTwoPackets, 16, 256},
    {Operation::kAllReduce, kMany, 2 * kMiB, Variant::kTwoShot, 64, 256},
    {Operation::kAllReduce, kMany, 8 * kMiB, Variant::kTwoPhase, 32, 256},
    {Operation::kAllReduce, 3, 48 * kMiB, Variant::kTwoPhase, 32, 256},
    {Operation::kAllReduce, 3, kAny, Variant::kCopyEngine, 64, 512},
    {Operation::kAllReduce, 3, kAny, Variant::kTwoPhase, 64, 512},
    {Operation::kAllReduce, 4, 48 * kMiB, Variant::kPush, 64, 512},
    {Operation::kAllReduce, 4, 192 * kMiB, Variant::kPush, 128, 512},
    {Operation::kAllReduce, kMany, 48 * kMiB, Variant::kTwoPhase, 32, 256},
    {Operation::kAllReduce, kMany, kAny, Variant::kCopyEngine, 64, 512},
    {Operation::kAllReduce, kMany, kAny, Variant::kTwoPhase, 64, 512},
    {Operation::kReduceScatter, 4, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduceScatter, 4, 192 * kKiB, Variant::kLines, 64, 128},
    {Operation::kReduceScatter, 4, 384 * kKiB, Variant::kLines, 64, 256},
    {Operation::kReduceScatter, 4, 768 * kKiB, Variant::kLines, 64, 512},
    {Operation::kReduceScatter, 4, 5 * kMiB, Variant::kLines, 128, 512},
    {Operation::kReduceScatter, kMany, 512 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduceScatter, 2, 2 * kMiB, Variant::kDirect, 128, 256},
    {Operation::kReduceScatter, 2, 8 * kMiB, Variant::kDirect, 64, 256},
    {Operation::kReduceScatter, 2, 48 * kMiB, Variant::kDirect, 128, 256},
    {Operation::kReduceScatter, kMany, 2 * kMiB, Variant::kDirect, 64, 256, 2},
    {Operation::kReduceScatter, kMany, 8 * kMiB, Variant::kDirect, 32, 256},
    {Operation::kReduceScatter, 3, 48 * kMiB, Variant::kDirect, 16, 512},
    {Operation::kReduceScatter, 3, kAny, Variant::kDirect, 64, 512},
    {Operation::kReduceScatter, 4, 192 * kMiB, Variant::kPush, 128, 512},
    {Operation::kReduceScatter, kMany, 48 * kMiB, Variant::kDirect, 16, 512},
    {Operation::kReduceScatter, kMany, kAny, Variant::kDirect, 64, 512},
    {Operation::kAllGather, 4, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllGather, 4, 192 * kKiB, Variant::kLines, 64, 128},
    {Operation::kAllGather, 4, 384 * kKiB, Variant::kLines, 64, 256},
    {Operation::kAllGather, 4, 768 * kKiB, Variant::kLines, 64, 512},
    {Operation::kAllGather, 4, 3 * kMiB, Variant::kLines, 128, 512},
    {Operation::kAllGather, kMany, 512 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllGather, 2, 2 * kMiB, Variant::kDirect, 16, 256},
    {Operation::kAllGather, 2, 8 * kMiB, Variant::kDirect, 64, 256},
    {Operation::kAllGather, kMany, 2 * kMiB, Variant::kDirect, 16, 512},
    {Operation::kAllGather, kMany, 8 * kMiB, Variant::kDirect, 32, 256, 2},
    {Operation::kAllGather, kMany, 48 * kMiB, Variant::kDirect, 64, 256},
    {Operation::kAllGather, 2, kAny, Variant::kDirect, 0, 0},
    {Operation::kAllGather, kMany, 384 * kMiB, Variant::kDirect, 0, 0},
    {Operation::kAllGather, kMany, kAny, Variant::kCopyEngine, 1, 32},
    {Operation::kAllToAll, kMany, 512 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllToAll, 2, 8 * kMiB, Variant::kDirect, 16, 256},
    {Operation::kAllToAll, kMany, 2 * kMiB, Variant::kDirect, 16, 256},
    {Operation::kAllToAll, kMany, 48 * kMiB, Variant::kDirect, 64, 256},
    {Operation::kAllToAll, 2, kAny, Variant::kDirect, 0, 0},
    {Operation::kAllToAll, kMany, 384 * kMiB, Variant::kDirect, 0, 0},
    {Operation::kAllToAll, kMany, kAny, Variant::kCopyEngine, 1, 32},
    {Operation::kReduce, 2, 128 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduce, 2, 512 * kKiB, Variant::kPackets, 64, 512},
    {Operation::kReduce, 2, 2 * kMiB, Variant::kTwoShot, 32, 256},
    {Operation::kReduce, 2, 8 * kMiB, Variant::kTwoShot, 64, 256, 2},
    {Operation::kReduce, 2, kAny, Variant::kTwoShot, 64, 512, 2},
    {Operation::kReduce, 4, 512 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduce, kMany, 32 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduce, kMany, 48 * kMiB, Variant::kTwoShot, 32, 256, 2},
    {Operation::kReduce, kMany, kAny, Variant::kTwoShot, 16, 512, 2},
    {Operation::kBroadcast, kMany, 128 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kBroadcast, 2, 512 * kKiB, Variant::kPackets, 64, 512},
    {Operation::kBroadcast, 2, 2 * kMiB, Variant::kDirect, 16, 256},
    {Operation::kBroadcast, 2, kAny, Variant::kDirect, 64, 256},
    {Operation::kBroadcast, kMany, 512 * kKiB, Variant::kTwoShot, 32, 256},
    {Operation::kBroadcast, kMany, 2 * kMiB, Variant::kTwoShot, 64, 512},
    {Operation::kBroadcast, kMany, 8 * kMiB, Variant::kTwoShot, 128, 256},
    {Operation::kBroadcast, kMany, kAny, Variant::kTwoShot, 16, 256},
    {Operation::kGather, kMany, 512 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kGather, 2, kAny, Variant::kDirect, 64, 256},
    {Operation::kGather, kMany, kAny, Variant::kDirect, 16, 256},
    {Operation::kScatter, kMany, 512 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kScatter, kMany, kAny, Variant::kDirect, 64, 256},
};

// The rules for 16 and for 8 blocks apply before those above. Measured on two of these GPUs.
constexpr Rule kRulesOf16[] = {
    {Operation::kAllReduce, 2, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, 2, 96 * kKiB, Variant::kPackets, 16, 512},
    {Operation::kAllReduce, 2, 384 * kKiB, Variant::kTwoLines, 16, 512},
    {Operation::kAllReduce, 2, 2 * kMiB, Variant::kTwoShot, 16, 512},
    {Operation::kAllReduce, 2, 8 * kMiB, Variant::kTwoPhase, 16, 512},
    {Operation::kAllReduce, 2, kAny, Variant::kTwoPhase, 16, 512, 2},
    {Operation::kReduceScatter, 2, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduceScatter, 2, 96 * kKiB, Variant::kPackets, 16, 512},
    {Operation::kReduceScatter, 2, 384 * kKiB, Variant::kLines, 16, 512},
    {Operation::kReduceScatter, 2, 8 * kMiB, Variant::kDirect, 16, 512},
    {Operation::kReduceScatter, 2, kAny, Variant::kDirect, 16, 512, 2},
    {Operation::kAllGather, 2, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllGather, 2, 96 * kKiB, Variant::kPackets, 16, 512},
    {Operation::kAllGather, 2, 384 * kKiB, Variant::kLines, 16, 512},
    {Operation::kAllGather, 2, kAny, Variant::kDirect, 16, 512},
};
constexpr Rule kRulesOf8[] = {
    {Operation::kAllReduce, 2, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, 2, 96 * kKiB, Variant::kTwoLines, 8, 512},
    {Operation::kAllReduce, 2, 384 * kKiB, Variant::kDirect, 8, 512},
    {Operation::kAllReduce, 2, 2 * kMiB, Variant::kTwoPhase, 8, 512, 2},
    {Operation::kAllReduce, 2, kAny, Variant::kTwoShot, 8, 512, 2},
    {Operation::kReduceScatter, 2, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduceScatter, 2, 384 * kKiB, Variant::kLines, 8, 512},
    {Operation::kReduceScatter, 2, kAny, Variant::kDirect, 8, 512, 2},
    {Operation::kAllGather, 2, 24 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllGather, 2, 96 * kKiB, Variant::kLines, 8, 512},
    {Operation::kAllGather, 2, kAny, Variant::kDirect, 8, 512},
};

// The rules of kPush are for many blocks: no prototype ran it with fewer than 24.
constexpr bool IsForFewBlocks(const Rule& rule) { return rule.variant != Variant::kPush; }
constexpr size_t CountForFewBlocks() {
  size_t n = 0;
  for (const Rule& rule : kGpuRules) n += IsForFewBlocks(rule) ? 1 : 0;
  return n;
}
constexpr size_t kForFewBlocks = CountForFewBlocks();

template <size_t N>
constexpr std::array<Rule, N + kForFewBlocks> WithGpuRules(const Rule (&first)[N]) {
  std::array<Rule, N + kForFewBlocks> all = {};
  size_t n = 0;
  for (const Rule& rule : first) all[n++] = rule;
  for (const Rule& rule : kGpuRules) {
    if (IsForFewBlocks(rule)) all[n++] = rule;
  }
  return all;
}
constexpr auto kUpTo16Rules = WithGpuRules(kRulesOf16);
constexpr auto kUpTo8Rules = WithGpuRules(kRulesOf8);

}  // namespace

Table BuiltInTable(bool emulated) {
  if (emulated) return {kEmuRules, sizeof(kEmuRules) / sizeof(Rule)};
  return {kGpuRules, sizeof(kGpuRules) / sizeof(Rule)};
}

Table FewBlocksTable(uint32_t max_blocks) {
  if (max_blocks <= 8) return {kUpTo8Rules.data(), kUpTo8Rules.size()};
  return {kUpTo16Rules.data(), kUpTo16Rules.size()};
}

Config WithRules(Config config) {
  if (config.n_rules == 0) {
    const Table table = config.max_blocks <= kFewBlocks && !backend::Traits::kEmulated
                            ? FewBlocksTable(config.max_blocks)
                            : BuiltInTable(backend::Traits::kEmulated);
    config.rules = table.rules;
    config.n_rules = table.n_rules;
  }
  return config;
}

}  // namespace iris::ccl::impl
