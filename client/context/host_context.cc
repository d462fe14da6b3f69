#include "client/context/host_context.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/log.h"
#include "client/base/runtime_dir.h"
#include "client/membership/device_warmup.h"
#include "client/session/irisd_control_plane.h"
#include "device/base/bytes.h"
#include "device/driver/open.h"
#include "proto/wire/limits.h"

namespace iris::internal {
namespace {

using wire::DescriptorKind;

// The time that irisd may take to answer a Join after its deadline, because memory is created after
// the last rank has joined.
constexpr absl::Duration kJoinSlack = absl::Minutes(2);
// The service manager ends an irisd that hangs after 20 s, and the next one answers.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);

std::map<uint32_t, std::string> DevicesOf(const std::vector<Peer>& peers) {
  std::map<uint32_t, std::string> devices;
  for (const Peer& peer : peers) devices[peer.device_index] = peer.device_uuid;
  return devices;
}

}  // namespace

std::string RangeText(const void* at, uint64_t bytes) {
  return absl::StrCat(base::SizeText(bytes), " at 0x", absl::Hex(reinterpret_cast<uint64_t>(at)));
}

// Kernels write what irisd reads, and neither includes the header of the other.
static_assert(sizeof(WaitNote) == sizeof(wire::KernelWait) &&
              offsetof(WaitNote, state) == offsetof(wire::KernelWait, state) &&
              offsetof(WaitNote, from) == offsetof(wire::KernelWait, from) &&
              offsetof(WaitNote, block) == offsetof(wire::KernelWait, block) &&
              offsetof(WaitNote, waited_ms) == offsetof(wire::KernelWait, waited_ms) &&
              offsetof(WaitNote, wanted) == offsetof(wire::KernelWait, wanted) &&
              offsetof(WaitNote, seen) == offsetof(wire::KernelWait, seen));
static_assert(kWaitNotes == wire::kKernelWaitSlots && WaitNote::kNoted == wire::kKernelWaitNoted);

absl::StatusOr<HostContext::Owned> HostContext::Create(const HostContextOptions& options) {
  if (absl::Status status = ContextGuard::ClaimProcess(); !status.ok()) {
    return Annotate(status, "create a context");
  }
  auto resolved = ResolveOptions(options);
  if (!resolved.ok()) return Annotate(resolved.status(), "create a context");
  log::SetRank(static_cast<uint32_t>(resolved->rank), static_cast<uint32_t>(resolved->n_ranks));
  const absl::Time start = Now();
  auto plane = IrisdControlPlane::Connect(
      {RuntimeDirs(resolved->runtime_dir), absl::FromChrono(resolved->connect_timeout)});
  // The message says all that a user needs; whose context it is would be noise in front of it.
  if (!plane.ok()) return plane.status();
  return Create(*std::move(resolved), *std::move(plane), Now() - start);
}

absl::StatusOr<HostContext::Owned> HostContext::Create(HostContextOptions options,
                                                       std::unique_ptr<ControlPlane> plane,
                                                       absl::Duration connect_time) {
  Owned context(new HostContext(std::move(options), std::move(plane)));
  context->timings_.connect = absl::ToChronoNanoseconds(connect_time);
  absl::Status joined = context->ChooseDevice();
  if (joined.ok()) joined = context->JoinJob();
  if (joined.ok()) joined = context->ReportMapped(context->MapAll());
  if (!joined.ok()) {
    // irisd's own errors name the job already, and the rank where it matters.
    if (absl::StartsWith(joined.message(), "join job '")) {
      return Annotate(joined, "create a context");
    }
    return Annotate(
        joined,
        absl::StrCat("create a context (rank ", context->rank(), " of ", context->n_ranks(),
                     ", job \"", context->options_.job.substr(0, wire::kMaxJobNameBytes), "\")"));
  }
  context->Begin();
  if (absl::Status status = context->MakeTrace(); !status.ok()) {
    return Annotate(status, "create a context");
  }
  return context;
}

HostContext::~HostContext() {
  plane_->StopWatching();
  if (window_ != nullptr) window_->UnmapAll(rank());
}

absl::Status HostContext::ChooseDevice() {
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

absl::Status HostContext::JoinJob() {
  const absl::Time start = Now();
  const absl::Duration timeout = absl::FromChrono(options_.join_timeout);
  absl::Status met;
  if (options_.asks_pmix) {
    auto meeting = base::MeetByPmix(
        base::OpenPmix(), {options_.rank, options_.n_ranks, options_.local_rank, options_.n_local},
        timeout);
    met = meeting.status();
    if (meeting.ok()) options_.by_launcher = *std::move(meeting);
  }
  auto joined = plane_->Join(options_, DeadlineIn(timeout) + kJoinSlack);
  if (!joined.ok()) {
    // irisd may have needed no answer, and else says what to set.
    return met.ok() ? joined.status()
                    : absl::Status(joined.status().code(),
                                   absl::StrCat(joined.status().message(), "; ", met.message()));
  }
  job_ = *std::move(joined);
  timings_.join = absl::ToChronoNanoseconds(Now() - start);
  timings_.create = absl::ToChronoNanoseconds(job_.create);
  timings_.export_fds = absl::ToChronoNanoseconds(job_.export_fds);
  std::map<std::string, uint32_t> ranks_of;
  for (const Peer& peer : job_.peers) {
    ranks_per_device_ = std::max(ranks_per_device_, ++ranks_of[peer.device_uuid]);
  }
  // All ranks use the same number, which their collectives depend on.
  for (const Node& node : job_.nodes) {
    ranks_per_device_ = std::max(ranks_per_device_, std::min(node.ranks_per_device, node.n_ranks));
  }
  return CheckJoined();
}

absl::Status HostContext::CheckJoined() {
  first_mapped_ = first_local();
  n_mapped_ = n_local();
  if (!options_.spans_nodes()) {
    if (n_local() == n_ranks() && !spans_nodes() && first_local() == 0) return absl::OkStatus();
    return absl::InternalError("irisd answered the join without all peers");
  }
  if (!spans_nodes()) {
    return absl::FailedPreconditionError(
        "this irisd knows jobs of one node alone: start a newer one on every node");
  }
  uint32_t next = 0, here = 0, mapped_from = 0;
  for (const Node& node : job_.nodes) {
    if (!node.with_previous) mapped_from = node.first_rank;
    if (node.first_rank != next || node.n_ranks == 0 || node.n_ranks > n_ranks() - next) {
      return absl::InternalError("irisd answered the join with nodes that do not have all ranks");
    }
    next += node.n_ranks;
    if (node.first_rank == first_local()) {
      here = node.n_ranks;
      first_mapped_ = mapped_from;
    }
    if (mapped_from == first_mapped_) n_mapped_ = next - mapped_from;
  }
  if (next != n_ranks() || here != n_local() || !IsLocal(rank()) || here == 0) {
    return absl::InternalError("irisd answered the join with nodes that do not have all ranks");
  }
  return absl::OkStatus();
}

std::vector<DescriptorKey> HostContext::KeysOfJoin() const {
  const auto key = [this](DescriptorKind kind, uint32_t r) {
    return DescriptorKey{kind, job_.job_id, job_.epoch, r, 0};
  };
  std::vector<DescriptorKey> keys = KeysOf(job_.job_id, job_.epoch, job_.segments);
  for (uint32_t i = 0; i < n_local(); ++i) {
    keys.push_back(key(DescriptorKind::kControlPage, first_local() + i));
  }
  keys.push_back(key(DescriptorKind::kStatusPage, 0));
  if (spans_nodes()) {
    keys.push_back(key(DescriptorKind::kPortMemory, 0));
    keys.push_back(key(DescriptorKind::kPortWake, 0));
  }
  if (job_.link_bytes > 0) {
    for (const auto& [index, uuid] : DevicesOf(job_.peers)) {
      keys.push_back(key(DescriptorKind::kLink, index));
    }
  }
  return keys;
}

absl::Status HostContext::MapAll() {
  const absl::Time start = Now();
  if (n_mapped() > wire::kMaxRanks || job_.stride_bytes == 0 ||
      job_.stride_bytes > wire::kMaxWindowBytes / n_mapped()) {
    return absl::InternalError("irisd answered the join with a window beyond the protocol's limit");
  }
  auto acquired = Window::Acquire({{plane_->daemon_id(), job_.job_id, job_.epoch},
                                   job_.backend,
                                   n_mapped(),
                                   job_.stride_bytes,
                                   job_.proposed_base,
                                   first_mapped(),
                                   first_local(),
                                   n_local()});
  if (!acquired.ok()) return acquired.status();
  window_ = *std::move(acquired);

  auto fds =
      plane_->TakeDescriptors(KeysOfJoin(), DeadlineIn(std::max(job_.map_timeout, kMapTimeMin)));
  if (!fds.ok()) return fds.status();
  const size_t first_port = job_.segments.size() + n_local() + 1;
  const size_t first_link = first_port + (spans_nodes() ? 2 : 0);
  // Links come first, because they make later mappings faster.
  KeepLinks(absl::MakeSpan(*fds).subspan(first_link));
  size_t next = 0;
  for (const Segment& segment : job_.segments) {
    absl::Status status = window_->MapSegment(rank(), segment, std::move((*fds)[next++]),
                                              local_device_.indices, &timings_);
    if (!status.ok()) return status;
  }
  for (uint32_t r = first_local(); r < first_local() + n_local(); ++r) {
    absl::Status status =
        window_->MapControlPage(r, std::move((*fds)[next++]), /*writable=*/r == rank());
    if (!status.ok()) return status;
  }
  absl::Status status = window_->MapStatusPage(std::move((*fds)[next]));
  if (status.ok() && spans_nodes()) {
    const auto over = [this]() -> absl::Status {
      if (absl::Status usable = guard_.Usable(); !usable.ok()) return usable;
      return window_->status().Broken();
    };
    auto port = HostPort::Map({rank(), window_->address(rank(), 0), stride_bytes(),
                               absl::FromChrono(options_.timeout), over},
                              &window_->driver(), std::move((*fds)[first_port]),
                              std::move((*fds)[first_port + 1]));
    status = port.status();
    if (port.ok()) port_ = *std::move(port);
  }
  timings_.map = absl::ToChronoNanoseconds(Now() - start);
  return status;
}

void HostContext::KeepLinks(absl::Span<wire::UniqueFd> fds) {
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

absl::Status HostContext::ReportMapped(const absl::Status& mapped) {
  const absl::Time start = Now();
  if (!mapped.ok()) {
    // Reports the reason to the peers; irisd's answer is the same error.
    (void)plane_->Mapped(job_.job_id, job_.epoch, mapped, start + kLeaveTimeout);
    return mapped;
  }
  // Before Mapped, because once all ranks have called it, the heap may grow, and descriptors of the
  // growth may arrive at once.
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

void HostContext::Begin() {
  const std::vector<uint32_t>& devices = local_device_.indices;
  heap_.AtLeast(job_.heap_bytes);
  teams_.emplace(TeamCalls::Options{job_.job_id, rank(), absl::FromChrono(options_.timeout),
                                    options_.job, devices, job_.nodes, job_.epoch == 1},
                 &guard_, plane_.get(), window_.get(), &heap_, port_.get());
  growth_.emplace(Growth::Options{job_.job_id, job_.epoch, rank(), devices}, plane_.get(),
                  window_.get(), &heap_);
  if (port_ != nullptr) {
    port_->CountKernelsAt(committed_.world.sync_offset_bytes +
                          offsetof(SyncArea::Slot, port_posted));
  }
  world_ = teams_->AddTeam(committed_.world);
  plane_->StartWatching(
      {job_.job_id, job_.epoch, options_.job, rank()},
      [this](const WatchEvent& event) { OnEvent(event); },
      [r = rank(), n = n_ranks()] { log::SetRank(r, n); });
  log::Info("joined job \"", options_.job, "\" as rank ", rank(), " of ", n_ranks(), " on device ",
            job_.device_uuid, ", epoch ", job_.epoch,
            ", same_address=", committed_.same_address ? "true" : "false");
  WarnOfSharedDevice();
}

void HostContext::WarnOfSharedDevice() const {
  const std::vector<Peer>& peers = job_.peers;
  // The first rank of a device says it, where another process has one there.
  const auto on_device = [this](const Peer& peer) { return peer.device_uuid == job_.device_uuid; };
  const auto first = std::find_if(peers.begin(), peers.end(), on_device);
  if (first - peers.begin() != rank() - first_local()) return;
  const bool shared = std::any_of(first, peers.end(), [&](const Peer& peer) {
    return on_device(peer) && peer.pid != first->pid;
  });
  if (!shared) return;
  const std::string warning = driver::ProcessesTakeTurns(backend(), &std::getenv);
  if (!warning.empty()) log::Warning(warning);
}

absl::Status HostContext::MakeTrace() {
  if (options_.trace_events == 0) return absl::OkStatus();
  AllocateOptions wanted;
  wanted.bytes = TraceAreaBytes(options_.trace_events);
  wanted.alignment_bytes = 4096;
  wanted.name = TraceRecorder::kName;
  // Other ranks may return from the join later, so this wait also has the join's timeout.
  const auto area = teams_->Allocate(wanted, world_, absl::FromChrono(options_.join_timeout));
  if (absl::IsResourceExhausted(area.status()) && options_.trace_file.empty()) {
    log::Info("no room for a trace: ", area.status().message());
    return absl::OkStatus();  // the same on all ranks
  }
  if (!area.ok()) {
    return Annotate(area.status(),
                    "make room for the trace (IRIS_TRACE_EVENTS must be the same on all ranks)");
  }
  TraceRecorder::Options trace;
  trace.job = options_.job;
  trace.rank = rank();
  trace.backend = backend();
  trace.devices = local_device_.indices;
  trace.address = reinterpret_cast<uint64_t>(area->address);
  trace.bytes = wanted.bytes;
  trace.file = options_.trace_file;
  auto made = TraceRecorder::Make(std::move(trace), &guard_, &window_->driver());
  if (!made.ok()) return made.status();
  trace_ = *std::move(made);
  teams_->TraceBy(trace_.get());
  return absl::OkStatus();
}

void HostContext::Ender::operator()(HostContext* context) const {
  if (!context->OwnProcess()) {
    // A forked child has neither the threads nor the windows, and the sockets are the parent's.
    // The context stays reachable for leak checkers.
    static std::vector<HostContext*>* const kept = new std::vector<HostContext*>();
    kept->push_back(context);
    return;
  }
  if (context->teams_.has_value()) {  // it has joined
    context->CloseTrace();
    const absl::Status status = context->LeaveOnce();
    if (!status.ok()) log::Info("leave job \"", context->options_.job, "\": ", status.message());
  }
  delete context;
}

absl::Status HostContext::Leave() {
  if (absl::Status status = Usable(); !status.ok()) return status;
  CloseTrace();
  return LeaveOnce();
}

absl::Status HostContext::LeaveOnce() {
  {
    absl::MutexLock lock(&mu_);
    if (left_) return absl::OkStatus();
    left_ = true;
  }
  // What has been asked of other nodes goes out before the port ends.
  const absl::Time deadline = Now() + kLeaveTimeout;
  const absl::Status sent = port_ == nullptr ? absl::OkStatus() : port_->Settle(deadline);
  guard_.Close();
  plane_->StopWatching();
  // Unmapped before irisd is asked: it counts the memory as free from then on. The pages of
  // barriers stay until the end, for threads that are in one.
  window_->UnmapAll(rank());
  absl::Status left = plane_->Leave(job_.job_id, Now() + kLeaveTimeout);
  if (left.ok() && absl::IsDeadlineExceeded(sent)) left = sent;
  return Annotate(left, "leave the job");
}

void HostContext::CloseTrace() {
  if (trace_ == nullptr) return;
  const absl::Status status = trace_->Close();
  if (!status.ok()) log::Warning(status.message());
}

void HostContext::OnEvent(const WatchEvent& event) {
  if (const auto* change = std::get_if<RankChange>(&event)) OnRankChange(*change);
  if (const auto* added = std::get_if<SegmentsAdded>(&event)) growth_->OnSegmentsAdded(*added);
  if (const auto* done = std::get_if<GrowDone>(&event)) growth_->OnGrowDone(*done);
  if (const auto* stopping = std::get_if<Stopping>(&event)) {
    log::Info("irisd is stopping: ", stopping->reason);
  }
}

void HostContext::OnRankChange(const RankChange& change) {
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
    if (absl::StartsWith(change.reason, absl::StrCat("rank ", change.rank, " "))) {
      log::Warning(change.reason);  // irisd's own words, with the pid or the node
    } else {
      log::Warning("rank ", change.rank, " (pid ", change.pid, ") ", dead ? "died" : "hung up",
                   ": ", change.reason);
    }
  } else {
    log::Debug("rank ", change.rank, " (pid ", change.pid, ") left");
  }
}

absl::Status HostContext::Health() const {
  if (absl::Status status = guard_.Usable(); !status.ok()) return status;
  const JobStatus status = window_->status();
  absl::Status health = status.Broken();
  if (health.ok()) {
    std::vector<uint32_t> all(n_ranks());
    std::iota(all.begin(), all.end(), 0);
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

DeviceContext HostContext::device_context() const {
  DeviceContext context;
  context.size_bytes = sizeof(context);
  context.rank = rank();
  context.n_ranks = n_ranks();
  context.base = window_->base();
  context.stride_bytes = stride_bytes();
  context.timeout_ns = static_cast<uint64_t>(
      absl::ToInt64Nanoseconds(std::min(absl::FromChrono(options_.timeout), kTimeoutMax)));
  context.abort_word = window_->abort_word();
  context.world = world().device;
  context.heap_map = teams_->heap_map();
  if (trace_ != nullptr) context.trace = trace_->area();
  context.wait_notes = reinterpret_cast<WaitNote*>(window_->kernel_waits(rank()));
  if (port_ != nullptr) {
    context.first_mapped = first_mapped();
    context.n_mapped = n_mapped();
    context.port = port_->device();
  }
  return context;
}

std::optional<HostContext::Location> HostContext::Find(const void* address) const {
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  const uint64_t base = window_->address(first_mapped(), 0);
  const uint64_t stride = stride_bytes();
  if (at < base || (at - base) / stride >= n_mapped()) return std::nullopt;
  return Location{first_mapped() + static_cast<uint32_t>((at - base) / stride),
                  (at - base) % stride};
}

absl::StatusOr<HostContext::Location> HostContext::Locate(const void* address) const {
  if (const std::optional<Location> found = Find(address); found.has_value()) return *found;
  const uint64_t base = window_->address(first_mapped(), 0);
  return absl::InvalidArgumentError(
      absl::StrCat("locate address 0x", absl::Hex(reinterpret_cast<uint64_t>(address)),
                   ": it is outside the window [0x", absl::Hex(base), ", 0x",
                   absl::Hex(base + n_mapped() * stride_bytes()), ")"));
}

bool HostContext::IsSymmetric(const void* address, uint64_t bytes) const {
  const auto location = Find(address);
  return location.has_value() &&
         (InHeap(location->offset_bytes, bytes) ||
          teams_->HaveTogether({location->rank}, location->offset_bytes, bytes));
}

absl::Status HostContext::CheckShared(const char* role, const void* mine,
                                      absl::Span<const uint32_t> ranks) const {
  const uint64_t offset = reinterpret_cast<uint64_t>(mine) - window_->address(rank(), 0);
  // Nearly always the address is in the heap itself, or outside of all memory of the rank.
  if (offset >= stride_bytes() || offset < heap_bytes()) return absl::OkStatus();
  if (teams_->HaveTogether(ranks, offset, 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", role, "` is at offset ", offset, " above the heap of ", base::SizeText(heap_bytes()),
      ", where the ranks ", absl::StrJoin(ranks, ","),
      " have registered nothing together: register it with all of them, or give the address of the "
      "memory itself"));
}

bool HostContext::IsMapped(const void* address, uint64_t bytes) const {
  const auto location = Find(address);
  return location.has_value() && Has(location->rank, location->offset_bytes, bytes);
}

absl::StatusOr<Team> HostContext::LocalTeam() {
  if (absl::Status status = Usable(); !status.ok()) return status;
  if (!spans_nodes()) return world_;
  absl::MutexLock lock(&teams_mu_);
  if (!local_team_.has_value()) {
    // The color is the node's first rank, the key the place there.
    auto made = teams_->SplitTeam(static_cast<int32_t>(first_local()),
                                  static_cast<int32_t>(rank() - first_local()), world_);
    if (!made.ok()) return Annotate(made.status(), "make the team of this node's ranks");
    local_team_ = *std::move(made);
  }
  return *local_team_;
}

absl::StatusOr<Team> HostContext::RailTeam() {
  if (absl::Status status = Usable(); !status.ok()) return status;
  absl::MutexLock lock(&teams_mu_);
  if (!rail_team_.has_value()) {
    auto made = teams_->SplitTeam(static_cast<int32_t>(rank() - first_local()),
                                  static_cast<int32_t>(first_local()), world_);
    if (!made.ok()) return Annotate(made.status(), "make the team of a rank on each node");
    rail_team_ = *std::move(made);
  }
  return *rail_team_;
}

std::optional<std::string> HostContext::RefusalOfPeerSide(absl::string_view name, uint32_t peer,
                                                          const void* mine, uint64_t bytes) const {
  const auto place = Find(mine);
  if (!place.has_value()) {
    return absl::StrCat(
        name, " (", RangeText(mine, bytes),
        ") is not in this rank's heap: give the address of this rank's own copy. Peers reach "
        "nothing but heaps: allocate the memory with iris_allocate() or iris_allocate_local(), "
        "register it, so that they can open it, or copy it there");
  }
  if (place->rank != rank()) {
    return absl::StrCat(name, " (", RangeText(mine, bytes), ") is in the heap of rank ",
                        place->rank,
                        ": give the address of this rank's own copy (of what was opened, the "
                        "symmetric one), and the peer as the rank");
  }
  if (!Has(peer, place->offset_bytes, bytes)) {
    return absl::StrCat(name, " (", RangeText(mine, bytes), ", offset ", place->offset_bytes,
                        ") ends beyond the heap, which has ", base::SizeText(heap_bytes()),
                        ", and is not of memory that rank ", peer,
                        " has registered and this rank has open");
  }
  return RefusalOfTeams(name, {peer, place->offset_bytes}, bytes);
}

std::optional<std::string> HostContext::RefusalOfOwnSide(absl::string_view name, const void* at,
                                                         uint64_t bytes) const {
  if (at == nullptr) return absl::StrCat(name, " is null");
  const auto place = Find(at);
  if (!place.has_value()) return std::nullopt;
  if (!Has(place->rank, place->offset_bytes, bytes)) {
    return absl::StrCat(name, " (", RangeText(at, bytes),
                        ") ends beyond the heap that it lies in, which has ",
                        base::SizeText(heap_bytes()));
  }
  return RefusalOfTeams(name, *place, bytes);
}

std::optional<std::string> HostContext::RefusalOfTeams(absl::string_view name,
                                                       const Location& place,
                                                       uint64_t bytes) const {
  const auto refusal = teams_->Refusal(place.rank, place.offset_bytes, bytes);
  if (!refusal.has_value()) return std::nullopt;
  return absl::StrCat(name, ": ", *refusal);
}

}  // namespace iris::internal
