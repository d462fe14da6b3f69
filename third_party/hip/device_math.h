// Functions of <math.h> in kernels, which ROCm has in a device library and the wheel's clang has
// not: the compiler writes them itself. Included before each HIP source; the examples, and the
// kernels that fill tensors, need no more.
#pragma once

#include <math.h>

static inline __attribute__((device)) float expf(float x) { return __builtin_expf(x); }
static inline __attribute__((device)) float logf(float x) { return __builtin_logf(x); }
static inline __attribute__((device)) double sqrt(double x) { return __builtin_sqrt(x); }
static inline __attribute__((device)) float exp2f(float x) { return __builtin_exp2f(x); }
static inline __attribute__((device)) float sqrtf(float x) { return __builtin_sqrtf(x); }
static inline __attribute__((device)) float fmaxf(float x, float y) {
  return __builtin_fmaxf(x, y);
}
