"""What a client may know of irisd's two sockets: the frames of session.sock, gRPC over HTTP/2, protobuf. Written from
docs/protocol.md, for clients that misuse it."""

import array
import fcntl
import os
import select
import socket
import struct
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hpack

HEADER = struct.Struct("<IHHII")
HELLO = struct.Struct("<HHI32s")
WELCOME = struct.Struct("<QQ32s16s")
ACK = struct.Struct("<II")
MAGIC = 0x53495249
VERSION = 1
HELLO_TYPE, WELCOME_TYPE, ERROR_TYPE, DESCRIPTORS_TYPE, ACK_TYPE = 1, 4, 5, 6, 7
RPC_REQUEST_TYPE = 8  # asks for another gRPC socket
CALL_TYPE, CANCEL_TYPE, TAKEN_TYPE, ANSWER_TYPE, FAILURE_TYPE = 10, 11, 12, 13, 14
CALL = struct.Struct("<QII")  # call, method, bytes
CALL_NUMBER = struct.Struct("<Q")
ANSWER = struct.Struct("<QII")  # call, flags, reserved
FAILURE = struct.Struct("<QII1024s")  # call, code, bytes of the text, text
CALLS_BY_FRAMES = 1  # of a hello's flags
JOIN, MAPPED, OPERATE, GROW_MAPPED, LEAVE, RESUME, WATCH, BORROW = range(1, 9)
ENDS = 4  # of an answer's flags
CALL_FRAME_BYTES_MAX = 16 << 10  # of a request in a frame; a longer one is a sealed memfd
FRAME_BYTES_MAX = 20 << 10

PATIENCE_SECONDS = 20

HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION, DATA = 1, 3, 4, 6, 8, 9, 0
END_STREAM, END_HEADERS = 1, 4
INITIAL_ROOM, DATA_BYTES_MAX, OUT_BYTES_MAX = 65535, 16384, 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ADMIN = "/iris.v1.AdminService/"
HEAP = "/iris.v1.HeapService/"


class Refused(Exception):
    """irisd has ended the connection; the text is what it said, or how it ended."""


def frame(kind, payload=b""):
    """A frame of the session socket."""
    return HEADER.pack(MAGIC, VERSION, kind, len(payload), 0) + payload


def hello(flags=0):
    return frame(HELLO_TYPE, HELLO.pack(VERSION, VERSION, flags, b"hostile"))


def sealed(data, seals=fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK):
    """A memfd with these bytes."""
    fd = os.memfd_create("request", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, value):
    """A field of protobuf: bytes and str have a length, the rest are varints."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fixed64(number, value):
    return varint(number << 3 | 1) + struct.pack("<Q", value)


def _pairs(data):
    """(number, value) of each field of a message, in order."""
    at = 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = read()
        if key & 7 == 0:
            value = read()
        elif key & 7 == 1:
            value = struct.unpack_from("<Q", data, at)[0]
            at += 8
        else:
            size = read()
            value = data[at:at + size]
            at += size
        yield key >> 3, value


def fields(data):
    """What a message holds, as {number: last value}."""
    return dict(_pairs(data))


def all_of(data, number):
    """Every value of a repeated field."""
    return [value for each, value in _pairs(data) if each == number]


def connect(path, kind=socket.SOCK_STREAM):
    """A connected socket. Refused if irisd does not take it in time."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(PATIENCE_SECONDS)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise Refused(str(error)) from error
    return sock


class Session:
    """A session: `sock` is its session socket, `rpc` the socket of its gRPC channel."""

    def __init__(self, runtime_dir):
        self.sock = connect(os.path.join(runtime_dir, "session.sock"), socket.SOCK_SEQPACKET)
        try:
            self.sock.send(hello())
            kind, payload, descriptors = self.receive()
            if kind != WELCOME_TYPE or len(descriptors) != 1:
                raise Refused(f"frame {kind} instead of a welcome")
        except BaseException:
            self.sock.close()
            raise
        self.id = WELCOME.unpack(payload)[0]
        self.rpc = socket.socket(fileno=descriptors[0])

    def receive(self):
        """(type, payload, descriptors) of the next frame. Refused with the text of an error frame, too."""
        numbers = array.array("i")
        try:
            data, extra, _, _ = self.sock.recvmsg(FRAME_BYTES_MAX, socket.CMSG_SPACE(64 * numbers.itemsize))
        except OSError as error:
            raise Refused(str(error)) from error
        for _, kind, value in extra:
            if kind == socket.SCM_RIGHTS:
                numbers.frombytes(value[:len(value) - len(value) % numbers.itemsize])
        if len(data) < HEADER.size:
            raise Refused("irisd closed the session socket")
        kind = HEADER.unpack_from(data)[2]
        payload = data[HEADER.size:]
        if kind == ERROR_TYPE:
            raise Refused(payload[8:].split(b"\0")[0].decode(errors="replace"))
        return kind, payload, list(numbers)

    def close(self):
        self.sock.close()
        self.rpc.close()


