#include "device/local/world.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "iris/team_members.h"

namespace iris::local {
namespace {

constexpr uint64_t kReports = 1024;
constexpr uint64_t kReportBytes = 256;  // of a report, at most
constexpr uint64_t kBounceBytes = 1 << 20;
constexpr uint64_t kPageBytes = 4096;
// Longer than any wait of a rank on its device.
constexpr std::chrono::seconds kHostBarrierPatience(240);

// Thrown by HostBarrier and caught by Run: ends the body of a rank that another rank has failed.
struct Forsaken {
  absl::Status status;
};

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

absl::Status NoMemory(const char* what, uint64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what, ": ", bytes, " bytes"));
}

absl::Status ToStatus(const char* what, uint32_t rank, const Result& result) {
  if (result.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", rank, " cannot ", what, ": ", result.what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<World>> World::Create(const WorldOptions& options) {
  std::unique_ptr<World> world(new World);
  if (absl::Status status = world->Init(options); !status.ok()) return status;
  return world;
}

absl::Status World::Init(const WorldOptions& options) {
  const uint32_t n_ranks = options.n_ranks;
  if (n_ranks == 0 || n_ranks > kMaxTeamRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat(n_ranks, " ranks: a world has 1 to ", kMaxTeamRanks));
  }
  if (options.n_nodes == 0 || n_ranks % options.n_nodes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        n_ranks, " ranks are not equally many on each of ", options.n_nodes, " nodes"));
  }
  const uint32_t all_devices = backend::DeviceCount();
  const uint32_t n_devices =
      options.n_devices == 0 ? all_devices : std::min(options.n_devices, all_devices);
  if (n_devices == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no device of backend ", backend::BackendName(), " on this machine"));
  }
  DeviceContext context;
  context.n_ranks = n_ranks;
  context.stride_bytes = RoundUp(options.heap_bytes + kSyncAreaBytes, kPageBytes);
  if (backend::Traits::kEmulated) {
    const uint64_t bytes = n_ranks * context.stride_bytes + kPageBytes;
    malloced_ = backend::MallocDevice(bytes);
    if (malloced_ == nullptr) return NoMemory("the heaps", bytes);
    context.base = RoundUp(reinterpret_cast<uint64_t>(malloced_), kPageBytes);
  } else {
    absl::StatusOr<Window> window =
        MakeWindow(backend::BackendName(), n_ranks, context.stride_bytes, n_devices);
    if (!window.ok()) return absl::ResourceExhaustedError(window.status().message());
    window_ = *std::move(window);
    context.base = window_.base;
    context.stride_bytes = window_.stride_bytes;
  }
  abort_word_ = static_cast<uint32_t*>(backend::MallocHost(sizeof(uint32_t)));
  reports_ = static_cast<uint64_t*>(backend::MallocHost(kReports * kReportBytes));
  if (abort_word_ == nullptr || reports_ == nullptr) {
    return NoMemory("the words of aborts and errors", kReports * kReportBytes);
  }
  *abort_word_ = 0;
  std::memset(reports_, 0, kReports * kReportBytes);
  context.timeout_ns = options.timeout_ns;
  context.abort_word = abort_word_;
  context.world.size = n_ranks;
  context.world.sync_offset_bytes = 0;
  for (uint32_t i = 0; i < n_ranks; ++i) context.world.members[i] = static_cast<uint8_t>(i);
  for (uint32_t r = 0; r < n_ranks; ++r) {
    if (absl::Status status = AddRank(r, n_devices, context); !status.ok()) return status;
  }
  return options.n_nodes > 1 ? AddPorts(options) : absl::OkStatus();
}

