// Protocol buffers to the server's own types and back. The only place that knows both. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "proto/iris/v1/admin.pb.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/daemon.h"
#include "server/event_log.h"
#include "server/heap/ledger.h"
#include "server/job/job_machine.h"

namespace iris::server {

// Codes have the same numbers. Texts are cut to what gRPC's trailing metadata holds.
grpc::Status ToGrpc(const absl::Status& status);

// Durations of requests are hostile: beyond a year is a year.
absl::Duration TimeoutFromMs(uint64_t timeout_ms);

JoinSpec FromProto(const v1::JoinRequest& request);
// kInvalidArgument: no operation is set.
absl::StatusOr<OperationSpec> FromProto(const v1::OperateRequest& request);

void ToProto(const SegmentInfo& from, v1::Segment* to);
void ToProto(const TeamInfo& from, v1::TeamInfo* to);
void ToProto(const TensorInfo& from, v1::TensorInfo* to);
void ToProto(const driver::DeviceInfo& from, uint64_t used_bytes, v1::Device* to);
void ToProto(const JoinResult& from, absl::Span<const driver::DeviceInfo> devices,
             v1::JoinReply* to);
void ToProto(const MappedResult& from, v1::MappedReply* to);
// Texts are cut as those of ToGrpc are.
void ToProto(const Outcome& from, v1::Outcome* to);
void ToProto(const WatchItem& from, v1::WatchEvent* to);
void ToProto(const EventRecord& from, v1::Event* to);
void ToProto(const JobSnapshot& from, absl::Span<const driver::DeviceInfo> devices, v1::Job* to);
void ToProto(const AllocationSnapshot& from, const JobSnapshot& job, v1::Allocation* to);

}  // namespace iris::server
