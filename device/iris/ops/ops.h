// iris::ops: GEMMs fused with their communication, on a stream, over the symmetric heap.
// iris/ops_types.h defines the operations.
//
//   ccl::CommOptions options;                 // as for collectives, with a larger workspace:
//   options.workspace_bytes = ops::WorkspaceBytes(team.size, config, problem);
//   options.products = resources.get();       // of ops::CreateResources
//   ...
//   Matmul call;
//   call.problem = {ccl::Operation::kMatmulAllReduce, {m, n, k, DType::kBf16, DType::kBf16}};
//   call.a = a; call.lda = k; call.b = b; call.ldb = n; call.d = d; call.ldd = n;
//   Launch(comm, call, stream);               // asynchronous
//   stream.Synchronize();
//   ccl::CheckError(comm);
//
// A Comm also serves GEMMs if its workspace has room for them. All rules of collectives
// (iris/collective/collective.h) hold here: the same calls in the same order on all ranks, with the
// same problem except as iris/ops_types.h says; one stream at a time; a launcher checks, starts
// kernels and returns, allocates nothing, and may be captured in a graph. ccl::CheckError reports
// failures, and calls that differ, with both calls.
//
// kPair counts as two operations of a Comm: a round that compares the calls, and the collective
// after it. It counts as one of a NodesComm.
//
// A team with ranks on several nodes calls the functions whose names end in OnNodes. kPair alone
// runs its GEMMs: the others need memory that all ranks map.
//
// Matrices are stored by rows, `ld` elements from one row to the next; B may be given transposed.
// Matrices are in any memory that the device can read, aligned to their element. All ranks write D
// of matmul_all_reduce, matmul_all_gather and matmul_all_scatter, so this D lies in the heap, with
// the same ldd and at the same offset on all ranks; kFused and kPair, if named, take any offset. D
// must not overlap with an input, nor any matrix with the workspace. m, n and k are at least 1.
//
// Sums are in f32: first over k, in the steps of the backend's matrix instructions, then over the
// ranks. Each row of tiles starts with a different rank, the same one in every run. Sums travel
// between ranks as f32 in kFused, and rounded to the type of D in the other variants. On several
// nodes the sum of each node is rounded to that type, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/ops_types.h"
#include "iris/rounds/comm.h"
#include "iris/share.h"
#include "iris/types.h"

namespace iris::ccl {
struct NodesComm;  // iris/nodes/nodes.h
}

namespace iris::ops {

// The part of a call on which its plan depends.
struct Problem : Shape {
  Problem() = default;
  Problem(ccl::Operation its_operation, const Shape& shape)
      : Shape(shape), operation(its_operation) {}

  ccl::Operation operation = ccl::Operation::kNone;
};
// The limit of m, n, k and leading dimensions.
inline constexpr uint64_t kMaxDimension = (1ull << 31) - 1;

struct Matmul : Operands {
  Problem problem;
};

// A line of a table that kAuto follows. It selects `variant` for calls of this operation, on this
// many ranks, whose m, n and k are near these numbers (see rules.h), if the variant supports the
// call and the workspace suffices. 0 matches any number.
struct Rule {
  ccl::Operation operation = ccl::Operation::kNone;
  uint32_t members = 0;
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  Variant variant = Variant::kAuto;
};

struct LaunchPlan {
  Variant variant = Variant::kAuto;
  const char* multiplier = "";  // what makes the products: "iris", or the vendor's library
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t tile_rows = 0;
  uint32_t tile_columns = 0;
  uint64_t workspace_bytes = 0;  // in addition to that of the collectives
};

// Host resources of the GEMMs of one Comm: the rules that kAuto follows, the same on all ranks, and
// a stream for copies during a kernel, which forks from the caller's stream and joins it by two
// events. Without resources, a Comm does not support kCopyEngine. Only launches of that Comm use
// the resources, one at a time. The destructor waits for the copies.
struct Resources {
  std::vector<Rule> rules;
  backend::Stream copies;
  backend::Event copies_begin;
  backend::Event copies_end;
};

// Makes resources on the current device. kResourceExhausted if there is no memory. Other errors are
// the platform's.
Result CreateResources(std::unique_ptr<Resources>* out);

using iris::Share;
using iris::ShareOf;

// Checks a problem. kInvalidArgument, with the reason, if it is not valid.
Result CheckProblem(const Problem& problem);

// Returns the bytes of workspace with which a Comm of this config supports the problem, the
// collectives' included. For kAuto they also suffice for the variant that the rules name. Returns 0
// if an argument is not valid.
uint64_t WorkspaceBytes(uint32_t n_members, const ccl::Config& config, const Problem& problem,
                        const Rule* rules = nullptr, size_t n_rules = 0);

// Determines how Launch runs the call; all ranks get the same plan. If a, b and d are null, only
// the shape is known, and the plan is for matrices that are aligned to 16 bytes on all ranks, with
// leading dimensions that are multiples of 8. kInvalidArgument and kUnimplemented are as in
// CheckProblem. kResourceExhausted if the workspace of the Comm is too small.
Result Choose(const ccl::Comm& comm, const Matmul& call, LaunchPlan* out);
inline Result Choose(const ccl::Comm& comm, const Problem& problem, LaunchPlan* out) {
  Matmul call;
  call.problem = problem;
  return Choose(comm, call, out);
}

// Puts the operation on the stream. Errors are those of Choose; kInvalidArgument for the matrices;
// kFailedPrecondition if an earlier operation of the Comm failed. If `ran` is not null, `*ran`
// becomes the plan that Choose returns for this call.
Result Launch(const ccl::Comm& comm, const Matmul& call, backend::Stream& stream,
              LaunchPlan* ran = nullptr);

// The same for a team with ranks on several nodes. kUnimplemented also if the call names a variant
// other than kPair. Resources and workspace are those of the local Comm. D lies in the heap as for
// a Comm, at any offset. CheckNodesError reports failures on the device.
Result ChooseOnNodes(const ccl::NodesComm& comm, const Matmul& call, LaunchPlan* out);
Result LaunchOnNodes(const ccl::NodesComm& comm, const Matmul& call, backend::Stream& stream,
                     LaunchPlan* ran = nullptr);
// Returns the bytes of workspace that the problem needs there, in addition to those of the
// collectives of the local Comm. Returns 0 if the problem is not valid or names another variant.
uint64_t WorkspaceBytesOnNodes(uint32_t n_members, const Problem& problem);

// Loads all kernels of this library onto the current device. Like ccl::CreateComm, it may wait for
// running kernels, so all ranks call it before one of them starts an operation.
Result Prepare();

}  // namespace iris::ops
