// The row of kPush. push.h has its kernels.
#include "iris/collective/variants/push.h"

#include <cstdint>

#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"

namespace iris::ccl::impl {

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReducePush<T, Op, N>);

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  FitUnits(comm, shape, bytes, plan);
  // Use full warps, and no more blocks than have inboxes.
  plan->threads = static_cast<uint32_t>(RoundUp(plan->threads, backend::WarpSize()));
  if (plan->blocks > comm.config.push_blocks) plan->blocks = comm.config.push_blocks;
}

Result Launch(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  const bool scatter = request.operation == Operation::kReduceScatter;
  return LaunchEarly(start, "ReducePush", stream,
                     Select<Kernels>(request.type, request.op, start.comm.team.size),
                     CommonOf(start), scatter ? WholeRows(start) : Slices(start));
}

}  // namespace

const VariantRow kPushRow = {
    Variant::kPush, kAllReduceBit | kReduceScatterBit, nullptr, &Fit, &PrepareAll<Kernels>, &Launch,
};

}  // namespace iris::ccl::impl
