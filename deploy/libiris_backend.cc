// Takes the collectives out of their archive, so that all of them are in the library of a backend.
#include "iris/collective/collective.h"
#include "iris/moe/moe.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"
#include "iris/port/device_atomics.h"

namespace {

// One of each source that nothing else of these needs.
[[gnu::used]] constexpr auto kPrepareKernels = &iris::ccl::PrepareKernels;
[[gnu::used]] constexpr auto kAllReduce = &iris::ccl::AllReduce;
[[gnu::used]] constexpr auto kCheckError = &iris::ccl::CheckError;
[[gnu::used]] constexpr auto kHasVariant = &iris::ccl::HasVariant;
[[gnu::used]] constexpr auto kLaunchMatmul = &iris::ops::Launch;
[[gnu::used]] constexpr auto kDispatch = &iris::moe::LaunchDispatch;
[[gnu::used]] constexpr auto kRunOnNodes = &iris::ccl::RunOnNodes;
[[gnu::used]] constexpr auto kLaunchNorm = &iris::norm::Launch;
[[gnu::used]] constexpr auto kDeviceAtomics = &iris_device_atomics;

}  // namespace
