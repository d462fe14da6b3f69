// Reductions of int64_t.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<int64_t>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<int64_t>();

}  // namespace iris::ccl::impl
