// Chooses the backend: the only place in the tree that depends on which one is built. Bazel sets
// exactly one macro, through //device/backend. What kernels call is in primitives.h, what hosts call
// in host.h, and what a backend supplies for both in spec.h.
#pragma once

#if defined(IRIS_BACKEND_EMU)
#include "device/backend/emu/backend.h"
#elif defined(IRIS_BACKEND_CUDA)
#include "device/backend/cuda/backend.h"
#elif defined(IRIS_BACKEND_HIP)
#include "device/backend/hip/backend.h"
#else
#error "no backend: depend on //device/backend, which defines one of IRIS_BACKEND_EMU, _CUDA, _HIP"
#endif

#include "device/backend/host.h"
#include "device/backend/numeric.h"
#include "device/backend/primitives.h"
