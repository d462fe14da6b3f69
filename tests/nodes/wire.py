"""A network of nodes in user space: a tap in each namespace, whose frames are late, lost or cut off on demand."""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x1002
CLONE_NEWNET = 0x40000000
MOST_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def _open_tap(space):
    """Makes eth0 in the namespace; returns its descriptor."""
    made = []

    def make():
        # A thread has a network namespace of its own.
        with open(f"/run/netns/{space}", "rb") as there:
            if _libc.setns(there.fileno(), CLONE_NEWNET) != 0:
                made.append(OSError(ctypes.get_errno(), f"enter {space}"))
                return
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"eth0", TAP_WITHOUT_HEADER))
            made.append(tap)
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class Wire:
    """A switch: frames arrive `delay` seconds later, and `loss` of them (0 to 1) never. Plug in all nodes,
    then start it; use it as a context. `drops`, a function, says of a node and an Ethernet frame to it whether it is
    lost, too."""

    def __init__(self, delay=0.0, loss=0.0, seed=1):
        self.delay, self.loss = delay, loss
        self.drops = lambda node, frame: False
        self.taps = []
        self.cuts = set()
        self.lost = 0
        self._random = random.Random(seed)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()
        for tap in self.taps:
            os.close(tap)

    def plug(self, space):
        """Makes eth0 in the namespace; returns the number of the node."""
        self.taps.append(_open_tap(space))
        return len(self.taps) - 1

    def start(self):
        self._thread.start()

    def cut(self, node, off=True):
        """Loses all frames from and to the node, or lets them pass again."""
        (self.cuts.add if off else self.cuts.discard)(node)

    def _run(self):
        late = []  # (time, number, node, frame)
        owners = {}
        poll = select.poll()
        nodes = {tap: node for node, tap in enumerate(self.taps)}
        for tap in self.taps:
            poll.register(tap, select.POLLIN)
        number = 0
        while not self._ends.is_set():
            wait = 50 if not late else max(0, min(50, (late[0][0] - time.monotonic()) * 1000))
            for tap, _ in poll.poll(wait):
                with contextlib.suppress(BlockingIOError):
                    frame = os.read(tap, MOST_BYTES)
                    node = nodes[tap]
                    owners[frame[6:12]] = node
                    to = owners.get(frame[:6])
                    for other in range(len(self.taps)) if to is None else (to,):
                        if other == node or node in self.cuts or other in self.cuts:
                            continue
                        if self.drops(other, frame):
                            continue
                        if self.loss and self._random.random() < self.loss:
                            self.lost += 1
                            continue
                        number += 1
                        heapq.heappush(late, (time.monotonic() + self.delay, number, other, frame))
            now = time.monotonic()
            while late and late[0][0] <= now:
                _, _, to, frame = heapq.heappop(late)
                with contextlib.suppress(BlockingIOError):
                    os.write(self.taps[to], frame)
