#include "server/sandbox/syscall_tables.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

namespace iris::server {
namespace {

// The flags of a new thread of this process: not a process, and in no new namespace.
constexpr uint32_t kThreadFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
constexpr uint32_t kNamespaceFlags = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                     CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
// Flags that do more than open an existing file for reading.
constexpr uint32_t kOpensToWrite = O_ACCMODE | O_CREAT | O_TRUNC | O_PATH;

constexpr ArgumentCheck Equals(uint8_t argument, uint32_t value) {
  return {argument, ~0u, value, false};
}
constexpr ArgumentCheck Without(uint8_t argument, uint32_t flags) {
  return {argument, flags, 0, false};
}

}  // namespace

#define CALL(name) \
  { #name, __NR_##name }

SyscallTable CoreSyscalls(int worker_program, int port_program) {
  SyscallTable table{.otherwise = SyscallAction::kAllow};
  const auto forbid = [&table](std::initializer_list<Syscall> calls) {
    table.Add(calls, SyscallAction::kNoPermission);
  };
  // Calls for other processes' memory and descriptors.
  forbid({CALL(ptrace), CALL(process_vm_readv), CALL(process_vm_writev), CALL(pidfd_getfd),
          CALL(process_madvise), CALL(kcmp), CALL(userfaultfd)});
  // Calls that execute programs, except those of workers and ports.
  for (const int program : {worker_program, port_program}) {
    table.Add({CALL(execveat)}, SyscallAction::kAllow,
              {Equals(0, static_cast<uint32_t>(program)), Equals(4, AT_EMPTY_PATH)});
  }
  forbid({CALL(execveat), CALL(execve)});
  // Calls for file systems and namespaces.
  forbid({CALL(mount), CALL(umount2), CALL(move_mount), CALL(open_tree), CALL(fsopen),
          CALL(fsconfig), CALL(fsmount), CALL(fspick), CALL(mount_setattr), CALL(pivot_root),
          CALL(chroot), CALL(setns), CALL(unshare), CALL(name_to_handle_at),
          CALL(open_by_handle_at), CALL(fanotify_init), CALL(quotactl), CALL(quotactl_fd)});
  // Calls for the kernel and the machine.
  forbid({CALL(init_module),
          CALL(finit_module),
          CALL(delete_module),
          CALL(kexec_load),
          CALL(kexec_file_load),
          CALL(reboot),
          CALL(swapon),
          CALL(swapoff),
          CALL(acct),
          CALL(syslog),
          CALL(bpf),
          CALL(perf_event_open),
          CALL(io_uring_setup),
          CALL(io_uring_enter),
          CALL(io_uring_register),
          CALL(settimeofday),
          CALL(clock_settime),
          CALL(clock_adjtime),
          CALL(adjtimex),
          CALL(sethostname),
          CALL(setdomainname),
          CALL(vhangup)});
#if defined(__NR_iopl)
  forbid({CALL(iopl), CALL(ioperm), CALL(modify_ldt)});
#endif
  // Calls for keys: the core keeps its own.
  forbid({CALL(add_key), CALL(request_key), CALL(keyctl)});
  return table;
}

SyscallTable WorkerSyscalls(pid_t pid) {
  SyscallTable table{.otherwise = SyscallAction::kKillProcess};
  const auto allow = [&table](std::initializer_list<Syscall> calls,
                              const std::vector<ArgumentCheck>& checks = {}) {
    table.Add(calls, SyscallAction::kAllow, checks);
  };
  // Reads and writes on open descriptors.
  allow({CALL(read), CALL(write), CALL(readv), CALL(writev), CALL(recvmsg), CALL(sendmsg),
         CALL(recvfrom), CALL(close), CALL(shutdown), CALL(getsockopt), CALL(setsockopt),
         CALL(getsockname), CALL(getpeername)});
  // With an address, sendto would connect.
  allow({CALL(sendto)}, {Equals(4, 0), {4, ~0u, 0, /*high_half=*/true}});
  for (const int command : {F_GETFL, F_SETFL, F_GETFD, F_SETFD, F_DUPFD_CLOEXEC}) {
    allow({CALL(fcntl)}, {Equals(1, static_cast<uint32_t>(command))});
  }
  // Calls that wait. A mutex may ask for the priority of the waiting thread.
  allow({CALL(futex), CALL(epoll_ctl), CALL(epoll_pwait), CALL(epoll_create1), CALL(eventfd2),
         CALL(ppoll), CALL(nanosleep), CALL(clock_nanosleep), CALL(clock_gettime),
         CALL(clock_getres), CALL(gettimeofday), CALL(sched_yield), CALL(sched_getaffinity),
         CALL(sched_getparam), CALL(sched_getscheduler), CALL(getcpu), CALL(restart_syscall)});
#if defined(__NR_epoll_wait)
  allow({CALL(epoll_wait), CALL(poll), CALL(time)});
#endif
  // Allows memory that cannot be executed.
  allow({CALL(mmap), CALL(mprotect)}, {Without(2, PROT_EXEC)});
  allow({CALL(munmap), CALL(mremap), CALL(madvise), CALL(brk), CALL(getrandom)});
  // The worker's own threads and signals. The filter cannot see the flags of clone3; without clone3
  // the C library uses clone.
  allow({CALL(clone)}, {{0, kThreadFlags, kThreadFlags, false}, Without(0, kNamespaceFlags)});
  table.Add({CALL(clone3)}, SyscallAction::kNoSuchCall);
  allow({CALL(prctl)}, {Equals(0, PR_SET_NAME)});
  allow({CALL(tgkill)}, {Equals(0, static_cast<uint32_t>(pid))});
  // gRPC calls uname to detect what the kernel can do.
  allow({CALL(set_robust_list), CALL(rseq), CALL(rt_sigaction), CALL(rt_sigprocmask),
         CALL(rt_sigreturn), CALL(sigaltstack), CALL(uname), CALL(getpid), CALL(gettid),
         CALL(getuid), CALL(geteuid), CALL(getgid), CALL(getegid), CALL(exit), CALL(exit_group)});
  // Libraries try these calls and can do without them.
  table.Add({CALL(openat)}, SyscallAction::kNoAccess, {Without(2, kOpensToWrite)});
  table.Add({CALL(newfstatat), CALL(faccessat), CALL(readlinkat)}, SyscallAction::kNoAccess);
#if defined(__NR_access)
  table.Add({CALL(access), CALL(readlink)}, SyscallAction::kNoAccess);
#endif
  table.Add({CALL(sysinfo), CALL(membarrier), CALL(prlimit64), CALL(sched_setaffinity)},
            SyscallAction::kNoPermission);
  return table;
}

SyscallTable LookingSyscalls(pid_t pid) {
  SyscallTable table = WorkerSyscalls(pid);
  // The kernel answers both calls without asking the file system.
  constexpr uint32_t kStatx = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  table.Add({CALL(fcntl)}, SyscallAction::kAllow, {Equals(1, F_GET_SEALS)});
  table.Add({CALL(statx)}, SyscallAction::kAllow, {{2, kStatx, kStatx, false}});
  return table;
}

}  // namespace iris::server
