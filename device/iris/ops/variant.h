// VariantRow: what the launcher knows of a variant. Each row is in the variant's own file. Host
// code.
//
// A new variant needs a line in the list of iris/ops_types.h, and a file that defines the row
// k<Name>Row.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ops/ops.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"

namespace iris::ops::impl {

using ccl::impl::Invalid;

struct VariantRow {
  Variant variant;
  // Returns true if the variant supports this valid problem on n_members members; if not, sets
  // `*why`. `comm` and `call` may be null: then the workspace and the matrices are not looked at.
  bool (*supports)(const ccl::Comm* comm, const Problem& problem, uint32_t n_members,
                   const Matmul* call, const char** why);
  // Returns the bytes of workspace for a complete config, without the arrivals (impl/layout.h). All
  // members compute the same number.
  uint64_t (*workspace_bytes)(uint32_t n_members, const ccl::Config& config,
                              const Problem& problem);
  // Completes a plan whose variant is set. `call` is null if only the shape is known.
  void (*plan)(const ccl::Comm& comm, const Problem& problem, const Matmul* call, LaunchPlan* plan);
  // Puts a checked call on the stream. kCopyEngine launches by the rows of kFused and kPersistent:
  // if the plan's variant is kCopyEngine, the copy engine sends the rows of A.
  Result (*launch)(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
                   backend::Stream& stream);
  Result (*prepare)();
  backend::HostOnly host_only = {};
};

#define IRIS_ROW(Name, number, text) extern const VariantRow k##Name##Row;
IRIS_OPS_VARIANTS(IRIS_ROW)
#undef IRIS_ROW

inline constexpr const VariantRow* kRows[] = {
#define IRIS_ROW(Name, number, text) &k##Name##Row,
    IRIS_OPS_VARIANTS(IRIS_ROW)
#undef IRIS_ROW
};

// Returns true if either the matrices of all members are aligned to 16 bytes or none are, as far as
// `member`, which makes this call, can know. Persistent products need that alignment, so all
// members must agree before they choose one. Where members have parts of one matrix, side by side,
// each of them knows the length of its own part only: k of sums, n of all_gather_matmul. If the
// leading dimension leaves room for other parts, they may be slices of a larger matrix; then the
// length must be a multiple of 16 bytes and no part may be shorter. `call` is null if only the
// shape is known.
//
// For even shares whose first elements are all at multiples of 16 bytes, members disagree in one
// case: the shares differ in length, and either the shorter or the longer ones are multiples of 16
// bytes. They agree even then if each matrix has its rows padded to 16 bytes, or if the parts are
// slices of a matrix that has nothing else and there are at most 8 members.
bool PartsAreAlignedAlike(const Problem& problem, uint32_t members, uint32_t member,
                          const Matmul* call);

// Returns the arguments of kernels that meet the other members: the team and the packed call.
ccl::impl::Common CommonOf(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan);

// Launches the opening of an operation, by one block: the members meet and compare their calls. If
// `ends`, the opening counts as an operation of its own. If `early`, it may begin before the
// previous kernel ends; it waits for that end before it touches memory.
Result LaunchOpening(ccl::impl::Common common, bool ends, bool early, backend::Stream& stream);

// Launches the opening of a call after which this rank's copies go to the others in any case. If
// the ranks do not meet, it first warns all others that buffers which they read for an earlier call
// may be overwritten. See LaunchEndOfReads.
Result LaunchOpeningOfCopies(const ccl::Comm& comm, ccl::impl::Common common,
                             backend::Stream& stream);

// Launched after the kernels that read this member's workspace: records a failure of the last
// counted operation if another member has warned that it may have overwritten that workspace. Does
// nothing for a Comm without copies. Persistent products check this themselves.
Result LaunchEndOfReads(const ccl::Comm& comm, const ccl::impl::Common& common,
                        backend::Stream& stream);

// Returns true if this member leaves room on its device for blocks of other ranks; see
// ccl::MaxBlocksWhenShared.
bool IsOnSharedDevice(const ccl::Comm& comm);

// Returns the offset in every heap at which the workspace of GEMMs begins.
uint64_t WorkspaceOffset(const ccl::Comm& comm);

}  // namespace iris::ops::impl
