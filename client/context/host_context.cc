#include "client/context/host_context.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/context_guard.h"
#include "client/base/log.h"
#include "client/context/options.h"
#include "client/membership/growth.h"
#include "client/membership/heap_size.h"
#include "client/membership/membership.h"
#include "client/team/team_calls.h"
#include "device/base/bytes.h"
#include "device/driver/open.h"

namespace iris::internal {

// Kernels write what irisd reads, and neither includes the header of the other.
static_assert(sizeof(WaitNote) == sizeof(wire::KernelWait) &&
              offsetof(WaitNote, state) == offsetof(wire::KernelWait, state) &&
              offsetof(WaitNote, from) == offsetof(wire::KernelWait, from) &&
              offsetof(WaitNote, block) == offsetof(wire::KernelWait, block) &&
              offsetof(WaitNote, waited_ms) == offsetof(wire::KernelWait, waited_ms) &&
              offsetof(WaitNote, wanted) == offsetof(wire::KernelWait, wanted) &&
              offsetof(WaitNote, seen) == offsetof(wire::KernelWait, seen));
static_assert(kWaitNotes == wire::kKernelWaitSlots && WaitNote::kNoted == wire::kKernelWaitNoted);

// Three parts, and what they share. Threads: the calls of HostContext come on any thread, those of
// WatchHandler on the watch thread, between the constructor's Watch and Leave.
struct HostContext::Impl : public WatchHandler {
  explicit Impl(std::unique_ptr<Membership> joined)
      : membership(std::move(joined)),
        window(membership->window()),
        rank(membership->rank()),
        teams({membership->job().job_id, rank, membership->options().timeout,
               membership->options().job, membership->local_device().indices},
              &membership->guard(), &membership->plane(), &window, &heap),
        growth({membership->job().job_id, membership->job().epoch, rank,
                membership->local_device().indices},
               &membership->plane(), &window, &heap),
        world(teams.AddTeam(membership->committed().world)) {
    heap.AtLeast(membership->job().heap_bytes);
    membership->Watch(this);
  }

  void OnRankChange(const RankChange& change) override { membership->OnRankChange(change); }
  void OnSegmentsAdded(const SegmentsAdded& added) override { growth.OnSegmentsAdded(added); }
  void OnGrowDone(const GrowDone& done) override { growth.OnGrowDone(done); }
  void OnStopping(const std::string& reason) override { log::Info("irisd is stopping: ", reason); }

  bool InHeap(uint64_t offset_bytes, uint64_t bytes) const {
    const uint64_t size = heap.bytes();
    return offset_bytes <= size && bytes <= size - offset_bytes;
  }
  // Whether these bytes of the rank's heap, or of what lies above it, are mapped here.
  bool Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const {
    return InHeap(offset_bytes, bytes) || teams.Borrows(owner, offset_bytes, bytes);
  }

