#include "client/iris/context.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/clock.h"
#include "client/internal/control_plane.h"
#include "client/internal/host_barrier.h"
#include "client/internal/links.h"
#include "client/internal/local_devices.h"
#include "client/internal/options.h"
#include "client/internal/runtime_dir.h"
#include "client/internal/window.h"
#include "client/iris/log.h"
#include "proto/wire/limits.h"

namespace iris {
namespace {

using internal::ControlPlane;
using internal::DescriptorKey;
using internal::HostBarrier;
using internal::JobStatus;
using internal::SegmentSpec;
using internal::Window;
using wire::DescriptorKind;

// irisd decides at the deadline that a call carries; its answer may take so much longer to arrive.
constexpr absl::Duration kAnswerSlack = absl::Seconds(5);
// Memory is created after the last rank has joined: a Join may be answered so long after its own
// deadline.
constexpr absl::Duration kJoinSlack = absl::Minutes(2);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);
constexpr absl::Duration kTimeoutMax = absl::Hours(24);

// Team id of a Team that this rank is not in.
constexpr uint32_t kNoTeam = std::numeric_limits<uint32_t>::max();

// The process that first made a Context. gRPC's threads do not survive fork, so its children cannot
// make one.
std::atomic<pid_t> process_pid{0};

uint64_t Milliseconds(absl::Duration timeout) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(timeout, kTimeoutMax))));
}

absl::Time DeadlineIn(absl::Duration timeout) {
  return internal::Now() + std::min(timeout, kTimeoutMax);
}

absl::Status Annotate(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "this context belongs to the parent process; after fork, exec a program that makes its own");
}

SegmentSpec FromProto(const v1::Segment& segment) {
  return {segment.segment_id(), segment.rank(), segment.offset_bytes(), segment.bytes()};
}

// irisd refuses what is too long, the same on every rank. So that it gets to see it, and not gRPC,
// what is sent is cut just beyond the limit.
std::string CutBeyond(absl::string_view text, size_t limit) {
  return std::string(text.substr(0, limit + 1));
}

// A team of this rank, and where it is in its sequences. Calls on one team go one after the other.
struct TeamState {
  explicit TeamState(HostBarrier team_barrier) : barrier(std::move(team_barrier)) {}

  Team team;

  absl::Mutex mu;
  bool call_busy ABSL_GUARDED_BY(mu) = false;
  bool barrier_busy ABSL_GUARDED_BY(mu) = false;

  // Used by who has set call_busy.
  // The number of this rank's next operation: counts the outcomes that have come back.
  uint64_t next_k = 0;
  // Sent with next_k, and no outcome of it has come back: asked again before anything else of the
  // team.
  std::optional<v1::OperateRequest> unanswered;

  // Used by who has set barrier_busy.
  HostBarrier barrier;
};

// Holds one of a team's two busy flags.
class Turn {
 public:
  // Waits until the flag is free. !taken(): the deadline came first.
  Turn(TeamState& team, bool TeamState::*flag, absl::Time deadline) : team_(team), flag_(flag) {
    absl::MutexLock lock(&team_.mu);
    const auto is_free = [this] { return !(team_.*flag_); };
    taken_ = team_.mu.AwaitWithTimeout(absl::Condition(&is_free), deadline - internal::Now());
    if (taken_) team_.*flag_ = true;
  }
  ~Turn() {
    if (!taken_) return;
    absl::MutexLock lock(&team_.mu);
    team_.*flag_ = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool taken() const { return taken_; }

 private:
  TeamState& team_;
  bool TeamState::*const flag_;
  bool taken_ = false;
};

}  // namespace

struct Context::Impl : public internal::WatchHandler {
  // Set by Create, then constant.
  const pid_t owner_pid = getpid();
  internal::ResolvedOptions options;
  std::unique_ptr<ControlPlane> plane;
  std::shared_ptr<Window> window;
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  bool same_address = false;
  std::shared_ptr<driver::GpuDriver> driver;
  internal::LocalDevice local_device;
  std::string device_uuid;
  uint32_t device_index = 0;
  std::vector<int64_t> peer_pids;
  uint32_t ranks_per_device = 1;
  CreateTimings timings;
  Team world;

  std::atomic<bool> closed{false};
  std::atomic<uint64_t> heap_bytes{0};

