// A product of matrices and its communication in one persistent kernel, written for one kind of
// device in its own instructions. Most backends have none.
//
// Host code. Thread-safe. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/persistent_problem.h"
#include "iris/backend/select.h"

namespace iris::backend {

// Whether the current device has such a kernel.
bool HasPersistentProduct();

// Whether it can do the problem, addresses, leading dimensions and the workspace included. If not,
// `*why` says what is in the way, as a string that lives for ever.
bool SupportsPersistentProduct(const PersistentProduct& product, const char** why);

// The least workspace_bytes for a shape that is supported. 0: it is not.
uint64_t PersistentProductBytes(const PersistentProduct& product);

// Puts it on the stream, where the kernel right before it is the opening: the launch may begin
// while that one runs, and waits for its end before it sends anything, or writes to D. Allocates
// nothing, and may be captured.
Result LaunchPersistentProduct(const PersistentProduct& product, Stream& stream);

// Loads the kernels onto the current device.
Result PreparePersistentProduct();

}  // namespace iris::backend
