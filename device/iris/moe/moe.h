// iris::moe: the communication of a mixture of experts, as operations on a stream over the
// symmetric heap. A router has chosen `top_k` of `n_experts` experts for each token; the experts
// are spread over the members of a team as ops::ShareOf says. Dispatch brings each token's row to
// the members whose experts want it, in rows that are grouped by expert; Combine brings the
// weighted sum of what the experts made of it back to the token's member.
//
//   Config config;                            // the same on all members
//   config.n_experts = 64; config.top_k = 8; config.hidden = 7168; config.max_tokens = 4096;
//   config.in = DType::kBf16;
//   Sizes sizes;
//   SizesOf(team.size, team.index, config, &sizes);
//   // a workspace of sizes.workspace_bytes, in the heap at the same offset on all members
//   Dispatch(comm, config, workspace, {.x = x, .ids = ids, ..., .rows = rows}, stream);
//   ...                                       // the local experts, on `rows`
//   Combine(comm, config, workspace, {.y = y, .out = out, ...}, stream);
//
// All rules of collectives (iris/collective/collective.h) hold: the same calls in the same order on
// all members, with the same Config and the same place of the workspace; one stream at a time; a
// call checks its arguments, starts kernels and returns, allocates nothing, and may be captured in
// a graph, for no count is decided on the host; what fails, and calls that differ, are told by
// ccl::CheckError, with both calls. How many tokens a member has is its own affair.
//
// Rows travel once to each member, however many of its experts want them. The receiver writes one
// row for each (token, expert): first by expert, then by the place of the token's member in the
// team, then by token. In Combine a member first sums, in f32 and in the order of the token's
// choices, what its own experts made of a token, and sends that sum, rounded to Config::partials;
// the token's member adds these in the order of the team's members, in f32, and rounds once. So the
// bits are the same, run after run.
//
// With a capacity, an expert takes the first `capacity` of its rows, in the order above. What is
// over is dropped: it has no row, and adds nothing to its token.
//
// A workspace is what joins a Combine to the Dispatch before it. It needs no clearing; but where
// another workspace was, its first 256 bytes are zeroed, so that a Combine without a Dispatch is
// told. Its rows are reused by Combine: what Dispatch received may be read, by Config's rows in the
// workspace, until Combine. A second Dispatch may be under way beside it in a workspace of its own.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/collective.h"
#include "iris/dtype.h"
#include "iris/types.h"

namespace iris::moe {

inline constexpr uint32_t kMaxExperts = 4096;
inline constexpr uint32_t kMaxTopK = 32;
// Columns that share a scale where rows are of f8e4m3.
inline constexpr uint32_t kScaleColumns = 128;
inline constexpr uint64_t kWorkspaceAlignmentBytes = 256;

// The same on all members.
struct Config {
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

// What a Config needs, on one member.
struct Sizes {
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
  const void* x = nullptr;          // [tokens, hidden], of Config::in
  const float* x_scales = nullptr;  // [tokens, scale_columns]; only where `in` is kF8E4M3
  // [tokens, top_k]: experts; -1: none. A token names an expert once. Anything else is found by the
  // kernels, and ends the operation on all members as kOutOfRange in CheckError.
  const void* ids = nullptr;
  DType ids_type = DType::kI32;    // or kI64
  const float* weights = nullptr;  // [tokens, top_k]; null: all are 1
  // What is received. Each may be null: it is not written then.
  void* rows = nullptr;       // [max_rows, hidden], of Config::rows
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
Result CheckConfig(uint32_t n_members, const Config& config);

// kInvalidArgument: as CheckConfig, or there is no such member.
Result SizesOf(uint32_t n_members, uint32_t index, const Config& config, Sizes* out);

// Put the operation on the stream. `workspace`: Sizes::workspace_bytes in this member's heap, at
// the same offset on all members, aligned to kWorkspaceAlignmentBytes. kInvalidArgument: the config
// or an argument is not valid. kFailedPrecondition: an earlier operation of the Comm failed.
Result Dispatch(const ccl::Comm& comm, const Config& config, void* workspace,
                const DispatchCall& call, backend::Stream& stream);
// Behind a Dispatch of the same config in this workspace: else kFailedPrecondition in CheckError.
Result Combine(const ccl::Comm& comm, const Config& config, void* workspace,
               const CombineCall& call, backend::Stream& stream);

// Loads all kernels of this library onto the current device. As ccl::CreateComm, it may wait for
// kernels that run: all members call it before one of them starts an operation.
Result Prepare();

}  // namespace iris::moe
