// iris::moe: the communication of a mixture of experts, over an iris::ccl::Communicator. A router
// has chosen `top_k` of `n_experts` experts for each token. The experts are spread over the members
// of the communicator's team: the first (n_experts mod members) members have one more than the
// others, one after another. Dispatch brings each token's row to the members whose experts want it,
// in rows that are grouped by expert; Combine brings the weighted sum of what the experts made of
// it back to the token's member.
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
// The rules of a Communicator hold here: all members make the same calls in the same order, with
// the same config, on one stream at a time. A call checks its arguments, starts kernels and
// returns; it allocates nothing, decides nothing by counts on the host, and may be captured in a
// graph, whose replays take fresh choices and data. How many tokens a member has is its own affair;
// in a graph, tokens that are not there choose -1. What fails on the device, and calls that differ,
// are told by Check and Synchronize of the communicator, with both calls.
//
// A row travels once to each member, however many of its experts want it. There it becomes a row
// for each (token, expert): first by expert, then by the place of the token's member in the team,
// then by token. On the way back a member first sums, in f32 and in the order of the token's
// choices, weight * y of its own experts, and sends that sum, rounded to Config::partials; the
// token's member adds these in the order of the team, in f32, and rounds once. The bits are the
// same, run after run.
//
// With a capacity, an expert takes the first `capacity` of its rows, in the order above. What is
// over is dropped: it has no row, and adds nothing to its token. A token without any row becomes
// zeros.
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

// Columns that share a scale where rows are of f8e4m3.
inline constexpr uint32_t kScaleColumns = 128;

// The same on all members.
struct Config {
  uint32_t n_experts = 0;   // 1 to 4096, of all members together
  uint32_t top_k = 0;       // choices of a token: 1 to 32
  uint32_t hidden = 0;      // columns of a row: 1 to 2^20
  uint32_t max_tokens = 0;  // that a member dispatches at once, at most
  uint32_t capacity = 0;    // rows of each expert; 0: dropless
  DType in = DType::kBf16;  // of x: kF32, kF16, kBf16; kF8E4M3, with scales
  // Of what travels and is received: kNone, as `in`; or kF8E4M3, which Dispatch makes of the others
  // on its way, with an f32 scale for each kScaleColumns columns of a row: the largest magnitude
  // (but at least 1e-30) by 448. An element v becomes within |v| / 16 + scale / 1024 of itself,
  // but for the rounding of f32. A NaN or an infinity makes NaNs of the columns of its scale.
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
  // Rows of Dispatch::rows and Combine::y. Dropless: as many as can come at all, members *
  // max_tokens * min(top_k, local_experts). With a capacity: local_experts * capacity.
  uint64_t max_rows = 0;
  uint64_t scale_columns = 0;  // scales of a row; 0 if rows are not of f8e4m3
  // What has come, once for each (token, member), in the workspace: row Dispatch::sources[i] begins
  // here plus so many times row_stride_bytes; its scales lie scales_at_bytes behind its begin.
  uint64_t rows_at_bytes = 0;
  uint64_t row_stride_bytes = 0;
  uint64_t scales_at_bytes = 0;
};

// A dispatch. Pointers are memory of any kind that the device can use, aligned to their elements;
// what is written overlaps with nothing else.
struct Dispatch {
  uint32_t tokens = 0;              // of this member: 0 to max_tokens
  const void* x = nullptr;          // [tokens, hidden], of Config::in
  const float* x_scales = nullptr;  // [tokens, scale_columns]; only where `in` is kF8E4M3
  // [tokens, top_k], of kI32 or kI64: experts; -1: none. A token names an expert once. Anything
  // else is found on the device: Check and Synchronize then give kOutOfRange on all members, with
  // the rank, the token and the value; nothing is written out of bounds.
  const void* ids = nullptr;
  DType ids_type = DType::kI32;
  const float* weights = nullptr;  // [tokens, top_k]; null: all are 1
  // What is received. What is null is not written.
  void* rows = nullptr;     // [max_rows, hidden], of Config::rows
  float* scales = nullptr;  // [max_rows, scale_columns]: beside rows of f8e4m3
  // [local_experts]: rows of each expert. In a HostArray the host reads them as soon as the stream
  // has passed the call (an Event, or Synchronize), without a copy.
  int32_t* counts = nullptr;
  // [local_experts + 1]: the first row of each, and behind the last one the end. With a capacity an
  // expert begins at a multiple of it, and what is behind its `counts` rows is not written.
  int32_t* offsets = nullptr;
  int32_t* dropped = nullptr;  // [local_experts]: rows that were over the capacity
  // [max_rows]: which row of the workspace each is. With `rows` null, the experts' product may
  // gather its rows from there; the workspace keeps them until Combine.
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

// For this rank in `team`. kInvalidArgument: what is wrong with the config. kFailedPrecondition:
// this rank is not a member.
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

// A config with a workspace of its own: what joins a combine to the dispatch before it. A
// communicator may have any number of them, so that one dispatch is under way beside another, or
// for layers that differ. Movable; borrows the communicator and the context, which stay where they
// are.
class Exchange {
 public:
  // Empty: every call fails.
  Exchange() = default;

  // Collective over the team of the communicator: allocates the workspace, and loads the kernels.
  // `name`: of the workspace, as iris-ctl shows it; unique in the job, or empty. Errors: those of
  // SizesOf and of Context::Allocate.
  static StatusOr<Exchange> Create(Context& context, ccl::Communicator& comm, const Config& config,
                                   std::string name = {}) {
    IRIS_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(context, comm.team(), config));
    // Before what is collective, which so is behind it on all members.
    IRIS_RETURN_IF_ERROR(iris::impl::FromC(iris_moe_prepare(comm.get())));
    AllocateOptions options;
    options.bytes = sizes.workspace_bytes;
    options.name = std::move(name);
    IRIS_ASSIGN_OR_RETURN(const Allocation workspace, context.Allocate(options, comm.team()));
    // What another one left there must not pass for a dispatch of this one.
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
  // Where Sizes::rows_at_bytes counts from.
  void* workspace() const { return workspace_.address; }

  // Put the operation on the stream.
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
  // Behind a Dispatch, any number of times.
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

  // Collective over the team: gives the workspace back. Synchronize streams first. Without it the
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
