"""Streams, events and graphs of the rank's device.

A stream that Python drops is not destroyed, because its destruction waits for its work: the next Stream of the context
reuses the handle. The same holds for events. A graph lasts until close(), or as long as its context.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from iris import _capi, _foreign
from iris.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from iris.context import Context

# The number of objects that a stream keeps before it checks whether it is idle and can drop them.
_PENDING_MAX = 256


def out_handle(function: Any, *arguments: Any) -> int:
    """Returns the handle that a function of the C API makes."""
    return _capi.out(ctypes.c_void_p, function, *arguments).value or 0


class _Made:
    """An object of the C API that ends with its context."""

    context: "Context"
    _handle: int

    @property
    def handle(self) -> int:
        """The handle for the C API. Raises FailedPreconditionError if the context is closed."""
        self.context.check()
        return self._handle


class Stream(_Made):
    """A sequence of work on the device. `Stream(context)` makes a stream; `Stream(context, native)` stands for a stream
    of the platform, by its number or as an object of torch or cupy."""

    def __init__(self, context: "Context", native: Any = None) -> None:
        context.check()
        self.context = context
        library = _capi.library()
        if native is None:
            again = context.reusable_stream()
            # The handle, the objects to keep until the stream has passed them, and True if the handle can be reused.
            self._record: Any = again or (out_handle(library.iris_stream_create, context.handle), [], True)
        else:
            if isinstance(native, Stream):
                raise InvalidArgumentError("a stream of Iris is used as it is: it needs no other one around it")
            platforms = ctypes.c_void_p(_foreign.native_stream(context, native))
            self._record = (out_handle(library.iris_stream_wrap, context.handle, platforms), [], False)
        self._handle: int = self._record[0]
        self._pending: List[Any] = self._record[1]
        weakref.finalize(self, context.dropped_streams.append, self._record).atexit = False
        context.streams.add(self)

    @property
    def native(self) -> int:
        """The platform's stream; 0 is its default one."""
        return self.native_and_device()[0]

    def native_and_device(self) -> Tuple[int, int]:
        """The platform's stream, and the number of its device in this process."""
        native, device = ctypes.c_void_p(), ctypes.c_int32()
        _capi.library().iris_stream_native(self.handle, ctypes.byref(native), ctypes.byref(device))
        return native.value or 0, device.value

    def keep(self, *objects: Any) -> None:
        """Keeps objects until synchronize(), or until the stream is found to be idle."""
        if len(self._pending) >= _PENDING_MAX and not self.context.capturing and self.idle():
            self._pending.clear()
        self._pending.extend(objects)

    def synchronize(self) -> None:
        """Waits for all earlier work. Raises its first error, once."""
        count = len(self._pending)
        _capi.library().iris_stream_synchronize(self.handle)
        del self._pending[:count]

    def idle(self) -> bool:
        """Returns True if the stream has no work left."""
        return bool(_capi.out(ctypes.c_int32, _capi.library().iris_stream_idle, self.handle).value)

    def wait(self, event: "Event") -> None:
        """Makes later work on the stream wait for the event's last record."""
        _capi.library().iris_event_wait(self.handle, event.handle)

    def record(self, event: Optional["Event"] = None) -> "Event":
        """Records an event, which happens after all earlier work of the stream, and returns it."""
        event = event or Event(self.context)
        event.record(self)
        return event

    def capture(self) -> "Graph":
        """Records work put on the stream in a `with stream.capture() as graph:` instead of running it.
        graph.launch(stream) runs it afterwards, any number of times."""
        return Graph(self)


class Event(_Made):
    """A point on a stream."""

    def __init__(self, context: "Context") -> None:
        context.check()
        self.context = context
        dropped = context.dropped_events
        self._handle = dropped.popleft() if dropped else out_handle(_capi.library().iris_event_create, context.handle)
        weakref.finalize(self, context.dropped_events.append, self._handle).atexit = False

    def record(self, stream: Stream) -> None:
        """Records the event: it happens after all earlier work of the stream."""
        _capi.library().iris_event_record(self.handle, stream.handle)

    def elapsed(self, later: "Event") -> float:
        """Returns the seconds from this event to a later one. Both must have happened."""
        return _capi.out(ctypes.c_uint64, _capi.library().iris_event_elapsed, self.handle, later.handle).value / 1e9


class Graph:
    """Work that was recorded on a stream, to be launched as one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._handle: Optional[int] = None
        self._keep: List[Any] = []

    def __enter__(self) -> "Graph":
        if self._handle is not None:
            raise FailedPreconditionError("this graph is recorded already: make another one with stream.capture()")
        _capi.library().iris_capture_begin(self._stream.handle)
        self._stream.context.capturing += 1
        return self

    def __exit__(self, kind: Any, *unused: Any) -> None:
        self._stream.context.capturing -= 1
        self._keep = list(self._stream._pending)  # the recorded work's memory must exist at each launch
        self._stream._pending.clear()
        try:
            self._handle = out_handle(_capi.library().iris_capture_end, self._stream.handle)
        except Exception:
            if kind is None:
                raise

    def launch(self, stream: Optional[Stream] = None) -> None:
        """Puts the recorded work on a stream, by default on the one on which it was recorded."""
        if self._handle is None:
            raise FailedPreconditionError("nothing was recorded: this graph is empty, or it was closed")
        _capi.library().iris_graph_launch(self._handle, (stream or self._stream).handle)

    def close(self) -> None:
        """Destroys the graph. Synchronize the streams on which it was launched first."""
        if self._handle is not None and not self._stream.context.closed:
            _capi.library().iris_graph_destroy(self._handle)
        self._handle = None
        self._keep = []