  const std::unique_ptr<Membership> membership;
  Window& window;
  const uint32_t rank;
  HeapSize heap;
  TeamCalls teams;
  Growth growth;
  const Team world;
  std::unique_ptr<TraceRecorder> trace;  // set by Create, then constant
};

// Making and ending.

absl::StatusOr<std::unique_ptr<HostContext>> HostContext::Create(const ContextOptions& options) {
  if (absl::Status status = ContextGuard::ClaimProcess(); !status.ok()) {
    return Annotate(status, "create a context");
  }
  auto resolved = ResolveOptions(options);
  if (!resolved.ok()) return Annotate(resolved.status(), "create a context");
  log::SetRank(static_cast<uint32_t>(resolved->rank), static_cast<uint32_t>(resolved->n_ranks));
  auto joined = Membership::Join(*std::move(resolved));
  if (!joined.ok()) return joined.status();
  std::unique_ptr<HostContext> context(new HostContext(std::make_unique<Impl>(*std::move(joined))));
  log::Info("joined job \"", context->job(), "\" as rank ", context->rank(), " of ",
            context->n_ranks(), " on device ", context->device_uuid(), ", epoch ", context->epoch(),
            ", same_address=", context->same_address() ? "true" : "false");
  context->WarnOfTurns();
  if (absl::Status status = context->MakeTrace(); !status.ok()) {
    return Annotate(status, "create a context");
  }
  return context;
}

void HostContext::WarnOfTurns() const {
  const std::vector<Peer>& peers = impl_->membership->job().peers;
  // The first rank of a device says it, where another process has one there.
  const auto on_device = [this](const Peer& peer) { return peer.device_uuid == device_uuid(); };
  const auto first = std::find_if(peers.begin(), peers.end(), on_device);
  if (first - peers.begin() != rank()) return;
  const bool shared = std::any_of(first, peers.end(), [&](const Peer& peer) {
    return on_device(peer) && peer.pid != first->pid;
  });
  if (!shared) return;
  const std::string warning = driver::ProcessesTakeTurns(backend(), &std::getenv);
  if (!warning.empty()) log::Warning(warning);
}

absl::Status HostContext::MakeTrace() {
  const ContextOptions& options = impl_->membership->options();
  if (options.trace_events == 0) return absl::OkStatus();
  AllocateOptions wanted;
  wanted.bytes = TraceAreaBytes(options.trace_events);
  wanted.alignment_bytes = 4096;
  wanted.name = TraceRecorder::kName;
  // The others may come out of the join later: this is a part of it.
  const auto area = impl_->teams.Allocate(wanted, impl_->world, options.join_timeout);
  if (absl::IsResourceExhausted(area.status()) && options.trace_file.empty()) {
    log::Info("no room for a trace: ", area.status().message());
    return absl::OkStatus();  // the same on all ranks
  }
  if (!area.ok()) {
    return Annotate(area.status(),
                    "make room for the trace (IRIS_TRACE_EVENTS must be the same on all ranks)");
  }
  TraceRecorder::Options trace;
  trace.job = options.job;
  trace.rank = rank();
  trace.backend = backend();
  trace.devices = impl_->membership->local_device().indices;
  trace.address = reinterpret_cast<uint64_t>(area->address);
  trace.bytes = wanted.bytes;
  trace.file = options.trace_file;
  auto made =
      TraceRecorder::Make(std::move(trace), &impl_->membership->guard(), &impl_->window.driver());
  if (!made.ok()) return made.status();
  impl_->trace = *std::move(made);
  return absl::OkStatus();
}

HostContext::HostContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HostContext::~HostContext() {
  if (!impl_->membership->guard().OwnProcess()) {
    // A forked child: the threads are not here, the windows are not mapped, the sockets are the
    // parent's. Nothing is touched, and what is left is kept reachable for leak checkers.
    static std::vector<Impl*>* const kept = new std::vector<Impl*>();
    kept->push_back(impl_.release());
    return;
  }
  CloseTrace();
  const absl::Status status = impl_->membership->Leave();
  if (!status.ok()) log::Info("leave job \"", job(), "\": ", status.message());
}

absl::Status HostContext::Leave() {
  if (absl::Status status = impl_->membership->guard().Usable(); !status.ok()) return status;
  CloseTrace();
  return impl_->membership->Leave();
}

void HostContext::CloseTrace() {
  if (impl_->trace == nullptr) return;
  const absl::Status status = impl_->trace->Close();
  if (!status.ok()) log::Warning(status.message());
}

// What a context knows.

uint32_t HostContext::rank() const { return impl_->rank; }
uint32_t HostContext::n_ranks() const { return impl_->membership->n_ranks(); }
const std::string& HostContext::job() const { return impl_->membership->options().job; }
uint64_t HostContext::job_id() const { return impl_->membership->job().job_id; }
uint64_t HostContext::epoch() const { return impl_->membership->job().epoch; }
const std::string& HostContext::device_uuid() const { return impl_->membership->job().device_uuid; }
uint32_t HostContext::device_index() const { return impl_->membership->job().device_index; }
uint32_t HostContext::ranks_per_device() const { return impl_->membership->ranks_per_device(); }
const std::string& HostContext::backend() const { return impl_->membership->plane().backend(); }
uint64_t HostContext::heap_bytes() const { return impl_->heap.bytes(); }
uint64_t HostContext::stride_bytes() const { return impl_->window.stride_bytes(); }
bool HostContext::same_address() const { return impl_->membership->committed().same_address; }
const CreateTimings& HostContext::create_timings() const { return impl_->membership->timings(); }
const Team& HostContext::world() const { return impl_->world; }
TraceRecorder* HostContext::trace() const { return impl_->trace.get(); }
absl::Status HostContext::Usable() const { return impl_->membership->guard().Usable(); }
bool HostContext::OwnProcess() const { return impl_->membership->guard().OwnProcess(); }
absl::Status HostContext::Health() const { return impl_->membership->Health(); }

wire::ControlPage* HostContext::control_page() { return impl_->window.control_page(rank()); }

int64_t HostContext::peer_pid(uint32_t rank) const {
  return rank < n_ranks() ? impl_->membership->job().peers[rank].pid : 0;
}

std::string HostContext::MissingName(uint32_t rank) const {
  return impl_->window.status().MissingNames({rank});
}

std::vector<void*> HostContext::heap_bases() const {
  std::vector<void*> bases;
  for (uint32_t r = 0; r < n_ranks(); ++r) {
    bases.push_back(reinterpret_cast<void*>(impl_->window.address(r, 0)));
  }
  return bases;
}

DeviceContext HostContext::device_context() const {
  DeviceContext context;
  context.size_bytes = sizeof(context);
  context.rank = rank();
  context.n_ranks = n_ranks();
  context.base = impl_->window.base();
  context.stride_bytes = stride_bytes();
  context.timeout_ns = static_cast<uint64_t>(
      absl::ToInt64Nanoseconds(std::min(impl_->membership->options().timeout, kTimeoutMax)));
  context.abort_word = impl_->window.abort_word();
  context.world = world().device;
  context.heap_map = impl_->teams.heap_map();
  if (impl_->trace != nullptr) context.trace = impl_->trace->area();
  context.wait_notes = reinterpret_cast<WaitNote*>(impl_->window.kernel_waits(rank()));
  return context;
}

// Addresses.

const void* HostContext::TranslateAddress(const void* mine, uint32_t to) const {
  // Unsigned arithmetic: wraps correctly for peers below this rank.
  return reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(mine) +
                                       (static_cast<uint64_t>(to) - rank()) * stride_bytes());
}

