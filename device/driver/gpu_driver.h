// GpuDriver: the one seam to a platform's virtual memory management. irisd creates and exports;
// clients import and map.
//
// Life of memory, the same on every platform: Create → ExportFd (duplicates of one descriptor) →
// Import in another process → Map into a Reservation → use → destroy the Mapping → destroy the
// PhysicalMemory. A descriptor also outlives its creator: Adopt makes created memory of it again.
// Memory that a program has allocated itself joins at Import: Share gives its descriptors.
// Every step is a move-only object or a unique_ptr whose destructor undoes it.
// Implementations are thread-safe; objects they return are not, but several threads may Map
// disjoint ranges of one Reservation at a time. A driver outlives all that it made. Depends on
// nothing else of Iris. File descriptors cross this interface as plain ints; ownership is stated at
// each.
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
  std::string backend;  // the name of the driver's kind
  uint32_t index = 0;   // in this driver's order
  uint64_t memory_bytes = 0;
  uint64_t granularity_bytes = 0;  // sizes and offsets of mappings are multiples of it
};

enum class Access { kReadWrite, kReadOnly };

struct MemoryInfo {
  uint64_t free_bytes = 0;  // of the platform's own count, other programs' memory included; a hint
  uint64_t total_bytes = 0;
};

// Where the time of one Create or one Map went.
struct CreateTimes {
  absl::Duration create;
  absl::Duration export_fd;
};
struct MapTimes {
  absl::Duration map;
  absl::Duration access;
};

// Memory of this process that another one can be given: one physical allocation, and where it is
// mapped here.
struct SharedPiece {
  int fd = -1;           // what Import takes; the caller of Share owns it
  uint64_t address = 0;  // where this process has it mapped, from its first byte on
  uint64_t bytes = 0;    // all of the allocation: a multiple of the granularity
};

// One physical allocation, created here, adopted or imported. Destroying it closes this process's
// hold on the memory; the last hold anywhere gives the memory back. Destruction of big memory
// blocks (140-190 ms per touched GiB on emu).
class PhysicalMemory {
 public:
  virtual ~PhysicalMemory() = default;
  virtual uint64_t bytes() const = 0;
  // Zero for adopted and imported memory.
  virtual CreateTimes times() const = 0;

  // A descriptor that Import takes in any process, and Adopt if it is kReadWrite. The caller owns
  // it. Only memory made by Create or Adopt can be exported. kReadOnly binds importers where the
  // platform can (emu: callers whose uid is neither the creator's nor root).
  virtual absl::StatusOr<int> ExportFd(Access access) = 0;

  // Copies [offset_bytes, offset_bytes + out.size()) to `out`. kUnimplemented where this process
  // cannot read the device's memory (a GPU that it has not made current); kInvalidArgument outside
  // the memory.
  virtual absl::Status Read(uint64_t offset_bytes, absl::Span<uint8_t> out) = 0;
};

// A reserved range of address space with nothing behind it yet. Destroy its Mappings first.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual uint64_t base() const = 0;
  virtual uint64_t bytes() const = 0;  // piece_bytes() * number of pieces
  virtual uint64_t piece_bytes() const = 0;
};

// Memory mapped into a reservation. Its destructor unmaps; the range stays reserved.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual uint64_t address() const = 0;
  virtual uint64_t bytes() const = 0;
  virtual MapTimes times() const = 0;

  // Lets kernels of one more local device use it, as those given to Map. Idempotent.
  virtual absl::Status Allow(uint32_t device_index) = 0;
};

