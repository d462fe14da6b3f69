// Protocol buffers to the server's own types and back. The only place that knows both. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.pb.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/daemon.h"
#include "server/event_log.h"
#include "server/heap/ledger.h"
#include "server/job/job_machine.h"

namespace iris::server {

// Durations of requests are hostile: beyond a year is a year.
absl::Duration TimeoutFromMs(uint64_t timeout_ms);

JoinSpec FromProto(const v1::JoinRequest& request);
// The value of a broadcast is moved, not copied. kInvalidArgument: no operation is set.
absl::StatusOr<OperationSpec> FromProto(v1::OperateRequest&& request);

// The input of the machine that a request is, from this session. Calls::Ask finds them by the
// request's type. Not ok: the call is refused with the status.
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::JoinRequest&& request);
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::MappedRequest&& request);
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::OperateRequest&& request);
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::GrowMappedRequest&& request);
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::LeaveRequest&& request);
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::ResumeRequest&& request);
absl::StatusOr<Input> ToInput(SessionId session, CallId call, v1::AwaitBarrierRequest&& request);

v1::RankState ToProto(RankState state);
v1::JobState ToProto(JobState state);

void ToProto(const SegmentInfo& from, v1::Segment* to);
void ToProto(const TeamInfo& from, v1::TeamInfo* to);
void ToProto(const TensorInfo& from, v1::TensorInfo* to);
void ToProto(const driver::DeviceInfo& from, uint64_t used_bytes, v1::Device* to);
void ToProto(const JoinResult& from, absl::Span<const driver::DeviceInfo> devices,
             v1::JoinReply* to);
void ToProto(const MappedResult& from, v1::MappedReply* to);
void ToProto(const ResumeResult& from, v1::ResumeReply* to);
// The text is cut to wire::kMaxErrorTextBytes.
void ToProto(const BarrierAnswer& from, v1::AwaitBarrierReply* to);
// Texts are cut to wire::kMaxErrorTextBytes. Leaves the value of a broadcast out: see
// server/rpc/operate_reply.h.
void ToProto(const Outcome& from, v1::Outcome* to);
void ToProto(const WatchItem& from, v1::WatchEvent* to);
void ToProto(const EventRecord& from, v1::Event* to);
void ToProto(const JobSnapshot& from, absl::Span<const driver::DeviceInfo> devices, v1::Job* to);
void ToProto(const AllocationSnapshot& from, const JobSnapshot& job, v1::Allocation* to);

}  // namespace iris::server
