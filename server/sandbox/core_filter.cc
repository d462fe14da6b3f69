#include "server/sandbox/core_filter.h"

#include <fcntl.h>
#include <sys/syscall.h>

namespace iris::server {

SyscallTable CoreSyscalls(int worker_program) {
  SyscallTable table;
  table.otherwise = SyscallAction::kAllow;
  table.rules = {
    // Other processes' memory and descriptors.
    IRIS_SYSCALL(ptrace, kNoPermission),
    IRIS_SYSCALL(process_vm_readv, kNoPermission),
    IRIS_SYSCALL(process_vm_writev, kNoPermission),
    IRIS_SYSCALL(pidfd_getfd, kNoPermission),
    IRIS_SYSCALL(process_madvise, kNoPermission),
    IRIS_SYSCALL(kcmp, kNoPermission),
    IRIS_SYSCALL(userfaultfd, kNoPermission),
    // Programs, but for the workers'.
    IRIS_SYSCALL(execve, kNoPermission),
    IRIS_SYSCALL(
        execveat, kAllow,
        {{0, ~0u, static_cast<uint32_t>(worker_program), false}, {4, ~0u, AT_EMPTY_PATH, false}}),
    IRIS_SYSCALL(execveat, kNoPermission),
    // File systems and namespaces.
    IRIS_SYSCALL(mount, kNoPermission),
    IRIS_SYSCALL(umount2, kNoPermission),
    IRIS_SYSCALL(move_mount, kNoPermission),
    IRIS_SYSCALL(open_tree, kNoPermission),
    IRIS_SYSCALL(fsopen, kNoPermission),
    IRIS_SYSCALL(fsconfig, kNoPermission),
    IRIS_SYSCALL(fsmount, kNoPermission),
    IRIS_SYSCALL(fspick, kNoPermission),
    IRIS_SYSCALL(mount_setattr, kNoPermission),
    IRIS_SYSCALL(pivot_root, kNoPermission),
    IRIS_SYSCALL(chroot, kNoPermission),
    IRIS_SYSCALL(setns, kNoPermission),
    IRIS_SYSCALL(unshare, kNoPermission),
    IRIS_SYSCALL(name_to_handle_at, kNoPermission),
    IRIS_SYSCALL(open_by_handle_at, kNoPermission),
    IRIS_SYSCALL(fanotify_init, kNoPermission),
    IRIS_SYSCALL(quotactl, kNoPermission),
    IRIS_SYSCALL(quotactl_fd, kNoPermission),
    // The kernel and the machine.
    IRIS_SYSCALL(init_module, kNoPermission),
    IRIS_SYSCALL(finit_module, kNoPermission),
    IRIS_SYSCALL(delete_module, kNoPermission),
    IRIS_SYSCALL(kexec_load, kNoPermission),
    IRIS_SYSCALL(kexec_file_load, kNoPermission),
    IRIS_SYSCALL(reboot, kNoPermission),
    IRIS_SYSCALL(swapon, kNoPermission),
    IRIS_SYSCALL(swapoff, kNoPermission),
    IRIS_SYSCALL(acct, kNoPermission),
    IRIS_SYSCALL(syslog, kNoPermission),
    IRIS_SYSCALL(bpf, kNoPermission),
    IRIS_SYSCALL(perf_event_open, kNoPermission),
    IRIS_SYSCALL(io_uring_setup, kNoPermission),
    IRIS_SYSCALL(io_uring_enter, kNoPermission),
    IRIS_SYSCALL(io_uring_register, kNoPermission),
    IRIS_SYSCALL(settimeofday, kNoPermission),
    IRIS_SYSCALL(clock_settime, kNoPermission),
    IRIS_SYSCALL(clock_adjtime, kNoPermission),
    IRIS_SYSCALL(adjtimex, kNoPermission),
    IRIS_SYSCALL(sethostname, kNoPermission),
    IRIS_SYSCALL(setdomainname, kNoPermission),
    IRIS_SYSCALL(vhangup, kNoPermission),
#if defined(__NR_iopl)
    IRIS_SYSCALL(iopl, kNoPermission),
    IRIS_SYSCALL(ioperm, kNoPermission),
    IRIS_SYSCALL(modify_ldt, kNoPermission),
#endif
    // Keys, and users: the core keeps its own.
    IRIS_SYSCALL(add_key, kNoPermission),
    IRIS_SYSCALL(request_key, kNoPermission),
    IRIS_SYSCALL(keyctl, kNoPermission),
  };
  return table;
}

}  // namespace iris::server