class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  virtual BackendKind kind() const = 0;
  // The name of kind().
  std::string_view backend() const { return NameOf(kind()); }

  // Devices that this process sees, in index order; constant. Empty in a client of emu: irisd names
  // its device. Every device index below is one of these.
  virtual absl::Span<const DeviceInfo> devices() const = 0;

  // Makes the device the calling thread's, for this driver's Fill, Copy and RegisterHost and for
  // the platform's own run-time library. The first call for a device of a GPU sets up its context
  // (0.2 s, and memory of the device), which lasts as long as the driver. irisd never calls it.
  virtual absl::Status MakeCurrent(uint32_t device_index) = 0;

  // OK if kernels on `from` may use memory of `to`; else kFailedPrecondition, with the pair and
  // what to do.
  virtual absl::Status CanAccessPeer(uint32_t from, uint32_t to) = 0;

  // Where the first mapping of another device's memory into a process is slow, and later ones are
  // fast for as long as one exists: the size of a piece of each device that irisd lends to every
  // process, which maps it (read-only) and keeps it. 0: not needed.
  virtual uint64_t link_bytes() const { return 0; }

  // kUnimplemented where the platform does not say without a context.
  virtual absl::StatusOr<MemoryInfo> DeviceMemory(uint32_t device_index) = 0;

  // Creates zeroed physical memory on a device. May block for long: call it from a worker thread.
  // bytes: a multiple of the granularity. prealloc: reserve every page now.
  // kResourceExhausted: out of device memory or descriptors. kInvalidArgument: bad size or device.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Create(uint32_t device_index,
                                                                 uint64_t bytes, bool prealloc) = 0;

  // Takes back memory that an earlier driver of this platform created on that device, whoever had
  // the descriptor meanwhile. From here on it is as if this driver had created it: its contents are
  // as they were, it can be exported again, and it lives until its last holder lets go. `fd` is a
  // descriptor that ExportFd(kReadWrite) gave, and is owned by the callee from here on, also on
  // failure. May block: the memory is mapped for a moment where only that shows what it is.
  // kInvalidArgument: not such a descriptor, not of `bytes` bytes, not as Create left it, or no
  // such device. kResourceExhausted: out of descriptors or address space.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Adopt(uint32_t device_index, int fd,
                                                                uint64_t bytes) = 0;

  // Takes memory that another process exported. `fd` is owned by the callee from here on, also on
  // failure. kInvalidArgument: not such a descriptor, or not of `bytes` bytes, or one that its
  // holder could still resize.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Import(int fd, uint64_t bytes) = 0;

  // Descriptors of the allocations behind [address, address + bytes) of this process's own memory:
  // memory that somebody else than Iris has created and mapped. In order of address and without
  // holes between them; the first and the last may reach beyond the range. At most `max_pieces`. On
  // error nothing stays open. On a GPU the caller has a context on the device.
  // kInvalidArgument: no such memory (host memory, what the platform's plain allocation gave,
  // nothing mapped there), of another device than `device_index` (unless emu), created without a
  // shareable descriptor, a size or place that is no multiple of the granularity, a descriptor of
  // which the file could still be resized: each names the address, what is wrong and what to do.
  // kResourceExhausted: more than `max_pieces`, or out of descriptors. kUnimplemented: the
  // platform's library is too old.
  virtual absl::StatusOr<std::vector<SharedPiece>> Share(uint32_t device_index, uint64_t address,
                                                         uint64_t bytes, size_t max_pieces) = 0;

  // Reserves one contiguous range of n_pieces * piece_bytes at `wanted_base` if that is free
  // (nothing is ever replaced), else anywhere. wanted_base 0: anywhere. No mapping may cross from
  // one piece to the next. The range is not inherited by forked children.
  virtual absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t piece_bytes,
                                                               uint32_t n_pieces,
                                                               uint64_t wanted_base) = 0;

  // Maps all of `memory` at `offset_bytes` of the reservation and makes it accessible to kernels of
  // the local `devices` (on emu: of this process, whatever is given). Within a piece, memory is
  // mapped in order of offset without holes.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(Reservation& reservation,
                                                       uint64_t offset_bytes,
                                                       PhysicalMemory& memory, Access access,
                                                       absl::Span<const uint32_t> devices) = 0;

  // Sets mapped bytes, or copies between any two of host memory and mapped memory. Return when
  // done. They do not wait for kernels, and so end also while one of this process spins. On a GPU
  // they are done by the calling thread's device, else by the one first made current;
  // kFailedPrecondition if there is none.
  virtual absl::Status Fill(uint64_t address, uint8_t value, uint64_t bytes) = 0;
  virtual absl::Status Copy(void* to, const void* from, uint64_t bytes) = 0;

  // Makes pages of host memory readable by kernels of this process, and with kReadWrite writable,
  // for which they must be mapped so. Returns the address that kernels of every device use. The
  // pages must stay mapped until UnregisterHost.
  virtual absl::StatusOr<const void*> RegisterHost(const void* page, uint64_t bytes,
                                                   Access access) = 0;
  virtual absl::Status UnregisterHost(const void* page) = 0;
};

}  // namespace iris::driver
