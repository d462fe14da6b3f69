#include "server/state/operation_proto.h"

#include <string>
#include <utility>

#include "absl/status/status.h"

namespace iris::server {
namespace {

TensorInfo FromProto(const v1::TensorInfo& from) {
  return {.dtype = from.dtype(), .shape = {from.shape().begin(), from.shape().end()}};
}
void Set(const TensorInfo& from, v1::TensorInfo* to) {
  to->set_dtype(from.dtype);
  to->mutable_shape()->Assign(from.shape.begin(), from.shape.end());
}

AllocateOp FromProto(const v1::AllocateOp& from) {
  AllocateOp op;
  op.bytes = from.bytes();
  op.alignment_bytes = from.alignment_bytes();
  op.name = from.name();
  op.tensor = FromProto(from.tensor());
  return op;
}
void Set(const AllocateOp& from, v1::OperateRequest* to) {
  v1::AllocateOp& op = *to->mutable_allocate();
  op.set_bytes(from.bytes);
  op.set_alignment_bytes(from.alignment_bytes);
  op.set_name(from.name);
  Set(from.tensor, op.mutable_tensor());
}

FreeOp FromProto(const v1::FreeOp& from) { return {.offset_bytes = from.offset_bytes()}; }
void Set(const FreeOp& from, v1::OperateRequest* to) {
  to->mutable_free()->set_offset_bytes(from.offset_bytes);
}

BroadcastOp FromProto(v1::BroadcastOp&& from) {
  return {.root = from.root(), .value = SharedBytes(std::move(*from.mutable_value()))};
}
void Set(const BroadcastOp& from, v1::OperateRequest* to) {
  to->mutable_broadcast()->set_root(from.root);
  to->mutable_broadcast()->set_value(std::string(from.value.view()));
}

CreateTeamOp FromProto(const v1::CreateTeamOp& from) {
  return {.ranks = {from.ranks().begin(), from.ranks().end()}};
}
void Set(const CreateTeamOp& from, v1::OperateRequest* to) {
  to->mutable_create_team()->mutable_ranks()->Assign(from.ranks.begin(), from.ranks.end());
}

DestroyTeamOp FromProto(const v1::DestroyTeamOp& from) {
  return {.last_barrier_epoch = from.last_barrier_epoch()};
}
void Set(const DestroyTeamOp& from, v1::OperateRequest* to) {
  to->mutable_destroy_team()->set_last_barrier_epoch(from.last_barrier_epoch);
}

GrowOp FromProto(const v1::GrowOp& from) { return {.bytes = from.bytes()}; }
void Set(const GrowOp& from, v1::OperateRequest* to) { to->mutable_grow()->set_bytes(from.bytes); }

OpenOp FromProto(const v1::OpenOp& from) { return {.owner = from.rank(), .name = from.name()}; }
void Set(const OpenOp& from, v1::OperateRequest* to) {
  to->mutable_open()->set_rank(from.owner);
  to->mutable_open()->set_name(from.name);
}

PublishOp FromProto(const v1::PublishOp& from) {
  return {.offset_bytes = from.offset_bytes(), .name = from.name()};
}
void Set(const PublishOp& from, v1::OperateRequest* to) {
  to->mutable_publish()->set_offset_bytes(from.offset_bytes);
  to->mutable_publish()->set_name(from.name);
}

RegisterOp FromProto(const v1::RegisterOp& from) {
  return {.piece_bytes = {from.piece_bytes().begin(), from.piece_bytes().end()},
          .lead_bytes = from.lead_bytes(),
          .bytes = from.bytes(),
          .name = from.name(),
          .tensor = FromProto(from.tensor()),
          .error = from.error()};
}
void Set(const RegisterOp& from, v1::OperateRequest* to) {
  v1::RegisterOp& op = *to->mutable_register_();
  op.mutable_piece_bytes()->Assign(from.piece_bytes.begin(), from.piece_bytes.end());
  op.set_lead_bytes(from.lead_bytes);
  op.set_bytes(from.bytes);
  op.set_name(from.name);
  Set(from.tensor, op.mutable_tensor());
  op.set_error(from.error);
}

ConfirmOp FromProto(const v1::ConfirmOp& from) {
  return {.offset_bytes = from.offset_bytes(), .error = from.error()};
}
void Set(const ConfirmOp& from, v1::OperateRequest* to) {
  to->mutable_confirm()->set_offset_bytes(from.offset_bytes);
  to->mutable_confirm()->set_error(from.error);
}

SplitOp FromProto(const v1::SplitOp& from) {
  SplitOp op;
  for (const v1::SplitOp::Wish& wish : from.wishes()) {
    op.wishes.push_back({wish.rank(), wish.color(), wish.key()});
  }
  return op;
}
void Set(const SplitOp& from, v1::OperateRequest* to) {
  v1::SplitOp& op = *to->mutable_split();
  for (const SplitOp::Wish& wish : from.wishes) {
    v1::SplitOp::Wish& one = *op.add_wishes();
    one.set_rank(wish.rank);
    one.set_color(wish.color);
    one.set_key(wish.key);
  }
}

}  // namespace

absl::StatusOr<Operation> OperationOfRequest(v1::OperateRequest request) {
  switch (request.op_case()) {
    case v1::OperateRequest::kAllocate:
      return FromProto(request.allocate());
    case v1::OperateRequest::kFree:
      return FromProto(request.free());
    case v1::OperateRequest::kBroadcast:
      return FromProto(std::move(*request.mutable_broadcast()));
    case v1::OperateRequest::kCreateTeam:
      return FromProto(request.create_team());
    case v1::OperateRequest::kDestroyTeam:
      return FromProto(request.destroy_team());
    case v1::OperateRequest::kGrow:
      return FromProto(request.grow());
    case v1::OperateRequest::kOpen:
      return FromProto(request.open());
    case v1::OperateRequest::kPublish:
      return FromProto(request.publish());
    case v1::OperateRequest::kRegister:
      return FromProto(request.register_());
    case v1::OperateRequest::kConfirm:
      return FromProto(request.confirm());
    case v1::OperateRequest::kSplit:
      return FromProto(request.split());
    case v1::OperateRequest::OP_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the request has no operation that irisd knows");
}

void ToProto(const Operation& from, v1::OperateRequest* to) {
  std::visit([to](const auto& op) { Set(op, to); }, from);
}

}  // namespace iris::server
