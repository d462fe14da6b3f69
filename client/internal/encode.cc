#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "client/internal/clock.h"
#include "client/internal/convert.h"
#include "client/internal/heap_fields.h"
#include "client/internal/utf8.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"
#include "protozero/pbf_builder.hpp"

namespace iris::internal {
namespace {

// At least 1: 0 stands for irisd's own default.
uint64_t Milliseconds(absl::Duration timeout) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kTimeoutMax))));
}

absl::string_view CutBeyond(absl::string_view text, size_t limit) {
  return text.substr(0, limit + 1);
}

// A message that is being written. What has its default value is left out, as proto3 does.
template <typename Field>
class Writer {
 public:
  void Uint(Field field, uint64_t value) {
    if (value != 0) builder_.add_uint64(field, value);
  }
  // Its size grows with the number's distance from zero.
  void Sint(Field field, int32_t value) {
    if (value != 0) builder_.add_sint32(field, value);
  }
  // A negative number takes ten bytes.
  void Int(Field field, int64_t value) {
    if (value != 0) builder_.add_int64(field, value);
  }
  void Bool(Field field, bool value) {
    if (value) builder_.add_bool(field, value);
  }
  void Fixed64(Field field, uint64_t value) {
    if (value != 0) builder_.add_fixed64(field, value);
  }
  void Text(Field field, absl::string_view value) {
    if (!value.empty()) builder_.add_bytes(field, value.data(), value.size());
  }
  // At most `n_max` of them.
  template <typename T>
  void Uints(Field field, const std::vector<T>& values, size_t n_max) {
    builder_.add_packed_uint64(
        field, values.begin(),
        values.begin() + static_cast<ptrdiff_t>(std::min(values.size(), n_max)));
  }
  // Also an empty one: that it is there says something.
  template <typename Inner>
  void Message(Field field, const Writer<Inner>& message) {
    builder_.add_message(field, message.bytes());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  protozero::pbf_builder<Field> builder_{bytes_};
};

using Operate = Writer<field::OperateRequest>;

// Writes the operation; one overload for each.
Writer<field::TensorInfo> TensorOf(const AllocateOptions& options) {
  Writer<field::TensorInfo> tensor;
  tensor.Text(field::TensorInfo::kDtype, CutBeyond(options.dtype, wire::kMaxDtypeBytes));
  tensor.Uints(field::TensorInfo::kShape, options.shape, wire::kMaxDims + 1);
  return tensor;
}
void Write(const AllocateOptions& op, Operate* to) {
  Writer<field::AllocateOp> message;
  message.Uint(field::AllocateOp::kBytes, op.bytes);
  message.Uint(field::AllocateOp::kAlignmentBytes, op.alignment_bytes);
  message.Text(field::AllocateOp::kName, CutBeyond(op.name, wire::kMaxAllocationNameBytes));
  message.Message(field::AllocateOp::kTensor, TensorOf(op));
  to->Message(field::OperateRequest::kAllocate, message);
}
void Write(const FreeOp& op, Operate* to) {
  Writer<field::FreeOp> message;
  message.Uint(field::FreeOp::kOffsetBytes, op.offset_bytes);
  to->Message(field::OperateRequest::kFree, message);
}
void Write(const BroadcastOp& op, Operate* to) {
  Writer<field::BroadcastOp> message;
  message.Uint(field::BroadcastOp::kRoot, op.root);
  message.Text(field::BroadcastOp::kValue, CutBeyond(op.value, wire::kMaxBroadcastBytes));
  to->Message(field::OperateRequest::kBroadcast, message);
}
void Write(const CreateTeamOp& op, Operate* to) {
  Writer<field::CreateTeamOp> message;
  message.Uints(field::CreateTeamOp::kRanks, op.ranks, wire::kMaxRanks + 1);
  to->Message(field::OperateRequest::kCreateTeam, message);
}
void Write(const DestroyTeamOp& op, Operate* to) {
  Writer<field::DestroyTeamOp> message;
  message.Uint(field::DestroyTeamOp::kLastBarrierEpoch, op.last_barrier_epoch);
  to->Message(field::OperateRequest::kDestroyTeam, message);
}
void Write(const GrowOp& op, Operate* to) {
  Writer<field::GrowOp> message;
  message.Uint(field::GrowOp::kBytes, op.bytes);
  to->Message(field::OperateRequest::kGrow, message);
}
void Write(const OpenOp& op, Operate* to) {
  Writer<field::OpenOp> message;
  message.Uint(field::OpenOp::kRank, op.rank);
  message.Text(field::OpenOp::kName, CutBeyond(op.name, wire::kMaxAllocationNameBytes));
  to->Message(field::OperateRequest::kOpen, message);
}
void Write(const PublishOp& op, Operate* to) {
  Writer<field::PublishOp> message;
  message.Uint(field::PublishOp::kOffsetBytes, op.offset_bytes);
  message.Text(field::PublishOp::kName, CutBeyond(op.name, wire::kMaxAllocationNameBytes));
  to->Message(field::OperateRequest::kPublish, message);
}

void Write(const RegisterOp& op, Operate* to) {
  Writer<field::RegisterOp> message;
  message.Uints(field::RegisterOp::kPieceBytes, op.piece_bytes, wire::kMaxDescriptorsPerCall + 1);
  message.Uint(field::RegisterOp::kLeadBytes, op.lead_bytes);
  message.Uint(field::RegisterOp::kBytes, op.options.bytes);
  message.Text(field::RegisterOp::kName, CutBeyond(op.options.name, wire::kMaxAllocationNameBytes));
  message.Message(field::RegisterOp::kTensor, TensorOf(op.options));
  if (!op.error.ok()) message.Text(field::RegisterOp::kError, ToErrorText(op.error));
  to->Message(field::OperateRequest::kRegister, message);
}
void Write(const ConfirmOp& op, Operate* to) {
  Writer<field::ConfirmOp> message;
  message.Uint(field::ConfirmOp::kOffsetBytes, op.offset_bytes);
  if (!op.mapped.ok()) message.Text(field::ConfirmOp::kError, ToErrorText(op.mapped));
  to->Message(field::OperateRequest::kConfirm, message);
}
void Write(const SplitOp& op, Operate* to) {
  Writer<field::Wish> wish;
  wish.Uint(field::Wish::kRank, op.rank);
  wish.Sint(field::Wish::kColor, op.color);
  wish.Sint(field::Wish::kKey, op.key);
  Writer<field::SplitOp> message;
  message.Message(field::SplitOp::kWishes, wish);
  to->Message(field::OperateRequest::kSplit, message);
}

// The fields that all requests about a job have.
template <typename Field>
void Ask(const Asker& asker, Writer<Field>* to) {
  to->Fixed64(Field::kSessionId, asker.session_id);
  to->Fixed64(Field::kJobId, asker.job_id);
}

}  // namespace

