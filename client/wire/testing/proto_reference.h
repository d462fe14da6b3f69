// Converts as convert.h does, by protobuf's generated classes: a model with which the client's own
// conversion is compared. For tests only. Pure functions; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/base/clock.h"
#include "client/wire/job.h"
#include "client/wire/operation.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"

namespace iris::internal::reference {

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
inline uint64_t Milliseconds(absl::Duration timeout) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kTimeoutMax))));
}

inline absl::Duration MillisecondsOf(uint64_t number) {
  return absl::Milliseconds(std::min<uint64_t>(number, INT64_MAX));
}
inline absl::Duration NanosecondsOf(uint64_t number) {
  return absl::Nanoseconds(std::min<uint64_t>(number, INT64_MAX));
}

inline std::string CutBeyond(absl::string_view text, size_t limit) {
  return std::string(text.substr(0, limit + 1));
}

inline Segment FromProto(const v1::Segment& segment) {
  return {segment.segment_id(), segment.rank(), segment.offset_bytes(), segment.bytes()};
}

inline TeamInfo FromProto(const v1::TeamInfo& info) {
  TeamInfo team;
  team.team_id = info.team_id();
  team.ranks.assign(info.ranks().begin(), info.ranks().end());
  team.barrier_slot = info.barrier_slot();
  team.barrier_start_epoch = info.barrier_start_epoch();
  team.sync_offset_bytes = info.sync_offset_bytes();
  return team;
}

// Fills in the operation; one overload for each.
inline void Fill(const AllocateOptions& from, v1::OperateRequest* to) {
  v1::AllocateOp& op = *to->mutable_allocate();
  op.set_bytes(from.bytes);
  op.set_alignment_bytes(from.alignment_bytes);
  op.set_name(CutBeyond(from.name, wire::kMaxAllocationNameBytes));
  op.mutable_tensor()->set_dtype(DTypeName(from.dtype));
  for (size_t i = 0; i < from.shape.size() && i <= wire::kMaxDims; ++i) {
    op.mutable_tensor()->add_shape(from.shape[i]);
  }
}
inline void Fill(const RegisterOp& from, v1::OperateRequest* to) {
  v1::RegisterOp& op = *to->mutable_register_();
  for (size_t i = 0; i < from.piece_bytes.size() && i <= wire::kMaxDescriptorsPerCall; ++i) {
    op.add_piece_bytes(from.piece_bytes[i]);
  }
  op.set_lead_bytes(from.lead_bytes);
  op.set_bytes(from.options.bytes);
  op.set_name(CutBeyond(from.options.name, wire::kMaxAllocationNameBytes));
  op.mutable_tensor()->set_dtype(DTypeName(from.options.dtype));
  for (size_t i = 0; i < from.options.shape.size() && i <= wire::kMaxDims; ++i) {
    op.mutable_tensor()->add_shape(from.options.shape[i]);
  }
  if (!from.error.ok()) op.set_error(ToErrorText(from.error));
}
inline void Fill(const ConfirmOp& from, v1::OperateRequest* to) {
  to->mutable_confirm()->set_offset_bytes(from.offset_bytes);
  if (!from.mapped.ok()) to->mutable_confirm()->set_error(ToErrorText(from.mapped));
}
inline void Fill(const FreeOp& from, v1::OperateRequest* to) {
  to->mutable_free()->set_offset_bytes(from.offset_bytes);
}
inline void Fill(const BroadcastOp& from, v1::OperateRequest* to) {
  v1::BroadcastOp& op = *to->mutable_broadcast();
  op.set_root(from.root);
  op.set_value(CutBeyond(from.value, wire::kMaxBroadcastBytes));
}
inline void Fill(const CreateTeamOp& from, v1::OperateRequest* to) {
  v1::CreateTeamOp& op = *to->mutable_create_team();
  for (size_t i = 0; i < from.ranks.size() && i <= wire::kMaxWorldRanks; ++i) {
    op.add_ranks(from.ranks[i]);
  }
}
inline void Fill(const DestroyTeamOp& from, v1::OperateRequest* to) {
  to->mutable_destroy_team()->set_last_barrier_epoch(from.last_barrier_epoch);
}
inline void Fill(const GrowOp& from, v1::OperateRequest* to) {
  to->mutable_grow()->set_bytes(from.bytes);
}

inline void Fill(const OpenOp& from, v1::OperateRequest* to) {
  to->mutable_open()->set_rank(from.rank);
  to->mutable_open()->set_name(CutBeyond(from.name, wire::kMaxAllocationNameBytes));
}

