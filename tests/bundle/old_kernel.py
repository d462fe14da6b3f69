"""old_kernel.py COMMAND...: runs a command as on Linux 5.15, which is Ubuntu 22.04's.

A seccomp filter, which the command and all that it starts inherit, gives to whatever came later the answer of a kernel
that does not know it: system calls, socket options, kinds of madvise, flags of memfd_create.
"""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF: ld, jeq, jge, jset, ret
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
ENOSYS, EINVAL, ENOPROTOOPT = 38, 22, 92
NUMBER = 0  # where struct seccomp_data has it


def argument(index):
    """Where the low half of an argument is."""
    return 16 + 8 * index


# x86-64. (system call, conditions that all must hold, the error).
CALLS = (
    (None, [(NUMBER, AT_LEAST, 449)], ENOSYS),  # futex_waitv, 5.16, is the first
    (28, [(argument(2), AT_LEAST, 102)], EINVAL),  # madvise: MADV_GUARD_INSTALL, 6.13
    (28, [(argument(2), EQUAL, 24)], EINVAL),  # MADV_DONTNEED_LOCKED, 5.18
    (28, [(argument(2), EQUAL, 25)], EINVAL),  # MADV_COLLAPSE, 6.1
    (54, [(argument(1), EQUAL, 1), (argument(2), EQUAL, 76)], ENOPROTOOPT),  # setsockopt: SO_PASSPIDFD, 6.5
    (55, [(argument(1), EQUAL, 1), (argument(2), EQUAL, 77)], ENOPROTOOPT),  # getsockopt: SO_PEERPIDFD, 6.5
    (319, [(argument(1), ANY_BIT, 0x18)], EINVAL),  # memfd_create: MFD_NOEXEC_SEAL and MFD_EXEC, 6.3
)


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("<HBBI", code, if_true, if_false, value)


def program():
    result = b""
    for number, conditions, error in CALLS:
        tests = ([] if number is None else [(NUMBER, EQUAL, number)]) + conditions
        for i, (offset, comparison, value) in enumerate(tests):
            # What is left of this rule: a load and a test for each condition that follows, and the return.
            rest = 2 * (len(tests) - i - 1) + 1
            result += instruction(LOAD, offset) + instruction(comparison, value, 0, rest)
        result += instruction(RETURN, ERRNO | error)
    return result + instruction(RETURN, ALLOW)


def install():
    code = program()
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(set_seccomp, mode_filter, filter_program) != 0:
        sys.exit(f"old_kernel.py: the filter cannot be installed: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    install()
    os.execvp(sys.argv[1], sys.argv[1:])
