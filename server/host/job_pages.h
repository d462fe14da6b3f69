// The shared pages of one job (proto/wire/pages.h). irisd creates them, or adopts those of an
// earlier irisd, sends their descriptors, and writes the status page.
//
// Not thread-safe: the daemon locks. PageFile objects are shared with queued descriptors and are
// immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/pages.h"
#include "proto/wire/unique_fd.h"
#include "server/job/job_machine.h"

namespace iris::server {

// A page in a sealed memfd. The memfd's mode shows the kind of the page.
class PageFile {
 public:
  enum class Kind : uint32_t {
    kStatus = 0400,  // cannot be opened again for writing
    kControl = 0600,
  };

  static absl::StatusOr<std::shared_ptr<const PageFile>> Create(Kind kind);
  // Takes the descriptor of a page that an earlier irisd created. Returns kInvalidArgument, and
  // closes the descriptor, if it is no such page.
  static absl::StatusOr<std::shared_ptr<const PageFile>> Adopt(wire::UniqueFd fd);
  PageFile(wire::UniqueFd fd, Kind kind, uint64_t inode)
      : fd_(std::move(fd)), kind_(kind), inode_(inode) {}

  int fd() const { return fd_.get(); }
  Kind kind() const { return kind_; }
  uint64_t inode() const { return inode_; }
  // Returns a descriptor that the caller owns. A read-only one cannot be mapped writable.
  absl::StatusOr<int> Open(bool read_only) const;
  // Copies the page, which other processes may be writing.
  absl::Status Copy(wire::ControlPage* page) const;

 private:
  const wire::UniqueFd fd_;
  const Kind kind_;
  const uint64_t inode_;
};

// The memory by which a rank reaches other nodes (iris/port_types.h), and the eventfd that wakes
// the port process.
struct RankPort {
  wire::UniqueFd memory;
  wire::UniqueFd wake;

  static absl::StatusOr<std::shared_ptr<const RankPort>> Create(Rank rank);
};

class JobPages {
 public:
  // Returns kResourceExhausted if descriptors or memory ran out.
  static absl::StatusOr<std::unique_ptr<JobPages>> Create(const CreatePages& wanted);

  // Takes the descriptors of pages that an earlier irisd created for `of`, in any order; the memory
  // of ports is not among them. On an error all are closed. Returns kInvalidArgument if a page is
  // missing, or if the status page has another job, epoch or number of ranks. Returns
  // kResourceExhausted if there is no memory.
  static absl::StatusOr<std::unique_ptr<JobPages>> Adopt(const CreatePages& of,
                                                         std::vector<wire::UniqueFd> all);
  ~JobPages();
  JobPages(const JobPages&) = delete;
  JobPages& operator=(const JobPages&) = delete;

  const std::shared_ptr<const PageFile>& status_page() const { return status_file_; }
  // Of the ranks of this node, which are those from `first_rank` on.
  const std::shared_ptr<const PageFile>& control_page(Rank rank) const {
    return control_[rank - first_rank_];
  }
  // Returns null if the job has one node, or the pages are adopted.
  std::shared_ptr<const RankPort> port(Rank rank) const {
    return ports_.empty() ? nullptr : ports_[rank - first_rank_];
  }
  Rank first_rank() const { return first_rank_; }
  uint32_t n_ranks() const { return static_cast<uint32_t>(control_.size()); }
  std::vector<int> fds() const;  // of all pages; borrowed

  // Publishes the state of a rank (of another node, only whether it has left), and the abort word,
  // then increments `changes` and wakes the waiters.
  void SetRankState(Rank rank, RankState state, int64_t pid, bool abort);

 private:
  explicit JobPages(const CreatePages& of) : first_rank_(of.first_rank), spans_nodes_(of.ports) {}
  absl::Status MapStatusPage();

  std::shared_ptr<const PageFile> status_file_;
  wire::StatusPage* status_ = nullptr;  // only irisd maps it for writing
  std::vector<std::shared_ptr<const PageFile>> control_;
  std::vector<std::shared_ptr<const RankPort>> ports_;
  const Rank first_rank_;
  const bool spans_nodes_;
};

}  // namespace iris::server
