// The persistent product of Hopper GPUs: see matmul/.
#include "iris/backend/persistent_product.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"
#include "iris/backend/cuda/matmul/schedule.h"
#include "iris/backend/gpu_runtime.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

static_assert(kPersistentKeptBytes == cuda::matmul::kHeaderBytes);

// Fills in the fields of a shape without matrices as if these were aligned.
void Align(PersistentProduct* product) {
  const auto up = [](uint64_t x) { return (x + 7) / 8 * 8; };
  product->lda = up(product->k);
  product->ldb = up(product->transposed_b ? product->k : product->n);
  product->ldd = up(product->n);
}

}  // namespace

bool HasPersistentProduct() {
  int device = 0;
  int major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

bool SupportsPersistentProduct(const PersistentProduct& product, const char** why) {
  return cuda::matmul::Supports(product, why);
}

uint64_t PersistentProductBytes(const PersistentProduct& product) {
  PersistentProduct aligned = product;
  Align(&aligned);
  return cuda::matmul::WorkspaceBytes(aligned);
}

Result LaunchPersistentProduct(const PersistentProduct& product, Stream& stream) {
  const raw::StreamHandle on = stream.handle();
  const raw::CurrentDevice device_scope(on.device);
  const char* const why = cuda::matmul::Launch(product, on.native);
  if (why == nullptr) return {};
  return {StatusCode::kInternal, why};
}

Result PreparePersistentProduct() {
  if (!HasPersistentProduct()) return {};
  const char* why = cuda::matmul::Prepare();
  if (why == nullptr) return {};
  return {StatusCode::kInternal, why};
}

}  // namespace iris::backend
