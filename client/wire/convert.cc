#include "client/wire/convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/clock.h"
#include "client/base/utf8.h"
#include "client/wire/message_fields.h"
#include "iris/dtype.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"

namespace iris::internal {

namespace {

// Returns at least 1, because 0 stands for irisd's own default.
uint64_t Milliseconds(absl::Duration timeout) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kTimeoutMax))));
}

std::string ErrorOf(const absl::Status& status) { return status.ok() ? "" : ToErrorText(status); }

// Returns a request with the first fields of all requests about a job.
MessageWriter RequestOf(const Asker& asker) {
  return MessageWriter().Fixed64(1, asker.session_id).Fixed64(2, asker.job_id);
}

// Each Write adds one operation to an OperateRequest.

MessageWriter TensorOf(const AllocateOptions& options) {
  return MessageWriter().Text(1, DTypeName(options.dtype)).Uints(2, options.shape, wire::kMaxDims);
}
void Write(const AllocateOptions& op, MessageWriter* to) {
  to->Message(6, MessageWriter()
                     .Uint(1, op.bytes)
                     .Uint(2, op.alignment_bytes)
                     .Text(3, op.name, wire::kMaxAllocationNameBytes)
                     .Message(4, TensorOf(op)));
}
void Write(const FreeOp& op, MessageWriter* to) {
  to->Message(7, MessageWriter().Uint(1, op.offset_bytes));
}
void Write(const BroadcastOp& op, MessageWriter* to) {
  to->Message(8, MessageWriter().Uint(1, op.root).Text(2, op.value, wire::kMaxBroadcastBytes));
}
void Write(const CreateTeamOp& op, MessageWriter* to) {
  to->Message(9, MessageWriter().Uints(1, op.ranks, wire::kMaxWorldRanks));
}
void Write(const DestroyTeamOp& op, MessageWriter* to) {
  to->Message(10, MessageWriter().Uint(1, op.last_barrier_epoch));
}
void Write(const GrowOp& op, MessageWriter* to) {
  to->Message(11, MessageWriter().Uint(1, op.bytes));
}
void Write(const OpenOp& op, MessageWriter* to) {
  to->Message(12, MessageWriter().Uint(1, op.rank).Text(2, op.name, wire::kMaxAllocationNameBytes));
}
void Write(const PublishOp& op, MessageWriter* to) {
  to->Message(
      13, MessageWriter().Uint(1, op.offset_bytes).Text(2, op.name, wire::kMaxAllocationNameBytes));
}
void Write(const RegisterOp& op, MessageWriter* to) {
  to->Message(14, MessageWriter()
                      .Uints(1, op.piece_bytes, wire::kMaxDescriptorsPerCall)
                      .Uint(2, op.lead_bytes)
                      .Uint(3, op.options.bytes)
                      .Text(4, op.options.name, wire::kMaxAllocationNameBytes)
                      .Message(5, TensorOf(op.options))
                      .Text(6, ErrorOf(op.error)));
}
void Write(const ConfirmOp& op, MessageWriter* to) {
  to->Message(15, MessageWriter().Uint(1, op.offset_bytes).Text(2, ErrorOf(op.mapped)));
}
void Write(const SplitOp& op, MessageWriter* to) {
  to->Message(17, MessageWriter().Message(
                      1, MessageWriter().Uint(1, op.rank).Sint(2, op.color).Sint(3, op.key)));
}

}  // namespace

std::string EncodeJoin(uint64_t session_id, const HostContextOptions& options,
                       absl::Duration timeout) {
  MessageWriter request;
  request.Fixed64(1, session_id)
      .Text(2, options.job, wire::kMaxJobNameBytes)
      .Int(3, options.rank)
      .Int(4, options.n_ranks)
      .Uint(5, options.heap_bytes)
      .Uint(6, options.max_heap_bytes)
      .Text(7, options.device_uuid)
      .Int(8, options.local_rank)
      .Bool(9, options.prealloc)
      .Uint(10, Milliseconds(timeout))
      .Uint(11, kSyncAreaBytes)
      .Uint(12, kJoinNumber);
  if (options.n_local > 0 && options.n_local < options.n_ranks) {
    const uint32_t first_local =
        static_cast<uint32_t>(options.rank) - static_cast<uint32_t>(options.local_rank);
    request.Message(13, MessageWriter()
                            .Uint(1, first_local)
                            .Int(2, options.n_local)
                            .Text(3, options.rendezvous)
                            .Text(4, options.secret)
                            .Text(5, options.by_launcher.rendezvous)
                            .Text(6, options.by_launcher.secret));
  }
  return request.bytes();
}

std::string EncodeMapped(const Asker& asker, uint64_t epoch, const absl::StatusOr<uint64_t>& base) {
  return RequestOf(asker)
      .Uint(3, epoch)
      .Uint(4, base.value_or(0))
      .Text(5, ErrorOf(base.status()))
      .bytes();
}

