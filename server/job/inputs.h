// Inputs of the JobMachine: everything that can happen to it, as plain data, so that inputs can be
// recorded and replayed (server/state).
//
// Input is hostile until the machine has checked it (sizes, names, ranks, sequence numbers); only
// the ids of sessions and calls are irisd's own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/events.h"
#include "server/job/ids.h"
#include "server/job/node_messages.h"
#include "server/job/operation_spec.h"
#include "server/job/states.h"

namespace iris::server {

// Limits and timeouts of the JobMachine.
struct JobLimits {
  uint32_t max_jobs = 1024;
  uint32_t max_jobs_per_uid = 256;
  uint64_t max_descriptors = 0;         // of segments and pages, over all jobs; 0: no limit
  uint64_t max_heap_bytes_per_uid = 0;  // over all ranks of all its jobs; 0: no quota
  absl::Duration join_timeout_default = absl::Seconds(60);
  absl::Duration join_timeout_max = absl::Hours(1);
  absl::Duration map_timeout = absl::Seconds(60);
  absl::Duration operation_timeout_default = absl::Seconds(60);
  absl::Duration operation_timeout_max = absl::Hours(1);
  absl::Duration grow_timeout = absl::Seconds(30);
};

// After a Join was cancelled, its session has this long to repeat the Join on a new connection, or
// to hang up; then irisd withdraws the Join. A client on a busy machine needs most of a second to
// get a connection and to come back.
inline constexpr absl::Duration kWithdrawAfter = absl::Seconds(2);

// After another irisd has taken over, clients must repeat their calls within kRepeatsWithin, and
// clients whose session was not kept must resume their ranks within kResumesWithin.
inline constexpr absl::Duration kRepeatsWithin = absl::Seconds(10);
inline constexpr absl::Duration kResumesWithin = absl::Seconds(30);

// Pairs of devices (from, to) for which kernels on `from` cannot use memory of `to`, with the
// reason. A pair (d, d) means that device d itself is unusable.
using UnusablePairs = std::map<std::pair<uint32_t, uint32_t>, absl::Status>;

// The time of an input. Deadlines use `steady`, which never jumps. Timestamps for people use
// `wall`, which jumps when somebody sets the clock.
struct Time {
  absl::Time steady;
  absl::Time wall;
};

// SessionOpened precedes every other use of a session's id; the effect ReleaseSession ends it.

struct SessionOpened {
  SessionId session;
  CallerInfo caller;
  absl::Duration process_age;  // how long the caller's process has run
};
// The session's sockets are closed; its process may still run. May never come, or after
// ProcessGone.
struct SessionHungUp {
  SessionId session;
  std::string reason;  // for people
};
// The session's pidfd says that the process has ended.
struct ProcessGone {
  SessionId session;
};

// Each call is answered by exactly one Reply with its CallId, now or later, unless it is cancelled
// first.

// What a rank says of the nodes of its job.
struct JoinNodes {
  Rank first_local = 0;    // the first rank on this node
  uint32_t n_local = 0;    // ranks on this node, which are consecutive; fewer than the job has
  std::string rendezvous;  // HOST:PORT of the leader's port process; empty: by etcd
  std::string secret;      // of the job; empty: irisd's own
  friend bool operator==(const JoinNodes&, const JoinNodes&) = default;
};

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
  // The client's number of this Join in its session. A second Join with the same number repeats the
  // first, whose answer was lost. 0 means no number: such a Join is never a repetition.
  uint64_t number = 0;
  std::optional<JoinNodes> nodes;  // of a job that spans several nodes
  // An error, with the reason, if irisd must not keep more for the caller's user.
  absl::Status room;
};
// A repetition of a Join that still waits replaces the earlier call, which is answered kCancelled,
// and restarts the timeout. If the Join was answered, the repetition gets the same answer, until
// the job is ready. If the Join was withdrawn because its caller was gone, the repetition is a new
// Join.
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
// Each (team, k) has exactly one Outcome, with the same status and message for every rank and every
// retry: success, malformed, mismatch, timeout and abort alike. A rank's k is consumed exactly when
// an Outcome answers it. A rank that is so late that the outcome is no longer kept gets kOutOfRange
// as its Outcome. A refusal of the call consumes nothing: kPermissionDenied, kNotFound (no such
// team), kFailedPrecondition (the job is not ready; k is ahead of the rank's own position),
// kResourceExhausted (too many retries wait; too many broadcast values are held), kUnavailable
// (irisd stops).
struct OperateCall {
  SessionId session;
  CallId call;
  OperationSpec spec;
};
// Reports that a rank has mapped the new segments, or why it could not. It is answered at once; the
// growth itself ends with GrowDone.
struct GrowMappedCall {
  SessionId session;
  CallId call;
  JobId job;
  GrowId grow;
  std::string error;  // empty: the rank has mapped the new segments
};
// This rank has waited in a host barrier for a while. The call stays pending until irisd knows more
// (BarrierAnswer); the rank cancels the call when the barrier ends.
struct AwaitBarrierSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint32_t epoch = 0;
  std::vector<Rank> missing;  // members that had not come when the rank looked
  bool only_thread = false;   // no other thread of the rank has used its context
  // The moment of the last BarrierAnswer in the same barrier, or 0 if the rank has had none.
  uint64_t moment = 0;
  bool time_is_up = false;  // report at once where the missing ranks are
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
// Moves a rank to a new session of the same process (pid, uid, start time), once the old session
// has hung up (kUnavailable before: retry). In a broken job the rank moves too, so that it can
// leave, but the call is answered kAborted, as its peers were notified.
struct ResumeCall {
  SessionId session;
  CallId call;
  JobId job;
  std::string name;
  int32_t rank = 0;
  uint64_t epoch = 0;
};
// The caller of a call is gone (its RPC was cancelled), and gets no Reply.
//
// A pending Join is withdrawn after kWithdrawAfter, unless the client reconnects and repeats it. If
// the client's process is dying, its session hangs up within that time, and the peers are notified
// of the death. If the job's last rank joins meanwhile, the job fails after that time, unless the
// rank has mapped. A Join without a number that was already answered fails the job at once if its
// rank has not mapped, because the rank never will. A pending operation stays pending.
struct CallCancelled {
  CallId call;
};
// A watch stream was opened. A Reply answers it (kPermissionDenied if the session is not in the
// job). On success NotifyWatch repeats items that its reader may have missed, and the session's
// earlier stream is ended.
struct WatchOpened {
  SessionId session;
  CallId call;
  JobId job;
};

