#include "client/team/host_barrier.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"

namespace iris::internal {
namespace {

// The number of times that a waiter yields its CPU before it sleeps, so that peers that share the
// CPU arrive without a wake-up.
constexpr int kYields = 3;

// Longest sleep: `cancelled` has no futex.
constexpr absl::Duration kSleepMax = absl::Milliseconds(100);

// The port process may tell a rank of a loss before irisd does, which says what is lost.
constexpr absl::Duration kToldWithin = absl::Seconds(1);

// A bit of gave_up_ms: the leader of this node gave up its wait for other nodes, and releases the
// ranks that wait for it with an error. It stays until all of them have come to the next barrier.
constexpr uint32_t kOtherNodes = 1u << 31;

uint32_t MillisecondsOf(absl::Duration waited) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(waited), 1, kOtherNodes - 1));
}

// The duration after which a barrier asks for help. Most waits for a busy rank are shorter.
constexpr absl::Duration kAskAfter = absl::Milliseconds(200);

}  // namespace

HostBarrier::HostBarrier(std::vector<uint32_t> ranks, uint32_t start_epoch,
                         std::vector<const uint32_t*> words, uint32_t* own_word, JobStatus status)
    : ranks_(std::move(ranks)),
      words_(std::move(words)),
      own_word_(own_word),
      status_(status),
      epoch_(start_epoch) {
  missing_.reserve(words_.size());
}

size_t HostBarrier::Look(FutexWord* waits) {
  size_t n_waits = 0;
  const auto arrived = [&](uint32_t i) {
    const uint32_t seen = __atomic_load_n(words_[i], __ATOMIC_ACQUIRE);
    if (wire::EpochReached(seen, epoch_)) return true;
    waits[n_waits++] = {words_[i], seen};
    return false;
  };
  missing_.erase(std::remove_if(missing_.begin(), missing_.end(), arrived), missing_.end());
  return n_waits;
}

std::vector<uint32_t> HostBarrier::MissingRanks() const {
  std::vector<uint32_t> ranks;
  for (const uint32_t i : missing_) ranks.push_back(ranks_[i]);
  return ranks;
}

std::string HostBarrier::WhoGaveUp() const {
  std::string text;
  for (size_t i = 0; i < words_.size(); ++i) {
    if (__atomic_load_n(words_[i], __ATOMIC_ACQUIRE) != epoch_) continue;
    const uint32_t ms = __atomic_load_n(words_[i] + wire::kWordsToGaveUp, __ATOMIC_RELAXED);
    if (ms == 0 || (ms & kOtherNodes) != 0) continue;
    absl::StrAppend(&text, "; ", status_.Name(ranks_[i]), " came and gave up after ",
                    absl::FormatDuration(absl::Milliseconds(ms)), " (its own timeout)");
  }
  return text;
}

absl::Status HostBarrier::Run(absl::Time deadline, const std::atomic<bool>& cancelled,
                              BarrierHelp* help) {
  ++epoch_;
  uint32_t* const own_gave_up = own_word_ + wire::kWordsToGaveUp;
  if ((__atomic_load_n(own_gave_up, __ATOMIC_RELAXED) & kOtherNodes) == 0) {
    __atomic_store_n(own_gave_up, 0u, __ATOMIC_RELAXED);
  }
  __atomic_store_n(own_word_, epoch_, __ATOMIC_RELEASE);
  FutexWakeAll(own_word_);
  absl::Status status;
  if (was_broken_) {
    status = status_.Broken();
  } else {
    // Rotated order: each rank looks for another peer first.
    missing_.clear();
    const uint32_t n = static_cast<uint32_t>(words_.size());
    const auto own_index =
        static_cast<uint32_t>(std::find(words_.begin(), words_.end(), own_word_) - words_.begin());
    for (uint32_t i = 1; i < n; ++i) missing_.push_back((own_index + i) % n);
    bool slept = false;
    status = Await(deadline, cancelled, help, &slept);
    if (slept) __atomic_store_n(own_word_ + wire::kWordsToWaitsSince, 0u, __ATOMIC_RELAXED);
    if (status.ok()) was_broken_ = status_.aborted();
  }
  if (status.ok()) {
    __atomic_store_n(own_gave_up, 0u, __ATOMIC_RELAXED);
    return status;
  }
  return Annotate(status, absl::StrCat("host barrier #", epoch_, " of ", words_.size(), " ranks"));
}

void HostBarrier::Release(std::optional<absl::Duration> failed_after) {
  ++epoch_;
  if (failed_after.has_value()) {
    __atomic_store_n(own_word_ + wire::kWordsToGaveUp, kOtherNodes | MillisecondsOf(*failed_after),
                     __ATOMIC_RELAXED);
  }
  __atomic_store_n(own_word_, epoch_, __ATOMIC_RELEASE);
  FutexWakeAll(own_word_);
}

