#include "server/host/segment_store.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/driver/fabric.h"
#include "iris/port_types.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"
#include "proto/wire/unique_fd.h"
#include "server/keep/kept_name.h"

namespace iris::server {
namespace {

// Adds the device to an error. Errors other than lack of memory mean that it does not work.
absl::Status OfDevice(const driver::DeviceInfo& device, const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status) || absl::IsInvalidArgument(status)) {
    return status;
  }
  return absl::UnavailableError(absl::StrCat(
      "device ", device.index, " (", device.uuid, ", ", device.name, ") does not work: ",
      status.message(), ": look at the kernel's log, then restart irisd; until then use others"));
}

static_assert(wire::kFabricHandleBytes == driver::kFabricHandleBytes);

wire::DescriptorRecord Record(const SendDescriptors& wanted, wire::DescriptorKind kind, Rank rank,
                              uint64_t bytes) {
  wire::DescriptorRecord record;
  record.job_id = wanted.job.value;
  record.epoch = wanted.epoch;
  record.bytes = bytes;
  record.rank = rank;
  record.kind = static_cast<uint32_t>(kind);
  return record;
}

absl::StatusOr<int> Duplicate(const wire::UniqueFd& fd) {
  const int copy = fcntl(fd.get(), F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return wire::ErrnoStatus(errno, "duplicate a descriptor");
  return copy;
}

// Memory of another node: a descriptor of its fabric handle, which clients import.
class ImportedMemory : public driver::PhysicalMemory {
 public:
  ImportedMemory(wire::UniqueFd handle, uint64_t bytes)
      : PhysicalMemory(bytes), handle_(std::move(handle)) {}
  absl::StatusOr<int> ExportFd(driver::Access /*access*/) override { return Duplicate(handle_); }
  absl::Status Read(uint64_t /*offset_bytes*/, absl::Span<uint8_t> /*out*/) override {
    return absl::UnimplementedError("this is memory of another node: ask its irisd");
  }

 private:
  const wire::UniqueFd handle_;
};

void AddPages(const SendDescriptors& wanted, const JobPages& pages,
              std::vector<OutgoingDescriptor>* out) {
  out->push_back({Record(wanted, wire::DescriptorKind::kStatusPage, 0, wire::kPageBytes),
                  [file = pages.status_page()] { return file->Open(/*read_only=*/true); }});
  for (Rank rank = pages.first_rank(); rank < pages.first_rank() + pages.n_ranks(); ++rank) {
    const bool read_only = rank != wanted.receiver;
    out->push_back(
        {Record(wanted, wire::DescriptorKind::kControlPage, rank, wire::kPageBytes),
         [file = pages.control_page(rank), read_only] { return file->Open(read_only); }});
  }
  const std::shared_ptr<const RankPort> port = pages.port(wanted.receiver);
  if (port == nullptr) return;
  out->push_back(
      {Record(wanted, wire::DescriptorKind::kPortMemory, wanted.receiver, sizeof(PortMemory)),
       [port] { return Duplicate(port->memory); }});
  out->push_back({Record(wanted, wire::DescriptorKind::kPortWake, wanted.receiver, 0),
                  [port] { return Duplicate(port->wake); }});
}

}  // namespace

SegmentStore::Held::Held(SegmentStore* store, SegmentId segment,
                         std::optional<uint32_t> device_index,
                         std::unique_ptr<driver::PhysicalMemory> memory)
    : store_(store), segment_(segment), device_index_(device_index), memory_(std::move(memory)) {}

SegmentStore::Held::~Held() { store_->Retire(segment_, std::move(memory_)); }

SegmentStore::SegmentStore(driver::GpuDriver* driver, HostMemory* host_memory, WorkerPool* quick,
                           WorkerPool* slow, Report report, const Logger* logger)
    : driver_(driver),
      host_memory_(host_memory),
      quick_(quick),
      slow_(slow),
      report_(std::move(report)),
      logger_(logger) {
  if (driver_->link_bytes() == 0) return;
  for (const driver::DeviceInfo& device : driver_->devices()) {
    auto link = driver_->Create(device.index, driver_->link_bytes(), /*prealloc=*/false);
    if (!link.ok()) {
      logger_->Warn("no links between devices: joins will be slower",
                    {{"device", device.uuid}, {"error", link.status().ToString()}});
      links_.clear();
      return;
    }
    links_.push_back(*std::move(link));
  }
}

void SegmentStore::Create(const CreateSegment& wanted) {
  {
    absl::MutexLock lock(&mu_);
    segments_[wanted.id] = Segment();
  }
  WorkerPool& pool = wanted.prealloc ? *slow_ : *quick_;
  pool.Post([this, wanted] { CreateOnWorker(wanted); });
}

