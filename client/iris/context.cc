#include "client/iris/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/log.h"
#include "client/internal/annotate.h"
#include "client/internal/clock.h"
#include "client/internal/context_guard.h"
#include "client/internal/growth.h"
#include "client/internal/heap_size.h"
#include "client/internal/membership.h"
#include "client/internal/options.h"
#include "client/internal/team_calls.h"

namespace iris {

// Three parts, and what they share. Threads: the calls of Context come on any thread, those of
// WatchHandler on the watch thread, between the constructor's Watch and Leave.
struct Context::Impl : public internal::WatchHandler {
  explicit Impl(std::unique_ptr<internal::Membership> joined)
      : membership(std::move(joined)),
        window(membership->window()),
        rank(membership->rank()),
        teams({membership->job().job_id, rank, membership->options().timeout}, &membership->guard(),
              &membership->plane(), &window, &heap),
        growth({membership->job().job_id, membership->job().epoch, rank,
                membership->local_device().indices},
               &membership->plane(), &window, &heap),
        world(teams.AddTeam(membership->committed().world)) {
    heap.AtLeast(membership->job().heap_bytes);
    membership->Watch(this);
  }

  void OnRankChange(const internal::RankChange& change) override {
    membership->OnRankChange(change);
  }
  void OnSegmentsAdded(const internal::SegmentsAdded& added) override {
    growth.OnSegmentsAdded(added);
  }
  void OnGrowDone(const internal::GrowDone& done) override { growth.OnGrowDone(done); }
  void OnStopping(const std::string& reason) override { log::Info("irisd is stopping: ", reason); }

  const std::unique_ptr<internal::Membership> membership;
  internal::Window& window;
  const uint32_t rank;
  internal::HeapSize heap;
  internal::TeamCalls teams;
  internal::Growth growth;
  const Team world;
};

// Making and ending.

absl::StatusOr<std::unique_ptr<Context>> Context::Create(const ContextOptions& options) {
  if (absl::Status status = internal::ContextGuard::ClaimProcess(); !status.ok()) {
    return internal::Annotate(status, "create a context");
  }
  auto resolved = internal::ResolveOptions(options);
  if (!resolved.ok()) return internal::Annotate(resolved.status(), "create a context");
  log::SetRank(static_cast<uint32_t>(resolved->rank), static_cast<uint32_t>(resolved->n_ranks));
  auto joined = internal::Membership::Join(*std::move(resolved));
  if (!joined.ok()) return joined.status();
  std::unique_ptr<Context> context(new Context(std::make_unique<Impl>(*std::move(joined))));
  log::Info("joined job \"", context->job(), "\" as rank ", context->rank(), " of ",
            context->n_ranks(), " on device ", context->device_uuid(), ", epoch ", context->epoch(),
            ", same_address=", context->same_address() ? "true" : "false");
  return context;
}

Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Context::~Context() {
  if (!impl_->membership->guard().OwnProcess()) {
    // A forked child: the threads are not here, the windows are not mapped, the sockets are the
    // parent's. Nothing is touched, and what is left is kept reachable for leak checkers.
    static std::vector<Impl*>* const kept = new std::vector<Impl*>();
    kept->push_back(impl_.release());
    return;
  }
  const absl::Status status = impl_->membership->Leave();
  if (!status.ok()) log::Info("leave job \"", job(), "\": ", status.message());
}

absl::Status Context::Leave() {
  if (absl::Status status = impl_->membership->guard().Usable(); !status.ok()) return status;
  return impl_->membership->Leave();
}

// What a context knows.

uint32_t Context::rank() const { return impl_->rank; }
uint32_t Context::n_ranks() const { return impl_->membership->n_ranks(); }
const std::string& Context::job() const { return impl_->membership->options().job; }
uint64_t Context::job_id() const { return impl_->membership->job().job_id; }
uint64_t Context::epoch() const { return impl_->membership->job().epoch; }
const std::string& Context::device_uuid() const { return impl_->membership->job().device_uuid; }
uint32_t Context::device_index() const { return impl_->membership->job().device_index; }
uint32_t Context::ranks_per_device() const { return impl_->membership->ranks_per_device(); }
const std::string& Context::backend() const { return impl_->membership->plane().backend(); }
uint64_t Context::heap_bytes() const { return impl_->heap.bytes(); }
uint64_t Context::stride_bytes() const { return impl_->window.stride_bytes(); }
bool Context::same_address() const { return impl_->membership->committed().same_address; }
const CreateTimings& Context::create_timings() const { return impl_->membership->timings(); }
const Team& Context::world() const { return impl_->world; }
absl::Status Context::Health() const { return impl_->membership->Health(); }

int64_t Context::peer_pid(uint32_t rank) const {
  return rank < n_ranks() ? impl_->membership->job().peers[rank].pid : 0;
}

std::vector<void*> Context::heap_bases() const {
  std::vector<void*> bases;
  for (uint32_t r = 0; r < n_ranks(); ++r) {
    bases.push_back(reinterpret_cast<void*>(impl_->window.address(r, 0)));
  }
  return bases;
}

DeviceContext Context::device_context() const {
  DeviceContext context;
  context.rank = rank();
  context.n_ranks = n_ranks();
  context.base = impl_->window.base();
  context.stride_bytes = stride_bytes();
  context.timeout_ns = static_cast<uint64_t>(absl::ToInt64Nanoseconds(
      std::min(impl_->membership->options().timeout, internal::kTimeoutMax)));
  context.abort_word = impl_->window.abort_word();
  context.world = world().device;
  context.heap_map = impl_->teams.heap_map();
  return context;
}

// Addresses.

const void* Context::TranslateAddress(const void* mine, uint32_t to) const {
  // Unsigned arithmetic: wraps correctly for peers below this rank.
  return reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(mine) +
                                       (static_cast<uint64_t>(to) - rank()) * stride_bytes());
}

