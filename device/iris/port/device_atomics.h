// DeviceAtomics: atomics of iris/port_types.h on the memory of a GPU, by a kernel on it. They are
// atomic to those of all kernels there, which atomics of a CPU are not.
//
// For the port process, which starts no other kernel: it opens the library of the backend and asks
// for the table. One thread at a time calls the functions for one object. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/types.h"
#include "iris/port_types.h"

namespace iris {

struct DeviceAtomic {
  uint64_t address = 0;  // of the word, aligned, in memory that kernels of the device use
  uint64_t value = 0;    // in its lowest bytes, like `compare`
  uint64_t compare = 0;
  PortAtomic op = PortAtomic::kLoad;
  PortType type = PortType::kUint64;  // IsPortAtomic(op, type) is true
};

// The list of one launch is an argument of the kernel, of 4 KiB at most.
inline constexpr uint32_t kMaxDeviceAtomics = 64;

// A stream of a device, and memory for the results of one list.
struct DeviceAtomics;

struct DeviceAtomicsTable {
  uint64_t size_bytes;  // of this struct
  const char* name;     // backend::BackendName()

  // Makes an object on the current device, and loads the kernel there.
  Result (*Create)(DeviceAtomics** out);
  // Waits for the list that was started last.
  void (*Destroy)(DeviceAtomics* atomics);
  // Starts a list of up to kMaxDeviceAtomics atomics, which take effect in its order. Each acquires
  // and releases, for the whole system. Call it when no other list is under way.
  Result (*Start)(DeviceAtomics* atomics, const DeviceAtomic* list, uint32_t n);
  // Looks for the end of the list; does not wait. Once *done, old[i] is the word before the i-th
  // atomic. After an error the device carries out nothing more for this process.
  Result (*Poll)(DeviceAtomics* atomics, uint64_t* old, bool* done);
};

}  // namespace iris

// The function that a backend's library exports.
extern "C" __attribute__((visibility("default"))) const iris::DeviceAtomicsTable*
iris_device_atomics();
