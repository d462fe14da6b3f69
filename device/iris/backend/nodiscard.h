// IRIS_NODISCARD: what marks a type whose values must be looked at. nvcc takes an assignment for an
// answer that is ignored, so there the other compilers alone say so.
#pragma once

#ifdef __CUDACC__
#define IRIS_NODISCARD
#else
#define IRIS_NODISCARD [[nodiscard]]
#endif
