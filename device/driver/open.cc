#include "device/driver/open.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace iris::driver {

absl::StatusOr<OpenedDriver> OpenDriver(const OpenOptions& options) {
  if (std::find(std::begin(kBackendChoices), std::end(kBackendChoices), options.backend) ==
      std::end(kBackendChoices)) {
    return absl::InvalidArgumentError(absl::StrCat("no backend \"", options.backend, "\": choose ",
                                                   absl::StrJoin(kBackendChoices, ", ")));
  }
  OpenedDriver opened;
  for (const char* backend : {"cuda", "hip"}) {
    const absl::Status status = absl::FailedPreconditionError("no driver for it in this build");
    if (options.backend == backend) return status;
    opened.reports.push_back({backend, false, std::string(status.message())});
  }
  opened.driver = CreateEmuDriver(options.emu);
  opened.reports.push_back({"emu", true,
                            absl::StrCat(options.emu.n_devices, " devices of ",
                                         options.emu.memory_bytes_per_device, " bytes")});
  return opened;
}

}  // namespace iris::driver
