// GpuDriver is the only interface to a platform's virtual memory management. irisd creates and
// exports memory; clients import and map it.
//
// Memory goes through the same steps on every platform: Create, ExportFd (duplicates of one
// descriptor), Import in another process, Map into a Reservation, use, then destroy the Mapping and
// the PhysicalMemory. Adopt takes over memory whose creator has ended. Share returns descriptors,
// for Import, of memory that a program has allocated itself. In a fabric domain, ExportFabric takes
// the place of ExportFd for importers on other nodes. Each object's destructor undoes its step.
//
// Implementations are thread-safe; the objects that they return are not, but several threads may
// Map disjoint ranges of one Reservation at a time. A driver outlives all objects that it made.
// File descriptors are plain ints; each function states their owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "device/driver/backend_kind.h"

namespace iris::driver {

struct DeviceInfo {
  std::string uuid;
  std::string name;
  std::string backend;  // the name of kind()
  uint32_t index = 0;   // in this driver's order
  uint64_t memory_bytes = 0;
  uint64_t granularity_bytes = 0;  // sizes and offsets of mappings are multiples of it
};

enum class Access { kReadWrite, kReadOnly };

struct MemoryInfo {
  uint64_t free_bytes = 0;  // as the platform counts, other programs included; a hint
  uint64_t total_bytes = 0;
};

struct CreateTimes {
  absl::Duration create;
  absl::Duration export_fd;
};
struct MapTimes {
  absl::Duration map;
  absl::Duration access;
};

// A physical allocation of this process that another one may Import, with its mapping here.
struct SharedPiece {
  int fd = -1;           // for Import; the caller of Share owns it
  uint64_t address = 0;  // of the first byte, as mapped in this process
  uint64_t bytes = 0;    // of the complete allocation: a multiple of the granularity
};

// One physical allocation. Its last holder in any process frees the memory, which on emu blocks for
// 140-190 ms per touched GiB.
class PhysicalMemory {
 public:
  explicit PhysicalMemory(uint64_t bytes) : bytes_(bytes) {}
  virtual ~PhysicalMemory() = default;
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Returns how long Create took; zeros for adopted and imported memory.
  CreateTimes times() const { return times_; }
  void set_times(const CreateTimes& times) { times_ = times; }

  // Returns a descriptor for Import in any process, and for Adopt if it is kReadWrite. The caller
  // owns it. Imported memory cannot be exported. kReadOnly restricts importers if the platform can
  // (emu: callers whose uid is neither the creator's nor root).
  virtual absl::StatusOr<int> ExportFd(Access access) = 0;

  // Returns the handle (fabric.h) by which drivers of nodes of the creator's fabric domain import
  // the memory. kFailedPrecondition if the creator has no domain, or for memory that this driver
  // has not created.
  virtual absl::StatusOr<std::string> ExportFabric() {
    return absl::FailedPreconditionError(
        "export memory to other nodes: its driver has no fabric domain, or did not create it");
  }

  // Fails with kUnimplemented if this process has no context on the memory's device.
  virtual absl::Status Read(uint64_t offset_bytes, absl::Span<uint8_t> out) = 0;

 private:
  const uint64_t bytes_;
  CreateTimes times_;
};

// A reserved range of address space without memory. Destroy its Mappings first.
class Reservation {
 public:
  Reservation(uint64_t base, uint64_t bytes, uint64_t piece_bytes)
      : base_(base), bytes_(bytes), piece_bytes_(piece_bytes) {}
  virtual ~Reservation() = default;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }  // piece_bytes() * number of pieces
  uint64_t piece_bytes() const { return piece_bytes_; }

 private:
  const uint64_t base_;
  const uint64_t bytes_;
  const uint64_t piece_bytes_;
};

// Memory mapped into a reservation. Its destructor unmaps; the range stays reserved.
class Mapping {
 public:
  Mapping(uint64_t address, uint64_t bytes) : address_(address), bytes_(bytes) {}
  virtual ~Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  MapTimes times() const { return times_; }
  void set_times(const MapTimes& times) { times_ = times; }

  // Lets kernels of one more local device use the memory. Idempotent.
  virtual absl::Status Allow(uint32_t device_index) = 0;

 private:
  const uint64_t address_;
  const uint64_t bytes_;
  MapTimes times_;
};

// Copies between memory of the host and mapped memory of one device, in the order of the calls.
// They do not wait for kernels, also not for those of other processes on the device, which small
// writes by Copy take turns with. Not thread-safe. Errors last: later calls fail, too.
class HostCopies {
 public:
  static constexpr uint64_t kFetchBytes = 256 << 10;

  // Waits for what was started.
  virtual ~HostCopies() = default;

  // Starts to write; `from` may change once it returns. An aligned word of 4 or 8 bytes is written
  // by one access, after all that was written before. Waits if more than 2 MiB are underway.
  virtual absl::Status Write(uint64_t address, const void* from, uint64_t bytes) = 0;
  // Read what is there after all that was written before, and return when done. Fetch reads at most
  // kFetchBytes into a buffer of its own, which is faster; null if all buffers are in use. Buffers
  // may outlive this object.
  virtual absl::Status Read(void* to, uint64_t address, uint64_t bytes) = 0;
  virtual absl::StatusOr<std::shared_ptr<const uint8_t>> Fetch(uint64_t address,
                                                               uint64_t bytes) = 0;
  // Returns true if all writes are done: kernels see them.
  virtual absl::StatusOr<bool> Idle() = 0;
  // Waits until they are.
  virtual absl::Status Finish() = 0;
};

