// iris::moe: MoE dispatch and combine, over an iris::ccl::Communicator. A router has chosen `top_k`
// of `n_experts` experts for each token. The experts are assigned to the ranks of the
// communicator's team in order; the first (n_experts mod n_ranks) ranks have one more than the
// others. Dispatch sends each token's row to the ranks that have its experts, where the rows are
// grouped by expert. Combine sends the weighted sum of the experts' results back to the token's
// rank.
//
//   namespace moe = iris::moe;
//   moe::Config config;                                   // the same on all members
//   config.n_experts = 64; config.top_k = 8; config.hidden = 7168; config.max_tokens = 4096;
//   auto exchange = moe::Exchange::Create(context, *comm, config);        // collective, once
//   const moe::Sizes& sizes = exchange->sizes();          // how large the buffers are
//   moe::Dispatch there;
//   there.tokens = tokens; there.x = x; there.ids = ids; there.weights = weights;
//   there.rows = rows; there.offsets = offsets;  // [max_rows, hidden], [local_experts + 1]
//   IRIS_RETURN_IF_ERROR(exchange->Dispatch(there, stream));
//   ...                                                   // y = the local experts, on `rows`
//   IRIS_RETURN_IF_ERROR(exchange->Combine({tokens, y, kBf16, out, kBf16}, stream));
//   IRIS_RETURN_IF_ERROR(comm->Synchronize(stream));      // names who was missing
//
// The rules of a Communicator hold here: all ranks of the team make the same calls in the same
// order, with the same config, on one stream at a time. A call checks its arguments, starts kernels
// and returns; it allocates nothing, reads no counts on the host, and may be captured in a graph,
// whose replays use new choices and data. Ranks may differ in their number of tokens; in a graph,
// tokens that do not exist choose -1. Check and Synchronize of the communicator report failures on
// the device, and calls that differ between ranks, with both calls.
//
// A row is sent once to each rank, however many of its experts the token has chosen. There it
// becomes a row for each (token, expert), ordered by expert, then by the place of the token's rank
// in the team, then by token. For the way back, a rank first sums weight * y of its own experts, in
// f32 and in the order of the token's choices, and sends that sum, rounded to Config::partials. The
// token's rank adds these sums in the order of the team, in f32, and rounds once. The bits are the
// same in every run.
//
// With a capacity, an expert takes the first `capacity` of its rows, in the order above. Further
// rows are dropped and add nothing to their tokens. A token without any row becomes zeros.
//
// Header-only over <iris/c_api.h>. C++17. One call at a time on a communicator.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "iris/c_api.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/dtype.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::moe {

// Columns of a row that share a scale if rows are f8e4m3.
inline constexpr uint32_t kScaleColumns = 128;

// The shape of an exchange, the same on all ranks of the team.
struct Config {
  uint32_t n_experts = 0;   // 1 to 4096, of all members together
  uint32_t top_k = 0;       // choices of a token: 1 to 32
  uint32_t hidden = 0;      // columns of a row: 1 to 2^20
  uint32_t max_tokens = 0;  // at most, that a rank dispatches in one call
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
  uint64_t workspace_bytes = 0;  // the same on all members
  uint32_t first_expert = 0;     // of this member
  uint32_t local_experts = 0;
  // The rows of Dispatch::rows and Combine::y: local_experts * capacity, or, without a capacity,
  // n_ranks * max_tokens * min(top_k, local_experts), the most that can arrive.
  uint64_t max_rows = 0;
  uint64_t scale_columns = 0;  // scales of a row; 0 if rows are not of f8e4m3
  // Where received rows lie in the workspace, one for each (token, rank): row Dispatch::sources[i]
  // begins at rows_at_bytes + sources[i] * row_stride_bytes, and its scales begin scales_at_bytes
  // later.
  uint64_t rows_at_bytes = 0;
  uint64_t row_stride_bytes = 0;
  uint64_t scales_at_bytes = 0;
};