inline void Fill(const PublishOp& from, v1::OperateRequest* to) {
  to->mutable_publish()->set_offset_bytes(from.offset_bytes);
  to->mutable_publish()->set_name(CutBeyond(from.name, wire::kMaxAllocationNameBytes));
}

inline void Fill(const SplitOp& from, v1::OperateRequest* to) {
  v1::SplitOp::Wish& wish = *to->mutable_split()->add_wishes();
  wish.set_rank(from.rank);
  wish.set_color(from.color);
  wish.set_key(from.key);
}

inline v1::JoinRequest ToProto(uint64_t session_id, const HostContextOptions& options,
                               absl::Duration timeout) {
  v1::JoinRequest request;
  request.set_session_id(session_id);
  request.set_job(CutBeyond(options.job, wire::kMaxJobNameBytes));
  request.set_rank(options.rank);
  request.set_n_ranks(options.n_ranks);
  request.set_heap_bytes(options.heap_bytes);
  request.set_max_heap_bytes(options.max_heap_bytes);
  request.set_device_uuid(options.device_uuid);
  request.set_local_rank(options.local_rank);
  request.set_prealloc(options.prealloc);
  request.set_timeout_ms(Milliseconds(timeout));
  request.set_team_sync_bytes(kSyncAreaBytes);
  request.set_number(kJoinNumber);
  if (options.n_local > 0 && options.n_local < options.n_ranks) {
    v1::Nodes& nodes = *request.mutable_nodes();
    nodes.set_first_local(static_cast<uint32_t>(options.rank) -
                          static_cast<uint32_t>(options.local_rank));
    nodes.set_n_local(static_cast<uint32_t>(options.n_local));
    nodes.set_rendezvous(options.rendezvous);
    nodes.set_secret(options.secret);
    nodes.set_launcher_rendezvous(options.by_launcher.rendezvous);
    nodes.set_launcher_secret(options.by_launcher.secret);
  }
  return request;
}

inline v1::OperateRequest ToProto(uint64_t session_id, const OperationCall& call,
                                  absl::Duration timeout) {
  v1::OperateRequest request;
  request.set_session_id(session_id);
  request.set_job_id(call.job_id);
  request.set_team_id(call.team_id);
  request.set_k(call.k);
  request.set_timeout_ms(Milliseconds(timeout));
  std::visit([&request](const auto& op) { Fill(op, &request); }, call.op);
  request.set_only_thread(call.only_thread);
  return request;
}

inline JoinedJob FromProto(const v1::JoinReply& reply) {
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
  job.map_timeout = MillisecondsOf(reply.map_timeout_ms());
  job.link_bytes = reply.link_bytes();
  job.create = NanosecondsOf(reply.create_ns());
  job.export_fds = NanosecondsOf(reply.export_ns());
  for (const v1::Node& node : reply.nodes()) {
    job.nodes.push_back({node.first_rank(), node.n_ranks(), node.name(), node.with_previous(),
                         node.ranks_per_device()});
  }
  job.first_local = reply.first_local();
  return job;
}

inline Borrowed FromProto(const v1::BorrowReply& reply) {
  Borrowed borrowed = {reply.job_id(), reply.epoch(), {}};
  for (const v1::Segment& each : reply.segments()) borrowed.segments.push_back(FromProto(each));
  return borrowed;
}

inline CommittedJob FromProto(const v1::MappedReply& reply) {
  return {reply.same_address(), FromProto(reply.world())};
}

inline Outcome FromProto(v1::Outcome&& outcome) {
  Outcome result;
  result.k = outcome.k();
  result.status = absl::Status(proto::CodeOf(outcome.code()), outcome.text());
  if (!result.status.ok()) return result;
  v1::OperationResult& from = *outcome.mutable_result();
  result.result.offset_bytes = from.offset_bytes();
  result.result.value = std::move(*from.mutable_value());
  if (from.has_team()) result.result.team = FromProto(from.team());
  result.result.heap_bytes = from.heap_bytes();
  if (from.has_opened()) {
    result.result.opened = OpenedRange{from.opened().offset_bytes(), from.opened().bytes(),
                                       from.opened().dtype(), from.opened().registered()};
  }
  return result;
}

inline RankChange FromProto(const v1::WatchEvent::RankChanged& changed) {
  return {changed.rank(),
          v1::RankState_IsValid(changed.state()) ? static_cast<wire::PageRankState>(changed.state())
                                                 : wire::PageRankState::kUnspecified,
          changed.pid(), changed.reason()};
}

