// Effects of the JobMachine: what the daemon must do, in order. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/events.h"
#include "server/job/ids.h"
#include "server/job/node_messages.h"
#include "server/job/results.h"
#include "server/job/states.h"

namespace iris::server {

// Answers a call. If `status` is not OK, the call is refused, and `result` is unspecified. An
// operation that fails is not refused: its Outcome answers the call.
struct Reply {
  CallId call;
  absl::Status status;
  Result result;
};
// Forgets a session that can no longer affect any job.
struct ReleaseSession {
  SessionId session;
};
// Makes the job's status page and, for each rank of this node, a control page and, with `ports`,
// the memory by which the rank reaches other nodes. Precedes every use of the pages.
struct CreatePages {
  JobId job;
  Rank first_rank = 0;
  uint32_t n_ranks = 0;  // of this node
  uint64_t epoch = 0;
  bool ports = false;
};
struct DropPages {
  JobId job;
};
// Creates physical memory on a worker thread, then reports SegmentCreated. The ledger already
// counts it.
struct CreateSegment {
  SegmentId id;
  JobId job;
  uint32_t device_index = 0;
  uint64_t bytes = 0;
  bool prealloc = false;
};
// Makes what stands for memory of a rank of another node, which clients here import by its handle.
struct ImportSegment {
  SegmentId id;
  uint64_t bytes = 0;
  std::string fabric;  // the handle
};
// Keeps descriptor number `index` of those that came with the present call, as `bytes` bytes of
// memory that a rank has registered. The others are closed after the call.
struct AdoptSegment {
  SegmentId id;
  uint32_t device_index = 0;
  uint64_t bytes = 0;
  uint32_t index = 0;
};
// Frees the memory on a worker thread, then reports SegmentDropped. If the segment's creation is
// under way, the daemon drops the segment when that ends. The creation may have failed.
struct DropSegment {
  SegmentId id;
};
// Sends descriptors of the segments, and, if `pages`, of all control pages and the status page, to
// one session.
struct SendDescriptors {
  SessionId session;
  JobId job;
  uint64_t epoch = 0;
  Rank receiver = 0;
  uint32_t n_ranks = 0;
  std::vector<SegmentInfo> segments;
  bool pages = false;
};
// Writes the status page: state and pid of the rank (of a rank of another node, only that it has
// left), and the abort word; then increments `changes` and wakes the waiters.
struct SetRankState {
  JobId job;
  Rank rank = 0;
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  bool abort = false;
};

// Items of a watch stream are of these types.
struct WatchEstablished {};
struct RankChanged {
  Rank rank = 0;
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  std::string reason;
};
struct SegmentsAdded {
  GrowId grow;
  std::vector<SegmentInfo> segments;
  uint64_t heap_bytes = 0;
  absl::Duration timeout;
};
struct GrowDone {
  GrowId grow;
  bool published = false;
  std::string reason;
};
struct WatchStopping {
  std::string reason;
};
using WatchItem =
    std::variant<WatchEstablished, RankChanged, SegmentsAdded, GrowDone, WatchStopping>;

// Queues an item on the session's watch stream. Without a stream the item is dropped; WatchOpened
// repeats items that still matter.
struct NotifyWatch {
  SessionId session;
  WatchItem event;
};
// Ends the session's watch stream, if it has one, after the queued items.
struct EndWatch {
  SessionId session;
  absl::Status status;
};
// Starts the port process of a job that spans several nodes. PortReady or PortFailed follows.
struct StartPort {
  JobId job;
  std::string name;
  CallerInfo caller;  // whose user the process gets
  NodeId node = 0;    // this one
  uint32_t n_local = 0;
  uint32_t n_ranks = 0;
  uint64_t stride_bytes = 0;
  std::string rendezvous;  // empty: etcd knows it
  std::string secret;
  absl::Duration join_timeout;  // of the rank that came first
};
// Gives the port process the layout of the job, and the memory of this node's ranks. With epoch 0
// it moves no more data, and what waits for it ends. With an epoch and no nodes, only memory is
// added or forgotten.
struct SetLayout {
  JobId job;
  uint64_t epoch = 0;
  std::vector<NodePart> nodes;
  std::vector<SegmentInfo> segments;
  std::vector<SegmentId> forgotten;
  // Segments at this offset and above are registered memory. The job goes on if the port process
  // cannot have them.
  uint64_t registered_from = ~uint64_t{0};
};
// Takes over the port process from an irisd that has ended. All memory that it is to have is in
// `layout`. The effects SendToNode for what it may not have taken follow, with their old numbers.
struct AttachPort {
  JobId job;
  NodeId node = 0;       // this one
  uint32_t n_ranks = 0;  // of the job
  uint64_t heard = 0;    // the number of its last message that the machine has
  uint64_t sent = 0;     // the number of the last message to it
  uint64_t taken = 0;    // it is known to have those up to this number
  SetLayout layout;
};
// Sends a message to a node that the port process is connected with; on the leader's node, with
// `all`, to every node that is connected. The port process ignores a number for the second time.
struct SendToNode {
  JobId job;
  NodeId node = 0;
  bool all = false;
  NodeMessage message;
  uint64_t number = 0;  // counts the messages of this job, from 1 on
};
// Ends the port process, after what was sent.
struct StopPort {
  JobId job;
};
// Reports an event to logs and to `iris-ctl events`.
struct EmitEvent {
  Event event;
};

using Effect =
    std::variant<Reply, ReleaseSession, CreatePages, DropPages, CreateSegment, ImportSegment,
                 AdoptSegment, DropSegment, SendDescriptors, SetRankState, NotifyWatch, EndWatch,
                 StartPort, SetLayout, AttachPort, SendToNode, StopPort, EmitEvent>;
using Effects = std::vector<Effect>;

}  // namespace iris::server
