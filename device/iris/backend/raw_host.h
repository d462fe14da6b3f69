// The host half of a backend: streams, graphs, events, copies and memory.
//
// host.h has the public classes, which call these functions with checked arguments: streams and
// objects exist, pointers are not null, and sizes are not 0. A failure leaves no "last error" of
// the platform. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/types.h"

namespace iris::backend::raw {

// A stream, and the device on which it was made and launches run; -1 for the application's streams.
struct StreamHandle {
  void* native = nullptr;
  int32_t device = -1;
};

// Returns kFailedPrecondition, with the reason, on a thread that may neither launch nor wait.
Result CheckCaller();

// Makes a stream on the current device.
Result CreateStream(StreamHandle* out);
// Waits for the stream's work, and destroys the stream.
void DestroyStream(const StreamHandle& stream);
// Waits for the stream's work. The stream must not be in a capture.
Result SynchronizeStream(const StreamHandle& stream);
bool IsIdle(const StreamHandle& stream);

// Waits for all work that this process has launched on the current device.
Result SynchronizeDevice();

// Loads the kernel, and allows launches with `shared_bytes` of dynamic shared memory.
Result PrepareKernel(const void* kernel, uint32_t shared_bytes);
Result CopyAsync(void* to, const void* from, uint64_t bytes, const StreamHandle& stream);
// Copies at least one byte in at least two rows.
Result CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows,
                     const StreamHandle& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, const StreamHandle& stream);

bool IsCapturing(const StreamHandle& stream);
// The stream must not be in a capture.
Result BeginCapture(const StreamHandle& stream);
// The stream must be in a capture. kFailedPrecondition if the capture began on another stream.
Result EndCapture(const StreamHandle& stream, void** graph);
// The stream must not be in a capture.
Result LaunchGraph(void* graph, const StreamHandle& stream);
// Destroys the graph, which may still run.
void DestroyGraph(void* graph);

Result CreateEvent(void** out);
// Destroys the event, which may not have happened yet.
void DestroyEvent(void* event);
Result RecordEvent(void* event, const StreamHandle& stream);
// Makes the stream wait for the event, which must have been recorded.
Result WaitForEvent(const StreamHandle& stream, void* event);
Result ElapsedNanoseconds(void* from, void* to, uint64_t* out);

void* MallocDevice(uint64_t bytes);
void FreeDevice(void* p);
void* MallocHost(uint64_t bytes);
void FreeHost(void* p);
bool KernelsReach(const void* p);

}  // namespace iris::backend::raw