  mutable absl::Mutex mu;
  std::map<uint32_t, std::shared_ptr<TeamState>> teams ABSL_GUARDED_BY(mu);
  // Why a rank is no longer there, as irisd told.
  std::map<uint32_t, std::string> reasons ABSL_GUARDED_BY(mu);
  bool left ABSL_GUARDED_BY(mu) = false;

  // Growths under way: what this rank has mapped for them. The watch thread's own.
  struct Growth {
    std::vector<uint64_t> segment_ids;
    uint64_t heap_bytes = 0;  // once published
  };
  std::map<uint64_t, Growth> growths;

  uint32_t rank() const { return static_cast<uint32_t>(options.rank); }
  uint32_t n_ranks() const { return static_cast<uint32_t>(options.n_ranks); }

  // OK if this process may use the context.
  absl::Status Usable() const {
    if (getpid() != owner_pid) return ForkedError();
    if (closed.load(std::memory_order_acquire)) {
      return absl::FailedPreconditionError("this context has left the job");
    }
    return absl::OkStatus();
  }

  // Chooses the device and makes it the calling thread's.
  absl::Status ChooseDevice();
  absl::Status Join();
  // Maps all that Join's reply speaks of.
  absl::Status MapAll(const v1::JoinReply& reply);
  absl::Status Leave();

  std::shared_ptr<TeamState> AddTeam(const v1::TeamInfo& info);
  // kFailedPrecondition: not a member, or no such team any more.
  absl::StatusOr<std::shared_ptr<TeamState>> FindTeam(const Team& team) const;

  absl::StatusOr<v1::OperationResult> Operate(const Team& team, absl::string_view what,
                                              v1::OperateRequest request);
  absl::Status Barrier(TeamState& team, absl::Duration timeout);
  void HeapHasBytes(uint64_t bytes);

  void OnEvent(const v1::WatchEvent& event) override;
  void OnRankChanged(const v1::WatchEvent::RankChanged& change);
  void OnSegmentsAdded(const v1::WatchEvent::SegmentsAdded& added);
  void OnGrowDone(const v1::WatchEvent::GrowDone& done);
};

// Making and ending.

absl::StatusOr<std::unique_ptr<Context>> Context::Create(const ContextOptions& options) {
  pid_t nobody = 0;
  if (!process_pid.compare_exchange_strong(nobody, getpid()) && nobody != getpid()) {
    return absl::FailedPreconditionError(
        "create a context: this process was forked from one that has made a Context; exec a new "
        "program, or fork before the first Context::Create");
  }
  auto resolved = internal::ResolveOptions(options);
  if (!resolved.ok()) return Annotate(resolved.status(), "create a context");
  auto impl = std::make_unique<Impl>();
  impl->options = *std::move(resolved);
  const auto annotate = [&](const absl::Status& status) {
    return Annotate(
        status,
        absl::StrCat("create a context (rank ", impl->rank(), " of ", impl->n_ranks(), ", job \"",
                     impl->options.job.substr(0, wire::kMaxJobNameBytes), "\")"));
  };
  log::SetRank(impl->rank(), impl->n_ranks());
  const absl::Time start = internal::Now();
  auto plane = ControlPlane::Connect(
      {internal::RuntimeDirs(impl->options.runtime_dir), impl->options.connect_timeout});
  // The message says all that a user needs; whose context it is would be noise in front of it.
  if (!plane.ok()) return plane.status();
  impl->plane = *std::move(plane);
  impl->timings.connect = internal::Now() - start;
  absl::Status joined = impl->ChooseDevice();
  if (joined.ok()) joined = impl->Join();
  if (!joined.ok()) {
    impl->plane->StopWatching();
    if (impl->window != nullptr) impl->window->UnmapAll(impl->rank());
    return annotate(joined);
  }
  log::Info("joined job \"", impl->options.job, "\" as rank ", impl->rank(), " of ",
            impl->n_ranks(), " on device ", impl->device_uuid, ", epoch ", impl->epoch,
            ", same_address=", impl->same_address ? "true" : "false");
  return std::unique_ptr<Context>(new Context(std::move(impl)));
}

