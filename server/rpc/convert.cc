#include "server/rpc/convert.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "proto/status/code.h"
#include "proto/wire/clock_drift.h"
#include "proto/wire/limits.h"

namespace iris::server {

IRIS_FIELDS(RankChanged, v1::WatchEvent::RankChanged, rank, state, pid, reason);
IRIS_FIELDS(SegmentsAdded, v1::WatchEvent::SegmentsAdded, (grow, grow_id), segments, heap_bytes,
            (timeout, timeout_ms, ms));
IRIS_FIELDS(GrowDone, v1::WatchEvent::GrowDone, (grow, grow_id), published, reason);
IRIS_FIELDS(RankSnapshot, v1::JobRank, rank, state, pid, (session, session_id), base, node);
IRIS_FIELDS(JobSnapshot, v1::Job, (id, job_id), (name, job), (party.uid, uid), state, epoch,
            n_ranks, heap_bytes, stride_bytes, same_address, n_teams, n_allocations,
            allocated_bytes, (created, created_unix_ms, ms), ranks);
IRIS_FIELDS(RankSnapshot, v1::Heap, rank, pid, state);

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

absl::Status ParseMessage(std::string_view bytes, google::protobuf::MessageLite* message) {
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the request of ", bytes.size(), " bytes is not a message of type ", message->GetTypeName()));
}

LinkPayload SerializeMessage(const google::protobuf::MessageLite& message) {
  return {message.SerializeAsString(), nullptr};
}

std::string UuidOf(absl::Span<const driver::DeviceInfo> devices, uint32_t index) {
  return index < devices.size() ? devices[index].uuid : std::string();
}

void ToProto(const WatchItem& from, v1::WatchEvent* to) {
  std::visit(
      [to](const auto& item) {
        using T = std::decay_t<decltype(item)>;
        if constexpr (std::is_same_v<T, WatchEstablished>) {
          to->set_watching(true);
        } else if constexpr (std::is_same_v<T, RankChanged>) {
          Write(item, to->mutable_rank_changed());
        } else if constexpr (std::is_same_v<T, SegmentsAdded>) {
          Write(item, to->mutable_segments_added());
        } else if constexpr (std::is_same_v<T, GrowDone>) {
          Write(item, to->mutable_grow_done());
        } else {
          static_assert(std::is_same_v<T, WatchStopping>);
          to->mutable_stopping()->set_reason(item.reason);
        }
      },
      from);
}

void ToProto(const JobSnapshot& from, absl::Span<const driver::DeviceInfo> devices, v1::Job* to) {
  Write(from, to);
  for (size_t i = 0; i < from.ranks.size(); ++i) {
    // An absent rank has no device yet.
    if (from.ranks[i].state == RankState::kAbsent) continue;
    const Rank rank = static_cast<Rank>(i);
    if (rank - from.first_local >= from.n_local) continue;  // of another node
    to->mutable_ranks(static_cast<int>(i))
        ->set_device_uuid(UuidOf(devices, from.ranks[i].device_index));
  }
}

void ToProto(const RankSnapshot& from, const JobSnapshot& job,
             absl::Span<const driver::DeviceInfo> devices, v1::Heap* to) {
  Write(job, to);
  Write(from, to);
  to->set_device_uuid(UuidOf(devices, from.device_index));
  uint64_t bytes = 0;
  for (const SegmentInfo& segment : from.segments) bytes += segment.bytes;
  to->set_heap_bytes(bytes);
  to->set_n_segments(static_cast<uint32_t>(from.segments.size()));
}

void ToProto(const AllocationSnapshot& from, const JobSnapshot& job, v1::Allocation* to) {
  Write(job, to);
  Write(from, to);
  if (IsOwnTeam(from.team)) to->set_owner(OwnerOf(from.team));
}

void ToProto(const NodeSnapshot& from, const JobSnapshot& job,
             const std::optional<PortReport>& report, absl::Time now, v1::JobNode* to) {
  Write(job, to);
  Write(from, to);
  const bool here = from.part.node == job.first_local;
  to->set_here(here);
  to->set_leads(from.part.node == kLeader);
  const PortReport::Peer* peer = nullptr;
  if (report.has_value() && !here) {
    const auto found = report->peers.find(from.part.node);
    if (found != report->peers.end()) peer = &found->second;
  }
  switch (from.state) {
    case NodeState::kLost:
      to->set_state(v1::NODE_STATE_LOST);
      break;
    case NodeState::kAwaited:
      to->set_state(v1::NODE_STATE_AWAITED);
      break;
    case NodeState::kUnknown:
      break;
    default: {
      const bool direct = here || !job.leader.has_value() || from.part.node == kLeader ||
                          (peer != nullptr && peer->connected);
      to->set_state(direct ? v1::NODE_STATE_CONNECTED : v1::NODE_STATE_INDIRECT);
    }
  }
  if (!report.has_value()) return;
  const uint64_t age_ms =
      static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(now - report->at)));
  if (here) {
    Write(*report, to);
    to->set_heard_ms(age_ms);
  } else if (peer != nullptr) {
    Write(*peer, to);
    to->set_heard_ms(peer->heard_ms + age_ms);
    if (peer->clock_error_ns.has_value()) {
      to->set_clock_error_ns(*peer->clock_error_ns + wire::ClockDriftNs(age_ms * 1'000'000));
    }
    if (!peer->address.empty()) to->set_address(peer->address);
  }
}

}  // namespace iris::server
