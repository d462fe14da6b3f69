// iris::moe: MoE dispatch and combine, over an iris::ccl::Communicator. A router has chosen `top_k`
// of `n_experts` experts for each token. The experts are assigned to the ranks of the
// communicator's team in order; the first (n_experts mod n_ranks) ranks have one more than the
// others. Dispatch sends each token's row to the ranks that have its experts, where the rows are
// grouped by expert. Combine sends the weighted sum of the experts' results back to the token's
// rank.
//
//   namespace moe = iris::moe;
//   moe::Config config;                                   // the same on all ranks
//   config.n_experts = 64; config.top_k = 8; config.hidden = 7168; config.max_tokens = 4096;
//   auto exchange = moe::Exchange::Create(context, *comm, config);        // collective, once
//   const moe::Sizes& sizes = exchange->sizes();          // how large the buffers are
//   moe::Dispatch there;
//   there.tokens = tokens; there.x = x; there.ids = ids; there.weights = weights;
//   there.rows = rows; there.offsets = offsets;  // [max_rows, hidden], [local_experts + 1]
//   IRIS_RETURN_IF_ERROR(exchange->Dispatch(there, stream));
//   ...                                                   // y = the local experts, on `rows`
//   IRIS_RETURN_IF_ERROR(exchange->Combine({tokens, y, kBf16, out, kBf16}, stream));
//   IRIS_RETURN_IF_ERROR(comm->Synchronize(stream));      // names the missing ranks
//
// The rules of a Communicator hold here: all ranks of the team make the same calls in the same
// order, with the same config, on one stream at a time. A call checks its arguments, starts kernels
// and returns; it allocates nothing, reads no counts on the host, and may be captured in a graph,
// whose replays use new choices and data. Ranks may differ in their number of tokens; in a graph,
// tokens that do not exist choose -1. Check and Synchronize of the communicator report failures on
// the device, and calls that differ between ranks, with both calls.
//
// A row is sent once to each rank, however many of its experts the token has chosen. The receiver
// makes a row for each (token, expert), ordered by expert, then by the place of the token's rank in
// the team, then by token. For the way back, a rank first sums weight * y of its own experts, in
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
#include "iris/fields.h"
#include "iris/moe_types.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::moe {

namespace impl {

inline iris_moe_config C(const Config& from) {
  auto config = iris::impl::Sized<iris_moe_config>();
  ForConfigFields(config, from, iris::impl::ToC);
  return config;
}

}  // namespace impl

// Computes the sizes for this rank in `team`. kInvalidArgument says what is wrong with the config.
// kFailedPrecondition if this rank is not in the team.
inline StatusOr<Sizes> SizesOf(const Context& context, const Team& team, const Config& from) {
  if (!team.member()) {
    return Status(StatusCode::kFailedPrecondition, "moe: this rank is not one of the team");
  }
  const iris_moe_config config = impl::C(from);
  auto told = iris::impl::Sized<iris_moe_sizes>();
  IRIS_RETURN_IF_ERROR(
      iris::impl::FromC(iris_moe_get_sizes(context.get(), static_cast<uint32_t>(team.ranks.size()),
                                           static_cast<uint32_t>(team.index), &config, &told)));
  Sizes sizes;
  impl::ForSizesFields(told, sizes, iris::impl::OfC);
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
  // Makes an empty exchange: every call fails.
  Exchange() = default;

  // Allocates the workspace and loads the kernels. Collective over the team of the communicator.
  // iris-ctl shows the workspace as `name`, which is unique in the job, or empty. Errors are those
  // of SizesOf and of Context::Allocate.
  static StatusOr<Exchange> Create(Context& context, ccl::Communicator& comm, const Config& config,
                                   std::string name = {}) {
    IRIS_ASSIGN_OR_RETURN(const Sizes sizes, SizesOf(context, comm.team(), config));
    // Loading kernels may wait for running ones. The collective allocation follows, so that all
    // ranks have loaded the kernels when any rank continues.
    IRIS_RETURN_IF_ERROR(iris::impl::FromC(iris_moe_prepare(comm.get())));
    AllocateOptions options;
    options.bytes = sizes.workspace_bytes;
    options.name = std::move(name);
    IRIS_ASSIGN_OR_RETURN(const Allocation workspace, context.Allocate(options, comm.team()));
    // Zero, so that bytes of an earlier exchange are not taken for a dispatch of this one.
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
  // Returns the address from which Sizes::rows_at_bytes counts.
  void* workspace() const { return workspace_.address; }

  // Puts a dispatch on the stream.
  Status Dispatch(const moe::Dispatch& from, Stream& stream) {
    IRIS_RETURN_IF_ERROR(Usable());
    auto call = iris::impl::Sized<iris_moe_dispatch_call>();
    call.workspace = workspace_.address;
    impl::ForDispatchFields(call, from, iris::impl::ToC);
    return iris::impl::FromC(iris_moe_dispatch(comm_->get(), &config_, &call, stream.get()));
  }
  // Puts a combine on the stream, any number of times after a Dispatch.
  Status Combine(const moe::Combine& from, Stream& stream) {
    IRIS_RETURN_IF_ERROR(Usable());
    auto call = iris::impl::Sized<iris_moe_combine_call>();
    call.workspace = workspace_.address;
    impl::ForCombineFields(call, from, iris::impl::ToC);
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
