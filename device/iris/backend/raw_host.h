// The host's half of what a backend supplies: streams, graphs, events, copies and memory.
//
// host.h has the public classes over these. It has checked the arguments: streams and objects
// exist, pointers are not null, and sizes are not 0. A failure leaves nothing as the "last error"
// of the platform. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/types.h"

namespace iris::backend::raw {

// A stream and the device that it was made on, which its launches use; -1: the application's.
struct StreamHandle {
  void* native = nullptr;
  int32_t device = -1;
};

// kFailedPrecondition on a thread that may neither launch nor wait, with the reason.
Result CheckCaller();

// On the device that is current.
Result CreateStream(StreamHandle* out);
// Waits for its work first.
void DestroyStream(const StreamHandle& stream);
// The stream must not be in a capture.
Result SynchronizeStream(const StreamHandle& stream);
bool IsIdle(const StreamHandle& stream);

// Waits for all that this process has launched on the current device.
Result SynchronizeDevice();

// Loads the kernel, and lets launches of it ask for so much memory.
Result PrepareKernel(const void* kernel, uint32_t shared_bytes);
Result CopyAsync(void* to, const void* from, uint64_t bytes, const StreamHandle& stream);
// At least one byte in at least two rows.
Result CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows,
                     const StreamHandle& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, const StreamHandle& stream);

bool IsCapturing(const StreamHandle& stream);
// The stream must not be in a capture.
Result BeginCapture(const StreamHandle& stream);
// The stream must be in a capture. kFailedPrecondition if the capture began on another stream.
Result EndCapture(const StreamHandle& stream, void** graph);
// On a stream that is not being captured.
Result LaunchGraph(void* graph, const StreamHandle& stream);
// The graph may still run.
void DestroyGraph(void* graph);

Result CreateEvent(void** out);
// The event may not have happened yet.
void DestroyEvent(void* event);
Result RecordEvent(void* event, const StreamHandle& stream);
// The event must have been recorded.
Result WaitForEvent(const StreamHandle& stream, void* event);
Result ElapsedNanoseconds(void* from, void* to, uint64_t* out);

void* MallocDevice(uint64_t bytes);
void FreeDevice(void* p);
void* MallocHost(uint64_t bytes);
void FreeHost(void* p);

}  // namespace iris::backend::raw