absl::Status World::AddPorts(const WorldOptions& options) {
  const uint32_t n_local = options.n_ranks / options.n_nodes;
  std::vector<PortThread::Rank> served;
  for (const auto& rank : ranks_) {
    void* const memory = backend::MallocHost(sizeof(Port));
    if (memory == nullptr) return NoMemory("requests to other nodes", sizeof(Port));
    std::memset(memory, 0, sizeof(Port));
    Port* const port = ports_.emplace_back(static_cast<Port*>(memory));
    PortRing& ring = port->memory.rings[kPortKernelRing];
    port->device.slots = ring.slots;
    port->device.results = ring.results;
    port->device.words = &port->memory.words[kPortKernelRing];
    port->device.stages = port->memory.values + kPortHostValueBytes;
    port->device.asleep = &port->memory.asleep;
    port->device.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DeviceContext& ctx = rank->ctx;
    ctx.n_mapped = n_local;
    ctx.first_mapped = ctx.rank / n_local * n_local;
    ctx.port = &port->device;
    ctx.world.step = 1;
    served.push_back({&port->memory, AtOffset<uint8_t>(ctx, ctx.rank, 0), ctx.stride_bytes,
                      port->device.wake_fd});
  }
  PortThread::Options with_copy = options.port;
  if (!backend::Traits::kEmulated) {
    if (Result result = backend::Stream::Create(&port_stream_); !result.ok()) {
      return ToStatus("copy between nodes", 0, result);
    }
    with_copy.copy = [this](void* to, const void* from, uint64_t bytes) {
      return backend::CopyAsync(to, from, bytes, port_stream_).ok() &&
             port_stream_.Synchronize().ok();
    };
    const DeviceAtomicsTable* const table = iris_device_atomics();
    if (Result result = table->Create(&port_atomics_); !result.ok()) {
      return ToStatus("do atomics between nodes", 0, result);
    }
    with_copy.atomic = [this, table](const DeviceAtomic& atomic, uint64_t* old) {
      bool done = false;
      Result result = table->Start(port_atomics_, &atomic, 1);
      while (result.ok() && !done) result = table->Poll(port_atomics_, old, &done);
      return result.ok();
    };
  }
  port_thread_ = std::make_unique<PortThread>(std::move(served), std::move(with_copy));
  return absl::OkStatus();
}

absl::Status World::AddRank(uint32_t r, uint32_t n_devices, const DeviceContext& context) {
  ranks_.push_back(std::make_unique<Rank>());
  Rank& rank = *ranks_.back();
  rank.ctx = context;
  rank.ctx.rank = r;
  rank.ctx.world.index = r;
  rank.world_ = this;
  rank.used_bytes_ = kSyncAreaBytes;
  rank.device_ = r % n_devices;
  rank.bounce_ = backend::MallocHost(kBounceBytes);
  if (rank.bounce_ == nullptr) return NoMemory("copies between host and device", kBounceBytes);
  Result result = backend::SetDevice(rank.device_);
  if (result.ok()) result = backend::Stream::Create(&rank.stream);
  if (result.ok()) {
    result =
        backend::FillAsync(AtOffset<void>(rank.ctx, r, 0), 0, context.stride_bytes, rank.stream);
  }
  if (result.ok()) result = rank.stream.Synchronize();
  return ToStatus("clear its heap", r, result);
}

World::~World() {
  for (auto& rank : ranks_) {
    rank->stream = backend::Stream();
    backend::FreeHost(rank->bounce_);
  }
  port_thread_.reset();
  if (port_atomics_ != nullptr) iris_device_atomics()->Destroy(port_atomics_);
  for (Port* port : ports_) {
    close(port->device.wake_fd);
    backend::FreeHost(port);
  }
  for (const auto& end : at_end_) end();
  ranks_.clear();
  for (uint32_t* const table : tables_) backend::FreeHost(table);
  backend::FreeHost(reports_);
  backend::FreeHost(abort_word_);
  backend::FreeDevice(malloced_);
}

