"""What hostile users do to irisd. Each attack is a function of the runtime directory and of the time (monotonic) until
which it goes on. It runs in a process of its own, as an unprivileged user, and returns what it has seen, as a dict.

An attacker that irisd throws out comes back at once, until its time is up."""

import ctypes
import fcntl
import itertools
import os
import re
import select
import socket
import struct
import threading
import time

import h2.exceptions

from tests.hostile import doors
from tests.hostile import silent_fuse

POUR_BYTES_MAX = 24 << 20  # a connection; then it is held, unread
FUSE_DEVICE = "/dev/fuse"  # whoever attacks with files of his own opens it
PAUSE_SECONDS = 0.01
CLONE_NEWUSER = 0x10000000


def _admin(runtime_dir):
    return doors.connect(os.path.join(runtime_dir, "irisd.sock"))


def _hold(end):
    time.sleep(max(0.0, end - time.monotonic()))


def _count(table, key):
    table[str(key)] = table.get(str(key), 0) + 1


def _again_and_again(runtime_dir, end, pieces, connections=1, bytes_max=POUR_BYTES_MAX, opener=_admin):
    """Pours on so many connections in turn, which stay open and unread; those that irisd closes are opened anew."""
    seen = {"connections": 0, "bytes": 0, "ended": {}}
    held = []
    while time.monotonic() < end:
        held = held[-connections + 1:] if connections > 1 else []
        try:
            sock = opener(runtime_dir)
        except doors.Refused as refusal:
            _count(seen["ended"], refusal)
            time.sleep(PAUSE_SECONDS)
            continue
        held.append(sock)
        seen["connections"] += 1
        share = time.monotonic() + (end - time.monotonic()) / max(1, connections - len(held) + 1)
        sent, why = doors.pour(sock, pieces(), min(end, share), bytes_max // connections)
        seen["bytes"] += sent
        _count(seen["ended"], why)
        if why == "enough" and len(held) == connections:
            _hold(end)
    return seen


def _streams(path, message=b"", reset=False, per_piece=256):
    """Calls without end, a stream each; `reset`: and each is taken back at once."""
    headers, body = doors.block(path), doors.prefixed(message)
    stream = 1
    while stream < 2**31 - 2 * per_piece:
        piece = bytearray()
        for _ in range(per_piece):
            piece += doors.raw(doors.HEADERS, doors.END_HEADERS, stream, headers)
            piece += doors.raw(doors.DATA, doors.END_STREAM, stream, body)
            if reset:
                piece += doors.raw(doors.RST_STREAM, 0, stream, struct.pack(">I", 8))
            stream += 2
        yield bytes(piece)


def partial_messages(runtime_dir, end, connections=40, streams=40):
    """Each stream announces a message of 4 MiB and sends as much of it as irisd lets it, but for the last byte."""
    message_bytes = 4 << 20
    part, head = b"x" * doors.DATA_BYTES_MAX, struct.pack(">BI", 0, message_bytes)
    headers = doors.block(doors.ADMIN + "GetStatus")
    open_ones, seen = [], {"connections": 0, "bytes": 0, "ended": {}}
    while time.monotonic() < end:
        for sender, left in list(open_ones):
            try:
                for stream, n in left.items():
                    if n == message_bytes + len(head) - 1:
                        left[stream] -= sender.send_data(stream, head)  # there is always room for it
                    else:
                        left[stream] -= sender.send_data(stream, part[:n])
                sender.turn()
            except doors.Refused as refusal:
                _count(seen["ended"], refusal)
                sender.sock.close()
                open_ones.remove((sender, left))
        if len(open_ones) < connections:
            try:
                sender = doors.Sender(_admin(runtime_dir), doors.opening())
                left = {stream: message_bytes + len(head) - 1 for stream in range(1, 2 * streams, 2)}
                for stream in left:
                    sender.add(stream, headers)
                open_ones.append((sender, left))
                seen["connections"] += 1
            except doors.Refused as refusal:
                _count(seen["ended"], refusal)
                time.sleep(PAUSE_SECONDS)
        else:
            time.sleep(PAUSE_SECONDS)
    seen["bytes"] = sum(sender.sent for sender, _ in open_ones)
    return seen


def rapid_reset(runtime_dir, end):
    """HEADERS and RST_STREAM, with the answers unread."""
    return _again_and_again(runtime_dir, end, _with_opening(lambda: _streams(doors.ADMIN + "GetStatus", reset=True)))


def continuation(runtime_dir, end):
    """Headers that never end."""
    one = b"\x00\x03x-a\x7e" + b"a" * 126
    chunk = doors.raw(doors.CONTINUATION, 0, 1, one * 120)

    def pieces():
        yield doors.opening() + doors.raw(doors.HEADERS, 0, 1, doors.block(doors.ADMIN + "GetStatus"))
        yield from itertools.repeat(chunk)

    return _again_and_again(runtime_dir, end, pieces, connections=4, bytes_max=256 << 20)


def _with_opening(make, window_bytes=65535):
    return lambda: itertools.chain([doors.opening(window_bytes)], make())


def settings_flood(runtime_dir, end):
    """SETTINGS, each of which wants an answer, which nobody reads."""
    chunk = b"".join(doors.raw(doors.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535 + i % 2)) for i in range(512))
    return _again_and_again(runtime_dir, end, _with_opening(lambda: itertools.repeat(chunk)))


