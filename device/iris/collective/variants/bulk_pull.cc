// The row of kBulkPull. Its kernels: bulk_pull.h.
#include "iris/collective/variants/bulk_pull.h"

#include <cstdint>

#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {

extern const VariantRow kBulkPullRow;

namespace {

// Of a device, under way at once: more made measured links slower. And of a block, beside what its
// kernel has by itself.
constexpr uint32_t kInFlightBytes = 1 << 20;
constexpr uint32_t kMaxRingBytes = backend::Traits::kMaxDynamicSharedBytes - 8 * 1024;
// Each tile costs a sync of the block, whatever its bytes. The ring is cut into so many stages,
// where that makes tiles within these bounds, and short rows into two tiles a block.
constexpr uint32_t kUsualStages = 4;
constexpr uint32_t kMinStages = 3;
constexpr uint32_t kMinTileBytes = 1024;
constexpr uint32_t kFewTileBytes = 4096;
constexpr uint32_t kMaxTileBytes = 16 * 1024;
constexpr uint32_t kUsualBlocks = 16;

// The same on all members.
PullRing RingOf(const Start& start, uint64_t row_bytes) {
  const uint64_t n = start.comm.team.size;
  const uint64_t blocks = start.plan.blocks;
  const uint64_t in_flight = kInFlightBytes / blocks;
  uint64_t tile = in_flight / kUsualStages / (n - 1);
  tile = Min(tile < kFewTileBytes ? kFewTileBytes : tile, kMaxTileBytes);
  const uint64_t half = row_bytes / blocks / 2;
  tile = Min(tile, half < kMinTileBytes ? kMinTileBytes : half);
  tile = Min(tile, kMaxRingBytes / kMinStages / n) / 128 * 128;
  const uint64_t wanted = in_flight / (tile * (n - 1));
  const uint64_t most = Min(kMaxPullStages, kMaxRingBytes / (n * tile));
  PullRing ring = {};
  ring.tile_bytes = static_cast<uint32_t>(tile);
  ring.stages = static_cast<uint32_t>(Min(most, wanted < kMinStages ? kMinStages : wanted));
  return ring;
}

struct Kernels {
  template <typename T, typename Op, uint32_t N>
  static auto Of() {
    return &ReduceBulkPull<T, Op, N>;
  }
};

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  const bool usual = plan->blocks == 0;
  FitUnits(comm, shape, bytes, plan);
  if (usual && plan->blocks > kUsualBlocks) plan->blocks = kUsualBlocks;
  plan->threads = static_cast<uint32_t>(RoundUp(plan->threads, backend::WarpSize()));
}

Result Prepare() {
  const Result result = PrepareAll<Kernels>();
  return result.ok() ? backend::PrepareKernel(&GatherBulkPull<>) : result;
}

Result Launch(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  const auto launch = [&](const char* name, auto kernel, const auto& call, uint64_t row_bytes) {
    const PullRing ring = RingOf(start, row_bytes);
    const uint32_t shared_bytes = ring.stages * start.comm.team.size * ring.tile_bytes;
    const LaunchConfig config = {start.plan.blocks, start.plan.threads, shared_bytes,
                                 BeginsEarly(start)};
    return LaunchKernelAs(config, start, kBulkPullRow, name, stream, kernel, CommonOf(start), call,
                          ring);
  };
  if (request.operation == Operation::kAllGather) {
    const MoveCall call = Rows(start);
    return launch("GatherBulkPull", &GatherBulkPull<>, call, call.count);
  }
  const bool scatter = request.operation == Operation::kReduceScatter;
  const ReduceCall call = scatter ? WholeRows(start) : Slices(start);
  return launch("ReduceBulkPull", Select<Kernels>(request.type, request.op, start.comm.team.size),
                call, call.count * DTypeBytes(request.type));
}

}  // namespace

const VariantRow kBulkPullRow = {
    Variant::kBulkPull,
    "bulk_pull",
    kAllReduceBit | kReduceScatterBit | Bit(Operation::kAllGather),
    nullptr,
    &Fit,
    &Prepare,
    &Launch,
};

}  // namespace iris::ccl::impl
