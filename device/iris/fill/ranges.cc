// Numbers of all types: arange, linspace and randint.
#include "iris/fill/impl/vectors.h"

namespace iris::fill::impl {

Result FillRange(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  return s.kind == Kind::kArange ? LaunchAll<Kind::kArange>(s, v, stream)
                                 : LaunchAll<Kind::kLinspace>(s, v, stream);
}

Result FillWhole(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  return LaunchAll<Kind::kRandint>(s, v, stream);
}

}  // namespace iris::fill::impl
