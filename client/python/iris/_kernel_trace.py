"""Events that kernels of Triton record by themselves: the host's half, the class of `iris_ctx.tracing`.

    ctx.tracing.enable(max_events=100_000)
    kernel[grid](ctx.get_device_context(), ...)   # DeviceContext.initialize(..., tracing=True); _instruments.py
    ctx.tracing.export("trace.json", merge=True)

Iris's own trace (`iris.trace`) has the work of Iris's kernels and calls; this one has what a program's kernels record.
Not thread-safe.

The buffer is 64-bit words: those of event i begin at word 8 + 8 * i, and the first is the number of events, which
counts those that found no room, too. An event has three words, and then ten of 32 bits: see FIELDS.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import numpy

from iris import _foreign, _platform
from iris.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from iris.reference import Iris

# The numbers of the reference, so that kernels may give them as numbers.
EVENTS: Dict[str, int] = {name: number for number, name in enumerate((
    "load", "store", "get", "put", "copy", "atomic_add", "atomic_sub", "atomic_cas", "atomic_xchg", "atomic_xor",
    "atomic_and", "atomic_or", "atomic_min", "atomic_max"))}
EVENTS.update(fetch=1024, compute=2048, reduce=2049, wait=3072, barrier=3073)
EVENT_NAMES: Dict[int, str] = {number: name for name, number in EVENTS.items()}

FIELDS = ("timestamp", "duration_cycles", "address")  # duration_cycles is the time of the end, or 0
NARROW_FIELDS = ("event_id", "pid", "pid_m", "pid_n", "cur_rank", "target_rank", "xcc_id", "cu_id", "op_index",
                 "payload_size")
_WORDS = 8


class Tracing:
    """Events of the program's kernels on this rank."""

    def __init__(self, iris_instance: "Iris") -> None:
        self.iris = iris_instance
        self.enabled = False
        self.max_events = 0
        self.trace_buffers: Dict[str, Any] = {}
        """The fields of all events, as tensors on the device."""
        self.trace_counter: Any = None
        """The number of events, those without room included, as a tensor with one element."""
        self.words: Tuple[int, int, int] = (0, 0, 0)
        """What get_device_context() has for kernels: max_events, and the addresses of the counter and the events."""

    @property
    def op_index_counter(self) -> Any:
        """The same as trace_counter: an event's index is its place in the buffer."""
        return self.trace_counter

    def enable(self, max_events: int = 1_000_000) -> None:
        """Makes a buffer of 64 bytes for each event. Kernels must get the tensor that get_device_context() returns from
        now on. A second call makes a new buffer."""
        if max_events < 1:
            raise InvalidArgumentError(f"max_events={max_events}: a trace has room for 1 event or more")
        torch = _foreign.importable_torch()
        if torch is None:
            raise FailedPreconditionError("torch, whose tensors have the events, is not installed: install it")
        self._buffer = torch.zeros((max_events + 1) * _WORDS, dtype=torch.int64, device=self.iris.device)
        events = self._buffer[_WORDS:]
        halves = events.view(torch.int32)[2 * len(FIELDS):]
        self.trace_buffers = {name: events[at::_WORDS] for at, name in enumerate(FIELDS)}
        self.trace_buffers.update((name, halves[at::2 * _WORDS]) for at, name in enumerate(NARROW_FIELDS))
        self.trace_counter = self._buffer[:1]
        self.max_events, self.enabled = max_events, True
        self.words = max_events, self._buffer.data_ptr(), events.data_ptr()
        vars(self.iris).pop("_device_context", None)  # so that get_device_context() makes a new one
        self.iris.info(f"kernels may record {max_events} events")

    def _is_on(self) -> bool:
        if not self.enabled:
            self.iris.warning("no events are recorded: call tracing.enable() first")
        return self.enabled

    def reset(self) -> None:
        """Drops all events. Logs a warning if enable() was not called."""
        if self._is_on():
            self.trace_counter.zero_()

    def export(self, filename: str = "trace.json", merge: bool = False) -> Dict[str, Any]:
        """Writes this rank's events to a file with `_rankR` before ".json", and returns what it has written.

        With merge=True, which is collective, rank 0 also writes the events of all ranks into the file `filename`, with
        times from the first of them on, and returns those; other ranks return {}. Times are ticks of the device's
        clock, of which the metadata has the rate. Logs a warning and returns {} if enable() was not called."""
        if not self._is_on():
            return {}
        context, rank = self.iris.context, self.iris.cur_rank
        context.quiesce()
        n_events = min(int(self.trace_counter.item()), self.max_events)
        events = self._events(n_events)
        rate = _platform.get_wall_clock_rate(context.device_index)
        shared = {"schema_version": "1.2", "time_unit": f"ticks of the device's clock ({rate} kHz)",
                  "world_size": self.iris.num_ranks, **_platform.describe(context)}
        own = _write(filename.replace(".json", f"_rank{rank}.json"), events,
                     {"num_events": n_events, "rank": rank, **shared})
        if not merge:
            return own
        merged = [event for part in context.all_gather_object(events) for event in part]
        if rank:
            return {}
        origin = min((event["ts"] for event in merged if event["ph"] != "M"), default=0)
        for event in merged:
            if event["ph"] != "M":
                event["ts"] -= origin
        return _write(filename, merged, {"total_events": len(merged), "max_events": self.max_events,
                                         "timestamp_offset": origin, "aligned": "to the first event of all ranks",
                                         **shared})

    def _events(self, n_events: int) -> List[Dict[str, Any]]:
        words = self._buffer[_WORDS:(n_events + 1) * _WORDS].cpu().numpy().reshape(n_events, _WORDS)
        wide = words[:, :len(FIELDS)].tolist()
        narrow = words.view(numpy.int32)[:, 2 * len(FIELDS):].tolist()
        return [_event(*first, *second) for first, second in zip(wide, narrow)] + [
            {"name": "process_name", "ph": "M", "pid": self.iris.cur_rank,
             "args": {"name": f"Rank {self.iris.cur_rank}"}}]


def _event(begin: int, end: int, address: int, number: int, pid: int, pid_m: int, pid_n: int, rank: int, target: int,
           xcc: int, cu: int, index: int, payload: int) -> Dict[str, Any]:
    length = {"ph": "X", "dur": end - begin} if end > begin else {"ph": "i", "s": "t"}
    return {"name": EVENT_NAMES.get(number, f"unknown_{number}"), "cat": "iris", "ts": begin, "pid": rank,
            "tid": f"XCC{xcc}_CU{cu}", **length,
            "args": {"program_id": pid, "pid_m": pid_m, "pid_n": pid_n, "target_rank": target, "address": hex(address),
                     "xcc_id": xcc, "cu_id": cu, "op_index": index, "payload_size": payload}}


def _write(path: str, events: List[Dict[str, Any]], metadata: Dict[str, Any]) -> Dict[str, Any]:
    data = {"traceEvents": events, "displayTimeUnit": "ns", "metadata": metadata}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
    return data
