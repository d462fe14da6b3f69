"""Runs irisd with the rights that deploy/irisd.service gives it, and no others, where systemd does not run."""

import ctypes
import os
import re
import shutil
import struct
import subprocess

UNIT = "deploy/irisd.service"
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 24, 38, 22
SECCOMP_MODE_FILTER = 2
RET_ALLOW, RET_EPERM = 0x7FFF0000, 0x00050001
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the packet filter's machine
NUMBERS = f"/usr/include/{os.uname().machine}-linux-gnu/asm/unistd_64.h"
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


def priority(path=UNIT):
    with open(path, encoding="utf-8") as file:
        return int(re.search(r"(?m)^Nice=(.*)$", file.read()).group(1))


def system_calls(path=UNIT):
    """The numbers of what the unit's SystemCallFilter allows; None where systemd or the kernel's headers are not
    there to say."""
    if not shutil.which("systemd-analyze") or not os.path.exists(NUMBERS):
        return None
    with open(NUMBERS, encoding="ascii") as file:
        numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", file.read())}
    with open(path, encoding="utf-8") as file:
        todo = re.search(r"(?m)^SystemCallFilter=(.*)$", file.read()).group(1).split()
    allowed = set()
    while todo:
        name = todo.pop()
        if not name.startswith("@"):
            allowed.add(name)
            continue
        text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=60, check=True).stdout
        todo += [line.strip() for line in text.splitlines()[1:] if line.strip() and "#" not in line]
    return sorted(numbers[name] for name in allowed if name in numbers)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _filter(numbers):
    """A program that the kernel runs before each system call: these are made, others have no permission."""
    code = struct.pack("<HBBI", LOAD, 0, 0, 0)
    for number in numbers:
        code += struct.pack("<HBBI", IF_EQUAL, 0, 1, number) + struct.pack("<HBBI", RETURN, 0, 0, RET_ALLOW)
    code += struct.pack("<HBBI", RETURN, 0, 0, RET_EPERM)
    return _Program(len(code) // 8, code)


def restriction(path=UNIT):
    """A function for a child, before it executes irisd as root: the unit's capabilities, no new privileges, its system
    calls, and a /proc that hides the processes of others from who lacks SYS_PTRACE (where this process may mount)."""
    numbers = system_calls(path)
    program = _filter(numbers) if numbers else None
    kept = {CAPABILITIES.index(name.removeprefix("CAP_")) for name in capabilities(path)}
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    libc = ctypes.CDLL(None, use_errno=True)
    nice = priority(path)

    def restrict():
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        if (libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0):
            libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=invisible")
        for number in range(last + 1):
            if number not in kept and libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot drop capability {number}")
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if program and libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return restrict
