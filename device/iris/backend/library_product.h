// GEMMs by the vendor's library, which is opened at run time if it is installed. Host code.
// Thread-safe. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/dtype.h"

namespace iris::backend {

// A GEMM: D[m, n] = A[m, k] B[k, n], stored by rows, leading dimensions in elements; sums in f32.
struct LibraryProduct {
  uint64_t m;
  uint64_t n;
  uint64_t k;
  DType in;   // kF16 or kBf16
  DType out;  // kF16, kBf16 or kF32
  bool transposed_b;
  const void* a;
  uint64_t lda;
  const void* b;
  uint64_t ldb;
  void* d;
  uint64_t ldd;
  void* workspace;  // device memory of kLibraryWorkspaceBytes, aligned to 256
};
inline constexpr uint64_t kLibraryWorkspaceBytes = 32 << 20;

// Returns the library's name, for messages; null if this machine has none. The first call opens it.
const char* LibraryProductName();

// Puts the GEMM on the stream. Allocates no device memory, and may be captured. The first call for
// a shape may load a kernel, which waits for the device's running work. kUnimplemented if the
// library does not support the GEMM. kUnavailable if there is no library.
Result MultiplyByLibrary(const LibraryProduct& product, Stream& stream);

}  // namespace iris::backend