def ping_flood(runtime_dir, end):
    """PING, each of which wants an answer, which nobody reads."""
    chunk = doors.raw(doors.PING, 0, 0, b"12345678") * 512
    return _again_and_again(runtime_dir, end, _with_opening(lambda: itertools.repeat(chunk)))


def window_zero(runtime_dir, end):
    """Calls whose answers have no room: every stream's window is 0."""
    return _again_and_again(runtime_dir, end, _with_opening(lambda: _streams(doors.ADMIN + "ListDevices"), 0),
                            connections=40)


def unread_events(runtime_dir, end):
    """Streams of events, far more than a connection may have, which nobody reads."""
    return _again_and_again(
        runtime_dir, end, _with_opening(lambda: _streams(doors.ADMIN + "Events", doors.field(1, 1)), 0), connections=4)


def unread_listings(runtime_dir, end):
    """120 listings of very many allocations, unread. The same user's hoard is there already."""
    pieces = _with_opening(lambda: itertools.islice(_streams(doors.ADMIN + "ListAllocations", per_piece=1), 30))
    seen = {"listings": 0}
    held = []
    for _ in range(4):
        sock = _admin(runtime_dir)
        doors.pour(sock, pieces(), end, POUR_BYTES_MAX)
        held.append(sock)
        seen["listings"] += 30
    _hold(end)
    return seen


def unread_watch(runtime_dir, end):
    """Watch streams of a job, one after the other, unread, on the gRPC socket of a session."""
    jobs = itertools.count()

    def member(runtime_dir):
        session = doors.Session(runtime_dir)
        channel = doors.Channel(session.rpc)
        request = doors.join_request(session, f"watched-{os.getpid()}-{next(jobs)}")
        code, text, reply = channel.call(doors.HEAP + "Join", request)
        if code != 0:
            session.close()
            raise doors.Refused(text)
        member.session = session
        member.watch = doors.fixed64(1, session.id) + doors.fixed64(2, doors.fields(reply)[1])
        member.stream = channel.http.get_next_available_stream_id()
        return session.rpc

    def pieces():
        for number, piece in enumerate(_streams(doors.HEAP + "Watch", member.watch)):
            if number > 0:  # the first streams' numbers have been used
                yield piece

    return _again_and_again(runtime_dir, end, pieces, opener=member)


def silent_connections(runtime_dir, end, connections=128):
    """Connections that say nothing, as many as irisd bears, renewed when it closes them."""
    path = os.path.join(runtime_dir, "session.sock")
    seen = {"connections": 0, "refused": 0}
    held = []
    while time.monotonic() < end:
        if held:
            over = select.select(held, [], [], 0)[0]
            for sock in over:
                held.remove(sock)
                sock.close()
        while len(held) < connections and time.monotonic() < end:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                sock.connect(path)
            except OSError:
                sock.close()
                seen["refused"] += 1
                break
            held.append(sock)
            seen["connections"] += 1
        time.sleep(PAUSE_SECONDS / 10)
    return seen


def silent_connections_of_many_namespaces(runtime_dir, end, namespaces=16):
    """The same from user namespaces that the attacker has made for itself: nobody becomes many by that."""
    libc = ctypes.CDLL(None, use_errno=True)
    seen = {"namespaces": 0, "refused": 0}
    children = []
    for _ in range(namespaces):
        child = os.fork()
        if child == 0:
            made = libc.unshare(CLONE_NEWUSER) == 0
            silent_connections(runtime_dir, end, connections=32)
            os._exit(0 if made else 1)
        children.append(child)
    for child in children:
        seen["namespaces" if os.waitpid(child, 0)[1] == 0 else "refused"] += 1
    return seen


def crowd_of_connects(runtime_dir, end):
    """Connects, says a good hello, leaves before the answer; as fast as it can."""
    path = os.path.join(runtime_dir, "session.sock")
    seen = {"connections": 0, "refused": 0}
    while time.monotonic() < end:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            sock.connect(path)
            sock.send(doors.hello())
            seen["connections"] += 1
        except OSError:
            seen["refused"] += 1
            time.sleep(PAUSE_SECONDS / 100)
        sock.close()
    return seen


