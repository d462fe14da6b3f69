// ControlPlane: what a rank asks of irisd and is told by it, in plain values. Nothing here includes
// gRPC or protobuf: irisd_control_plane.h is the real one, and tests bring their own.
//
// Thread-safe. Nothing waits without a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/base/types.h"
#include "client/wire/descriptor_key.h"
#include "client/wire/job.h"
#include "client/wire/operation.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

// irisd decides at the deadline that a call carries; its answer may take so much longer to arrive.
inline constexpr absl::Duration kAnswerSlack = absl::Seconds(5);
// A rank waits at least so long for descriptors to map: they may be on their way when the time that
// irisd gives is nearly over.
inline constexpr absl::Duration kMapTimeMin = absl::Seconds(1);

// What happens to the job. Called by the watch thread, one at a time, never after StopWatching has
// returned.
class WatchHandler {
 public:
  virtual ~WatchHandler() = default;
  virtual void OnRankChange(const RankChange& change) = 0;
  virtual void OnSegmentsAdded(const SegmentsAdded& added) = 0;
  virtual void OnGrowDone(const GrowDone& done) = 0;
  virtual void OnStopping(const std::string& reason) = 0;
};

// A question to irisd about a host barrier. Its destructor takes it back.
class BarrierQuestion {
 public:
  virtual ~BarrierQuestion() = default;
  // Never waits. Nothing: no answer has come yet. An error: none will.
  virtual std::optional<absl::StatusOr<BarrierAnswer>> Answer() = 0;
};

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  // Of the irisd that the rank joins: its number, which a Join may change, and the backend of its
  // devices.
  virtual uint64_t daemon_id() const = 0;
  virtual const std::string& backend() const = 0;

  // Returns when every rank has joined. `options` has no field left that the environment fills.
  // Where irisd goes away meanwhile, the rank joins at the next one while its join_timeout lasts.
  virtual absl::StatusOr<JoinedJob> Join(const ContextOptions& options, absl::Time deadline) = 0;
  // Says that everything is mapped at `base`, or why it could not be; returns when every rank has.
  virtual absl::StatusOr<CommittedJob> Mapped(uint64_t job_id, uint64_t epoch,
                                              const absl::StatusOr<uint64_t>& base,
                                              absl::Time deadline) = 0;
  // Tried once, on the present session.
  virtual absl::Status Leave(uint64_t job_id, absl::Time deadline) = 0;

  // The outcome of the call's k. An error means that there is none here: irisd refused the call
  // (its code and text), no session came until `reach_deadline` (kUnavailable), or irisd did not
  // answer until `answer_deadline` (kDeadlineExceeded). While the session breaks and comes back,
  // the request is repeated with the same k.
  //
  // `unanswered`, in and out: irisd may have taken this call, and no outcome of it has come back.
  // Then its k is this call's and no other's: ask again, with the same call.
  virtual absl::StatusOr<Outcome> Operate(const OperationCall& call, absl::Time reach_deadline,
                                          absl::Time answer_deadline, bool* unanswered) = 0;

  // The memory behind a part of a heap, and its descriptors, in order. Tried until the deadline,
  // also on a session that comes back. kNotFound: nothing is there.
  struct Lent {
    Segment segment;
    wire::UniqueFd fd;
  };
  virtual absl::StatusOr<std::vector<Lent>> Borrow(const HeapPart& part, absl::Time deadline) = 0;

  // Asks about a host barrier that lasts. Never waits. Null: irisd cannot be asked now.
  virtual std::unique_ptr<BarrierQuestion> AskOfBarrier(const BarrierWait& wait) = 0;
  // The same of one whose time is up; the answer is there at the deadline, if at all.
  virtual absl::StatusOr<BarrierAnswer> WhereAreMissing(const BarrierWait& wait,
                                                        absl::Time deadline) = 0;

  // Says whether the segments of a growth are mapped.
  virtual absl::Status GrowMapped(uint64_t job_id, uint64_t grow_id, const absl::Status& mapped,
                                  absl::Time deadline) = 0;

  // Waits for descriptors of the present session and takes them, in the order of `keys`.
  virtual absl::StatusOr<std::vector<wire::UniqueFd>> TakeDescriptors(
      absl::Span<const DescriptorKey> keys, absl::Time deadline) = 0;
  // Closes those that nobody has taken.
  virtual void DropDescriptors() = 0;
  // The same of these alone. An irisd that took over from another may have sent them again.
  virtual void DropDescriptors(absl::Span<const DescriptorKey> keys) = 0;

  // Starts the watch thread. `handler` is borrowed until StopWatching has returned. `name_thread`
  // is called first on it.
  virtual void StartWatching(const RankIdentity& identity, WatchHandler* handler,
                             std::function<void()> name_thread) = 0;
  // Ends and joins the watch thread, and fails every call that waits. Idempotent; not from the
  // watch thread.
  virtual void StopWatching() = 0;
};

}  // namespace iris::internal