class FrameSession(Session):
    """A session that calls by frames. It has no gRPC socket."""

    def __init__(self, runtime_dir):
        # pylint: disable=super-init-not-called
        self.sock = connect(os.path.join(runtime_dir, "session.sock"), socket.SOCK_SEQPACKET)
        try:
            self.sock.send(hello(CALLS_BY_FRAMES))
            kind, payload, descriptors = self.receive()
            if kind != WELCOME_TYPE or descriptors:
                raise Refused(f"frame {kind} with {len(descriptors)} descriptors instead of a welcome")
        except BaseException:
            self.sock.close()
            raise
        self.id = WELCOME.unpack(payload)[0]
        self.n_calls = 0

    def begin(self, method, request, descriptors=()):
        """Makes a call; its number. Waits while irisd does not read, for the socket's timeout at most."""
        self.n_calls += 1
        in_frame = len(request) <= CALL_FRAME_BYTES_MAX
        head = CALL.pack(self.n_calls, method, len(request))
        try:
            if in_frame:
                socket.send_fds(self.sock, [frame(CALL_TYPE, head + request)], descriptors)
            else:
                fd = sealed(request)
                try:
                    socket.send_fds(self.sock, [frame(CALL_TYPE, head)], [fd])
                finally:
                    os.close(fd)
        except OSError as error:
            raise Refused(str(error)) from error
        return self.n_calls

    def call(self, method, request, descriptors=()):
        """(gRPC code, text, first message) of a call. Descriptors that come meanwhile are acknowledged and closed."""
        return self.wait(self.begin(method, request, descriptors))

    def wait(self, number):
        """The same of a call that has begun; answers of others that come meanwhile are lost."""
        message = b""
        while True:
            kind, payload, descriptors = self.receive()
            for fd in descriptors:
                os.close(fd)
            if descriptors:
                self.sock.send(frame(ACK_TYPE, ACK.pack(len(descriptors), 0)))
            if kind == FAILURE_TYPE and FAILURE.unpack(payload)[0] == number:
                _, code, size, text = FAILURE.unpack(payload)
                return code, text[:size].decode(errors="replace"), b""
            if kind == ANSWER_TYPE and ANSWER.unpack_from(payload)[0] == number:
                message += payload[ANSWER.size:]
                if ANSWER.unpack_from(payload)[1] & ENDS:
                    return 0, "", message

    def close(self):
        self.sock.close()


def operate_request(session, job_id, k, number, operation):
    """OperateRequest of proto/iris/v1/heap.proto; `number`: of the operation's field."""
    return fixed64(1, session.id) + fixed64(2, job_id) + field(4, k) + field(5, 60_000) + field(number, operation)


def join_request(session, job, rank=0, n_ranks=1, heap_bytes=1 << 20, max_heap_bytes=None):
    """JoinRequest of proto/iris/v1/heap.proto."""
    return (fixed64(1, session.id) + field(2, job) + field(3, rank) + field(4, n_ranks) + field(5, heap_bytes) +
            field(6, max_heap_bytes or heap_bytes) + field(8, rank) + field(10, 60_000))


class Channel:
    """gRPC as it should be spoken, by the h2 package. Not thread-safe."""

    def __init__(self, sock, window_bytes=None):
        self.sock = sock
        self.sock.settimeout(PATIENCE_SECONDS)
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        if window_bytes is not None:
            self.http.local_settings.initial_window_size = window_bytes
        self.http.initiate_connection()
        self.flush()

    def flush(self):
        try:
            self.sock.sendall(self.http.data_to_send())
        except OSError as error:
            raise Refused(str(error)) from error

    def begin(self, path, message=b"", end=True):
        """Starts a call; its stream."""
        stream = self.http.get_next_available_stream_id()
        self.http.send_headers(stream, request_headers(path))
        self.http.send_data(stream, prefixed(message), end_stream=end)
        self.flush()
        return stream

    def events(self):
        """What has come, after waiting for something."""
        try:
            data = self.sock.recv(1 << 16)
        except OSError as error:
            raise Refused(str(error)) from error
        if not data:
            raise Refused("irisd closed the gRPC socket")
        try:
            events = self.http.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise Refused(f"irisd breaks HTTP/2: {error!r}") from error
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.flush()
        return events

    def call(self, path, message=b""):
        """(gRPC code, text, first message) of a call. Refused if the connection ends first."""
        stream = self.begin(path, message)
        body, headers, end = b"", {}, time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            for event in self.events():
                if getattr(event, "stream_id", None) != stream:
                    continue
                if isinstance(event, h2.events.DataReceived):
                    body += event.data
                elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                    headers.update(event.headers)
                elif isinstance(event, h2.events.StreamReset):
                    return 14, f"the stream was reset: {event.error_code}", b""
                if isinstance(event, h2.events.StreamEnded):
                    return int(headers.get("grpc-status", 2)), headers.get("grpc-message", ""), body[5:]
        raise Refused(f"no answer to {path}")


