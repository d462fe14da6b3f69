"""Traces of this rank's kernels and calls, as files that Perfetto opens (docs/tracing.md):

    with iris.trace("step.%r.json"):           # "%r" becomes the rank
        with iris.trace.span("forward"):
            y = model(x)
        context.all_reduce(y)
    iris.trace.merge(["step.0.json", "step.1.json"], "step.json")   # once all ranks have written theirs

Not collective: each rank starts, stops and writes its own trace. Thread-safe as the C API is.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Union

from iris import _capi
from iris.context import current_context, latest_context, nanoseconds
from iris.errors import InvalidArgumentError, IrisError

if TYPE_CHECKING:
    from iris.context import Context

Path = Union[str, "os.PathLike[str]"]


def _bytes(path: Path) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise InvalidArgumentError(f"a path must not have a zero byte in it: {path!r}")
    return encoded


class Span:
    """The result of Trace.span(). It may be used again, but not nested in itself."""

    def __init__(self, name: str, context: "Optional[Context]") -> None:
        self._name = _capi.text(name) or b""
        if not 0 < len(self._name) <= 256:
            raise InvalidArgumentError(f"the name of a span has {len(self._name)} bytes, and must have 1 to 256")
        self._context = context
        self._begin = ctypes.c_uint64(0)

    def __enter__(self) -> "Span":
        context = self._context
        if context is None or context.closed:
            context = current_context()
        self._used = None
        if context is not None and not context.closed:
            _capi.library().iris_trace_span_begin(context.handle, ctypes.byref(self._begin))
            self._used = context
        return self

    def __exit__(self, *what: Any) -> None:
        # A context that was closed inside has ended the span.
        if self._begin.value and self._used is not None and not self._used.closed:
            _capi.library().iris_trace_span_end(self._used.handle, self._begin, self._name)
        self._begin.value = 0


class Trace:
    """The class of `iris.trace`. All functions use the context made last, or the given one. They raise
    FailedPreconditionError if there is none."""

    @contextmanager
    def __call__(self, path: Path, *, context: "Optional[Context]" = None) -> Iterator[None]:
        """Traces a `with` block into a file, also if an exception ends it. "%r" in the name becomes the rank."""
        context = latest_context(context, "iris.trace")
        self.start(context=context)
        failed = True
        try:
            yield
            failed = False
        finally:
            try:
                if not context.closed:
                    self.stop(context=context)
                    self.save(path, context=context)
            except IrisError:
                if not failed:  # the program's own error comes first
                    raise

    def start(self, *, seconds: Optional[float] = None, context: "Optional[Context]" = None) -> None:
        """Clears the trace and switches it on, for `seconds`, or until stop(). Raises FailedPreconditionError if the
        job has no room for a trace (IRIS_TRACE_EVENTS), or if a trace is on already."""
        _capi.library().iris_trace_start(latest_context(context, "iris.trace").handle, nanoseconds(seconds))

    def stop(self, *, context: "Optional[Context]" = None) -> None:
        """Waits for all streams that the context knows, and switches the trace off. Its events stay until the next
        start(). Raises FailedPreconditionError if this rank has not started the trace."""
        context = latest_context(context, "iris.trace")
        context.quiesce()
        _capi.library().iris_trace_stop(context.handle)

    def save(self, path: Path, *, context: "Optional[Context]" = None) -> None:
        """Writes the events since start(), until stop() or now. "%r" in the name becomes the rank.
        Raises FailedPreconditionError if there was no start()."""
        _capi.library().iris_trace_write(latest_context(context, "iris.trace").handle, _bytes(path))

    def span(self, name: str, *, context: "Optional[Context]" = None) -> Span:
        """Records a `with` block as a box of this name, at most 256 bytes, in the trace. It costs almost nothing while
        the trace is off or there is no context."""
        return Span(name, context)

    def merge(self, paths: Sequence[Path], out: Path) -> None:
        """Merges files of several ranks of one job on one clock. Needs no context. InvalidArgumentError names the file
        that does not belong to the others, or that is no trace."""
        encoded = [_bytes(path) for path in paths]
        pointers = (ctypes.POINTER(ctypes.c_char) * max(len(encoded), 1))(
            *(ctypes.cast(ctypes.c_char_p(path), ctypes.POINTER(ctypes.c_char)) for path in encoded))
        _capi.library().iris_trace_merge(pointers, len(encoded), _bytes(out))


trace = Trace()
