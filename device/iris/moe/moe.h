// iris::moe: MoE dispatch and combine, as operations on a stream over the symmetric heap. A router
// has chosen `top_k` of `n_experts` experts for each token; the experts are assigned to the ranks
// of a team as ShareOf says. Dispatch sends each token's row to the ranks that have its experts,
// where rows are grouped by expert. Combine sends the weighted sum of the experts' results back.
//
//   Parameters config;                        // the same on all ranks of the team
//   config.n_experts = 64; config.top_k = 8; config.hidden = 7168; config.max_tokens = 4096;
//   config.in = DType::kBf16;
//   WorkspaceSizes sizes;
//   SizesOf(team.size, team.index, config, &sizes);
//   // a workspace of sizes.workspace_bytes, in the heap at the same offset on all ranks
//   Dispatch(comm, config, workspace, {.x = x, .ids = ids, ..., .rows = rows}, stream);
//   ...                                       // the local experts, on `rows`
//   Combine(comm, config, workspace, {.y = y, .out = out, ...}, stream);
//
// All rules of collectives (iris/collective/collective.h) hold: the same calls in the same order on
// all ranks, with the same Parameters and the same place of the workspace; one stream at a time. A
// call checks its arguments, starts kernels and returns; it allocates nothing, and may be captured
// in a graph, because the host reads no counts. ccl::CheckError reports failures, and calls that
// differ, with both calls. Ranks may differ in their number of tokens.
//
// A row is sent once to each rank, however many of its experts the token has chosen. The receiver
// writes one row for each (token, expert), ordered by expert, then by the place of the token's rank
// in the team, then by token. In Combine a rank first sums, in f32 and in the order of the token's
// choices, the results of its own experts, and sends that sum, rounded to Parameters::partials. The
// token's rank adds these in the order of the team, in f32, and rounds once, so the bits are the
// same in every run.
//
// With a capacity, an expert takes the first `capacity` of its rows, in the order above. Further
// rows are dropped, and add nothing to their tokens.
//
// A workspace connects a Combine to the Dispatch before it. It need not be cleared; but if it was
// part of another workspace, zero its first 256 bytes, so that a Combine without a Dispatch is
// detected. Combine reuses its rows: received rows may be read there until Combine. Another
// Dispatch may run at the same time in a workspace of its own.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/rounds/comm.h"
#include "iris/types.h"

