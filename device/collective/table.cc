#include "device/collective/table.h"

#include <cstring>

#include "device/backend/select.h"

namespace iris::ccl::impl {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kAny = ~0ull;
constexpr uint32_t kMany = kMaxTeamRanks;

// Operation, up to members, up to bytes, variant, blocks, threads (0: by size), unroll (1).
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

// Measured on two and four GPUs of 4.8 TB/s of one host, with a switch between them; for more
// members, from what a prototype needed on eight.
constexpr Rule kGpuRules[] = {
    {Operation::kAllReduce, 2, 64 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, 2, 256 * kKiB, Variant::kPackets, 64, 512},
    {Operation::kAllReduce, 2, 2 * kMiB, Variant::kDirect, 64, 256},
    {Operation::kAllReduce, 2, 32 * kMiB, Variant::kTwoPhase, 64, 512},
    {Operation::kAllReduce, 2, kAny, Variant::kPipeline, 128, 512},
    {Operation::kAllReduce, 4, 128 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, kMany, 32 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllReduce, kMany, 512 * kKiB, Variant::kTwoPackets, 16, 256},
    {Operation::kAllReduce, kMany, 2 * kMiB, Variant::kTwoShot, 64, 256},
    {Operation::kAllReduce, kMany, 8 * kMiB, Variant::kTwoPhase, 16, 512},
    {Operation::kAllReduce, kMany, 32 * kMiB, Variant::kTwoPhase, 128, 512},
    {Operation::kAllReduce, kMany, 512 * kMiB, Variant::kPipeline, 128, 512},
    {Operation::kAllReduce, kMany, kAny, Variant::kCopyEngine, 64, 512},
    {Operation::kAllReduce, kMany, kAny, Variant::kPipeline, 128, 512},
    {Operation::kReduceScatter, kMany, 256 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduceScatter, kMany, 16 * kMiB, Variant::kDirect, 0, 0},
    {Operation::kReduceScatter, kMany, kAny, Variant::kDirect, 64, 512},
    {Operation::kAllGather, kMany, 256 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllGather, 2, kAny, Variant::kDirect, 0, 0},
    {Operation::kAllGather, kMany, 256 * kMiB, Variant::kDirect, 0, 0},
    {Operation::kAllGather, kMany, kAny, Variant::kCopyEngine, 1, 32},
    {Operation::kAllToAll, kMany, 256 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kAllToAll, 2, kAny, Variant::kDirect, 0, 0},
    {Operation::kAllToAll, kMany, 256 * kMiB, Variant::kDirect, 0, 0},
    {Operation::kAllToAll, kMany, kAny, Variant::kCopyEngine, 1, 32},
    {Operation::kReduce, kMany, 32 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kReduce, kMany, kAny, Variant::kTwoShot, 0, 0},
    {Operation::kBroadcast, kMany, 64 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kBroadcast, kMany, 256 * kKiB, Variant::kDirect, 0, 0},
    {Operation::kBroadcast, kMany, kAny, Variant::kTwoShot, 0, 0},
    {Operation::kGather, kMany, 128 * kKiB, Variant::kPackets, 0, 0},
    {Operation::kScatter, kMany, 128 * kKiB, Variant::kPackets, 0, 0},
};

template <typename T>
void Default(T* field, T value) {
  if (*field == 0) *field = value;
}

bool Emulated() { return std::strcmp(backend::BackendName(), "emu") == 0; }

}  // namespace

Table BuiltInTable() {
  if (Emulated()) return {kEmuRules, sizeof(kEmuRules) / sizeof(Rule)};
  return {kGpuRules, sizeof(kGpuRules) / sizeof(Rule)};
}

Config Complete(Config config) {
  const bool emu = Emulated();
  Default(&config.max_blocks, emu ? 8u : kMaxBlocks);
  const uint32_t packet_blocks = emu ? 4 : 64;
  Default(&config.packet_blocks,
          packet_blocks < config.max_blocks ? packet_blocks : config.max_blocks);
  Default(&config.packet_bytes, uint64_t{4} << 10);
  Default(&config.stage_bytes, uint64_t{64} << 10);
  if (config.n_rules == 0) {
    const Table table = BuiltInTable();
    config.rules = table.rules;
    config.n_rules = table.n_rules;
  }
  return config;
}

}  // namespace iris::ccl::impl
