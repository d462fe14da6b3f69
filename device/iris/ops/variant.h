// VariantRow describes a variant to the launcher. Each row is in the variant's own file. Host code.
//
// A new variant needs a line in the list of iris/ops_types.h, and a file that defines the row
// k<Name>Row.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/nodes/impl/launch.h"
#include "iris/nodes/nodes.h"
#include "iris/ops/ops.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"

namespace iris::ops::impl {

using ccl::impl::Invalid;
using ccl::impl::LaunchOpening;
using ccl::impl::Ranks;

struct VariantRow {
  Variant variant;
  // Returns true if the variant supports this valid problem on n_members members; if not, sets
  // `*why`. A null `comm` or `call` omits the checks of the workspace or of the matrices.
  bool (*supports)(const ccl::Comm* comm, const Problem& problem, uint32_t n_members,
                   const Matmul* call, const char** why);
  // Returns the bytes of workspace for a complete config, without the arrivals (impl/layout.h). All
  // members compute the same number.
  uint64_t (*workspace_bytes)(uint32_t n_members, const ccl::Config& config,
                              const Problem& problem);
  // Completes a plan whose variant is set. `call` is null if only the shape is known.
  void (*plan)(const ccl::Comm& comm, const Problem& problem, const Matmul* call, LaunchPlan* plan);
  // Puts a checked call on the stream. kCopyEngine calls this function of kFused or kPersistent: if
  // the plan's variant is kCopyEngine, the copy engine sends the rows of A.
  Result (*launch)(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
                   backend::Stream& stream);
  Result (*prepare)();
  backend::HostOnly host_only = {};
};

IRIS_VARIANT_ROWS(IRIS_OPS_VARIANTS);

// The launch of kPair, the only variant for ranks on several nodes.
Result LaunchPair(const Ranks& ranks, const Matmul& call, const LaunchPlan& plan,
                  backend::Stream& stream);

// Returns true if `member`, which makes this call, can conclude that the matrices of all members
// are aligned to 16 bytes, or that none are. Persistent products need that alignment, so all
// members must agree before they choose one. Where each member has a part of the columns of one
// matrix, it knows only the length of its own part: k of sums, n of all_gather_matmul. If the
// leading dimension leaves room for other parts, the parts may be slices of a larger matrix; then
// the length must be a multiple of 16 bytes and no part may be shorter. `call` is null if only the
// shape is known.
//
// For even shares whose first elements are all at multiples of 16 bytes, members disagree in one
// case: the shares differ in length, and either the shorter or the longer ones are multiples of 16
// bytes. They agree even then if each matrix has its rows padded to 16 bytes, or if the parts are
// slices of a matrix that contains only them and there are at most 8 members.
bool PartsAreAlignedAlike(const Problem& problem, uint32_t members, uint32_t member,
                          const Matmul* call);

// Returns the arguments of kernels that meet the other members: the team and the packed call.
ccl::impl::Common CommonOf(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan);

// Launches the opening of a call whose copies to other ranks start even if the ranks do not meet.
// In that case the opening first warns all others that buffers which they read for an earlier call
// may be overwritten. See LaunchEndOfReads.
Result LaunchOpeningOfCopies(const ccl::Comm& comm, ccl::impl::Common common,
                             backend::Stream& stream);

// Launches a check after the kernels that read this member's workspace: it records a failure of the
// last counted operation if another member has warned that it may have overwritten that workspace.
// Does nothing for a Comm without copies. Persistent products check this themselves.
Result LaunchEndOfReads(const ccl::Comm& comm, const ccl::impl::Common& common,
                        backend::Stream& stream);

// Returns true if this member leaves room on its device for blocks of other ranks; see
// ccl::MaxBlocksWhenShared.
bool IsOnSharedDevice(const ccl::Comm& comm);

// Returns the offset in every heap at which the workspace of GEMMs begins.
uint64_t WorkspaceOffset(const ccl::Comm& comm);

}  // namespace iris::ops::impl
