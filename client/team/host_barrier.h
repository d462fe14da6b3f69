// HostBarrier: the barrier between the processes of a team, through control pages and futexes. It
// needs no call to irisd and no lock that a dying rank could keep: each rank writes one word of its
// own page and reads those of its peers.
//
// Arrive: own word := epoch (release), wake. Wait: until every member's word has reached the epoch
// (acquire, pairs with the peers' releases), or the status page says that a rank is gone, or the
// deadline passes. Epochs only grow, and wrap. Not thread-safe: one call at a time. Borrows the
// pages.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/membership/job_status.h"
#include "client/team/futex.h"
#include "proto/wire/pages.h"

namespace iris::internal {

// Asks irisd about a barrier that takes long, of which irisd knows more than the pages show. Called
// by the thread that waits.
class BarrierHelp {
 public:
  virtual ~BarrierHelp() = default;
  // Returns the reason why the barrier, which now lacks these ranks, cannot end, or an empty text.
  // Called after the barrier has taken a while. Never waits.
  virtual std::string WhyItCannotEnd(uint32_t epoch, const std::vector<uint32_t>& missing) = 0;
  // Returns the reason why a barrier in which a rank has left or died could not end. Ranks that
  // irisd refused leave, and the reason must not be lost. May take a moment.
  virtual std::string WhyItCouldNotEnd() = 0;
  // Returns a text for an error that says where these ranks are. May take a moment.
  virtual std::string WhereAre(uint32_t epoch, const std::vector<uint32_t>& missing) = 0;
};

class HostBarrier {
 public:
  // `words[i]` is the team's word in the control page of ranks[i], and inside that page;
  // `own_word` is that of this rank, writable.
  HostBarrier(std::vector<uint32_t> ranks, uint32_t start_epoch, std::vector<const uint32_t*> words,
              uint32_t* own_word, JobStatus status);

  // Runs one barrier. A barrier that all ranks reached succeeds, even if one died or left right
  // after it, unless the job was broken already when this rank passed the barrier before: so the
  // other ranks of a team without the dead one, which never have to wait, still get the error.
  // kAborted names the ranks that died or left, and the missing ones; kDeadlineExceeded names the
  // missing ones. Both also name ranks that arrived and gave up at their own timeout.
  // kFailedPrecondition if `cancelled` became true. kInvalidArgument if `help` says that the
  // barrier cannot end. Each error consumes the barrier: ranks that call equally often stay in
  // step. Barriers that sleep for long ask `help`, unless it is null.
  absl::Status Run(absl::Time deadline, const std::atomic<bool>& cancelled,
                   BarrierHelp* help = nullptr);

  // A barrier of a team with ranks on several nodes is a Run by the ranks of this node, then a
  // meeting of one rank a node, its leader, and then Release by the leader and AwaitRelease by the
  // others. A rank whose Run fails does neither, unless it leads, and calls Skip.

  // Lets the other ranks pass, or fail if `failed_after` is given: the time that the leader waited.
  void Release(std::optional<absl::Duration> failed_after);
  // Waits for the Release by rank `leader`. kDeadlineExceeded also if the leader has failed.
  absl::Status AwaitRelease(uint32_t leader, absl::Time deadline,
                            const std::atomic<bool>& cancelled);
  void Skip() { ++epoch_; }
  // Tells iris-ctl that the leader waits for other nodes, respectively no longer.
  void SetWaiting(bool waits);
  // Returns the status of a barrier between nodes, or, if it failed before the deadline because the
  // job broke, the loss that broke it. Waits for a moment until irisd has told it.
  absl::Status WhyBroken(const absl::Status& status, absl::Time deadline) const;

  // Epoch of the last barrier that this rank arrived at.
  uint32_t epoch() const { return epoch_; }

 private:
  // The part of Run after the arrival: waits for missing_. Sets `*slept` if this rank's page has
  // the start of its wait.
  absl::Status Await(absl::Time deadline, const std::atomic<bool>& cancelled, BarrierHelp* help,
                     bool* slept);
  // Removes the ranks that have arrived from missing_. Writes the words of the others to `waits`,
  // and returns their number.
  size_t Look(FutexWord* waits);
  std::vector<uint32_t> MissingRanks() const;
  // Lists ranks that arrived at this barrier and gave up, with their times. The text begins with
  // "; ", or is empty.
  std::string WhoGaveUp() const;

  const std::vector<uint32_t> ranks_;
  const std::vector<const uint32_t*> words_;
  uint32_t* const own_word_;
  const JobStatus status_;
  uint32_t epoch_;
  bool was_broken_ = false;        // the job, when the last barrier was passed
  std::vector<uint32_t> missing_;  // indices into ranks_
};

}  // namespace iris::internal
