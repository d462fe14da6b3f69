// Calls of a communicator: collectives, GEMMs, norms, and MoE dispatch and combine.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "client/abi/objects.h"
#include "client/base/annotate.h"
#include "client/comm/rules.h"
#include "iris/dtype.h"
#include "iris/fields.h"
#include "iris/moe/moe.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"

using iris::DType;
using namespace iris::abi;  // functions in C have no namespace of their own
using iris::internal::Annotate;
using iris::internal::Communicator;
using iris::internal::ParseRules;
using iris::internal::Rules;
namespace ccl = iris::ccl;
namespace moe = iris::moe;
namespace norm = iris::norm;
namespace ops = iris::ops;

namespace {

// Calls body() unless another call on the communicator is under way.
template <typename Body>
absl::Status InTurn(CommObject& object, Body body) {
  if (object.busy.exchange(true, std::memory_order_acquire)) {
    return absl::FailedPreconditionError(
        "another thread is in a call of this communicator: make one call at a time, or a "
        "communicator for each thread");
  }
  const absl::Cleanup end = [&object] { object.busy.store(false, std::memory_order_release); };
  IRIS_ABI_TRY(object.state->host->Usable());
  return body();
}

template <typename Body>
iris_code OnComm(iris_comm* comm, Body body) noexcept {
  return With<CommObject>(
      comm, [&](CommObject& object) { return InTurn(object, [&] { return body(*object.comm); }); });
}

// Calls body(communicator, stream), with both locked for this call.
template <typename Body>
iris_code Put(iris_comm* comm, iris_stream* stream, Body body) noexcept {
  return WithStream<CommObject>(comm, stream, [&](CommObject& object, StreamObject& on) {
    return InTurn(object, [&] { return body(*object.comm, *on); });
  });
}

constexpr uint32_t CountOf(DType) { return iris::kDTypeCount; }
constexpr uint32_t CountOf(ops::Activation) { return ops::kActivationCount; }
constexpr uint32_t CountOf(ops::Variant) { return ops::kVariantCount; }
constexpr uint32_t CountOf(norm::Scaling) { return norm::kScalingCount; }
constexpr uint32_t CountOf(norm::Variant) { return norm::kVariantCount; }

// Copies fields of C, after a check of the numbers that are enumerators in C++. Keeps the first
// error, which names `what` and the field.
class FieldReader {
 public:
  explicit FieldReader(const char* what) : what_(what) {}

  template <typename C, typename Cpp>
  void operator()(const C& c, Cpp& cpp, const char* field) {
    if constexpr (std::is_enum_v<Cpp>) {
      if (c < 0 || static_cast<uint32_t>(c) >= CountOf(Cpp())) {
        if (status_.ok()) status_ = Unknown<Cpp>(c, field);
        return;
      }
    }
    cpp = static_cast<Cpp>(c);
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename Cpp>
  absl::Status Unknown(int32_t number, const char* field) const {
    if constexpr (std::is_same_v<Cpp, DType>) {
      return Invalid(what_, ": ", field, " is ", number, ", which is no iris_dtype");
    }
    const bool variant = absl::string_view(field) == "variant";
    return Invalid(what_, ": ", number, " is no ", field, variant ? "; 0 is automatic" : " of ",
                   variant ? "" : what_);
  }

  const char* what_;
  absl::Status status_;
};

// Checks the numbers of a caller, which are enumerators in the library.
absl::Status CheckNumbers(iris_dtype dtype, iris_reduce_op op = IRIS_SUM, int32_t variant = 0) {
  if (dtype <= 0 || dtype >= static_cast<int>(iris::kDTypeCount)) {
    return Invalid(dtype, " is no iris_dtype of an element");
  }
  if (op < 0 || op > IRIS_AVG) {
    return Invalid(op, " is no iris_reduce_op");
  }
  if (variant < 0 || !ccl::IsVariant(static_cast<uint32_t>(variant))) {
    return Invalid(variant, " is no variant; 0 is automatic");
  }
  return absl::OkStatus();
}

iris_code Run(iris_comm* comm, iris_stream* stream, ccl::Operation operation, const void* in,
              void* out, uint64_t count, iris_dtype dtype, iris_reduce_op op, uint32_t root,
              int32_t variant) noexcept {
  return Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ABI_TRY(CheckNumbers(dtype, op, variant));
    return c.Run({{operation, count, static_cast<DType>(dtype), static_cast<ccl::ReduceOp>(op),
                   static_cast<ccl::Variant>(variant)},
                  in,
                  out,
                  root},
                 s);
  });
}

