// The row of kLines. lines.h has its kernels.
#include "iris/collective/variants/lines.h"

#include <cstdint>

#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"

namespace iris::ccl::impl {

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReduceLines<T, Op, N>);

bool Supports(const Shape& shape, uint32_t members) {
  if (!kHasLines || members < 2 || members > kMaxLineMembers) return false;
  return shape.operation == Operation::kAllGather || HasFixedKernel(shape.type, shape.op, members);
}

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  // A block sends each rank all data, or only the row of that rank.
  FitLines(comm, shape.operation == Operation::kAllReduce ? bytes : bytes / comm.team.size, plan);
}

Result Prepare() {
  if (!kHasLines) return {};
  const Result result = PrepareFixed<Kernels>();
  return result.ok() ? backend::PrepareKernel(&GatherLines<>) : result;
}

Result Launch(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  if (request.operation == Operation::kAllGather) {
    return LaunchEarly(start, "GatherLines", stream, &GatherLines<>, CommonOf(start), Rows(start));
  }
  ReduceCall call = WholeRows(start);
  if (request.operation == Operation::kAllReduce) call.target = ReduceCall::kAll;
  return LaunchEarly(start, "ReduceLines", stream,
                     SelectFixed<Kernels>(request.type, start.comm.team.size), CommonOf(start),
                     call);
}

}  // namespace

const VariantRow kLinesRow = {
    Variant::kLines, kAllReduceBit | kReduceScatterBit | Bit(Operation::kAllGather),
    &Supports,       &Fit,
    &Prepare,        &Launch,
};

}  // namespace iris::ccl::impl
