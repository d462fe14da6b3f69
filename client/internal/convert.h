// The one translation between the messages of the control plane and the client's plain values.
//
// Pure functions. What a program gave is not judged here: irisd does that, the same on every rank.
// Text and lists that are too long are cut just beyond the limit, so that irisd gets to see them and
// not gRPC, which would refuse a message of that size with an error of its own.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/base/types.h"
#include "client/internal/job.h"
#include "client/internal/operation.h"
#include "proto/iris/v1/heap.pb.h"

namespace iris::internal {

// Requests, but for the session id.
iris::v1::JoinRequest ToProto(const ContextOptions& options);
iris::v1::OperateRequest ToProto(const OperationCall& call);
// The text of an error that this rank reports: never empty, which would mean success.
std::string ToErrorText(const absl::Status& error);

JoinedJob FromProto(const iris::v1::JoinReply& reply);
CommittedJob FromProto(const iris::v1::MappedReply& reply);
// Takes the value out of it.
Outcome FromProto(iris::v1::Outcome&& outcome);
RankChange FromProto(const iris::v1::WatchEvent::RankChanged& changed);
SegmentsAdded FromProto(const iris::v1::WatchEvent::SegmentsAdded& added);
GrowDone FromProto(const iris::v1::WatchEvent::GrowDone& done);

}  // namespace iris::internal
