// OpenDriver: the driver of this machine. Vendors' libraries are opened at run time, so one program
// runs with any or none.
#pragma once

#include <functional>
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

// A warning for processes that share a device of this backend where it runs one process at a time,
// as the environment says by `variable`. Empty: it runs several at once.
std::string ProcessesTakeTurns(const std::string& backend,
                               const std::function<const char*(const char*)>& variable);

}  // namespace iris::driver