// The arguments of a dispatch. Pointers are to memory of any kind that the device can use, aligned
// to the elements; buffers that are written overlap with no other.
struct Dispatch {
  uint32_t tokens = 0;              // of this member: 0 to max_tokens
  const void* x = nullptr;          // [tokens, hidden], of Config::in
  const float* x_scales = nullptr;  // [tokens, scale_columns]; only where `in` is kF8E4M3
  // The experts of each token, [tokens, top_k], of kI32 or kI64; -1: none. A token names an expert
  // once. The device finds anything else: Check and Synchronize then return kOutOfRange on all
  // ranks, with the rank, the token and the value; nothing is written out of bounds.
  const void* ids = nullptr;
  DType ids_type = DType::kI32;
  const float* weights = nullptr;  // [tokens, top_k]; null: all are 1
  // Buffers for the received rows. A null one is not written.
  void* rows = nullptr;     // [max_rows, hidden], of Config::rows
  float* scales = nullptr;  // [max_rows, scale_columns]: beside rows of f8e4m3
  // [local_experts]: the number of rows of each expert. If this is a HostArray, the host can read
  // the counts without a copy once the stream has passed the call (an Event, or Synchronize).
  int32_t* counts = nullptr;
  // [local_experts + 1]: the first row of each expert, then the end of the last one. With a
  // capacity, an expert begins at a multiple of it, and rows after its `counts` rows are not
  // written.
  int32_t* offsets = nullptr;
  int32_t* dropped = nullptr;  // [local_experts]: rows that were over the capacity
  // [max_rows]: the row of the workspace that each row comes from. With `rows` null, the experts'
  // GEMM may gather its rows from there; the workspace keeps them until Combine.
  int32_t* sources = nullptr;
};

struct Combine {
  uint32_t tokens = 0;            // as in the dispatch
  const void* y = nullptr;        // [max_rows, hidden]: what the experts made of each row
  DType y_type = DType::kBf16;    // kF32, kF16 or kBf16
  void* out = nullptr;            // [tokens, hidden]; overlaps with nothing
  DType out_type = DType::kBf16;  // likewise
};

namespace impl {

inline iris_moe_config C(const Config& from) {
  iris_moe_config config = {};
  config.size = sizeof(config);
  config.n_experts = from.n_experts;
  config.top_k = from.top_k;
  config.hidden = from.hidden;
  config.max_tokens = from.max_tokens;
  config.capacity = from.capacity;
  config.in_dtype = static_cast<int32_t>(from.in);
  config.row_dtype = static_cast<int32_t>(from.rows);
  config.partial_dtype = static_cast<int32_t>(from.partials);
  return config;
}

}  // namespace impl

// Computes the sizes for this rank in `team`. kInvalidArgument says what is wrong with the config.
// kFailedPrecondition: this rank is not in the team.
inline StatusOr<Sizes> SizesOf(const Context& context, const Team& team, const Config& from) {
  if (!team.member()) {
    return Status(StatusCode::kFailedPrecondition, "moe: this rank is not one of the team");
  }
  const iris_moe_config config = impl::C(from);
  iris_moe_sizes told = {};
  told.size = sizeof(told);
  IRIS_RETURN_IF_ERROR(
      iris::impl::FromC(iris_moe_get_sizes(context.get(), static_cast<uint32_t>(team.ranks.size()),
                                           static_cast<uint32_t>(team.index), &config, &told)));
  Sizes sizes;
  sizes.workspace_bytes = told.workspace_bytes;
  sizes.first_expert = told.first_expert;
  sizes.local_experts = told.local_experts;
  sizes.max_rows = told.max_rows;
  sizes.scale_columns = told.scale_columns;
  sizes.rows_at_bytes = told.rows_at_bytes;
  sizes.row_stride_bytes = told.row_stride_bytes;
  sizes.scales_at_bytes = told.scales_at_bytes;
  return sizes;
}
inline StatusOr<Sizes> SizesOf(const Context& context, const Config& config) {
  return SizesOf(context, context.world(), config);
}

