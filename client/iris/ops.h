// iris::ops: GEMMs fused with a collective, over an iris::ccl::Communicator. iris/ops_types.h says
// what each operation computes.
//
//   namespace ops = iris::ops;
//   const ops::Shape shape = {m, n, k, iris::DType::kBf16, iris::DType::kBf16};
//   iris::ccl::CommunicatorOptions options;
//   options.matmul_bytes = *ops::WorkspaceBytes(context, ops::Operation::kMatmulAllReduce, shape);
//   auto comm = iris::ccl::Communicator::Create(context, options);        // collective, once
//   iris::Status status = ops::MatmulAllReduce(*comm, shape, {a, k}, {b, n}, {d, n}, stream);
//   status = comm->Synchronize(stream);                                   // names missing ranks
//
// If the team has ranks on several nodes that share no fabric, kAuto is kPair, and naming another
// variant is kUnimplemented.
//
// The rules of a Communicator hold here: all ranks of the team make the same calls in the same
// order, with the same shape (iris/ops_types.h has the exceptions), on one stream at a time. A call
// checks its arguments, starts kernels and returns; it allocates nothing, and may be captured in a
// graph. Check and Synchronize report failures on the device, and calls that differ between ranks,
// with both calls.
//
// m, n and k, at least 1, are the sizes of the entire GEMM: a rank that has a share of the rows or
// columns gives the number that all ranks have together. Matrices are row-major, with `ld` elements
// from one row to the next, aligned to their elements. D of MatmulAllReduce, MatmulAllGather and
// MatmulAllScatter lies in the symmetric heap, with the same ld and at the same offset on all ranks
// (if a call names Variant::kFused or kPair, at any offset); other matrices are any memory that the
// device can use. D must not overlap with an input.
//
// Header-only over <iris/c_api.h>. C++17.
#pragma once

#include <cstdint>
#include <string>

#include "iris/c_api.h"
#include "iris/ccl.h"
#include "iris/ccl_types.h"
#include "iris/context.h"
#include "iris/dtype.h"
#include "iris/fields.h"
#include "iris/ops_types.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::ops {

using ccl::Operation;

// A matrix: its first element, and the number of elements from one row to the next.
struct ConstMatrix {
  const void* data = nullptr;
  uint64_t ld = 0;
};
struct Matrix {
  void* data = nullptr;
  uint64_t ld = 0;
};

// How a call runs.
struct Plan {
  Variant variant = Variant::kAuto;
  std::string multiplier;  // the code that multiplies: "iris", or the vendor's library
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t tile_rows = 0;
  uint32_t tile_columns = 0;
  uint64_t workspace_bytes = 0;
};

namespace impl {

inline iris_matmul MatmulOf(Operation operation, const Shape& shape,
                            const Operands& operands = {}) {
  auto call = iris::impl::Sized<iris_matmul>();
  call.operation = static_cast<int32_t>(operation);
  ForFields(call, shape, operands, iris::impl::ToC);
  return call;
}

inline Status Launch(ccl::Communicator& comm, Operation operation, const Shape& shape,
                     ConstMatrix a, ConstMatrix b, Matrix d, Stream& stream, const void* bias) {
  const iris_matmul call =
      MatmulOf(operation, shape, {a.data, a.ld, b.data, b.ld, bias, d.data, d.ld});
  return iris::impl::FromC(iris_matmul_launch(comm.get(), &call, stream.get()));
}

}  // namespace impl

// Computes CommunicatorOptions::matmul_bytes for this operation, in a team of `n_members` ranks (0:
// the world), which may be on several nodes if the job is. The largest of several results serves
// all calls. Pass CommunicatorOptions::rules as `rules` if they have lines for GEMMs; otherwise a
// line whose variant needs more bytes than kAuto without rules is skipped. kInvalidArgument says
// what is wrong with the shape.
inline StatusOr<uint64_t> WorkspaceBytes(const Context& context, Operation operation,
                                         const Shape& shape, uint32_t n_members = 0,
                                         const std::string& rules = {}) {
  const iris_matmul call = impl::MatmulOf(operation, shape);
  uint64_t bytes = 0;
  const uint32_t n = n_members != 0 ? n_members : context.n_ranks();
  auto options = iris::impl::Sized<iris_comm_options>();
  if (!rules.empty()) options.rules = rules.c_str();
  IRIS_RETURN_IF_ERROR(
      iris::impl::FromC(iris_matmul_bytes(context.get(), n, &options, &call, &bytes)));
  return bytes;
}

// Says how a call of this shape runs if A and B of all ranks are aligned to 16 bytes and their rows
// are a multiple of 8 elements apart; with other matrices, kAuto may take another variant.
// kResourceExhausted if the matmul_bytes of the communicator are too few.
inline StatusOr<Plan> Choose(const ccl::Communicator& comm, Operation operation,
                             const Shape& shape) {
  const iris_matmul call = impl::MatmulOf(operation, shape);
  auto plan = iris::impl::Sized<iris_matmul_plan>();
  IRIS_RETURN_IF_ERROR(iris::impl::FromC(iris_matmul_choose(comm.get(), &call, &plan)));
  return Plan{static_cast<Variant>(plan.variant),
              plan.multiplier,
              plan.blocks,
              plan.threads,
              plan.tile_rows,
              plan.tile_columns,
              plan.matmul_bytes};
}

// Shapes below are this rank's. `bias` has an element for each column of D that this rank computes.

// A[m, k], B[k, n]; D[m, n], in the heap. Each rank has a part of k; the parts may differ in
// length.
inline Status MatmulAllReduce(ccl::Communicator& comm, const Shape& shape, ConstMatrix a,
                              ConstMatrix b, Matrix d, Stream& stream, const void* bias = nullptr) {
  return impl::Launch(comm, Operation::kMatmulAllReduce, shape, a, b, d, stream, bias);
}
// A[m, k], B[k, n]; D[share of m, n].
inline Status MatmulReduceScatter(ccl::Communicator& comm, const Shape& shape, ConstMatrix a,
                                  ConstMatrix b, Matrix d, Stream& stream,
                                  const void* bias = nullptr) {
  return impl::Launch(comm, Operation::kMatmulReduceScatter, shape, a, b, d, stream, bias);
}
// A[share of m, k], B[k, n]; D[m, n]. n may differ from rank to rank.
inline Status AllGatherMatmul(ccl::Communicator& comm, const Shape& shape, ConstMatrix a,
                              ConstMatrix b, Matrix d, Stream& stream, const void* bias = nullptr) {
  return impl::Launch(comm, Operation::kAllGatherMatmul, shape, a, b, d, stream, bias);
}
// A[share of m, k], B[k, n]; D[m, n], in the heap.
inline Status MatmulAllGather(ccl::Communicator& comm, const Shape& shape, ConstMatrix a,
                              ConstMatrix b, Matrix d, Stream& stream, const void* bias = nullptr) {
  return impl::Launch(comm, Operation::kMatmulAllGather, shape, a, b, d, stream, bias);
}
// A[m, k], B[k, share of n]; D[m, n], in the heap.
inline Status MatmulAllScatter(ccl::Communicator& comm, const Shape& shape, ConstMatrix a,
                               ConstMatrix b, Matrix d, Stream& stream,
                               const void* bias = nullptr) {
  return impl::Launch(comm, Operation::kMatmulAllScatter, shape, a, b, d, stream, bias);
}

}  // namespace iris::ops
