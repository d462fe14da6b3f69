"""Factories: zeros, ones, arange, rand and others, with torch's semantics of shapes, types and ends.

Factories are collective over the team: every member calls them in the same order, with the same shape and type. The
values may differ. Tensors are contiguous. A factory returns when the copies of all members have their values, so that a
peer may write into them at once; only empty() does not wait. A factory with `out`, a tensor of the heap, fills it,
allocates nothing, is not collective, and returns when this rank's values are complete.
"""

from __future__ import annotations

import math
import numbers
import threading
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from iris import _fill, _foreign
from iris._shapes import bytes_of, contiguous_strides, parse_shape
from iris.dtypes import DType, DTypeLike
from iris.errors import InvalidArgumentError
from iris.tensor import Tensor

if TYPE_CHECKING:
    from iris.team import Team


# The default seed of torch's generators.
DEFAULT_SEED = 67280421310721


class Generator:
    """A seeded source of random tensors: equal seeds give equal tensors, on every rank and every backend. Each call of
    a factory takes the next call number; the bits are a function of this number, the seed and an element's place.
    Thread-safe."""

    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self._mutex = threading.Lock()
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> "Generator":
        """Restarts from a seed of 64 bits. Returns the generator."""
        if not -2**63 <= seed < 2**64:
            raise InvalidArgumentError(f"a seed has 64 bits, and {seed} has more")
        self.set_state((seed, 0))
        return self

    def initial_seed(self) -> int:
        """Returns the seed."""
        return self._state[0]

    def get_state(self) -> Tuple[int, int]:
        """Returns (seed, calls so far), which set_state accepts."""
        return self._state

    def set_state(self, state: Tuple[int, int]) -> None:
        """Continues from what get_state returned."""
        with self._mutex:
            self._state = (int(state[0]) % 2**64, int(state[1]) % 2**64)

    def next_call(self) -> Tuple[int, int]:
        """Returns the seed and the number of the call that draws next."""
        with self._mutex:
            seed, call = self._state
            self._state = (seed, (call + 1) % 2**64)
            return seed, call


