// Calls of a session that take more than a conversion. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/host/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/stream_writer.h"

namespace iris::server {

// A part of a rank's heap, and the memory that holds it.
struct HeapPart {
  JobId job_id;
  uint64_t epoch = 0;
  uint32_t device_index = 0;
  std::vector<SegmentInfo> segments;  // that hold the part, in order and without holes
  bool of_member = false;             // the caller's process has a rank of that job
};

struct HeapPartQuery {
  const char* what = "";  // the call, for errors
  std::string job;
  uint32_t rank = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

// kNotFound if the caller may see no such job, if there is no such rank with memory, or if the part
// has a hole. kFailedPrecondition if several users have a job of that name. kInvalidArgument if the
// part is empty, or leaves the heap.
absl::StatusOr<HeapPart> FindHeapPart(const Daemon& daemon, const CallerInfo& caller,
                                      const HeapPartQuery& query);

// Returns the session of the call's connection. kPermissionDenied: an admin connection, or the
// request names another session.
absl::StatusOr<SessionId> SessionOf(const IncomingCall& call, uint64_t session_id);

LinkPayload JoinReplyOf(const Daemon& daemon, const JoinResult& joined);
// Texts are cut to wire::kMaxErrorTextBytes. The value of a broadcast is not copied: the replies of
// all members share it, as the tail of each.
LinkPayload OperateReplyOf(const Outcome& outcome);

// Returns the memory of a register, whose descriptors came with the call. kInvalidArgument if there
// is not one for each piece, or if one is for nothing. In a register of several ranks, which wait
// for this one, `request` then names the error.
absl::StatusOr<Daemon::Registered> TakeRegistered(const Daemon& daemon, const IncomingCall& call,
                                                  v1::OperateRequest* request);

absl::Status Borrow(Daemon* daemon, const IncomingCall& call, const v1::BorrowRequest& request,
                    v1::BorrowReply* reply);

absl::StatusOr<std::shared_ptr<ActiveCall>> Watch(Daemon* daemon, CallCounter* counter,
                                                  const IncomingCall& call,
                                                  const v1::WatchRequest& request);

}  // namespace iris::server
