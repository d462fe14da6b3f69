// Defines the functions for backends without a GEMM library and without a persistent GEMM.
#include "iris/backend/library_product.h"
#include "iris/backend/persistent_product.h"

namespace iris::backend {
namespace {

constexpr const char* kNone = "this backend has no persistent kernel for products of matrices";

}  // namespace

const char* LibraryProductName() { return nullptr; }

Result MultiplyByLibrary(const LibraryProduct&, Stream&) {
  return {StatusCode::kUnavailable, "there is no library of products for this backend"};
}

bool HasPersistentProduct() { return false; }

bool SupportsPersistentProduct(const PersistentProduct&, const char** why) {
  *why = kNone;
  return false;
}

uint64_t PersistentProductBytes(const PersistentProduct&) { return 0; }

Result LaunchPersistentProduct(const PersistentProduct&, const raw::StreamHandle&) {
  return {StatusCode::kUnimplemented, kNone};
}

Result PreparePersistentProduct() { return {}; }

}  // namespace iris::backend
