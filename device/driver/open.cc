#include "device/driver/open.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "device/driver/vmm_driver.h"

namespace iris::driver {

absl::StatusOr<OpenedDriver> OpenDriver(const OpenOptions& options) {
  if (std::find(std::begin(kBackendChoices), std::end(kBackendChoices), options.backend) ==
      std::end(kBackendChoices)) {
    return absl::InvalidArgumentError(absl::StrCat("no backend \"", options.backend, "\": choose ",
                                                   absl::StrJoin(kBackendChoices, ", ")));
  }
  // If no kind is requested, the first available one is opened.
  const std::optional<BackendKind> wanted = KindOf(options.backend);
  OpenedDriver opened;
  for (const BackendKind kind : {BackendKind::kCuda, BackendKind::kHip}) {
    BackendReport report{std::string(NameOf(kind)), false, ""};
    if (opened.driver != nullptr) {
      report.detail =
          absl::StrCat("not looked for: ", std::string(opened.driver->backend()), " has devices");
    } else if (wanted.has_value() && *wanted != kind) {
      report.detail = absl::StrCat("not looked for: backend = ", options.backend);
    } else {
      absl::StatusOr<OpenedVmm> vmm = OpenVmmDriver({kind, options.library_path, options.fabric});
      if (vmm.ok()) {
        report.available = true;
        report.detail = std::move(vmm->detail);
        opened.driver = std::move(vmm->driver);
      } else if (!wanted.has_value()) {
        report.detail = std::string(vmm.status().message());
      } else {
        return absl::Status(
            absl::StatusCode::kFailedPrecondition,
            absl::StrCat("backend ", options.backend, ": ", vmm.status().message()));
      }
    }
    opened.reports.push_back(std::move(report));
  }
  const bool emulate = opened.driver == nullptr;
  opened.reports.push_back(
      {std::string(NameOf(BackendKind::kEmu)), emulate,
       !emulate ? absl::StrCat("not used: ", std::string(opened.driver->backend()), " has devices")
       : options.emu.n_devices == 0
           ? "emulated devices, which irisd owns"
           : absl::StrCat(options.emu.n_devices, " devices of ",
                          base::HumanBytes(options.emu.memory_bytes_per_device))});
  if (emulate) opened.driver = CreateEmuDriver(options.emu);
  return opened;
}

std::string ProcessesTakeTurns(const std::string& backend,
                               const std::function<const char*(const char*)>& variable) {
  if (KindOf(backend) != BackendKind::kCuda) return "";
  const char* const folder = variable("CUDA_MPS_PIPE_DIRECTORY");
  const std::string control =
      absl::StrCat(folder != nullptr ? folder : "/tmp/nvidia-mps", "/control");
  if (access(control.c_str(), F_OK) == 0) return "";
  return "ranks that are processes share a GPU and take turns on it, so that each collective takes "
         "milliseconds: start MPS before them (nvidia-cuda-mps-control -d), or give each rank a "
         "GPU";
}

}  // namespace iris::driver
