#include "server/port/memory.h"

#include <string.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/driver/open.h"
#include "device/iris/port_atomic.h"
#include "device/iris/types.h"
#include "server/job/clock.h"

namespace iris::port {
namespace {

template <typename T>
void CopyWord(void* to, const void* from) {
  const auto is_aligned = [](const void* at) {
    return reinterpret_cast<uint64_t>(at) % sizeof(T) == 0;
  };
  T word;
  if (is_aligned(from)) {
    word = __atomic_load_n(static_cast<const T*>(from), __ATOMIC_ACQUIRE);
  } else {
    memcpy(&word, from, sizeof(word));
  }
  if (is_aligned(to)) {
    __atomic_store_n(static_cast<T*>(to), word, __ATOMIC_RELEASE);
  } else {
    memcpy(to, &word, sizeof(word));
  }
}

}  // namespace

void CopyShared(void* to, const void* from, uint64_t bytes) {
  if (bytes == 8) return CopyWord<uint64_t>(to, from);
  if (bytes == 4) return CopyWord<uint32_t>(to, from);
  if (bytes == 2) return CopyWord<uint16_t>(to, from);
  if (bytes > 0) memcpy(to, from, bytes);
}

absl::StatusOr<std::unique_ptr<HeapMemory>> HeapMemory::Open(const std::string& backend,
                                                             uint64_t max_heap_bytes,
                                                             const Options& options) {
  driver::OpenOptions how;
  how.backend = backend;
  absl::StatusOr<driver::OpenedDriver> opened = driver::OpenDriver(how);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<HeapMemory> made(
      new HeapMemory(std::move(opened->driver), max_heap_bytes, options));
  if (made->addressed_ || options.atomics != nullptr) return made;
  const absl::StatusOr<const DeviceAtomicsTable*> loaded = LoadDeviceAtomics(backend);
  if (loaded.ok()) {
    made->atomics_ = *loaded;
  } else {
    made->failure_ = loaded.status();
  }
  return made;
}

absl::Status HeapMemory::Add(uint64_t id, uint32_t rank, uint64_t offset_bytes, uint64_t bytes,
                             const std::string& device_uuid, wire::UniqueFd fd) {
  const std::string name = absl::StrCat("memory ", id, " of rank ", rank, " at offset ",
                                        offset_bytes, " with ", bytes, " bytes");
  if (bytes == 0 || offset_bytes > max_heap_bytes_ || bytes > max_heap_bytes_ - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is beyond the heap"));
  }
  Segments& segments = ranks_[rank];
  const auto after = segments.lower_bound(offset_bytes);
  bool overlaps = after != segments.end() && after->first < offset_bytes + bytes;
  if (after != segments.begin()) {
    const Segment& before = *std::prev(after)->second;
    overlaps |= before.offset_bytes + before.bytes > offset_bytes;
  }
  if (overlaps) return absl::InvalidArgumentError(absl::StrCat(name, " overlaps another one"));
  auto segment = std::make_shared<Segment>();
  segment->id = id;
  segment->rank = rank;
  segment->offset_bytes = offset_bytes;
  segment->bytes = bytes;
  std::vector<uint32_t> devices;
  if (!addressed_) {
    for (const driver::DeviceInfo& device : driver_->devices()) {
      if (device.uuid == device_uuid) devices.push_back(device.index);
    }
    if (devices.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, ": this process does not see device ", device_uuid));
    }
    segment->device = devices.front();
    const absl::Status current = driver_->MakeCurrent(segment->device);
    if (!current.ok()) return current;
  }
  if (devices_.count(segment->device) == 0) {
    Device device;
    if (!addressed_) {
      absl::StatusOr<std::unique_ptr<driver::HostCopies>> copies =
          driver_->CopiesOf(segment->device);
      if (!copies.ok()) return copies.status();
      device.copies = *std::move(copies);
    }
    if (atomics_ != nullptr) {
      absl::StatusOr<std::unique_ptr<DeviceQueue>> queue =
          DeviceQueue::Create(atomics_, absl::StrCat("device ", device_uuid), give_up_after_);
      if (!queue.ok()) failure_ = queue.status();
      if (queue.ok()) device.atomics = *std::move(queue);
    }
    devices_.emplace(segment->device, std::move(device));
  }
  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> memory =
      driver_->Import(fd.Release(), bytes);
  if (!memory.ok()) return memory.status();
  segment->memory = *std::move(memory);
  absl::StatusOr<std::unique_ptr<driver::Reservation>> reservation =
      driver_->Reserve(bytes, 1, /*wanted_base=*/0);
  if (!reservation.ok()) return reservation.status();
  segment->reservation = *std::move(reservation);
  absl::StatusOr<std::unique_ptr<driver::Mapping>> mapping =
      driver_->Map(*segment->reservation, 0, *segment->memory, driver::Access::kReadWrite, devices);
  if (!mapping.ok()) return mapping.status();
  segment->mapping = *std::move(mapping);
  segment->address = segment->mapping->address();
  segments.emplace(offset_bytes, std::move(segment));
  return absl::OkStatus();
}

