"""`iris.iris(heap_size)`: the host API of the reference system's Python package, name for name.

A program that was written for that package keeps its import line: tensors are torch's if torch is installed, made on
the symmetric heap of a Context, which is the attribute `context`. `_heap.py` describes how dropped tensors are freed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, Tuple

from iris import _foreign, logging, ops
from iris.context import Context
from iris.errors import FailedPreconditionError, InvalidArgumentError
from iris.team import Team

if TYPE_CHECKING:
    from iris.tensor import Tensor


def _log(level: int) -> Any:

    def log(self: "Iris", message: Any) -> None:
        """Logs `[iris] [rank/n] message` if the level of IRIS_LOG_LEVEL and set_logger_level includes it."""
        self.context.log(level, message)

    return log


def _factory(name: str) -> Any:

    def make(self: "Iris", *arguments: Any, layout: Any = None, requires_grad: bool = False, **options: Any) -> Any:
        if layout is not None and str(layout) != "torch.strided":
            raise InvalidArgumentError(f"layout={layout}: tensors of the symmetric heap are strided")
        options.pop("memory_format", None)  # tensors of the heap are contiguous
        return self._give(getattr(self.context, name)(*arguments, **options), requires_grad)

    make.__name__ = name
    make.__doc__ = f"""As torch.{name}, on the symmetric heap. Arguments are those of Context.{name}, `layout` and
    `requires_grad`. The result is torch's where torch is installed."""
    return make


class Iris:
    """A rank with its symmetric heap, with the API of the reference. See iris()."""

    def __init__(self, heap_size: int = 1 << 30, **options: Any) -> None:
        without_meaning = [name for name in ("allocator_type", "copy_engine") if options.pop(name, None) is not None]
        place = {} if {"rank", "n_ranks", "job"} & set(options) else _foreign.torch_world()
        self.context = Context(heap_size, **{**place, **options})
        self.cur_rank: int = self.context.rank
        self.num_ranks: int = self.context.n_ranks
        self.gpu_id: int = self.context.device_index
        self.heap_size = heap_size
        self.device: str = self.context.device
        self.ccl = Ccl(self)
        self.ops = ops.Ops(self)
        self._teams: Dict[Tuple[int, ...], Team] = {tuple(range(self.num_ranks)): self.context.world}
        for name in without_meaning:
            self.debug(f"{name} has no meaning here: irisd owns the memory, and put and get use the copy engines")
        _foreign.use_device(self.context)
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
        torch = _foreign.importable_torch()
        return self.device if torch is None else torch.device(self.device)

    def get_device_id(self) -> int:
        """Returns the number of the rank's device in this process."""
        return self.gpu_id

    def get_cu_count(self) -> int:
        """Returns the number of compute units of the rank's device."""
        return _foreign.compute_units(self.context)

    @functools.cached_property
    def heap_bases(self) -> Any:
        """The address of each rank's heap in this process, as a tensor for kernels. The addresses do not change."""
        return _foreign.words_on_device(self.context, self.context.heap_bases)

    @functools.cached_property
    def _device_context(self) -> Any:
        return _foreign.words_on_device(self.context, (self.cur_rank, self.num_ranks) + self.context.heap_bases)

    def get_heap_bases(self) -> Any:
        """Returns heap_bases."""
        return self.heap_bases

    def get_device_context(self) -> Any:
        """Returns the tensor for DeviceContext.initialize() in a kernel: this rank, the number of ranks, and then the
        address of each rank's heap, each a word of 64 bits."""
        return self._device_context

    debug, info, warning, error = map(_log, (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR))

    def use_group(self, group: Any) -> Team:
        """Makes the team of a process group of torch. Collective over all ranks. Call it once before calls with
        `group=`, because all ranks take part in making a team. Ranks outside the group pass the list of its ranks."""
        ranks = tuple(map(int, group)) if isinstance(group, (list, tuple, range)) else (
            group.ranks if isinstance(group, Team) else _foreign.ranks_of_group(group))
        if ranks not in self._teams:
            self._teams[ranks] = self.context.team(ranks)
        return self._teams[ranks]

    def team_of(self, group: Any) -> Team:
        """Returns the team that `group` means. Raises FailedPreconditionError if there is none of these ranks yet."""
        if group is None:
            return self.context.world
        if isinstance(group, Team):
            return group
        ranks = _foreign.ranks_of_group(group)
        if ranks not in self._teams:
            raise FailedPreconditionError(f"the group of the ranks {list(ranks)} has no team yet, and making one takes "
                                          "all ranks: call use_group(group) on each of them once, where the group is "
                                          "made")
        return self._teams[ranks]

    def barrier(self, stream: Any = None, group: Any = None) -> None:
        """Waits for the stream, or the device, then for all ranks of the group."""
        self.context.barrier(self.team_of(group), stream=stream)

    def device_barrier(self, group: Any = None, stream: Any = None) -> None:
        """Puts a barrier on a stream. The call may be captured in a graph."""
        self.context.device_barrier(self.team_of(group), stream=stream)

    def broadcast(self, value: Any, source_rank: int = 0) -> Any:
        """Returns the source's value on all ranks: numbers, strings, arrays, torch tensors, all that pickle takes."""
        if _foreign.is_torch_tensor(value):
            value = value.cpu()
        value = self.context.broadcast_object(value, source_rank)
        return value.to(self.device) if _foreign.is_torch_tensor(value) else value

    def do_bench(self, fn: Any, preamble_fn: Any = lambda: None, group: Any = None, **options: Any) -> Any:
        """Calls iris.do_bench with barriers of the group's ranks, and returns the largest of their results on all of
        them. Collective over the group."""
        return self.context.do_bench(fn, team=self.team_of(group), preamble_fn=preamble_fn, **options)

    def is_symmetric(self, tensor: Any) -> bool:
        """Returns True if the tensor's memory lies in the symmetric heap."""
        return self.context.is_symmetric(tensor)

    def as_symmetric(self, external_tensor: Any, *, copy: bool = False) -> Any:
        """Returns a symmetric tensor that shares the memory of external_tensor, or, with copy=True, is a copy on the
        heap. A tensor that is symmetric already is returned as it is. Collective. Raises InvalidArgumentError, with the
        reason, on all ranks if the memory of a rank cannot be shared. See Context.as_symmetric."""
        tensor = self.context.as_symmetric(external_tensor, copy=copy)
        return tensor if tensor is external_tensor else self._give(tensor, False)

    def _give(self, tensor: "Tensor", requires_grad: bool) -> Any:
        torch = _foreign.importable_torch()
        if torch is None:
            if requires_grad:
                raise FailedPreconditionError("requires_grad is torch's, which is not installed")
            return tensor
        given = tensor.torch()
        return given.requires_grad_() if requires_grad else given

    zeros, ones, empty, full = map(_factory, ("zeros", "ones", "empty", "full"))
    zeros_like, ones_like, empty_like = map(_factory, ("zeros_like", "ones_like", "empty_like"))
    arange, linspace = map(_factory, ("arange", "linspace"))
    rand, randn, uniform, randint = map(_factory, ("rand", "randn", "uniform", "randint"))

    def manual_seed(self, seed: int) -> None:
        """Seeds the random factories of this rank. Equal seeds give equal tensors on all ranks."""
        self.context.manual_seed(seed)

    def close(self) -> None:
        """See Context.close."""
        self.context.close()

    def __enter__(self) -> "Iris":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()


