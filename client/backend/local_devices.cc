#include "client/backend/local_devices.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/base/annotate.h"
#include "device/driver/open.h"

namespace iris::internal {
namespace {

// Never destroyed: kernels may use objects of a driver until the process ends.
struct Registry {
  absl::Mutex mu;
  std::map<std::string, std::shared_ptr<driver::GpuDriver>> drivers ABSL_GUARDED_BY(mu);
};
Registry& GetRegistry() {
  static Registry* const registry = new Registry();
  return *registry;
}

}  // namespace

absl::StatusOr<std::shared_ptr<driver::GpuDriver>> ProcessDriver(const std::string& backend) {
  if (!driver::KindOf(backend).has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("irisd has devices of backend \"", backend,
                     "\", for which this client library has no driver; install matching versions"));
  }
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  const auto kept = registry.drivers.find(backend);
  if (kept != registry.drivers.end()) return kept->second;
  driver::OpenOptions options;
  options.backend = backend;
  absl::StatusOr<driver::OpenedDriver> opened = driver::OpenDriver(options);
  if (!opened.ok()) {
    return Annotate(opened.status(), "irisd has devices that this process cannot use");
  }
  return registry.drivers.emplace(backend, std::move(opened->driver)).first->second;
}

absl::StatusOr<LocalDevice> ChooseDevice(const driver::GpuDriver& driver,
                                         const std::string& wanted_uuid, int local_rank) {
  const absl::Span<const driver::DeviceInfo> devices = driver.devices();
  LocalDevice chosen;
  chosen.uuid = wanted_uuid;
  if (devices.empty()) return chosen;
  if (wanted_uuid.empty()) {
    if (local_rank < 0) {
      return absl::InvalidArgumentError(absl::StrCat("local_rank=", local_rank, " is negative"));
    }
    const driver::DeviceInfo& device = devices[static_cast<size_t>(local_rank) % devices.size()];
    return LocalDevice{device.uuid, {device.index}};
  }
  std::vector<std::string> seen;
  for (const driver::DeviceInfo& device : devices) {
    if (absl::EqualsIgnoreCase(device.uuid, wanted_uuid)) {
      return LocalDevice{device.uuid, {device.index}};
    }
    seen.push_back(device.uuid);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "device_uuid=", wanted_uuid.substr(0, 64), ": this process sees ", absl::StrJoin(seen, ", "),
      " only; `iris-ctl devices` lists irisd's, and *_VISIBLE_DEVICES and the "
      "container decide what a process sees"));
}

}  // namespace iris::internal