// Runs a send or a receive, which an open group keeps. All calls of a group name the same stream.
iris_code RunMessage(iris_comm* comm, iris_stream* stream, const char* what, iris_dtype dtype,
                     ccl::Message message) noexcept {
  return WithStream<CommObject>(comm, stream, [&](CommObject& object, StreamObject& on) {
    return InTurn(object, [&]() -> absl::Status {
      absl::Status status = CheckNumbers(dtype);
      if (object.comm->in_group()) {
        if (object.group_stream == nullptr) object.group_stream = stream;
        if (status.ok() && object.group_stream != stream) {
          status =
              Invalid("the calls of a group name different streams: give all of them the same one");
        }
        if (!status.ok()) return object.comm->GroupFailed(status);
      }
      IRIS_ABI_TRY(status);
      message.type = static_cast<DType>(dtype);
      return object.comm->Exchange(what, absl::MakeSpan(&message, 1), *on);
    });
  });
}

// Returns the config of the options, without their rules.
ccl::Config ConfigOf(const iris_comm_options& given) {
  ccl::Config config;
  config.blocks = given.blocks;
  config.block_threads = given.block_threads;
  config.max_blocks = given.max_blocks;
  config.packet_blocks = given.packet_blocks;
  config.packet_bytes = given.packet_bytes;
  config.stage_bytes = given.stage_bytes;
  config.timeout_ns = static_cast<uint64_t>(given.timeout_ns);
  config.check_calls = given.check_calls != 0;
  config.symmetric = given.symmetric != 0;
  config.barriers_only = given.barriers_only != 0;
  return config;
}

absl::StatusOr<ops::Matmul> ReadCall(const iris_matmul* call) {
  IRIS_ASSIGN_OR_RETURN(const auto given, ReadStruct(call, kMatmulBytes, "iris_matmul"));
  if (given.operation < IRIS_MATMUL_ALL_REDUCE || given.operation > IRIS_MATMUL_ALL_SCATTER) {
    return Invalid("iris_matmul: ", given.operation, " is no operation of iris_matmul");
  }
  ops::Matmul out;
  out.problem.operation = static_cast<ccl::Operation>(given.operation);
  FieldReader read("iris_matmul");
  ops::impl::ForFields(given, out.problem, out, read);
  IRIS_ABI_TRY(read.status());
  return out;
}
absl::StatusOr<norm::Norm> ReadCall(const iris_norm* call) {
  IRIS_ASSIGN_OR_RETURN(const auto given, ReadStruct(call, kNormBytes, "iris_norm"));
  if (given.operation < IRIS_ALL_REDUCE_RMS_NORM ||
      given.operation > IRIS_REDUCE_SCATTER_RMS_NORM_ALL_GATHER) {
    return Invalid("iris_norm: ", given.operation, " is no operation of iris_norm");
  }
  norm::Norm out;
  out.problem.operation = static_cast<ccl::Operation>(given.operation);
  FieldReader read("iris_norm");
  norm::impl::ForFields(given, out.problem, out, read);
  IRIS_ABI_TRY(read.status());
  return out;
}

absl::StatusOr<moe::Config> ReadConfig(const iris_moe_config* config) {
  IRIS_ASSIGN_OR_RETURN(const auto given, ReadStruct(config, kMoeConfigBytes, "iris_moe_config"));
  moe::Config out;
  FieldReader read("moe");
  moe::impl::ForConfigFields(given, out, read);
  IRIS_ABI_TRY(read.status());
  return out;
}

// Reads a call of a mixture of experts into a Cpp, and calls `put` of the communicator with it.
template <typename Cpp, typename C, typename ForFields, typename PutCall>
iris_code PutMoe(iris_comm* comm, const iris_moe_config* config, const C* call, size_t least_bytes,
                 const char* name, iris_stream* stream, ForFields for_fields,
                 PutCall put) noexcept {
  return Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const moe::Config read, ReadConfig(config));
    IRIS_ASSIGN_OR_RETURN(const auto given, ReadStruct(call, least_bytes, name));
    Cpp out;
    FieldReader fields("moe");
    for_fields(given, out, fields);
    IRIS_ABI_TRY(fields.status());
    return (c.*put)(read, given.workspace, out, s);
  });
}

}  // namespace