std::string EncodeJoin(uint64_t session_id, const ContextOptions& options) {
  using Field = field::JoinRequest;
  Writer<Field> request;
  request.Fixed64(Field::kSessionId, session_id);
  request.Text(Field::kJob, CutBeyond(options.job, wire::kMaxJobNameBytes));
  request.Int(Field::kRank, options.rank);
  request.Int(Field::kNRanks, options.n_ranks);
  request.Uint(Field::kHeapBytes, options.heap_bytes);
  request.Uint(Field::kMaxHeapBytes, options.max_heap_bytes);
  request.Text(Field::kDeviceUuid, options.device_uuid);
  request.Int(Field::kLocalRank, options.local_rank);
  request.Bool(Field::kPrealloc, options.prealloc);
  request.Uint(Field::kTimeoutMs, Milliseconds(options.join_timeout));
  request.Uint(Field::kTeamSyncBytes, kSyncAreaBytes);
  request.Uint(Field::kNumber, kJoinNumber);
  return request.bytes();
}

std::string EncodeMapped(const Asker& asker, uint64_t epoch, const absl::StatusOr<uint64_t>& base) {
  using Field = field::MappedRequest;
  Writer<Field> request;
  Ask(asker, &request);
  request.Uint(Field::kEpoch, epoch);
  if (base.ok()) {
    request.Uint(Field::kBase, *base);
  } else {
    request.Text(Field::kError, ToErrorText(base.status()));
  }
  return request.bytes();
}

