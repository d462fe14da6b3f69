#include "server/host/job_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "iris/port_types.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

constexpr int kPageSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kWriteSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

}  // namespace

absl::StatusOr<std::shared_ptr<const PageFile>> PageFile::Create(Kind kind) {
  const char* const name = kind == Kind::kStatus ? "iris-status" : "iris-control";
  wire::UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return wire::ErrnoStatus(errno, "create a shared page");
  struct stat info = {};
  // A new memfd has mode 0777, with which another uid could reopen a read-only descriptor writable.
  if (fchmod(fd.get(), static_cast<mode_t>(kind)) != 0 ||
      ftruncate(fd.get(), wire::kPageBytes) != 0 ||
      fallocate(fd.get(), 0, 0, wire::kPageBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kPageSeals) != 0 || fstat(fd.get(), &info) != 0) {
    return wire::ErrnoStatus(errno, "size and seal a shared page");
  }
  return std::make_shared<const PageFile>(std::move(fd), kind, info.st_ino);
}

absl::StatusOr<std::shared_ptr<const PageFile>> PageFile::Adopt(wire::UniqueFd fd) {
  const auto refuse = [&fd](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("adopt descriptor ", fd.get(), ": ", why));
  };
  struct stat info = {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return refuse("it is not open");
  const int seals = S_ISREG(info.st_mode) ? fcntl(fd.get(), F_GET_SEALS) : -1;
  if (seals < 0) return refuse("it is not a memfd");
  if ((seals & kPageSeals) != kPageSeals || (seals & kWriteSeals) != 0) {
    return refuse("its seals are not those of a shared page");
  }
  if (info.st_size != static_cast<off_t>(wire::kPageBytes)) {
    return refuse(
        absl::StrCat("it has ", info.st_size, " bytes, and a shared page has ", wire::kPageBytes));
  }
  const Kind kind = static_cast<Kind>(info.st_mode & 07777);
  if (info.st_uid != geteuid() || (kind != Kind::kStatus && kind != Kind::kControl)) {
    return refuse("it is another user's, or not of mode 0400 or 0600");
  }
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
    return refuse("it is not open for reading and writing");
  }
  if (fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return wire::ErrnoStatus(errno, "adopt a shared page");
  }
  return std::make_shared<const PageFile>(std::move(fd), kind, info.st_ino);
}

absl::StatusOr<int> PageFile::Open(bool read_only) const {
  int fd;
  if (read_only) {
    // A duplicate would share the read-write mode of the file.
    fd = open(absl::StrCat("/proc/self/fd/", fd_.get()).c_str(), O_RDONLY | O_CLOEXEC);
  } else {
    fd = fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3);
  }
  if (fd < 0) return wire::ErrnoStatus(errno, "duplicate the descriptor of a shared page");
  return fd;
}

absl::Status PageFile::Copy(wire::ControlPage* page) const {
  const ssize_t n = pread(fd_.get(), page, sizeof(*page), 0);
  if (n == static_cast<ssize_t>(sizeof(*page))) return absl::OkStatus();
  return wire::ErrnoStatus(n < 0 ? errno : EIO, "read a shared page");
}

absl::StatusOr<std::shared_ptr<const RankPort>> RankPort::Create(Rank rank) {
  auto port = std::make_shared<RankPort>();
  port->wake = wire::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  port->memory = wire::UniqueFd(memfd_create("iris-port", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // The header of the memory; all else is zero.
  const uint32_t head[] = {kPortMagic, kPortVersion, rank};
  static_assert(offsetof(PortMemory, magic) == 0 && offsetof(PortMemory, version) == 4 &&
                offsetof(PortMemory, rank) == 8);
  const int memory = port->memory.get();
  if (!port->wake.valid() || memory < 0 || fchmod(memory, 0600) != 0 ||
      ftruncate(memory, sizeof(PortMemory)) != 0 || fcntl(memory, F_ADD_SEALS, kPageSeals) != 0 ||
      pwrite(memory, head, sizeof(head), 0) != static_cast<ssize_t>(sizeof(head))) {
    return wire::ErrnoStatus(errno, "make the memory of a rank's port");
  }
  return port;
}

absl::StatusOr<std::unique_ptr<JobPages>> JobPages::Create(const CreatePages& wanted) {
  const auto& [job, first_rank, n_ranks, epoch, with_ports] = wanted;
  std::unique_ptr<JobPages> pages(new JobPages(wanted));
  absl::StatusOr<std::shared_ptr<const PageFile>> status_file =
      PageFile::Create(PageFile::Kind::kStatus);
  if (!status_file.ok()) return status_file.status();
  pages->status_file_ = *std::move(status_file);
  if (absl::Status mapped = pages->MapStatusPage(); !mapped.ok()) return mapped;
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    absl::StatusOr<std::shared_ptr<const PageFile>> file =
        PageFile::Create(PageFile::Kind::kControl);
    if (!file.ok()) return file.status();
    pages->status_->control_inode[rank] = (*file)->inode();
    pages->control_.push_back(*std::move(file));
    if (!with_ports) continue;
    absl::StatusOr<std::shared_ptr<const RankPort>> port = RankPort::Create(first_rank + rank);
    if (!port.ok()) return port.status();
    pages->ports_.push_back(*std::move(port));
  }
  pages->status_->n_ranks = n_ranks;
  pages->status_->job_id = job.value;
  pages->status_->epoch = epoch;
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    pages->status_->rank_state[rank] = static_cast<uint32_t>(wire::PageRankState::kAbsent);
  }
  return pages;
}

