"""Shapes and strides of tensors. Strides are elements."""

from __future__ import annotations

import math
import operator
from typing import Any, Optional, Sequence, Tuple

from iris.dtypes import DType
from iris.errors import InvalidArgumentError

_BYTES_MAX = 2**63 - 1


def parse_shape(size: Sequence[Any]) -> Tuple[int, ...]:
    """Returns the shape that the arguments of zeros(2, 3), zeros((2, 3)) or zeros([2, 3]) mean. Raises TypeError if
    they are not integers, and InvalidArgumentError if one is negative."""
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        (size,) = size
    try:
        shape = tuple(operator.index(extent) for extent in size)
    except TypeError:
        raise TypeError(f"a shape is of integers, and not {size!r}") from None
    if any(extent < 0 for extent in shape):
        raise InvalidArgumentError(f"the shape {shape} has a negative size: sizes are 0 or more")
    return shape


def bytes_of(shape: Sequence[int], dtype: DType) -> int:
    """Returns the size in bytes. Raises InvalidArgumentError if it exceeds an address space."""
    if dtype is DType.NONE:
        raise InvalidArgumentError("a tensor needs a type of elements: DType.NONE is that of plain bytes, for which "
                                   "DType.U8 serves")
    # An extent of 0 counts as 1, because an empty tensor of huge sizes is a mistake, too.
    nbytes = math.prod(max(extent, 1) for extent in shape) * dtype.itemsize
    if nbytes > _BYTES_MAX:
        raise InvalidArgumentError(f"a tensor of shape {tuple(shape)} and {dtype.long_name} has {nbytes} bytes, which "
                                   f"overflows: at most {_BYTES_MAX} can be counted")
    return 0 if 0 in shape else nbytes


def contiguous_strides(shape: Sequence[int]) -> Tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns True if elements are consecutive in row-major order, without a gap."""
    if 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def common_rows(shape: Sequence[int], first: Sequence[int],
                second: Sequence[int]) -> Optional[Tuple[int, int, int, int]]:
    """Returns two layouts of a shape as rows: the number of rows, the elements of a row, and the distances of two rows,
    in elements, in the first and in the second layout. Returns None if they are no such rows, or if rows overlap."""
    dims = [dim for dim in zip(shape, first, second) if dim[0] != 1]
    length = 1
    while dims and dims[-1][1] == dims[-1][2] == length:
        length *= dims.pop()[0]
    if not dims:
        return 1, length, length, length
    count, a, b = dims.pop()
    while dims and dims[-1][1] == count * a and dims[-1][2] == count * b:
        count *= dims.pop()[0]
    return None if dims or min(a, b) < length else (count, length, a, b)
