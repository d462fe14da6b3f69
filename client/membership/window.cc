#include "client/membership/window.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/backend/local_devices.h"
#include "client/base/annotate.h"
#include "client/base/log.h"
#include "device/base/bytes.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

namespace iris::internal {
namespace {

// Windows of this process, for ranks that are threads of it. Never destroyed.
struct Registry {
  absl::Mutex mu;
  std::map<WindowKey, std::weak_ptr<Window>> windows ABSL_GUARDED_BY(mu);
};
Registry& GetRegistry() {
  static Registry* const registry = new Registry();
  return *registry;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Window>> Window::Acquire(const WindowSpec& wanted_spec) {
  WindowSpec spec = wanted_spec;
  if (spec.n_local == 0) {
    spec.first_local = spec.first_rank;
    spec.n_local = spec.n_ranks;
  }
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  std::weak_ptr<Window>& entry = registry.windows[spec.key];
  if (std::shared_ptr<Window> window = entry.lock()) {
    if (window->spec_.n_ranks != spec.n_ranks || window->spec_.first_rank != spec.first_rank ||
        window->spec_.first_local != spec.first_local || window->spec_.n_local != spec.n_local ||
        window->spec_.stride_bytes != spec.stride_bytes) {
      return absl::InternalError("irisd gave two ranks of one job windows of different shapes");
    }
    return window;
  }
  std::shared_ptr<Window> window(new Window(spec));
  auto driver = ProcessDriver(spec.backend);
  if (!driver.ok()) return driver.status();
  window->driver_ = *std::move(driver);
  // Beyond this place no process has memory: heaps of later nodes are then at any address.
  constexpr uint64_t kEndOfAddresses = 1ull << 47;
  uint64_t wanted = 0;
  if (spec.wanted_base == 0 ||
      __builtin_mul_overflow(uint64_t{spec.first_rank}, spec.stride_bytes, &wanted) ||
      __builtin_add_overflow(wanted, spec.wanted_base, &wanted) ||
      wanted > kEndOfAddresses - spec.n_ranks * spec.stride_bytes) {
    wanted = 0;
  }
  auto reservation = window->driver_->Reserve(spec.stride_bytes, spec.n_ranks, wanted);
  if (!reservation.ok()) {
    const absl::Status status = Annotate(
        reservation.status(), absl::StrCat("reserve a window of ", spec.n_ranks, " ranks x ",
                                           base::SizeText(spec.stride_bytes)));
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "; a smaller max_heap_bytes needs less address space"));
  }
  window->reservation_ = *std::move(reservation);
  const size_t pages_bytes = (spec.n_local + 1) * wire::kPageBytes;
  void* const pages =
      mmap(nullptr, pages_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return wire::ErrnoStatus(errno, "reserve room for control pages");
  window->pages_ = pages;
  madvise(pages, pages_bytes, MADV_DONTFORK);
  {
    absl::MutexLock window_lock(&window->mu_);
    window->mapped_.resize(spec.n_local + 1);
  }
  entry = window;
  // Erases entries of destroyed windows, so that they do not accumulate.
  for (auto it = registry.windows.begin(); it != registry.windows.end();) {
    it = it->second.expired() ? registry.windows.erase(it) : std::next(it);
  }
  return window;
}

Window::~Window() {
  absl::MutexLock lock(&mu_);
  if (abort_word_ != nullptr) (void)driver_->UnregisterHost(page(spec_.n_local));
  for (uint32_t i = 0; i < mapped_.size(); ++i) {
    if (mapped_[i].kernel_waits != nullptr) (void)driver_->UnregisterHost(page(i));
  }
  // In reverse: the newest segments first, the reservation last.
  while (!segments_.empty()) segments_.erase(std::prev(segments_.end()));
  if (pages_ != nullptr) munmap(pages_, (spec_.n_local + 1) * wire::kPageBytes);
}

absl::Status Window::MapSegment(uint32_t holder, const Segment& segment, wire::UniqueFd fd,
                                absl::Span<const uint32_t> devices, CreateTimings* times) {
  // irisd is trusted with addresses, but a bug of irisd must not map over a neighbour's heap.
  if (!Has(segment.rank) || segment.offset_bytes > spec_.stride_bytes ||
      segment.bytes > spec_.stride_bytes - segment.offset_bytes) {
    return absl::InternalError(absl::StrCat("irisd announced segment ", segment.segment_id,
                                            " of rank ", segment.rank,
                                            " outside the rank's range of the window"));
  }
  absl::MutexLock lock(&mu_);
  const auto annotate = [&](const absl::Status& status) {
    return Annotate(status,
                    absl::StrCat("map segment ", segment.segment_id, " (",
                                 base::SizeText(segment.bytes), ") of rank ", segment.rank));
  };
  if (const auto it = segments_.find(segment.segment_id); it != segments_.end()) {
    for (const uint32_t device : devices) {
      absl::Status status = it->second.mapping->Allow(device);
      if (!status.ok()) return annotate(status);
    }
    it->second.holders.insert(holder);
    return absl::OkStatus();
  }
  if (absl::Status status = MakeWay(segment); !status.ok()) return annotate(status);
  MappedSegment mapped;
  mapped.where = segment;
  const absl::Time start = absl::Now();
  auto memory = driver_->Import(fd.Release(), segment.bytes);
  if (!memory.ok()) return annotate(memory.status());
  mapped.memory = *std::move(memory);
  const absl::Duration import = absl::Now() - start;
  auto mapping = driver_->Map(
      *reservation_, (segment.rank - spec_.first_rank) * spec_.stride_bytes + segment.offset_bytes,
      *mapped.memory, driver::Access::kReadWrite, devices);
  if (!mapping.ok()) return annotate(mapping.status());
  mapped.mapping = *std::move(mapping);
  if (times != nullptr) {
    times->import += absl::ToChronoNanoseconds(import);
    times->map_memory += absl::ToChronoNanoseconds(mapped.mapping->times().map);
    times->set_access += absl::ToChronoNanoseconds(mapped.mapping->times().access);
  }
  mapped.holders.insert(holder);
  segments_.emplace(segment.segment_id, std::move(mapped));
  return absl::OkStatus();
}

absl::Status Window::MakeWay(const Segment& segment) {
  std::vector<uint64_t> stale;
  for (const auto& [id, mapped] : segments_) {
    const Segment& there = mapped.where;
    if (there.rank != segment.rank || there.offset_bytes + there.bytes <= segment.offset_bytes ||
        segment.offset_bytes + segment.bytes <= there.offset_bytes) {
      continue;
    }
    if (id > segment.segment_id) {
      return absl::AbortedError(
          absl::StrCat("its place is that of segment ", id, " by now: it was given back"));
    }
    stale.push_back(id);
  }
  for (const uint64_t id : stale) segments_.erase(id);
  return absl::OkStatus();
}

void Window::UnmapSegment(uint32_t holder, uint64_t segment_id) {
  absl::MutexLock lock(&mu_);
  const auto it = segments_.find(segment_id);
  if (it == segments_.end()) return;
  it->second.holders.erase(holder);
  if (it->second.holders.empty()) segments_.erase(it);
}

void Window::UnmapAll(uint32_t holder) {
  absl::MutexLock lock(&mu_);
  for (auto it = segments_.end(); it != segments_.begin();) {
    --it;
    it->second.holders.erase(holder);
    if (it->second.holders.empty()) it = segments_.erase(it);
  }
}

void* Window::page(uint32_t index) const {
  return static_cast<char*>(pages_) + index * wire::kPageBytes;
}

absl::Status Window::MapPage(uint32_t index, const wire::UniqueFd& fd, bool writable,
                             const char* what) {
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return wire::ErrnoStatus(errno, absl::StrCat("map ", what));
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (info.st_size != wire::kPageBytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InternalError(absl::StrCat("map ", what,
                                            ": irisd sent something that is not a "
                                            "sealed page of ",
                                            wire::kPageBytes, " bytes"));
  }
  if (mmap(page(index), wire::kPageBytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
           MAP_SHARED | MAP_FIXED, fd.get(), 0) == MAP_FAILED) {
    return wire::ErrnoStatus(errno, absl::StrCat("map ", what));
  }
  madvise(page(index), wire::kPageBytes, MADV_DONTFORK);
  return absl::OkStatus();
}

absl::Status Window::MapControlPage(uint32_t rank, wire::UniqueFd fd, bool writable) {
  absl::MutexLock lock(&mu_);
  if (!IsLocal(rank)) return absl::InternalError("control page of a rank out of range");
  const uint32_t index = rank - spec_.first_local;
  Page& mapped = mapped_[index];
  if (mapped.mapped && (mapped.writable || !writable)) return absl::OkStatus();
  absl::Status status = MapPage(index, fd, writable, "a control page");
  if (!status.ok()) return status;
  mapped = {true, writable, nullptr};
  if (!writable) return absl::OkStatus();
  const auto registered =
      driver_->RegisterHost(page(index), wire::kPageBytes, driver::Access::kReadWrite);
  if (!registered.ok()) {
    log::Info("waits of kernels are not listed: ", registered.status().message());
    return absl::OkStatus();
  }
  mapped.kernel_waits =
      static_cast<wire::ControlPage*>(const_cast<void*>(*registered))->kernel_waits;
  return absl::OkStatus();
}

absl::Status Window::MapStatusPage(wire::UniqueFd fd) {
  absl::MutexLock lock(&mu_);
  if (mapped_[spec_.n_local].mapped) return absl::OkStatus();
  absl::Status status = MapPage(spec_.n_local, fd, /*writable=*/false, "the status page");
  if (!status.ok()) return status;
  auto registered =
      driver_->RegisterHost(page(spec_.n_local), wire::kPageBytes, driver::Access::kReadOnly);
  if (!registered.ok()) return registered.status();
  mapped_[spec_.n_local].mapped = true;
  abort_word_ = &static_cast<const wire::StatusPage*>(*registered)->abort;
  return absl::OkStatus();
}

wire::ControlPage* Window::control_page(uint32_t rank) const {
  return static_cast<wire::ControlPage*>(page(rank - spec_.first_local));
}

JobStatus Window::status() const {
  return JobStatus(static_cast<const wire::StatusPage*>(page(spec_.n_local)), spec_.first_local,
                   spec_.n_local);
}

const uint32_t* Window::abort_word() const {
  absl::MutexLock lock(&mu_);
  return abort_word_;
}

wire::KernelWait* Window::kernel_waits(uint32_t rank) const {
  absl::MutexLock lock(&mu_);
  return mapped_[rank - spec_.first_local].kernel_waits;
}

size_t Window::n_segments() const {
  absl::MutexLock lock(&mu_);
  return segments_.size();
}

}  // namespace iris::internal