class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  virtual BackendKind kind() const = 0;
  std::string_view backend() const { return NameOf(kind()); }

  // Returns the devices that this process sees, in index order; constant. Empty in a client of emu.
  virtual absl::Span<const DeviceInfo> devices() const = 0;

  // Makes the device current on the calling thread, for Fill, Copy and RegisterHost and for the
  // platform's run-time library. The first call for a GPU creates its context (0.2 s, and device
  // memory), which lasts as long as the driver. irisd never calls this function.
  virtual absl::Status MakeCurrent(uint32_t device_index) = 0;

  // kFailedPrecondition, with the pair and a remedy, if kernels on `from` cannot use `to`'s memory.
  virtual absl::Status CanAccessPeer(uint32_t from, uint32_t to) = 0;

  // Returns the size of the piece of each device's memory that irisd lends to every process, which
  // keeps the piece mapped read-only. The first mapping of another device's memory is slow, and
  // later ones are fast while one exists. Returns 0 if no such piece is needed.
  virtual uint64_t link_bytes() const { return 0; }

  // Returns the name of the fabric domain of this driver's devices: two nodes whose drivers return
  // the same name import each other's memory (PhysicalMemory::ExportFabric). Otherwise an error
  // with the reason and a remedy. Constant.
  virtual absl::StatusOr<std::string> FabricDomain() const = 0;

  // kUnimplemented if the platform needs a context for the answer.
  virtual absl::StatusOr<MemoryInfo> DeviceMemory(uint32_t device_index) = 0;

  // Creates zeroed physical memory on a device. May block for long. `bytes` is a multiple of the
  // granularity. `prealloc` reserves every page now. kResourceExhausted if device memory or
  // descriptors run out. kInvalidArgument for a bad size or device.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Create(uint32_t device_index,
                                                                 uint64_t bytes, bool prealloc) = 0;

  // Takes back memory that an earlier driver of this platform created on that device, as if this
  // driver had created it. Takes ownership of `fd`, a descriptor from ExportFd(kReadWrite), also on
  // failure. May block: where only a mapping shows the memory's size, the memory is mapped briefly.
  // kInvalidArgument if `fd` is not such a descriptor, not of `bytes` bytes, or not as Create left
  // it, or if there is no such device. kResourceExhausted if descriptors or address space run out.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Adopt(uint32_t device_index, int fd,
                                                                uint64_t bytes) = 0;

  // Takes memory that another process exported, and ownership of `fd`, also on failure. `fd` may be
  // that of a fabric handle (WrapFabricHandle). kInvalidArgument if `fd` is no such descriptor, or
  // if its memory is not of `bytes` bytes or can still be resized.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Import(int fd, uint64_t bytes) = 0;

  // Returns descriptors of the allocations mapped at [address, address + bytes), which a program
  // has created and mapped without Iris. They are ordered by address, without holes; the first and
  // the last may extend beyond the range. On error nothing stays open. On a GPU the caller has a
  // context on the device. kInvalidArgument, with the address and a remedy, for other memory (host
  // memory, the platform's plain allocations, nothing mapped), another device than `device_index`
  // (unless emu), no shareable descriptor, a size or place that is no multiple of the granularity,
  // or a file that could still be resized. kResourceExhausted if there are more than `max_pieces`,
  // or if descriptors run out. kUnimplemented if the platform's library is too old.
  virtual absl::StatusOr<std::vector<SharedPiece>> Share(uint32_t device_index, uint64_t address,
                                                         uint64_t bytes, size_t max_pieces) = 0;

  // Reserves n_pieces * piece_bytes at `wanted_base` if that range is free and wanted_base is not
  // 0, otherwise at any address; never replaces a mapping. No mapping may cross from one piece to
  // the next. Forked children do not inherit the range.
  virtual absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t piece_bytes,
                                                               uint32_t n_pieces,
                                                               uint64_t wanted_base) = 0;

  // Maps all of `memory` and makes it accessible to kernels of the local `devices` (on emu: of this
  // process). Within a piece, memory is mapped in order of offset without holes.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(Reservation& reservation,
                                                       uint64_t offset_bytes,
                                                       PhysicalMemory& memory, Access access,
                                                       absl::Span<const uint32_t> devices) = 0;

  // Set mapped bytes, or copy between any two of host memory and mapped memory; return when done,
  // and do not wait for kernels. On a GPU the calling thread's device does this, or if it has none
  // the device first made current; kFailedPrecondition if there is none.
  virtual absl::Status Fill(uint64_t address, uint8_t value, uint64_t bytes) = 0;
  virtual absl::Status Copy(void* to, const void* from, uint64_t bytes) = 0;

  // Makes the device current (MakeCurrent), and copies for it, with 10 MiB of locked host memory.
  // The driver outlives them. kUnimplemented on emu, whose memory the host reads and writes.
  virtual absl::StatusOr<std::unique_ptr<HostCopies>> CopiesOf(uint32_t /*device_index*/) {
    return absl::UnimplementedError("copy from and to a device: this driver has none");
  }

  // Makes pages of host memory readable, with kReadWrite also writable, by kernels of this process.
  // Returns the address that kernels of every device use. The pages stay mapped until
  // UnregisterHost.
  virtual absl::StatusOr<const void*> RegisterHost(const void* page, uint64_t bytes,
                                                   Access access) = 0;
  virtual absl::Status UnregisterHost(const void* page) = 0;
};

}  // namespace iris::driver
