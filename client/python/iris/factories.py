"""Factories: zeros, ones, arange, rand and their fellows, with torch's semantics of shapes, types and ends.

All of them are collective over the team: every member calls them in the same order, with the same shape and type. The
values may differ. Tensors are contiguous. A factory with `out` allocates nothing, is not collective, and fills a tensor
of the heap that is there. They return when the values are there.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, Optional, Tuple

from iris import _foreign
from iris.dtypes import DType, DTypeLike
from iris.errors import InvalidArgumentError
from iris.tensor import Tensor, bytes_of, contiguous_strides, parse_shape

if TYPE_CHECKING:
    from iris._philox import Generator
    from iris.team import Team


def _number(value: Any, what: str) -> Any:
    """A finite number of Python, also of one of numpy's, or TypeError."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{what} is a number, and not {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgumentError(f"{what} is {value}: it must be finite")
    return value


def _or_default(dtype: Optional[DTypeLike], default: Optional[DType] = None) -> DTypeLike:
    if dtype is not None:
        return dtype
    return _foreign.default_dtype() if default is None else default


class Factories:
    """The factories of Context. `dtype` is a DType, a name, or a type of numpy or torch; `name` is shown by iris-ctl
    and unique in the job; `device`, if given, must be the rank's own."""

    generator: "Generator"

    def manual_seed(self, seed: int) -> "Generator":
        """Seeds what the random factories use by default. The same seed on all ranks gives the same tensors on all of
        them: add the rank to it for different ones."""
        return self.generator.manual_seed(seed)

    def _make(self, shape: Tuple[int, ...], dtype: DTypeLike, name: Optional[str], team: "Optional[Team]",
              device: Any, out: Any = None) -> Tensor:
        self.check()  # type: ignore[attr-defined]
        _foreign.check_device(self, device)  # type: ignore[arg-type]
        dtype = DType.of(dtype)
        bytes_of(shape, dtype)
        if out is None:
            return self.allocate(shape, dtype, name=name, team=team)  # type: ignore[attr-defined]
        return self._out(shape, dtype, out)

    def _out(self, shape: Tuple[int, ...], dtype: DType, out: Any) -> Tensor:
        if not isinstance(out, Tensor):
            address = self._buffer(out, "out").address  # type: ignore[attr-defined]
            storage = self.heap.find(address)  # type: ignore[attr-defined]
            if storage is None:
                raise InvalidArgumentError("out is not in the symmetric heap: give a tensor that this context has "
                                           "allocated, or none")
            given = self._buffer(out, "out")  # type: ignore[attr-defined]
            out = Tensor(storage, given.shape, contiguous_strides(given.shape), given.dtype,
                         address - storage.address)
        if out.context is not self:
            raise InvalidArgumentError("out is in the heap of another context: use tensors with the context that made "
                                       "them")
        out.data_ptr()
        if out.dtype is not dtype:
            raise InvalidArgumentError(f"out has elements of {out.dtype.long_name}, and {dtype.long_name} was asked "
                                       "for")
        if out.shape != shape:
            if out.numel() != _foreign.count_of(shape):
                raise InvalidArgumentError(f"out has the shape {out.shape}, which holds {out.numel()} elements, and "
                                           f"the shape {shape} was asked for")
            out = out.reshape(shape)
        return out

    # Of one value.

    def empty(self, *size: Any, dtype: Optional[DTypeLike] = None, name: Optional[str] = None,
              team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """Memory as it is: fresh heaps are zero, reused memory holds what was there."""
        return self._make(parse_shape(size), _or_default(dtype), name, team, device)

    def full(self, size: Any, fill_value: Any, *, out: Any = None, dtype: Optional[DTypeLike] = None,
             name: Optional[str] = None, team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """Every element is the value. Without a dtype: bool of a bool, int64 of an integer, else the default type."""
        if hasattr(fill_value, "item"):
            fill_value = fill_value.item()
        if dtype is None:
            dtype = DType.BOOL if isinstance(fill_value, bool) else DType.I64 if isinstance(fill_value, int) else (
                _foreign.default_dtype())
        from iris import _fill
        shape = parse_shape(size if isinstance(size, (tuple, list)) else (size,))
        _fill.scalar(fill_value, DType.of(dtype))  # before anything is allocated
        return self._make(shape, dtype, name, team, device, out).fill_(fill_value)

    def zeros(self, *size: Any, out: Any = None, dtype: Optional[DTypeLike] = None, name: Optional[str] = None,
              team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """Every element is 0."""
        return self.full(parse_shape(size), 0, out=out, dtype=_or_default(dtype), name=name, team=team,
                         device=device)

    def ones(self, *size: Any, out: Any = None, dtype: Optional[DTypeLike] = None, name: Optional[str] = None,
             team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """Every element is 1."""
        return self.full(parse_shape(size), 1, out=out, dtype=_or_default(dtype), name=name, team=team,
                         device=device)

    def _like(self, other: Any, dtype: Optional[DTypeLike]) -> Tuple[Tuple[int, ...], DType]:
        if not hasattr(other, "shape") or not hasattr(other, "dtype"):
            raise TypeError(f"a tensor or an array is wanted, whose shape and type the new one gets, and not "
                            f"{type(other).__name__}")
        return tuple(other.shape), DType.of(other.dtype if dtype is None else dtype)

    def empty_like(self, input: Any, *, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """As empty(), with the shape and type of a tensor or an array."""
        shape, dtype = self._like(input, dtype)
        return self.empty(shape, dtype=dtype, **options)

    def zeros_like(self, input: Any, *, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """As zeros(), with the shape and type of a tensor or an array."""
        shape, dtype = self._like(input, dtype)
        return self.zeros(shape, dtype=dtype, **options)

    def ones_like(self, input: Any, *, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """As ones(), with the shape and type of a tensor or an array."""
        shape, dtype = self._like(input, dtype)
        return self.ones(shape, dtype=dtype, **options)

    def full_like(self, input: Any, fill_value: Any, *, dtype: Optional[DTypeLike] = None, **options: Any) -> Tensor:
        """As full(), with the shape and type of a tensor or an array."""
        shape, dtype = self._like(input, dtype)
        return self.full(shape, fill_value, dtype=dtype, **options)

    # Ranges.

    def arange(self, start: Any, end: Any = None, step: Any = 1, *, out: Any = None,
               dtype: Optional[DTypeLike] = None, name: Optional[str] = None, team: "Optional[Team]" = None,
               device: Any = None) -> Tensor:
        """start, start + step, ... as long as it is before end, which is not in it. `arange(end)` begins at 0. int64
        if all are integers, else the default type. InvalidArgumentError: a step of 0, or away from the end."""
        start, end = (0, start) if end is None else (start, end)
        start, end, step = _number(start, "start"), _number(end, "end"), _number(step, "step")
        whole = all(isinstance(value, numbers.Integral) for value in (start, end, step))
        dtype = DType.of(_or_default(dtype, DType.I64 if whole else None))
        if dtype is DType.BOOL:
            raise InvalidArgumentError("arange has no range of bool: use an integer type")
        if step == 0:
            raise InvalidArgumentError("arange: the step must not be 0")
        if (end - start) * (1 if step > 0 else -1) < 0:
            raise InvalidArgumentError(f"arange: a step of {step} leads away from {end} when it begins at {start}")
        count = -((start - end) // step) if whole else math.ceil((end - start) / step)
        if dtype.is_floating_point:
            first, stride = float(start), float(step)
        else:
            first, stride = int(start), int(step)
            if stride == 0:
                raise InvalidArgumentError(f"arange: a step of {step} is 0 as {dtype.long_name}")
            least, greatest = dtype.limits
            last = first + stride * max(count - 1, 0)
            if not (least <= first <= greatest and least <= last <= greatest):
                raise InvalidArgumentError(f"arange: from {first} to {last} does not fit {dtype.long_name}, which "
                                           f"holds {least} to {greatest}")

        if count <= 1:
            stride = 1  # it is not taken
        numbers_of = {"start": first, "step": stride} if dtype.is_floating_point else {
            "whole_start": first, "whole_step": stride}
        return self._fill(self._make((count,), dtype, name, team, device, out), "arange", **numbers_of)

    def linspace(self, start: Any, end: Any, steps: int, *, out: Any = None, dtype: Optional[DTypeLike] = None,
                 name: Optional[str] = None, team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """`steps` numbers from start to end, both of which are in it, at equal distances. One: the start."""
        start, end = _number(start, "start"), _number(end, "end")
        (steps,) = parse_shape((steps,))
        dtype = DType.of(_or_default(dtype))
        if dtype is DType.BOOL:
            raise InvalidArgumentError("linspace has no range of bool: use another type")
        if not dtype.is_floating_point:
            start, end = int(start), int(end)
            least, greatest = dtype.limits
            if not all(least <= value <= greatest for value in (start, end)):
                raise InvalidArgumentError(f"linspace: from {start} to {end} does not fit {dtype.long_name}, which "
                                           f"holds {least} to {greatest}")
        start, end = float(start), float(end)
        if not math.isfinite(end - start):
            raise InvalidArgumentError(f"linspace: from {start} to {end} is more than a double holds: give a smaller "
                                       "range")
        tensor = self._make((steps,), dtype, name, team, device, out)
        return self._fill(tensor, "linspace", start=start, end=end, steps=steps)

    # Random.

    def _random(self, what: str, dtype: Optional[DTypeLike]) -> DType:
        from iris import _fill
        dtype = DType.of(_or_default(dtype))
        if dtype not in _fill.RANDOM_BITS:
            raise InvalidArgumentError(f"{what} has no numbers of {dtype.long_name}: use float32, float64, float16 or "
                                       "bfloat16" + ("" if dtype.is_floating_point else ", or randint"))
        return dtype

    def _draw(self, generator: Any) -> Any:
        from iris._philox import generator_of
        return generator_of(generator, self.generator).next_call()

    def _fill(self, tensor: Tensor, kind: str, **numbers_of: Any) -> Tensor:
        from iris import _fill
        _fill.sequence(tensor, kind, **numbers_of)
        return tensor

    def rand(self, *size: Any, generator: Any = None, out: Any = None, dtype: Optional[DTypeLike] = None,
             name: Optional[str] = None, team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """Evenly distributed in [0, 1). The bits are those that _philox.py describes."""
        tensor = self._make(parse_shape(size), self._random("rand", dtype), name, team, device, out)
        draw = self._draw(generator)
        return self._fill(tensor, "rand", seed=draw.seed, call=draw.call)

    def uniform(self, size: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None, out: Any = None,
                dtype: Optional[DTypeLike] = None, name: Optional[str] = None, team: "Optional[Team]" = None,
                device: Any = None) -> Tensor:
        """Evenly distributed in [low, high); all of it low if they are equal."""
        low, high = float(_number(low, "low")), float(_number(high, "high"))
        dtype = self._random("uniform", dtype)
        if not low <= high or not math.isfinite(high - low):
            raise InvalidArgumentError(f"uniform: from {low} to {high} is no range: low must not be above high")
        tensor = self._make(parse_shape(size if isinstance(size, (tuple, list)) else (size,)), dtype, name, team,
                            device, out)
        draw = self._draw(generator)
        return self._fill(tensor, "uniform", start=low, end=high, seed=draw.seed, call=draw.call)

    def randn(self, *size: Any, generator: Any = None, out: Any = None, dtype: Optional[DTypeLike] = None,
              name: Optional[str] = None, team: "Optional[Team]" = None, device: Any = None) -> Tensor:
        """Normally distributed, with mean 0 and variance 1."""
        tensor = self._make(parse_shape(size), self._random("randn", dtype), name, team, device, out)
        draw = self._draw(generator)
        return self._fill(tensor, "randn", seed=draw.seed, call=draw.call)

    def randint(self, *arguments: Any, generator: Any = None, out: Any = None, dtype: DTypeLike = DType.I64,
                name: Optional[str] = None, team: "Optional[Team]" = None, device: Any = None, **named: Any) -> Tensor:
        """randint(high, size) or randint(low, high, size): whole numbers in [low, high)."""
        given = list(arguments)
        high = named.pop("high", None)
        low = named.pop("low", None)
        size = named.pop("size", None)
        if named or len(given) > 3:
            raise TypeError(f"randint is called with (high, size) or (low, high, size), and not with "
                            f"{sorted(named) or arguments}")
        if size is None and given:
            size = given.pop()
        if high is None and given:
            high = given.pop()
        if low is None:
            low = given.pop() if given else 0
        if given or size is None or high is None:
            raise TypeError("randint is called with (high, size) or (low, high, size)")
        low, high = _number(low, "low"), _number(high, "high")
        if not all(isinstance(value, numbers.Integral) for value in (low, high)):
            raise TypeError("randint: low and high are integers")
        low, high = int(low), int(high)
        if low >= high:
            raise InvalidArgumentError(f"randint: there is no number from {low} that is below {high}")
        dtype = DType.of(dtype)
        if dtype.is_floating_point:
            lowest, highest = -2**53, 2**53
        elif dtype is DType.BOOL:
            lowest, highest = 0, 1
        else:
            lowest, highest = dtype.limits
        if low < lowest or high - 1 > highest:
            raise InvalidArgumentError(f"randint: {low} to {high - 1} does not fit {dtype.long_name}, which holds "
                                       f"{lowest} to {highest}")
        tensor = self._make(parse_shape(size if isinstance(size, (tuple, list)) else (size,)), dtype, name, team,
                            device, out)
        draw = self._draw(generator)
        return self._fill(tensor, "randint", whole_start=low, whole_end=high - 1, seed=draw.seed, call=draw.call)
