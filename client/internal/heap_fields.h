// The numbers of the fields that the client writes and reads, message by message, as
// proto/iris/v1/heap.proto and types.proto declare them. This is the one place on the client's
// side; convert_model_test.cc compares every number with the declaration. What a message has beyond
// these is not the client's, and is skipped.
#pragma once

#include "protozero/types.hpp"

namespace iris::internal::field {

using Number = protozero::pbf_tag_type;

enum class JoinRequest : Number {
  kSessionId = 1,
  kJob = 2,
  kRank = 3,
  kNRanks = 4,
  kHeapBytes = 5,
  kMaxHeapBytes = 6,
  kDeviceUuid = 7,
  kLocalRank = 8,
  kPrealloc = 9,
  kTimeoutMs = 10,
  kTeamSyncBytes = 11,
  kNumber = 12,
};

enum class JoinReply : Number {
  kJobId = 1,
  kEpoch = 2,
  kProposedBase = 3,
  kStrideBytes = 4,
  kHeapBytes = 6,
  kSegments = 7,
  kPeers = 8,
  kDevice = 9,
  kMapTimeoutMs = 10,
  kLinkBytes = 11,
  kCreateNs = 12,
  kExportNs = 13,
};

enum class Segment : Number {
  kSegmentId = 1,
  kRank = 2,
  kOffsetBytes = 4,
  kBytes = 5,
};

enum class Peer : Number {
  kPid = 2,
  kDeviceUuid = 3,
  kDeviceIndex = 4,
};

enum class Device : Number {
  kUuid = 1,
  kIndex = 2,
  kBackend = 3,
};

enum class MappedRequest : Number {
  kSessionId = 1,
  kJobId = 2,
  kEpoch = 3,
  kBase = 4,
  kError = 5,
};

enum class MappedReply : Number {
  kSameAddress = 1,
  kWorld = 2,
};

enum class TeamInfo : Number {
  kTeamId = 1,
  kRanks = 2,
  kBarrierSlot = 3,
  kBarrierStartEpoch = 4,
  kSyncOffsetBytes = 5,
};

enum class OperateRequest : Number {
  kSessionId = 1,
  kJobId = 2,
  kTeamId = 3,
  kK = 4,
  kTimeoutMs = 5,
  kAllocate = 6,
  kFree = 7,
  kBroadcast = 8,
  kCreateTeam = 9,
  kDestroyTeam = 10,
  kGrow = 11,
  kOpen = 12,
  kPublish = 13,
  kRegister = 14,
  kConfirm = 15,
  kOnlyThread = 16,
  kSplit = 17,
};

enum class AllocateOp : Number {
  kBytes = 1,
  kAlignmentBytes = 2,
  kName = 3,
  kTensor = 4,
};

enum class TensorInfo : Number {
  kDtype = 1,
  kShape = 2,
};

enum class FreeOp : Number {
  kOffsetBytes = 1,
};

enum class BroadcastOp : Number {
  kRoot = 1,
  kValue = 2,
};

enum class CreateTeamOp : Number {
  kRanks = 1,
};

enum class DestroyTeamOp : Number {
  kLastBarrierEpoch = 1,
};

enum class GrowOp : Number {
  kBytes = 1,
};

enum class OpenOp : Number {
  kRank = 1,
  kName = 2,
};

enum class PublishOp : Number {
  kOffsetBytes = 1,
  kName = 2,
};

enum class RegisterOp : Number {
  kPieceBytes = 1,
  kLeadBytes = 2,
  kBytes = 3,
  kName = 4,
  kTensor = 5,
  kError = 6,
};

enum class ConfirmOp : Number {
  kOffsetBytes = 1,
  kError = 2,
};

enum class SplitOp : Number {
  kWishes = 1,
};

enum class Wish : Number {
  kRank = 1,
  kColor = 2,
  kKey = 3,
};

enum class OperateReply : Number {
  kOutcome = 1,
};

enum class Outcome : Number {
  kK = 1,
  kCode = 2,
  kText = 3,
  kResult = 4,
};

enum class OperationResult : Number {
  kOffsetBytes = 1,
  kValue = 2,
  kTeam = 3,
  kHeapBytes = 4,
  kOpened = 5,
};

enum class Opened : Number {
  kOffsetBytes = 1,
  kBytes = 2,
  kDtype = 3,
  kRegistered = 4,
};

enum class BorrowRequest : Number {
  kSessionId = 1,
  kJob = 2,
  kRank = 3,
  kOffsetBytes = 4,
  kBytes = 5,
};

enum class BorrowReply : Number {
  kJobId = 1,
  kEpoch = 2,
  kSegments = 4,
};

enum class AwaitBarrierRequest : Number {
  kSessionId = 1,
  kJobId = 2,
  kTeamId = 3,
  kEpoch = 4,
  kMissing = 5,
  kOnlyThread = 6,
  kMoment = 7,
  kTimeIsUp = 8,
};

enum class AwaitBarrierReply : Number {
  kMoment = 1,
  kCannotEnd = 2,
  kText = 3,
};

enum class GrowMappedRequest : Number {
  kSessionId = 1,
  kJobId = 2,
  kGrowId = 3,
  kError = 4,
};

enum class LeaveRequest : Number {
  kSessionId = 1,
  kJobId = 2,
};

enum class ResumeRequest : Number {
  kSessionId = 1,
  kJobId = 2,
  kJob = 3,
  kRank = 4,
  kEpoch = 5,
};

enum class WatchRequest : Number {
  kSessionId = 1,
  kJobId = 2,
};

enum class WatchEvent : Number {
  kRankChanged = 1,
  kSegmentsAdded = 2,
  kGrowDone = 3,
  kStopping = 4,
  kWatching = 5,
};

enum class RankChanged : Number {
  kRank = 1,
  kState = 2,
  kPid = 3,
  kReason = 4,
};

enum class SegmentsAdded : Number {
  kGrowId = 1,
  kSegments = 2,
  kHeapBytes = 3,
  kTimeoutMs = 4,
};

enum class GrowDone : Number {
  kGrowId = 1,
  kPublished = 2,
  kReason = 3,
};

enum class Stopping : Number {
  kReason = 1,
};

}  // namespace iris::internal::field
