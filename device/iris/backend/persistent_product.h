// A GEMM and its communication in one persistent kernel, for one kind of device. Host code.
// Thread-safe. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/persistent_problem.h"
#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"

namespace iris::backend {

// Returns true if the current device has such a kernel.
bool HasPersistentProduct();

// Returns true if the kernel supports the problem with its workspace; if not, `*why` is the reason,
// as a static string.
bool SupportsPersistentProduct(const PersistentProduct& product, const char** why);

// Returns the least workspace_bytes for the shape, 0 if the shape is not supported.
uint64_t PersistentProductBytes(const PersistentProduct& product);

// The kernel right before this launch on the stream is the opening. The launch may begin early, but
// sends, and writes D, only after the opening's end. Allocates nothing, and may be captured.
Result LaunchPersistentProduct(const PersistentProduct& product, const raw::StreamHandle& stream);

// Loads the kernels onto the current device.
Result PreparePersistentProduct();

}  // namespace iris::backend
