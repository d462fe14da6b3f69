#include "server/rpc/convert.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "server/state/operation_proto.h"

namespace iris::server {
namespace {

std::string UuidOf(absl::Span<const driver::DeviceInfo> devices, uint32_t index) {
  return index < devices.size() ? devices[index].uuid : std::string();
}

}  // namespace

absl::Duration TimeoutFromMs(uint64_t timeout_ms) {
  constexpr uint64_t kYearMs = 365ull * 24 * 3600 * 1000;
  return absl::Milliseconds(static_cast<int64_t>(std::min(timeout_ms, kYearMs)));
}

JoinSpec FromProto(const v1::JoinRequest& request) {
  JoinSpec spec;
  spec.job = request.job();
  spec.rank = request.rank();
  spec.n_ranks = request.n_ranks();
  spec.heap_bytes = request.heap_bytes();
  spec.max_heap_bytes = request.max_heap_bytes();
  spec.device_uuid = request.device_uuid();
  spec.local_rank = request.local_rank();
  spec.prealloc = request.prealloc();
  spec.timeout = TimeoutFromMs(request.timeout_ms());
  spec.team_sync_bytes = request.team_sync_bytes();
  spec.number = request.number();
  return spec;
}

absl::StatusOr<OperationSpec> FromProto(v1::OperateRequest&& request) {
  OperationSpec spec;
  spec.job = JobId{request.job_id()};
  spec.team = request.team_id();
  spec.k = request.k();
  spec.timeout = TimeoutFromMs(request.timeout_ms());
  spec.only_thread = request.only_thread();
  absl::StatusOr<Operation> op = OperationOfRequest(std::move(request));
  if (!op.ok()) return op.status();
  spec.op = *std::move(op);
  return spec;
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::JoinRequest&& request) {
  return JoinCall{session, call, FromProto(request)};
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::MappedRequest&& request) {
  return MappedCall{session,         call,           JobId{request.job_id()},
                    request.epoch(), request.base(), std::move(*request.mutable_error())};
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::OperateRequest&& request) {
  absl::StatusOr<OperationSpec> spec = FromProto(std::move(request));
  if (!spec.ok()) return spec.status();
  return OperateCall{session, call, *std::move(spec)};
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::GrowMappedRequest&& request) {
  return GrowMappedCall{session, call, JobId{request.job_id()}, GrowId{request.grow_id()},
                        std::move(*request.mutable_error())};
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::LeaveRequest&& request) {
  return LeaveCall{session, call, JobId{request.job_id()}};
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::ResumeRequest&& request) {
  return ResumeCall{
      session,        call,           JobId{request.job_id()}, std::move(*request.mutable_job()),
      request.rank(), request.epoch()};
}

absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::AwaitBarrierRequest&& request) {
  return AwaitBarrierCall{session,
                          call,
                          {JobId{request.job_id()},
                           request.team_id(),
                           request.epoch(),
                           {request.missing().begin(), request.missing().end()},
                           request.only_thread(),
                           request.moment(),
                           request.time_is_up()}};
}

#define IRIS_SAME_STATE(ours, theirs)                               \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs), \
                "the machine and the messages number their states differently")
IRIS_SAME_STATE(RankState::kAbsent, v1::RANK_STATE_ABSENT);
IRIS_SAME_STATE(RankState::kJoined, v1::RANK_STATE_JOINED);
IRIS_SAME_STATE(RankState::kMapped, v1::RANK_STATE_MAPPED);
IRIS_SAME_STATE(RankState::kReady, v1::RANK_STATE_READY);
IRIS_SAME_STATE(RankState::kEnding, v1::RANK_STATE_ENDING);
IRIS_SAME_STATE(RankState::kDead, v1::RANK_STATE_DEAD);
IRIS_SAME_STATE(RankState::kLeft, v1::RANK_STATE_LEFT);
IRIS_SAME_STATE(JobState::kForming, v1::JOB_STATE_FORMING);
IRIS_SAME_STATE(JobState::kMapping, v1::JOB_STATE_MAPPING);
IRIS_SAME_STATE(JobState::kReady, v1::JOB_STATE_READY);
IRIS_SAME_STATE(JobState::kBroken, v1::JOB_STATE_BROKEN);
#undef IRIS_SAME_STATE

