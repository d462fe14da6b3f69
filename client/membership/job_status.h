// JobStatus: the status page of a job, and errors that name rank and pid. It reads shared memory
// only. The page has the states of this node's ranks; of the others it says which have left, and
// which one broke the job. Thread-safe. Borrows the page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/pages.h"

namespace iris::internal {

class JobStatus {
 public:
  JobStatus() = default;
  // The ranks of this node are `n_local` from `first_local` on.
  JobStatus(const wire::StatusPage* page, uint32_t first_local, uint32_t n_local)
      : page_(page), first_(first_local), n_local_(n_local) {}

  bool IsLocal(uint32_t rank) const { return rank - first_ < n_local_; }

  // Returns the word that irisd increments and wakes after every change. A load of it acquires
  // irisd's earlier writes.
  const uint32_t* changes_word() const { return &page_->changes; }
  uint32_t changes() const { return __atomic_load_n(&page_->changes, __ATOMIC_ACQUIRE); }

  // Return kUnspecified, or kLeft, and 0 for ranks of other nodes.
  wire::PageRankState state(uint32_t rank) const {
    if (!IsLocal(rank)) {
      const bool left =
          rank < wire::kMaxWorldRanks &&
          (__atomic_load_n(&page_->left_elsewhere[rank / 32], __ATOMIC_ACQUIRE) >> rank % 32 & 1) !=
              0;
      return left ? wire::PageRankState::kLeft : wire::PageRankState::kUnspecified;
    }
    return static_cast<wire::PageRankState>(
        __atomic_load_n(&page_->rank_state[rank - first_], __ATOMIC_ACQUIRE));
  }
  int64_t pid(uint32_t rank) const {
    return IsLocal(rank) ? __atomic_load_n(&page_->rank_pid[rank - first_], __ATOMIC_RELAXED) : 0;
  }
  bool aborted() const { return __atomic_load_n(&page_->abort, __ATOMIC_ACQUIRE) != 0; }
  // Returns the rank whose end broke the job, or nullopt while the job is not broken.
  std::optional<uint32_t> broken_by() const {
    const uint32_t one_more = __atomic_load_n(&page_->broken_by, __ATOMIC_RELAXED);
    if (one_more == 0 || one_more > wire::kMaxWorldRanks) return std::nullopt;
    return one_more - 1;
  }

  // Returns "rank 2 (pid 4711)", or "rank 9 (on another node)".
  std::string Name(uint32_t rank) const;
  // Returns "rank 1 (pid 4710), rank 3 (pid 4712)".
  std::string Names(absl::Span<const uint32_t> ranks) const;

  // Returns names of missing ranks: "rank 3 (pid 4712, stopped)" if a signal or a debugger has
  // stopped the process.
  std::string MissingNames(absl::Span<const uint32_t> ranks) const;

  // Returns OK, or kAborted once irisd has set the abort word. The message names only the rank that
  // broke the job: it died, or it hung up, that is, its session with irisd has ended, and its
  // process may still run.
  absl::Status Broken() const;

  // Returns kAborted if one of `ranks` has left.
  absl::Status Left(absl::Span<const uint32_t> ranks) const;

 private:
  // Returns true if the pids from irisd are valid in this process's /proc: its own pid is among
  // them.
  bool ProcReadable() const;

  const wire::StatusPage* page_ = nullptr;
  uint32_t first_ = 0;
  uint32_t n_local_ = 0;
};

}  // namespace iris::internal