def bad_handshakes(runtime_dir, end, count=3000):
    """Handshakes that are wrong, each in one of many ways."""
    path = os.path.join(runtime_dir, "session.sock")
    wrong = [b"x", b"x" * 4000, doors.hello()[:-1], doors.frame(99),
             doors.frame(doors.ACK_TYPE, doors.ACK.pack(1, 0)),
             doors.frame(doors.HELLO_TYPE, doors.HELLO.pack(7, 9, 0, b"\n\x1b[31mroot"))]
    seen = {"handshakes": 0}
    for number in range(count):
        if time.monotonic() >= end:
            break
        try:
            sock = doors.connect(path, socket.SOCK_SEQPACKET)
            sock.send(wrong[number % len(wrong)])
            sock.recv(doors.FRAME_BYTES_MAX)  # irisd has judged it
        except (OSError, doors.Refused):
            pass
        sock.close()
        seen["handshakes"] += 1
    _hold(end)
    return seen


def _frames(runtime_dir, end, frames, opener=doors.Session):
    """Sessions that send these frames and read nothing."""
    seen = {"sessions": 0, "frames": 0, "ended": {}}
    while time.monotonic() < end:
        try:
            session = opener(runtime_dir)
        except doors.Refused as refusal:
            _count(seen["ended"], refusal)
            time.sleep(PAUSE_SECONDS)
            continue
        seen["sessions"] += 1
        sent, why = doors.pour(session.sock, frames(), end, 1 << 40)
        seen["frames"] += sent // doors.HEADER.size
        _count(seen["ended"], why)
        session.close()
    return seen


def ack_flood(runtime_dir, end):
    """Acknowledgements of nothing."""
    return _frames(runtime_dir, end, lambda: itertools.repeat(doors.frame(doors.ACK_TYPE, doors.ACK.pack(0, 0))))


def wrong_frames(runtime_dir, end):
    """Frames that nobody may send after the handshake."""
    kinds = itertools.count()
    return _frames(runtime_dir, end, lambda: (doors.frame(kind % 65536, b"\xff" * 24) for kind in kinds))


def rpc_socket_flood(runtime_dir, end):
    """Requests for new gRPC sockets, without end; what comes is not read."""
    return _frames(runtime_dir, end, lambda: itertools.repeat(doors.frame(doors.RPC_REQUEST_TYPE)))


def sent_descriptors(runtime_dir, end, descriptors=200):
    """Frames, and bytes for gRPC, with descriptors that nobody asked for."""
    seen = {"packets": 0, "refused": {}}
    junk = [os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors)]
    held = []
    while time.monotonic() < end:
        try:
            session = doors.connect(os.path.join(runtime_dir, "session.sock"), socket.SOCK_SEQPACKET)
            socket.send_fds(session, [doors.hello()], junk)
            admin = _admin(runtime_dir)
            held = held[-8:] + [session, admin]
            socket.send_fds(admin, [doors.opening()], junk)
            for _ in range(8):
                socket.send_fds(admin, [doors.raw(doors.PING, 0, 0, b"12345678")], junk)
            seen["packets"] += 10
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], refusal)
            time.sleep(PAUSE_SECONDS)
    return seen


def unread_descriptors(runtime_dir, end, ranks=16):
    """Jobs of many ranks, all sessions of one process, which never receives a descriptor."""
    seen = {"jobs": 0, "sessions": 0, "refused": {}}
    held = []
    while time.monotonic() < end:
        sessions = []
        try:
            channels = []
            for rank in range(ranks):
                session = doors.Session(runtime_dir)
                sessions.append(session)
                channels.append(doors.Channel(session.rpc))
                channels[-1].begin(doors.HEAP + "Join",
                                   doors.join_request(session, f"unread-{seen['jobs']}", rank, ranks))
                seen["sessions"] += 1
            held.append((sessions, channels))
            seen["jobs"] += 1
            if seen["jobs"] >= 8:
                _hold(end)
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], refusal)
            for session in sessions:
                session.close()
            time.sleep(PAUSE_SECONDS * 10)
    return seen


def many_sessions(runtime_dir, end, sessions=1200):
    """More sessions than a user may have."""
    seen = {"sessions": 0, "refused": {}}
    held = []
    while time.monotonic() < end:
        if len(held) >= sessions:
            _hold(end)
            break
        try:
            held.append(doors.Session(runtime_dir))
            seen["sessions"] += 1
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], refusal)
            time.sleep(PAUSE_SECONDS)
    return seen


def many_admin_connections(runtime_dir, end, connections=400):
    """More connections to irisd.sock than a user may have."""
    seen = {"connections": 0, "refused": {}}
    held = []
    while time.monotonic() < end:
        try:
            sock = _admin(runtime_dir)
            channel = doors.Channel(sock)
            channel.call(doors.ADMIN + "GetStatus")
            held.append(channel)
            seen["connections"] += 1
            if len(held) >= connections:
                _hold(end)
        except doors.Refused as refusal:
            _count(seen["refused"], refusal)
            time.sleep(PAUSE_SECONDS)
    return seen