def _number(value: Any, what: str) -> Any:
    """Returns a finite Python number for a number of Python or numpy. Raises TypeError for other values."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{what} is a number, and not {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgumentError(f"{what} is {value}: it must be finite")
    return value


def _like(name: str) -> Any:

    def make(self: "Factories", input: Any, *value: Any, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        if not hasattr(input, "shape") or not hasattr(input, "dtype"):
            raise TypeError(f"a tensor or an array is wanted, whose shape and type the new one gets, and not "
                            f"{type(input).__name__}")
        dtype = DType.of(input.dtype if dtype is None else dtype)
        return getattr(self, name)(tuple(input.shape), *value, dtype=dtype, **options)

    make.__name__ = f"{name}_like"
    make.__doc__ = f"""As {name}(), with the shape and type of a tensor or an array."""
    return make


class Factories:
    """The factories of Context. All of them take these options: `dtype`, a DType, a name, or a type of numpy or torch;
    `name`, which iris-ctl shows and which is unique in the job; `team`; `device`, which must be the rank's own; and
    `out`."""

    generator: Generator  # of Context

    def manual_seed(self, seed: int) -> Generator:
        """Seeds the default generator of the random factories. The same seed on all ranks gives the same tensors on all
        ranks: add the rank to the seed for different tensors."""
        return self.generator.manual_seed(seed)

    def _make(self, shape: Tuple[int, ...], dtype: DType, *, out: Any = None, name: Optional[str] = None,
              team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        context: Any = self
        context.check()
        _foreign.check_device(context, device)
        if out is None:
            made: Tensor = context.heap.allocate(context.team_of(team), shape, dtype, name)
            return made
        bytes_of(shape, dtype)
        if not isinstance(out, Tensor):
            given = _foreign.buffer_of(context, out, "out")
            storage = context.heap.find(given.address)
            if storage is None:
                raise InvalidArgumentError("out is not in the symmetric heap: give a tensor that this context has "
                                           "allocated, or none")
            out = Tensor(storage, given.shape, contiguous_strides(given.shape), given.dtype,
                         given.address - storage.address)
        if out.context is not self:
            raise InvalidArgumentError("out is in the heap of another context: use tensors with the context that made "
                                       "them")
        out.data_ptr()
        if out.dtype is not dtype:
            raise InvalidArgumentError(f"out has elements of {out.dtype.long_name}, and {dtype.long_name} was asked "
                                       "for")
        if out.shape == shape:
            return out
        if out.numel() != math.prod(shape):
            raise InvalidArgumentError(f"out has the shape {out.shape}, which holds {out.numel()} elements, and "
                                       f"the shape {shape} was asked for")
        return out.reshape(shape)

    def _filled(self, shape: Tuple[int, ...], dtype: DType, options: Dict[str, Any], kind: str,
                generator: Optional[Generator] = None, **values: Any) -> Tensor:
        """Returns a tensor of these values, which Tensor._fill describes, once all members have theirs."""
        context: Any = self
        tensor = self._make(shape, dtype, **options)
        if generator is not None:
            values["seed"], values["call"] = generator.next_call()
        if options.get("out") is not None:
            return tensor._fill(kind, **values)
        with context.heap.filling(tensor):
            if not (tensor._storage.fresh and _fill.is_zero(kind, values)):
                tensor._fill(kind, **values)
        return tensor

    def _random(self, kind: str, shape: Tuple[int, ...], dtype: Any, options: Dict[str, Any],
                **values: Any) -> Tensor:
        dtype = _foreign.dtype_of(dtype)
        if kind != "randint" and dtype not in (DType.F32, DType.F64, DType.F16, DType.BF16):
            raise InvalidArgumentError(f"{kind} has no numbers of {dtype.long_name}: use float32, float64, float16 or "
                                       "bfloat16" + ("" if dtype.is_floating_point else ", or randint"))
        generator = options.pop("generator", None)
        if generator is None:
            generator = self.generator
        elif not isinstance(generator, Generator):
            generator = Generator(_foreign.seed_from_torch(generator))
        return self._filled(shape, dtype, options, kind, generator, **values)

    def empty(self, *size: Any, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """Leaves the memory as it is: fresh heaps are zero, reused memory holds its old bytes."""
        return self._make(parse_shape(size), _foreign.dtype_of(dtype), **options)

    def full(self, size: Any, fill_value: Any, *, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """Sets every element to the value. Without a dtype, the type is bool for a bool, int64 for an integer, and the
        default type otherwise."""
        if hasattr(fill_value, "item"):
            fill_value = fill_value.item()
        if dtype is None and isinstance(fill_value, int):
            dtype = DType.BOOL if isinstance(fill_value, bool) else DType.I64
        dtype, shape = _foreign.dtype_of(dtype), parse_shape((size,))
        values = _fill.value_numbers(fill_value, dtype)  # checked before the allocation
        return self._filled(shape, dtype, options, "value", **values)

    def zeros(self, *size: Any, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """Sets every element to 0."""
        return self._filled(parse_shape(size), _foreign.dtype_of(dtype), options, "value", start=0, whole_start=0)

    def ones(self, *size: Any, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """Sets every element to 1."""
        return self._filled(parse_shape(size), _foreign.dtype_of(dtype), options, "value", start=1, whole_start=1)

    empty_like, zeros_like, ones_like, full_like = map(_like, ("empty", "zeros", "ones", "full"))

    def arange(self, start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Optional[DTypeLike] = None,
               **options: Any) -> Tensor:
        """Gives start, start + step, ... before end, which is excluded. `arange(end)` begins at 0. int64 if all are
        integers, else the default type. Raises InvalidArgumentError if the step is 0, or leads away from the end."""
        start, end = (0, start) if end is None else (start, end)
        start, end, step = _number(start, "start"), _number(end, "end"), _number(step, "step")
        whole = all(isinstance(value, numbers.Integral) for value in (start, end, step))
        dtype = DType.I64 if whole and dtype is None else _foreign.dtype_of(dtype)
        if dtype is DType.BOOL:
            raise InvalidArgumentError("arange has no range of bool: use an integer type")
        if step == 0:
            raise InvalidArgumentError("arange: the step must not be 0")
        if (end - start) * (1 if step > 0 else -1) < 0:
            raise InvalidArgumentError(f"arange: a step of {step} leads away from {end} when it begins at {start}")
        count = -((start - end) // step) if whole else math.ceil((end - start) / step)
        if dtype.is_floating_point:
            step = float(step) if count > 1 else 1.0  # one element needs no step
            return self._filled((count,), dtype, options, "arange", start=float(start), step=step)
        first, stride = int(start), int(step)
        if stride == 0:
            raise InvalidArgumentError(f"arange: a step of {step} is 0 as {dtype.long_name}")
        last = first + stride * max(count - 1, 0)
        _fill.check_fits(f"arange: from {first} to {last}", dtype, first, last)
        return self._filled((count,), dtype, options, "arange", whole_start=first,
                            whole_step=stride if count > 1 else 1)

    def linspace(self, start: Any, end: Any, steps: int, *, dtype: Optional[DTypeLike] = None,
                 **options: Any) -> Tensor:
        """Gives `steps` numbers at equal distances from start to end, both included. One step gives the start."""
        start, end = _number(start, "start"), _number(end, "end")
        shape = parse_shape((steps,))
        dtype = _foreign.dtype_of(dtype)
        if dtype is DType.BOOL:
            raise InvalidArgumentError("linspace has no range of bool: use another type")
        if not dtype.is_floating_point:
            start, end = int(start), int(end)
            _fill.check_fits(f"linspace: from {start} to {end}", dtype, start, end)
        start, end = float(start), float(end)
        if not math.isfinite(end - start):
            raise InvalidArgumentError(f"linspace: from {start} to {end} is more than a double holds: give a smaller "
                                       "range")
        return self._filled(shape, dtype, options, "linspace", start=start, end=end, steps=shape[0])

    # The factories of random numbers also take the option `generator`.

    def rand(self, *size: Any, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """Draws from the uniform distribution over [0, 1). <iris/random.h> describes the bits."""
        return self._random("rand", parse_shape(size), dtype, options)

    def uniform(self, size: Any, low: float = 0.0, high: float = 1.0, *, dtype: Optional[DTypeLike] = None,
                **options: Any) -> Tensor:
        """Draws from the uniform distribution over [low, high); every element is low if the two are equal."""
        low, high = float(_number(low, "low")), float(_number(high, "high"))
        if not low <= high or not math.isfinite(high - low):
            raise InvalidArgumentError(f"uniform: from {low} to {high} is no range: low must not be above high")
        return self._random("uniform", parse_shape((size,)), dtype, options, start=low, end=high)

    def randn(self, *size: Any, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """Draws from the normal distribution with mean 0 and variance 1."""
        return self._random("randn", parse_shape(size), dtype, options)

    def randint(self, *arguments: Any, dtype: DTypeLike = DType.I64, **options: Any) -> Tensor:
        """Draws integers from [low, high): randint(high, size) or randint(low, high, size)."""
        given = list(arguments)
        named = [options.pop(name, None) for name in ("size", "high", "low")]
        size, high, low = (given.pop() if value is None and given else value for value in named)
        low = 0 if low is None else low
        if given or size is None or high is None:
            raise TypeError(f"randint is called with (high, size) or (low, high, size), and not with {arguments}")
        low, high = _number(low, "low"), _number(high, "high")
        if not all(isinstance(value, numbers.Integral) for value in (low, high)):
            raise TypeError("randint: low and high are integers")
        low, high = int(low), int(high)
        if low >= high:
            raise InvalidArgumentError(f"randint: there is no number from {low} that is below {high}")
        dtype = DType.of(dtype)
        _fill.check_fits(f"randint: {low} to {high - 1}", dtype, low, high - 1)
        return self._random("randint", parse_shape((size,)), dtype, options, whole_start=low, whole_end=high - 1)
