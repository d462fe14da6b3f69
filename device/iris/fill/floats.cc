// Random floats: rand, uniform and randn.
#include "iris/fill/impl/vectors.h"

namespace iris::fill::impl {

Result FillUniform(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  return s.kind == Kind::kRand ? LaunchFloats<Kind::kRand>(s, v, stream)
                               : LaunchFloats<Kind::kUniform>(s, v, stream);
}

Result FillNormal(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  return LaunchFloats<Kind::kRandn>(s, v, stream);
}

}  // namespace iris::fill::impl