iris_code iris_comm_create(iris_context* context, iris_team* team, const iris_comm_options* options,
                           iris_comm** out) {
  return WithTeam(context, team, [&](ContextObject& object, const auto& members) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "create a communicator: the place for the handle"));
    iris_comm_options given = {};
    if (options != nullptr) {
      IRIS_ASSIGN_OR_RETURN(given, ReadStruct(options, kCommOptionsBytes, "iris_comm_options"));
    }
    if (given.timeout_ns < 0) return Invalid("create a communicator: timeout_ns is negative");
    IRIS_ABI_TRY(object.host().Usable());
    IRIS_ASSIGN_OR_RETURN(const auto table, object.state->Backend());
    iris::internal::CommunicatorOptions wanted;
    wanted.name = TextOf(given.name);
    wanted.config = ConfigOf(given);
    wanted.matmul_bytes = given.matmul_bytes;
    absl::StatusOr<Rules> rules = Rules();
    if (given.rules != nullptr) {
      rules = ParseRules(given.rules, table->HasVariant);
      if (!rules.ok()) return Annotate(rules.status(), "create a communicator");
      wanted.gemm_rules = rules->gemms;
      wanted.nodes_rules = rules->nodes;
      // Collectives keep the built-in table if the text has no rules for them.
      wanted.config.rules = rules->collectives.data();
      wanted.config.n_rules = static_cast<uint32_t>(rules->collectives.size());
    }
    auto made = std::make_unique<CommObject>(object.state);
    IRIS_ASSIGN_OR_RETURN(auto created,
                          Communicator::Create(object.host(), *table, members, wanted));
    made->comm = std::move(created);
    return object.state->Give(std::move(made), out);
  });
}

iris_code iris_comm_release(iris_comm* comm) {
  return OnComm(comm, [](auto& c) { return c.Destroy(); });
}

iris_code iris_comm_destroy(iris_comm* comm) { return Destroy<CommObject>(comm); }

iris_code iris_all_reduce(iris_comm* comm, const void* in, void* out, uint64_t count,
                          iris_dtype dtype, iris_reduce_op op, iris_stream* stream,
                          int32_t variant) {
  return Run(comm, stream, ccl::Operation::kAllReduce, in, out, count, dtype, op, 0, variant);
}

iris_code iris_reduce_scatter(iris_comm* comm, const void* in, void* out, uint64_t count_per_member,
                              iris_dtype dtype, iris_reduce_op op, iris_stream* stream,
                              int32_t variant) {
  return Run(comm, stream, ccl::Operation::kReduceScatter, in, out, count_per_member, dtype, op, 0,
             variant);
}

iris_code iris_reduce(iris_comm* comm, const void* in, void* out, uint64_t count, iris_dtype dtype,
                      iris_reduce_op op, uint32_t root, iris_stream* stream, int32_t variant) {
  return Run(comm, stream, ccl::Operation::kReduce, in, out, count, dtype, op, root, variant);
}

iris_code iris_all_gather(iris_comm* comm, const void* in, void* out, uint64_t count_per_member,
                          iris_dtype dtype, iris_stream* stream, int32_t variant) {
  return Run(comm, stream, ccl::Operation::kAllGather, in, out, count_per_member, dtype, IRIS_SUM,
             0, variant);
}

iris_code iris_gather(iris_comm* comm, const void* in, void* out, uint64_t count_per_member,
                      iris_dtype dtype, uint32_t root, iris_stream* stream, int32_t variant) {
  return Run(comm, stream, ccl::Operation::kGather, in, out, count_per_member, dtype, IRIS_SUM,
             root, variant);
}

iris_code iris_scatter(iris_comm* comm, const void* in, void* out, uint64_t count_per_member,
                       iris_dtype dtype, uint32_t root, iris_stream* stream, int32_t variant) {
  return Run(comm, stream, ccl::Operation::kScatter, in, out, count_per_member, dtype, IRIS_SUM,
             root, variant);
}

iris_code iris_all_to_all(iris_comm* comm, const void* in, void* out, uint64_t count_per_member,
                          iris_dtype dtype, iris_stream* stream, int32_t variant) {
  return Run(comm, stream, ccl::Operation::kAllToAll, in, out, count_per_member, dtype, IRIS_SUM, 0,
             variant);
}

