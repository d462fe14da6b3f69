// HeapMemory: the memory of this node's ranks, as the port process reaches it. Every access is by
// rank and offset, and is checked against the memory that exists. Not thread-safe.
//
// Emulated devices: mapped memory, and atomics of this CPU. GPUs: the driver copies, in the order
// of the calls, and writes are done later than the call; atomics are the device's (atomics.h),
// later, too, because those of this CPU would not be atomic for kernels. Without the library that
// has them, they are refused with kUnimplemented.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"
#include "device/iris/port_types.h"
#include "device/iris/status_code.h"
#include "proto/wire/unique_fd.h"
#include "server/port/atomics.h"

namespace iris::port {

// Reads and writes words that other processes use meanwhile, each by one access if it is aligned.
void CopyShared(void* to, const void* from, uint64_t bytes);

class HeapMemory {
 public:
  // One allocation. Its memory stays mapped as long as it is shared.
  struct Segment {
    uint64_t id = 0;
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
    uint64_t bytes = 0;
    uint64_t address = 0;
    uint32_t device = 0;
    // Destroyed in the reverse order.
    std::unique_ptr<driver::PhysicalMemory> memory;
    std::unique_ptr<driver::Reservation> reservation;
    std::unique_ptr<driver::Mapping> mapping;
  };
  struct Place {
    const uint8_t* data = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<const void> pin;  // keeps it
  };

  // What becomes of what a device carries out. Null: it is done already.
  using Later = std::shared_ptr<const DeviceQueue::Outcome>;
  struct Options {
    // Null: for GPUs that of the backend's library; for emulated devices, atomics of this CPU.
    const DeviceAtomicsTable* atomics = nullptr;
    absl::Duration give_up_after = absl::Seconds(10);
  };

  // Opens the driver of a backend, and its library. Offsets are below `max_heap_bytes`.
  static absl::StatusOr<std::unique_ptr<HeapMemory>> Open(const std::string& backend,
                                                          uint64_t max_heap_bytes,
                                                          const Options& options);
  static absl::StatusOr<std::unique_ptr<HeapMemory>> Open(const std::string& backend,
                                                          uint64_t max_heap_bytes) {
    return Open(backend, max_heap_bytes, Options());
  }

  // Maps memory of a rank. kInvalidArgument if the range overlaps another one, or the id is taken.
  absl::Status Add(uint64_t id, uint32_t rank, uint64_t offset_bytes, uint64_t bytes,
                   const std::string& device_uuid, wire::UniqueFd fd);
  // Later accesses fail. The memory is unmapped when nothing refers to the segment.
  void Forget(uint64_t id);

  driver::BackendKind kind() const { return driver_->kind(); }
  // The segment that has this offset, or null.
  std::shared_ptr<const Segment> At(uint32_t rank, uint64_t offset_bytes) {
    const std::shared_ptr<Segment>* const found = Find(rank, offset_bytes);
    return found == nullptr ? nullptr : *found;
  }

  // True if all of the range is memory of the rank.
  bool Covers(uint32_t rank, uint64_t offset_bytes, uint64_t bytes);

  // The place of a range, or of its part in the first segment. Nothing if there is no memory.
  // Memory of a GPU is read into a place of the host; nothing if there is none free.
  std::optional<Place> Source(uint32_t rank, uint64_t offset_bytes, uint64_t bytes);

  // Copy from and to memory of a rank. kOutOfRange, without effect, if not all of it exists. Writes
  // are done when Written says so; reads wait for writes before them.
  StatusCode Write(uint32_t rank, uint64_t offset_bytes, const void* from, uint64_t bytes);
  StatusCode Read(uint32_t rank, uint64_t offset_bytes, void* to, uint64_t bytes);
  // When all writes so far to this rank are done, those of signals included.
  Later Written(uint32_t rank, uint64_t offset_bytes);
  // Waits until they are.
  StatusCode Finish(uint32_t rank, uint64_t offset_bytes);

  // Changes a signal's word, after all earlier writes. kOutOfRange, kInvalidArgument if the word is
  // not aligned, kUnimplemented for this memory. If the device is to do it, *later says when it is
  // done and whether it failed; until then, reads and writes do not wait for it.
  StatusCode Signal(uint32_t rank, uint64_t offset_bytes, uint8_t signal_op, uint64_t value,
                    Later* later);
  // Carries out an atomic; *old, or later (*later)->old, becomes the word before it. Errors as of
  // Signal.
  StatusCode Atomic(uint32_t rank, uint64_t offset_bytes, PortAtomic op, PortType type,
                    uint64_t value, uint64_t compare, uint64_t* old, Later* later);
  // Lets devices go on with what was called, in its order. Returns true if something is not done.
  bool Poll();
  // Why devices have failed, for a log; OK if there is nothing new.
  absl::Status TakeFailure();

 private:
  using Segments = std::map<uint64_t, std::shared_ptr<Segment>>;  // of one rank, by offset

  HeapMemory(std::unique_ptr<driver::GpuDriver> driver, uint64_t max_heap_bytes,
             const Options& options)
      : driver_(std::move(driver)),
        max_heap_bytes_(max_heap_bytes),
        addressed_(driver_->kind() == driver::BackendKind::kEmu),
        atomics_(options.atomics),
        give_up_after_(options.give_up_after) {}

  // The segment of this offset, or null.
  const std::shared_ptr<Segment>* Find(uint32_t rank, uint64_t offset_bytes);
  // Calls `use(address, bytes done, bytes)` for each part of a range, after all is checked.
  template <typename Use>
  StatusCode ForRange(uint32_t rank, uint64_t offset_bytes, uint64_t bytes, Use use);

  const std::unique_ptr<driver::GpuDriver> driver_;
  const uint64_t max_heap_bytes_;
  const bool addressed_;  // this CPU addresses the memory
  const DeviceAtomicsTable* atomics_;
  const absl::Duration give_up_after_;
  absl::Status failure_;
  // Of a GPU. Destroyed in the reverse order.
  struct Device {
    std::unique_ptr<driver::HostCopies> copies;
    std::shared_ptr<DeviceQueue::Outcome> written;  // of writes that are underway; or null
    std::unique_ptr<DeviceQueue> atomics;           // or null
  };
  // Ends what is underway.
  StatusCode End(Device* device, const absl::Status& status);
  // The GPU that has this memory; null if there is none.
  Device* DeviceOf(uint32_t rank, uint64_t offset_bytes);

  std::map<uint32_t, Segments> ranks_;
  // By number. Destroyed before the memory is unmapped: what is underway ends first.
  std::map<uint32_t, Device> devices_;
  const std::shared_ptr<Segment>* last_ = nullptr;  // that Find returned
};

}  // namespace iris::port