v1::RankState ToProto(RankState state) { return static_cast<v1::RankState>(state); }

v1::JobState ToProto(JobState state) { return static_cast<v1::JobState>(state); }

void ToProto(const SegmentInfo& from, v1::Segment* to) {
  to->set_segment_id(from.id.value);
  to->set_rank(from.rank);
  to->set_index(from.index);
  to->set_offset_bytes(from.offset_bytes);
  to->set_bytes(from.bytes);
}

void ToProto(const TeamInfo& from, v1::TeamInfo* to) {
  to->set_team_id(from.id);
  for (const Rank rank : from.ranks) to->add_ranks(rank);
  to->set_barrier_slot(from.barrier_slot);
  to->set_barrier_start_epoch(from.barrier_start_epoch);
  to->set_sync_offset_bytes(from.sync_offset_bytes);
}

void ToProto(const TensorInfo& from, v1::TensorInfo* to) {
  to->set_dtype(from.dtype);
  for (const uint64_t extent : from.shape) to->add_shape(extent);
}

void ToProto(const driver::DeviceInfo& from, uint64_t used_bytes, v1::Device* to) {
  to->set_uuid(from.uuid);
  to->set_index(from.index);
  to->set_backend(from.backend);
  to->set_name(from.name);
  to->set_memory_bytes(from.memory_bytes);
  to->set_used_bytes(used_bytes);
  to->set_granularity_bytes(from.granularity_bytes);
}

void ToProto(const JoinResult& from, absl::Span<const driver::DeviceInfo> devices,
             v1::JoinReply* to) {
  to->set_job_id(from.job.value);
  to->set_epoch(from.epoch);
  to->set_proposed_base(from.proposed_base);
  to->set_stride_bytes(from.stride_bytes);
  to->set_granularity_bytes(from.granularity_bytes);
  to->set_heap_bytes(from.heap_bytes);
  for (const SegmentInfo& segment : from.segments) ToProto(segment, to->add_segments());
  for (const PeerInfo& peer : from.peers) {
    v1::Peer* p = to->add_peers();
    p->set_rank(peer.rank);
    p->set_pid(peer.pid);
    p->set_device_uuid(UuidOf(devices, peer.device_index));
    p->set_device_index(peer.device_index);
  }
  if (from.device_index < devices.size()) {
    ToProto(devices[from.device_index], /*used_bytes=*/0, to->mutable_device());
  }
  to->set_map_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(from.map_timeout)));
}

void ToProto(const MappedResult& from, v1::MappedReply* to) {
  to->set_same_address(from.same_address);
  ToProto(from.world, to->mutable_world());
}

void ToProto(const ResumeResult& from, v1::ResumeReply* to) { to->set_state(ToProto(from.state)); }

void ToProto(const BarrierAnswer& from, v1::AwaitBarrierReply* to) {
  to->set_moment(from.moment);
  to->set_cannot_end(from.cannot_end);
  to->set_text(from.text.substr(0, wire::kMaxErrorTextBytes));
}

void ToProto(const Outcome& from, v1::Outcome* to) {
  to->set_k(from.k);
  to->set_code(proto::NumberOf(from.status.code()));
  if (!from.status.ok()) {
    to->set_text(std::string(from.status.message().substr(0, wire::kMaxErrorTextBytes)));
    return;
  }
  v1::OperationResult* const result = to->mutable_result();
  result->set_offset_bytes(from.result.offset_bytes);
  if (from.result.team.has_value()) ToProto(*from.result.team, result->mutable_team());
  result->set_heap_bytes(from.result.heap_bytes);
  if (from.result.opened.has_value()) {
    v1::Opened* const opened = result->mutable_opened();
    opened->set_offset_bytes(from.result.opened->offset_bytes);
    opened->set_bytes(from.result.opened->bytes);
    opened->set_dtype(from.result.opened->dtype);
    opened->set_registered(from.result.opened->registered);
  }
}

