"""What irisd divides, it divides fairly: many connections of some users, silent, wrong, or unread, cost these alone.

The clients speak the session protocol by hand, as other users of the machine. Only root can be several users: for
anybody else these tests say so and do nothing."""

import os
import select
import socket
import struct
import sys
import time
import unittest

sys.path.insert(0, os.getcwd())

from tests.python import irisd, junit  # noqa: E402

HEADER = struct.Struct("<IHHII")
MAGIC, VERSION = 0x53495249, 1
HELLO, WELCOME, ERROR, ACK = 1, 4, 5, 7
HELLO_BYTES = HEADER.pack(MAGIC, VERSION, HELLO, 40, 0) + struct.pack("<HHI32s", 1, 1, 0, b"test")
ACK_OF_NOTHING = HEADER.pack(MAGIC, VERSION, ACK, 8, 0) + struct.pack("<II", 0, 0)
ANN, BOB, EVE, IRISD_USER = 40002, 40003, 40004, 40001
PATIENCE_SECONDS = 20


class User:
    """Connections made inside are this user's."""

    def __init__(self, uid):
        self.uid = uid

    def __enter__(self):
        os.seteuid(self.uid)

    def __exit__(self, *unused):
        os.seteuid(0)


def connect(daemon, uid, name="session.sock", kind=socket.SOCK_SEQPACKET):
    sock = socket.socket(socket.AF_UNIX, kind)
    with User(uid):
        sock.connect(os.path.join(daemon.runtime_dir, name))  # waits for its turn where the queue is full
    sock.settimeout(PATIENCE_SECONDS)
    return sock


def answer(sock):
    """The type of the next frame, its payload, and its descriptors; (None, b"", []) at the end."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, 4096, 16)
    except ConnectionError:
        return None, b"", []
    if len(data) < HEADER.size:
        return None, b"", fds
    return HEADER.unpack(data[:HEADER.size])[2], data[HEADER.size:], fds


def error_text(payload):
    code, length = struct.unpack_from("<II", payload)
    return f"{code}: {payload[8:8 + length].decode()}"


class Session:
    """A good handshake. Fails with the text of irisd's refusal."""

    def __init__(self, daemon, uid):
        self.sock = connect(daemon, uid)
        try:
            with User(uid):
                self.sock.send(HELLO_BYTES)
        except OSError:
            pass  # refused already: the reason is there to be read
        kind, payload, self.fds = answer(self.sock)
        if kind != WELCOME:
            self.close()
            raise AssertionError(error_text(payload) if kind == ERROR else f"no welcome but {kind}")

    def close(self):
        self.sock.close()
        for fd in self.fds:
            os.close(fd)


