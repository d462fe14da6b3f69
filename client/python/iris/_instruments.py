"""Functions with which kernels of Triton look at the device and record events: read_realtime, get_cu_id, get_xcc_id,
get_se_id, wait_cnt, TraceEvent, and DeviceTracing, the attribute `tracing` of DeviceContext.

The host's half of the events is _kernel_trace.py, which describes their layout. Names and arguments are those of the
reference system.
"""

import time
from typing import Any

import triton
import triton.language as tl
from triton.language import core as _core

from iris import _kernel_trace, _platform
from iris._triton import VALUE, _COMPILED, _aggregate_or_class, _constructor, _value, translate, wait_until

EVENTS = tuple(_kernel_trace.EVENTS.items())


def _instruction(name: str, dtype: Any, interpreted: Any, doc: str) -> Any:
    """Makes a function for kernels of an instruction of each vendor's GPU. It gives 0 where the GPU has none."""
    if _COMPILED:

        @_core.builtin
        def function(_semantic: Any = None) -> Any:
            options = _semantic.builder.options
            assembly, constraint = _platform.instruction(name, options.backend_name, str(options.arch))
            if not assembly:
                return _semantic.scalar_constant(0, dtype)
            return _core.inline_asm_elementwise(assembly, constraint, [], dtype=dtype, is_pure=False, pack=1,
                                                _semantic=_semantic)
    else:

        def function() -> Any:
            return tl.full((), interpreted(), dtype)

    function.__name__, function.__doc__ = name, doc
    return function


read_realtime = _instruction("read_realtime", tl.int64, time.monotonic_ns, """The device's clock, which runs at a
    constant rate, the host's get_wall_clock_rate(). Clocks of different devices may differ.""")
get_cu_id = _instruction("get_cu_id", tl.int32, lambda: 0, "The number of the compute unit of the calling program.")
get_xcc_id = _instruction("get_xcc_id", tl.int32, lambda: 0, """The number of the die on which the calling program runs,
    of a GPU with several; 0 on others.""")
get_se_id = _instruction("get_se_id", tl.int32, lambda: 0, """The number of the shader engine of the calling program;
    0 on GPUs without them.""")
wait_cnt = _instruction("wait_cnt", tl.int32, lambda: 0, "Waits until the caller's loads and stores are done.")


@_aggregate_or_class
class TraceEvent:
    """The types of events: `TraceEvent().put`, in kernels and on the host, is the number of the type."""

    __annotations__ = dict.fromkeys(_kernel_trace.EVENTS, tl.constexpr)

    @_constructor
    def __init__(self) -> None:
        for name, number in EVENTS:
            setattr(self, name, tl.constexpr(number))


@_aggregate_or_class
class DeviceTracing:
    """Records events of a kernel in the buffer that the host's `tracing.enable()` has made. It does nothing if
    DeviceContext.initialize() was called without tracing=True, or the host has not enabled tracing. Events that find
    the buffer full are lost."""

    enabled: tl.constexpr
    rank: VALUE
    max_events: tl.tensor
    counter: tl.tensor
    records: tl.tensor

    @_constructor
    def __init__(self, enabled, rank, max_events, counter, records):  # type: ignore[no-untyped-def]
        self.enabled = _value(enabled)
        self.rank = _value(rank)
        self.max_events = max_events
        self.counter = counter
        self.records = records

    @triton.jit
    def record_event_start(self, event_id: tl.constexpr, target_rank, address, pid_m, pid_n, mask=None):
        """Records that an operation begins, and returns a handle for record_event_end().

        `address` is a pointer or a block of pointers, of which the event keeps the smallest. The event's payload is as
        many elements as `mask` has true values, or 0 bytes without a mask."""
        if self.enabled:
            ready = self.max_events > 0
            index = tl.atomic_add(self.counter, 1, mask=ready, sem="relaxed", scope="gpu")
            handle = tl.where(ready, index, self.max_events)
            keep = handle < self.max_events
            payload = tl.cast(0, tl.int32)
            if mask is not None:
                n_elements = mask.to(tl.int32)
                if n_elements.type.is_block():
                    n_elements = tl.sum(n_elements)
                payload = n_elements * (address.dtype.element_ty.primitive_bitwidth // 8)
            first = address.to(tl.int64)
            if first.type.is_block():
                first = tl.min(first)
            wide = self.records + handle * 8
            narrow = wide.to(tl.pointer_type(tl.int32)) + 6
            tl.store(wide + 1, 0, mask=keep)
            tl.store(wide + 2, first, mask=keep)
            tl.store(narrow, event_id, mask=keep)
            tl.store(narrow + 1, tl.program_id(0), mask=keep)
            tl.store(narrow + 2, pid_m, mask=keep)
            tl.store(narrow + 3, pid_n, mask=keep)
            tl.store(narrow + 4, self.rank, mask=keep)
            tl.store(narrow + 5, target_rank, mask=keep)
            tl.store(narrow + 6, get_xcc_id(), mask=keep)
            tl.store(narrow + 7, get_cu_id(), mask=keep)
            tl.store(narrow + 8, index.to(tl.int32), mask=keep)
            tl.store(narrow + 9, payload, mask=keep)
            tl.store(wide, read_realtime(), mask=keep)
        else:
            handle = tl.cast(0, tl.int64)
        return handle

    @triton.jit
    def record_event_end(self, handle):
        """Records that the operation of a handle of record_event_start() ends."""
        if self.enabled:
            tl.store(self.records + handle * 8 + 1, read_realtime(), mask=handle < self.max_events)


@triton.jit
def device_tracing(words, rank, enabled: tl.constexpr):
    """Makes a DeviceTracing of the words that follow the heap bases in the tensor of get_device_context()."""
    wide: tl.constexpr = tl.pointer_type(tl.int64)
    if enabled:
        max_events = tl.load(words).to(tl.int64)
        counter = tl.load(words + 1).to(wide)
        records = tl.load(words + 2).to(wide)
    else:  # never read
        max_events = tl.cast(0, tl.int64)
        counter = words.to(wide)
        records = words.to(wide)
    return DeviceTracing(enabled, rank, max_events, counter, records)


@triton.jit
def group_barrier(flags, heap_bases, rank, n_ranks, first, step):
    """Waits for the ranks `first`, `first + step`, ... of a group, which all launch this kernel with one program. Each
    rank counts its launches in its own word of `flags`, and waits for the words of the others. With TRITON_DEBUG=1, the
    kernel fails if a rank does not come; otherwise it ends after some minutes."""
    target = tl.atomic_add(flags + rank, 1, sem="release", scope="sys") + 1
    for place in range(n_ranks):
        peer = first + place * step
        came = wait_until(translate(flags + peer, rank, peer, heap_bases), target, "ge", 1 << 28)
        tl.device_assert(came, "a rank did not come to a barrier")
