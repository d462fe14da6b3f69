// Reductions of float.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<float>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<float>();

}  // namespace iris::ccl::impl
