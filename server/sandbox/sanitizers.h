// kSanitized: this build runs under a sanitizer, and so without the sandbox. Sanitizers map
// terabytes of address space, open files, start threads, and look for leaks by ptrace. So irisd and
// its workers install no filter of system calls, bound no memory and stay dumpable; all else is the
// same.
#pragma once

namespace iris::server {

#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace iris::server
