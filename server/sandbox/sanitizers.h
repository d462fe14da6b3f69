// Whether this build runs under a sanitizer, and so without the sandbox: the one place that says
// so. Sanitizers map terabytes of address space, open files as they report, start threads of their
// own, and look for leaks by ptrace. So in such builds irisd and its workers install no filter of
// system calls, bound no memory and stay dumpable; all else is the same.
#pragma once

namespace iris::server {

#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace iris::server
