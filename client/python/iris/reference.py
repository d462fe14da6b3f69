"""`iris.iris(heap_size)`: the host API of the reference system's Python package, name for name.

A program that was written for that package keeps its import line: tensors are torch's, made on the symmetric heap of a
Context, which is the attribute `context`. `_heap.py` describes how dropped tensors are freed.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

from iris import _foreign, _platform, _ref_heap, bench, logging
from iris._ccl import Ccl
from iris._fused import OpsNamespace
from iris._groups import Groups
from iris._kernel_trace import Tracing
from iris.context import Context
from iris.errors import FailedPreconditionError, InvalidArgumentError
from iris.team import Team


def _log(level: int) -> Any:

    def log(self: "Iris", message: Any) -> None:
        """Logs `[iris] [rank/n] message` if the level of IRIS_LOG_LEVEL and set_logger_level includes it."""
        self.context.log(level, message)

    return log


class Iris:
    """A rank with its symmetric heap, with the API of the reference. See iris()."""

    CCL = Ccl

    def __init__(self, heap_size: int = 1 << 30, allocator_type: str = "torch", **options: Any) -> None:
        without_meaning = [name for name in ("copy_engine", "engines") if options.pop(name, None)]
        allocator_type = _ref_heap.allocator_of(allocator_type)
        place = {} if {"rank", "n_ranks", "job"} & set(options) else _foreign.torch_world()
        self.context = Context(heap_size, **{**place, **options})
        self.cur_rank: int = self.context.rank
        self.num_ranks: int = self.context.n_ranks
        self.gpu_id: int = self.context.device_index
        self.heap_size = heap_size
        self.device: str = self.context.device
        self.heap = _ref_heap.SymmetricHeap.of(self.context, heap_size, allocator_type)
        """The reference's object for the heap."""
        self.heap_bases = self.heap.heap_bases
        """The address of each rank's heap in this process, as a tensor for kernels. The addresses do not change."""
        self.groups = Groups(self.context)
        self.ccl = Ccl(self)
        self.ops = OpsNamespace(self)
        self.tracing = Tracing(self)
        for name in without_meaning:
            self.debug(f"{name} has no meaning here: put and get of the context use the copy engines")
        _foreign.use_device(self.context)
        _platform.write_heap_bases(self.context)
        for rank, base in enumerate(self.context.heap_bases):
            self.debug(f"rank {rank}: heap at {base:#x}")

    def get_rank(self) -> int:
        """Returns the number of this rank."""
        return self.cur_rank

    def get_num_ranks(self) -> int:
        """Returns the number of ranks of the job."""
        return self.num_ranks

    def get_device(self) -> Any:
        """Returns the rank's device, as a torch.device if torch is installed."""
        return self.heap.get_device()

    def get_device_id(self) -> int:
        """Returns the number of the rank's device in this process."""
        return self.gpu_id

    def get_cu_count(self) -> int:
        """Returns the number of compute units of the rank's device."""
        return _platform.get_cu_count(self.gpu_id)

    @functools.cached_property
    def _device_context(self) -> Any:
        words = (self.cur_rank, self.num_ranks) + self.context.heap_bases + self.tracing.words
        return _foreign.words_on_device(self.context, words, signed=True)

    def get_heap_bases(self) -> Any:
        """Returns heap_bases."""
        return self.heap_bases

    def get_device_context(self) -> Any:
        """Returns the tensor for DeviceContext.initialize() in a kernel, of int64: this rank, the number of ranks, the
        address of each rank's heap, and tracing.words, which tracing.enable() changes: it makes another tensor."""
        return self._device_context

    debug, info, warning, error = map(_log, (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR))

    def use_group(self, group: Any) -> Team:
        """Makes the team of a process group of torch, or of a list of ranks. Collective over all ranks, those outside
        the group included, which pass the list. Later calls with this group are faster than without a team, and
        collectives of `context` take it."""
        return self.groups.use(group)

    def barrier(self, stream: Any = None, group: Any = None) -> None:
        """Waits for the stream, or the device, then for all ranks of the group, which may be one of torch."""
        self.groups.of(group).barrier(stream)

    def device_barrier(self, group: Any = None, stream: Any = None) -> None:
        """Puts a barrier on a stream. The call may be captured in a graph, after a first one. With a process group of
        which use_group() has made no team, it waits for the stream, and cannot be captured."""
        self.groups.of(group).device_barrier(stream)

    def broadcast(self, value: Any, src: int = 0, *, source_rank: Optional[int] = None) -> Any:
        """Returns the value of rank `src`, which older programs call source_rank, on all ranks. Tensors, arrays and
        lists of numbers become arrays of numpy; other values, which may be all that pickle takes, stay as they are.
        Collective over all ranks."""
        src = src if source_rank is None else source_rank
        return self.context.broadcast_object(_foreign.as_numpy(value) if src == self.cur_rank else None, src)

    def do_bench(self, fn: Any, preamble_fn: Any = lambda: None, group: Any = None, **options: Any) -> Any:
        """Calls iris.do_bench with barriers of the group's ranks, and returns the largest of their results on all of
        them. Collective over the group."""
        of = self.groups.of(group)
        if of.team is not None:
            return self.context.do_bench(fn, team=of.team, preamble_fn=preamble_fn, **options)
        options.setdefault("barrier_fn", of.barrier)
        own = bench.do_bench(fn, preamble_fn=preamble_fn, context=self.context, **options)
        return bench.largest(_foreign.gathered(of.native, own))

    def is_symmetric(self, tensor: Any) -> bool:
        """Returns True if the tensor's memory lies in the symmetric heap, or if it is empty."""
        return self.heap.is_symmetric(tensor)

    def as_symmetric(self, external_tensor: Any) -> Any:
        """Returns a symmetric tensor with the values of external_tensor: a copy, or with allocator_type="vmem" one that
        shares its memory. Collective. See SymmetricHeap.as_symmetric."""
        return self.heap.as_symmetric(external_tensor)

    def _make(self, factory: str, *arguments: Any, **options: Any) -> Any:
        if _foreign.importable_torch() is None:
            raise FailedPreconditionError(f"{factory}: the tensors of iris.iris() are torch's, which is not installed: "
                                          "install it, or use iris.Context")
        from iris import _ref_tensors  # imports torch
        return getattr(_ref_tensors, factory)(self.heap, self.get_device(), *arguments, **options)

    # The factories are those of _ref_tensors. `layout` may only be torch.strided, which None means. `pin_memory` has no
    # meaning in the memory of a device.

    def zeros(self, *size: Any, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
              requires_grad: bool = False) -> Any:
        """As torch.zeros, on the symmetric heap. Collective over all ranks, as all factories, unless `out` is given."""
        return self._make("zeros", size, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def ones(self, *size: Any, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
             requires_grad: bool = False) -> Any:
        """As torch.ones, on the symmetric heap."""
        return self._make("ones", size, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def full(self, size: Any, fill_value: Any, *, out: Any = None, dtype: Any = None, layout: Any = None,
             device: Any = None, requires_grad: bool = False) -> Any:
        """As torch.full, on the symmetric heap. Bools give int64."""
        return self._make("full", (size,), fill_value, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def empty(self, *size: Any, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
              requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None) -> Any:
        """As torch.empty, on the symmetric heap."""
        return self._make("empty", size, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad, memory_format=memory_format)

    def zeros_like(self, input: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                   requires_grad: bool = False, memory_format: Any = None) -> Any:
        """As torch.zeros_like, on the symmetric heap. Of strides only channels_last is preserved."""
        options = {} if memory_format is None else {"memory_format": memory_format}
        return self._make("zeros_like", input, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad,
                          **options)

    def arange(self, start: Any = 0, end: Any = None, step: Any = 1, *, out: Any = None, dtype: Any = None,
               layout: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
        """As torch.arange, on the symmetric heap. A range without an element is an error."""
        start, end = (0, start) if end is None else (start, end)
        return self._make("arange", start, end, step, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def linspace(self, start: Any, end: Any, steps: Any, out: Any = None, dtype: Any = None, layout: Any = None,
                 device: Any = None, requires_grad: bool = False) -> Any:
        """As torch.linspace, on the symmetric heap."""
        return self._make("linspace", start, end, steps, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def rand(self, *size: Any, generator: Any = None, out: Any = None, dtype: Any = None, layout: Any = None,
             device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Any:
        """As torch.rand, on the symmetric heap, with the numbers of torch's generator of the device."""
        return self._make("rand", size, generator=generator, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def randn(self, *size: Any, generator: Any = None, out: Any = None, dtype: Any = None, layout: Any = None,
              device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Any:
        """As torch.randn, on the symmetric heap."""
        return self._make("randn", size, generator=generator, out=out, dtype=dtype, layout=layout, device=device,
                          requires_grad=requires_grad)

    def uniform(self, size: Any, low: float = 0.0, high: float = 1.0, dtype: Any = None) -> Any:
        """Draws from the uniform distribution over [low, high), of float32 without a dtype."""
        return self._make("uniform", (size,), low, high, **({} if dtype is None else {"dtype": dtype}))

    def randint(self, *args: Any, generator: Any = None, out: Any = None, dtype: Any = None, layout: Any = None,
                device: Any = None, requires_grad: bool = False) -> Any:
        """As torch.randint, on the symmetric heap: randint(high, size) or randint(low, high, size)."""
        if len(args) not in (2, 3):
            raise InvalidArgumentError(f"randint: (high, size) or (low, high, size) is wanted, and not {len(args)} "
                                       "arguments")
        low, high, size = args if len(args) == 3 else (0, *args)
        return self._make("randint", low, high, (size,), generator=generator, out=out, dtype=dtype, layout=layout,
                          device=device, requires_grad=requires_grad)

    def manual_seed(self, seed: int) -> None:
        """Seeds torch's generators, from which the random factories draw: see torch.manual_seed."""
        torch = _foreign.importable_torch()
        if torch is not None:
            torch.manual_seed(seed)

    def close(self) -> None:
        """See Context.close."""
        self.context.close()

    def __enter__(self) -> "Iris":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()


def iris(heap_size: int = 1 << 30, allocator_type: str = "torch", **options: Any) -> Iris:
    """Joins the job and makes the symmetric heap, as the reference's function of this name. Collective over all ranks.

    Rank and size are those of torch.distributed, if it has a default group; else the launcher's. The rank's GPU becomes
    torch's current one. The allocator_type says what as_symmetric() does: see SymmetricHeap.as_symmetric; with "vmem",
    torch takes memory that other ranks can map from now on. IRIS_ALLOCATOR overrides it. Options are those of Context;
    the reference's copy_engine and engines have no effect."""
    return Iris(heap_size, allocator_type, **options)
