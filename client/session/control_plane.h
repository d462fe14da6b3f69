// ControlPlane: the calls of a rank to irisd, and irisd's events, in plain values.
// irisd_control_plane.h implements it; tests have their own implementation.
//
// Thread-safe. Nothing waits without a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/base/options.h"
#include "client/wire/job.h"
#include "client/wire/operation.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

// The time that an answer may take to arrive after the deadline of a call, at which irisd decides.
inline constexpr absl::Duration kAnswerSlack = absl::Seconds(5);
// The shortest wait of a rank for descriptors to map. They may be on their way when the time that
// irisd gives is nearly over.
inline constexpr absl::Duration kMapTimeMin = absl::Seconds(1);

// Takes the events of a job. The watch thread calls it, one call at a time, and never after
// StopWatching has returned.
using WatchHandler = std::function<void(const WatchEvent&)>;

// A question to irisd about a host barrier, which its destructor cancels. A call never waits. It
// returns the answer, nullopt if none has arrived yet, or an error if none will arrive.
using BarrierQuestion = std::function<std::optional<absl::StatusOr<BarrierAnswer>>()>;

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  // Return the number of the irisd that the rank joins, which a Join may change, and the backend of
  // irisd's devices.
  virtual uint64_t daemon_id() const = 0;
  virtual const std::string& backend() const = 0;

  // Joins the job, and returns when every rank has joined. `options` are those of ResolveOptions.
  // If irisd ends meanwhile, the rank joins at the next one until its join_timeout.
  virtual absl::StatusOr<JoinedJob> Join(const HostContextOptions& options,
                                         absl::Time deadline) = 0;
  // Reports that everything is mapped at `base`, or the error. Returns when every rank has done so.
  virtual absl::StatusOr<CommittedJob> Mapped(uint64_t job_id, uint64_t epoch,
                                              const absl::StatusOr<uint64_t>& base,
                                              absl::Time deadline) = 0;
  // Leaves the job. Tries once, on the present session.
  virtual absl::Status Leave(uint64_t job_id, absl::Time deadline) = 0;

  // Returns the outcome of the call's k. An error means that no outcome is known: irisd refused the
  // call (its code and text), there was no session until `reach_deadline` (kUnavailable), or irisd
  // did not answer until `answer_deadline` (kDeadlineExceeded). If the session breaks and comes
  // back, the request is repeated with the same k.
  //
  // `unanswered`, in and out, is true if irisd may have taken this call, and no outcome of it has
  // come back. The k then belongs to this call: repeat the same call.
  virtual absl::StatusOr<Outcome> Operate(const OperationCall& call, absl::Time reach_deadline,
                                          absl::Time answer_deadline, bool* unanswered) = 0;

  // Borrows the memory of a part of a heap, with its descriptors, in order. It tries until the
  // deadline, also on a session that comes back. kNotFound if there is no such memory.
  struct Lent {
    Segment segment;
    wire::UniqueFd fd;
  };
  virtual absl::StatusOr<std::vector<Lent>> Borrow(const HeapPart& part, absl::Time deadline) = 0;

  // Asks about a host barrier that takes long. Never waits. Returns null if it cannot ask now.
  virtual BarrierQuestion AskOfBarrier(const BarrierWait& wait) = 0;
  // Asks about a barrier whose time is up, and waits for the answer until the deadline.
  virtual absl::StatusOr<BarrierAnswer> WhereAreMissing(const BarrierWait& wait,
                                                        absl::Time deadline) = 0;

  // Reports the result of mapping the segments of a growth.
  virtual absl::Status GrowMapped(uint64_t job_id, uint64_t grow_id, const absl::Status& mapped,
                                  absl::Time deadline) = 0;

  // Waits for descriptors of the present session and takes them, in the order of `keys`.
  virtual absl::StatusOr<std::vector<wire::UniqueFd>> TakeDescriptors(
      absl::Span<const DescriptorKey> keys, absl::Time deadline) = 0;
  // Closes all descriptors that were not taken.
  virtual void DropDescriptors() = 0;
  // Closes only these descriptors. An irisd that took over from another may have sent them again.
  virtual void DropDescriptors(absl::Span<const DescriptorKey> keys) = 0;

  // Starts the watch thread, which first calls `name_thread`.
  virtual void StartWatching(const RankIdentity& identity, WatchHandler handler,
                             std::function<void()> name_thread) = 0;
  // Ends and joins the watch thread, and fails every call that waits. Idempotent; not from the
  // watch thread.
  virtual void StopWatching() = 0;
};

}  // namespace iris::internal
