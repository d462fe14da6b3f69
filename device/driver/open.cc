#include "device/driver/open.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/driver/vmm_driver.h"

namespace iris::driver {

absl::StatusOr<OpenedDriver> OpenDriver(const OpenOptions& options) {
  if (std::find(std::begin(kBackendChoices), std::end(kBackendChoices), options.backend) ==
      std::end(kBackendChoices)) {
    return absl::InvalidArgumentError(absl::StrCat("no backend \"", options.backend, "\": choose ",
                                                   absl::StrJoin(kBackendChoices, ", ")));
  }
  const bool automatic = options.backend == "auto";
  OpenedDriver opened;
  for (const char* backend : {"cuda", "hip"}) {
    BackendReport report{backend, false, ""};
    if (opened.driver != nullptr) {
      report.detail =
          absl::StrCat("not looked for: ", std::string(opened.driver->backend()), " has devices");
    } else if (!automatic && options.backend != backend) {
      report.detail = absl::StrCat("not looked for: backend = ", options.backend);
    } else {
      absl::StatusOr<OpenedVmm> vmm = OpenVmmDriver({backend, options.library_path});
      if (vmm.ok()) {
        report.available = true;
        report.detail = std::move(vmm->detail);
        opened.driver = std::move(vmm->driver);
      } else if (automatic) {
        report.detail = std::string(vmm.status().message());
      } else {
        return absl::Status(absl::StatusCode::kFailedPrecondition,
                            absl::StrCat("backend ", backend, ": ", vmm.status().message()));
      }
    }
    opened.reports.push_back(std::move(report));
  }
  const bool emulate = opened.driver == nullptr;
  opened.reports.push_back(
      {"emu", emulate,
       emulate
           ? absl::StrCat(options.emu.n_devices, " devices of ",
                          options.emu.memory_bytes_per_device, " bytes")
           : absl::StrCat("not used: ", std::string(opened.driver->backend()), " has devices")});
  if (emulate) opened.driver = CreateEmuDriver(options.emu);
  return opened;
}

}  // namespace iris::driver
