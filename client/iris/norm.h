// iris::norm: sums over the ranks of a team fused with an RMS norm, over an
// iris::ccl::Communicator. iris/norm_types.h says what each operation computes.
//
//   namespace norm = iris::norm;
//   norm::Shape shape = {rows, hidden, iris::DType::kBf16, iris::DType::kBf16};
//   shape.weight = iris::DType::kBf16;
//   shape.residual = true;
//   norm::Buffers buffers = {partial_sums, out};
//   buffers.weight = weight;
//   buffers.residual = buffers.residual_out = residual;               // in place
//   iris::Status status = norm::AllReduceRmsNorm(comm, shape, buffers, stream);
//   status = comm.Synchronize(stream);                                // names the missing ranks
//
// The rules of a Communicator hold here: all ranks of the team make the same calls in the same
// order, with the same shape, on one stream at a time. A call checks its arguments, starts a kernel
// and returns; it allocates nothing, and may be captured in a graph. Check and Synchronize report
// failures on the device, and calls that differ between ranks, with both calls. A call of zero rows
// does nothing. Any communicator will do.
//
// Rows are consecutive, or a stride apart, which may differ between ranks. Buffers are any memory
// that the device can use, aligned to their elements. A call is fastest if rows are multiples of 16
// bytes and aligned to 16, and if `in`, `out` and residual_out lie in the symmetric heap, without
// gaps. `out` may be `in` if they have the same type and stride, and residual_out may be the
// residual with the same stride; otherwise a buffer that is written must not overlap with another.
// A buffer may lie in the gaps of another one that has as many bytes from row to row.
//
// Header-only over <iris/c_api.h>. C++17.
#pragma once

#include <cstdint>

#include "iris/c_api.h"
#include "iris/ccl.h"
#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "iris/fields.h"
#include "iris/norm_types.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::norm {

using ccl::Operation;

namespace impl {

inline iris_norm NormOf(Operation operation, const Shape& shape, const Buffers& buffers = {}) {
  auto call = iris::impl::Sized<iris_norm>();
  call.operation = static_cast<int32_t>(operation);
  ForFields(call, shape, buffers, iris::impl::ToC);
  return call;
}

inline Status Launch(ccl::Communicator& comm, Operation operation, const Shape& shape,
                     const Buffers& buffers, Stream& stream) {
  const iris_norm call = NormOf(operation, shape, buffers);
  return iris::impl::FromC(iris_norm_launch(comm.get(), &call, stream.get()));
}

}  // namespace impl

// Says how a call of this shape runs. kUnimplemented if the named variant does not support it.
// kResourceExhausted if rows are too long for the stage_bytes and max_blocks of the communicator.
inline StatusOr<Plan> Choose(const ccl::Communicator& comm, Operation operation,
                             const Shape& shape) {
  const iris_norm call = impl::NormOf(operation, shape);
  auto plan = iris::impl::Sized<iris_norm_plan>();
  IRIS_RETURN_IF_ERROR(iris::impl::FromC(iris_norm_choose(comm.get(), &call, &plan)));
  return Plan{static_cast<Variant>(plan.variant), plan.blocks, plan.threads, plan.parts};
}

// Computes residual_out, the sum of `in` over the ranks plus the residual, and `out`, its norm.
// Errors are those of Choose, kInvalidArgument for the buffers, and kFailedPrecondition if an
// earlier operation failed.
inline Status AllReduceRmsNorm(ccl::Communicator& comm, const Shape& shape, const Buffers& buffers,
                               Stream& stream) {
  return impl::Launch(comm, Operation::kAllReduceRmsNorm, shape, buffers, stream);
}
// Computes the `out` of AllReduceRmsNorm, but each rank computes its share of the rows (ShareOf)
// and has the residual of those rows only.
inline Status ReduceScatterRmsNormAllGather(ccl::Communicator& comm, const Shape& shape,
                                            const Buffers& buffers, Stream& stream) {
  return impl::Launch(comm, Operation::kReduceScatterRmsNormAllGather, shape, buffers, stream);
}

// The rows whose residual a rank has in ReduceScatterRmsNormAllGather.
struct Share {
  uint64_t begin = 0;
  uint64_t count = 0;
};
constexpr Share ShareOf(uint64_t rows, uint32_t members, uint32_t member) {
  const uint64_t each = rows / members;
  const uint64_t longer = rows % members;
  return {member * each + (member < longer ? member : longer), each + (member < longer ? 1 : 0)};
}

}  // namespace iris::norm
