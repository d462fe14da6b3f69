// iris::moe: MoE dispatch and combine, as operations on a stream over the symmetric heap. A router
// has chosen `top_k` of `n_experts` experts for each token; the experts are assigned to the ranks
// of a team as ShareOf says. Dispatch sends each token's row to the ranks that have its experts,
// where rows are grouped by expert. Combine sends the weighted sum of the experts' results back.
//
//   Config config;                        // the same on all ranks of the team
//   config.n_experts = 64; config.top_k = 8; config.hidden = 7168; config.max_tokens = 4096;
//   config.in = DType::kBf16;
//   Sizes sizes;
//   SizesOf(team.size, team.index, config, &sizes);
//   // a workspace of sizes.workspace_bytes, in the heap at the same offset on all ranks
//   LaunchDispatch(comm, config, workspace, {.x = x, .ids = ids, ..., .rows = rows}, stream);
//   ...                                       // the local experts, on `rows`
//   LaunchCombine(comm, config, workspace, {.y = y, .out = out, ...}, stream);
//
// All rules of collectives (iris/collective/collective.h) hold: the same calls in the same order on
// all ranks, with the same Config and the same place of the workspace; one stream at a time. A
// call checks its arguments, starts kernels and returns; it allocates nothing, and may be captured
// in a graph, because the host reads no counts. ccl::CheckError reports failures, and calls that
// differ, with both calls. Ranks may differ in their number of tokens.
//
// A row is sent once to each rank, however many of that rank's experts the token chose. The
// receiver writes one row for each (token, expert), ordered by expert, then by the place of the
// token's rank in the team, then by token. In Combine a rank first sums, in f32 and in the order of
// the token's choices, the results of its own experts, and sends that sum, rounded to
// Config::partials. The token's rank adds the received sums in the order of the team, in f32, and
// rounds once, so the bits are the same in every run.
//
// With a capacity, an expert takes the first `capacity` of its rows, in the order above. Further
// rows are dropped, and add nothing to their tokens.
//
// A workspace connects a Combine to the Dispatch before it. A workspace need not be cleared; but if
// its memory was part of another workspace, zero its first 256 bytes, so that a Combine without a
// Dispatch is detected. Received rows may be read in the workspace until Combine, which reuses
// their memory. Another Dispatch may run at the same time in a workspace of its own.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/moe_types.h"
#include "iris/nodes/nodes.h"
#include "iris/rounds/comm.h"
#include "iris/types.h"

namespace iris::moe {

inline constexpr uint32_t kMaxExperts = 4096;
inline constexpr uint32_t kMaxTopK = 32;
inline constexpr uint64_t kWorkspaceAlignmentBytes = 256;

// Checks a config for a team of n_members. kInvalidArgument, with the reason, if it is not valid.
Result CheckConfig(uint32_t n_members, const Config& config);

// Computes the sizes for a rank. `on_nodes`: its team may have ranks on several nodes.
// kInvalidArgument as in CheckConfig, or if there is no such rank.
Result SizesOf(uint32_t n_members, uint32_t index, const Config& config, Sizes* out,
               bool on_nodes = false);

// Puts a dispatch on the stream. `workspace` has Sizes::workspace_bytes in this rank's heap, at the
// same offset on all ranks, aligned to kWorkspaceAlignmentBytes. kInvalidArgument if the parameters
// or an argument are not valid. kFailedPrecondition if an earlier operation of the Comm failed.
Result LaunchDispatch(const ccl::Comm& comm, const Config& config, void* workspace,
                      const Dispatch& call, backend::Stream& stream);
// Puts a combine on the stream, after a Dispatch of the same parameters in this workspace;
// otherwise CheckError returns kFailedPrecondition.
Result LaunchCombine(const ccl::Comm& comm, const Config& config, void* workspace,
                     const Combine& call, backend::Stream& stream);

// The same for a team with ranks on several nodes, with the workspace that SizesOf says for such.
// Ranks of other nodes get rows, and results, through the ports. CheckNodesError reports failures
// on the device; those of routing have NodesErrorInfo::detail.
Result LaunchDispatchOnNodes(const ccl::NodesComm& comm, const Config& config, void* workspace,
                             const Dispatch& call, backend::Stream& stream);
Result LaunchCombineOnNodes(const ccl::NodesComm& comm, const Config& config, void* workspace,
                            const Combine& call, backend::Stream& stream);

// Loads all kernels of this library onto the current device. Like ccl::CreateComm, it may wait for
// running kernels, so all ranks call it before one of them starts an operation.
Result Prepare();

}  // namespace iris::moe
