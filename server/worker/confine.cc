#include "server/worker/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "server/sandbox/sanitizers.h"

namespace iris::server {
namespace {

// A connection has two descriptors: gRPC's, and one that reports its end.
constexpr rlim_t kMaxDescriptors = 16384;
// The kernel counts all workers of a user together. The limit keeps one worker from taking every
// thread of the machine.
constexpr rlim_t kMaxThreadsOfUser = 8192;
// A worker also maps its code, libraries, and the stacks of threads.
constexpr rlim_t kMappedBytes = 512 << 20;
// Few functions of gRPC need a large stack, and a default stack would count 8 MiB per thread.
constexpr size_t kStackBytes = 1 << 20;

absl::Status Limit(__rlimit_resource resource, const char* name, rlim_t value) {
  struct rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return wire::ErrnoStatus(errno, name);
  if (limit.rlim_max < value) value = limit.rlim_max;
  limit.rlim_cur = limit.rlim_max = value;
  if (setrlimit(resource, &limit) == 0) return absl::OkStatus();
  return wire::ErrnoStatus(errno, absl::StrCat("limit ", name, " to ", value));
}

// Has the kernel kill a worker before the core when memory is short.
void BeFirstToDie() {
  const wire::UniqueFd file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  constexpr char kFirst[] = "1000";
  // /proc may be missing, and nothing else here needs it.
  if (file.valid()) (void)!write(file.get(), kFirst, sizeof(kFirst) - 1);
}

// Lowers the priority, which irisd may have raised for itself. A client that floods a worker must
// not take time from the core, which serves all users, nor from ranks that compute. A port has the
// priority of ranks, which wait for it.
void LeaveTheCpuToOthers(bool port) {
  const int nice = port ? 0 : 10;
  if (getpriority(PRIO_PROCESS, 0) < nice) (void)setpriority(PRIO_PROCESS, 0, nice);
}

absl::Status BecomeUser(const WorkerIds& ids) {
  // The bounding set comes first: dropping from it needs a capability. Without that capability the
  // set stays, which has no effect once no program can gain capabilities from it.
  for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    (void)prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
  if (setgroups(0, nullptr) != 0) return wire::ErrnoStatus(errno, "give up all groups");
  if (setresgid(ids.gid, ids.gid, ids.gid) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("become group ", ids.gid));
  }
  if (setresuid(ids.uid, ids.uid, ids.uid) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("become user ", ids.uid));
  }
  if (setresuid(0, 0, 0) == 0 || setresgid(0, 0, 0) == 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("the kernel gives root back to user ", ids.uid));
  }
  return Limit(RLIMIT_NPROC, "the threads of the workers' user (RLIMIT_NPROC)", kMaxThreadsOfUser);
}

}  // namespace

bool HasLink() {
  int type = 0, domain = 0;
  socklen_t length = sizeof(int);
  return getsockopt(kLinkFd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM &&
         getsockopt(kLinkFd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

absl::Status Confine(const WorkerOptions& options) {
  // The kernel knows only a descriptor's number.
  prctl(PR_SET_NAME, options.port ? "irisd-port" : "irisd-worker", 0, 0, 0);
  // A process group of its own receives no signals from a terminal. (A session of its own would
  // also have a share of the CPU, if the kernel groups processes by session.)
  (void)setpgid(0, 0);
  LeaveTheCpuToOthers(options.port);
  umask(077);
  if (chdir("/") != 0) return wire::ErrnoStatus(errno, "change to the root directory");
  BeFirstToDie();
  absl::Status status = Limit(RLIMIT_CORE, "core files (RLIMIT_CORE)", 0);
  status.Update(Limit(RLIMIT_NOFILE, "descriptors (RLIMIT_NOFILE)", kMaxDescriptors));
  if (options.ids.has_value()) status.Update(BecomeUser(*options.ids));
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    status.Update(wire::ErrnoStatus(errno, "give up gaining privileges (PR_SET_NO_NEW_PRIVS)"));
  }
  // A change of the user resets it, so this comes later. SIGKILL ends even a stopped worker. A port
  // revokes it once another irisd can attach to it.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) {
    status.Update(wire::ErrnoStatus(errno, "end together with irisd (PR_SET_PDEATHSIG)"));
  }
  // A sanitizer that searches for leaks traces its own process.
  if (prctl(PR_SET_DUMPABLE, kSanitized ? 1 : 0, 0, 0, 0) != 0) {
    status.Update(wire::ErrnoStatus(errno, "hide the memory from its user (PR_SET_DUMPABLE)"));
  }
  if (!kSanitized && !options.port) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
    status.Update(Limit(RLIMIT_DATA, "memory (RLIMIT_DATA)", options.memory_bytes));
    status.Update(
        Limit(RLIMIT_AS, "address space (RLIMIT_AS)", options.memory_bytes + kMappedBytes));
  }
  return status;
}

}  // namespace iris::server
