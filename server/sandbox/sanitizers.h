// kSanitized: this build runs under a sanitizer, and therefore without the sandbox. Sanitizers map
// terabytes of address space, open files, start threads, and search for leaks with ptrace. So irisd
// and its workers install no system call filter, bound no memory and stay dumpable; nothing else
// differs.
#pragma once

namespace iris::server {

#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace iris::server