// A config with a workspace of its own, which connects a combine to the dispatch before it. A
// communicator may have any number of exchanges, for dispatches that overlap, or for layers that
// differ. Movable. It borrows the communicator and the context, which must not be moved meanwhile.
class Exchange {
 public:
  // Empty: every call fails.
  Exchange() = default;

  // Allocates the workspace and loads the kernels. Collective over the team of the communicator.
  // iris-ctl shows the workspace as `name`, which is unique in the job, or empty. Errors are those
  // of SizesOf and of Context::Allocate.
  static StatusOr<Exchange> Create(Context& context, ccl::Communicator& comm, const Config& config,
                                   std::string name = {}) {
    IRIS_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(context, comm.team(), config));
    // Loading kernels may wait for running ones, so it comes before the collective allocation: all
    // ranks have then loaded them when any of them goes on.
    IRIS_RETURN_IF_ERROR(iris::impl::FromC(iris_moe_prepare(comm.get())));
    AllocateOptions options;
    options.bytes = sizes.workspace_bytes;
    options.name = std::move(name);
    IRIS_ASSIGN_OR_RETURN(const Allocation workspace, context.Allocate(options, comm.team()));
    // Bytes that an earlier exchange left there must not be taken for a dispatch of this one.
    IRIS_ASSIGN_OR_RETURN(Stream stream, Stream::Create(context));
    IRIS_RETURN_IF_ERROR(stream.Fill(workspace.address, 0, 256));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    Exchange made;
    made.context_ = &context;
    made.comm_ = &comm;
    made.config_ = impl::C(config);
    made.sizes_ = sizes;
    made.workspace_ = workspace;
    return made;
  }

  const Sizes& sizes() const { return sizes_; }
  // The address from which Sizes::rows_at_bytes counts.
  void* workspace() const { return workspace_.address; }

  // Puts a dispatch on the stream.
  Status Dispatch(const moe::Dispatch& from, Stream& stream) {
    IRIS_RETURN_IF_ERROR(Usable());
    iris_moe_dispatch_call call = {};
    call.size = sizeof(call);
    call.workspace = workspace_.address;
    call.tokens = from.tokens;
    call.id_dtype = static_cast<int32_t>(from.ids_type);
    call.x = from.x;
    call.x_scales = from.x_scales;
    call.ids = from.ids;
    call.weights = from.weights;
    call.rows = from.rows;
    call.scales = from.scales;
    call.counts = from.counts;
    call.offsets = from.offsets;
    call.dropped = from.dropped;
    call.sources = from.sources;
    return iris::impl::FromC(iris_moe_dispatch(comm_->get(), &config_, &call, stream.get()));
  }
  // Puts a combine on the stream, any number of times after a Dispatch.
  Status Combine(const moe::Combine& from, Stream& stream) {
    IRIS_RETURN_IF_ERROR(Usable());
    iris_moe_combine_call call = {};
    call.size = sizeof(call);
    call.workspace = workspace_.address;
    call.tokens = from.tokens;
    call.y_dtype = static_cast<int32_t>(from.y_type);
    call.out_dtype = static_cast<int32_t>(from.out_type);
    call.y = from.y;
    call.out = from.out;
    return iris::impl::FromC(iris_moe_combine(comm_->get(), &config_, &call, stream.get()));
  }

  // Frees the workspace. Collective over the team. Synchronize streams first. Without this call the
  // workspace stays until the job ends: the destructor frees nothing.
  Status Destroy() {
    IRIS_RETURN_IF_ERROR(Usable());
    comm_ = nullptr;
    return context_->Free(workspace_);
  }

 private:
  Status Usable() const {
    if (comm_ != nullptr) return {};
    return Status(StatusCode::kFailedPrecondition,
                  "this moe::Exchange is empty, or was destroyed: make one with Create");
  }

  Context* context_ = nullptr;
  ccl::Communicator* comm_ = nullptr;
  iris_moe_config config_ = {};
  Sizes sizes_;
  Allocation workspace_;
};

}  // namespace iris::moe
