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
constexpr uint32_t kTileBytes = 4096;
constexpr uint32_t kMinStages = 3;
constexpr uint32_t kUsualBlocks = 16;

PullRing RingOf(const Start& start) {
  const uint32_t n = start.comm.team.size;
  PullRing ring = {};
  ring.tile_bytes =
      static_cast<uint32_t>(Min(kTileBytes, kMaxRingBytes / kMinStages / n / 16 * 16));
  const uint64_t stage_bytes = uint64_t{n} * ring.tile_bytes;
  const uint64_t from_peers = stage_bytes - ring.tile_bytes;
  const uint64_t wanted = kInFlightBytes / start.plan.blocks / from_peers;
  const uint64_t most = Min(kMaxPullStages, kMaxRingBytes / stage_bytes);
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
  const PullRing ring = RingOf(start);
  const uint32_t shared_bytes = ring.stages * start.comm.team.size * ring.tile_bytes;
  const LaunchConfig config = {start.plan.blocks, start.plan.threads, shared_bytes,
                               BeginsEarly(start)};
  if (request.operation == Operation::kAllGather) {
    return LaunchKernelAs(config, start, kBulkPullRow, "GatherBulkPull", stream, &GatherBulkPull<>,
                          CommonOf(start), Rows(start), ring);
  }
  const bool scatter = request.operation == Operation::kReduceScatter;
  return LaunchKernelAs(config, start, kBulkPullRow, "ReduceBulkPull", stream,
                        Select<Kernels>(request.type, request.op, start.comm.team.size),
                        CommonOf(start), scatter ? WholeRows(start) : Slices(start), ring);
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
