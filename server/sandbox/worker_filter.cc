#include "server/sandbox/worker_filter.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

namespace iris::server {
namespace {

// A new thread of this process, never a process, and in no namespace of its own.
constexpr uint32_t kThreadFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
constexpr uint32_t kNamespaceFlags = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                     CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
// Whatever does more than open an existing file for reading.
constexpr uint32_t kOpensToWrite = O_ACCMODE | O_CREAT | O_TRUNC | O_PATH;

constexpr ArgumentCheck Equals(uint8_t argument, uint32_t value) {
  return {argument, ~0u, value, false};
}
constexpr ArgumentCheck Without(uint8_t argument, uint32_t flags) {
  return {argument, flags, 0, false};
}

}  // namespace

SyscallTable WorkerSyscalls(pid_t pid) {
  const auto self = static_cast<uint32_t>(pid);
  SyscallTable table;
  table.otherwise = SyscallAction::kKillProcess;
  table.rules = {
    // Bytes on descriptors that are open.
    IRIS_SYSCALL(read, kAllow),
    IRIS_SYSCALL(write, kAllow),
    IRIS_SYSCALL(readv, kAllow),
    IRIS_SYSCALL(writev, kAllow),
    IRIS_SYSCALL(recvmsg, kAllow),
    IRIS_SYSCALL(sendmsg, kAllow),
    IRIS_SYSCALL(recvfrom, kAllow),
    // With an address it would connect.
    IRIS_SYSCALL(sendto, kAllow, {Equals(4, 0), {4, ~0u, 0, /*high_half=*/true}}),
    IRIS_SYSCALL(close, kAllow),
    IRIS_SYSCALL(shutdown, kAllow),
    IRIS_SYSCALL(getsockopt, kAllow),
    IRIS_SYSCALL(setsockopt, kAllow),
    IRIS_SYSCALL(getsockname, kAllow),
    IRIS_SYSCALL(getpeername, kAllow),
    IRIS_SYSCALL(fcntl, kAllow, {Equals(1, F_GETFL)}),
    IRIS_SYSCALL(fcntl, kAllow, {Equals(1, F_SETFL)}),
    IRIS_SYSCALL(fcntl, kAllow, {Equals(1, F_GETFD)}),
    IRIS_SYSCALL(fcntl, kAllow, {Equals(1, F_SETFD)}),
    IRIS_SYSCALL(fcntl, kAllow, {Equals(1, F_DUPFD_CLOEXEC)}),
    // Waiting.
    IRIS_SYSCALL(futex, kAllow),
    IRIS_SYSCALL(epoll_ctl, kAllow),
    IRIS_SYSCALL(epoll_pwait, kAllow),
    IRIS_SYSCALL(epoll_create1, kAllow),
    IRIS_SYSCALL(eventfd2, kAllow),
    IRIS_SYSCALL(ppoll, kAllow),
#if defined(__NR_epoll_wait)
    IRIS_SYSCALL(epoll_wait, kAllow),
    IRIS_SYSCALL(poll, kAllow),
    IRIS_SYSCALL(time, kAllow),
#endif
    IRIS_SYSCALL(nanosleep, kAllow),
    IRIS_SYSCALL(clock_nanosleep, kAllow),
    IRIS_SYSCALL(clock_gettime, kAllow),
    IRIS_SYSCALL(clock_getres, kAllow),
    IRIS_SYSCALL(gettimeofday, kAllow),
    IRIS_SYSCALL(sched_yield, kAllow),
    IRIS_SYSCALL(sched_getaffinity, kAllow),
    // A mutex may ask for the priority of the thread that waits.
    IRIS_SYSCALL(sched_getparam, kAllow),
    IRIS_SYSCALL(sched_getscheduler, kAllow),
    IRIS_SYSCALL(getcpu, kAllow),
    IRIS_SYSCALL(restart_syscall, kAllow),
    // Memory, but none that can be executed.
    IRIS_SYSCALL(mmap, kAllow, {Without(2, PROT_EXEC)}),
    IRIS_SYSCALL(mprotect, kAllow, {Without(2, PROT_EXEC)}),
    IRIS_SYSCALL(munmap, kAllow),
    IRIS_SYSCALL(mremap, kAllow),
    IRIS_SYSCALL(madvise, kAllow),
    IRIS_SYSCALL(brk, kAllow),
    IRIS_SYSCALL(getrandom, kAllow),
    // Threads and signals of its own.
    IRIS_SYSCALL(clone, kAllow,
                 {{0, kThreadFlags, kThreadFlags, false}, Without(0, kNamespaceFlags)}),
    IRIS_SYSCALL(clone3, kNoSuchCall),  // its flags are out of sight: the C library takes clone
    IRIS_SYSCALL(set_robust_list, kAllow),
    IRIS_SYSCALL(rseq, kAllow),
    IRIS_SYSCALL(prctl, kAllow, {Equals(0, PR_SET_NAME)}),
    IRIS_SYSCALL(rt_sigaction, kAllow),
    IRIS_SYSCALL(rt_sigprocmask, kAllow),
    IRIS_SYSCALL(rt_sigreturn, kAllow),
    IRIS_SYSCALL(sigaltstack, kAllow),
    IRIS_SYSCALL(tgkill, kAllow, {Equals(0, self)}),
    IRIS_SYSCALL(uname, kAllow),  // gRPC asks what the kernel can do
    IRIS_SYSCALL(getpid, kAllow),
    IRIS_SYSCALL(gettid, kAllow),
    IRIS_SYSCALL(getuid, kAllow),
    IRIS_SYSCALL(geteuid, kAllow),
    IRIS_SYSCALL(getgid, kAllow),
    IRIS_SYSCALL(getegid, kAllow),
    IRIS_SYSCALL(exit, kAllow),
    IRIS_SYSCALL(exit_group, kAllow),
    // What libraries try and can do without.
    IRIS_SYSCALL(openat, kNoAccess, {Without(2, kOpensToWrite)}),
    IRIS_SYSCALL(newfstatat, kNoAccess),
#if defined(__NR_access)
    IRIS_SYSCALL(access, kNoAccess),
    IRIS_SYSCALL(readlink, kNoAccess),
#endif
    IRIS_SYSCALL(faccessat, kNoAccess),
    IRIS_SYSCALL(readlinkat, kNoAccess),
    IRIS_SYSCALL(sysinfo, kNoPermission),
    IRIS_SYSCALL(membarrier, kNoPermission),
    IRIS_SYSCALL(prlimit64, kNoPermission),
    IRIS_SYSCALL(sched_setaffinity, kNoPermission),
  };
  return table;
}

SyscallTable LookingSyscalls(pid_t pid) {
  SyscallTable table = WorkerSyscalls(pid);
  // Of an open descriptor, and what the kernel knows without asking.
  constexpr uint32_t kStatx = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  table.rules.push_back(IRIS_SYSCALL(fcntl, kAllow, {Equals(1, F_GET_SEALS)}));
  table.rules.push_back(IRIS_SYSCALL(statx, kAllow, {{2, kStatx, kStatx, false}}));
  return table;
}

}  // namespace iris::server
