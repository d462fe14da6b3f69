// Quirks of the vendors' libraries. Only this table depends on their versions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "device/driver/backend_kind.h"

namespace iris::driver {

struct Quirks {
  // The import takes a pointer to the descriptor, not its value.
  bool import_takes_pointer = false;
  // Setting access reads the descriptor of imported memory, which therefore stays open.
  bool keep_imported_fd = false;
  // Setting access must begin at the start of a reservation and cover complete mappings. So each
  // piece of a Reservation is a separate reservation of the vendor.
  bool access_from_base = false;
  bool reservation_per_piece = false;
  // Granting access to a peer after the owning device breaks the mapping, so the owner comes last.
  bool grant_owner_last = false;
  // The calling thread's device affects creation and import.
  bool uses_current_device = false;
  // Releasing the handle of mapped memory would release the creating program's hold.
  bool retain_is_not_counted = false;
  // New memory has the bytes of its previous owner.
  bool zero_new_memory = false;
  // Host pages mapped without write permission must be registered as read-only.
  bool register_read_only = false;
  // Allocation type of device memory whose flags other devices see while a kernel polls them.
  int allocation_type = 0;
  // The first mapping of another device's memory is slow: see GpuDriver::link_bytes.
  bool links = false;
  // Smaller granularities are reported, but do not work.
  uint64_t granularity_floor_bytes = 0;
};

// `version` is from hipRuntimeGetVersion. kFailedPrecondition, with the minimum, if it is too old.
absl::Status CheckVersion(BackendKind kind, int version);
Quirks QuirksOf(BackendKind kind, int version);

// Returns "13.0" or "7.2".
std::string VersionText(BackendKind kind, int version);

}  // namespace iris::driver
