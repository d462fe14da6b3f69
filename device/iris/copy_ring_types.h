// The memory that a kernel and the host share for a queue of copies: see copy_ring.h.
#pragma once

#include <cstdint>
#include <type_traits>

namespace iris {

// A posted copy, in host memory that the device can write.
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

// Words that the host writes for kernels, in host memory.
struct CopyQueueWords {
  uint64_t completed;  // how many copies have been made, in order of their numbers
  uint32_t stopped;    // not 0: the host takes no more descriptors
  uint32_t reserved;
};

// A kernel's view of a queue, to be passed as a parameter. iris::CopyQueue makes it.
struct DeviceCopyQueue {
  CopyDescriptor* slots = nullptr;
  CopyQueueWords* host = nullptr;
  uint64_t* posted = nullptr;  // in device memory: number of places taken
  uint64_t capacity = 0;       // slots
};
static_assert(std::is_trivially_copyable_v<DeviceCopyQueue>);

}  // namespace iris
