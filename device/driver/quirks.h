// Quirks: where versions of the vendors' libraries differ from each other, or from what they say.
// One table, chosen by the version found at run time; vmm_driver.cc asks it and never looks at a
// version itself.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "device/driver/backend_kind.h"

namespace iris::driver {

struct Quirks {
  // The import takes a pointer to the descriptor, not its value.
  bool import_takes_pointer = false;
  // The descriptor of imported memory must stay open as long as the memory: it is looked at when
  // access is set.
  bool keep_imported_fd = false;
  // Setting access must begin at the start of a reservation, and cover whole mappings from there
  // on. So each piece of a Reservation is a reservation of the vendor's.
  bool access_from_base = false;
  bool reservation_per_piece = false;
  // Granting a peer after the device that has the memory breaks the mapping: that device comes
  // last.
  bool grant_owner_last = false;
  // Creating and importing take the calling thread's device into account.
  bool uses_current_device = false;
  // The handle that stands for mapped memory does not count as a hold: releasing it would take away
  // that of the program that created the memory.
  bool retain_is_not_counted = false;
  // Fresh memory holds what its last owner wrote.
  bool zero_new_memory = false;
  // Host pages are registered as read-only, which pages mapped without write permission need.
  bool register_read_only = false;
  // Allocation type of device memory whose flags other devices must see while a kernel polls them.
  int allocation_type = 0;
  // The first mapping of another device's memory is slow: see GpuDriver::link_bytes.
  bool links = false;
  // Smaller ones are reported, but do not work.
  uint64_t granularity_floor_bytes = 0;
};

// `version` as hipRuntimeGetVersion gives it. kFailedPrecondition: older than what works; the
// message has both versions.
absl::Status CheckVersion(BackendKind kind, int version);
Quirks QuirksOf(BackendKind kind, int version);

// "13.0", "7.2".
std::string VersionText(BackendKind kind, int version);

}  // namespace iris::driver
