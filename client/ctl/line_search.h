// SearchTornLines: whether the devices of this machine store lines of 128 bytes whole in each
// other's memory, for iris-ctl doctor. See client/internal/line_search.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/internal/line_search.h"

namespace iris::ctl {

// What all ranks have seen together.
struct TornLines {
  uint32_t n_devices = 0;
  internal::LinesSeen seen;
};

// A job of one rank on each of `n_devices` devices, at most eight, which are threads of this
// process. For about a second all of them write to all others. The error says which step failed.
absl::StatusOr<TornLines> SearchTornLines(const std::string& runtime_dir, uint32_t n_devices);

}  // namespace iris::ctl