absl::Status Context::Impl::ChooseDevice() {
  const absl::Time start = internal::Now();
  auto process_driver = internal::ProcessDriver(plane->backend());
  if (!process_driver.ok()) return process_driver.status();
  driver = *std::move(process_driver);
  auto chosen = internal::ChooseDevice(*driver, options.device_uuid, options.local_rank);
  if (!chosen.ok()) return chosen.status();
  local_device = *std::move(chosen);
  for (const uint32_t index : local_device.indices) {
    if (absl::Status status = driver->MakeCurrent(index); !status.ok()) return status;
  }
  timings.device = internal::Now() - start;
  return absl::OkStatus();
}

absl::Status Context::Impl::Join() {
  v1::JoinRequest join;
  join.set_job(CutBeyond(options.job, wire::kMaxJobNameBytes));
  join.set_rank(options.rank);
  join.set_n_ranks(options.n_ranks);
  join.set_heap_bytes(options.heap_bytes);
  join.set_max_heap_bytes(options.max_heap_bytes);
  join.set_device_uuid(local_device.uuid);
  join.set_local_rank(options.local_rank);
  join.set_prealloc(options.prealloc);
  join.set_timeout_ms(Milliseconds(options.join_timeout));
  join.set_team_sync_bytes(kSyncAreaBytes);
  absl::Time start = internal::Now();
  auto reply = plane->Join(std::move(join), DeadlineIn(options.join_timeout) + kJoinSlack);
  if (!reply.ok()) return reply.status();
  timings.join = internal::Now() - start;
  timings.create = absl::Nanoseconds(reply->create_ns());
  timings.export_fds = absl::Nanoseconds(reply->export_ns());

  job_id = reply->job_id();
  epoch = reply->epoch();
  device_uuid = reply->device().uuid();
  device_index = reply->device().index();
  std::map<std::string, uint32_t> ranks_of;
  for (const v1::Peer& peer : reply->peers()) {
    peer_pids.push_back(peer.pid());
    ranks_per_device = std::max(ranks_per_device, ++ranks_of[peer.device_uuid()]);
  }
  if (peer_pids.size() != n_ranks()) {
    return absl::InternalError("irisd answered the join without all peers");
  }

  start = internal::Now();
  const absl::Status mapped_here = MapAll(*reply);
  timings.map = internal::Now() - start;

  start = internal::Now();
  v1::MappedRequest mapped;
  mapped.set_job_id(job_id);
  mapped.set_epoch(epoch);
  if (!mapped_here.ok()) {
    mapped.set_error(CutBeyond(mapped_here.message(), wire::kMaxErrorTextBytes - 1));
    // So that the peers learn why; what irisd answers is this very error.
    (void)plane->Mapped(std::move(mapped), internal::Now() + kLeaveTimeout);
    return mapped_here;
  }
  // Before Mapped: once all have called it, the heap may grow, and descriptors of that may come at
  // once.
  plane->DropDescriptors();
  mapped.set_base(window->base());
  auto committed = plane->Mapped(
      std::move(mapped), DeadlineIn(absl::Milliseconds(reply->map_timeout_ms())) + kAnswerSlack);
  if (!committed.ok()) return committed.status();
  heap_bytes = reply->heap_bytes();
  same_address = committed->same_address();
  world = AddTeam(committed->world())->team;
  plane->StartWatching({job_id, epoch, options.job, rank()}, this,
                       [r = rank(), n = n_ranks()] { log::SetRank(r, n); });
  timings.commit = internal::Now() - start;
  return absl::OkStatus();
}

