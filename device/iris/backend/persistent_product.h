// A product of matrices and its communication in one persistent kernel of one kind of device. Host
// code. Thread-safe. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/persistent_problem.h"
#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"

namespace iris::backend {

// Returns true if the current device has such a kernel.
bool HasPersistentProduct();

// If it cannot do the problem and its workspace, `*why` is the reason, as a static string.
bool SupportsPersistentProduct(const PersistentProduct& product, const char** why);

// The least workspace_bytes for a shape that is supported. 0: it is not.
uint64_t PersistentProductBytes(const PersistentProduct& product);

// The kernel right before it on the stream is the opening. The launch may begin early, but sends,
// and writes D, only after the opening's end. Allocates nothing, and may be captured.
Result LaunchPersistentProduct(const PersistentProduct& product, const raw::StreamHandle& stream);

// Loads the kernels onto the current device.
Result PreparePersistentProduct();

}  // namespace iris::backend
