// Inputs of the JobMachine: everything that can happen to it, each with all that it says. Plain
// data, so that inputs can be recorded and replayed (server/state).
//
// Input is hostile until the machine has checked it (sizes, names, ranks, sequence numbers); only
// the ids of sessions and calls are irisd's own.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/events.h"
#include "server/job/ids.h"
#include "server/job/limits.h"
#include "server/job/operation_spec.h"
#include "server/job/states.h"

namespace iris::server {

// When an input happens. Deadlines count on `steady`, which never jumps; what people read is
// stamped with `wall`, which does when somebody sets the clock.
struct Time {
  absl::Time steady;
  absl::Time wall;
};

// Sessions. SessionOpened precedes every other use of the id; the effect ReleaseSession ends it.

struct SessionOpened {
  SessionId session;
  CallerInfo caller;
  absl::Duration process_age;  // how long the caller's process has run
};
// The session's sockets are closed; its process may still run. May come never, or after
// ProcessGone.
struct SessionHungUp {
  SessionId session;
  std::string reason;  // for people
};
// The session's pidfd says that the process has ended.
struct ProcessGone {
  SessionId session;
};

// Calls. Each is answered by exactly one Reply with its CallId, now or later, unless it is
// cancelled first.

struct JoinSpec {
  std::string job;
  int32_t rank = 0;
  int32_t n_ranks = 0;
  uint64_t heap_bytes = 0;
  uint64_t max_heap_bytes = 0;  // 0: four times heap_bytes
  std::string device_uuid;      // empty: local_rank mod devices
  int32_t local_rank = 0;
  bool prealloc = false;
  absl::Duration timeout;  // zero: the default of JobLimits
  uint64_t team_sync_bytes = 0;
  // The client's own number of this Join in its session: a second one with the number is the same
  // Join again, whose answer was lost. Zero: it has none, and is never a repetition.
  uint64_t number = 0;
  // Not OK if irisd must keep nothing more for the caller's user; the text says why.
  absl::Status room;
};
// A repetition of a Join that still waits takes the place of the earlier call, which is answered
// kCancelled, and its timeout counts anew. Of one that was answered it gets the answer again, until
// the job is ready. Of one that was withdrawn because its caller was gone it is a new Join.
struct JoinCall {
  SessionId session;
  CallId call;
  JoinSpec spec;
};
struct MappedCall {
  SessionId session;
  CallId call;
  JobId job;
  uint64_t epoch = 0;
  uint64_t base = 0;
  std::string error;  // empty: the rank has mapped everything
};
// Each (team, k) has exactly one Outcome, the same status and message for every member, repeated on
// retry: success, malformed, mismatch, timeout and abort alike. A member's k is consumed exactly
// when an Outcome answers it; a member that comes so late that the outcome is no longer kept gets
// one that says so (kOutOfRange). A refusal of the call consumes nothing: kPermissionDenied,
// kNotFound (no such team), kFailedPrecondition (the job is not ready; k is ahead of the rank's own
// position), kResourceExhausted (too many retries wait; too many broadcast values are held),
// kUnavailable (irisd stops).
struct OperateCall {
  SessionId session;
  CallId call;
  OperationSpec spec;
};
// Answered at once; the growth itself ends with GrowDone.
struct GrowMappedCall {
  SessionId session;
  CallId call;
  JobId job;
  GrowId grow;
  std::string error;  // empty: the rank has mapped the new segments
};
// This rank waits in a host barrier, and has done so for a while. The call stands until irisd knows
// more (BarrierAnswer); the rank cancels it when the barrier ends.
struct AwaitBarrierSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint32_t epoch = 0;
  std::vector<Rank> missing;  // members that had not come when the rank looked
  bool only_thread = false;   // no other thread of the rank has used its context
  // The moment of the last BarrierAnswer in the same barrier; 0: the rank has had none.
  uint64_t moment = 0;
  bool time_is_up = false;  // answered at once: where the missing are
};
struct AwaitBarrierCall {
  SessionId session;
  CallId call;
  AwaitBarrierSpec spec;
};
struct LeaveCall {
  SessionId session;
  CallId call;
  JobId job;
};
// Moves a rank to a new session of the same process (pid, uid, start time), once the old one has
// hung up (kUnavailable before: retry). In a broken job the rank moves too, so that it can leave,
// but the call answers kAborted: the peers were told.
struct ResumeCall {
  SessionId session;
  CallId call;
  JobId job;
  std::string name;
  int32_t rank = 0;
  uint64_t epoch = 0;
};
// The caller of a call is gone (its RPC was cancelled): no Reply was or will be delivered.
//
// A pending Join is withdrawn a moment later (kWithdrawAfter), unless it is repeated: its
// connection may be lost and come back, and when a process dies, its calls can be cancelled before
// its session hangs up, and then its peers are to hear of the death. If the job's last rank joins
// meanwhile, the job fails at that moment, unless the rank maps. A Join without a number that was
// answered already fails the job at once, if its rank has not mapped: it will not. A pending
// operation stays asked for.
struct CallCancelled {
  CallId call;
};
// A watch stream was opened. Answered by a Reply (kPermissionDenied: the session is not a member of
// the job); on success NotifyWatch repeats what its reader may have missed, and the session's
// earlier stream is ended.
struct WatchOpened {
  SessionId session;
  CallId call;
  JobId job;
};

// Reports of the daemon.

// A creation that failed needs no DropSegment; one that was told to drop meanwhile is released by
// SegmentDropped alone.
struct SegmentCreated {
  SegmentId segment;
  absl::Status status;
};
struct SegmentDropped {
  SegmentId segment;
};
// The driver's count of a device's free memory, for messages.
struct DriverFree {
  uint32_t device_index = 0;
  uint64_t free_bytes = 0;
};
// The operator has changed what the machine allows. It counts for every decision from now on; what
// was decided stays: a pending call keeps its deadline, and a user with more than a new limit keeps
// it. The account of memory that was given back (KeptMemory) begins with the first quota, with the
// processes that are ranks then, and ends with the last.
struct LimitsChanged {
  JobLimits limits;
};
// Something that happened outside the machine, for the list of events.
struct Noted {
  Event event;
};
// Another irisd goes on with this state, of which these things were kept while there was none.
//
// Calls that waited are forgotten without a Reply: their callers make them again, and no
// deadline passes within kRepeatsWithin. Of a session that was not kept, a rank of a ready job can
// be resumed within kResumesWithin. A job of which memory was lost breaks. Whatever the daemon may
// not have carried out is asked of it again: states of ranks, descriptors of what is being mapped,
// creations and drops.
struct Recovered {
  uint64_t generation = 0;  // counts the irisds of this state
  std::vector<SessionId> sessions;
  std::vector<SegmentId> memory;
  std::vector<JobId> pages;
};
// A deadline has passed: see JobMachine::NextDeadline.
struct Tick {};
// irisd stops: every pending and later call is answered kUnavailable, every watch stream is told
// and ended. Status pages are left alone: the ranks live on, and their barriers must not end.
struct StopRequested {
  std::string reason;
};

using Input = std::variant<SessionOpened, SessionHungUp, ProcessGone, JoinCall, MappedCall,
                           OperateCall, GrowMappedCall, AwaitBarrierCall, LeaveCall, ResumeCall,
                           CallCancelled, WatchOpened, SegmentCreated, SegmentDropped, DriverFree,
                           LimitsChanged, Noted, Recovered, Tick, StopRequested>;

}  // namespace iris::server