absl::Status Context::Impl::MapAll(const v1::JoinReply& reply) {
  internal::WindowSpec spec;
  spec.key = {plane->daemon_id(), job_id, epoch};
  spec.backend = reply.device().backend();
  spec.n_ranks = n_ranks();
  spec.stride_bytes = reply.stride_bytes();
  spec.wanted_base = reply.proposed_base();
  if (spec.n_ranks > wire::kMaxRanks || spec.stride_bytes == 0 ||
      spec.stride_bytes > wire::kMaxWindowBytes / spec.n_ranks) {
    return absl::InternalError("irisd answered the join with a window beyond the protocol's limit");
  }
  auto acquired = Window::Acquire(spec);
  if (!acquired.ok()) return acquired.status();
  window = *std::move(acquired);

  std::vector<DescriptorKey> keys;
  for (const v1::Segment& segment : reply.segments()) {
    keys.push_back({DescriptorKind::kSegment, job_id, epoch, 0, segment.segment_id()});
  }
  for (uint32_t r = 0; r < n_ranks(); ++r) {
    keys.push_back({DescriptorKind::kControlPage, job_id, epoch, r, 0});
  }
  keys.push_back({DescriptorKind::kStatusPage, job_id, epoch, 0, 0});
  std::map<uint32_t, std::string> linked;  // the job's devices, by irisd's index
  if (reply.link_bytes() > 0) {
    for (const v1::Peer& peer : reply.peers()) linked[peer.device_index()] = peer.device_uuid();
  }
  for (const auto& [index, uuid] : linked) {
    keys.push_back({DescriptorKind::kLink, job_id, epoch, index, 0});
  }
  auto fds = plane->TakeDescriptors(
      keys, DeadlineIn(absl::Milliseconds(std::max<uint64_t>(reply.map_timeout_ms(), 1000))));
  if (!fds.ok()) return fds.status();
  // First: what is mapped after them is mapped faster.
  size_t next_link = keys.size() - linked.size();
  for (const auto& [index, uuid] : linked) {
    wire::UniqueFd fd = std::move((*fds)[next_link++]);
    if (uuid == device_uuid) continue;
    absl::Status status = internal::KeepLink(window->shared_driver(), uuid, reply.link_bytes(),
                                             std::move(fd), local_device.indices);
    // A link makes mapping fast; without it mapping still works, or says itself why not.
    if (!status.ok()) log::Warning(status.message(), "; mapping heaps of that device is slow");
  }
  internal::SegmentTimes times;
  size_t next = 0;
  for (const v1::Segment& segment : reply.segments()) {
    absl::Status status = window->MapSegment(rank(), FromProto(segment), std::move((*fds)[next++]),
                                             local_device.indices, &times);
    if (!status.ok()) return status;
  }
  timings.import = times.import;
  timings.map_memory = times.map;
  timings.set_access = times.access;
  for (uint32_t r = 0; r < n_ranks(); ++r) {
    absl::Status status =
        window->MapControlPage(r, std::move((*fds)[next++]), /*writable=*/r == rank());
    if (!status.ok()) return status;
  }
  return window->MapStatusPage(std::move((*fds)[next]));
}

Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Context::~Context() {
  if (getpid() != impl_->owner_pid) {
    // A forked child: the threads are not here, the windows are not mapped, the sockets are the
    // parent's. Nothing is touched, and what is left is kept reachable for leak checkers.
    static std::vector<Impl*>* const kept = new std::vector<Impl*>();
    kept->push_back(impl_.release());
    return;
  }
  const absl::Status status = impl_->Leave();
  if (!status.ok()) log::Info("leave job \"", impl_->options.job, "\": ", status.message());
}

absl::Status Context::Leave() {
  if (absl::Status status = impl_->Usable(); !status.ok()) return status;
  return impl_->Leave();
}

absl::Status Context::Impl::Leave() {
  {
    absl::MutexLock lock(&mu);
    if (left) return absl::OkStatus();
    left = true;
  }
  closed.store(true, std::memory_order_release);
  plane->StopWatching();
  // Unmapped before irisd is asked: it counts the memory as free from then on. The pages of
  // barriers stay until the end, for threads that are in one.
  window->UnmapAll(rank());
  return Annotate(plane->Leave(job_id, internal::Now() + kLeaveTimeout), "leave the job");
}

// What a context knows.

uint32_t Context::rank() const { return impl_->rank(); }
uint32_t Context::n_ranks() const { return impl_->n_ranks(); }
const std::string& Context::job() const { return impl_->options.job; }
uint64_t Context::job_id() const { return impl_->job_id; }
uint64_t Context::epoch() const { return impl_->epoch; }
const std::string& Context::device_uuid() const { return impl_->device_uuid; }
uint32_t Context::device_index() const { return impl_->device_index; }
uint32_t Context::ranks_per_device() const { return impl_->ranks_per_device; }
const std::string& Context::backend() const { return impl_->plane->backend(); }
uint64_t Context::heap_bytes() const { return impl_->heap_bytes.load(); }
uint64_t Context::stride_bytes() const { return impl_->window->stride_bytes(); }
bool Context::same_address() const { return impl_->same_address; }
const CreateTimings& Context::create_timings() const { return impl_->timings; }
const Team& Context::world() const { return impl_->world; }

int64_t Context::peer_pid(uint32_t rank) const {
  return rank < impl_->peer_pids.size() ? impl_->peer_pids[rank] : 0;
}