// The creation of a segment has ended. After a failure the segment needs no DropSegment. If
// DropSegment came during the creation, only SegmentDropped releases the segment.
struct SegmentCreated {
  SegmentId segment;
  absl::Status status;
  std::string fabric;  // the handle by which other nodes import it; empty: they cannot
};
struct SegmentDropped {
  SegmentId segment;
};
// The driver's count of a device's free memory, for messages.
struct DriverFree {
  uint32_t device_index = 0;
  uint64_t free_bytes = 0;
};
// The operator has changed the machine's limits. They apply to later decisions only: a pending call
// keeps its deadline, and a user keeps what exceeds a new limit. The first quota starts the account
// of memory that was given back (KeptMemory), for the processes that are ranks at that time. The
// end of the last quota ends the account.
struct LimitsChanged {
  JobLimits limits;
};
// Something happened outside the machine, and is added to the list of events.
struct Noted {
  Event event;
};
// Another irisd continues with this state. The input lists the sessions and memory that the earlier
// irisd kept for it.
//
// Waiting calls are forgotten without a Reply: their callers repeat them, and no deadline passes
// within kRepeatsWithin. If a rank's session was not kept and its job is ready, the rank can resume
// within kResumesWithin. A job that lost memory breaks. So does a job of several nodes whose port
// process was not kept, or that shares memory with other nodes; if it still forms, it fails.
// Effects that the earlier daemon may not have carried out are repeated: states of ranks,
// descriptors of segments being mapped, creations and drops, messages to other nodes.
struct Recovered {
  uint64_t generation = 0;  // counts the irisds of this state
  std::vector<SessionId> sessions;
  std::vector<SegmentId> memory;
  std::vector<JobId> pages;
  std::vector<JobId> ports;  // jobs whose port process was kept
};
// The port process of a job that spans several nodes is ready. `random` names this run of the job
// if this node leads it.
struct PortReady {
  JobId job;
  uint64_t random = 0;
  std::string host;    // this node's name
  std::string fabric;  // the name of its fabric domain, or why it has none
};
// The port process has ended, or cannot go on.
struct PortFailed {
  JobId job;
  std::string reason;
};
// What a port process says of nodes has numbers, which count from 1 on, because it is repeated to
// the next irisd; 0: it is not repeated. `taken` is the number of the last SendToNode that the port
// process has.

struct PortTook {
  JobId job;
  uint64_t taken = 0;
};
// Another node is connected to the leader, or, on another node, the leader is.
struct NodeConnected {
  JobId job;
  NodeId node = 0;
  std::string name;  // of the host
  uint64_t number = 0;
};
// That connection is lost for good.
struct NodeLost {
  JobId job;
  NodeId node = 0;
  std::string reason;
  uint64_t number = 0;
};
// The irisd of another node says something. From the leader, or, on the leader's node, from a node
// that is connected.
struct NodeSaid {
  JobId job;
  NodeId node = 0;
  NodeMessage message;
  uint64_t number = 0;
  uint64_t taken = 0;
};
// A deadline has passed: see JobMachine::NextDeadline.
struct Tick {};
// irisd stops: every pending and later call is answered kUnavailable, and every watch stream is
// notified and ended. Status pages stay unchanged: the ranks live on, and their barriers must not
// end.
struct StopRequested {
  std::string reason;
};

using Input = std::variant<SessionOpened, SessionHungUp, ProcessGone, JoinCall, MappedCall,
                           OperateCall, GrowMappedCall, AwaitBarrierCall, LeaveCall, ResumeCall,
                           CallCancelled, WatchOpened, SegmentCreated, SegmentDropped, DriverFree,
                           LimitsChanged, Noted, Recovered, Tick, StopRequested, PortReady,
                           PortFailed, PortTook, NodeConnected, NodeLost, NodeSaid>;

}  // namespace iris::server
