"""How tensors get their values: the one place that a library with kernels for it takes over.

`fill`, `write` and `write_random` are all that the factories call. Where devices are emulated, values are computed by
numpy in the tensor's own memory, piece by piece. On GPUs, equal bytes are filled by the device, and everything else is
computed here and copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from iris.dtypes import DType
from iris.errors import InvalidArgumentError

if TYPE_CHECKING:
    from iris.tensor import Tensor

# Elements that are computed at a time.
PIECE = 1 << 18
# Random bits of an element in [0, 1).
RANDOM_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}


def bfloat16_bits(values: Any) -> Any:
    """float32 rounded to bfloat16, to the nearest and to even: its bits."""
    values = np.asarray(values, np.float32)
    bits = np.atleast_1d(values).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded = np.where(np.isnan(np.atleast_1d(values)), ((bits >> 16) | 0x40).astype(np.uint16), rounded)
    return rounded.reshape(values.shape)


def _double_to_float32_odd(values: Any) -> Any:
    """float64 cut to float32 so that rounding it again gives what rounding once would: the last bit says that
    something was cut off."""
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    inexact = (near.astype(np.float64) != values) & np.isfinite(near)
    toward = np.where(np.abs(near.astype(np.float64)) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    bits = np.atleast_1d(toward.astype(np.float32)).view(np.uint32) | np.atleast_1d(inexact).astype(np.uint32)
    return bits.view(np.float32).reshape(values.shape)


def _float8_values(dtype: DType) -> Any:
    """What the 256 codes of an 8-bit float mean."""
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if dtype is DType.F8E4M3 else (5, 2, 15)
    codes = np.arange(256)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent == 0, mantissa * 2.0**(1 - bias), (1 + mantissa) * 2.0**(exponent - bias))
    if dtype is DType.F8E4M3:
        values[codes & 0x7F == 0x7F] = np.nan
    else:
        top = exponent == 31
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    return np.where(codes & 0x80, -values, values)


def _float8_bits(values: Any, dtype: DType) -> Any:
    """To the nearest and to even. What is too large is NaN (E4M3, which has no infinity) or infinite."""
    values = np.asarray(values, np.float64)
    positive = _float8_values(dtype)[:128]
    finite = positive[np.isfinite(positive)]
    magnitude = np.abs(values)
    above = np.minimum(np.searchsorted(finite, magnitude), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    distance_below, distance_above = magnitude - finite[below], finite[above] - magnitude
    take_below = (distance_below < distance_above) | ((distance_below == distance_above) & (below % 2 == 0))
    codes = np.where(take_below, below, above)
    codes = np.where(magnitude > finite[-1] + (finite[-1] - finite[-2]) / 2, len(finite), codes)
    codes = np.where(np.isnan(values), 0x7F, codes)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def round_to(values: Any, dtype: DType) -> Any:
    """Numbers as elements of the type, each rounded once; for types without one in numpy, their bits."""
    if dtype is DType.BF16:
        values = np.asarray(values)
        return bfloat16_bits(_double_to_float32_odd(values) if values.dtype == np.float64 else values)
    if dtype in (DType.F8E4M3, DType.F8E5M2):
        return _float8_bits(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(dtype.numpy_name)


def as_numbers(array: Any, dtype: DType) -> Any:
    """The other way: elements that numpy has no type for, as float32."""
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in (DType.F8E4M3, DType.F8E5M2):
        return _float8_values(dtype).astype(np.float32)[array]
    return array


def scalar(value: Any, dtype: DType) -> Any:
    """One number as an element of the type. InvalidArgumentError: an integer type does not hold it."""
    if not dtype.is_floating_point and dtype is not DType.BOOL:
        info = np.iinfo(dtype.numpy_name)
        whole = int(value)
        if not info.min <= whole <= info.max:
            raise InvalidArgumentError(f"{value} does not fit {dtype.long_name}, which holds {info.min} to {info.max}")
        return np.array(whole, dtype.numpy_name)
    return round_to(np.float64(value) if dtype is not DType.BOOL else bool(value), dtype)


def fill(tensor: "Tensor", value: Any) -> None:
    """Every element gets the value."""
    tensor.data_ptr()  # an error after its end
    element = scalar(value, tensor.dtype)
    context = tensor.context
    context.quiesce_own()
    if tensor.numel() == 0:
        return
    if context.on_host:
        tensor.numpy()[...] = element
        return
    raw = set(np.atleast_1d(element).tobytes())
    if len(raw) == 1 and tensor.is_contiguous():
        context.fill_now(tensor.data_ptr(), raw.pop(), tensor.nbytes)
        return
    write(tensor, lambda begin, count: np.full(count, element))


def write(tensor: "Tensor", values: Callable[[int, int], Any]) -> None:
    """Element after element in row-major order: values(first, count) gives so many, as the type or as numbers."""
    count = tensor.numel()
    tensor.data_ptr()  # an error after its end
    context = tensor.context
    context.quiesce_own()
    if not tensor.is_contiguous():
        raise InvalidArgumentError(f"a tensor of shape {tensor.shape} and strides {tensor.strides} is not contiguous: "
                                   "give one that is")
    view = tensor.numpy().reshape(-1) if context.on_host and count else None
    storage = np.dtype(tensor.dtype.numpy_storage)
    for begin in range(0, count, PIECE):
        length = min(PIECE, count - begin)
        piece = values(begin, length)
        if piece.dtype != storage:
            piece = round_to(piece, tensor.dtype)
        if view is not None:
            view[begin:begin + length] = piece
        else:
            piece = np.ascontiguousarray(piece)
            context.copy_now(tensor.data_ptr() + begin * storage.itemsize, piece.ctypes.data, piece.nbytes)


def largest_below(high: float, dtype: DType) -> float:
    """The largest number of the type below `high`, itself rounded down to the type."""
    if dtype is DType.F64:
        return float(np.nextafter(high, -np.inf))
    kind = np.float16 if dtype is DType.F16 else np.float32
    near = kind(high)
    below = near if float(near) < high else np.nextafter(near, kind(-np.inf))
    if dtype is DType.BF16:
        bits = np.float32(below).view(np.uint32)
        cut = np.uint32(bits & np.uint32(0xFFFF0000)).view(np.float32)
        if float(cut) > float(below):  # negative numbers are cut towards 0
            cut = np.uint32((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
        return float(cut)
    return float(below)