def silent_admin_connections(runtime_dir, end, connections=64):
    """As many connections to irisd.sock as a user may have, which say nothing."""
    seen = {"connections": 0, "refused": {}}
    held = []
    while time.monotonic() < end:
        try:
            while len(held) < connections:
                held.append(_admin(runtime_dir))
                seen["connections"] += 1
        except doors.Refused as refusal:
            _count(seen["refused"], refusal)
        for sock in select.select(held, [], [], PAUSE_SECONDS)[0]:
            if not sock.recv(1 << 16):
                held.remove(sock)
                sock.close()
    return seen


def many_jobs(runtime_dir, end, jobs=400):
    """Jobs that wait for a rank which never comes, more than a user may have."""
    seen = {"asked": 0, "refused": {}}
    held = []
    while len(held) < jobs and time.monotonic() < end:
        try:
            session = doors.Session(runtime_dir)
            channel = doors.Channel(session.rpc)
            channel.begin(doors.HEAP + "Join", doors.join_request(session, f"{'j' * 100}{len(held)}", 0, 2))
            held.append((session, channel))
            seen["asked"] += 1
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], refusal)
            time.sleep(PAUSE_SECONDS)
    _hold(end)
    return seen


def waiting_calls(runtime_dir, end):
    """Joins that wait, by thousands on one connection, far more than it may have open."""
    def member(runtime_dir):
        member.session = doors.Session(runtime_dir)
        return member.session.rpc

    def pieces():
        request = doors.join_request(member.session, f"waits-{os.getpid()}", 0, 2)
        yield from itertools.chain([doors.opening()], _streams(doors.HEAP + "Join", request))

    return _again_and_again(runtime_dir, end, pieces, opener=member)


def large_messages(runtime_dir, end):
    """Whole messages of nearly 4 MiB that mean nothing, one after the other."""
    junk = doors.field(2, b"j" * ((4 << 20) - 64))
    seen = {"calls": 0, "codes": {}}
    channel = None
    while time.monotonic() < end:
        try:
            channel = channel or doors.Channel(_admin(runtime_dir))
            stream = channel.http.get_next_available_stream_id()
            channel.http.send_headers(stream, doors.request_headers(doors.ADMIN + "ListJobs"))
            body = memoryview(doors.prefixed(junk))
            while body and time.monotonic() < end:
                n = min(channel.http.local_flow_control_window(stream), 16384, len(body))
                if n > 0:
                    channel.http.send_data(stream, bytes(body[:n]), end_stream=n == len(body))
                    body = body[n:]
                    channel.flush()
                else:
                    channel.events()
            seen["calls"] += 1
        except (doors.Refused, h2.exceptions.H2Error) as refusal:
            _count(seen["codes"], refusal)
            channel = None
            time.sleep(PAUSE_SECONDS)
    return seen


def garbage(runtime_dir, end):
    """Bytes that are no HTTP/2 at all."""
    chunk = bytes((i * 2654435761 >> 7) & 255 for i in range(65536))
    return _again_and_again(runtime_dir, end, lambda: itertools.repeat(chunk), connections=8)


# Calls by frames.


def unread_calls(runtime_dir, end):
    """Calls of every kind, whose answers are never read."""
    def frames():
        request = doors.fixed64(1, 77) + doors.fixed64(2, 88)
        for number in itertools.count(1):
            head = doors.CALL.pack(number, number % 9, len(request))
            yield doors.frame(doors.CALL_TYPE, head + request)

    return _frames(runtime_dir, end, frames, doors.FrameSession)


def wrong_calls(runtime_dir, end):
    """Calls that break the protocol, each in one of many ways."""
    request = b"\x01" * 40
    wrong = [
        doors.frame(doors.CALL_TYPE, b"\x01" * 15),
        doors.frame(doors.CALL_TYPE, doors.CALL.pack(0, 3, 0)),
        doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, 3, 39) + request),
        doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, 3, 1 << 20)),
        doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, 3, 0xFFFFFFFF) + request),
        doors.frame(doors.CANCEL_TYPE, doors.CALL_NUMBER.pack(1)),
        doors.frame(doors.TAKEN_TYPE, doors.CALL_NUMBER.pack(0)),
        doors.frame(doors.TAKEN_TYPE, b""),
        doors.frame(doors.ANSWER_TYPE, doors.ANSWER.pack(1, 7, 0)),
    ]
    kinds = itertools.count()
    return _frames(runtime_dir, end, lambda: [wrong[next(kinds) % len(wrong)]] * 3, doors.FrameSession)


