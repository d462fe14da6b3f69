// OpenDriver: the driver of this machine. Vendors' libraries are opened at run time, so one program
// runs with any or none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/emu_driver.h"
#include "device/driver/gpu_driver.h"

namespace iris::driver {

inline constexpr const char* kBackendChoices[] = {"auto", "emu", "cuda", "hip"};

struct OpenOptions {
  std::string backend = "auto";  // one of kBackendChoices
  EmuOptions emu;
  std::string library_path;  // of the vendor's library; empty: where the system's loader finds it
};

// What was found of one backend, and if nothing, why.
struct BackendReport {
  std::string backend;
  bool available = false;
  std::string detail;
};

struct OpenedDriver {
  std::unique_ptr<GpuDriver> driver;
  std::vector<BackendReport> reports;  // of every backend: "cuda", "hip", "emu"
};

// "auto": cuda if it has a device, else hip, else emu. A backend that is asked for by name and has
// no device is kFailedPrecondition, with what is missing. kInvalidArgument: no such backend.
absl::StatusOr<OpenedDriver> OpenDriver(const OpenOptions& options);

}  // namespace iris::driver