absl::StatusOr<HostContext::Location> HostContext::Locate(const void* address) const {
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  const uint64_t base = impl_->window.base();
  const uint64_t stride = stride_bytes();
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

bool HostContext::IsSymmetric(const void* address, uint64_t bytes) const {
  const auto location = Locate(address);
  return location.ok() &&
         (impl_->InHeap(location->offset_bytes, bytes) ||
          impl_->teams.HaveTogether({location->rank}, location->offset_bytes, bytes));
}

absl::Status HostContext::CheckShared(const char* role, const void* mine,
                                      absl::Span<const uint32_t> ranks) const {
  const uint64_t offset = reinterpret_cast<uint64_t>(mine) - impl_->window.address(rank(), 0);
  // Outside of it all, or in the heap itself: nearly always.
  if (offset >= stride_bytes() || offset < impl_->heap.bytes()) return absl::OkStatus();
  if (impl_->teams.HaveTogether(ranks, offset, 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", role, "` is at offset ", offset, " above the heap of ",
      base::SizeText(impl_->heap.bytes()), ", where the ranks ", absl::StrJoin(ranks, ","),
      " have registered nothing together: register it with all of them, or give the address of the "
      "memory itself"));
}

bool HostContext::IsMapped(const void* address, uint64_t bytes) const {
  const auto location = Locate(address);
  return location.ok() && impl_->Has(location->rank, location->offset_bytes, bytes);
}

std::optional<std::string> HostContext::Refusal(uint32_t rank, uint64_t offset_bytes,
                                                uint64_t bytes) const {
  return impl_->teams.Refusal(rank, offset_bytes, bytes);
}

bool HostContext::Reaches(uint32_t peer, const void* mine, uint64_t bytes) const {
  const auto location = Locate(mine);
  return location.ok() && location->rank == rank() &&
         impl_->Has(peer, location->offset_bytes, bytes);
}

// What all members of a team call together.

absl::StatusOr<Allocation> HostContext::Allocate(const AllocateOptions& options) {
  return Allocate(options, impl_->world);
}
absl::StatusOr<Allocation> HostContext::Allocate(const AllocateOptions& options, const Team& team) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kAllocate, options.bytes);
  return impl_->teams.Allocate(options, team);
}
absl::Status HostContext::Free(const Allocation& allocation) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kFree, allocation.bytes);
  return impl_->teams.Free(allocation);
}
absl::StatusOr<Allocation> HostContext::AllocateLocal(const AllocateOptions& options) {
  return impl_->teams.AllocateLocal(options);
}
absl::StatusOr<Allocation> HostContext::Register(void* memory, const AllocateOptions& options) {
  return impl_->teams.Register(memory, options);
}
absl::StatusOr<Allocation> HostContext::RegisterTogether(void* memory,
                                                         const AllocateOptions& options,
                                                         const Team& team) {
  return impl_->teams.RegisterTogether(memory, options, team);
}
absl::Status HostContext::Publish(const Allocation& allocation, const std::string& name) {
  return impl_->teams.Publish(allocation, name);
}
absl::StatusOr<Opened> HostContext::Open(uint32_t rank, const std::string& name,
                                         absl::Duration timeout) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kOpen);
  return impl_->teams.Open(rank, name, timeout);
}
absl::StatusOr<Opened> HostContext::Open(uint32_t rank, const std::string& name) {
  return Open(rank, name, impl_->membership->options().timeout);
}
absl::Status HostContext::Close(const Opened& opened) { return impl_->teams.Close(opened); }
absl::Status HostContext::Grow(uint64_t bytes) { return impl_->teams.Grow(bytes, impl_->world); }

absl::StatusOr<std::string> HostContext::Broadcast(absl::string_view value, uint32_t root) {
  return Broadcast(value, root, impl_->world);
}
absl::StatusOr<std::string> HostContext::Broadcast(absl::string_view value, uint32_t root,
                                                   const Team& team) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kBroadcast, value.size());
  return impl_->teams.Broadcast(value, root, team);
}

absl::StatusOr<Team> HostContext::CreateTeam(absl::Span<const uint32_t> ranks) {
  return CreateTeam(ranks, impl_->world);
}
absl::StatusOr<Team> HostContext::CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kTeam);
  return impl_->teams.CreateTeam(ranks, parent);
}
absl::StatusOr<Team> HostContext::SplitTeam(int32_t color, int32_t key, const Team& parent) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kTeam);
  return impl_->teams.SplitTeam(color, key, parent);
}
absl::Status HostContext::DestroyTeam(const Team& team) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kTeam);
  return impl_->teams.DestroyTeam(team);
}

absl::Status HostContext::Barrier() { return Barrier(impl_->world); }
absl::Status HostContext::Barrier(const Team& team) {
  return Barrier(team, impl_->membership->options().timeout);
}
absl::Status HostContext::Barrier(const Team& team, absl::Duration timeout) {
  const TraceRecorder::Span span(trace(), TraceHostCall::kBarrier);
  return impl_->teams.Barrier(team, timeout);
}

}  // namespace iris::internal