def wrong_requests(runtime_dir, end):
    """Requests whose descriptor could change or wait: pipes, devices, files, memfds unsealed or of another size."""
    read_end, write_end = os.pipe()
    seen = {"sent": 0, "ended": {}}
    data = b"x" * (1 << 20)
    made = [lambda: os.dup(read_end), lambda: os.open("/dev/zero", os.O_RDONLY), lambda: os.open("/", os.O_RDONLY),
            lambda: os.open("/proc/self/cmdline", os.O_RDONLY), lambda: doors.sealed(data, fcntl.F_SEAL_WRITE),
            lambda: doors.sealed(data, fcntl.F_SEAL_SHRINK), lambda: doors.sealed(data[:-1]),
            lambda: socket.socket(socket.AF_UNIX).detach()]
    while time.monotonic() < end:
        for make in made:
            try:
                session = doors.FrameSession(runtime_dir)
                fd = make()
                head = doors.CALL.pack(1, doors.OPERATE, len(data))
                socket.send_fds(session.sock, [doors.frame(doors.CALL_TYPE, head)], [fd])
                os.close(fd)
                seen["sent"] += 1
                session.receive()
            except (OSError, doors.Refused) as refusal:
                _count(seen["ended"], refusal)
            session.close()
    os.close(write_end)
    return seen


def alone(runtime_dir, job, heap_bytes=1 << 20, max_heap_bytes=64 << 20):
    """A session by frames with a job of one rank: (session, number of the job)."""
    session = doors.FrameSession(runtime_dir)
    code, text, reply = session.call(doors.JOIN, doors.join_request(session, job, heap_bytes=heap_bytes,
                                                                    max_heap_bytes=max_heap_bytes))
    if code:
        raise doors.Refused(text)
    number = doors.fields(reply)[1]
    epoch = doors.fields(reply).get(2, 0)
    code, text, _ = session.call(doors.MAPPED, doors.fixed64(1, session.id) + doors.fixed64(2, number) +
                                 doors.field(3, epoch) + doors.field(4, 1 << 46))
    if code:
        raise doors.Refused(text)
    return session, number


