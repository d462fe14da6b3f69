// Reductions of int32_t.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<int32_t>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<int32_t>();

}  // namespace iris::ccl::impl
