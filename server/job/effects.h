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
#include "server/job/results.h"
#include "server/job/states.h"

namespace iris::server {

// Answers a call. `status` not ok: the call is refused, and `result` means nothing. An operation
// that fails is no refusal: the call is answered with its Outcome.
struct Reply {
  CallId call;
  absl::Status status;
  Result result;
};
// Forgets the session: nothing that is of consequence can come of it any more.
struct ReleaseSession {
  SessionId session;
};
// Makes the status page of the job and a control page for each rank. Always precedes any use of
// them.
struct CreatePages {
  JobId job;
  uint32_t n_ranks = 0;
  uint64_t epoch = 0;
};
struct DropPages {
  JobId job;
};
// Creates physical memory on a worker thread, then reports SegmentCreated. Already accounted in the
// ledger.
struct CreateSegment {
  SegmentId id;
  JobId job;
  uint32_t device_index = 0;
  uint64_t bytes = 0;
  bool prealloc = false;
};
// Keeps the descriptor number `index` of those that came with the call that is being applied, as
// memory of `bytes` bytes that a rank has registered. Others are closed when the call has been
// applied.
struct AdoptSegment {
  SegmentId id;
  uint32_t device_index = 0;
  uint64_t bytes = 0;
  uint32_t index = 0;
};
// Lets go of the memory on a worker thread, then reports SegmentDropped. May name a segment whose
// creation is still under way or failed: the daemon then drops it once that has ended.
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
// Writes the status page: state and pid of the rank, the abort word, then `changes` + 1 and a wake.
struct SetRankState {
  JobId job;
  Rank rank = 0;
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  bool abort = false;
};

// Items of a watch stream.
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

// For the session's watch stream; dropped if it has none (WatchOpened repeats what still matters).
struct NotifyWatch {
  SessionId session;
  WatchItem event;
};
// Ends the session's watch stream, if it has one, after what was said.
struct EndWatch {
  SessionId session;
  absl::Status status;
};
// For logs and `iris-ctl events`.
struct EmitEvent {
  Event event;
};

using Effect =
    std::variant<Reply, ReleaseSession, CreatePages, DropPages, CreateSegment, AdoptSegment,
                 DropSegment, SendDescriptors, SetRankState, NotifyWatch, EndWatch, EmitEvent>;
using Effects = std::vector<Effect>;

}  // namespace iris::server
