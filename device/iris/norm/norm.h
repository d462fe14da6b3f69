// iris::norm: RMS norms of sums over the members of a team, in one operation with the sums, on a
// stream, over the symmetric heap. What each computes: iris/norm_types.h.
//
//   Norm call;
//   call.problem = {ccl::Operation::kAllReduceRmsNorm, rows, hidden, DType::kBf16, DType::kBf16};
//   call.problem.weight = DType::kBf16;
//   call.problem.residual = true;
//   call.in = in; call.weight = weight; call.out = out;
//   call.residual = residual; call.residual_out = residual;
//   Launch(comm, call, stream);               // asynchronous
//   stream.Synchronize();
//   ccl::CheckError(comm);
//
// Any Comm will do: no workspace beside that of the collectives. All rules of collectives
// (iris/collective/collective.h) hold here: the same calls in the same order on all members, with
// the same problem; one stream at a time; a launcher checks, starts a kernel and returns, allocates
// nothing, and may be captured in a graph; what fails, and calls that differ, are told by
// ccl::CheckError, with both calls. A call of zero rows does nothing at all: it is not compared.
//
// Rows lie one behind the other, or a stride apart, which each member chooses for itself. All
// buffers are any memory that the device can read and write, aligned to their elements; fastest
// where rows are multiples of 16 bytes and aligned to 16. `out` may be `in` if they have the same
// type, and residual_out may be the residual, with the same strides; otherwise what is written
// overlaps with no other buffer, nor with the workspace. Buffers may lie in the gaps of others that
// have the same bytes from row to row.
//
// A member alone has rows of up to 32 KiB in one block (kAlone). Otherwise a row is shared out to
// up to kMaxParts blocks, 32 KiB to one. kTwoShot also keeps a row of each
// member in a block's stage: rows of more than kMaxParts * stage_bytes / members bytes need a Comm
// with more ccl::Config::stage_bytes.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/norm_types.h"
#include "iris/rounds/comm.h"
#include "iris/types.h"

namespace iris::norm {

// A call, as far as its plan depends on it. The same on all members.
struct Problem {
  ccl::Operation operation = ccl::Operation::kNone;
  uint64_t rows = 0;            // all members together; 0 to kMaxDimension
  uint64_t hidden = 0;          // columns; 1 to kMaxDimension
  DType in = DType::kNone;      // kF32, kF16 or kBf16
  DType out = DType::kNone;     // as `in`; kF8E4M3 or kF8E5M2; for an `in` of kF32 also kF16, kBf16
  DType weight = DType::kNone;  // kF32, kF16 or kBf16; kNone: there is none, all are 1
  bool residual = false;
  Scaling scaling = Scaling::kNone;  // not kNone exactly for an `out` of fp8
  float epsilon = 1e-6f;             // not negative
  float weight_offset = 0;           // 1: the norms of models that keep weight - 1
  Variant variant = Variant::kAuto;
};
inline constexpr uint64_t kMaxDimension = (1ull << 31) - 1;  // of strides, too

struct Norm {
  Problem problem;
  const void* in = nullptr;        // [rows, hidden]
  const void* residual = nullptr;  // [rows or this member's share of them, hidden]
  void* residual_out = nullptr;    // likewise
  const void* weight = nullptr;    // [hidden]
  void* out = nullptr;             // [rows, hidden]
  const float* scale = nullptr;    // kStatic: one
  float* scales = nullptr;         // kPerRow, kPerGroup: all rows'
  // Columns from one row of a buffer to the next, at least `hidden`; 0: `hidden`. In kTwoShot rows
  // go through the stages if the others read or write them, and they lie apart at any member: those
  // of `in`, and of residual_out or of `out` (see kTwoShot).
  uint64_t in_stride = 0;
  uint64_t residual_stride = 0;
  uint64_t residual_out_stride = 0;
  uint64_t out_stride = 0;
};

// What runs: see Choose.
struct LaunchPlan {
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;  // kAlone: also more than Config::max_blocks
  uint32_t threads = 0;
  uint32_t parts = 0;  // blocks that share a row
};

// kInvalidArgument: says what is wrong with it.
Result CheckProblem(const Problem& problem);

// What Launch will run, exactly. The same on all members. kInvalidArgument: as CheckProblem.
// kUnimplemented: the named variant does not have it. kResourceExhausted: no variant has rows so
// long with the Comm's stage_bytes and max_blocks.
Result Choose(const ccl::Comm& comm, const Problem& problem, LaunchPlan* out);

// Puts the operation on the stream. Errors beside those of Choose: kInvalidArgument for the
// buffers, kFailedPrecondition if an earlier operation of the Comm failed.
Result Launch(const ccl::Comm& comm, const Norm& call, backend::Stream& stream);

// Loads all kernels of this library onto the current device. As ccl::CreateComm, it may wait for
// kernels that run: all members call it before one of them starts an operation.
Result Prepare();

}  // namespace iris::norm