void HeapMemory::Forget(uint64_t id) {
  for (auto& [rank, segments] : ranks_) {
    for (auto it = segments.begin(); it != segments.end(); ++it) {
      if (it->second->id != id) continue;
      (void)Finish(rank, it->first);
      last_ = nullptr;
      segments.erase(it);
      return;
    }
  }
}

const std::shared_ptr<HeapMemory::Segment>* HeapMemory::Find(uint32_t rank, uint64_t offset_bytes) {
  if (last_ != nullptr) {
    const Segment& last = **last_;
    if (last.rank == rank && offset_bytes - last.offset_bytes < last.bytes) return last_;
  }
  const auto segments = ranks_.find(rank);
  if (segments == ranks_.end()) return nullptr;
  auto it = segments->second.upper_bound(offset_bytes);
  if (it == segments->second.begin()) return nullptr;
  --it;
  if (offset_bytes - it->first >= it->second->bytes) return nullptr;
  return last_ = &it->second;
}

template <typename Use>
StatusCode HeapMemory::ForRange(uint32_t rank, uint64_t offset_bytes, uint64_t bytes, Use use) {
  if (!Covers(rank, offset_bytes, bytes)) return StatusCode::kOutOfRange;
  uint64_t done = 0;
  while (done < bytes) {
    const Segment& segment = **Find(rank, offset_bytes + done);
    const uint64_t within = offset_bytes + done - segment.offset_bytes;
    const uint64_t n = std::min(bytes - done, segment.bytes - within);
    const StatusCode code = use(segment, segment.address + within, done, n);
    if (code != StatusCode::kOk) return code;
    done += n;
  }
  return StatusCode::kOk;
}

bool HeapMemory::Covers(uint32_t rank, uint64_t offset_bytes, uint64_t bytes) {
  if (offset_bytes > max_heap_bytes_ || bytes > max_heap_bytes_ - offset_bytes) return false;
  const uint64_t end = offset_bytes + bytes;
  while (offset_bytes < end) {
    const std::shared_ptr<Segment>* segment = Find(rank, offset_bytes);
    if (segment == nullptr) return false;
    offset_bytes = (*segment)->offset_bytes + (*segment)->bytes;
  }
  return true;
}

std::optional<HeapMemory::Place> HeapMemory::Source(uint32_t rank, uint64_t offset_bytes,
                                                    uint64_t bytes) {
  const std::shared_ptr<Segment>* segment = Find(rank, offset_bytes);
  if (segment == nullptr) return std::nullopt;
  const uint64_t within = offset_bytes - (*segment)->offset_bytes;
  const uint64_t address = (*segment)->address + within;
  bytes = std::min(bytes, (*segment)->bytes - within);
  if (addressed_) return Place{reinterpret_cast<const uint8_t*>(address), bytes, *segment};
  absl::StatusOr<std::shared_ptr<const uint8_t>> read =
      devices_[(*segment)->device].copies->Fetch(address, bytes);
  if (!read.ok()) failure_ = read.status();
  if (!read.ok() || *read == nullptr) return std::nullopt;
  const uint8_t* const data = read->get();
  return Place{data, bytes, *std::move(read)};
}

StatusCode HeapMemory::End(Device* device, const absl::Status& status) {
  const StatusCode code = status.ok() ? StatusCode::kOk : StatusCode::kInternal;
  failure_.Update(status);
  if (device->written != nullptr) {
    device->written->done = true;
    device->written->code = code;
    device->written = nullptr;
  }
  return code;
}

HeapMemory::Device* HeapMemory::DeviceOf(uint32_t rank, uint64_t offset_bytes) {
  if (addressed_) return nullptr;
  const std::shared_ptr<Segment>* segment = Find(rank, offset_bytes);
  return segment == nullptr ? nullptr : &devices_[(*segment)->device];
}

HeapMemory::Later HeapMemory::Written(uint32_t rank, uint64_t offset_bytes) {
  const Device* const device = DeviceOf(rank, offset_bytes);
  return device == nullptr ? nullptr : device->written;
}

StatusCode HeapMemory::Finish(uint32_t rank, uint64_t offset_bytes) {
  Device* const device = DeviceOf(rank, offset_bytes);
  if (device == nullptr || device->written == nullptr) return StatusCode::kOk;
  return End(device, device->copies->Finish());
}