std::vector<void*> Context::heap_bases() const {
  std::vector<void*> bases;
  for (uint32_t r = 0; r < n_ranks(); ++r) {
    bases.push_back(reinterpret_cast<void*>(impl_->window->address(r, 0)));
  }
  return bases;
}

DeviceContext Context::device_context() const {
  DeviceContext context;
  context.rank = rank();
  context.n_ranks = n_ranks();
  context.base = impl_->window->base();
  context.stride_bytes = impl_->window->stride_bytes();
  context.timeout_ns = static_cast<uint64_t>(
      absl::ToInt64Nanoseconds(std::min(impl_->options.timeout, kTimeoutMax)));
  context.abort_word = impl_->window->abort_word();
  context.world = impl_->world.device;
  return context;
}

const void* Context::TranslateAddress(const void* mine, uint32_t to) const {
  // Unsigned arithmetic: wraps correctly for peers below this rank.
  return reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(mine) +
                                       (static_cast<uint64_t>(to) - rank()) *
                                           impl_->window->stride_bytes());
}

absl::StatusOr<Context::Location> Context::Locate(const void* address) const {
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  const uint64_t base = impl_->window->base();
  const uint64_t stride = impl_->window->stride_bytes();
  if (at < base || (at - base) / stride >= n_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("locate address 0x", absl::Hex(at), ": it is outside the window [0x",
                     absl::Hex(base), ", 0x", absl::Hex(base + n_ranks() * stride), ")"));
  }
  Location location;
  location.rank = static_cast<uint32_t>((at - base) / stride);
  location.offset_bytes = (at - base) % stride;
  return location;
}

bool Context::IsSymmetric(const void* address, uint64_t bytes) const {
  const auto location = Locate(address);
  if (!location.ok()) return false;
  const uint64_t heap = heap_bytes();
  return location->offset_bytes <= heap && bytes <= heap - location->offset_bytes;
}

absl::Status Context::Health() const {
  if (absl::Status status = impl_->Usable(); !status.ok()) return status;
  const JobStatus status = impl_->window->status();
  absl::Status health = status.Broken();
  if (health.ok()) {
    std::vector<uint32_t> all(n_ranks());
    for (uint32_t r = 0; r < n_ranks(); ++r) all[r] = r;
    health = status.Left(all);
  }
  if (health.ok()) return health;
  absl::MutexLock lock(&impl_->mu);
  std::string why;
  for (const auto& [rank, reason] : impl_->reasons) {
    if (!reason.empty()) absl::StrAppend(&why, why.empty() ? " (" : ", ", reason);
  }
  if (!why.empty()) why.push_back(')');
  return absl::Status(health.code(), absl::StrCat(health.message(), why));
}

// Teams.

std::shared_ptr<TeamState> Context::Impl::AddTeam(const v1::TeamInfo& info) {
  HostBarrier::Options barrier;
  barrier.ranks.assign(info.ranks().begin(), info.ranks().end());
  barrier.rank = rank();
  barrier.slot = info.barrier_slot() % wire::kMaxTeamsPerJob;
  barrier.start_epoch = info.barrier_start_epoch();
  std::vector<const uint32_t*> words;
  for (const uint32_t r : barrier.ranks) {
    words.push_back(&window->control_page(r % n_ranks())->words[barrier.slot]);
  }
  uint32_t* const own_word = &window->control_page(rank())->words[barrier.slot];
  auto state = std::make_shared<TeamState>(
      HostBarrier(barrier, std::move(words), own_word, window->status()));
  Team& team = state->team;
  team.id = info.team_id();
  team.ranks = barrier.ranks;
  const auto me = std::find(team.ranks.begin(), team.ranks.end(), rank());
  team.index = me == team.ranks.end() ? -1 : static_cast<int>(me - team.ranks.begin());
  team.device.id = team.id;
  team.device.size = static_cast<uint32_t>(team.ranks.size());
  team.device.index = static_cast<uint32_t>(team.index);
  team.device.sync_offset_bytes = info.sync_offset_bytes();
  for (size_t i = 0; i < team.ranks.size() && i < kMaxTeamRanks; ++i) {
    team.device.members[i] = static_cast<uint8_t>(team.ranks[i]);
  }
  absl::MutexLock lock(&mu);
  teams[team.id] = state;
  return state;
}

