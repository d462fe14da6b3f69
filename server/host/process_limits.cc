#include "server/host/process_limits.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"

namespace iris::server {

uint64_t RaiseDescriptorLimit() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    struct rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur;
}

absl::Status CheckLimits(uint64_t fd_limit) {
  // Below 176 descriptors no two ranks have a session each, nor does a worker have a connection;
  // below 72 MiB of address space threads cannot be started.
  constexpr uint64_t kMinDescriptors = 192, kMinAddressSpaceBytes = 128 << 20;
  if (fd_limit < kMinDescriptors) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this process may have ", fd_limit, " descriptors (RLIMIT_NOFILE), and irisd needs ",
        kMinDescriptors, " at least: set LimitNOFILE= of its unit, or ulimit -n before it starts"));
  }
  struct rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < kMinAddressSpaceBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this process may have ", base::SizeText(space.rlim_cur),
        " of address space (RLIMIT_AS), and irisd needs ", base::SizeText(kMinAddressSpaceBytes),
        " at least, more where GPUs' drivers are loaded: set LimitAS=infinity of its unit, or "
        "ulimit -v unlimited before it starts"));
  }
  return absl::OkStatus();
}

void EndForWant() {
  const char* text = nullptr;
  char buffer[512];
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    text =
        "irisd: cannot run: no memory is left: look at LimitAS= and MemoryMax= of its unit, or "
        "ulimit -v, and at what else runs on this machine\n";
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      text =
          "irisd: cannot run: the kernel starts no more threads: look at LimitNPROC=, TasksMax= "
          "and LimitAS= of its unit, or ulimit -u and -v\n";
    } else {
      snprintf(buffer, sizeof(buffer),
               "irisd: cannot run: %s: look at LimitNOFILE= of its unit, or ulimit -n\n",
               error.what());
      text = buffer;
    }
  } catch (...) {
  }
  if (text == nullptr) abort();
  struct pollfd takes = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&takes, 1, 0) == 1) (void)!write(STDERR_FILENO, text, strlen(text));
  _exit(1);
}

}  // namespace iris::server