absl::StatusOr<Context::Location> Context::Locate(const void* address) const {
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

bool Context::IsSymmetric(const void* address, uint64_t bytes) const {
  const auto location = Locate(address);
  if (!location.ok()) return false;
  const uint64_t heap = heap_bytes();
  return location->offset_bytes <= heap && bytes <= heap - location->offset_bytes;
}

// What all members of a team call together.

absl::StatusOr<Allocation> Context::Allocate(const AllocateOptions& options) {
  return Allocate(options, impl_->world);
}
absl::StatusOr<Allocation> Context::Allocate(const AllocateOptions& options, const Team& team) {
  return impl_->teams.Allocate(options, team);
}
absl::Status Context::Free(const Allocation& allocation) { return impl_->teams.Free(allocation); }
absl::Status Context::Grow(uint64_t bytes) { return impl_->teams.Grow(bytes, impl_->world); }

absl::StatusOr<std::string> Context::Broadcast(absl::string_view value, uint32_t root) {
  return Broadcast(value, root, impl_->world);
}
absl::StatusOr<std::string> Context::Broadcast(absl::string_view value, uint32_t root,
                                               const Team& team) {
  return impl_->teams.Broadcast(value, root, team);
}

absl::StatusOr<Team> Context::CreateTeam(absl::Span<const uint32_t> ranks) {
  return CreateTeam(ranks, impl_->world);
}
absl::StatusOr<Team> Context::CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent) {
  return impl_->teams.CreateTeam(ranks, parent);
}
absl::Status Context::DestroyTeam(const Team& team) { return impl_->teams.DestroyTeam(team); }

absl::Status Context::Barrier() { return Barrier(impl_->world); }
absl::Status Context::Barrier(const Team& team) {
  return Barrier(team, impl_->membership->options().timeout);
}
absl::Status Context::Barrier(const Team& team, absl::Duration timeout) {
  return impl_->teams.Barrier(team, timeout);
}

}  // namespace iris