class Ccl:
    """The class of `iris_ctx.ccl`: collectives with the arguments of torch and the reference, the output first. They
    run on torch's current stream on GPUs; on emulated devices they wait, unless async_op is true."""

    def __init__(self, owner: Iris) -> None:
        self._context = owner.context
        self._team = owner.team_of

    def all_reduce(self, output_tensor: Any, input_tensor: Any, op: Any = "sum", group: Any = None,
                   async_op: bool = False) -> Any:
        """See Context.all_reduce."""
        return self._context.all_reduce(input_tensor, output_tensor, op, team=self._team(group), async_op=async_op)

    def all_gather(self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        """See Context.all_gather."""
        return self._context.all_gather(input_tensor, output_tensor, team=self._team(group), async_op=async_op)

    def all_to_all(self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        """See Context.all_to_all."""
        return self._context.all_to_all(input_tensor, output_tensor, team=self._team(group), async_op=async_op)

    def reduce_scatter(self, output_tensor: Any, input_tensor: Any, op: Any = "sum", group: Any = None,
                       async_op: bool = False) -> Any:
        """See Context.reduce_scatter."""
        return self._context.reduce_scatter(input_tensor, output_tensor, op, team=self._team(group), async_op=async_op)


def iris(heap_size: int = 1 << 30, **options: Any) -> Iris:
    """Joins the job and makes the symmetric heap, as the reference's function of this name. Collective over all ranks.

    Rank and size are those of torch.distributed, if it has a default group; else the launcher's. The rank's GPU becomes
    torch's current one. Options are those of Context; the reference's allocator_type and copy_engine have no effect."""
    return Iris(heap_size, **options)
