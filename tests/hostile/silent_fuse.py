"""A file system in user space that opens its one file and answers nothing about it any more: who closes a descriptor of
it, or asks for its attributes, waits for as long as this process likes. An ordinary user can have one, in a user
namespace of his own. See linux/fuse.h."""

import ctypes
import errno
import os
import signal
import struct
import tempfile

IN_HEADER = struct.Struct("<IIQQIIIHH")  # length, operation, unique, node, uid, gid, pid, extensions, padding
OUT_HEADER = struct.Struct("<IiQ")  # length, error, unique
GETATTR, OPEN, INIT = 3, 14, 26
INIT_REPLY = struct.Struct("<IIIIHHIIHHI28x")
OPEN_REPLY = struct.Struct("<QII")
ATTRIBUTES = struct.Struct("<QII" + "QQQQQQIIIIIIIIII")  # how long they hold, and what they are
PR_SET_DUMPABLE = 4
SECONDS_MAX = 120  # what waits for it waits no longer, whatever became of the test
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV = 2, 4
MNT_DETACH = 2


class SilentFile:
    """Made by the process that attacks, which moves into namespaces of its own; `device` is its /dev/fuse. `path` is
    the file. Once it was opened, nothing is answered any more. Another process has the file system: if one did both,
    the kernel could not end it. End that one first."""

    def __init__(self, device):
        uid, gid = os.getuid(), os.getgid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._enter_namespaces(uid, gid)
        self._device = os.open(device, os.O_RDWR | os.O_CLOEXEC)  # in the namespace of the mount
        folder = tempfile.mkdtemp(prefix="iris-silent-", dir="/tmp")
        self.path = os.path.join(folder, "file")
        try:
            # Nobody else sees what is mounted in this namespace.
            self._mount(b"tmpfs", folder, b"tmpfs", "")
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
            self._mount(b"silent", self.path, b"fuse",
                        f"fd={self._device},rootmode=100000,user_id=0,group_id=0,allow_other")
        finally:
            self._libc.umount2(folder.encode(), 0)  # if the second mount failed
        self._server = os.fork()
        if self._server == 0:
            signal.alarm(SECONDS_MAX)
            self._serve()
            os._exit(0)
        os.close(self._device)

    def end(self):
        """Ends the file system: the kernel answers in its place, with an error."""
        os.kill(self._server, signal.SIGKILL)
        os.waitpid(self._server, 0)
        folder = os.path.dirname(self.path)
        for mounted in (self.path, folder):
            self._libc.umount2(mounted.encode(), MNT_DETACH)
        os.rmdir(folder)

    def _mount(self, source, target, kind, options):
        if self._libc.mount(source, target.encode(), kind, MS_NOSUID | MS_NODEV, options.encode()) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"mount {kind.decode()}: {os.strerror(error)}")

    def _enter_namespaces(self, uid, gid):
        self._libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # who changed his user may not write below /proc/self
        if self._libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"make a user namespace: {os.strerror(error)}")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)

    def _reply(self, unique, payload=b"", error=0):
        os.write(self._device, OUT_HEADER.pack(OUT_HEADER.size + len(payload), error, unique) + payload)

    def _serve(self):
        opened = False
        while True:
            try:
                request = os.read(self._device, 1 << 17)
            except OSError:
                return
            _, operation, unique = IN_HEADER.unpack_from(request)[:3]
            if opened:
                continue
            if operation == INIT:
                self._reply(unique, INIT_REPLY.pack(7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 1, 0, 0))
            elif operation == OPEN:
                opened = True
                self._reply(unique, OPEN_REPLY.pack(0, 0, 0))
            elif operation == GETATTR:
                self._reply(unique, ATTRIBUTES.pack(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o100666, 1, 0, 0, 0, 4096, 0))
            else:
                self._reply(unique, error=-errno.ENOSYS)


def why_not(device, become):
    """Why this machine lets the user that `become` makes of a process have no such file; empty if it does."""
    answer, mine = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            become()
            SilentFile(device).end()
            code = 0
        except Exception as error:
            os.write(mine, str(error).encode())
        os._exit(code)
    os.close(mine)
    with os.fdopen(answer, "rb") as file:
        text = file.read().decode()
    return "" if os.waitpid(child, 0)[1] == 0 else text or "the attempt failed"
