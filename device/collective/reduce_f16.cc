// Reductions of Half.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<Half>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<Half>();

}  // namespace iris::ccl::impl
