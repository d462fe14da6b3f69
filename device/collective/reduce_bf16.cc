// Reductions of Bfloat16.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<Bfloat16>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<Bfloat16>();

}  // namespace iris::ccl::impl
