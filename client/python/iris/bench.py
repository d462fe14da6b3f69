"""do_bench measures how long a function takes on the device, as the reference does, and over all ranks. The module also
has the reference's benchmarks, which _benchmarks.py describes.

Each repetition: barrier, preamble, a write over memory that is larger than the caches, barrier, then the function
between two events on the stream of calls without a stream (torch's current one where torch uses the GPU).
"""

from __future__ import annotations

import ctypes
import statistics
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Union

import numpy

from iris import _capi
from iris.errors import InvalidArgumentError
from iris.stream import out_handle

if TYPE_CHECKING:
    from iris.context import Context
    from iris.team import Team

# Larger than the caches of today's GPUs. On emulated devices it need only be larger than the private caches of a core.
FLUSHED_BYTES = 256 << 20
FLUSHED_BYTES_ON_HOST = 8 << 20

_MODES: Dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.mean, "median": statistics.median, "min": min, "max": max}

Times = Union[float, List[float]]


def do_bench(fn: Callable[[], Any], barrier_fn: Callable[[], Any] = lambda: None,
             preamble_fn: Callable[[], Any] = lambda: None, n_warmup: int = 25, n_repeat: int = 100,
             quantiles: Optional[Sequence[float]] = None, return_mode: str = "mean", *,
             context: "Optional[Context]" = None, over_ranks: bool = False, team: "Optional[Team]" = None,
             flushed_bytes: Optional[int] = None) -> Times:
    """Returns how many milliseconds fn() takes on the device.

    Args:
      fn: puts its work on the current stream, or works on the host.
      barrier_fn: called between the repetitions; `context.barrier` if other ranks take part.
      preamble_fn: called before each repetition, and not measured.
      n_warmup, n_repeat: repetitions that do not count, and that do.
      quantiles: numbers from 0 to 1. Then the result is one time for each, or a number for a single one.
      return_mode: else "mean", "median", "min", "max", or "all" for the times of all repetitions.
      context: the context whose device is measured; by default the context that was made last.
      over_ranks: if true, all ranks of the team (the world) return the largest of the ranks' results, number by number.
        Collective over the team. Otherwise the result is this rank's own, as in the reference.
      flushed_bytes: how much memory is written between repetitions; 0: none.

    Collective if over_ranks is true or barrier_fn is collective. Raises FailedPreconditionError if there is no context.
    """
    from iris.context import latest_context
    if return_mode != "all" and return_mode not in _MODES:
        raise InvalidArgumentError(f"return_mode={return_mode!r}: one of all, {', '.join(_MODES)} is wanted")
    if n_repeat < 1 or n_warmup < 0:
        raise InvalidArgumentError(f"{n_repeat} repetitions after {n_warmup} for warming up: at least 1 after 0 or "
                                   "more are wanted")
    if any(not 0 <= q <= 1 for q in quantiles or ()):
        raise InvalidArgumentError(f"quantiles={quantiles}: numbers from 0 to 1 are wanted")
    context, library = latest_context(context, "do_bench()"), _capi.library()
    if flushed_bytes is None:
        flushed_bytes = FLUSHED_BYTES_ON_HOST if context.on_host else FLUSHED_BYTES
    barrier_fn()
    preamble_fn()
    fn()  # compiles kernels
    barrier_fn()
    cache = out_handle(library.iris_malloc_device, context.handle, flushed_bytes) if flushed_bytes else 0
    try:
        events = [(context.event(), context.event()) for _ in range(n_repeat)]
        for i in range(-n_warmup, n_repeat):
            barrier_fn()
            preamble_fn()
            stream, _ = context.stream_for(None)
            if cache:
                library.iris_fill_async(cache, i & 0xff, flushed_bytes, stream.handle)
            barrier_fn()
            if i >= 0:
                events[i][0].record(stream)
            fn()
            if i >= 0:
                events[i][1].record(stream)
        barrier_fn()
        context.quiesce()
    finally:
        if cache:
            library.iris_free_device(context.handle, ctypes.c_void_p(cache))
    times = [first.elapsed(last) * 1e3 for first, last in events]
    if quantiles is not None:
        found = numpy.quantile(times, quantiles).tolist()
        result: Times = found[0] if len(found) == 1 else found
    else:
        result = times if return_mode == "all" else _MODES[return_mode](times)
    if not over_ranks:
        return result
    return largest(context.all_gather_object(result, team=team))


def largest(results: Sequence[Any]) -> Any:
    """Returns the largest of the ranks' results of do_bench, number by number if they are lists."""
    return [max(column) for column in zip(*results)] if isinstance(results[0], list) else max(results)