inline SegmentsAdded FromProto(const v1::WatchEvent::SegmentsAdded& added) {
  SegmentsAdded result;
  result.grow_id = added.grow_id();
  for (const v1::Segment& segment : added.segments()) {
    result.segments.push_back(FromProto(segment));
  }
  result.heap_bytes = added.heap_bytes();
  result.timeout = MillisecondsOf(added.timeout_ms());
  return result;
}

inline GrowDone FromProto(const v1::WatchEvent::GrowDone& done) {
  return {done.grow_id(), done.published(), done.reason()};
}

inline WatchEvent FromProto(const v1::WatchEvent& event) {
  switch (event.event_case()) {
    case v1::WatchEvent::kRankChanged:
      return FromProto(event.rank_changed());
    case v1::WatchEvent::kSegmentsAdded:
      return FromProto(event.segments_added());
    case v1::WatchEvent::kGrowDone:
      return FromProto(event.grow_done());
    case v1::WatchEvent::kStopping:
      return Stopping{event.stopping().reason()};
    case v1::WatchEvent::kWatching:
    case v1::WatchEvent::EVENT_NOT_SET:
      return std::monostate();
  }
  return std::monostate();
}

// Every field of a value, so that two can be compared.

inline std::string Text(const Segment& v) {
  return absl::StrCat("{", v.segment_id, " ", v.rank, " ", v.offset_bytes, " ", v.bytes, "}");
}
inline std::string Text(const Peer& v) {
  return absl::StrCat("{", v.pid, " ", v.device_uuid, " ", v.device_index, "}");
}
template <typename T>
std::string Text(const std::vector<T>& list) {
  std::string text;
  for (const T& each : list) absl::StrAppend(&text, Text(each), ",");
  return text;
}
inline std::string Text(const JoinedJob& v) {
  return absl::StrCat(
      absl::StrJoin({v.job_id, v.epoch, v.proposed_base, v.stride_bytes, v.heap_bytes}, " "), " s ",
      Text(v.segments), " p ", Text(v.peers), " d ", v.backend, " ", v.device_uuid, " ",
      v.device_index, " ", absl::FormatDuration(v.map_timeout), " ", v.link_bytes, " ",
      absl::FormatDuration(v.create), " ", absl::FormatDuration(v.export_fds), " ", v.first_local,
      " ", absl::StrJoin(v.nodes, ",", [](std::string* out, const Node& node) {
        absl::StrAppend(out, node.first_rank, node.with_previous ? "&" : "+", node.n_ranks, " ",
                        node.name, "/", node.ranks_per_device);
      }));
}
inline std::string Text(const TeamInfo& v) {
  return absl::StrCat("team ", v.team_id, " (", absl::StrJoin(v.ranks, " "), ") ", v.barrier_slot,
                      " ", v.barrier_start_epoch, " ", v.sync_offset_bytes);
}
inline std::string Text(const Borrowed& v) {
  return absl::StrCat(v.job_id, " ", v.epoch, " ", Text(v.segments));
}
inline std::string Text(const CommittedJob& v) {
  return absl::StrCat(v.same_address, " ", Text(v.world));
}
inline std::string Text(const Outcome& v) {
  return absl::StrCat(
      v.k, " ", v.status.ToString(), " ", v.result.offset_bytes, " ",
      absl::CHexEscape(v.result.value), " ",
      v.result.team.has_value() ? Text(*v.result.team) : "no team", " ", v.result.heap_bytes, " ",
      v.result.opened.has_value()
          ? absl::StrCat("opened ", v.result.opened->offset_bytes, " ", v.result.opened->bytes, " ",
                         v.result.opened->dtype, " ", v.result.opened->registered)
          : "nothing opened");
}
inline std::string Text(const BarrierAnswer& v) {
  return absl::StrCat(v.moment, " ", v.cannot_end, " ", v.text);
}
inline std::string Text(std::monostate) { return "nothing"; }
inline std::string Text(const RankChange& v) {
  return absl::StrCat("rank ", v.rank, " ", static_cast<uint32_t>(v.state), " ", v.pid, " ",
                      v.reason);
}
inline std::string Text(const SegmentsAdded& v) {
  return absl::StrCat("grow ", v.grow_id, " ", Text(v.segments), " ", v.heap_bytes, " ",
                      absl::FormatDuration(v.timeout));
}
inline std::string Text(const GrowDone& v) {
  return absl::StrCat("done ", v.grow_id, " ", v.published, " ", v.reason);
}
inline std::string Text(const Stopping& v) { return absl::StrCat("stop ", v.reason); }
inline std::string Text(const WatchEvent& v) {
  return std::visit([](const auto& event) { return Text(event); }, v);
}

}  // namespace iris::internal::reference