void ToProto(const WatchItem& from, v1::WatchEvent* to) {
  std::visit(
      [to](const auto& item) {
        using T = std::decay_t<decltype(item)>;
        if constexpr (std::is_same_v<T, WatchEstablished>) {
          to->set_watching(true);
        } else if constexpr (std::is_same_v<T, RankChanged>) {
          v1::WatchEvent::RankChanged* e = to->mutable_rank_changed();
          e->set_rank(item.rank);
          e->set_state(ToProto(item.state));
          e->set_pid(item.pid);
          e->set_reason(item.reason);
        } else if constexpr (std::is_same_v<T, SegmentsAdded>) {
          v1::WatchEvent::SegmentsAdded* e = to->mutable_segments_added();
          e->set_grow_id(item.grow.value);
          for (const SegmentInfo& segment : item.segments) ToProto(segment, e->add_segments());
          e->set_heap_bytes(item.heap_bytes);
          e->set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(item.timeout)));
        } else if constexpr (std::is_same_v<T, GrowDone>) {
          v1::WatchEvent::GrowDone* e = to->mutable_grow_done();
          e->set_grow_id(item.grow.value);
          e->set_published(item.published);
          e->set_reason(item.reason);
        } else {
          static_assert(std::is_same_v<T, WatchStopping>);
          to->mutable_stopping()->set_reason(item.reason);
        }
      },
      from);
}

void ToProto(const EventRecord& from, v1::Event* to) {
  to->set_sequence(from.sequence);
  to->set_time_unix_ms(absl::ToUnixMillis(from.time));
  to->set_kind(from.kind);
  to->set_job(from.job);
  to->set_rank(from.rank);
  to->set_pid(from.pid);
  to->set_text(from.text);
}

void ToProto(const JobSnapshot& from, absl::Span<const driver::DeviceInfo> devices, v1::Job* to) {
  to->set_job_id(from.id.value);
  to->set_job(from.name);
  to->set_uid(from.party.uid);
  to->set_state(ToProto(from.state));
  to->set_epoch(from.epoch);
  to->set_n_ranks(from.n_ranks);
  to->set_heap_bytes(from.heap_bytes);
  to->set_stride_bytes(from.stride_bytes);
  to->set_same_address(from.same_address);
  to->set_n_teams(from.n_teams);
  to->set_n_allocations(from.n_allocations);
  to->set_allocated_bytes(from.allocated_bytes);
  to->set_created_unix_ms(absl::ToUnixMillis(from.created));
  for (const RankSnapshot& rank : from.ranks) {
    v1::JobRank* r = to->add_ranks();
    r->set_rank(rank.rank);
    r->set_state(ToProto(rank.state));
    r->set_pid(rank.pid);
    r->set_session_id(rank.session.value);
    // An absent rank has no device yet.
    if (rank.state != RankState::kAbsent) r->set_device_uuid(UuidOf(devices, rank.device_index));
    r->set_base(rank.base);
  }
}

void ToProto(const AllocationSnapshot& from, const JobSnapshot& job, v1::Allocation* to) {
  to->set_job_id(job.id.value);
  to->set_job(job.name);
  to->set_uid(job.party.uid);
  to->set_offset_bytes(from.offset_bytes);
  to->set_bytes(from.bytes);
  to->set_alignment_bytes(from.alignment_bytes);
  to->set_name(from.name);
  ToProto(from.tensor, to->mutable_tensor());
  to->set_team_id(from.team);
  to->set_k(from.k);
  to->set_created_unix_ms(absl::ToUnixMillis(from.created));
  if (IsOwnTeam(from.team)) to->set_owner(OwnerOf(from.team));
  to->set_n_open(from.n_open);
  to->set_freed(from.freed);
  to->set_registered(from.registered);
}

}  // namespace iris::server
