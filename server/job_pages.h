// The pages behind the host barrier of one job: irisd creates them, or adopts those of an earlier
// irisd, sends their descriptors, and writes the status page. proto/wire/pages.h has the layout and
// the rules.
//
// Not thread-safe: the daemon locks. PageFile objects are shared with queued descriptors and are
// immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/pages.h"
#include "proto/wire/unique_fd.h"
#include "server/job/job_machine.h"

namespace iris::server {

// One sealed memfd of a page. Its mode says what it is.
class PageFile {
 public:
  enum class Kind : uint32_t {
    kStatus = 0400,  // nobody opens it again to write into it
    kControl = 0600,
  };

  static absl::StatusOr<std::shared_ptr<const PageFile>> Create(Kind kind);
  // Of a descriptor that an earlier irisd kept of a page that it had created. kInvalidArgument: it
  // is not of such a page; it is then closed.
  static absl::StatusOr<std::shared_ptr<const PageFile>> Adopt(wire::UniqueFd fd);
  PageFile(wire::UniqueFd fd, Kind kind, uint64_t inode)
      : fd_(std::move(fd)), kind_(kind), inode_(inode) {}

  int fd() const { return fd_.get(); }
  Kind kind() const { return kind_; }
  uint64_t inode() const { return inode_; }
  // A descriptor of it that the caller owns. A read-only one cannot be mapped writable.
  absl::StatusOr<int> Open(bool read_only) const;
  // A copy of what is in it now, to which others may be writing meanwhile.
  absl::Status Copy(wire::ControlPage* page) const;

 private:
  const wire::UniqueFd fd_;
  const Kind kind_;
  const uint64_t inode_;
};

class JobPages {
 public:
  // kResourceExhausted: no descriptors or memory.
  static absl::StatusOr<std::unique_ptr<JobPages>> Create(JobId job, uint32_t n_ranks,
                                                          uint64_t epoch);

  // Of the pages that an earlier irisd created for this job: their descriptors, in any order. What
  // they hold stays as it is. On an error all are closed. kInvalidArgument: a page is missing, or
  // the status page is another job's, or of another epoch or number of ranks. kResourceExhausted:
  // no memory.
  static absl::StatusOr<std::unique_ptr<JobPages>> Adopt(JobId job, uint64_t epoch,
                                                         uint32_t n_ranks,
                                                         std::vector<wire::UniqueFd> all);
  ~JobPages();
  JobPages(const JobPages&) = delete;
  JobPages& operator=(const JobPages&) = delete;

  const std::shared_ptr<const PageFile>& status_page() const { return status_file_; }
  const std::shared_ptr<const PageFile>& control_page(Rank rank) const { return control_[rank]; }
  uint32_t n_ranks() const { return static_cast<uint32_t>(control_.size()); }
  // Of all pages; borrowed.
  std::vector<int> fds() const;

  // Publishes the rank's state (and the abort word), then increments `changes` and wakes everybody
  // who waits on it.
  void SetRankState(Rank rank, RankState state, int64_t pid, bool abort);

 private:
  JobPages() = default;
  absl::Status MapStatusPage();

  std::shared_ptr<const PageFile> status_file_;
  wire::StatusPage* status_ = nullptr;  // mapped by irisd alone for writing
  std::vector<std::shared_ptr<const PageFile>> control_;
};

}  // namespace iris::server
