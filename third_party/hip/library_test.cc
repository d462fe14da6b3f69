// Each test is a process of its own, because the library is looked for once.
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

extern "C" void** __hipRegisterFatBinary(const void* code);

namespace {

constexpr char kFake[] = "third_party/hip/libamdhip64.so.7";

TEST(HipLibraryTest, WithoutTheRuntimeEverythingFailsAndSaysWhy) {
  const auto run = [] {
    for (const char* name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
      if (dlopen(name, RTLD_NOW) != nullptr) std::exit(0);  // a machine with ROCm
    }
    int count = 7;
    const hipError_t error = hipGetDeviceCount(&count);
    const bool right = error == hipErrorInsufficientDriver && count == 7 &&
                       std::string(hipGetErrorString(error)).find("install ROCm") < 200 &&
                       __hipRegisterFatBinary(&count) == nullptr;
    std::exit(right ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(HipLibraryTest, CallsWhatTheRuntimeHas) {
  const auto run = [] {
    if (dlopen(kFake, RTLD_NOW | RTLD_LOCAL) == nullptr) std::exit(2);
    int count = 0;
    int word = 0;
    const hipStream_t stream = reinterpret_cast<hipStream_t>(&word);
    const bool right =
        hipGetDeviceCount(&count) == hipSuccess && count == 3 &&
        hipMemcpyAsync(nullptr, &word, 4096, hipMemcpyDefault, stream) == hipSuccess &&
        std::string(hipGetErrorString(hipErrorInvalidValue)) == "one" &&
        __hipRegisterFatBinary(&word) != nullptr &&
        // One that this runtime lacks.
        hipFree(&word) == hipErrorInsufficientDriver;
    std::exit(right ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

}  // namespace
