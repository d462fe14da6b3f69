// For backends without a library of products.
#include "iris/backend/library_product.h"

namespace iris::backend {

const char* LibraryProductName() { return nullptr; }

Result MultiplyByLibrary(const LibraryProduct&, Stream&) {
  return {StatusCode::kUnavailable, "there is no library of products for this backend"};
}

}  // namespace iris::backend