def request_headers(path):
    return [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
            ("content-type", "application/grpc"), ("te", "trailers")]


def prefixed(message):
    """A message as gRPC frames it."""
    return struct.pack(">BI", 0, len(message)) + message


# Raw HTTP/2, for floods: h2 keeps to the rules, and its every frame costs more than irisd pays for it.


def raw(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def block(path):
    """Headers that leave no trace in the other side's table, so that the same bytes serve every stream."""
    return hpack.Encoder().encode([(name, value, True) for name, value in request_headers(path)], huffman=False)


def opening(window_bytes=65535):
    """What a connection begins with."""
    return PREFACE + raw(SETTINGS, 0, 0, struct.pack(">HI", 4, window_bytes))


class Sender:
    """Many streams of one connection, each of which sends as much as irisd gives it room for; neither reading nor
    writing ever waits. Begin it with opening()."""

    def __init__(self, sock, head):
        self.sock = sock
        self.sock.setblocking(False)
        self.sent = 0
        self.room = self.stream_room = INITIAL_ROOM
        self.rooms = {}
        self._in, self._out = bytearray(), bytearray(head)

    def add(self, stream, headers):
        self._out += raw(HEADERS, END_HEADERS, stream, headers)
        self.rooms[stream] = self.stream_room

    def send_data(self, stream, wanted):
        """Of `wanted` bytes as many as there is room for now; how many these are."""
        n = min(len(wanted), self.room, self.rooms.get(stream, 0), DATA_BYTES_MAX)
        if n <= 0 or len(self._out) > OUT_BYTES_MAX:
            return 0
        self._out += raw(DATA, 0, stream, wanted[:n])
        self.room -= n
        self.rooms[stream] -= n
        self.sent += n
        return n

    def turn(self):
        """Reads and writes what can be. Refused if the connection is over."""
        try:
            while self._out:
                done = self.sock.send(self._out)
                del self._out[:done]
        except BlockingIOError:
            pass
        except OSError as error:
            raise Refused(str(error)) from error
        try:
            data = self.sock.recv(1 << 16)
            if not data:
                raise Refused("irisd closed the gRPC socket")
            self._in += data
        except BlockingIOError:
            pass
        except OSError as error:
            raise Refused(str(error)) from error
        self._read_frames()

    def _read_frames(self):
        while len(self._in) >= 9:
            size = int.from_bytes(self._in[:3], "big")
            if len(self._in) < 9 + size:
                return
            kind, flags, stream = struct.unpack_from(">BBI", self._in, 3)
            payload = bytes(self._in[9:9 + size])
            del self._in[:9 + size]
            if kind == WINDOW_UPDATE and stream == 0:
                self.room += struct.unpack(">I", payload)[0]
            elif kind == WINDOW_UPDATE and stream in self.rooms:
                self.rooms[stream] += struct.unpack(">I", payload)[0]
            elif kind == RST_STREAM:
                self.rooms.pop(stream, None)
            elif kind == PING and not flags & 1:
                self._out += raw(PING, 1, 0, payload)
            elif kind == SETTINGS and not flags & 1:
                for at in range(0, size, 6):
                    name, value = struct.unpack_from(">HI", payload, at)
                    if name == 4:
                        for number in self.rooms:
                            self.rooms[number] += value - self.stream_room
                        self.stream_room = value
                self._out += raw(SETTINGS, 1, 0)


def pour(sock, pieces, end, bytes_max):
    """Sends `pieces` and reads nothing. Returns (bytes sent, what ended it)."""
    sock.setblocking(False)
    sent = 0
    for piece in pieces:
        view = memoryview(piece)
        while view:
            if time.monotonic() >= end:
                return sent, "time"
            try:
                done = sock.send(view)
            except BlockingIOError:
                select.select([], [sock], [], 0.05)
                continue
            except OSError as error:
                return sent, str(error)
            sent += done
            view = view[done:]
        if sent >= bytes_max:
            return sent, "enough"
    return sent, "all"
