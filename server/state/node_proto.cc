#include "server/state/node_proto.h"

#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/state/message_fields.h"
#include "server/state/node_message.pb.h"
#include "server/state/operation_proto.h"

namespace iris::server {

IRIS_FIELDS(NodePart, node::Part, node, n_ranks, name, with_previous, fabric, ranks_per_device);
IRIS_FIELDS(NodeJoined, node::Joined, n_ranks, heap_bytes, stride_bytes, team_sync_bytes, pids,
            fabric, ranks_per_device, handles);
IRIS_FIELDS(NodeWithdrawn, node::Withdrawn);
IRIS_FIELDS(NodesJoined, node::AllJoined, epoch, nodes, handles);
IRIS_FIELDS(NodeMapped, node::Mapped, same_address);
IRIS_FIELDS(NodesMapped, node::AllMapped, same_address);
// The rows exclude the operation.
IRIS_FIELDS(OperationAsked, node::Asked, team, k, rank, (timeout, timeout_ns), only_thread);
IRIS_FIELDS(OperationDecided, node::Decided, team, k, status, offset_bytes);
IRIS_FIELDS(JoinsFailed, node::Failed, status);
IRIS_FIELDS(RankIs, node::RankIs, rank, state, pid, reason);
IRIS_FIELDS(NodeIsLost, node::NodeIsLost, node, reason);
IRIS_FIELDS(GrowthBegun, node::GrowthBegun, grow, bytes);
IRIS_FIELDS(GrowthCreated, node::GrowthCreated, grow, error, handles);
IRIS_FIELDS(GrowthMaps, node::GrowthMaps, grow, handles);
IRIS_FIELDS(GrowthMapped, node::GrowthMapped, grow, error);
IRIS_FIELDS(GrowthEnded, node::GrowthEnded, grow, published, reason);

namespace {

template <typename T, typename Access>
struct Choice {
  Access access;
};
template <typename T, typename Access>
constexpr Choice<T, Access> Of(Access access) {
  return {access};
}
constexpr auto kChoices = std::tuple(
    Of<NodeJoined>(IRIS_ACCESS(joined)), Of<NodeWithdrawn>(IRIS_ACCESS(withdrawn)),
    Of<NodesJoined>(IRIS_ACCESS(all_joined)), Of<NodeMapped>(IRIS_ACCESS(mapped)),
    Of<NodesMapped>(IRIS_ACCESS(all_mapped)), Of<OperationAsked>(IRIS_ACCESS(asked)),
    Of<OperationDecided>(IRIS_ACCESS(decided)), Of<JoinsFailed>(IRIS_ACCESS(failed)),
    Of<RankIs>(IRIS_ACCESS(rank_is)), Of<NodeIsLost>(IRIS_ACCESS(node_is_lost)),
    Of<GrowthBegun>(IRIS_ACCESS(growth_begun)), Of<GrowthCreated>(IRIS_ACCESS(growth_created)),
    Of<GrowthMaps>(IRIS_ACCESS(growth_maps)), Of<GrowthMapped>(IRIS_ACCESS(growth_mapped)),
    Of<GrowthEnded>(IRIS_ACCESS(growth_ended)));
static_assert(std::tuple_size_v<decltype(kChoices)> == std::variant_size_v<NodeMessage>);

template <typename Visit>
void ForChoices(Visit visit) {
  std::apply([&visit](const auto&... choice) { (visit(choice), ...); }, kChoices);
}

std::string BytesOf(const Operation& op) {
  v1::OperateRequest request;
  ToProto(op, &request);
  return request.SerializeAsString();
}

absl::StatusOr<Operation> OperationOf(const std::string& bytes) {
  v1::OperateRequest request;
  if (!request.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("the operation does not parse");
  }
  return OperationOfRequest(std::move(request));
}

}  // namespace

std::string EncodeNodeMessage(const NodeMessage& message) {
  node::Message to;
  ForChoices([&]<typename T, typename Access>(const Choice<T, Access>& choice) {
    const T* const from = std::get_if<T>(&message);
    if (from == nullptr) return;
    auto* const part = choice.access(kUse<FieldUse::kMutable>, to);
    Write(*from, part);
    if constexpr (requires { from->op; }) part->set_op(BytesOf(from->op));
  });
  return to.SerializeAsString();
}

absl::StatusOr<NodeMessage> DecodeNodeMessage(absl::string_view bytes) {
  node::Message from;
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      from.message_case() == node::Message::MESSAGE_NOT_SET) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes of another node are no message that irisd knows"));
  }
  NodeMessage message;
  absl::Status status;
  ForChoices([&]<typename T, typename Access>(const Choice<T, Access>& choice) {
    if (!choice.access(kUse<FieldUse::kHas>, from)) return;
    const auto& part = choice.access(kUse<FieldUse::kGet>, std::as_const(from));
    T& to = message.emplace<T>();
    Read(part, &to);
    if constexpr (requires { to.op; }) {
      auto op = OperationOf(part.op());
      status = op.status();
      if (op.ok()) to.op = *std::move(op);
    }
  });
  if (!status.ok()) return status;
  return message;
}

}  // namespace iris::server
