// Messages of protocol buffers: converts them from and to the bytes that workers and sessions
// relay, and from and to the server's own types. Only this file knows both. Pure.
//
// A service takes and returns bytes, for two reasons: a request that does not parse is answered
// with an error text, and a large value of a reply is shared instead of copied.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"
#include "proto/iris/v1/admin.pb.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/account/accounts.h"
#include "server/events/event_log.h"
#include "server/host/daemon.h"
#include "server/job/job_machine.h"
#include "server/link/link.h"
#include "server/state/message_fields.h"
#include "server/state/operation_proto.h"

namespace iris::server {

// Parses `bytes`, and copies fields of type bytes once. Returns kInvalidArgument if they are no
// such message.
absl::Status ParseMessage(std::string_view bytes, google::protobuf::MessageLite* message);
LinkPayload SerializeMessage(const google::protobuf::MessageLite& message);

IRIS_FIELDS(JoinNodes, v1::Nodes, first_local, n_local, rendezvous, secret);
IRIS_FIELDS(JoinCall, v1::JoinRequest, (spec.job, job), (spec.rank, rank), (spec.n_ranks, n_ranks),
            (spec.heap_bytes, heap_bytes), (spec.max_heap_bytes, max_heap_bytes),
            (spec.device_uuid, device_uuid), (spec.local_rank, local_rank),
            (spec.prealloc, prealloc), (spec.timeout, timeout_ms, ms),
            (spec.team_sync_bytes, team_sync_bytes), (spec.number, number), (spec.nodes, nodes));
IRIS_FIELDS(MappedCall, v1::MappedRequest, (job, job_id), epoch, base, error);
// The row excludes the operation.
IRIS_FIELDS(OperateCall, v1::OperateRequest, (spec.job, job_id), (spec.team, team_id), (spec.k, k),
            (spec.timeout, timeout_ms, ms), (spec.only_thread, only_thread));
IRIS_FIELDS(GrowMappedCall, v1::GrowMappedRequest, (job, job_id), (grow, grow_id), error);
IRIS_FIELDS(LeaveCall, v1::LeaveRequest, (job, job_id));
IRIS_FIELDS(ResumeCall, v1::ResumeRequest, (job, job_id), (name, job), rank, epoch);
IRIS_FIELDS(AwaitBarrierCall, v1::AwaitBarrierRequest, (spec.job, job_id), (spec.team, team_id),
            (spec.epoch, epoch), (spec.missing, missing), (spec.only_thread, only_thread),
            (spec.moment, moment), (spec.time_is_up, time_is_up));

// Write fills messages from the following tables.
IRIS_FIELDS(SegmentInfo, v1::Segment, (id, segment_id), rank, index, offset_bytes, bytes);
IRIS_FIELDS(TeamInfo, v1::TeamInfo, (id, team_id), ranks, barrier_slot, barrier_start_epoch,
            sync_offset_bytes);
// The row excludes `used_bytes`.
IRIS_FIELDS(driver::DeviceInfo, v1::Device, uuid, index, backend, name, memory_bytes,
            granularity_bytes);
IRIS_FIELDS(Done, v1::GrowMappedReply);
IRIS_FIELDS(Done, v1::LeaveReply);
IRIS_FIELDS(PeerInfo, v1::Peer, rank, pid, device_index);
IRIS_FIELDS(NodePart, v1::Node, (node, first_rank), n_ranks, name, with_previous, ranks_per_device);
// The row excludes fields that name devices.
IRIS_FIELDS(JoinResult, v1::JoinReply, (job, job_id), epoch, proposed_base, stride_bytes,
            granularity_bytes, heap_bytes, segments, peers, (map_timeout, map_timeout_ms, ms),
            first_local, nodes);
IRIS_FIELDS(OpenedInfo, v1::Opened, offset_bytes, bytes, dtype, registered);
IRIS_FIELDS(OperationResult, v1::OperationResult, offset_bytes, team, heap_bytes, opened);
IRIS_FIELDS(MappedResult, v1::MappedReply, same_address, world);
IRIS_FIELDS(ResumeResult, v1::ResumeReply, state);

IRIS_FIELDS(BarrierAnswer, v1::AwaitBarrierReply, moment, cannot_end,
            (text.substr(0, wire::kMaxErrorTextBytes), text));
IRIS_FIELDS(EventRecord, v1::Event, sequence, (time, time_unix_ms, ms), kind, job, rank, pid, text);
// The row excludes the command and the state.
IRIS_FIELDS(SessionSnapshot, v1::Session, (id, session_id), (caller.pid, pid),
            (caller.party.uid, uid), (caller.gid, gid), job, rank, (created, created_unix_ms, ms));
IRIS_FIELDS(JobSnapshot, v1::JobNode, (id, job_id), (name, job), (party.uid, uid), run);
// The row excludes the state, which is that of the connection.
IRIS_FIELDS(NodeSnapshot, v1::JobNode, (part.node, node), (part.n_ranks, n_ranks),
            (part.name, name), (part.fabric, fabric), (lost_because, reason), address, mapped);
IRIS_FIELDS(PortReport::Peer, v1::JobNode, heard_ms, rtt_us, clock_ahead_ns, clock_error_ns,
            transport, sent_bytes, received_bytes);
IRIS_FIELDS(PortReport, v1::JobNode, address, (transports, transport), refused_messages,
            refused_connections, ucx_version);
// Fields that identify the job of a heap, an allocation or a wait.
IRIS_FIELDS(JobSnapshot, v1::Heap, (id, job_id), (name, job), (party.uid, uid),
            (stride_bytes, max_heap_bytes), allocated_bytes, largest_free_bytes);
IRIS_FIELDS(JobSnapshot, v1::Allocation, (id, job_id), (name, job), (party.uid, uid));
// The row excludes the job.
IRIS_FIELDS(AllocationSnapshot, v1::Allocation, offset_bytes, bytes, alignment_bytes, name, tensor,
            (team, team_id), k, (created, created_unix_ms, ms), n_open, freed, registered);
IRIS_FIELDS(DoorUse, v1::Tenant, sessions, admin_connections, calls, unread_bytes,
            descriptors_in_flight);
IRIS_FIELDS(AccountSnapshot, v1::Tenant, jobs, teams, allocations, registered_pieces, value_bytes,
            descriptors, heap_bytes);
IRIS_FIELDS(Daemon::KeptSnapshot, v1::KeptForNext, generation, descriptors, max_descriptors,
            state_bytes, (status.message(), lost_because));

// Returns "" if the device does not exist.
std::string UuidOf(absl::Span<const driver::DeviceInfo> devices, uint32_t index);

void ToProto(const WatchItem& from, v1::WatchEvent* to);
void ToProto(const JobSnapshot& from, absl::Span<const driver::DeviceInfo> devices, v1::Job* to);
void ToProto(const RankSnapshot& from, const JobSnapshot& job,
             absl::Span<const driver::DeviceInfo> devices, v1::Heap* to);
void ToProto(const AllocationSnapshot& from, const JobSnapshot& job, v1::Allocation* to);
// `report`: of the job's port process on this node.
void ToProto(const NodeSnapshot& from, const JobSnapshot& job,
             const std::optional<PortReport>& report, absl::Time now, v1::JobNode* to);

}  // namespace iris::server
