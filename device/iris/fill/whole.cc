// randint.
#include "iris/fill/impl/vectors.h"

namespace iris::fill::impl {

Result FillWhole(const Sequence& s, const Vectors& v, backend::Stream& stream) {
  return LaunchAll<Kind::kRandint>(s, v, stream);
}

}  // namespace iris::fill::impl
