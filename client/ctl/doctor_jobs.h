// The jobs of iris-ctl doctor, whose ranks are threads of this process. An error says which step
// failed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/backend/line_search.h"

namespace iris::ctl {

// Joins two ranks, allocates, writes and reads through the peer's window, meets at barriers, and
// leaves.
// Takes a few MiB of the first two devices for a few milliseconds.
absl::Status RoundTrip(const std::string& runtime_dir);

// The sum of what all ranks have seen.
struct TornLines {
  uint32_t n_devices = 0;
  internal::LinesSeen seen;
};

// Finds out whether the devices of this machine store lines of 128 bytes whole in each other's
// memory: a rank on each of `n_devices` devices, at most eight, writes to all others for about a
// second. See client/backend/line_search.h.
absl::StatusOr<TornLines> SearchTornLines(const std::string& runtime_dir, uint32_t n_devices);

}  // namespace iris::ctl
