// JobStatus: the status page of a job, and errors that name rank and pid. It reads shared memory
// only. Thread-safe. Borrows the page.
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
  JobStatus(const wire::StatusPage* page, uint32_t n_ranks) : page_(page), n_ranks_(n_ranks) {}

  // Returns the word that irisd increments and wakes after every change. A load of it acquires
  // irisd's earlier writes.
  const uint32_t* changes_word() const { return &page_->changes; }
  uint32_t changes() const { return __atomic_load_n(&page_->changes, __ATOMIC_ACQUIRE); }

  wire::PageRankState state(uint32_t rank) const {
    return static_cast<wire::PageRankState>(
        __atomic_load_n(&page_->rank_state[rank], __ATOMIC_ACQUIRE));
  }
  int64_t pid(uint32_t rank) const {
    return __atomic_load_n(&page_->rank_pid[rank], __ATOMIC_RELAXED);
  }
  bool aborted() const { return __atomic_load_n(&page_->abort, __ATOMIC_ACQUIRE) != 0; }
  // Returns the rank whose end broke the job, or nullopt while the job is not broken.
  std::optional<uint32_t> broken_by() const {
    const uint32_t one_more = __atomic_load_n(&page_->broken_by, __ATOMIC_RELAXED);
    if (one_more == 0 || one_more > n_ranks_) return std::nullopt;
    return one_more - 1;
  }

  // Returns "rank 2 (pid 4711)".
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
  uint32_t n_ranks_ = 0;
};

}  // namespace iris::internal