absl::StatusOr<std::unique_ptr<JobPages>> JobPages::Adopt(const CreatePages& of,
                                                          std::vector<wire::UniqueFd> all) {
  const auto& [job, first_rank, n_ranks, epoch, with_ports] = of;
  std::unique_ptr<JobPages> pages(new JobPages(of));
  std::map<uint64_t, std::shared_ptr<const PageFile>> control;  // by inode
  std::string refused;
  for (wire::UniqueFd& fd : all) {
    absl::StatusOr<std::shared_ptr<const PageFile>> file = PageFile::Adopt(std::move(fd));
    if (!file.ok()) {
      if (!absl::IsInvalidArgument(file.status())) return file.status();
      refused = absl::StrCat("; ", file.status().message());
    } else if ((*file)->kind() == PageFile::Kind::kStatus) {
      pages->status_file_ = *std::move(file);
    } else {
      const uint64_t inode = (*file)->inode();
      control[inode] = *std::move(file);
    }
  }
  const auto missing = [&of, &refused](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", what, " of job ", of.job.value, " is missing", refused));
  };
  if (pages->status_file_ == nullptr) return missing("status page");
  if (absl::Status mapped = pages->MapStatusPage(); !mapped.ok()) return mapped;
  const wire::StatusPage& page = *pages->status_;
  if (page.job_id != job.value || page.epoch != epoch || page.n_ranks != n_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("status page of job ", job.value, ": it is of job ", page.job_id, " in epoch ",
                     page.epoch, " with ", page.n_ranks, " ranks, and expected are epoch ", epoch,
                     " and ", n_ranks, " ranks"));
  }
  for (uint32_t i = 0; i < n_ranks; ++i) {
    const auto found = control.find(page.control_inode[i]);
    if (found == control.end()) {
      return missing(absl::StrCat("control page of rank ", first_rank + i));
    }
    pages->control_.push_back(std::move(found->second));
    control.erase(found);
  }
  return pages;
}

std::vector<int> JobPages::fds() const {
  std::vector<int> all = {status_file_->fd()};
  for (const auto& file : control_) all.push_back(file->fd());
  return all;
}

absl::Status JobPages::MapStatusPage() {
  void* const mapped =
      mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, status_file_->fd(), 0);
  if (mapped == MAP_FAILED) return wire::ErrnoStatus(errno, "map a status page");
  status_ = static_cast<wire::StatusPage*>(mapped);
  return absl::OkStatus();
}

JobPages::~JobPages() {
  if (status_ != nullptr) munmap(status_, wire::kPageBytes);
}

#define IRIS_SAME_STATE(state)                                         \
  static_assert(static_cast<uint32_t>(RankState::state) ==             \
                    static_cast<uint32_t>(wire::PageRankState::state), \
                "the machine and the status page number their states differently")
IRIS_SAME_STATE(kAbsent);
IRIS_SAME_STATE(kJoined);
IRIS_SAME_STATE(kMapped);
IRIS_SAME_STATE(kReady);
IRIS_SAME_STATE(kEnding);
IRIS_SAME_STATE(kDead);
IRIS_SAME_STATE(kLeft);
#undef IRIS_SAME_STATE

void JobPages::SetRankState(Rank rank, RankState state, int64_t pid, bool abort) {
  const Rank local = rank - first_rank_;
  if (local >= n_ranks() && !spans_nodes_) return;
  if (local < n_ranks()) {
    __atomic_store_n(&status_->rank_pid[local], pid, __ATOMIC_RELAXED);
    // Release: a reader that sees the state also sees the pid.
    __atomic_store_n(&status_->rank_state[local], static_cast<uint32_t>(state), __ATOMIC_RELEASE);
  } else {
    uint32_t* const word = &status_->left_elsewhere[rank / 32];
    const uint32_t bit = 1u << rank % 32;
    if (state == RankState::kLeft) {
      __atomic_fetch_or(word, bit, __ATOMIC_RELEASE);
    } else {
      __atomic_fetch_and(word, ~bit, __ATOMIC_RELEASE);
    }
  }
  if (abort) {
    if (status_->broken_by == 0) __atomic_store_n(&status_->broken_by, rank + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&status_->abort, 1u, __ATOMIC_RELEASE);
  }
  // Release: pairs with a waiter's acquire load of `changes`, which then sees every word above.
  __atomic_fetch_add(&status_->changes, 1u, __ATOMIC_RELEASE);
  syscall(SYS_futex, &status_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace iris::server
