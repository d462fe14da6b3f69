// UCX's names for the memory of a backend.
#pragma once

#include <ucs/memory/memory_type.h>

#include "device/driver/backend_kind.h"

namespace iris::driver {

struct UcxMemory {
  ucs_memory_type_t type = UCS_MEMORY_TYPE_HOST;
  const char* transport = "";  // the one by which UCX supports it; empty: it always does
};

constexpr UcxMemory UcxMemoryOf(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCuda:
      return {UCS_MEMORY_TYPE_CUDA, "cuda_copy"};
    case BackendKind::kHip:
      return {UCS_MEMORY_TYPE_ROCM, "rocm_copy"};
    case BackendKind::kEmu:
      break;
  }
  return {};
}

}  // namespace iris::driver