iris_code iris_all_to_all_v(iris_comm* comm, const void* in, const uint64_t* to_counts,
                            const uint64_t* to_offsets, void* out, const uint64_t* from_counts,
                            const uint64_t* from_offsets, uint32_t n_members, iris_dtype dtype,
                            iris_stream* stream) {
  return Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ABI_TRY(CheckNumbers(dtype));
    for (const uint64_t* each : {to_counts, to_offsets, from_counts, from_offsets}) {
      IRIS_ABI_TRY(NotNull(each, "all_to_all_v: one of the arrays of counts and offsets"));
    }
    if (const size_t n = c.team().ranks.size(); n_members != n) {
      return Invalid("all_to_all_v: ", n_members, " counts or offsets for ", n, " ranks");
    }
    return c.Run({{ccl::Operation::kAllToAllV, 0, static_cast<DType>(dtype)},
                  in,
                  out,
                  0,
                  {to_counts, to_offsets},
                  {from_counts, from_offsets}},
                 s);
  });
}

iris_code iris_broadcast(iris_comm* comm, const void* in, void* out, uint64_t count,
                         iris_dtype dtype, uint32_t root, iris_stream* stream, int32_t variant) {
  return Run(comm, stream, ccl::Operation::kBroadcast, in, out, count, dtype, IRIS_SUM, root,
             variant);
}

iris_code iris_send(iris_comm* comm, const void* in, uint64_t count, iris_dtype dtype, uint32_t to,
                    iris_stream* stream) {
  return RunMessage(comm, stream, "send", dtype, {.in = in, .count = count, .peer_index = to});
}

iris_code iris_recv(iris_comm* comm, void* out, uint64_t count, iris_dtype dtype, uint32_t from,
                    iris_stream* stream) {
  return RunMessage(comm, stream, "recv", dtype, {.out = out, .count = count, .peer_index = from});
}

iris_code iris_send_recv(iris_comm* comm, const void* in, uint64_t count, uint32_t to, void* out,
                         uint64_t out_count, uint32_t from, iris_dtype dtype, iris_stream* stream) {
  return Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ABI_TRY(CheckNumbers(dtype));
    const auto type = static_cast<DType>(dtype);
    ccl::Message messages[2] = {{in, nullptr, count, type, to},
                                {nullptr, out, out_count, type, from}};
    return c.Exchange("send_recv", absl::MakeSpan(messages), s);
  });
}

iris_code iris_group_start(iris_comm* comm) {
  return With<CommObject>(comm, [](CommObject& object) {
    return InTurn(object, [&]() -> absl::Status {
      IRIS_ABI_TRY(object.comm->GroupStart());
      object.group_stream = nullptr;
      return absl::OkStatus();
    });
  });
}

iris_code iris_group_end(iris_comm* comm) {
  return With<CommObject>(comm, [](CommObject& object) {
    return InTurn(object, [&]() -> absl::Status {
      iris_stream* const stream = object.group_stream;
      if (stream == nullptr) return object.comm->GroupEnd(nullptr);
      object.group_stream = nullptr;
      const Held<StreamObject> held(stream);
      if (held) return object.comm->GroupEnd(&**held);
      IRIS_ABI_TRY(object.comm->GroupEnd(nullptr));
      return Unknown<StreamObject>(stream);
    });
  });
}

iris_code iris_comm_barrier(iris_comm* comm, iris_stream* stream) {
  return Put(comm, stream, [](auto& c, auto& s) {
    return c.Run({{ccl::Operation::kBarrier, 0, DType::kNone}}, s);
  });
}

iris_code iris_comm_check(iris_comm* comm) {
  return OnComm(comm, [](auto& c) { return c.Check(); });
}

iris_code iris_comm_error_word(iris_comm* comm, const uint64_t** out) {
  return With<CommObject>(comm, [&](CommObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "the place for the address of the word"));
    *out = object.comm->error_word();
    return absl::OkStatus();
  });
}

iris_code iris_comm_synchronize(iris_comm* comm, iris_stream* stream) {
  return Put(comm, stream, [](auto& c, auto& s) { return c.Synchronize(s); });
}

