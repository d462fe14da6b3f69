// The communication of a mixture of experts.
#include "iris/moe/moe.h"

#include <utility>

#include "client/abi/comm_calls.h"
#include "client/abi/objects.h"
#include "client/abi/read_call.h"

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

absl::StatusOr<moe::Config> ReadConfig(const iris_moe_config* config) {
  iris_moe_config given = {};
  IRIS_ABI_TRY(
      iris::abi::ReadStruct(config, iris::abi::kMoeConfigBytes, "iris_moe_config", &given));
  moe::Config out;
  iris::abi::FieldReader read("moe");
  moe::impl::ForConfigFields(given, out, read);
  IRIS_ABI_TRY(read.status());
  return out;
}

template <typename Body>
iris_code Put(iris_comm* comm, const iris_moe_config* config, iris_stream* stream,
              Body body) noexcept {
  return WithStream<CommObject>(comm, stream,
                                [&](CommObject& object, StreamObject& on) -> absl::Status {
                                  const Turn turn(object);
                                  IRIS_ABI_TRY(turn.status());
                                  const absl::StatusOr<moe::Config> read = ReadConfig(config);
                                  if (!read.ok()) return read.status();
                                  return body(*object.comm, *read, *on);
                                });
}

}  // namespace

iris_code iris_moe_get_sizes(iris_context* context, uint32_t n_members, uint32_t index,
                             const iris_moe_config* config, iris_moe_sizes* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.host().Usable());
    const absl::StatusOr<moe::Config> read = ReadConfig(config);
    if (!read.ok()) return read.status();
    const auto table = object.state->Backend();
    if (!table.ok()) return table.status();
    const auto sizes = iris::internal::Communicator::MoeSizes(**table, n_members, index, *read);
    if (!sizes.ok()) return sizes.status();
    iris_moe_sizes told = {};
    moe::impl::ForSizesFields(told, *sizes, iris::impl::ToC);
    return iris::abi::WriteStruct(told, "iris_moe_sizes", out);
  });
}

iris_code iris_moe_prepare(iris_comm* comm) {
  return OnComm(comm, [](iris::internal::Communicator& c) { return c.PrepareMoe(); });
}

iris_code iris_moe_dispatch(iris_comm* comm, const iris_moe_config* config,
                            const iris_moe_dispatch_call* call, iris_stream* stream) {
  return Put(comm, config, stream, [&](auto& c, const moe::Config& read, auto& s) -> absl::Status {
    iris_moe_dispatch_call given = {};
    IRIS_ABI_TRY(iris::abi::ReadStruct(call, iris::abi::kMoeDispatchCallBytes,
                                       "iris_moe_dispatch_call", &given));
    moe::Dispatch dispatch;
    iris::abi::FieldReader fields("moe");
    moe::impl::ForDispatchFields(given, dispatch, fields);
    IRIS_ABI_TRY(fields.status());
    return c.MoeDispatch(read, given.workspace, dispatch, s);
  });
}

iris_code iris_moe_combine(iris_comm* comm, const iris_moe_config* config,
                           const iris_moe_combine_call* call, iris_stream* stream) {
  return Put(comm, config, stream, [&](auto& c, const moe::Config& read, auto& s) -> absl::Status {
    iris_moe_combine_call given = {};
    IRIS_ABI_TRY(iris::abi::ReadStruct(call, iris::abi::kMoeCombineCallBytes,
                                       "iris_moe_combine_call", &given));
    moe::Combine combine;
    iris::abi::FieldReader fields("moe");
    moe::impl::ForCombineFields(given, combine, fields);
    IRIS_ABI_TRY(fields.status());
    return c.MoeCombine(read, given.workspace, combine, s);
  });
}
