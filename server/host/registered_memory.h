// Memory that a rank has allocated itself and registered: irisd keeps its descriptor and lends it
// to other ranks. A client's descriptor is hostile until it is checked. As thread-safe as
// PhysicalMemory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "device/driver/backend_kind.h"
#include "device/driver/gpu_driver.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

// Duplicates `fd`, which the caller still owns. When the memory is destroyed, the duplicate is
// passed to `close`, because the kernel may take long to close it.
//
// Errors: kInvalidArgument if, on emulated devices, the memory has another size than `bytes` or
// could shrink while other processes have it mapped (on GPUs the import checks this);
// kResourceExhausted if irisd has no descriptor left.
absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> KeepRegistered(
    driver::BackendKind kind, const wire::UniqueFd& fd, uint64_t bytes,
    std::function<void(wire::UniqueFd)> close);

}  // namespace iris::server
