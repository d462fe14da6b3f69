#include "client/internal/convert.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "client/internal/clock.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"

namespace iris::internal {
namespace {

namespace v1 = iris::v1;

// States are cast: they are the same numbers on both sides.
template <typename A, typename B>
constexpr bool Equal(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}

using Page = wire::PageRankState;
static_assert(Equal(Page::kUnspecified, v1::RANK_STATE_UNSPECIFIED));
static_assert(Equal(Page::kAbsent, v1::RANK_STATE_ABSENT));
static_assert(Equal(Page::kJoined, v1::RANK_STATE_JOINED));
static_assert(Equal(Page::kMapped, v1::RANK_STATE_MAPPED));
static_assert(Equal(Page::kReady, v1::RANK_STATE_READY));
static_assert(Equal(Page::kEnding, v1::RANK_STATE_ENDING));
static_assert(Equal(Page::kDead, v1::RANK_STATE_DEAD));
static_assert(Equal(Page::kLeft, v1::RANK_STATE_LEFT));

// At least 1: 0 stands for irisd's own default.
uint64_t Milliseconds(absl::Duration timeout) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kTimeoutMax))));
}

std::string CutBeyond(absl::string_view text, size_t limit) {
  return std::string(text.substr(0, limit + 1));
}

Segment FromProto(const v1::Segment& segment) {
  return {segment.segment_id(), segment.rank(), segment.offset_bytes(), segment.bytes()};
}

TeamInfo FromProto(const v1::TeamInfo& info) {
  TeamInfo team;
  team.team_id = info.team_id();
  team.ranks.assign(info.ranks().begin(), info.ranks().end());
  team.barrier_slot = info.barrier_slot();
  team.barrier_start_epoch = info.barrier_start_epoch();
  team.sync_offset_bytes = info.sync_offset_bytes();
  return team;
}

// Fills in the operation; one overload for each.
void Fill(const AllocateOptions& from, v1::OperateRequest* to) {
  v1::AllocateOp& op = *to->mutable_allocate();
  op.set_bytes(from.bytes);
  op.set_alignment_bytes(from.alignment_bytes);
  op.set_name(CutBeyond(from.name, wire::kMaxAllocationNameBytes));
  op.mutable_tensor()->set_dtype(CutBeyond(from.dtype, wire::kMaxDtypeBytes));
  for (size_t i = 0; i < from.shape.size() && i <= wire::kMaxDims; ++i) {
    op.mutable_tensor()->add_shape(from.shape[i]);
  }
}
void Fill(const FreeOp& from, v1::OperateRequest* to) {
  to->mutable_free()->set_offset_bytes(from.offset_bytes);
}
void Fill(const BroadcastOp& from, v1::OperateRequest* to) {
  v1::BroadcastOp& op = *to->mutable_broadcast();
  op.set_root(from.root);
  op.set_value(CutBeyond(from.value, wire::kMaxBroadcastBytes));
}
void Fill(const CreateTeamOp& from, v1::OperateRequest* to) {
  v1::CreateTeamOp& op = *to->mutable_create_team();
  for (size_t i = 0; i < from.ranks.size() && i <= wire::kMaxRanks; ++i) {
    op.add_ranks(from.ranks[i]);
  }
}
void Fill(const DestroyTeamOp& from, v1::OperateRequest* to) {
  to->mutable_destroy_team()->set_last_barrier_epoch(from.last_barrier_epoch);
}
void Fill(const GrowOp& from, v1::OperateRequest* to) { to->mutable_grow()->set_bytes(from.bytes); }

}  // namespace

v1::JoinRequest ToProto(const ContextOptions& options) {
  v1::JoinRequest request;
  request.set_job(CutBeyond(options.job, wire::kMaxJobNameBytes));
  request.set_rank(options.rank);
  request.set_n_ranks(options.n_ranks);
  request.set_heap_bytes(options.heap_bytes);
  request.set_max_heap_bytes(options.max_heap_bytes);
  request.set_device_uuid(options.device_uuid);
  request.set_local_rank(options.local_rank);
  request.set_prealloc(options.prealloc);
  request.set_timeout_ms(Milliseconds(options.join_timeout));
  request.set_team_sync_bytes(kSyncAreaBytes);
  return request;
}

v1::OperateRequest ToProto(const OperationCall& call) {
  v1::OperateRequest request;
  request.set_job_id(call.job_id);
  request.set_team_id(call.team_id);
  request.set_k(call.k);
  request.set_timeout_ms(Milliseconds(call.timeout));
  std::visit([&request](const auto& op) { Fill(op, &request); }, call.op);
  return request;
}

std::string ToErrorText(const absl::Status& error) {
  if (error.message().empty()) return std::string(absl::StatusCodeToString(error.code()));
  return CutBeyond(error.message(), wire::kMaxErrorTextBytes - 1);
}

JoinedJob FromProto(const v1::JoinReply& reply) {
  JoinedJob job;
  job.job_id = reply.job_id();
  job.epoch = reply.epoch();
  job.proposed_base = reply.proposed_base();
  job.stride_bytes = reply.stride_bytes();
  job.heap_bytes = reply.heap_bytes();
  for (const v1::Segment& segment : reply.segments()) job.segments.push_back(FromProto(segment));
  for (const v1::Peer& peer : reply.peers()) {
    job.peers.push_back({peer.pid(), peer.device_uuid(), peer.device_index()});
  }
  job.backend = reply.device().backend();
  job.device_uuid = reply.device().uuid();
  job.device_index = reply.device().index();
  job.map_timeout = absl::Milliseconds(reply.map_timeout_ms());
  job.link_bytes = reply.link_bytes();
  job.create = absl::Nanoseconds(reply.create_ns());
  job.export_fds = absl::Nanoseconds(reply.export_ns());
  return job;
}

CommittedJob FromProto(const v1::MappedReply& reply) {
  return {reply.same_address(), FromProto(reply.world())};
}

Outcome FromProto(v1::Outcome&& outcome) {
  Outcome result;
  result.k = outcome.k();
  result.status = absl::Status(proto::CodeOf(outcome.code()), outcome.text());
  if (!result.status.ok()) return result;
  v1::OperationResult& from = *outcome.mutable_result();
  result.result.offset_bytes = from.offset_bytes();
  result.result.value = std::move(*from.mutable_value());
  if (from.has_team()) result.result.team = FromProto(from.team());
  result.result.heap_bytes = from.heap_bytes();
  return result;
}

RankChange FromProto(const v1::WatchEvent::RankChanged& changed) {
  return {changed.rank(), static_cast<wire::PageRankState>(changed.state()), changed.pid(),
          changed.reason()};
}

SegmentsAdded FromProto(const v1::WatchEvent::SegmentsAdded& added) {
  SegmentsAdded result;
  result.grow_id = added.grow_id();
  for (const v1::Segment& segment : added.segments()) {
    result.segments.push_back(FromProto(segment));
  }
  result.heap_bytes = added.heap_bytes();
  result.timeout = absl::Milliseconds(added.timeout_ms());
  return result;
}

GrowDone FromProto(const v1::WatchEvent::GrowDone& done) {
  return {done.grow_id(), done.published(), done.reason()};
}

}  // namespace iris::internal