StatusCode HeapMemory::Write(uint32_t rank, uint64_t offset_bytes, const void* from,
                             uint64_t bytes) {
  return ForRange(rank, offset_bytes, bytes,
                  [&](const Segment& segment, uint64_t address, uint64_t done, uint64_t n) {
                    const uint8_t* const data = static_cast<const uint8_t*>(from) + done;
                    if (addressed_) {
                      CopyShared(reinterpret_cast<void*>(address), data, n);
                      return StatusCode::kOk;
                    }
                    Device& device = devices_[segment.device];
                    if (device.written == nullptr) {
                      device.written = std::make_shared<DeviceQueue::Outcome>();
                    }
                    const absl::Status status = device.copies->Write(address, data, n);
                    return status.ok() ? StatusCode::kOk : End(&device, status);
                  });
}

StatusCode HeapMemory::Read(uint32_t rank, uint64_t offset_bytes, void* to, uint64_t bytes) {
  return ForRange(rank, offset_bytes, bytes,
                  [&](const Segment& segment, uint64_t address, uint64_t done, uint64_t n) {
                    uint8_t* const data = static_cast<uint8_t*>(to) + done;
                    if (addressed_) {
                      CopyShared(data, reinterpret_cast<const void*>(address), n);
                      return StatusCode::kOk;
                    }
                    Device& device = devices_[segment.device];
                    // What was written before is done, too.
                    return End(&device, device.copies->Read(data, address, n));
                  });
}

StatusCode HeapMemory::Signal(uint32_t rank, uint64_t offset_bytes, uint8_t signal_op,
                              uint64_t value, Later* later) {
  if (signal_op > static_cast<uint8_t>(SignalOp::kAdd)) return StatusCode::kInvalidArgument;
  const bool adds = signal_op == static_cast<uint8_t>(SignalOp::kAdd);
  if (!addressed_ && !adds) {
    // A word is written after all that was written before.
    if (offset_bytes % sizeof(value) != 0) return StatusCode::kInvalidArgument;
    return Write(rank, offset_bytes, &value, sizeof(value));
  }
  uint64_t old = 0;
  return Atomic(rank, offset_bytes, adds ? PortAtomic::kAdd : PortAtomic::kExchange,
                PortType::kUint64, value, 0, &old, later);
}

StatusCode HeapMemory::Atomic(uint32_t rank, uint64_t offset_bytes, PortAtomic op, PortType type,
                              uint64_t value, uint64_t compare, uint64_t* old, Later* later) {
  const uint64_t bytes = PortTypeBytes(type);
  if (!IsPortAtomic(op, type) || offset_bytes % bytes != 0) return StatusCode::kInvalidArgument;
  if (!addressed_ && op == PortAtomic::kLoad) {
    *old = 0;
    return Read(rank, offset_bytes, old, bytes);  // an aligned word is copied as one
  }
  if (!addressed_ && atomics_ == nullptr) return StatusCode::kUnimplemented;
  const std::shared_ptr<Segment>* const found = Find(rank, offset_bytes);
  if (found == nullptr) return StatusCode::kOutOfRange;
  const Segment& segment = **found;
  const uint64_t within = offset_bytes - segment.offset_bytes;
  if (segment.bytes - within < bytes) return StatusCode::kOutOfRange;
  const uint64_t address = segment.address + within;
  if (atomics_ == nullptr) {
    *old = DoPortAtomic(reinterpret_cast<void*>(address), op, type, value, compare);
    return StatusCode::kOk;
  }
  DeviceQueue* const queue = devices_[segment.device].atomics.get();
  if (queue == nullptr) return StatusCode::kUnimplemented;
  // Its kernel is on another stream than the copies.
  const StatusCode written = Finish(rank, offset_bytes);
  if (written != StatusCode::kOk) return written;
  *later = queue->Add({address, value, compare, op, type}, *found);
  return StatusCode::kOk;
}

bool HeapMemory::Poll() {
  bool any = false;
  for (auto& [number, device] : devices_) {
    if (device.written != nullptr) {
      const absl::StatusOr<bool> idle = device.copies->Idle();
      if (!idle.ok() || *idle) End(&device, idle.status());
      any = true;
    }
    if (device.atomics == nullptr || !device.atomics->has_work()) continue;
    if (!addressed_) failure_.Update(driver_->MakeCurrent(number));
    any |= device.atomics->Poll(server::SteadyNow());
  }
  return any;
}

absl::Status HeapMemory::TakeFailure() {
  absl::Status failure = std::exchange(failure_, absl::OkStatus());
  for (const auto& [number, device] : devices_) {
    if (device.atomics != nullptr) failure.Update(device.atomics->TakeFailure());
  }
  return failure;
}

}  // namespace iris::port