void SegmentStore::SetKeeper(DescriptorKeeper* keeper) {
  absl::MutexLock lock(&mu_);
  keeper_ = keeper;
}

DescriptorKeeper* SegmentStore::keeper() const {
  absl::MutexLock lock(&mu_);
  return keeper_;
}

void SegmentStore::Keep(SegmentId segment, driver::PhysicalMemory& memory) {
  DescriptorKeeper* const keeper = this->keeper();
  if (keeper == nullptr) return;
  const absl::StatusOr<int> exported = memory.ExportFd(driver::Access::kReadWrite);
  if (!exported.ok()) {
    logger_->Warn("a segment is not kept for the next irisd",
                  {{"segment", segment.value}, {"error", exported.status().ToString()}});
    return;
  }
  const wire::UniqueFd fd(*exported);
  // The keeper remembers an error.
  (void)keeper->Store(KeptName{KeptName::Kind::kSegment, segment.value}.Text(), {fd.get()});
}

void SegmentStore::Adopt(const AdoptSegment& wanted,
                         std::unique_ptr<driver::PhysicalMemory> memory) {
  Keep(wanted.id, *memory);
  Restore(wanted, std::move(memory));
}

void SegmentStore::Restore(const AdoptSegment& wanted,
                           std::unique_ptr<driver::PhysicalMemory> memory) {
  Add(wanted.id, wanted.device_index, std::move(memory));
}

void SegmentStore::Import(const ImportSegment& wanted) {
  absl::StatusOr<wire::UniqueFd> handle = driver::WrapFabricHandle(driver_->kind(), wanted.fabric);
  if (!handle.ok()) {
    logger_->Warn("cannot import memory of another node",
                  {{"segment", wanted.id.value}, {"error", handle.status().ToString()}});
    return;
  }
  Add(wanted.id, std::nullopt, std::make_unique<ImportedMemory>(*std::move(handle), wanted.bytes));
}

void SegmentStore::Add(SegmentId segment, std::optional<uint32_t> device_index,
                       std::unique_ptr<driver::PhysicalMemory> memory) {
  auto held = std::make_shared<Held>(this, segment, device_index, std::move(memory));
  absl::MutexLock lock(&mu_);
  segments_[segment] = Segment{.creating = false, .held = std::move(held)};
}

void SegmentStore::Drop(SegmentId segment) {
  std::shared_ptr<Held> held;  // destroyed after the lock is released
  {
    absl::MutexLock lock(&mu_);
    const auto it = segments_.find(segment);
    if (it != segments_.end()) {
      if (it->second.creating) {
        it->second.drop = true;
        return;
      }
      held = std::move(it->second.held);
      segments_.erase(it);
    }
  }
  // The segment's creation failed, or an earlier irisd lost it: the drop must be reported anyway.
  if (held == nullptr) Retire(segment, nullptr);
}

std::shared_ptr<SegmentStore::Held> SegmentStore::Find(SegmentId segment) const {
  absl::MutexLock lock(&mu_);
  const auto it = segments_.find(segment);
  return it == segments_.end() ? nullptr : it->second.held;
}

absl::Status SegmentStore::Read(SegmentId segment, uint64_t offset_bytes,
                                absl::Span<uint8_t> out) const {
  const std::shared_ptr<Held> held = Find(segment);
  if (held == nullptr) {
    return absl::NotFoundError(absl::StrCat("segment ", segment.value, " does not exist"));
  }
  return held->memory().Read(offset_bytes, out);
}

driver::CreateTimes SegmentStore::TimesOf(SegmentId segment) const {
  const std::shared_ptr<Held> held = Find(segment);
  return held == nullptr ? driver::CreateTimes() : held->memory().times();
}

absl::StatusOr<std::vector<OutgoingDescriptor>> SegmentStore::Export(
    const SendDescriptors& wanted, const absl::StatusOr<JobPages*>& pages) const {
  std::vector<OutgoingDescriptor> out;
  if (wanted.pages) {
    if (!pages.ok()) return pages.status();
    AddPages(wanted, **pages, &out);
  }
  absl::StatusOr<std::vector<OutgoingDescriptor>> segments =
      ExportSegments(wanted, driver::Access::kReadWrite);
  if (!segments.ok()) return absl::InternalError(segments.status().message());
  std::move(segments->begin(), segments->end(), std::back_inserter(out));
  if (!wanted.pages || links_.empty()) return out;
  std::set<uint32_t> devices;
  for (const SegmentInfo& segment : wanted.segments) {
    const std::shared_ptr<Held> held = Find(segment.id);
    if (held != nullptr && held->device_index().has_value()) devices.insert(*held->device_index());
  }
  for (const uint32_t device : devices) {
    out.push_back({Record(wanted, wire::DescriptorKind::kLink, device, driver_->link_bytes()),
                   [link = links_[device]] { return link->ExportFd(driver::Access::kReadOnly); }});
  }
  return out;
}

