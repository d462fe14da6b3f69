// What a variant of the operations is: a row of the registry, in the variant's own file. Host code.
//
// A new variant: its line in the list of iris/ops_types.h, and a file that defines the row
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
  // Whether it has this problem, which is valid, for so many members.
  // If not, `*why` says what is in the way. `comm`, `call`: the workspace and the matrices are
  // looked at, too, where they are not null.
  bool (*supports)(const ccl::Comm* comm, const Problem& problem, uint32_t n_members,
                   const Matmul* call, const char** why);
  // Bytes of workspace, for a complete config, beside the arrivals (impl/layout.h). All members
  // come to the same.
  uint64_t (*workspace_bytes)(uint32_t n_members, const ccl::Config& config,
                              const Problem& problem);
  // Completes a plan; the variant is filled in. `call`: as above.
  void (*plan)(const ccl::Comm& comm, const Problem& problem, const Matmul* call, LaunchPlan* plan);
  // Puts a call that was checked on the stream.
  Result (*launch)(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
                   backend::Stream& stream);
  // Loads its kernels onto the current device.
  Result (*prepare)();
  backend::HostOnly host_only = {};
};

#define IRIS_ROW(Name, number, text) extern const VariantRow k##Name##Row;
IRIS_OPS_VARIANTS(IRIS_ROW)
#undef IRIS_ROW

// All rows.
inline constexpr const VariantRow* kRows[] = {
#define IRIS_ROW(Name, number, text) &k##Name##Row,
    IRIS_OPS_VARIANTS(IRIS_ROW)
#undef IRIS_ROW
};

// Launches of two of these, whose rows of A go by the copy engine where `copies` says so: that has
// then to be possible, and the plan is kCopyEngine's.
Result LaunchFused(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan, bool copies,
                   backend::Stream& stream);
Result LaunchPersistent(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
                        bool copies, backend::Stream& stream);

// Whether the matrices of all members are aligned to 16 bytes if this one's are, or none is, as far
// as one member can know: `member`, which has such a call. All choose by it whether they take a
// persistent product, which needs that. Where members have parts of one matrix, side by side, only
// they know how long theirs is: k of sums, and n of all_gather_matmul. Where rows are so far apart
// that parts may be slices, that length is to be a multiple of 16 bytes, and no part a shorter one.
// `call`: null if only the shape is known.
//
// For parts as even as can be, which have all their first element at a multiple of 16 bytes if they
// lie in matrices of their own, the answers differ in one case: the parts are not equally long, and
// the shorter or the longer ones are multiples of 16 bytes. Not even there where rows of matrices
// of their own are padded to 16 bytes, or where parts are slices of a matrix that has nothing else
// and members are not more than 8.
bool PartsAreAlignedAlike(const Problem& problem, uint32_t members, uint32_t member,
                          const Matmul* call);

// What the kernels that meet the other members are given: who they are, and the call in words.
ccl::impl::Common CommonOf(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan);

// The operation's opening, by one block: the members meet and compare their calls. `ends`: it
// counts as an operation by itself. `early`: it begins while the kernel before it ends, for whose
// end it waits before it touches anything.
Result LaunchOpening(ccl::impl::Common common, bool ends, bool early, backend::Stream& stream);

// The opening of a call behind which this member's copies go to the others whatever comes of it. If
// the members do not meet, it tells all others first: what they read for an earlier call may be
// overwritten. See LaunchEndOfReads.
Result LaunchOpeningOfCopies(const ccl::Comm& comm, ccl::impl::Common common,
                             backend::Stream& stream);

// Behind what has read this member's workspace of operations: records a failure, of the last
// operation that was counted, if another member has told that it may have overwritten it. Does
// nothing for a Comm without copies. Persistent products look by themselves.
Result LaunchEndOfReads(const ccl::Comm& comm, const ccl::impl::Common& common,
                        backend::Stream& stream);

// Whether the blocks of this member leave room on its device for those of others, as
// ccl::MaxBlocksWhenShared has it.
bool IsOnSharedDevice(const ccl::Comm& comm);

// Where the operations' workspace begins in every heap.
uint64_t WorkspaceOffset(const ccl::Comm& comm);

}  // namespace iris::ops::impl
