// Which element types have kernels of reductions: all. This is a header of its own so that a test
// can compile the kernels of one type alone, by another one in a folder that is searched first.
#pragma once

namespace iris::ccl::impl {

template <typename T>
inline constexpr bool kHasKernels = true;

}  // namespace iris::ccl::impl