absl::StatusOr<std::shared_ptr<TeamState>> Context::Impl::FindTeam(const Team& team) const {
  if (!team.member()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank(), " is not a member of the team of ranks ", absl::StrJoin(team.ranks, ",")));
  }
  absl::MutexLock lock(&mu);
  const auto it = teams.find(team.id);
  if (it == teams.end() || it->second->team.ranks != team.ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("team ", team.id, " does not exist in this context; was it destroyed?"));
  }
  return it->second;
}

absl::StatusOr<Team> Context::CreateTeam(absl::Span<const uint32_t> ranks) {
  return CreateTeam(ranks, impl_->world);
}

absl::StatusOr<Team> Context::CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent) {
  const std::string what = absl::StrCat("create a team of ", ranks.size(), " ranks");
  v1::OperateRequest request;
  v1::CreateTeamOp& op = *request.mutable_create_team();
  for (size_t i = 0; i < ranks.size() && i <= wire::kMaxRanks; ++i) op.add_ranks(ranks[i]);
  auto reply = impl_->Operate(parent, what, std::move(request));
  if (!reply.ok()) return reply.status();
  if (!reply->has_team()) {
    Team other;
    other.id = kNoTeam;
    other.ranks.assign(ranks.begin(), ranks.end());
    return other;
  }
  const std::shared_ptr<TeamState> state = impl_->AddTeam(reply->team());
  // The team's area may have been another team's: each member clears its own, and nobody goes on
  // before all have.
  absl::Status status = impl_->window->driver().Fill(
      impl_->window->address(rank(), reply->team().sync_offset_bytes()), 0, kSyncAreaBytes);
  const absl::Status met = impl_->Barrier(*state, impl_->options.timeout);
  if (status.ok()) status = met;
  if (!status.ok()) return Annotate(status, what);
  return state->team;
}

absl::Status Context::DestroyTeam(const Team& team) {
  const std::string what = absl::StrCat("destroy team ", team.id);
  if (absl::Status status = impl_->Usable(); !status.ok()) return Annotate(status, what);
  auto state = impl_->FindTeam(team);
  if (!state.ok()) return Annotate(state.status(), what);
  v1::OperateRequest request;
  {
    Turn turn(**state, &TeamState::barrier_busy, DeadlineIn(impl_->options.timeout));
    if (!turn.taken()) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": a barrier of it is running"));
    }
    request.mutable_destroy_team()->set_last_barrier_epoch((*state)->barrier.epoch());
  }
  auto reply = impl_->Operate(team, what, std::move(request));
  if (!reply.ok()) return reply.status();
  absl::MutexLock lock(&impl_->mu);
  impl_->teams.erase(team.id);
  return absl::OkStatus();
}

// Operations of a team.

absl::StatusOr<v1::OperationResult> Context::Impl::Operate(const Team& team, absl::string_view what,
                                                           v1::OperateRequest request) {
  if (absl::Status status = Usable(); !status.ok()) return Annotate(status, what);
  auto state = FindTeam(team);
  if (!state.ok()) return Annotate(state.status(), what);
  const absl::Time reach_deadline = DeadlineIn(options.timeout);
  Turn turn(**state, &TeamState::call_busy, reach_deadline);
  if (!turn.taken()) {
    return absl::DeadlineExceededError(
        absl::StrCat(what, ": another thread's call on the same team did not end in time"));
  }
  TeamState& team_state = **state;
  const auto ask = [&](const v1::OperateRequest& wanted) {
    bool unanswered = team_state.unanswered.has_value();
    auto outcome =
        plane->Operate(wanted, reach_deadline, reach_deadline + kAnswerSlack, &unanswered);
    if (outcome.ok()) {
      ++team_state.next_k;
      team_state.unanswered.reset();
      if (outcome->code() == 0) HeapHasBytes(outcome->result().heap_bytes());
    } else if (unanswered) {
      team_state.unanswered = wanted;
    }
    return outcome;
  };
  if (team_state.unanswered.has_value()) {
    // Other ranks may have its outcome already: it comes first, then this one is the next.
    const v1::OperateRequest earlier = *team_state.unanswered;
    const auto outcome = ask(earlier);
    if (!outcome.ok()) {
      return Annotate(outcome.status(),
                      absl::StrCat(what, ": the outcome of an earlier call is still unknown"));
    }
  }
  request.set_job_id(job_id);
  request.set_team_id(team.id);
  request.set_k(team_state.next_k);
  request.set_timeout_ms(Milliseconds(options.timeout));
  auto outcome = ask(request);
  if (!outcome.ok()) return Annotate(outcome.status(), what);
  if (outcome->code() != 0) {
    return Annotate(absl::Status(static_cast<absl::StatusCode>(outcome->code()), outcome->text()),
                    what);
  }
  return std::move(*outcome->mutable_result());
}

