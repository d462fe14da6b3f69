// randn.
#include "iris/fill/impl/vectors.h"

namespace iris::fill::impl {

Result FillNormal(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  return LaunchFloats<Kind::kRandn>(s, v, stream);
}

}  // namespace iris::fill::impl
