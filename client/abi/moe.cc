// The communication of a mixture of experts.
#include "iris/moe/moe.h"

#include <tuple>
#include <utility>

#include "client/abi/comm_calls.h"
#include "client/abi/objects.h"
#include "iris/dtype.h"

using iris::DType;
using iris::abi::CommObject;
using iris::abi::ContextObject;
using iris::abi::NotNull;
using iris::abi::OnComm;
using iris::abi::StreamObject;
using iris::abi::Turn;
using iris::abi::With;
using iris::abi::WithStream;
namespace moe = iris::moe;

namespace {

// What its numbers stand for is checked here: they are enumerators behind this.
absl::StatusOr<DType> ReadType(int32_t type, const char* name) {
  if (type < 0 || type >= static_cast<int>(iris::kDTypeCount)) {
    return absl::InvalidArgumentError(
        absl::StrCat("moe: ", name, " is ", type, ", which is no iris_dtype"));
  }
  return static_cast<DType>(type);
}

absl::StatusOr<moe::Parameters> ReadConfig(const iris_moe_config* config) {
  iris_moe_config given = {};
  IRIS_ABI_TRY(
      iris::abi::ReadStruct(config, iris::abi::kMoeConfigBytes, "iris_moe_config", &given));
  moe::Parameters read;
  read.n_experts = given.n_experts;
  read.top_k = given.top_k;
  read.hidden = given.hidden;
  read.max_tokens = given.max_tokens;
  read.capacity = given.capacity;
  for (const auto& [type, name, to] :
       {std::tuple<int32_t, const char*, DType*>{given.in_dtype, "in_dtype", &read.in},
        {given.row_dtype, "row_dtype", &read.rows},
        {given.partial_dtype, "partial_dtype", &read.partials}}) {
    const absl::StatusOr<DType> known = ReadType(type, name);
    if (!known.ok()) return known.status();
    *to = *known;
  }
  return read;
}

template <typename Body>
iris_code Put(iris_comm* comm, const iris_moe_config* config, iris_stream* stream,
              Body body) noexcept {
  return WithStream<CommObject>(comm, stream,
                                [&](CommObject& object, StreamObject& on) -> absl::Status {
                                  const Turn turn(object);
                                  IRIS_ABI_TRY(turn.status());
                                  const absl::StatusOr<moe::Parameters> read = ReadConfig(config);
                                  if (!read.ok()) return read.status();
                                  return body(*object.comm, *read, *on);
                                });
}

}  // namespace

iris_code iris_moe_get_sizes(iris_context* context, uint32_t n_members, uint32_t index,
                             const iris_moe_config* config, iris_moe_sizes* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.host().Usable());
    const absl::StatusOr<moe::Parameters> read = ReadConfig(config);
    if (!read.ok()) return read.status();
    const auto table = object.state->Backend();
    if (!table.ok()) return table.status();
    const auto sizes = iris::internal::Communicator::MoeSizes(**table, n_members, index, *read);
    if (!sizes.ok()) return sizes.status();
    iris_moe_sizes told = {};
    told.workspace_bytes = sizes->workspace_bytes;
    told.max_rows = sizes->max_rows;
    told.first_expert = sizes->first_expert;
    told.local_experts = sizes->local_experts;
    told.scale_columns = sizes->scale_columns;
    told.rows_at_bytes = sizes->rows_at_bytes;
    told.row_stride_bytes = sizes->row_stride_bytes;
    told.scales_at_bytes = sizes->scales_at_bytes;
    return iris::abi::WriteStruct(told, "iris_moe_sizes", out);
  });
}

iris_code iris_moe_prepare(iris_comm* comm) {
  return OnComm(comm, [](iris::internal::Communicator& c) { return c.PrepareMoe(); });
}

iris_code iris_moe_dispatch(iris_comm* comm, const iris_moe_config* config,
                            const iris_moe_dispatch_call* call, iris_stream* stream) {
  return Put(comm, config, stream,
             [&](auto& c, const moe::Parameters& read, auto& s) -> absl::Status {
               iris_moe_dispatch_call given = {};
               IRIS_ABI_TRY(iris::abi::ReadStruct(call, iris::abi::kMoeDispatchCallBytes,
                                                  "iris_moe_dispatch_call", &given));
               const absl::StatusOr<DType> id_type = ReadType(given.id_dtype, "id_dtype");
               if (!id_type.ok()) return id_type.status();
               moe::DispatchCall dispatch;
               dispatch.tokens = given.tokens;
               dispatch.x = given.x;
               dispatch.x_scales = static_cast<const float*>(given.x_scales);
               dispatch.ids = given.ids;
               dispatch.ids_type = *id_type;
               dispatch.weights = static_cast<const float*>(given.weights);
               dispatch.rows = given.rows;
               dispatch.scales = static_cast<float*>(given.scales);
               dispatch.counts = static_cast<int32_t*>(given.counts);
               dispatch.offsets = static_cast<int32_t*>(given.offsets);
               dispatch.dropped = static_cast<int32_t*>(given.dropped);
               dispatch.sources = static_cast<int32_t*>(given.sources);
               return c.MoeDispatch(read, given.workspace, dispatch, s);
             });
}

iris_code iris_moe_combine(iris_comm* comm, const iris_moe_config* config,
                           const iris_moe_combine_call* call, iris_stream* stream) {
  return Put(comm, config, stream,
             [&](auto& c, const moe::Parameters& read, auto& s) -> absl::Status {
               iris_moe_combine_call given = {};
               IRIS_ABI_TRY(iris::abi::ReadStruct(call, iris::abi::kMoeCombineCallBytes,
                                                  "iris_moe_combine_call", &given));
               const absl::StatusOr<DType> y_type = ReadType(given.y_dtype, "y_dtype");
               if (!y_type.ok()) return y_type.status();
               const absl::StatusOr<DType> out_type = ReadType(given.out_dtype, "out_dtype");
               if (!out_type.ok()) return out_type.status();
               moe::CombineCall combine;
               combine.tokens = given.tokens;
               combine.y = given.y;
               combine.y_type = *y_type;
               combine.out = given.out;
               combine.out_type = *out_type;
               return c.MoeCombine(read, given.workspace, combine, s);
             });
}