void Context::Impl::HeapHasBytes(uint64_t bytes) {
  uint64_t before = heap_bytes.load();
  while (bytes > before && !heap_bytes.compare_exchange_weak(before, bytes)) {
  }
}

absl::StatusOr<Allocation> Context::Allocate(const AllocateOptions& options) {
  return Allocate(options, impl_->world);
}

absl::StatusOr<Allocation> Context::Allocate(const AllocateOptions& options, const Team& team) {
  v1::OperateRequest request;
  v1::AllocateOp& op = *request.mutable_allocate();
  op.set_bytes(options.bytes);
  op.set_alignment_bytes(options.alignment_bytes);
  op.set_name(CutBeyond(options.name, wire::kMaxAllocationNameBytes));
  op.mutable_tensor()->set_dtype(CutBeyond(options.dtype, wire::kMaxDtypeBytes));
  for (size_t i = 0; i < options.shape.size() && i <= wire::kMaxDims; ++i) {
    op.mutable_tensor()->add_shape(options.shape[i]);
  }
  std::string what = absl::StrCat("allocate ", options.bytes, " bytes");
  if (!options.name.empty()) {
    absl::StrAppend(&what, " \"", CutBeyond(options.name, wire::kMaxAllocationNameBytes), "\"");
  }
  auto reply = impl_->Operate(team, what, std::move(request));
  if (!reply.ok()) return reply.status();
  Allocation allocation;
  allocation.offset_bytes = reply->offset_bytes();
  allocation.bytes = options.bytes;
  allocation.address =
      reinterpret_cast<void*>(impl_->window->address(rank(), reply->offset_bytes()));
  allocation.team_id = team.id;
  allocation.name = options.name;
  return allocation;
}

absl::Status Context::Free(const Allocation& allocation) {
  const std::string what = absl::StrCat("free the allocation at offset ", allocation.offset_bytes);
  if (absl::Status status = impl_->Usable(); !status.ok()) return Annotate(status, what);
  Team team;
  {
    absl::MutexLock lock(&impl_->mu);
    const auto it = impl_->teams.find(allocation.team_id);
    if (it == impl_->teams.end()) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": team ", allocation.team_id,
                                                        ", which allocated it, does not exist "
                                                        "in this context"));
    }
    team = it->second->team;
  }
  v1::OperateRequest request;
  request.mutable_free()->set_offset_bytes(allocation.offset_bytes);
  return impl_->Operate(team, what, std::move(request)).status();
}

absl::Status Context::Grow(uint64_t bytes) {
  v1::OperateRequest request;
  request.mutable_grow()->set_bytes(bytes);
  return impl_
      ->Operate(impl_->world, absl::StrCat("grow the heap by ", bytes, " bytes"),
                std::move(request))
      .status();
}

absl::StatusOr<std::string> Context::Broadcast(absl::string_view value, uint32_t root) {
  return Broadcast(value, root, impl_->world);
}

absl::StatusOr<std::string> Context::Broadcast(absl::string_view value, uint32_t root,
                                               const Team& team) {
  v1::OperateRequest request;
  v1::BroadcastOp& op = *request.mutable_broadcast();
  op.set_root(root);
  if (root == rank()) op.set_value(CutBeyond(value, wire::kMaxBroadcastBytes));
  auto reply = impl_->Operate(team, absl::StrCat("broadcast from rank ", root), std::move(request));
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_value());
}

// Barrier.

absl::Status Context::Impl::Barrier(TeamState& team, absl::Duration timeout) {
  const absl::Time deadline = DeadlineIn(timeout);
  Turn turn(team, &TeamState::barrier_busy, deadline);
  if (!turn.taken()) {
    return absl::DeadlineExceededError(
        "host barrier: another thread's barrier on the same team did not end in time");
  }
  return team.barrier.Run(deadline, closed);
}

