// The one translation of a vendor's error into absl::Status.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "device/driver/hip_api.h"

namespace iris::driver {

// "<what>: <NAME> (<number>: <text>); <what to do>". OK for hipSuccess.
//
// kResourceExhausted: memory (or descriptors, which some versions report so). kUnavailable: the
// device or this process's context on it is lost. kFailedPrecondition: no device, or an
// installation that does not fit together. kPermissionDenied, kUnimplemented, kInvalidArgument: as
// the vendor says. kInternal: the rest.
absl::Status HipStatus(HipApi& api, hipError_t error, absl::string_view what);

// "NAME (number: text)".
std::string HipErrorText(HipApi& api, hipError_t error);

}  // namespace iris::driver
