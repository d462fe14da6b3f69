#include "iris/rounds/launch.h"

#include <cstdint>

#include "iris/backend/heap_map.h"
#include "iris/translate.h"

namespace iris::ccl::impl {
namespace {

uint32_t Hash(uint64_t value, uint32_t seed) {
  value ^= static_cast<uint64_t>(seed) << 32 | seed;
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(value ^ value >> 32);
}

template <typename T>
void Default(T* field, T value) {
  if (*field == 0) *field = value;
}

// Returns a hash that is the same for calls that belong together.
uint32_t SignatureOf(const PackedCall& call) {
  uint32_t hash = 0;
  for (uint32_t k = 0; k < PackedCall::kWords; k += 2) {
    hash = Hash(call.words[k] | static_cast<uint64_t>(call.words[k + 1]) << 32, hash + k + 1);
  }
  return hash;
}

}  // namespace

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const uint64_t x = reinterpret_cast<uint64_t>(a);
  const uint64_t y = reinterpret_cast<uint64_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

Result CheckBuffer(const Comm& comm, const void* p, uint64_t bytes, uint64_t element_bytes,
                   uint64_t* offset_bytes) {
  if (p == nullptr) return Invalid("a buffer is null");
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  if (address % element_bytes != 0) return Invalid("a buffer is not aligned to its element type");
  if (address + bytes < address) return Invalid("a buffer reaches beyond the address space");
  const void* workspace =
      iris::AtOffset<void>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  if (Overlap(p, bytes, workspace, comm.workspace_bytes)) {
    return Invalid("a buffer overlaps the workspace");
  }
  *offset_bytes = kNotInHeap;
  if (InHeap(comm.context, p)) {
    *offset_bytes = OffsetBytes(comm.context, p);
    if (bytes > comm.context.stride_bytes - *offset_bytes) {
      return Invalid("a buffer begins in the heap and reaches beyond it");
    }
    // The heap may be smaller than the stride, into which it can grow.
    const backend::HeapMap* const map = comm.context.heap_map;
    if (map != nullptr && map->struct_bytes >= sizeof(backend::HeapMap) && map->mapped != nullptr &&
        !map->mapped(map, comm.context.rank, *offset_bytes, bytes)) {
      return Invalid(
          "a buffer begins in the heap and reaches beyond the part of it that is mapped: give "
          "fewer "
          "elements, or let the heap grow first");
    }
  }
  return {};
}

Result CheckComm(const Comm& comm, bool barrier) {
  if (comm.team.size == 0 || comm.report == nullptr) {
    return Invalid("the Comm was not made by CreateComm");
  }
  if (comm.config.barriers_only && !barrier) {
    return {StatusCode::kFailedPrecondition,
            "this communicator is for barriers alone: make another one without barriers_only"};
  }
  if (!CheckError(comm).ok()) {
    return {
        StatusCode::kFailedPrecondition,
        "an earlier operation of this communicator failed: iris_comm_check() says which and why, "
        "iris_comm_reset() makes it usable again"};
  }
  return {};
}

Config Complete(Config config) {
  constexpr bool emu = backend::Traits::kEmulated;
  if (config.barriers_only) {
    Config barriers;
    barriers.max_blocks = barriers.blocks = 1;
    barriers.block_threads = config.block_threads;
    barriers.timeout_ns = config.timeout_ns;
    barriers.early = config.early;
    barriers.barriers_only = true;
    return barriers;
  }
  Default(&config.max_blocks, emu ? 8u : kMaxBlocks);
  if (config.max_multiprocessors != 0 && config.max_blocks > config.max_multiprocessors) {
    config.max_blocks = config.max_multiprocessors;
  }
  const uint32_t packet_blocks = emu ? 4 : 64;
  Default(&config.packet_blocks,
          packet_blocks < config.max_blocks ? packet_blocks : config.max_blocks);
  Default(&config.packet_bytes, uint64_t{4} << 10);
  const uint32_t line_blocks = emu ? 4 : kMaxBlocks;
  Default(&config.line_blocks, line_blocks < config.max_blocks ? line_blocks : config.max_blocks);
  Default(&config.line_bytes, uint64_t{emu ? 16u : 64u} << 10);
  const uint32_t push_blocks = emu ? 4 : kMaxBlocks;
  Default(&config.push_blocks, push_blocks < config.max_blocks ? push_blocks : config.max_blocks);
  // On GPUs a chunk is 16 KiB for four ranks, so that 128 blocks have 2 MiB of a slice in flight,
  // as the prototype had.
  Default(&config.push_bytes, uint64_t{emu ? 16u : 192u} << 10);
  Default(&config.stage_bytes, uint64_t{64} << 10);
  return config;
}

Common CommonOf(const Comm& comm, const PackedCall& call, uint32_t blocks, bool early) {
  const Offsets offsets = OffsetsOf(comm.team.size, comm.config);
  Common common = {};
  common.context = comm.context;
  if (comm.config.timeout_ns != 0) common.context.timeout_ns = comm.config.timeout_ns;
  common.report = comm.report;
  common.header_offset_bytes = comm.workspace_offset_bytes;
  common.sync_offset_bytes = comm.workspace_offset_bytes + offsets.sync_bytes;
  common.packet_offset_bytes = comm.workspace_offset_bytes + offsets.packet_bytes;
  common.line_offset_bytes = comm.workspace_offset_bytes + offsets.line_bytes;
  common.push_offset_bytes = comm.workspace_offset_bytes + offsets.push_bytes;
  common.stage_offset_bytes = comm.workspace_offset_bytes + offsets.stage_bytes;
  common.packet_bytes = comm.config.packet_bytes;
  common.line_bytes = LineInboxBytes(comm.team.size, comm.config.line_bytes);
  common.push_bytes = PushInboxBytes(comm.team.size, comm.config.push_bytes);
  common.push_block_bytes = comm.config.push_bytes;
  common.stage_bytes = comm.config.stage_bytes;
  common.size = comm.team.size;
  common.index = comm.team.index;
  for (uint32_t m = 0; m < kMaxTeamRanks; ++m) common.members[m] = comm.team.members[m];
  common.operation = call.operation();
  common.check = comm.config.check_calls ? 1 : 0;
  common.ends = 1;
  common.early = early ? 1 : 0;
  common.blocks = static_cast<uint8_t>(blocks);
  common.call = call;
  common.signature = SignatureOf(common.call);
  common.traced = TracedAs(common.operation, kNoTracePeer);
  return common;
}

}  // namespace iris::ccl::impl
