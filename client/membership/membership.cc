#include "client/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/log.h"
#include "client/base/runtime_dir.h"
#include "client/membership/device_warmup.h"
#include "client/session/irisd_control_plane.h"
#include "proto/wire/limits.h"

namespace iris::internal {
namespace {

using wire::DescriptorKind;

// Memory is created after the last rank has joined: a Join may be answered so long after its own
// deadline.
constexpr absl::Duration kJoinSlack = absl::Minutes(2);
// An irisd that hangs is ended after 20 s by what manages it, and the next one answers.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);

// The job's devices, by irisd's number.
std::map<uint32_t, std::string> DevicesOf(const std::vector<Peer>& peers) {
  std::map<uint32_t, std::string> devices;
  for (const Peer& peer : peers) devices[peer.device_index] = peer.device_uuid;
  return devices;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Membership>> Membership::Join(HostContextOptions options) {
  const absl::Time start = Now();
  auto plane = IrisdControlPlane::Connect(
      {RuntimeDirs(options.runtime_dir), absl::FromChrono(options.connect_timeout)});
  // The message says all that a user needs; whose context it is would be noise in front of it.
  if (!plane.ok()) return plane.status();
  return Join(std::move(options), *std::move(plane), Now() - start);
}

absl::StatusOr<std::unique_ptr<Membership>> Membership::Join(HostContextOptions options,
                                                             std::unique_ptr<ControlPlane> plane,
                                                             absl::Duration connect_time) {
  std::unique_ptr<Membership> made(new Membership(std::move(options), std::move(plane)));
  made->timings_.connect = absl::ToChronoNanoseconds(connect_time);
  absl::Status joined = made->ChooseDevice();
  if (joined.ok()) joined = made->JoinJob();
  if (joined.ok()) joined = made->ReportMapped(made->MapAll());
  if (joined.ok()) return made;
  // irisd's own errors name the job already, and the rank where it matters.
  if (absl::StartsWith(joined.message(), "join job '")) return Annotate(joined, "create a context");
  return Annotate(
      joined,
      absl::StrCat("create a context (rank ", made->rank(), " of ", made->n_ranks(), ", job \"",
                   made->options_.job.substr(0, wire::kMaxJobNameBytes), "\")"));
}

Membership::~Membership() {
  plane_->StopWatching();
  if (window_ != nullptr) window_->UnmapAll(rank());
}

absl::Status Membership::ChooseDevice() {
  const absl::Time start = Now();
  const std::string& kernels = options_.kernels;
  if (!kernels.empty() && kernels != plane_->backend()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the kernels of this program are built for the backend '", kernels, "', but irisd's heaps ",
        "are memory of '", plane_->backend(), "'. Build the program for '", plane_->backend(),
        "' (link iris-device-", plane_->backend(), "), or start irisd with --backend ", kernels));
  }
  auto driver = ProcessDriver(plane_->backend());
  if (!driver.ok()) return driver.status();
  auto chosen = internal::ChooseDevice(**driver, options_.device_uuid, options_.local_rank);
  if (!chosen.ok()) return chosen.status();
  local_device_ = *std::move(chosen);
  options_.device_uuid = local_device_.uuid;
  for (const uint32_t index : local_device_.indices) {
    if (absl::Status status = (*driver)->MakeCurrent(index); !status.ok()) return status;
  }
  timings_.device = absl::ToChronoNanoseconds(Now() - start);
  return absl::OkStatus();
}

absl::Status Membership::JoinJob() {
  const absl::Time start = Now();
  auto joined =
      plane_->Join(options_, DeadlineIn(absl::FromChrono(options_.join_timeout)) + kJoinSlack);
  if (!joined.ok()) return joined.status();
  job_ = *std::move(joined);
  timings_.join = absl::ToChronoNanoseconds(Now() - start);
  timings_.create = absl::ToChronoNanoseconds(job_.create);
  timings_.export_fds = absl::ToChronoNanoseconds(job_.export_fds);
  std::map<std::string, uint32_t> ranks_of;
  for (const Peer& peer : job_.peers) {
    ranks_per_device_ = std::max(ranks_per_device_, ++ranks_of[peer.device_uuid]);
  }
  if (job_.peers.size() != n_ranks()) {
    return absl::InternalError("irisd answered the join without all peers");
  }
  return absl::OkStatus();
}

std::vector<DescriptorKey> Membership::KeysOfJoin() const {
  const auto key = [this](DescriptorKind kind, uint32_t r) {
    return DescriptorKey{kind, job_.job_id, job_.epoch, r, 0};
  };
  std::vector<DescriptorKey> keys = KeysOf(job_.job_id, job_.epoch, job_.segments);
  for (uint32_t r = 0; r < n_ranks(); ++r) keys.push_back(key(DescriptorKind::kControlPage, r));
  keys.push_back(key(DescriptorKind::kStatusPage, 0));
  if (job_.link_bytes > 0) {
    for (const auto& [index, uuid] : DevicesOf(job_.peers)) {
      keys.push_back(key(DescriptorKind::kLink, index));
    }
  }
  return keys;
}

absl::Status Membership::MapAll() {
  const absl::Time start = Now();
  if (n_ranks() > wire::kMaxRanks || job_.stride_bytes == 0 ||
      job_.stride_bytes > wire::kMaxWindowBytes / n_ranks()) {
    return absl::InternalError("irisd answered the join with a window beyond the protocol's limit");
  }
  auto acquired = Window::Acquire({{plane_->daemon_id(), job_.job_id, job_.epoch},
                                   job_.backend,
                                   n_ranks(),
                                   job_.stride_bytes,
                                   job_.proposed_base});
  if (!acquired.ok()) return acquired.status();
  window_ = *std::move(acquired);

  auto fds =
      plane_->TakeDescriptors(KeysOfJoin(), DeadlineIn(std::max(job_.map_timeout, kMapTimeMin)));
  if (!fds.ok()) return fds.status();
  const size_t first_link = job_.segments.size() + n_ranks() + 1;
  // First: what is mapped after them is mapped faster.
  KeepLinks(absl::MakeSpan(*fds).subspan(first_link));
  size_t next = 0;
  for (const Segment& segment : job_.segments) {
    absl::Status status = window_->MapSegment(rank(), segment, std::move((*fds)[next++]),
                                              local_device_.indices, &timings_);
    if (!status.ok()) return status;
  }
  for (uint32_t r = 0; r < n_ranks(); ++r) {
    absl::Status status =
        window_->MapControlPage(r, std::move((*fds)[next++]), /*writable=*/r == rank());
    if (!status.ok()) return status;
  }
  absl::Status status = window_->MapStatusPage(std::move((*fds)[next]));
  timings_.map = absl::ToChronoNanoseconds(Now() - start);
  return status;
}

void Membership::KeepLinks(absl::Span<wire::UniqueFd> fds) {
  if (fds.empty()) return;
  size_t next = 0;
  for (const auto& [index, uuid] : DevicesOf(job_.peers)) {
    wire::UniqueFd fd = std::move(fds[next++]);
    if (uuid == job_.device_uuid) continue;
    const absl::Status status = KeepLink(window_->shared_driver(), uuid, job_.link_bytes,
                                         std::move(fd), local_device_.indices);
    // A link makes mapping fast; without it mapping still works, or says itself why not.
    if (!status.ok()) log::Warning(status.message(), "; mapping heaps of that device is slow");
  }
}

absl::Status Membership::ReportMapped(const absl::Status& mapped) {
  const absl::Time start = Now();
  if (!mapped.ok()) {
    // So that the peers learn why; what irisd answers is this very error.
    (void)plane_->Mapped(job_.job_id, job_.epoch, mapped, start + kLeaveTimeout);
    return mapped;
  }
  // Before Mapped: once all have called it, the heap may grow, and descriptors of that may come at
  // once.
  plane_->DropDescriptors();
  auto committed = plane_->Mapped(job_.job_id, job_.epoch, window_->base(),
                                  DeadlineIn(job_.map_timeout) + kAnswerSlack);
  if (!committed.ok()) return committed.status();
  // An irisd that took over meanwhile has sent them again. Those of a growth stay.
  plane_->DropDescriptors(KeysOfJoin());
  committed_ = *std::move(committed);
  timings_.commit = absl::ToChronoNanoseconds(Now() - start);
  return absl::OkStatus();
}

void Membership::Watch(WatchHandler handler) {
  plane_->StartWatching({job_.job_id, job_.epoch, options_.job, rank()}, std::move(handler),
                        [r = rank(), n = n_ranks()] { log::SetRank(r, n); });
}

void Membership::OnRankChange(const RankChange& change) {
  const bool ending = change.state == wire::PageRankState::kEnding;
  const bool dead = change.state == wire::PageRankState::kDead;
  if (!ending && !dead && change.state != wire::PageRankState::kLeft) return;
  {
    absl::MutexLock lock(&mu_);
    RankChange& known = gone_[change.rank];
    if (known.state == change.state) return;  // a new watch stream repeats it
    known = change;
  }
  if (ending || dead) {
    const std::string what =
        absl::StrCat("rank ", change.rank, " (pid ", change.pid, ") ", dead ? "died" : "hung up");
    if (absl::StartsWith(change.reason, what)) {
      log::Warning(change.reason);  // irisd's own words
    } else {
      log::Warning(what, ": ", change.reason);
    }
  } else {
    log::Debug("rank ", change.rank, " (pid ", change.pid, ") left");
  }
}

absl::Status Membership::Leave() {
  {
    absl::MutexLock lock(&mu_);
    if (left_) return absl::OkStatus();
    left_ = true;
  }
  guard_.Close();
  plane_->StopWatching();
  // Unmapped before irisd is asked: it counts the memory as free from then on. The pages of
  // barriers stay until the end, for threads that are in one.
  window_->UnmapAll(rank());
  return Annotate(plane_->Leave(job_.job_id, Now() + kLeaveTimeout), "leave the job");
}

absl::Status Membership::Health() const {
  if (absl::Status status = guard_.Usable(); !status.ok()) return status;
  const JobStatus status = window_->status();
  absl::Status health = status.Broken();
  if (health.ok()) {
    std::vector<uint32_t> all(n_ranks());
    for (uint32_t r = 0; r < n_ranks(); ++r) all[r] = r;
    health = status.Left(all);
  }
  if (health.ok()) return health;
  const std::optional<uint32_t> culprit = status.broken_by();
  if (!culprit.has_value()) return health;
  absl::MutexLock lock(&mu_);
  const auto change = gone_.find(*culprit);
  // irisd's own words begin with the name, which is there already.
  if (change == gone_.end() || change->second.reason.empty() ||
      absl::StartsWith(change->second.reason, absl::StrCat("rank ", *culprit, " "))) {
    return health;
  }
  return absl::Status(health.code(),
                      absl::StrCat(health.message(), " (", change->second.reason, ")"));
}

}  // namespace iris::internal
