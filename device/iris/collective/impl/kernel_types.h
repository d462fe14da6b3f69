// All element types have kernels of reductions. A test replaces this header to compile only a few.
#pragma once

namespace iris::ccl::impl {

template <typename T>
inline constexpr bool kHasKernels = true;

}  // namespace iris::ccl::impl