def eventually(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_child(function):
    """Runs `function` in a process of its own until it is killed; returns the process's number."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return pid


def end_child(pid):
    os.kill(pid, 9)
    os.waitpid(pid, 0)


@unittest.skipUnless(os.geteuid() == 0, "only root can be several users")
class FairnessTest(unittest.TestCase):

    def start(self, *flags, **options):
        daemon = irisd.Irisd("--socket-mode", "0666", *flags, **options)
        self.addCleanup(daemon.stop)
        return daemon

    def hold(self, sockets):
        self.addCleanup(lambda: [sock.close() for sock in sockets])
        return sockets

    def expect_quick_session(self, daemon, uid, seconds=1.0):
        start = time.monotonic()
        Session(daemon, uid).close()
        self.assertLess(time.monotonic() - start, seconds)

    # Silent connections.

    def test_silent_connections_of_two_users_lock_out_nobody(self):
        daemon = self.start()
        held = self.hold([])
        for uid in (ANN, BOB):
            held += [connect(daemon, uid) for _ in range(1500)]
        for uid in (EVE, 0, ANN, BOB):
            self.expect_quick_session(daemon, uid)

    def test_silent_connections_of_very_many_users_lock_out_nobody(self):
        daemon = self.start()
        self.hold([connect(daemon, 50000 + i) for i in range(2500)])
        for uid in (EVE, 0, 50001):
            self.expect_quick_session(daemon, uid)

    def test_an_evicted_handshake_is_told_whose_limit_it_was(self):
        daemon = self.start("--max-unattested-per-tenant", "4")
        held = self.hold([connect(daemon, ANN) for _ in range(5)])
        kind, payload, _ = answer(held[0])
        self.assertEqual(kind, ERROR)
        self.assertIn(f"uid {ANN} has 4 connections in the handshake, the limit of one tenant", error_text(payload))
        with User(ANN):
            for sock in held[1:]:
                sock.send(HELLO_BYTES)
        for sock in held[1:]:
            self.assertEqual(answer(sock)[0], WELCOME)

    def test_good_handshakes_in_a_crowd_of_connects_do_not_fail(self):
        daemon = self.start()

        def crowd():
            os.setuid(ANN)
            path = os.path.join(daemon.runtime_dir, "session.sock")
            held = []
            while True:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                sock.connect(path)
                held = held[-1000:] + [sock]

        children = [in_child(crowd) for _ in range(2)]
        try:
            time.sleep(0.2)
            for _ in range(100):
                for uid in (EVE, ANN):
                    Session(daemon, uid).close()
        finally:
            for child in children:
                end_child(child)

    # irisd.sock.

    def serves_grpc(self, daemon, uid):
        """Whether a connection to irisd.sock gets a gRPC server's first frame (SETTINGS), and not a refusal."""
        with connect(daemon, uid, "irisd.sock", socket.SOCK_STREAM) as sock:
            try:
                sock.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                data = sock.recv(9)
            except ConnectionError:
                return False
            return len(data) == 9 and data[3] == 4

    def test_connections_to_irisd_sock_leave_room_for_others_and_for_the_operator(self):
        daemon = self.start()
        held = self.hold([])
        for user in range(6):
            held += [connect(daemon, 50000 + user, "irisd.sock", socket.SOCK_STREAM) for _ in range(64)]
        self.assertTrue(self.serves_grpc(daemon, EVE))
        self.assertTrue(self.serves_grpc(daemon, 0))
        for user in range(6, 12):
            held += [connect(daemon, 50000 + user, "irisd.sock", socket.SOCK_STREAM) for _ in range(64)]
        self.assertTrue(self.serves_grpc(daemon, 0), "a place is kept for root")

    # Descriptors that nobody reads.

    def test_what_some_leave_unread_keeps_nobody_else_from_getting_descriptors(self):
        daemon = self.start(user=IRISD_USER, open_files=256)
        held = self.hold([])
        refusals = set()

        def attack(n):
            """Gets a welcome each, does not read it, and has irisd end the session."""
            for _ in range(n):
                sock = connect(daemon, ANN)
                held.append(sock)
                with User(ANN):
                    try:
                        sock.send(HELLO_BYTES)
                        select.select([sock], [], [], PATIENCE_SECONDS)
                        sock.send(ACK_OF_NOTHING)
                    except ConnectionError:
                        pass
                kind, payload, _ = peek(sock)
                if kind == ERROR:
                    refusals.add(error_text(payload))

        def peek(sock):
            try:
                data = sock.recv(4096, socket.MSG_PEEK)
            except ConnectionResetError:  # once, before what was sent
                data = sock.recv(4096, socket.MSG_PEEK)
            return (HEADER.unpack(data[:HEADER.size])[2], data[HEADER.size:], []) if data else (None, b"", [])

        attack(600)
        self.expect_quick_session(daemon, EVE)
        self.expect_quick_session(daemon, 0)
        self.assertTrue(any(f"uid {ANN} has" in text and "have not received" in text for text in refusals), refusals)
        # Once they are read, or their sockets closed, the share is free again.
        for sock in held:
            sock.close()
        time.sleep(1.5)
        self.expect_quick_session(daemon, ANN)

    # The log.

    def test_ten_thousand_bad_handshakes_are_a_few_lines_of_log(self):
        daemon = self.start()
        before = len(daemon.log())
        for i in range(10_000):
            sock = connect(daemon, ANN)
            try:
                sock.send(b"x" * (1 + i % 50))
                sock.recv(4096)
            except ConnectionError:
                pass
            sock.close()
        grown = daemon.log()[before:]
        self.assertLess(len(grown), 6 << 10, grown[-2000:])
        self.assertIn(f"uid {ANN}", grown)
        before = len(daemon.log())
        bad = connect(daemon, BOB)
        bad.send(b"x")
        bad.recv(4096)
        self.assertTrue(eventually(lambda: f"uid {BOB}" in daemon.log()[before:], 5), "another user's line is written")

    # Memory.

    def test_memory_returns_when_a_crowd_has_gone(self):
        with open(irisd.IRISD, "rb") as file:
            if b"__asan_init" in file.read():
                self.skipTest("a sanitizer keeps memory that was freed")
        daemon = self.start()
        # As it is after a day: the event log holds its 1,024 events.
        for uid in (ANN, BOB, EVE):
            for _ in range(200):
                Session(daemon, uid).close()
        time.sleep(2)
        before = rss_bytes(daemon.process.pid)
        crowd = []
        for uid in (ANN, BOB, EVE):
            crowd += [Session(daemon, uid) for _ in range(800)]
        silent = [connect(daemon, ANN) for _ in range(2000)]
        at_peak = rss_bytes(daemon.process.pid)
        for each in crowd + silent:
            each.close()
        back = eventually(lambda: rss_bytes(daemon.process.pid) <= before * 1.1, 30)
        said = (f"before {before >> 10} KiB, at the peak {at_peak >> 10} KiB, "
                f"after it {rss_bytes(daemon.process.pid) >> 10} KiB")
        print(said, end=" ... ", flush=True)
        self.assertTrue(back, said)


if __name__ == "__main__":
    junit.main()
