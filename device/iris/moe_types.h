// Arguments of iris::moe: the shape of an exchange, the memory that it needs, and the buffers of a
// dispatch and of a combine. C++17, the standard library alone.
#pragma once

#include <cstdint>

#include "iris/dtype.h"

namespace iris::moe {

// Columns of a row that share a scale if rows are f8e4m3.
inline constexpr uint32_t kScaleColumns = 128;

// The shape of an exchange, the same on all ranks of the team.
struct Config {
  uint32_t n_experts = 0;   // 1 to 4096, on all ranks together
  uint32_t top_k = 0;       // choices of a token: 1 to 32
  uint32_t hidden = 0;      // columns of a row: 1 to 2^20
  uint32_t max_tokens = 0;  // the most that a rank dispatches in one call
  uint32_t capacity = 0;    // rows of each expert; 0: dropless
  DType in = DType::kBf16;  // of x: kF32, kF16, kBf16; kF8E4M3, with scales
  // The type of the rows that are sent and received: kNone for the type of `in`, or kF8E4M3.
  // Dispatch converts other types to kF8E4M3 with an f32 scale for each kScaleColumns columns of a
  // row: the largest magnitude (at least 1e-30) divided by 448. An element v is changed by at most
  // |v| / 16 + scale / 1024, apart from f32 rounding. A NaN or an infinity turns the columns of its
  // scale into NaNs.
  DType rows = DType::kNone;
  // The type of the partial sums that Combine sends: kF32, kF16 or kBf16. kNone: the type of `in`,
  // and kBf16 for kF8E4M3.
  DType partials = DType::kNone;
};

// The memory that a Config needs on one rank.
struct Sizes {
  uint64_t workspace_bytes = 0;  // the same on all ranks
  uint32_t first_expert = 0;     // of this rank
  uint32_t local_experts = 0;
  // The rows of Dispatch::rows and Combine::y: local_experts * capacity, or, without a capacity,
  // n_ranks * max_tokens * min(top_k, local_experts), the most that can arrive.
  uint64_t max_rows = 0;
  uint64_t scale_columns = 0;  // scales of a row; 0 if rows are not of f8e4m3
  // Received rows lie in the workspace, one for each (token, rank): row Dispatch::sources[i] begins
  // at rows_at_bytes + sources[i] * row_stride_bytes, and its scales begin scales_at_bytes later.
  uint64_t rows_at_bytes = 0;
  uint64_t row_stride_bytes = 0;
  uint64_t scales_at_bytes = 0;
};

// The arguments of a dispatch. Pointers are to memory of any kind that the device can use, aligned
// to the elements; buffers that are written overlap with no other.
struct Dispatch {
  uint32_t tokens = 0;              // of this rank: 0 to max_tokens
  const void* x = nullptr;          // [tokens, hidden], of Config::in
  const float* x_scales = nullptr;  // [tokens, scale_columns]; only where `in` is kF8E4M3
  // The experts of each token, [tokens, top_k], of kI32 or kI64; -1 for none. A token names an
  // expert once. For any other id, Check and Synchronize return kOutOfRange on all ranks, with the
  // rank, the token and the value; nothing is written out of bounds.
  const void* ids = nullptr;
  DType ids_type = DType::kI32;
  const float* weights = nullptr;  // [tokens, top_k]; null: all are 1
  // Buffers for the received rows. A null one is not written.
  void* rows = nullptr;     // [max_rows, hidden], of Config::rows
  float* scales = nullptr;  // [max_rows, scale_columns]: with rows of f8e4m3
  // [local_experts]: the number of rows of each expert. If this is a HostArray, the host can read
  // the counts without a copy once the stream has passed the call (an Event, or Synchronize).
  int32_t* counts = nullptr;
  // [local_experts + 1]: the first row of each expert, then the end of the last one. With a
  // capacity, an expert begins at a multiple of it, and rows after its `counts` rows are not
  // written.
  int32_t* offsets = nullptr;
  int32_t* dropped = nullptr;  // [local_experts]: rows that were over the capacity
  // [max_rows]: the row of the workspace from which each row comes. With `rows` null, the experts'
  // GEMM may gather its rows from there; the workspace keeps them until Combine.
  int32_t* sources = nullptr;
};

struct Combine {
  uint32_t tokens = 0;            // as in the dispatch
  const void* y = nullptr;        // [max_rows, hidden]: the experts' result for each row
  DType y_type = DType::kBf16;    // kF32, kF16 or kBf16
  void* out = nullptr;            // [tokens, hidden]; must not overlap with other buffers
  DType out_type = DType::kBf16;  // kF32, kF16 or kBf16
};

}  // namespace iris::moe
