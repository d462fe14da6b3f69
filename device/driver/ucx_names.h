// UCX's names for the memory of each backend, for server/port.
#pragma once

#include "device/driver/backend_kind.h"

namespace iris::driver {

struct UcxNames {
  const char* transports;  // UCX_TLS for TCP
  unsigned memory_type;    // ucs_memory_type_t, whose numbers are part of UCX's ABI
};

constexpr UcxNames UcxNamesOf(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCuda:
      return {"tcp,cuda_copy", 1};
    case BackendKind::kHip:
      return {"tcp,rocm_copy", 3};
    case BackendKind::kEmu:
      break;
  }
  return {"tcp", 0};
}

// Settings that keep UCX from changing functions of a vendor's library at run time.
inline constexpr const char* kUcxHookSettings[] = {"UCX_MEM_CUDA_HOOK_MODE"};

}  // namespace iris::driver