absl::Status Context::Barrier() { return Barrier(impl_->world, impl_->options.timeout); }

absl::Status Context::Barrier(const Team& team) { return Barrier(team, impl_->options.timeout); }

absl::Status Context::Barrier(const Team& team, absl::Duration timeout) {
  if (absl::Status status = impl_->Usable(); !status.ok()) return Annotate(status, "host barrier");
  auto state = impl_->FindTeam(team);
  if (!state.ok()) return Annotate(state.status(), "host barrier");
  return impl_->Barrier(**state, timeout);
}

// The watch thread.

void Context::Impl::OnEvent(const v1::WatchEvent& event) {
  switch (event.event_case()) {
    case v1::WatchEvent::kRankChanged:
      return OnRankChanged(event.rank_changed());
    case v1::WatchEvent::kSegmentsAdded:
      return OnSegmentsAdded(event.segments_added());
    case v1::WatchEvent::kGrowDone:
      return OnGrowDone(event.grow_done());
    case v1::WatchEvent::kStopping:
      return log::Info("irisd is stopping: ", event.stopping().reason());
    case v1::WatchEvent::kWatching:
    case v1::WatchEvent::EVENT_NOT_SET:
      return;
  }
}

void Context::Impl::OnRankChanged(const v1::WatchEvent::RankChanged& change) {
  const bool hung_up = change.state() == v1::RANK_STATE_ENDING;
  const bool died = change.state() == v1::RANK_STATE_DEAD;
  if (!hung_up && !died && change.state() != v1::RANK_STATE_LEFT) return;
  {
    absl::MutexLock lock(&mu);
    reasons[change.rank()] = change.reason();
  }
  if (hung_up || died) {
    log::Warning("rank ", change.rank(), " (pid ", change.pid(), ") ", died ? "died" : "hung up",
                 ": ", change.reason());
  } else {
    log::Debug("rank ", change.rank(), " (pid ", change.pid(), ") left");
  }
}

void Context::Impl::OnSegmentsAdded(const v1::WatchEvent::SegmentsAdded& added) {
  v1::GrowMappedRequest mapped;
  mapped.set_job_id(job_id);
  mapped.set_grow_id(added.grow_id());
  const absl::Time deadline =
      DeadlineIn(absl::Milliseconds(std::max<uint64_t>(added.timeout_ms(), 1000)));
  // irisd repeats what an earlier stream may have missed: what is mapped is only acknowledged
  // again.
  absl::Status status;
  if (growths.count(added.grow_id()) == 0) {
    std::vector<DescriptorKey> keys;
    for (const v1::Segment& segment : added.segments()) {
      keys.push_back({DescriptorKind::kSegment, job_id, epoch, 0, segment.segment_id()});
    }
    std::vector<uint64_t> mapped_ids;
    auto fds = plane->TakeDescriptors(keys, deadline);
    status = fds.status();
    for (int i = 0; status.ok() && i < added.segments_size(); ++i) {
      status = window->MapSegment(rank(), FromProto(added.segments(i)),
                                  std::move((*fds)[static_cast<size_t>(i)]), local_device.indices);
      if (status.ok()) mapped_ids.push_back(added.segments(i).segment_id());
    }
    if (status.ok()) {
      growths[added.grow_id()] = {std::move(mapped_ids), added.heap_bytes()};
    } else {
      for (const uint64_t id : mapped_ids) window->UnmapSegment(rank(), id);
      log::Warning("cannot map the heap's growth: ", status.message());
      mapped.set_error(CutBeyond(status.message(), wire::kMaxErrorTextBytes - 1));
    }
  }
  const absl::Status told =
      plane->GrowMapped(std::move(mapped), std::min(deadline, DeadlineIn(kAnswerSlack)));
  if (!told.ok()) log::Info("acknowledge the heap's growth: ", told.message());
}

void Context::Impl::OnGrowDone(const v1::WatchEvent::GrowDone& done) {
  const auto it = growths.find(done.grow_id());
  if (it == growths.end()) return;
  if (done.published()) {
    HeapHasBytes(it->second.heap_bytes);
    log::Debug("the heap has grown to ", it->second.heap_bytes, " bytes");
  } else {
    for (const uint64_t id : it->second.segment_ids) window->UnmapSegment(rank(), id);
    log::Info("the heap did not grow: ", done.reason());
  }
  growths.erase(it);
}

}  // namespace iris
