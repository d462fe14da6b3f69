// Starting the kernels of reductions: one translation unit for each type, reduce_*.cc.
#pragma once

#include "device/backend/select.h"
#include "device/collective/collective.h"
#include "device/collective/impl/layout.h"

namespace iris::ccl::impl {

// For float, double, Half, Bfloat16, int32_t, int64_t, uint8_t.
template <typename T>
Result LaunchReduce(const LaunchConfig& launch, backend::Stream& stream, Variant variant,
                    const Call& call);

// Loads all kernels of a type.
template <typename T>
Result PrepareReduce();

}  // namespace iris::ccl::impl