std::string EncodeOperate(uint64_t session_id, const OperationCall& call, absl::Duration timeout) {
  MessageWriter request = RequestOf({session_id, call.job_id})
                              .Uint(3, call.team_id)
                              .Uint(4, call.k)
                              .Uint(5, Milliseconds(timeout));
  // Fields come in the order of their numbers, and `split` has one above that of `only_thread`.
  const auto write_operation = [&] {
    std::visit([&request](const auto& op) { Write(op, &request); }, call.op);
  };
  const bool last = std::holds_alternative<SplitOp>(call.op);
  if (!last) write_operation();
  request.Bool(16, call.only_thread);
  if (last) write_operation();
  return request.bytes();
}

std::string EncodeBorrow(uint64_t session_id, const HeapPart& part) {
  return MessageWriter()
      .Fixed64(1, session_id)
      .Text(2, part.job)
      .Uint(3, part.rank)
      .Uint(4, part.offset_bytes)
      .Uint(5, part.bytes)
      .bytes();
}

std::string EncodeGrowMapped(const Asker& asker, uint64_t grow_id, const absl::Status& mapped) {
  return RequestOf(asker).Uint(3, grow_id).Text(4, ErrorOf(mapped)).bytes();
}

std::string EncodeAwaitBarrier(uint64_t session_id, const BarrierWait& wait) {
  return RequestOf({session_id, wait.job_id})
      .Uint(3, wait.team_id)
      .Uint(4, wait.epoch)
      .Uints(5, wait.missing, wire::kMaxRanks)
      .Bool(6, wait.only_thread)
      .Uint(7, wait.moment)
      .Bool(8, wait.time_is_up)
      .bytes();
}

std::string EncodeLeave(const Asker& asker) { return RequestOf(asker).bytes(); }

std::string EncodeResume(uint64_t session_id, const RankIdentity& identity) {
  return RequestOf({session_id, identity.job_id})
      .Text(3, identity.job)
      .Uint(4, identity.rank)
      .Uint(5, identity.epoch)
      .bytes();
}

std::string EncodeWatch(const Asker& asker) { return RequestOf(asker).bytes(); }

std::string ToErrorText(const absl::Status& error) {
  std::string text = ToUtf8(error.message(), wire::kMaxErrorTextBytes);
  return text.empty() ? absl::StatusCodeToString(error.code()) : text;
}

// Answers. ReadMessage finds these functions by their arguments, so they are not in an unnamed
// namespace.

static void Fields(MessageField& field, Segment* to) {
  field.Number(1, &to->segment_id);
  field.Number(2, &to->rank);
  field.Number(4, &to->offset_bytes);
  field.Number(5, &to->bytes);
}

static void Segments(MessageField& field, FieldNumber number, std::vector<Segment>* to) {
  field.Element(number, to, size_t{wire::kMaxRanks} * wire::kMaxSegmentsPerHeap,
                "it has more segments than a job can have");
}

static void Fields(MessageField& field, Peer* to) {
  field.Number(2, &to->pid);
  field.Text(3, &to->device_uuid);
  field.Number(4, &to->device_index);
}

// Decodes the device of the rank that joins.
struct OwnDevice {
  JoinedJob* job;
};
static void Fields(MessageField& field, OwnDevice* to) {
  field.Text(1, &to->job->device_uuid);
  field.Number(2, &to->job->device_index);
  field.Text(3, &to->job->backend);
}

static void Fields(MessageField& field, Node* to) {
  field.Number(1, &to->first_rank);
  field.Number(2, &to->n_ranks);
  field.Text(3, &to->name);
  field.Number(4, &to->with_previous);
  field.Number(5, &to->ranks_per_device);
}

static void Fields(MessageField& field, JoinedJob* to) {
  OwnDevice device = {to};
  field.Fixed64(1, &to->job_id);
  field.Number(2, &to->epoch);
  field.Number(3, &to->proposed_base);
  field.Number(4, &to->stride_bytes);
  field.Number(6, &to->heap_bytes);
  Segments(field, 7, &to->segments);
  field.Element(8, &to->peers, wire::kMaxRanks, "it has more peers than a job");
  field.Message(9, &device);
  field.Time(10, absl::Milliseconds(1), &to->map_timeout);
  field.Number(11, &to->link_bytes);
  field.Time(12, absl::Nanoseconds(1), &to->create);
  field.Time(13, absl::Nanoseconds(1), &to->export_fds);
  field.Element(14, &to->nodes, wire::kMaxWorldRanks, "it has more nodes than a job can have");
  field.Number(15, &to->first_local);
}