def _slow_to_close(held):
    """The last descriptor of a connection whose close waits for a minute: nobody reads what it has to send."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        slow = socket.create_connection(listener.getsockname())
        held.append(listener.accept()[0])
    slow.setblocking(False)
    try:
        while True:
            slow.send(b"x" * (1 << 16))
    except BlockingIOError:
        pass
    slow.setblocking(True)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return slow


def _welcome_unread(path):
    """A connection whose welcome has come and is not read: its close is told to irisd before what was sent last."""
    sock = doors.connect(path, socket.SOCK_SEQPACKET)
    sock.send(doors.hello())
    select.select([sock], [], [], 5)
    return sock


def slow_descriptors(runtime_dir, end):
    """Descriptors that take a minute to close: with a hello, a long request, a call, more than a frame may have, in
    what is never read, and on the socket for gRPC."""
    held, seen = [], {"sent": 0, "ended": {}}
    path = os.path.join(runtime_dir, "session.sock")
    long_request = doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, doors.OPERATE, 1 << 20))
    short_request = doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, doors.OPERATE, 4) + b"wxyz")
    ways = [(lambda: doors.connect(path, socket.SOCK_SEQPACKET), [doors.hello()], 1),
            (lambda: doors.FrameSession(runtime_dir).sock, [long_request], 1),
            (lambda: doors.FrameSession(runtime_dir).sock, [short_request], 1),
            (lambda: doors.FrameSession(runtime_dir).sock, [short_request], 250),
            (lambda: doors.FrameSession(runtime_dir).sock, [doors.frame(77, b"")] * 40, 1),
            (lambda: _welcome_unread(path), [short_request], 1),
            (lambda: _admin(runtime_dir), [doors.opening()] * 3, 1)]
    for door, frames, count in itertools.cycle(ways):
        if time.monotonic() > end:
            return seen
        try:
            with door() as sock:
                for packet in frames:
                    slow = _slow_to_close(held)
                    try:
                        socket.send_fds(sock, [packet], [slow.fileno()] * count)
                        seen["sent"] += 1
                    finally:
                        # If it was not sent, this is what takes a minute.
                        threading.Thread(target=slow.close, daemon=True).start()
        except (OSError, doors.Refused) as refusal:
            _count(seen["ended"], refusal)
        time.sleep(PAUSE_SECONDS)


def silent_files(runtime_dir, end):
    """Descriptors of a file whose file system never answers: with a hello, a long request, memory to be registered, as
    many as a frame may have, in what is never read, and behind a welcome that is not read."""
    silent = silent_fuse.SilentFile(FUSE_DEVICE)
    seen = {"sent": 0, "ended": {}}
    fd = os.open(silent.path, os.O_RDWR)
    path = os.path.join(runtime_dir, "session.sock")
    long_request = doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, doors.OPERATE, 1 << 20))
    short_request = doors.frame(doors.CALL_TYPE, doors.CALL.pack(1, doors.OPERATE, 4) + b"wxyz")
    ways = [(lambda: doors.connect(path, socket.SOCK_SEQPACKET), [doors.hello()], 1),
            (lambda: doors.FrameSession(runtime_dir).sock, [long_request], 1),
            (lambda: doors.FrameSession(runtime_dir).sock, [short_request], 128),
            (lambda: doors.FrameSession(runtime_dir).sock, [short_request] * 40, 1),
            (lambda: _welcome_unread(path), [short_request], 1)]
    for door, frames, count in itertools.cycle(ways):
        if time.monotonic() > end:
            silent.end()
            return seen
        try:
            with door() as sock:
                for packet in frames:
                    socket.send_fds(sock, [packet], [fd] * count)
                    seen["sent"] += 1
                while door is not ways[-1][0]:
                    if not sock.recv(1 << 16):
                        break
        except (OSError, doors.Refused) as refusal:
            _count(seen["ended"], refusal)
        time.sleep(PAUSE_SECONDS)


def wrong_registrations(runtime_dir, end):
    """Registers what is no memory, or could change, or is as long as it likes; then too much that is right. Also with
    the team of all ranks, whose other members would be told."""
    piece = 2 << 20
    fixed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    read_end, write_end = os.pipe()
    good = doors.sealed(b"\0" * piece, fixed)
    no_memory = [os.dup(read_end), os.open("/dev/zero", os.O_RDWR), os.open("/", os.O_RDONLY),
                 socket.socket(socket.AF_UNIX).detach()]
    ends = itertools.cycle([[good] * 200, *([good, fd] for fd in no_memory)])
    wrong = [[doors.sealed(b"\0" * piece, fcntl.F_SEAL_SHRINK)], [doors.sealed(b"\0" * piece, fcntl.F_SEAL_GROW)],
             [doors.sealed(b"\0" * (piece - 1), fixed)], [], [good, good],
             [good] * 128]
    seen = {"sent": 0, "registered": 0, "told": 0, "together": 0, "refused": {}}
    while time.monotonic() < end:
        try:
            session, job = alone(runtime_dir, f"registers-{os.getpid()}-{seen['sent']}")
            own = doors.field(3, 0xFFFF0000)
            for descriptors in [*wrong, [good]]:
                operation = doors.field(1, piece) + doors.field(3, 1)
                request = doors.operate_request(session, job, 0, 14, operation) + own
                code, text, _ = session.call(doors.OPERATE, request, descriptors)
                seen["sent"] += 1
                if code:
                    _count(seen["refused"], text)
                else:
                    seen["registered"] += 1
            for k, descriptors in enumerate([*wrong, [good]]):
                request = doors.operate_request(session, job, k, 14, operation)
                code, text, reply = session.call(doors.OPERATE, request, descriptors)
                seen["sent"] += 1
                if code:
                    _count(seen["refused"], text)
                elif b"register #" in reply:
                    seen["told"] += b"rank 0 (pid " in reply
                else:
                    seen["together"] += 1
            # Registered and never confirmed, confirmed and never registered, a reason that is no text.
            for k, (number, wanted) in enumerate([(14, operation + doors.field(6, b"\0\x1b[31m" * 500)), (15, b""),
                                                  (15, doors.field(1, ~0 % 2**64) + doors.field(2, b"\n" * 9000))],
                                                 len(wrong) + 1):
                session.call(doors.OPERATE, doors.operate_request(session, job, k, number, wanted), [])
                seen["sent"] += 1
            for k in range(1, 100):
                request = doors.operate_request(session, job, k, 14, operation) + own
                session.call(doors.OPERATE, request, [good])
                seen["sent"] += 1
            # What ends the session: more than a frame may have, and what irisd does not receive.
            session.call(doors.OPERATE, request, next(ends))
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], refusal)
            time.sleep(PAUSE_SECONDS)
    os.close(write_end)
    return seen


def unread_broadcasts(runtime_dir, end, sessions=8):
    """Jobs of one rank that broadcast a megabyte to themselves, again and again, and read no answer."""
    seen = {"jobs": 0, "broadcasts": 0, "refused": {}}
    value = b"v" * (1 << 20)
    held = []
    while time.monotonic() < end:
        try:
            session, job = alone(runtime_dir, f"loud-{os.getpid()}-{seen['jobs']}")
            held = held[-sessions + 1:] + [session]
            seen["jobs"] += 1
            session.sock.settimeout(0.2)
            for k in itertools.count():
                session.begin(doors.OPERATE, doors.operate_request(session, job, k, 8,
                                                                   doors.field(1, 0) + doors.field(2, value)))
                seen["broadcasts"] += 1
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], refusal)
    return seen


# More than a user's part of what irisd has.


def _without_numbers(text):
    return re.sub(r"[0-9]+", "N", str(text))


def _refused_in(reply):
    """The text of an operation's outcome that failed, else nothing."""
    return doors.fields(doors.fields(reply).get(1, b"")).get(3, b"").decode(errors="replace")


