// Calls the sanitizers. These functions are empty in builds without one.
//
// ThreadSanitizer sees each thread of a kernel as a fiber, whose switches order nothing. Launch,
// block sync, warp sync and the end of a launch do. The runtime itself is not instrumented, so the
// order in which blocks happen to be scheduled hides no race.
#pragma once

#include <cstddef>

#ifdef IRIS_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef IRIS_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace iris::backend::emu {

#ifdef IRIS_ASAN
inline void AsanStartSwitch(void** fake_stack, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
inline void AsanFinishSwitch(void* fake_stack, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
inline void AsanUnpoison(void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
inline void AsanPoison(void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
#else
inline void AsanStartSwitch(void**, const void*, size_t) {}
inline void AsanFinishSwitch(void*, const void**, size_t*) {}
inline void AsanUnpoison(void*, size_t) {}
inline void AsanPoison(void*, size_t) {}
#endif

#ifdef IRIS_TSAN
inline constexpr bool kTsan = true;
inline void* TsanCurrentFiber() { return __tsan_get_current_fiber(); }
inline void* TsanCreateFiber() { return __tsan_create_fiber(0); }
inline void TsanDestroyFiber(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void TsanNameFiber(void* fiber, const char* name) { __tsan_set_fiber_name(fiber, name); }
inline void TsanSwitch(void* fiber) {
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
}
inline void TsanAcquire(void* p) { __tsan_acquire(p); }
inline void TsanRelease(void* p) { __tsan_release(p); }
inline void TsanIgnoreBegin() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void TsanIgnoreEnd() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
inline constexpr bool kTsan = false;
inline void* TsanCurrentFiber() { return nullptr; }
inline void* TsanCreateFiber() { return nullptr; }
inline void TsanDestroyFiber(void*) {}
inline void TsanNameFiber(void*, const char*) {}
inline void TsanSwitch(void*) {}
inline void TsanAcquire(void*) {}
inline void TsanRelease(void*) {}
inline void TsanIgnoreBegin() {}
inline void TsanIgnoreEnd() {}
#endif

// Hides accesses of the runtime on a host thread, which the runtime's lock orders, from
// ThreadSanitizer while this object lives.
class TsanIgnoreScope {
 public:
  TsanIgnoreScope() { TsanIgnoreBegin(); }
  ~TsanIgnoreScope() { TsanIgnoreEnd(); }
  TsanIgnoreScope(const TsanIgnoreScope&) = delete;
  TsanIgnoreScope& operator=(const TsanIgnoreScope&) = delete;
};

}  // namespace iris::backend::emu
