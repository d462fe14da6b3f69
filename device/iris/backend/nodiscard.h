// nvcc reports an assignment of a nodiscard type as ignored, so only other compilers get it.
#pragma once

#ifdef __CUDACC__
#define IRIS_NODISCARD
#else
#define IRIS_NODISCARD [[nodiscard]]
#endif
