// Reductions of uint8_t.
#include "device/collective/impl/reduce_launch.h"

namespace iris::ccl::impl {

template Result LaunchReduce<uint8_t>(const LaunchConfig&, backend::Stream&, Variant, const Call&);
template Result PrepareReduce<uint8_t>();

}  // namespace iris::ccl::impl