def pair(runtime_dir, job):
    """Both ranks of a job of two: (sessions, number of the job)."""
    sessions = [doors.FrameSession(runtime_dir) for _ in range(2)]
    calls = [session.begin(doors.JOIN, doors.join_request(session, job, rank, 2, max_heap_bytes=64 << 20))
             for rank, session in enumerate(sessions)]
    replies = [session.wait(call) for session, call in zip(sessions, calls)]
    for code, text, _ in replies:
        if code:
            raise doors.Refused(text)
    joined = doors.fields(replies[0][2])
    calls = [session.begin(doors.MAPPED, doors.fixed64(1, session.id) + doors.fixed64(2, joined[1]) +
                           doors.field(3, joined.get(2, 0)) + doors.field(4, 1 << 46)) for session in sessions]
    for session, call in zip(sessions, calls):
        code, text, _ = session.wait(call)
        if code:
            raise doors.Refused(text)
    return sessions, joined[1]


def unique(what):
    """Of a job; processes of two containers may have the same number."""
    return f"{what}-{os.getpid()}-{time.monotonic_ns()}"


def _job_after_job(end, seen, jobs, fill):
    """Fills job after job, so many at most, by `fill()`, which keeps its sessions, until irisd refuses; goes on with
    the next one then."""
    seen.update(jobs=0, refused={})
    while time.monotonic() < end and seen["jobs"] < jobs:
        seen["jobs"] += 1
        try:
            fill()
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], _without_numbers(refusal))
            time.sleep(PAUSE_SECONDS)
    _hold(end)
    return seen


def operate(session, *request, team=0, descriptors=()):
    """An operation that has to succeed: Refused, where it is not done. Its result."""
    code, text, reply = session.call(doors.OPERATE, doors.operate_request(session, *request) + doors.field(3, team),
                                     descriptors)
    if code or _refused_in(reply):
        raise doors.Refused(text or _refused_in(reply))
    return doors.fields(doors.fields(doors.fields(reply)[1]).get(4, b""))


def waiting_broadcasts(runtime_dir, end, teams=63, jobs=200):
    """Jobs of two ranks with as many teams as they may have, in each of which one rank broadcasts a megabyte that the
    other never asks for."""
    seen = {"teams": 0, "broadcasts": 0}
    value = doors.field(1, 0) + doors.field(2, b"v" * ((1 << 20) - 64))
    held = []

    def fill():
        sessions, job = pair(runtime_dir, unique("values"))
        held.append(sessions)
        for k in range(teams):
            team = sessions[1].begin(doors.OPERATE, doors.operate_request(sessions[1], job, k, 9,
                                                                          doors.field(1, b"\0\1")))
            operate(sessions[0], job, k, 9, doors.field(1, b"\0\1"))
            sessions[1].wait(team)
            seen["teams"] += 1
            sessions[0].begin(doors.OPERATE, doors.operate_request(sessions[0], job, 0, 8, value) +
                              doors.field(3, k + 1))
            seen["broadcasts"] += 1

    return _job_after_job(end, seen, jobs, fill)


def many_allocations(runtime_dir, end, jobs=250):
    """Allocations with the longest names and the most dimensions, in many jobs of one rank, as fast as they come."""
    seen = {"allocations": 0}
    tensor = doors.field(1, "d" * 16) + doors.field(2, doors.varint(1) * 16)
    held = []

    def fill():
        session, job = alone(runtime_dir, unique("records"), heap_bytes=64 << 20)
        held.append(session)
        for k in range(65000):
            operate(session, job, k, 6, doors.field(1, 1) + doors.field(3, f"{k:0128}") + doors.field(4, tensor))
            seen["allocations"] += 1
            if time.monotonic() > end:
                return

    return _job_after_job(end, seen, jobs, fill)


def registered_and_freed(runtime_dir, end, pieces=32, times=2):
    """No attack: a rank registers memory of many pieces, several times at once, frees it, and does so again. Where
    irisd has not given back yet what was freed, it tries again."""
    seen = {"registered": 0, "refused": {}}
    piece, own = 2 << 20, 0xFFFF0000
    fixed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    descriptors = [doors.sealed(b"\0" * piece, fixed) for _ in range(pieces)]
    register = doors.field(1, doors.varint(piece) * pieces) + doors.field(3, piece * pieces)
    session, job = alone(runtime_dir, unique("honest"), max_heap_bytes=4 << 30)
    k, held = itertools.count(), []
    while time.monotonic() < end and not seen["refused"]:
        try:
            while len(held) < times:
                held.append(operate(session, job, next(k), 14, register, team=own, descriptors=descriptors).get(1, 0))
                seen["registered"] += pieces
            while held:
                operate(session, job, next(k), 7, doors.field(1, held[-1]), team=own)
                held.pop()
        except (OSError, doors.Refused) as refusal:
            if "try again in a moment" not in str(refusal):
                _count(seen["refused"], refusal)
            time.sleep(PAUSE_SECONDS)
    return seen


