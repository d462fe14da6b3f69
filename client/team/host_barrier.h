// HostBarrier: the barrier between the processes of a team, through control pages and futexes. No
// call to irisd, no lock that a dying rank could keep: each rank writes one word of its own page
// and reads its peers'.
//
// Arrive: own word := epoch (release), wake. Wait: until every member's word has reached the epoch
// (acquire, pairs with the peers' releases), or the status page says that a rank is gone, or the
// deadline passes. Epochs only grow, and wrap. Not thread-safe: one call at a time. Borrows the
// pages.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/membership/job_status.h"
#include "client/team/futex.h"
#include "proto/wire/pages.h"

namespace iris::internal {

// irisd, as far as it knows more of a barrier that lasts than its pages tell. Called by the thread
// that waits.
class BarrierHelp {
 public:
  virtual ~BarrierHelp() = default;
  // The barrier has lasted for a while, and lacks these ranks, as of now. Never waits. Not empty:
  // the barrier cannot end, and why.
  virtual std::string WhyItCannotEnd(uint32_t epoch, const std::vector<uint32_t>& missing) = 0;
  // The reason why a barrier could not end in which a rank has left or died. Ranks that irisd
  // refused leave, and must not take the reason with them. May take a moment.
  virtual std::string WhyItCouldNotEnd() = 0;
  // Says for an error where these ranks are; may take a moment.
  virtual std::string WhereAre(uint32_t epoch, const std::vector<uint32_t>& missing) = 0;
};

class HostBarrier {
 public:
  // `words[i]` is the team's word in the control page of ranks[i], and inside that page;
  // `own_word` is that of this rank, writable.
  HostBarrier(std::vector<uint32_t> ranks, uint32_t start_epoch, std::vector<const uint32_t*> words,
              uint32_t* own_word, JobStatus status);

  // Makes one barrier. A barrier that all ranks reached succeeds, even if one died or left right
  // after it; but not if the job was broken already when this rank passed the barrier before: ranks
  // that meet without the dead one, and never have to wait, still get the error. kAborted names the
  // ranks that died or left, kDeadlineExceeded those that are missing. Both also name ranks that
  // came and gave up at their own timeout, and kAborted the missing ones besides.
  // kFailedPrecondition if `cancelled` became true. kInvalidArgument if `help` says that the
  // barrier cannot end. Each consumes the barrier: ranks that call equally often stay in step.
  // Barriers that sleep for long ask `help`, unless it is null.
  absl::Status Run(absl::Time deadline, const std::atomic<bool>& cancelled,
                   BarrierHelp* help = nullptr);

  // Epoch of the last barrier that this rank arrived at.
  uint32_t epoch() const { return epoch_; }

 private:
  // Run, after the arrival. `*slept`: this rank's page says since when it waits.
  absl::Status Await(absl::Time deadline, const std::atomic<bool>& cancelled, BarrierHelp* help,
                     bool* slept);
  // Drops the members that have arrived from missing_. Writes the words of the others to `waits`,
  // and returns their number.
  size_t Look(FutexWord* waits);
  std::vector<uint32_t> MissingRanks() const;
  // Lists members that came to this barrier and gave up, with their times. Begins with "; ", or is
  // empty.
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
