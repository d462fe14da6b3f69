// The communication of a mixture of experts.
#include "iris/moe/moe.h"

#include "client/abi/comm_calls.h"
#include "client/abi/objects.h"
#include "client/abi/read_call.h"

using namespace iris::abi;  // functions in C have no namespace of their own
namespace moe = iris::moe;

namespace {

absl::StatusOr<moe::Config> ReadConfig(const iris_moe_config* config) {
  IRIS_ASSIGN_OR_RETURN(const auto given, ReadStruct(config, kMoeConfigBytes, "iris_moe_config"));
  moe::Config out;
  FieldReader read("moe");
  moe::impl::ForConfigFields(given, out, read);
  IRIS_ABI_TRY(read.status());
  return out;
}

template <typename Body>
iris_code Put(iris_comm* comm, const iris_moe_config* config, iris_stream* stream,
              Body body) noexcept {
  return iris::abi::Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const moe::Config read, ReadConfig(config));
    return body(c, read, s);
  });
}

}  // namespace

iris_code iris_moe_get_sizes(iris_context* context, uint32_t n_members, uint32_t index,
                             const iris_moe_config* config, iris_moe_sizes* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.host().Usable());
    IRIS_ASSIGN_OR_RETURN(const auto read, ReadConfig(config));
    IRIS_ASSIGN_OR_RETURN(const auto table, object.state->Backend());
    IRIS_ASSIGN_OR_RETURN(const auto sizes,
                          iris::internal::Communicator::MoeSizes(*table, n_members, index, read));
    iris_moe_sizes told = {};
    moe::impl::ForSizesFields(told, sizes, iris::impl::ToC);
    return WriteStruct(told, "iris_moe_sizes", out);
  });
}

iris_code iris_moe_prepare(iris_comm* comm) {
  return OnComm(comm, [](auto& c) { return c.PrepareMoe(); });
}

iris_code iris_moe_dispatch(iris_comm* comm, const iris_moe_config* config,
                            const iris_moe_dispatch_call* call, iris_stream* stream) {
  return Put(comm, config, stream, [&](auto& c, const moe::Config& read, auto& s) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(call, kMoeDispatchCallBytes, "iris_moe_dispatch_call"));
    moe::Dispatch dispatch;
    FieldReader fields("moe");
    moe::impl::ForDispatchFields(given, dispatch, fields);
    IRIS_ABI_TRY(fields.status());
    return c.MoeDispatch(read, given.workspace, dispatch, s);
  });
}

iris_code iris_moe_combine(iris_comm* comm, const iris_moe_config* config,
                           const iris_moe_combine_call* call, iris_stream* stream) {
  return Put(comm, config, stream, [&](auto& c, const moe::Config& read, auto& s) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(call, kMoeCombineCallBytes, "iris_moe_combine_call"));
    moe::Combine combine;
    FieldReader fields("moe");
    moe::impl::ForCombineFields(given, combine, fields);
    IRIS_ABI_TRY(fields.status());
    return c.MoeCombine(read, given.workspace, combine, s);
  });
}
