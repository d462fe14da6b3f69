// kCopyEngine: the copy engine copies a rank's data to the others, between rounds.
#include <cstdint>

#include "iris/collective/operations.h"
#include "iris/translate.h"

namespace iris::ccl::impl {

namespace {

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  // Movements launch only rounds, no other kernels.
  if (shape.operation != Operation::kAllReduce) return FitRound(comm, plan);
  FitUnits(comm, shape, bytes, plan);
}

// Loads nothing: the variant uses the kernels of kDirect.
Result Prepare() { return {}; }

// Copies `bytes` to the same offset in the heap of the rank `step` places further in the team.
Result CopyOver(const Comm& comm, uint32_t step, uint8_t* to, const uint8_t* from, uint64_t bytes,
                backend::Stream& stream) {
  const uint32_t peer = comm.team.members[(comm.team.index + step) % comm.team.size];
  return backend::CopyAsync(iris::Translate(comm.context, peer, to), from, bytes, stream);
}

// The kernel makes this rank's slice, and the copy engine sends it to the others.
Result LaunchAllReduce(const Start& start, backend::Stream& stream) {
  const Comm& comm = start.comm;
  const Request& request = start.request;
  Common common = CommonOf(start);
  common.ends = 0;
  ReduceCall call = Slices(start);
  const uint64_t element_bytes = DTypeBytes(request.type);
  const uint64_t begin = call.row * call.count;
  const uint64_t count = begin < request.count ? Min(call.count, request.count - begin) : 0;
  uint8_t* slice = call.out + begin * element_bytes;
  call.out = slice;
  call.target = ReduceCall::kSelf;
  Result result = LaunchReduceDirect(start, common, call, false, stream);
  for (uint32_t step = 1; result.ok() && count != 0 && step < comm.team.size; ++step) {
    result = CopyOver(comm, step, slice, slice, count * element_bytes, stream);
  }
  return result.ok() ? LaunchRound(start, /*ends=*/true, stream) : result;
}

// Copies row m of `in`, or all of it, to row `index` of `out` of each rank m.
Result LaunchMovement(const Start& start, backend::Stream& stream) {
  const Comm& comm = start.comm;
  const Request& request = start.request;
  const uint32_t n = comm.team.size;
  const uint32_t me = comm.team.index;
  const bool to_each = request.operation == Operation::kAllToAll;
  const uint64_t row_bytes = request.count * DTypeBytes(request.type);
  const uint8_t* in = static_cast<const uint8_t*>(request.in);
  uint8_t* row = static_cast<uint8_t*>(request.out) + me * row_bytes;
  // After this round all ranks have come, so none reads its `out` any more.
  Result result = LaunchRound(start, /*ends=*/false, stream);
  for (uint32_t step = 1; result.ok() && step <= n; ++step) {
    const uint8_t* from = to_each ? in + (me + step) % n * row_bytes : in;
    if (step == n && from == row) continue;
    result = CopyOver(comm, step, row, from, row_bytes, stream);
  }
  return result.ok() ? LaunchRound(start, /*ends=*/true, stream) : result;
}

Result Launch(const Start& start, backend::Stream& stream) {
  const Request& request = start.request;
  if (request.in_offset_bytes == kNotInHeap || request.out_offset_bytes == kNotInHeap) {
    return Invalid("the variant copy_engine needs in and out in the heap");
  }
  return request.operation == Operation::kAllReduce ? LaunchAllReduce(start, stream)
                                                    : LaunchMovement(start, stream);
}

}  // namespace

const VariantRow kCopyEngineRow = {
    Variant::kCopyEngine,
    kAllReduceBit | Bit(Operation::kAllGather) | Bit(Operation::kAllToAll),
    nullptr,
    &Fit,
    &Prepare,
    &Launch,
};

}  // namespace iris::ccl::impl
