// RoundTrip: a real job of two ranks in this process, for iris-ctl doctor.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace iris::ctl {

// Joins both ranks (a thread each), allocates, writes and reads through the peer's window, meets at
// barriers, leaves. Takes a few MiB of the first two devices for a few milliseconds. The error says
// which step failed.
absl::Status RoundTrip(const std::string& runtime_dir);

}  // namespace iris::ctl
