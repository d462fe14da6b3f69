// OpenDriver opens the driver of this machine. Vendors' libraries are opened at run time.
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
  std::string library_path;  // of the vendor's library; empty: the system's loader finds it
  // Whether GPUs' memory is created for other nodes of the fabric domain, too; emu.fabric_domain
  // says so of emulated devices.
  bool fabric = false;
};

// The availability of a backend, and the reason, for the user.
struct BackendReport {
  std::string backend;
  bool available = false;
  std::string detail;
};

struct OpenedDriver {
  std::unique_ptr<GpuDriver> driver;
  std::vector<BackendReport> reports;  // of every backend: "cuda", "hip", "emu"
};

// "auto" means cuda if it has a device, else hip, else emu. kFailedPrecondition, with the missing
// part, if the named backend has no device. kInvalidArgument if there is no such backend.
absl::StatusOr<OpenedDriver> OpenDriver(const OpenOptions& options);

// Returns a warning if the environment says that a device of this backend runs one process at a
// time, and an empty text otherwise.
std::string ProcessesTakeTurns(const std::string& backend,
                               const std::function<const char*(const char*)>& variable);

}  // namespace iris::driver