static void Fields(MessageField& field, TeamInfo* to) {
  field.Number(1, &to->team_id);
  field.Uints(2, &to->ranks, wire::kMaxWorldRanks, "a team has more ranks than a job");
  field.Number(3, &to->barrier_slot);
  field.Number(4, &to->barrier_start_epoch);
  field.Number(5, &to->sync_offset_bytes);
}

static void Fields(MessageField& field, CommittedJob* to) {
  field.Number(1, &to->same_address);
  field.Message(2, &to->world);
}

static void Fields(MessageField& field, OpenedRange* to) {
  field.Number(1, &to->offset_bytes);
  field.Number(2, &to->bytes);
  field.Text(3, &to->dtype);
  field.Number(4, &to->registered);
}

static void Fields(MessageField& field, OperationResult* to) {
  field.Number(1, &to->offset_bytes);
  field.Bytes(2, &to->value);
  field.Message(3, &to->team);
  field.Number(4, &to->heap_bytes);
  field.Message(5, &to->opened);
}

// An outcome whose code and text are separate fields.
struct OutcomeMessage : Outcome {
  uint32_t code = 0;
  std::string text;
};
static void Fields(MessageField& field, OutcomeMessage* to) {
  field.Number(1, &to->k);
  field.Number(2, &to->code);
  field.Text(3, &to->text);
  field.Message(4, &to->result);
}

struct OperateReply {
  OutcomeMessage outcome;
};
static void Fields(MessageField& field, OperateReply* to) { field.Message(1, &to->outcome); }

static void Fields(MessageField& field, Borrowed* to) {
  field.Fixed64(1, &to->job_id);
  field.Number(2, &to->epoch);
  Segments(field, 4, &to->segments);
}

static void Fields(MessageField& field, BarrierAnswer* to) {
  field.Number(1, &to->moment);
  field.Number(2, &to->cannot_end);
  field.Text(3, &to->text);
}

static void Fields(MessageField& field, RankChange* to) {
  uint32_t state = 0;
  field.Number(1, &to->rank);
  if (field.Number(2, &state)) {
    to->state = state <= static_cast<uint32_t>(wire::PageRankState::kLeft)
                    ? static_cast<wire::PageRankState>(state)
                    : wire::PageRankState::kUnspecified;
  }
  field.Number(3, &to->pid);
  field.Text(4, &to->reason);
}

static void Fields(MessageField& field, SegmentsAdded* to) {
  field.Number(1, &to->grow_id);
  Segments(field, 2, &to->segments);
  field.Number(3, &to->heap_bytes);
  field.Time(4, absl::Milliseconds(1), &to->timeout);
}

static void Fields(MessageField& field, GrowDone* to) {
  field.Number(1, &to->grow_id);
  field.Number(2, &to->published);
  field.Text(3, &to->reason);
}

static void Fields(MessageField& field, Stopping* to) { field.Text(1, &to->reason); }

static void Fields(MessageField& field, WatchEvent* to) {
  bool watching = false;
  field.Alternative<RankChange>(1, to);
  field.Alternative<SegmentsAdded>(2, to);
  field.Alternative<GrowDone>(3, to);
  field.Alternative<Stopping>(4, to);
  if (field.Number(5, &watching)) *to = std::monostate();
}

template <typename T>
static absl::StatusOr<T> Decode(absl::string_view bytes, const char* name) {
  T value;
  try {
    ReadMessage(bytes, &value);
  } catch (const protozero::exception& wrong) {
    return absl::InternalError(absl::StrCat(name, " of ", bytes.size(), " bytes: ", wrong.what()));
  }
  return value;
}

absl::StatusOr<JoinedJob> DecodeJoinReply(absl::string_view bytes) {
  return Decode<JoinedJob>(bytes, "JoinReply");
}
absl::StatusOr<CommittedJob> DecodeMappedReply(absl::string_view bytes) {
  return Decode<CommittedJob>(bytes, "MappedReply");
}
absl::StatusOr<Borrowed> DecodeBorrowReply(absl::string_view bytes) {
  return Decode<Borrowed>(bytes, "a BorrowReply");
}
absl::StatusOr<BarrierAnswer> DecodeAwaitBarrierReply(absl::string_view bytes) {
  return Decode<BarrierAnswer>(bytes, "an AwaitBarrierReply");
}
absl::StatusOr<Outcome> DecodeOperateReply(absl::string_view bytes) {
  auto reply = Decode<OperateReply>(bytes, "OperateReply");
  if (!reply.ok()) return reply.status();
  OutcomeMessage& outcome = reply->outcome;
  outcome.status = absl::Status(proto::CodeOf(outcome.code), outcome.text);
  if (!outcome.status.ok()) outcome.result = {};
  return Outcome(std::move(outcome));
}
absl::StatusOr<WatchEvent> DecodeWatchEvent(absl::string_view bytes) {
  return Decode<WatchEvent>(bytes, "WatchEvent");
}

}  // namespace iris::internal
