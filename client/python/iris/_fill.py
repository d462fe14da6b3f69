"""Numbers for iris_fill, and conversions for the types that numpy lacks."""

from __future__ import annotations

import functools
import math
from typing import Any, Dict

import numpy as np

from iris.dtypes import DType
from iris.errors import InvalidArgumentError

# Kinds of values, with the numbers of iris_fill_kind.
KINDS: Dict[str, int] = {"value": 0, "arange": 1, "linspace": 2, "rand": 3, "uniform": 4, "randn": 5, "randint": 6}
MAX_DIMS = 8  # IRIS_MAX_DIMS


@functools.lru_cache(None)
def _values(dtype: DType) -> Any:
    """Returns the values of all codes of a floating-point type that numpy lacks, as float32."""
    if dtype is DType.BF16:
        return (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
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
    return np.where(codes & 0x80, -values, values).astype(np.float32)


def round_to(values: Any, dtype: DType) -> Any:
    """Returns numbers as elements of the type, each rounded once, to the nearest and to even. Elements of types that
    numpy lacks are returned as their bits; E4M3 has NaN for numbers that are too large."""
    if dtype.numpy_name is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(values).astype(dtype.numpy_name)
    values = np.asarray(values)
    if dtype is DType.BF16 and values.dtype == np.float32:  # ten times as fast
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
        return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    values = values.astype(np.float64)
    sign = len(_values(dtype)) // 2
    finite = _values(dtype)[:sign]
    finite = finite[np.isfinite(finite)].astype(np.float64)
    magnitude = np.abs(values)
    above = np.minimum(np.searchsorted(finite, magnitude), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    distance_below, distance_above = magnitude - finite[below], finite[above] - magnitude
    take_below = (distance_below < distance_above) | ((distance_below == distance_above) & (below % 2 == 0))
    codes = np.where(take_below, below, above)
    # The middle between the largest number and its successor rounds to the even code of both.
    limit = finite[-1] + (finite[-1] - finite[-2]) / 2
    codes = np.where(magnitude >= limit if len(finite) % 2 == 0 else magnitude > limit, len(finite), codes)
    codes = np.where(np.isnan(values), 0x7FC0 if dtype is DType.BF16 else 0x7F, codes)
    return (codes | np.where(np.signbit(values), sign, 0)).astype(dtype.numpy_storage)


def as_numbers(array: Any, dtype: DType) -> Any:
    """Reverses round_to(): returns float32 numbers for the bits of types that numpy lacks."""
    return array if dtype.numpy_name is not None else _values(dtype)[array]


def check_fits(what: str, dtype: DType, low: int, high: int) -> None:
    """Raises InvalidArgumentError if a type does not hold all integers from low to high. Floats hold them to 2^53."""
    least, greatest = (-2**53, 2**53) if dtype.is_floating_point else (0, 1) if dtype is DType.BOOL else dtype.limits
    if not (least <= low <= greatest and least <= high <= greatest):
        raise InvalidArgumentError(f"{what} does not fit {dtype.long_name}, which holds {least} to {greatest}")


def value_numbers(value: Any, dtype: DType) -> Dict[str, Any]:
    """Returns the numbers for iris_fill of kind "value". Raises InvalidArgumentError if an integer type does not hold
    the value."""
    if dtype.is_floating_point:
        return {"start": float(value)}
    if dtype is DType.BOOL:
        return {"whole_start": int(bool(value))}
    check_fits(f"{value}", dtype, int(value), int(value))
    return {"whole_start": int(value)}


def is_zero(kind: str, numbers: Dict[str, Any]) -> bool:
    """Returns True if these numbers fill memory with bytes of 0."""
    return kind == "value" and not any(numbers.values()) and math.copysign(1, numbers.get("start", 0)) > 0
