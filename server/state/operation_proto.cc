#include "server/state/operation_proto.h"

#include <utility>

#include "absl/status/status.h"

namespace iris::server {

IRIS_FIELDS(AllocateOp, v1::AllocateOp, bytes, alignment_bytes, name, tensor);
IRIS_FIELDS(FreeOp, v1::FreeOp, offset_bytes);
IRIS_FIELDS(BroadcastOp, v1::BroadcastOp, root, value);
IRIS_FIELDS(CreateTeamOp, v1::CreateTeamOp, ranks);
IRIS_FIELDS(DestroyTeamOp, v1::DestroyTeamOp, last_barrier_epoch);
IRIS_FIELDS(GrowOp, v1::GrowOp, bytes);
IRIS_FIELDS(OpenOp, v1::OpenOp, (owner, rank), name);
IRIS_FIELDS(PublishOp, v1::PublishOp, offset_bytes, name);
IRIS_FIELDS(RegisterOp, v1::RegisterOp, piece_bytes, lead_bytes, bytes, name, tensor, error);
IRIS_FIELDS(ConfirmOp, v1::ConfirmOp, offset_bytes, error);
IRIS_FIELDS(SplitOp::Wish, v1::SplitOp::Wish, rank, color, key);
IRIS_FIELDS(SplitOp, v1::SplitOp, wishes);

namespace {

// Maps an operation to a field of the request.
template <typename Op, typename Access>
struct Choice {
  Access access;
};
template <typename Op, typename Access>
constexpr Choice<Op, Access> Of(Access access) {
  return {access};
}
constexpr auto kChoices =
    std::tuple(Of<AllocateOp>(IRIS_ACCESS(allocate)), Of<FreeOp>(IRIS_ACCESS(free)),
               Of<BroadcastOp>(IRIS_ACCESS(broadcast)), Of<CreateTeamOp>(IRIS_ACCESS(create_team)),
               Of<DestroyTeamOp>(IRIS_ACCESS(destroy_team)), Of<GrowOp>(IRIS_ACCESS(grow)),
               Of<OpenOp>(IRIS_ACCESS(open)), Of<PublishOp>(IRIS_ACCESS(publish)),
               Of<RegisterOp>(IRIS_ACCESS(register_)), Of<ConfirmOp>(IRIS_ACCESS(confirm)),
               Of<SplitOp>(IRIS_ACCESS(split)));
static_assert(std::tuple_size_v<decltype(kChoices)> == std::variant_size_v<Operation>);

template <typename Visit>
void ForChoices(Visit visit) {
  std::apply([&visit](const auto&... choice) { (visit(choice), ...); }, kChoices);
}

}  // namespace

absl::StatusOr<Operation> OperationOfRequest(v1::OperateRequest request) {
  if (request.has_broadcast()) {
    return BroadcastOp{.root = request.broadcast().root(),
                       .value = std::move(*request.mutable_broadcast()->mutable_value())};
  }
  if (request.op_case() == v1::OperateRequest::OP_NOT_SET) {
    return absl::InvalidArgumentError("the request has no operation that irisd knows");
  }
  Operation operation;
  ForChoices([&]<typename Op, typename Access>(const Choice<Op, Access>& choice) {
    if (!choice.access(kUse<FieldUse::kHas>, request)) return;
    Read(choice.access(kUse<FieldUse::kGet>, std::as_const(request)), &operation.emplace<Op>());
  });
  return operation;
}

void ToProto(const Operation& from, v1::OperateRequest* to) {
  ForChoices([&]<typename Op, typename Access>(const Choice<Op, Access>& choice) {
    const Op* const op = std::get_if<Op>(&from);
    if (op != nullptr) Write(*op, choice.access(kUse<FieldUse::kMutable>, *to));
  });
}

}  // namespace iris::server
