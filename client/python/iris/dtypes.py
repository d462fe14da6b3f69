"""DType: the type of an element, with the numbers of the C API and the names of other libraries."""

from __future__ import annotations

import enum
import sys
from typing import Any, Dict, Optional, Tuple, Union

from iris.errors import InvalidArgumentError


class DType(enum.IntEnum):
    """The type of an element. `DType.of(x)` returns it for a name ("float32", "f32") or a type of numpy or torch."""

    long_name: str
    """As torch and numpy call it: "float32"."""
    itemsize: int
    """Bytes of an element; 0 for NONE."""

    NONE = 0, "none", 0
    F32 = 1, "float32", 4
    F64 = 2, "float64", 8
    F16 = 3, "float16", 2
    BF16 = 4, "bfloat16", 2
    I32 = 5, "int32", 4
    I64 = 6, "int64", 8
    U8 = 7, "uint8", 1
    I8 = 8, "int8", 1
    I16 = 9, "int16", 2
    U16 = 10, "uint16", 2
    U32 = 11, "uint32", 4
    U64 = 12, "uint64", 8
    BOOL = 13, "bool", 1
    F8E4M3 = 14, "float8_e4m3fn", 1
    F8E5M2 = 15, "float8_e5m2", 1

    def __new__(cls, number: int, long_name: str = "", itemsize: int = 0) -> "DType":
        self = int.__new__(cls, number)
        self._value_, self.long_name, self.itemsize = number, long_name, itemsize
        return self

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.long_name

    @property
    def is_signed(self) -> bool:
        return self.long_name.startswith(("float", "bfloat", "int"))

    @property
    def limits(self) -> Tuple[int, int]:
        """The smallest and the largest number of an integer type."""
        bits = 8 * self.itemsize
        return (-2**(bits - 1), 2**(bits - 1) - 1) if self.is_signed else (0, 2**bits - 1)

    @property
    def numpy_name(self) -> Optional[str]:
        """The name of numpy's type; None if numpy has no such type (BF16 and the 8-bit floats)."""
        return None if self in (DType.NONE, DType.BF16, DType.F8E4M3, DType.F8E5M2) else self.long_name

    @property
    def numpy_storage(self) -> str:
        """The name of the numpy type that holds its bits: its own, or an unsigned integer of as many bytes."""
        return self.numpy_name or f"uint{8 * self.itemsize}"

    @property
    def torch(self) -> Any:
        """torch's type. Raises InvalidArgumentError if the installed torch has none."""
        import torch
        found = getattr(torch, self.long_name, None)
        if not isinstance(found, torch.dtype):
            raise InvalidArgumentError(f"torch {torch.__version__} has no type for elements of {self.long_name}: "
                                       "use another dtype, or a newer torch")
        return found

    @classmethod
    def of(cls, value: "DTypeLike") -> "DType":
        """Returns the DType that `value` means. Raises InvalidArgumentError if it means none."""
        if isinstance(value, cls):
            return value
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.dtype):
            found = _OF_TORCH.get(value) or _BY_NAME.get(str(value).rpartition(".")[2])
            if found is not None:
                _OF_TORCH[value] = found
        elif isinstance(value, str):
            found = _BY_NAME.get(value)
        elif value is float or value is int or value is bool:
            found = cls.F32 if value is float else cls.I64 if value is int else cls.BOOL
        else:
            # Accepts numpy.float32 and numpy.dtype("float32"). A type in another byte order is another type.
            name = getattr(value, "name", None) if getattr(value, "isnative", True) else None
            found = _BY_NAME.get(name if isinstance(name, str) else getattr(value, "__name__", None))
        if found is None:
            raise InvalidArgumentError(f"{value!r} is no type of elements that Iris knows: one of "
                                       + ", ".join(d.long_name for d in cls if d))
        return found


DTypeLike = Union[DType, str, Any]

_OF_TORCH: Dict[Any, DType] = {}  # a cache, because conversion to text is slow
_BY_NAME: Dict[Optional[str], DType] = {
    **{name: dtype for dtype in DType if dtype for name in (dtype.long_name, dtype.name.lower())},
    "bool_": DType.BOOL, "float": DType.F32, "double": DType.F64, "half": DType.F16, "int": DType.I32,
    "long": DType.I64, "short": DType.I16,
}