absl::Status World::Run(const std::function<void(Rank&)>& body) {
  std::mutex mu;
  absl::Status first;
  bool all_can_run = true;
  {
    std::lock_guard<std::mutex> lock(mu_);
    n_arrived_ = 0;
    ended_.clear();
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks_) {
    threads.emplace_back([&] {
      absl::Status status =
          ToStatus("choose its device", rank->rank(), backend::SetDevice(rank->device_));
      if (!status.ok()) {
        std::lock_guard<std::mutex> lock(mu);
        first.Update(status);
        all_can_run = false;
      }
      try {
        HostBarrier(rank->rank());  // the others would miss a rank that cannot run
        if (all_can_run) body(*rank);
      } catch (const Forsaken& forsaken) {
        std::lock_guard<std::mutex> lock(mu);
        first.Update(forsaken.status);
      }
      std::lock_guard<std::mutex> lock(mu_);
      ended_.push_back(rank->rank());
      changed_.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

uint32_t World::ranks_per_device() const {
  uint32_t count = 0;
  for (const auto& rank : ranks_) count += rank->device() == 0 ? 1 : 0;
  return count;
}

void World::HostBarrier(uint32_t rank) {
  std::unique_lock<std::mutex> lock(mu_);
  const uint64_t round = n_rounds_;
  if (++n_arrived_ == n_ranks()) {
    n_arrived_ = 0;
    ++n_rounds_;
    changed_.notify_all();
    return;
  }
  const bool woken = changed_.wait_for(lock, kHostBarrierPatience,
                                       [&] { return n_rounds_ != round || !ended_.empty(); });
  if (n_rounds_ != round) return;
  const std::string waits = absl::StrCat("rank ", rank, " waits at a host barrier of the world");
  throw Forsaken{woken ? absl::AbortedError(absl::StrCat(waits, ", and rank ", ended_.front(),
                                                         " has ended without it"))
                       : absl::DeadlineExceededError(
                             absl::StrCat(waits, ", and not all others have come after ",
                                          kHostBarrierPatience.count(), " seconds"))};
}

void World::AtEnd(std::function<void()> end) {
  std::lock_guard<std::mutex> lock(mu_);
  at_end_.push_back(std::move(end));
}

void* World::NewReport(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  if (n_reports_ == kReports || bytes > kReportBytes) return nullptr;
  return reports_ + kReportBytes / sizeof(uint64_t) * n_reports_++;
}

void Rank::HostBarrier() { world_->HostBarrier(rank()); }

void* Rank::NewBytes(uint64_t bytes, uint64_t alignment_bytes) {
  const uint64_t offset_bytes = RoundUp(used_bytes_, alignment_bytes);
  if (offset_bytes > ctx.stride_bytes || bytes > ctx.stride_bytes - offset_bytes) return nullptr;
  used_bytes_ = offset_bytes + bytes;
  return AtOffset<void>(ctx, ctx.rank, offset_bytes);
}

Result Rank::NewTeam(const std::vector<uint32_t>& ranks, DeviceTeam* team) {
  void* area = NewBytes(kSyncAreaBytes, 256);
  if (area == nullptr) {
    return {StatusCode::kInvalidArgument, "the heap has no room for the team's barrier area"};
  }
  *team = DeviceTeam();
  team->id = ++n_teams_;
  team->size = static_cast<uint32_t>(ranks.size());
  team->index = team->size;
  for (uint32_t i = 0; i < team->size; ++i) {
    if (ranks[i] == rank()) team->index = i;
  }
  team->sync_offset_bytes = OffsetBytes(ctx, area);
  auto* const lasting = static_cast<uint32_t*>(
      backend::MallocHost(std::max<size_t>(ranks.size(), 1) * sizeof(uint32_t)));
  if (lasting == nullptr) return {StatusCode::kResourceExhausted, "no memory for the team's list"};
  std::copy(ranks.begin(), ranks.end(), lasting);
  {
    std::lock_guard<std::mutex> lock(world_->mu_);
    world_->tables_.push_back(lasting);
  }
  const uint32_t n_local = ctx.n_mapped == 0 ? ctx.n_ranks : ctx.n_mapped;
  const uint32_t first = ranks.empty() ? 0 : ranks[0] / n_local * n_local;
  SetMembers(lasting, first, n_local, team);
  return {};
}

Result Rank::ReadBytes(void* to, const void* from, uint64_t bytes) {
  Result result = stream.Synchronize();
  for (uint64_t at = 0; at < bytes && result.ok(); at += kBounceBytes) {
    const uint64_t part = std::min(bytes - at, kBounceBytes);
    const void* source = static_cast<const uint8_t*>(from) + at;
    result = backend::CopyAsync(bounce_, source, part, stream);
    if (result.ok()) result = stream.Synchronize();
    if (result.ok()) std::memcpy(static_cast<uint8_t*>(to) + at, bounce_, part);
  }
  return result;
}

Result Rank::WriteBytes(void* to, const void* from, uint64_t bytes) {
  Result result;
  for (uint64_t at = 0; at < bytes && result.ok(); at += kBounceBytes) {
    const uint64_t part = std::min(bytes - at, kBounceBytes);
    std::memcpy(bounce_, static_cast<const uint8_t*>(from) + at, part);
    result = backend::CopyAsync(static_cast<uint8_t*>(to) + at, bounce_, part, stream);
    if (result.ok()) result = stream.Synchronize();
  }
  return result;
}

}  // namespace iris::local
