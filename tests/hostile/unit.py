"""Runs irisd with the rights that deploy/irisd.service gives it, and no others, where systemd does not run."""

import ctypes
import os
import re

UNIT = "deploy/irisd.service"
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 1 << 18

# By number, as linux/capability.h has them.
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE").split()


def capabilities(path=UNIT):
    """The names in the unit's CapabilityBoundingSet."""
    with open(path, encoding="utf-8") as file:
        return re.search(r"(?m)^CapabilityBoundingSet=(.*)$", file.read()).group(1).split()


def restriction(path=UNIT):
    """A function for a child, before it executes irisd as root: the unit's capabilities, no new privileges, and a /proc
    that hides the processes of others from who lacks SYS_PTRACE (where this process may mount)."""
    kept = {CAPABILITIES.index(name.removeprefix("CAP_")) for name in capabilities(path)}
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    libc = ctypes.CDLL(None, use_errno=True)

    def restrict():
        if (libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0):
            libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=invisible")
        for number in range(last + 1):
            if number not in kept and libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot drop capability {number}")
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return restrict
