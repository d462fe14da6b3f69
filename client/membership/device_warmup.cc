#include "client/membership/device_warmup.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/base/annotate.h"

namespace iris::internal {
namespace {

struct Link {
  std::shared_ptr<driver::GpuDriver> driver;
  std::unique_ptr<driver::PhysicalMemory> memory;
  std::unique_ptr<driver::Reservation> reservation;
  std::unique_ptr<driver::Mapping> mapping;
};

// Never destroyed: the mappings end with the process.
struct Registry {
  absl::Mutex mu;
  std::map<std::string, Link> links ABSL_GUARDED_BY(mu);  // by uuid
};
Registry& GetRegistry() {
  static Registry* const registry = new Registry();
  return *registry;
}

absl::Status Open(const std::string& uuid, uint64_t bytes, int fd,
                  absl::Span<const uint32_t> devices, Link* link) {
  const auto annotate = [&uuid](const absl::Status& status) {
    return Annotate(status, absl::StrCat("link to device ", uuid));
  };
  auto memory = link->driver->Import(fd, bytes);
  if (!memory.ok()) return annotate(memory.status());
  link->memory = *std::move(memory);
  auto reservation = link->driver->Reserve(bytes, 1, 0);
  if (!reservation.ok()) return annotate(reservation.status());
  link->reservation = *std::move(reservation);
  auto mapping =
      link->driver->Map(*link->reservation, 0, *link->memory, driver::Access::kReadOnly, devices);
  if (!mapping.ok()) return annotate(mapping.status());
  link->mapping = *std::move(mapping);
  return absl::OkStatus();
}

}  // namespace

absl::Status KeepLink(std::shared_ptr<driver::GpuDriver> driver, const std::string& uuid,
                      uint64_t bytes, wire::UniqueFd fd, absl::Span<const uint32_t> devices) {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  if (const auto it = registry.links.find(uuid); it != registry.links.end()) {
    for (const uint32_t device : devices) {
      if (absl::Status status = it->second.mapping->Allow(device); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  Link link;
  link.driver = std::move(driver);
  if (absl::Status status = Open(uuid, bytes, fd.Release(), devices, &link); !status.ok()) {
    // Made in this order, so unmade in the other.
    link.mapping.reset();
    link.reservation.reset();
    return status;
  }
  registry.links.emplace(uuid, std::move(link));
  return absl::OkStatus();
}

size_t LinkCount() {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  return registry.links.size();
}

}  // namespace iris::internal
