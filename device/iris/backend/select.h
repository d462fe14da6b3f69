// Chooses the backend; no other place in the tree depends on the backend that is built. Bazel sets
// exactly one macro, through //device/iris/backend. primitives.h declares the functions for
// kernels, host.h those for hosts, and spec.h those that a backend supplies for both.
#pragma once

#if defined(IRIS_BACKEND_EMU)
#include "iris/backend/emu/backend.h"
#include "iris/backend/emu/matrix.h"
// It uses the macros of the headers above.
#include "iris/backend/bulk_plain.h"
#elif defined(IRIS_BACKEND_CUDA)
#include "iris/backend/cuda/backend.h"
#include "iris/backend/cuda/bulk.h"
#include "iris/backend/cuda/matrix.h"
#elif defined(IRIS_BACKEND_HIP)
#include "iris/backend/hip/backend.h"
#include "iris/backend/hip/matrix.h"
// It uses the macros of the headers above.
#include "iris/backend/bulk_plain.h"
#else
#error \
    "no backend: link Iris::device_emu or its fellows, which define IRIS_BACKEND_EMU, _CUDA or _HIP"
#endif

#include "iris/backend/host.h"
#include "iris/backend/numeric.h"
#include "iris/backend/primitives.h"
