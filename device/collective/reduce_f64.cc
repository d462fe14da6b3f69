// Reductions of double.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<double>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<double>();

}  // namespace iris::ccl::impl
