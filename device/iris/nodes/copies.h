// Copies between this rank and a rank of another node, in stream order. A kernel writes requests
// into the rank's ring (iris/port_types.h), and waits until they are complete. So what follows on
// the stream finds the bytes and the signal at their place, graphs capture the copy, and no thread
// of the host takes part.
//
// The port process reaches the local side if it is in this rank's heap. Other memory goes piece by
// piece through stages, which the kernels of all streams share.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/port_types.h"
#include "iris/types.h"

namespace iris::ccl {

struct NodesCopy {
  DeviceContext context;
  uint32_t peer = 0;       // a rank of another node
  bool puts = true;        // from `local` to `remote`; false: from `remote` to `local`
  bool staged = false;     // `local` is memory that kernels use, but not of this rank's heap
  void* remote = nullptr;  // in this rank's heap; stands for the peer's memory
  void* local = nullptr;
  RowsToCopy rows;
  // Sent to the peer once all bytes have been written there, or read there. `word` null: none.
  SignalTo signal = {nullptr, 0};
  // Host memory that kernels can write. If the copy fails, the kernel counts it there, sends no
  // signal and ends.
  PortFailures* failures = nullptr;
};

// Puts the copy, whose ranges the caller has checked, on the stream.
Result CopyOnNodes(const NodesCopy& copy, backend::Stream& stream);

// Loads the kernel onto the current device. Otherwise the first copy may wait until running kernels
// have ended.
Result PrepareNodesCopies();

}  // namespace iris::ccl