void HostBarrier::SetWaiting(bool waits) {
  __atomic_store_n(own_word_ + wire::kWordsToWaitsSince, waits ? PageNow() : 0, __ATOMIC_RELAXED);
}

absl::Status HostBarrier::AwaitRelease(uint32_t leader, absl::Time deadline,
                                       const std::atomic<bool>& cancelled) {
  ++epoch_;
  const auto index =
      static_cast<uint32_t>(std::find(ranks_.begin(), ranks_.end(), leader) - ranks_.begin());
  missing_.assign(1, index);
  bool slept = false;
  absl::Status status = Await(deadline, cancelled, nullptr, &slept);
  if (slept) __atomic_store_n(own_word_ + wire::kWordsToWaitsSince, 0u, __ATOMIC_RELAXED);
  if (!status.ok() && !absl::IsDeadlineExceeded(status)) return status;
  const uint32_t ms = __atomic_load_n(words_[index] + wire::kWordsToGaveUp, __ATOMIC_RELAXED);
  if (status.ok() && (ms & kOtherNodes) == 0) return status;
  // The leader has come, or this rank would not be here.
  const std::string gave_up =
      status.ok() ? absl::StrCat(" gave up its wait for them after ",
                                 absl::FormatDuration(absl::Milliseconds(ms & ~kOtherNodes)))
                  : ", which asks for them, waits still";
  return absl::DeadlineExceededError(
      absl::StrCat("ranks of other nodes did not come: ", status_.Name(leader), gave_up,
                   "; its error names their node"));
}

absl::Status HostBarrier::WhyBroken(const absl::Status& status, absl::Time deadline) const {
  if (status.ok() || Now() >= deadline) return status;
  const absl::Time until = std::min(deadline, Now() + kToldWithin);
  while (!status_.aborted() && Now() < until) absl::SleepFor(absl::Milliseconds(1));
  const absl::Status broken = status_.Broken();
  return broken.ok() ? status : broken;
}

absl::Status HostBarrier::Await(absl::Time deadline, const std::atomic<bool>& cancelled,
                                BarrierHelp* help, bool* slept) {
  uint32_t* const own_gave_up = own_word_ + wire::kWordsToGaveUp;
  FutexWord waits[kMaxFutexWords];
  absl::Time start = absl::InfiniteFuture();  // of the sleep
  for (int yields = 0;; ++yields) {
    Look(waits);
    if (missing_.empty()) return absl::OkStatus();
    if (yields < kYields) {
      sched_yield();
      continue;
    }

    // The page is read before the words are read again, because a rank that arrived and then died
    // or left counts as arrived.
    const uint32_t changes = status_.changes();
    absl::Status gone = status_.Broken();
    if (gone.ok()) gone = status_.Left(MissingRanks());
    size_t n_waits = Look(waits);
    if (missing_.empty()) return absl::OkStatus();
    if (!gone.ok()) {
      const std::string why = help == nullptr ? "" : help->WhyItCouldNotEnd();
      if (!why.empty()) return absl::InvalidArgumentError(why);
      std::string text(gone.message());
      std::vector<uint32_t> late;
      for (const uint32_t rank : MissingRanks()) {
        if (status_.state(rank) == wire::PageRankState::kReady) late.push_back(rank);
      }
      if (!late.empty()) absl::StrAppend(&text, "; missing besides: ", status_.Names(late));
      text += WhoGaveUp();
      return absl::Status(gone.code(), text);
    }
    if (cancelled.load(std::memory_order_acquire)) {
      return absl::FailedPreconditionError("this context has left the job");
    }
    const absl::Time now = Now();
    start = std::min(start, now);
    const absl::Duration left = deadline - now;
    if (left <= absl::ZeroDuration()) {
      const absl::Duration waited = now - start;
      std::string where = help == nullptr ? "" : help->WhereAre(epoch_, MissingRanks());
      if (!where.empty()) where = absl::StrCat("; ", where);
      const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
          "time is up after ", absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))),
          "; missing: ", status_.MissingNames(MissingRanks()), WhoGaveUp(), where));
      __atomic_store_n(own_gave_up, MillisecondsOf(waited), __ATOMIC_RELAXED);
      return status;
    }
    if (!*slept) {
      // Written for iris-ctl only before a sleep, so that fast barriers do not pay for it.
      *slept = true;
      __atomic_store_n(own_word_ + wire::kWordsToWaitsSince, PageNow(), __ATOMIC_RELAXED);
    }
    if (help != nullptr && now - start >= kAskAfter) {
      const std::string why = help->WhyItCannotEnd(epoch_, MissingRanks());
      if (!why.empty()) return absl::InvalidArgumentError(why);
    }
    waits[n_waits++] = {status_.changes_word(), changes};
    FutexWaitAny(absl::MakeConstSpan(waits, n_waits), std::min(left, kSleepMax));
  }
}

}  // namespace iris::internal
