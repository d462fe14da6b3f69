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
//   status = comm.Synchronize(stream);                                // names who was missing
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
#include "iris/norm_types.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::norm {

using ccl::Operation;

// The shape of a call, the same on all ranks of the team.
struct Shape {
  uint64_t rows = 0;            // all members together
  uint64_t hidden = 0;          // columns, at least 1
  DType in = DType::kBf16;      // kF32, kF16 or kBf16; also of the residual
  DType out = DType::kBf16;     // as `in`; kF8E4M3 or kF8E5M2; for an `in` of kF32 also kF16, kBf16
  DType weight = DType::kNone;  // kF32, kF16 or kBf16; kNone: there is none, all are 1
  bool residual = false;        // Buffers::residual and residual_out are used
  Scaling scaling = Scaling::kNone;  // of an `out` of fp8, which has one
  float epsilon = 1e-6f;
  float weight_offset = 0;  // is added to each weight
  Variant variant = Variant::kAuto;
};

struct Buffers {
  const void* in = nullptr;        // [rows, hidden]: what is summed
  void* out = nullptr;             // [rows, hidden]
  const void* weight = nullptr;    // [hidden]
  const void* residual = nullptr;  // [rows, hidden], or this member's share of the rows
  void* residual_out = nullptr;    // likewise
  const float* scale = nullptr;    // Scaling::kStatic: one
  float* scales = nullptr;         // kPerRow: [rows]; kPerGroup: [rows, ceil(hidden / 128)]
  // Elements from one row to the next, at least `hidden`; 0: `hidden`. Ranks may differ in them.
  uint64_t in_stride = 0;
  uint64_t out_stride = 0;
  uint64_t residual_stride = 0;
  uint64_t residual_out_stride = 0;
};

// How a call runs.
struct Plan {
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t parts = 0;  // blocks that share a row
};

namespace impl {

inline iris_norm NormOf(Operation operation, const Shape& shape) {
  iris_norm call = {};
  call.size = sizeof(call);
  call.operation = static_cast<int32_t>(operation);
  call.variant = static_cast<int32_t>(shape.variant);
  call.rows = shape.rows;
  call.hidden = shape.hidden;
  call.in_dtype = static_cast<int32_t>(shape.in);
  call.out_dtype = static_cast<int32_t>(shape.out);
  call.weight_dtype = static_cast<int32_t>(shape.weight);
  call.scaling = static_cast<int32_t>(shape.scaling);
  call.epsilon = shape.epsilon;
  call.weight_offset = shape.weight_offset;
  call.has_residual = shape.residual ? 1 : 0;
  return call;
}

inline Status Launch(ccl::Communicator& comm, Operation operation, const Shape& shape,
                     const Buffers& buffers, Stream& stream) {
  iris_norm call = NormOf(operation, shape);
  call.in = buffers.in;
  call.residual = buffers.residual;
  call.residual_out = buffers.residual_out;
  call.weight = buffers.weight;
  call.out = buffers.out;
  call.scale = buffers.scale;
  call.scales = buffers.scales;
  call.in_stride = buffers.in_stride;
  call.out_stride = buffers.out_stride;
  call.residual_stride = buffers.residual_stride;
  call.residual_out_stride = buffers.residual_out_stride;
  return iris::impl::FromC(iris_norm_launch(comm.get(), &call, stream.get()));
}

}  // namespace impl

// Says how a call of this shape runs. kUnimplemented: the named variant does not support it.
// kResourceExhausted: rows are too long for the stage_bytes and max_blocks of the communicator.
inline StatusOr<Plan> Choose(const ccl::Communicator& comm, Operation operation,
                             const Shape& shape) {
  const iris_norm call = impl::NormOf(operation, shape);
  iris_norm_plan plan = {};
  plan.size = sizeof(plan);
  IRIS_RETURN_IF_ERROR(iris::impl::FromC(iris_norm_choose(comm.get(), &call, &plan)));
  return Plan{static_cast<Variant>(plan.variant), plan.blocks, plan.threads, plan.parts};
}

// Computes residual_out = the sum of `in` over the ranks, plus residual; out = its norm. Errors are
// those of Choose; kInvalidArgument for the buffers; kFailedPrecondition if an earlier operation
// failed.
inline Status AllReduceRmsNorm(ccl::Communicator& comm, const Shape& shape, const Buffers& buffers,
                               Stream& stream) {
  return impl::Launch(comm, Operation::kAllReduceRmsNorm, shape, buffers, stream);
}
// Computes the same `out`, but each rank computes its share of the rows (ShareOf) and has the
// residual of those rows alone.
inline Status ReduceScatterRmsNormAllGather(ccl::Communicator& comm, const Shape& shape,
                                            const Buffers& buffers, Stream& stream) {
  return impl::Launch(comm, Operation::kReduceScatterRmsNormAllGather, shape, buffers, stream);
}

// Returns the rows of which a rank has the residual in ReduceScatterRmsNormAllGather.
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