def one_memfd_many_times(runtime_dir, end, pieces=120, jobs=200):
    """Registers one empty memfd again and again, in job after job, until irisd has no descriptor left for others."""
    seen = {"registered": 0}
    piece = 2 << 20
    fd = os.memfd_create("piece", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, piece)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    held = []

    def fill():
        session, job = alone(runtime_dir, unique("pieces"), max_heap_bytes=4 << 30)
        held.append(session)
        for k in range(8):
            operate(session, job, k, 14, doors.field(1, doors.varint(piece) * pieces) +
                     doors.field(3, piece * pieces), descriptors=[fd] * pieces)
            seen["registered"] += pieces

    return _job_after_job(end, seen, jobs, fill)


def busy_sessions(runtime_dir, end, sessions=100):
    """Many sessions that call as fast as irisd answers, half of them with requests of nearly 4 MiB."""
    junk = doors.fixed64(1, 1) + doors.field(99, b"j" * ((4 << 20) - 64))
    seen = {"sessions": 0, "calls": 0, "refused": {}}
    large = doors.sealed(junk)
    small = doors.fixed64(1, 77) + doors.fixed64(2, 88)
    held = {}
    poller = select.poll()
    while time.monotonic() < end:
        try:
            while len(held) < sessions:
                session = doors.FrameSession(runtime_dir)
                held[session.sock.fileno()] = (session, len(held) % 2 == 0)
                poller.register(session.sock, select.POLLIN | select.POLLOUT)
                seen["sessions"] += 1
        except (OSError, doors.Refused) as refusal:
            _count(seen["refused"], _without_numbers(refusal))
        for fd, _ in poller.poll(100):
            session, is_large = held[fd]
            try:
                session.sock.setblocking(False)
                session.n_calls += 1
                if is_large:
                    head = doors.CALL.pack(session.n_calls, doors.OPERATE, len(junk))
                    socket.send_fds(session.sock, [doors.frame(doors.CALL_TYPE, head)], [large])
                else:
                    head = doors.CALL.pack(session.n_calls, doors.LEAVE, len(small))
                    session.sock.send(doors.frame(doors.CALL_TYPE, head + small))
                seen["calls"] += 1
            except BlockingIOError:
                session.n_calls -= 1
            except OSError as error:
                _count(seen["refused"], _without_numbers(error))
                poller.unregister(fd)
                del held[fd]
                continue
            try:
                while session.sock.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass
            except OSError as error:
                _count(seen["refused"], _without_numbers(error))
                poller.unregister(fd)
                del held[fd]
    return seen


# Who is not of the party that owns a job.


def spy_on(jobs):
    """An attack that asks irisd for all that it has of these jobs: {name: number}, of two ranks each. `got` names what
    it was given, `denied` counts what it was not."""

    def spy(runtime_dir, end):
        seen = {"got": [], "denied": 0}

        def note(what, given):
            if given and what not in seen["got"]:
                seen["got"].append(what)
            seen["denied"] += not given

        names = [name.encode() for name in jobs]
        while time.monotonic() < end - 0.2:
            with _admin(runtime_dir) as sock:
                channel = doors.Channel(sock)
                for listing in ("ListJobs", "ListHeaps", "ListAllocations", "ListSessions", "ListWaits", "DescribeJobs",
                                "ListTenants", "ListNodes", "Events"):
                    for one in ("", *jobs):
                        request = doors.field(1, one) if one and listing.startswith("List") else b""
                        _, _, reply = channel.call(doors.ADMIN + listing, request)
                        note(listing, any(name in reply for name in names))
                for name, rank in itertools.product(jobs, range(2)):
                    code, _, _ = channel.call(doors.ADMIN + "Peek", doors.field(1, name) + doors.field(2, rank) +
                                              doors.field(4, 64))
                    note("Peek", code == 0)
            session = doors.Session(runtime_dir)
            channel = doors.Channel(session.rpc)
            for (name, number), rank in itertools.product(jobs.items(), range(2)):
                own = doors.fixed64(1, session.id)
                for writes in (0, 1):
                    code, _, _ = channel.call(doors.HEAP + "Borrow", own + doors.field(2, name) + doors.field(3, rank) +
                                              doors.field(5, 4096) + doors.field(6, writes))
                    note("Borrow to write" if writes else "Borrow", code == 0)
                for epoch in range(4):
                    code, _, _ = channel.call(doors.HEAP + "Resume", own + doors.fixed64(2, number) +
                                              doors.field(3, name) + doors.field(4, rank) + doors.field(5, epoch))
                    note("Resume", code == 0)
                of_it = own + doors.fixed64(2, number)
                for method, request in (("Mapped", doors.field(4, 1 << 46)), ("Operate", doors.field(9, b"")),
                                        ("GrowMapped", b""), ("Leave", b""), ("Watch", b"")):
                    code, _, _ = channel.call(doors.HEAP + method, of_it + request)
                    note(method, code == 0)
        # A job of that name is the spy's own, which waits for a rank that never comes. Events name it from now on.
        channel.begin(doors.HEAP + "Join", doors.join_request(session, next(iter(jobs)), 0, 2))
        _hold(end)
        return seen

    return spy