std::string EncodeOperate(uint64_t session_id, const OperationCall& call, absl::Duration timeout) {
  using Field = field::OperateRequest;
  Operate request;
  Ask({session_id, call.job_id}, &request);
  request.Uint(Field::kTeamId, call.team_id);
  request.Uint(Field::kK, call.k);
  request.Uint(Field::kTimeoutMs, Milliseconds(timeout));
  // In the order of the fields' numbers, as protobuf writes them.
  const bool last = std::holds_alternative<SplitOp>(call.op);
  const auto write_op = [&] {
    std::visit([&request](const auto& op) { Write(op, &request); }, call.op);
  };
  if (!last) write_op();
  request.Bool(Field::kOnlyThread, call.only_thread);
  if (last) write_op();
  return request.bytes();
}

std::string EncodeBorrow(uint64_t session_id, const HeapPart& part) {
  using Field = field::BorrowRequest;
  Writer<Field> request;
  request.Fixed64(Field::kSessionId, session_id);
  request.Text(Field::kJob, part.job);
  request.Uint(Field::kRank, part.rank);
  request.Uint(Field::kOffsetBytes, part.offset_bytes);
  request.Uint(Field::kBytes, part.bytes);
  return request.bytes();
}

std::string EncodeGrowMapped(const Asker& asker, uint64_t grow_id, const absl::Status& mapped) {
  using Field = field::GrowMappedRequest;
  Writer<Field> request;
  Ask(asker, &request);
  request.Uint(Field::kGrowId, grow_id);
  if (!mapped.ok()) request.Text(Field::kError, ToErrorText(mapped));
  return request.bytes();
}

std::string EncodeAwaitBarrier(uint64_t session_id, const BarrierWait& wait) {
  using Field = field::AwaitBarrierRequest;
  Writer<Field> request;
  Ask({session_id, wait.job_id}, &request);
  request.Uint(Field::kTeamId, wait.team_id);
  request.Uint(Field::kEpoch, wait.epoch);
  request.Uints(Field::kMissing, wait.missing, wire::kMaxRanks);
  request.Bool(Field::kOnlyThread, wait.only_thread);
  request.Uint(Field::kMoment, wait.moment);
  request.Bool(Field::kTimeIsUp, wait.time_is_up);
  return request.bytes();
}

std::string EncodeLeave(const Asker& asker) {
  Writer<field::LeaveRequest> request;
  Ask(asker, &request);
  return request.bytes();
}

std::string EncodeResume(uint64_t session_id, const RankIdentity& identity) {
  using Field = field::ResumeRequest;
  Writer<Field> request;
  Ask({session_id, identity.job_id}, &request);
  request.Text(Field::kJob, identity.job);
  request.Uint(Field::kRank, identity.rank);
  request.Uint(Field::kEpoch, identity.epoch);
  return request.bytes();
}

std::string EncodeWatch(const Asker& asker) {
  Writer<field::WatchRequest> request;
  Ask(asker, &request);
  return request.bytes();
}

std::string ToErrorText(const absl::Status& error) {
  std::string text = ToUtf8(error.message(), wire::kMaxErrorTextBytes);
  return text.empty() ? absl::StatusCodeToString(error.code()) : text;
}

}  // namespace iris::internal
