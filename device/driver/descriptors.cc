#include "device/driver/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace iris::driver {
namespace {

// Segments are refused when fewer descriptors than these are left: the vendors' libraries need some
// for themselves, and report running out of them as something else.
constexpr int kSpareDescriptors = 32;

absl::Status OutOfDescriptors(absl::string_view what, uint64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat(
      what, ": nearly all of this process's ", limit,
      " descriptors are open, and each segment needs one: raise the limit (LimitNOFILE of "
      "the service, ulimit -n), or use fewer and larger segments"));
}

}  // namespace

// The kernel gives the lowest free number, so a number near the limit means that few are left.
absl::Status CheckDescriptors(int any_fd, absl::string_view what) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  const OwnedFd probe(any_fd >= 0 ? fcntl(any_fd, F_DUPFD_CLOEXEC, 0)
                                  : open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (probe.get() < 0 && errno != EMFILE) return absl::OkStatus();
  if (probe.get() < 0 || static_cast<rlim_t>(probe.get()) + kSpareDescriptors >= limit.rlim_cur) {
    return OutOfDescriptors(what, limit.rlim_cur);
  }
  return absl::OkStatus();
}

}  // namespace iris::driver
