#include "client/context/host_context.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/context_guard.h"
#include "client/base/log.h"
#include "client/base/options.h"
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

HostContext::HostContext(std::unique_ptr<Membership> membership)
    : membership_(std::move(membership)),
      window_(membership_->window()),
      teams_({membership_->job().job_id, rank(), membership_->timeout(), membership_->options().job,
              membership_->local_device().indices},
             &membership_->guard(), &membership_->plane(), &window_, &heap_),
      growth_({membership_->job().job_id, membership_->job().epoch, rank(),
               membership_->local_device().indices},
              &membership_->plane(), &window_, &heap_),
      world_(teams_.AddTeam(membership_->committed().world)) {
  heap_.AtLeast(membership_->job().heap_bytes);
  membership_->Watch([this](const WatchEvent& event) { OnEvent(event); });
}

absl::StatusOr<HostContext::Owned> HostContext::Create(const HostContextOptions& options) {
  if (absl::Status status = ContextGuard::ClaimProcess(); !status.ok()) {
    return Annotate(status, "create a context");
  }
  auto resolved = ResolveOptions(options);
  if (!resolved.ok()) return Annotate(resolved.status(), "create a context");
  log::SetRank(static_cast<uint32_t>(resolved->rank), static_cast<uint32_t>(resolved->n_ranks));
  auto joined = Membership::Join(*std::move(resolved));
  if (!joined.ok()) return joined.status();
  Owned context(new HostContext(*std::move(joined)));
  const Membership& membership = context->membership();
  log::Info("joined job \"", membership.options().job, "\" as rank ", context->rank(), " of ",
            context->n_ranks(), " on device ", membership.job().device_uuid, ", epoch ",
            membership.job().epoch,
            ", same_address=", membership.committed().same_address ? "true" : "false");
  context->WarnOfSharedDevice();
  if (absl::Status status = context->MakeTrace(); !status.ok()) {
    return Annotate(status, "create a context");
  }
  return context;
}

void HostContext::WarnOfSharedDevice() const {
  const std::vector<Peer>& peers = membership_->job().peers;
  // The first rank of a device says it, where another process has one there.
  const auto on_device = [this](const Peer& peer) {
    return peer.device_uuid == membership_->job().device_uuid;
  };
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
  const HostContextOptions& options = membership_->options();
  if (options.trace_events == 0) return absl::OkStatus();
  AllocateOptions wanted;
  wanted.bytes = TraceAreaBytes(options.trace_events);
  wanted.alignment_bytes = 4096;
  wanted.name = TraceRecorder::kName;
  // The others may come out of the join later: this is a part of it.
  const auto area = teams_.Allocate(wanted, world_, absl::FromChrono(options.join_timeout));
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
  trace.devices = membership_->local_device().indices;
  trace.address = reinterpret_cast<uint64_t>(area->address);
  trace.bytes = wanted.bytes;
  trace.file = options.trace_file;
  auto made = TraceRecorder::Make(std::move(trace), &membership_->guard(), &window_.driver());
  if (!made.ok()) return made.status();
  trace_ = *std::move(made);
  teams_.TraceBy(trace_.get());
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
  context->CloseTrace();
  const absl::Status status = context->membership_->Leave();
  if (!status.ok()) {
    log::Info("leave job \"", context->membership_->options().job, "\": ", status.message());
  }
  delete context;
}

absl::Status HostContext::Leave() {
  if (absl::Status status = Usable(); !status.ok()) return status;
  CloseTrace();
  return membership_->Leave();
}

void HostContext::CloseTrace() {
  if (trace_ == nullptr) return;
  const absl::Status status = trace_->Close();
  if (!status.ok()) log::Warning(status.message());
}

void HostContext::OnEvent(const WatchEvent& event) {
  if (const auto* change = std::get_if<RankChange>(&event)) membership_->OnRankChange(*change);
  if (const auto* added = std::get_if<SegmentsAdded>(&event)) growth_.OnSegmentsAdded(*added);
  if (const auto* done = std::get_if<GrowDone>(&event)) growth_.OnGrowDone(*done);
  if (const auto* stopping = std::get_if<Stopping>(&event)) {
    log::Info("irisd is stopping: ", stopping->reason);
  }
}

DeviceContext HostContext::device_context() const {
  DeviceContext context;
  context.size_bytes = sizeof(context);
  context.rank = rank();
  context.n_ranks = n_ranks();
  context.base = window_.base();
  context.stride_bytes = stride_bytes();
  context.timeout_ns = static_cast<uint64_t>(
      absl::ToInt64Nanoseconds(std::min(membership_->timeout(), kTimeoutMax)));
  context.abort_word = window_.abort_word();
  context.world = world().device;
  context.heap_map = teams_.heap_map();
  if (trace_ != nullptr) context.trace = trace_->area();
  context.wait_notes = reinterpret_cast<WaitNote*>(window_.kernel_waits(rank()));
  return context;
}

absl::StatusOr<HostContext::Location> HostContext::Locate(const void* address) const {
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  const uint64_t base = window_.base();
  const uint64_t stride = stride_bytes();
  if (at < base || (at - base) / stride >= n_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("locate address 0x", absl::Hex(at), ": it is outside the window [0x",
                     absl::Hex(base), ", 0x", absl::Hex(base + n_ranks() * stride), ")"));
  }
  return Location{static_cast<uint32_t>((at - base) / stride), (at - base) % stride};
}

bool HostContext::IsSymmetric(const void* address, uint64_t bytes) const {
  const auto location = Locate(address);
  return location.ok() && (InHeap(location->offset_bytes, bytes) ||
                           teams_.HaveTogether({location->rank}, location->offset_bytes, bytes));
}

absl::Status HostContext::CheckShared(const char* role, const void* mine,
                                      absl::Span<const uint32_t> ranks) const {
  const uint64_t offset = reinterpret_cast<uint64_t>(mine) - window_.address(rank(), 0);
  // Outside of it all, or in the heap itself: nearly always.
  if (offset >= stride_bytes() || offset < heap_bytes()) return absl::OkStatus();
  if (teams_.HaveTogether(ranks, offset, 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", role, "` is at offset ", offset, " above the heap of ", base::SizeText(heap_bytes()),
      ", where the ranks ", absl::StrJoin(ranks, ","),
      " have registered nothing together: register it with all of them, or give the address of the "
      "memory itself"));
}

bool HostContext::IsMapped(const void* address, uint64_t bytes) const {
  const auto location = Locate(address);
  return location.ok() && Has(location->rank, location->offset_bytes, bytes);
}

bool HostContext::Reaches(uint32_t peer, const void* mine, uint64_t bytes) const {
  const auto location = Locate(mine);
  return location.ok() && location->rank == rank() && Has(peer, location->offset_bytes, bytes);
}

}  // namespace iris::internal
