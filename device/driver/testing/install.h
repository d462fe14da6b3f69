// Puts the fake vendor's library in the place of the real one: for this process and for programs
// that it starts.
#pragma once

#include <string>

#include "device/driver/testing/fake_gpu.h"

namespace iris::driver::testing {

// The backend that it is a driver of.
extern const char kFakeBackend[];
// One that it is not, and that a machine without its devices has no driver of.
extern const char kOtherBackend[];

// Loads the library here, and makes programs started from now on find it in `folder` (absolute,
// exists). The test has //device/driver:testing/libfake_gpu.so as data. Null if it cannot be
// loaded; says why on stderr.
FakeGpu* InstallFakeGpu(const std::string& folder);

// Sets which devices this process sees, and in which order: "1,0".
void SetVisibleDevices(const std::string& list);

}  // namespace iris::driver::testing