absl::StatusOr<std::vector<OutgoingDescriptor>> SegmentStore::ExportSegments(
    const SendDescriptors& wanted, driver::Access access) const {
  std::vector<OutgoingDescriptor> out;
  for (const SegmentInfo& segment : wanted.segments) {
    std::shared_ptr<Held> held = Find(segment.id);
    if (held == nullptr) {
      return absl::NotFoundError(absl::StrCat("segment ", segment.id.value, " has no memory"));
    }
    OutgoingDescriptor item;
    item.record = Record(wanted, wire::DescriptorKind::kSegment, segment.rank, segment.bytes);
    item.record.segment_id = segment.id.value;
    item.open = [held = std::move(held), access] { return held->memory().ExportFd(access); };
    out.push_back(std::move(item));
  }
  return out;
}

std::string SegmentStore::ExportToFabric(SegmentId segment, driver::PhysicalMemory& memory) const {
  const absl::StatusOr<std::string> handle = memory.ExportFabric();
  if (handle.ok()) return *handle;
  logger_->Warn("ranks of other nodes cannot map a segment, and use ports",
                {{"segment", segment.value}, {"error", handle.status().ToString()}});
  return "";
}

absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> SegmentStore::Make(
    const CreateSegment& wanted) {
  // Pages that are not reserved are charged to the first process that touches them, never irisd.
  const bool of_host = wanted.prealloc && driver_->kind() == driver::BackendKind::kEmu;
  if (of_host) {
    const absl::Status promised = host_memory_->Promise(wanted.bytes);
    if (!promised.ok()) return promised;
  }
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> made =
      driver_->Create(wanted.device_index, wanted.bytes, wanted.prealloc);
  if (of_host) host_memory_->Taken(wanted.bytes);
  return made;
}

void SegmentStore::CreateOnWorker(const CreateSegment& wanted) {
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory = Make(wanted);
  const absl::Status status = OfDevice(driver_->devices()[wanted.device_index], memory.status());
  if (!status.ok()) {
    AskDriverForFree(wanted.device_index);  // before the report, whose message has the number
    logger_->Warn("cannot create a segment", {{"segment", wanted.id.value},
                                              {"bytes", wanted.bytes},
                                              {"device", wanted.device_index},
                                              {"error", status.ToString()}});
  }
  std::shared_ptr<Held> held;
  std::string fabric;
  if (memory.ok()) {
    Keep(wanted.id, **memory);
    if (driver_->FabricDomain().ok()) fabric = ExportToFabric(wanted.id, **memory);
    held = std::make_shared<Held>(this, wanted.id, wanted.device_index, *std::move(memory));
  }
  bool drop = false;
  {
    absl::MutexLock lock(&mu_);
    Segment& segment = segments_.at(wanted.id);
    drop = segment.drop;
    segment.creating = false;
    if (drop) {
      segments_.erase(wanted.id);
    } else {
      segment.held = held;
    }
  }
  report_(SegmentCreated{wanted.id, status, std::move(fabric)});
  if (held == nullptr) {
    if (drop) {
      Retire(wanted.id, nullptr);
    } else {
      absl::MutexLock lock(&mu_);
      segments_.erase(wanted.id);  // after a reported failure there is no Drop
    }
  }
  held.reset();  // releases the last hold if the segment is to be dropped
  if (status.ok()) AskDriverForFree(wanted.device_index);
}

void SegmentStore::AskDriverForFree(uint32_t device_index) {
  const absl::StatusOr<driver::MemoryInfo> info = driver_->DeviceMemory(device_index);
  if (info.ok()) report_(DriverFree{device_index, info->free_bytes});
}

void SegmentStore::Retire(SegmentId segment, std::unique_ptr<driver::PhysicalMemory> memory) {
  if (DescriptorKeeper* const keeper = this->keeper(); keeper != nullptr) {
    keeper->Remove(KeptName{KeptName::Kind::kSegment, segment.value}.Text());
  }
  // Shared, because a std::function must be copyable; moved, because the worker's hold must be the
  // only one.
  std::shared_ptr<driver::PhysicalMemory> shared = std::move(memory);
  slow_->Post([this, segment, shared = std::move(shared)]() mutable {
    shared.reset();
    report_(SegmentDropped{segment});
  });
}

}  // namespace iris::server
