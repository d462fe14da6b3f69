// Memory that a rank has allocated itself and registered: irisd keeps a descriptor of it and lends
// that on. What a client gives is hostile until it is checked.
//
// Thread-safe, as PhysicalMemory says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "device/driver/backend_kind.h"
#include "device/driver/gpu_driver.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

// Of `bytes` bytes, as a rank of a job on such devices says. kInvalidArgument: on emulated devices,
// what could be cut while others have it mapped, or is of another size. On GPUs whoever imports it
// finds out what it is.
//
// `fd` is borrowed. `close` gets the one that is kept, at the end: the kernel may take long over
// it. kResourceExhausted: irisd has no descriptor left for it.
absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> KeepRegistered(
    driver::BackendKind kind, const wire::UniqueFd& fd, uint64_t bytes,
    std::function<void(wire::UniqueFd)> close);

}  // namespace iris::server
