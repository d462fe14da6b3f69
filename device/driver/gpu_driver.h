// GpuDriver: the one seam to a platform's virtual memory management. irisd creates and exports; clients import and map.
//
// Life of memory, the same on every platform: Create → ExportFd (once; duplicates are sent) → Import in another process →
// Map into a Reservation → use → destroy the Mapping → destroy the PhysicalMemory. Every step is a move-only object or a
// unique_ptr whose destructor undoes it. Implementations are thread-safe; objects they return are not.
// Depends on nothing else of Iris. File descriptors cross this interface as plain ints; ownership is stated at each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace iris::driver {

struct DeviceInfo {
  std::string uuid;
  std::string name;
  std::string backend;  // "emu", "cuda", "hip"
  uint32_t index = 0;   // in this driver's order
  uint64_t memory_bytes = 0;
  uint64_t granularity_bytes = 0;  // sizes and offsets of mappings are multiples of it
};

enum class Access { kReadWrite, kReadOnly };

// One physical allocation, created here or imported. Destroying it closes this process's hold on the memory; the last
// hold anywhere gives the memory back. Destruction of big memory blocks (140-190 ms per touched GiB on emu).
class PhysicalMemory {
 public:
  virtual ~PhysicalMemory() = default;
  virtual uint64_t bytes() const = 0;

  // A descriptor that Import takes in any process. The caller owns it. Only memory made by Create can be exported.
  // kReadOnly binds importers where the platform can (emu: callers whose uid is neither the creator's nor root).
  virtual absl::StatusOr<int> ExportFd(Access access) = 0;

  // Copies [offset_bytes, offset_bytes + out.size()) to `out` without mapping. kUnimplemented where the host cannot read
  // device memory; kInvalidArgument outside the memory.
  virtual absl::Status Read(uint64_t offset_bytes, absl::Span<uint8_t> out) = 0;
};

// A reserved range of address space with nothing behind it yet. Destroy its Mappings first.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual uint64_t base() const = 0;
  virtual uint64_t bytes() const = 0;
};

// Memory mapped into a reservation. Its destructor unmaps; the range stays reserved.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual uint64_t address() const = 0;
  virtual uint64_t bytes() const = 0;
};

class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  // "emu", "cuda" or "hip".
  virtual std::string_view backend() const = 0;

  // Devices in index order; constant. Empty in a client of emu: irisd names its device.
  virtual absl::Span<const DeviceInfo> devices() const = 0;

  // Creates zeroed physical memory on a device. May block for long: call it from a worker thread.
  // bytes: a multiple of the granularity. prealloc: reserve every page now.
  // kResourceExhausted: out of device memory or descriptors. kInvalidArgument: bad size or device.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Create(uint32_t device_index,
                                                                 uint64_t bytes, bool prealloc) = 0;

  // Takes memory that another process exported. `fd` is owned by the callee from here on, also on failure.
  // kInvalidArgument: not such a descriptor, or not of `bytes` bytes, or one that its holder could still resize.
  virtual absl::StatusOr<std::unique_ptr<PhysicalMemory>> Import(int fd, uint64_t bytes) = 0;

  // Reserves address space at `wanted_base` if that range is free (nothing is ever replaced), else anywhere.
  // wanted_base 0: anywhere. The range is not inherited by forked children.
  virtual absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t bytes,
                                                               uint64_t wanted_base) = 0;

  // Maps all of `memory` at `offset_bytes` of the reservation and makes it accessible.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(Reservation& reservation,
                                                       uint64_t offset_bytes,
                                                       PhysicalMemory& memory, Access access) = 0;

  // Sets mapped bytes, or copies between any two of host memory and mapped memory. Return when done.
  virtual absl::Status Fill(uint64_t address, uint8_t value, uint64_t bytes) = 0;
  virtual absl::Status Copy(void* to, const void* from, uint64_t bytes) = 0;

  // Makes a page of host memory readable by kernels of this process; the address that kernels use. The page must stay
  // mapped until UnregisterHost.
  virtual absl::StatusOr<const void*> RegisterHost(const void* page, uint64_t bytes) = 0;
  virtual absl::Status UnregisterHost(const void* page) = 0;
};

}  // namespace iris::driver
