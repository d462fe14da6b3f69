// Translates errors of CUDA and HIP into absl::Status, with advice for the user.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "device/driver/hip_api.h"

namespace iris::driver {
namespace {

using absl::StatusCode;

struct Translation {
  hipError_t first;
  StatusCode code;
  const char* advice;
  hipError_t last = first;  // numbers from `first` to `last` have one meaning
};

constexpr char kLost[] =
    "the device, or this process's context on it, is lost: end this process; the kernel's log "
    "(dmesg) says why";
constexpr char kMps[] = "the vendor's multi-process service refuses: restart it, or stop using it";

// Sorted by number. CUDA and HIP share most numbers; the others have no name here.
constexpr Translation kTranslations[] = {
    {hipErrorInvalidValue, StatusCode::kInvalidArgument, ""},
    {hipErrorOutOfMemory, StatusCode::kResourceExhausted,
     "device memory has run out, or this process's descriptors: `iris-ctl devices` shows what "
     "irisd holds of each device"},
    {hipErrorNotInitialized, StatusCode::kFailedPrecondition,
     "the library is not initialized in this process; a forked child cannot use it and must exec"},
    {hipErrorDeinitialized, StatusCode::kUnavailable, "this process is ending"},
    {34, StatusCode::kFailedPrecondition,
     "the library found is the toolkit's stub: put the driver's own first in the loader's path"},
    {hipErrorInsufficientDriver, StatusCode::kFailedPrecondition, "install a newer driver"},
    {36, StatusCode::kFailedPrecondition, "install a newer driver"},
    {46, StatusCode::kUnavailable,
     "the device is busy, or reserved for one process (compute mode)"},
    {hipErrorNoDevice, StatusCode::kFailedPrecondition,
     "no device is visible to this process: see the vendor's tool, *_VISIBLE_DEVICES, and the "
     "container's devices"},
    {hipErrorInvalidDevice, StatusCode::kInvalidArgument,
     "no such device, or one that this process cannot reach"},
    {hipErrorInvalidContext, StatusCode::kFailedPrecondition,
     "this thread has no device: call MakeCurrent first"},
    {hipErrorECCNotCorrectable, StatusCode::kUnavailable, kLost},
    {hipErrorPeerAccessUnsupported, StatusCode::kFailedPrecondition,
     "the devices cannot reach each other's memory"},
    {220, StatusCode::kUnavailable, kLost},  // link error
    {226, StatusCode::kUnavailable, kLost},  // contained memory error
    {hipErrorOperatingSystem, StatusCode::kInternal,
     "the operating system refused a call of the driver: descriptors (ulimit -n), /dev nodes or "
     "the "
     "kernel's log (dmesg)"},
    {hipErrorInvalidHandle, StatusCode::kInvalidArgument, ""},
    {hipErrorIllegalAddress, StatusCode::kUnavailable, kLost},
    {702, StatusCode::kUnavailable, kLost},       // launch timeout
    {709, StatusCode::kUnavailable, kLost, 710},  // context destroyed, assertion in a kernel
    {hipErrorHostMemoryAlreadyRegistered, StatusCode::kAlreadyExists, ""},
    {hipErrorHostMemoryNotRegistered, StatusCode::kInvalidArgument, ""},
    // Hardware stack error, illegal instruction, misaligned address, invalid address space, invalid
    // program counter.
    {714, StatusCode::kUnavailable, kLost, 718},
    {hipErrorLaunchFailure, StatusCode::kUnavailable, kLost},
    {800, StatusCode::kPermissionDenied, "this user may not use the device"},
    {hipErrorNotSupported, StatusCode::kUnimplemented,
     "this device or driver cannot do it: virtual memory management and export by descriptor are "
     "needed"},
    {802, StatusCode::kFailedPrecondition,
     "the system is not ready: is the vendor's fabric manager running?"},
    {803, StatusCode::kFailedPrecondition,
     "kernel driver and library are of different versions: reload the driver or reboot"},
    {804, StatusCode::kFailedPrecondition,
     "the forward-compatibility library does not support this device: remove it from the loader's "
     "path"},
    {805, StatusCode::kUnavailable, kMps, 810},
    {hipErrorUnknown, StatusCode::kInternal,
     "see the kernel's log (dmesg), and whether /dev has the device's nodes"},
};

}  // namespace

std::string HipErrorText(HipApi& api, hipError_t error) {
  return absl::StrCat(api.ErrorName(error), " (", error, ": ", api.ErrorString(error), ")");
}

absl::Status HipStatus(HipApi& api, hipError_t error, absl::string_view what) {
  if (error == hipSuccess) return absl::OkStatus();
  const auto* const found =
      std::find_if(std::begin(kTranslations), std::end(kTranslations),
                   [error](const Translation& t) { return t.first <= error && error <= t.last; });
  const bool known = found != std::end(kTranslations);
  std::string message = absl::StrCat(what, ": ", HipErrorText(api, error));
  if (known && found->advice[0] != '\0') absl::StrAppend(&message, "; ", found->advice);
  return absl::Status(known ? found->code : StatusCode::kInternal, message);
}

}  // namespace iris::driver
