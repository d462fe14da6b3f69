// What a kernel and the host share of a queue of copies: see copy_ring.h.
#pragma once

#include <cstdint>
#include <type_traits>

namespace iris {

// A posted copy. In memory of the host that the device can write.
struct CopyDescriptor {
  uint64_t dst;
  uint64_t src;
  uint64_t bytes;
  uint64_t signal;  // an address in the rank's heap; 0: none
  uint64_t signal_value;
  uint64_t to_and_op;  // the rank, and above 32 bits the SignalOp
  uint64_t reserved;
  uint64_t sequence;  // 1 + the number, written last
};
static_assert(sizeof(CopyDescriptor) == 64);

// What the host tells kernels, in memory of the host.
struct CopyQueueWords {
  uint64_t completed;  // copies that have been made, from the first on
  uint32_t stopped;    // not 0: no descriptor is taken any more
  uint32_t reserved;
};

// A kernel's view of a queue; a parameter of the kernel. Made by iris::CopyQueue.
struct DeviceCopyQueue {
  CopyDescriptor* slots = nullptr;
  CopyQueueWords* host = nullptr;
  uint64_t* posted = nullptr;  // in memory of the device: how many places were taken
  uint64_t capacity = 0;       // slots
};
static_assert(std::is_trivially_copyable_v<DeviceCopyQueue>);

}  // namespace iris