iris_code iris_comm_reset(iris_comm* comm) {
  return OnComm(comm, [](auto& c) { return c.Reset(); });
}

iris_code iris_matmul_bytes(iris_context* context, uint32_t n_members,
                            const iris_comm_options* options, const iris_matmul* call,
                            uint64_t* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.host().Usable());
    IRIS_ABI_TRY(NotNull(out, "the place for the number of bytes"));
    IRIS_ASSIGN_OR_RETURN(const auto matmul, ReadCall(call));
    iris_comm_options given = {};
    if (options != nullptr) {
      IRIS_ASSIGN_OR_RETURN(given, ReadStruct(options, kCommOptionsBytes, "iris_comm_options"));
    }
    IRIS_ASSIGN_OR_RETURN(const auto table, object.state->Backend());
    absl::StatusOr<Rules> rules = Rules();
    if (given.rules != nullptr) rules = ParseRules(given.rules, table->HasVariant);
    if (!rules.ok()) return rules.status();
    IRIS_ASSIGN_OR_RETURN(const auto bytes,
                          Communicator::MatmulBytes(object.host(), *table, n_members,
                                                    ConfigOf(given), matmul.problem, rules->gemms));
    *out = bytes;
    return absl::OkStatus();
  });
}

iris_code iris_matmul_choose(iris_comm* comm, const iris_matmul* call, iris_matmul_plan* out) {
  return OnComm(comm, [&](auto& c) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto matmul, ReadCall(call));
    IRIS_ASSIGN_OR_RETURN(const auto plan, c.ChooseMatmul(matmul));
    iris_matmul_plan told = {};
    told.variant = static_cast<int32_t>(plan.variant);
    told.blocks = plan.blocks;
    told.threads = plan.threads;
    told.tile_rows = plan.tile_rows;
    told.tile_columns = plan.tile_columns;
    told.matmul_bytes = plan.workspace_bytes;
    const size_t length = std::min(std::strlen(plan.multiplier), sizeof(told.multiplier) - 1);
    std::memcpy(told.multiplier, plan.multiplier, length);
    return WriteStruct(told, "iris_matmul_plan", out);
  });
}

iris_code iris_matmul_launch(iris_comm* comm, const iris_matmul* call, iris_stream* stream) {
  return Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto matmul, ReadCall(call));
    return c.Matmul(matmul, s);
  });
}

iris_code iris_norm_choose(iris_comm* comm, const iris_norm* call, iris_norm_plan* out) {
  return OnComm(comm, [&](auto& c) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto read, ReadCall(call));
    IRIS_ASSIGN_OR_RETURN(const auto plan, c.ChooseNorm(read.problem));
    iris_norm_plan told = {};
    told.variant = static_cast<int32_t>(plan.variant);
    told.blocks = plan.blocks;
    told.threads = plan.threads;
    told.parts = plan.parts;
    return WriteStruct(told, "iris_norm_plan", out);
  });
}

iris_code iris_norm_launch(iris_comm* comm, const iris_norm* call, iris_stream* stream) {
  return Put(comm, stream, [&](auto& c, auto& s) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto read, ReadCall(call));
    return c.Norm(read, s);
  });
}

iris_code iris_moe_get_sizes(iris_context* context, uint32_t n_members, uint32_t index,
                             const iris_moe_config* config, iris_moe_sizes* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.host().Usable());
    IRIS_ASSIGN_OR_RETURN(const auto read, ReadConfig(config));
    IRIS_ASSIGN_OR_RETURN(const auto table, object.state->Backend());
    IRIS_ASSIGN_OR_RETURN(const auto sizes,
                          Communicator::MoeSizes(object.host(), *table, n_members, index, read));
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
  return PutMoe<moe::Dispatch>(
      comm, config, call, kMoeDispatchCallBytes, "iris_moe_dispatch_call", stream,
      [](auto&... each) { moe::impl::ForDispatchFields(each...); }, &Communicator::MoeDispatch);
}

iris_code iris_moe_combine(iris_comm* comm, const iris_moe_config* config,
                           const iris_moe_combine_call* call, iris_stream* stream) {
  return PutMoe<moe::Combine>(
      comm, config, call, kMoeCombineCallBytes, "iris_moe_combine_call", stream,
      [](auto&... each) { moe::impl::ForCombineFields(each...); }, &Communicator::MoeCombine);
}
