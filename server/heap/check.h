// IRIS_CHECK: stops the process on a bug of our own, naming it. Never use it for outside input.
#pragma once

#include <cstdio>
#include <cstdlib>

#define IRIS_CHECK(condition, text)                                                                \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, text); \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)