namespace iris::moe {

inline constexpr uint32_t kMaxExperts = 4096;
inline constexpr uint32_t kMaxTopK = 32;
// Columns that share a scale where rows are of f8e4m3.
inline constexpr uint32_t kScaleColumns = 128;
inline constexpr uint64_t kWorkspaceAlignmentBytes = 256;

// The same on all members.
struct Parameters {
  uint32_t n_experts = 0;   // 1 to kMaxExperts, of all members together
  uint32_t top_k = 0;       // choices of a token: 1 to kMaxTopK
  uint32_t hidden = 0;      // columns of a row: at least 1
  uint32_t max_tokens = 0;  // that a member dispatches at once, at most: at least 1
  uint32_t capacity = 0;    // rows of each expert; 0: dropless
  DType in = DType::kNone;  // of x: kF32, kF16, kBf16; kF8E4M3, with scales
  // Of what travels and is received: kNone, as `in`; or kF8E4M3, which Dispatch makes of the others
  // on its way, with an f32 scale for each kScaleColumns columns of a row: the largest magnitude
  // (but at least 1e-30) by 448. An element v becomes within |v| / 16 + scale / 1024 of itself,
  // but for the rounding of f32.
  DType rows = DType::kNone;
  // What members' sums are rounded to on their way back: kF32, kF16, kBf16. kNone: as `in`, and
  // kBf16 for kF8E4M3.
  DType partials = DType::kNone;
};

// What a Parameters needs, on one member.
struct WorkspaceSizes {
  uint64_t workspace_bytes = 0;  // the same on all members
  uint32_t first_expert = 0;     // of this member
  uint32_t local_experts = 0;
  // Rows of DispatchCall::rows and CombineCall::y. Dropless: as many as can come at all, n_members
  // * max_tokens * min(top_k, local_experts). With a capacity: local_experts * capacity.
  uint64_t max_rows = 0;
  uint64_t scale_columns = 0;  // scales of a row; 0 if rows are not of f8e4m3
  // What has come, in the workspace: row DispatchCall::sources[i] begins here plus so many times
  // row_stride_bytes; its scales lie scales_at_bytes behind its begin.
  uint64_t rows_at_bytes = 0;
  uint64_t row_stride_bytes = 0;
  uint64_t scales_at_bytes = 0;
};

// Pointers are memory of any kind that the device can use, aligned to their elements; those that
// are written overlap with nothing else. A HostArray as `counts` can be read by the host as soon as
// the stream has passed the call, without a copy.
struct DispatchCall {
  uint32_t tokens = 0;              // of this member: 0 to max_tokens
  const void* x = nullptr;          // [tokens, hidden], of Parameters::in
  const float* x_scales = nullptr;  // [tokens, scale_columns]; only where `in` is kF8E4M3
  // [tokens, top_k]: experts; -1: none. A token names an expert once. Anything else is found by the
  // kernels, and ends the operation on all members as kOutOfRange in CheckError.
  const void* ids = nullptr;
  DType ids_type = DType::kI32;    // or kI64
  const float* weights = nullptr;  // [tokens, top_k]; null: all are 1
  // What is received. Each may be null: it is not written then.
  void* rows = nullptr;       // [max_rows, hidden], of Parameters::rows
  float* scales = nullptr;    // [max_rows, scale_columns]; needed if rows are of f8e4m3
  int32_t* counts = nullptr;  // [local_experts]: rows of each expert
  // [local_experts + 1]: its first row; the last one: behind all rows. With a capacity, an expert
  // begins at a multiple of it, and what is behind its `counts` rows is not written.
  int32_t* offsets = nullptr;
  int32_t* dropped = nullptr;  // [local_experts]: rows that were over the capacity
  int32_t* sources = nullptr;  // [max_rows]: which row of the workspace it is
};

struct CombineCall {
  uint32_t tokens = 0;            // as in Dispatch
  const void* y = nullptr;        // [max_rows, hidden]: what the experts made of each row
  DType y_type = DType::kNone;    // kF32, kF16 or kBf16
  void* out = nullptr;            // [tokens, hidden]
  DType out_type = DType::kNone;  // likewise
};

// kInvalidArgument: what is wrong with it, for a team of so many members.
Result CheckConfig(uint32_t n_members, const Parameters& config);

// kInvalidArgument: as CheckConfig, or there is no such member.
Result SizesOf(uint32_t n_members, uint32_t index, const Parameters& config, WorkspaceSizes* out);

// Puts a dispatch on the stream. `workspace` has WorkspaceSizes::workspace_bytes in this rank's
// heap, at the same offset on all ranks, aligned to kWorkspaceAlignmentBytes. kInvalidArgument: the
// parameters or an argument are not valid. kFailedPrecondition: an earlier operation of the Comm
// failed.
Result Dispatch(const ccl::Comm& comm, const Parameters& config, void* workspace,
                const DispatchCall& call, backend::Stream& stream);
// Puts a combine on the stream, after a Dispatch of the same parameters in this workspace;
// otherwise CheckError returns kFailedPrecondition.
Result Combine(const ccl::Comm& comm, const Parameters& config, void* workspace,
               const CombineCall& call, backend::Stream& stream);

// Loads all kernels of this library onto the current device. As ccl::CreateComm, it may wait for
// kernels that run: all members call it before one of them starts an operation.
Result Prepare();

}  // namespace iris::moe
