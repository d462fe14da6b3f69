// Fabric handles: bytes by which drivers of the nodes of one fabric domain import each other's
// memory (CU_MEM_HANDLE_TYPE_FABRIC; HIP's is alike). irisds pass the bytes over the network. An
// irisd gives them to its clients in a small sealed memfd, so that everything that passes
// descriptors of memory passes these, too: GpuDriver::Import alone looks into it.
//
// The bytes are a capability: whoever has them, and may use the fabric, can map the memory.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/base/unique_fd.h"
#include "device/driver/backend_kind.h"

namespace iris::driver {

inline constexpr size_t kFabricHandleBytes = 64;

// Returns a descriptor for GpuDriver::Import of a driver of this kind. kInvalidArgument if `handle`
// has another size. kResourceExhausted if descriptors run out.
absl::StatusOr<base::UniqueFd> WrapFabricHandle(BackendKind kind, absl::string_view handle);

// Returns the handle, or nullopt if WrapFabricHandle did not make the descriptor. kInvalidArgument
// if the handle is of another kind.
absl::StatusOr<std::optional<std::string>> UnwrapFabricHandle(BackendKind kind, int fd);

}  // namespace iris::driver
