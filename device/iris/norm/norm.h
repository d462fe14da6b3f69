// iris::norm: RMS norms of sums over the ranks of a team, in one operation with the sums, on a
// stream, over the symmetric heap. iris/norm_types.h defines the operations.
//
//   Norm call;
//   call.problem = {ccl::Operation::kAllReduceRmsNorm, {rows, hidden}};  // of bf16
//   call.problem.weight = DType::kBf16;
//   call.problem.residual = true;
//   call.in = in; call.weight = weight; call.out = out;
//   call.residual = residual; call.residual_out = residual;
//   Launch(comm, call, stream);               // asynchronous
//   stream.Synchronize();
//   ccl::CheckError(comm);
//
// Any Comm will do: there is no workspace other than that of the collectives. All rules of
// collectives (iris/collective/collective.h) hold here: the same calls in the same order on all
// ranks, with the same problem; one stream at a time; a launcher checks, starts a kernel and
// returns, allocates nothing, and may be captured in a graph. ccl::CheckError reports failures, and
// calls that differ, with both calls. A call of zero rows does nothing, and is not compared.
//
// Rows are consecutive, or a stride apart, which each rank chooses for itself. Buffers are any
// memory that the device can read and write, aligned to their elements. Calls are fastest if rows
// are multiples of 16 bytes and aligned to 16. `out` may be `in` if they have the same type, and
// residual_out may be the residual, with the same strides; otherwise a written buffer overlaps with
// no other, nor with the workspace. The rows of a buffer may lie in the gaps of another one that
// has the same stride in bytes.
//
// A block of a single rank norms a row of up to 32 KiB (kAlone). Otherwise up to kMaxParts blocks
// share a row, 32 KiB each. kTwoShot also keeps a row of each rank in a block's stage: rows of more
// than kMaxParts * stage_bytes / members bytes need a Comm with more ccl::Config::stage_bytes.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/nodes/nodes.h"
#include "iris/norm_types.h"
#include "iris/rounds/comm.h"
#include "iris/types.h"

namespace iris::norm {

// The part of a call on which its plan depends. The same on all members.
struct Problem : Shape {
  Problem() = default;
  Problem(ccl::Operation its_operation, const Shape& shape)
      : Shape(shape), operation(its_operation) {}

  ccl::Operation operation = ccl::Operation::kNone;
};
inline constexpr uint64_t kMaxDimension = (1ull << 31) - 1;  // of rows, columns and strides

// The arguments of Launch. In kTwoShot, other ranks read rows of `in` and write rows of
// residual_out or `out`; these go through the stages if any rank's buffer has gaps between rows.
struct Norm : Buffers {
  Problem problem;
};

// Checks a problem. kInvalidArgument, with the reason, if it is not valid.
Result CheckProblem(const Problem& problem);

// Plans how Launch runs the problem, the same on all ranks. kInvalidArgument is as in CheckProblem.
// kUnimplemented if the named variant does not support the problem. kResourceExhausted if no
// variant supports such long rows with the Comm's stage_bytes and max_blocks.
Result Choose(const ccl::Comm& comm, const Problem& problem, Plan* out);

// Puts the operation on the stream. Errors are those of Choose; kInvalidArgument for the buffers;
// kFailedPrecondition if an earlier operation of the Comm failed.
Result Launch(const ccl::Comm& comm, const Norm& call, backend::Stream& stream);

// The same for a team with ranks on several nodes, where kPair runs all calls: kUnimplemented if
// the call names another variant, and for rows of more than 32 KiB. kResourceExhausted if a row of
// each rank has no room in the workspace between nodes. CheckNodesError reports failures on the
// device.
Result ChooseOnNodes(const ccl::NodesComm& comm, const Problem& problem, Plan* out);
Result LaunchOnNodes(const ccl::NodesComm& comm, const Norm& call, backend::Stream& stream);

// Loads all kernels of this library onto the current device. Like ccl::CreateComm, it may wait for
// running kernels, so all ranks call it before one of them starts an operation.
Result Prepare();

}  // namespace iris::norm
