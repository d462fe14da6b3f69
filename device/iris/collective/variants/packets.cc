// The row of kPackets. packets.h has its kernels.
#include "iris/collective/variants/packets.h"

#include <cstdint>

#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"

namespace iris::ccl::impl {

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReducePackets<T, Op, N>);

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  // A block sends each rank all data, or only the row of that rank.
  const bool one_row = shape.operation == Operation::kAllReduce ||
                       shape.operation == Operation::kReduce ||
                       shape.operation == Operation::kBroadcast;
  FitWords(comm, ((one_row ? bytes : bytes / comm.team.size) + 7) / 8, plan);
}

Result Prepare() {
  const Result result = PrepareAll<Kernels>();
  return result.ok() ? backend::PrepareKernel(&MovePackets<>) : result;
}

Result Launch(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  if ((Bit(request.operation) & kMovementBits) != 0) {
    return LaunchEarly(start, "MovePackets", stream, &MovePackets<>, CommonOf(start), Rows(start));
  }
  ReduceCall call = WholeRows(start);
  if (request.operation == Operation::kAllReduce) call.target = ReduceCall::kAll;
  return LaunchEarly(start, "ReducePackets", stream,
                     Select<Kernels>(request.type, request.op, start.comm.team.size),
                     CommonOf(start), call);
}

}  // namespace

const VariantRow kPacketsRow = {
    Variant::kPackets, kAllReduceBit | kReduceScatterBit | kReduceBit | kMovementBits,
    nullptr,           &Fit,
    &Prepare,          &Launch,
};

}  // namespace iris::ccl::impl
