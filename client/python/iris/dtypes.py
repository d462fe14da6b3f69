"""DType: the type of an element, by the numbers of the C API, and how other libraries call it."""

from __future__ import annotations

import enum
import sys
from typing import Any, Dict, Optional, Tuple, Union

from iris.errors import InvalidArgumentError


class DType(enum.IntEnum):
    """The type of an element. `DType.of(x)` makes one of a name ("float32", "f32"), of numpy's, or of torch's."""

    NONE = 0
    F32 = 1
    F64 = 2
    F16 = 3
    BF16 = 4
    I32 = 5
    I64 = 6
    U8 = 7
    I8 = 8
    I16 = 9
    U16 = 10
    U32 = 11
    U64 = 12
    BOOL = 13
    F8E4M3 = 14
    F8E5M2 = 15

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0 for NONE."""
        return _BYTES[self]

    @property
    def is_floating_point(self) -> bool:
        return self in _FLOATS

    @property
    def is_signed(self) -> bool:
        return self in _FLOATS or self in (DType.I8, DType.I16, DType.I32, DType.I64)

    @property
    def limits(self) -> Tuple[int, int]:
        """The least and the greatest number of an integer type."""
        bits = 8 * self.itemsize
        return (-2**(bits - 1), 2**(bits - 1) - 1) if self.is_signed else (0, 2**bits - 1)

    @property
    def long_name(self) -> str:
        """As torch and numpy call it: "float32"."""
        return _LONG_NAMES[self]

    @property
    def numpy_name(self) -> Optional[str]:
        """The name of numpy's type of the same bits; None where numpy has none (BF16 and the 8-bit floats)."""
        return None if self in _NOT_OF_NUMPY else _LONG_NAMES[self]

    @property
    def numpy_storage(self) -> str:
        """The name of the numpy type that holds its bits: its own, or an unsigned integer of as many bytes."""
        return self.numpy_name or ("uint16" if self is DType.BF16 else "uint8")

    @property
    def torch(self) -> Any:
        """torch's type. InvalidArgumentError: the torch that is installed has none."""
        import torch
        found = getattr(torch, _LONG_NAMES[self], None)
        if not isinstance(found, torch.dtype):
            raise InvalidArgumentError(f"torch {torch.__version__} has no type for elements of {self.long_name}: "
                                       "use another dtype, or a newer torch")
        return found

    @classmethod
    def of(cls, value: "DTypeLike") -> "DType":
        """The DType that `value` means. InvalidArgumentError: none."""
        if isinstance(value, cls):
            return value
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.dtype):
            found = _OF_TORCH.get(value)
            if found is None:
                found = _BY_NAME.get(str(value).rpartition(".")[2])
                if found is not None:
                    _OF_TORCH[value] = found
        elif isinstance(value, str):
            found = _BY_NAME.get(value)
        elif value is float or value is int or value is bool:
            found = cls.F32 if value is float else cls.I64 if value is int else cls.BOOL
        else:
            # numpy.float32 and numpy.dtype("float32") alike. In another byte order it is another type.
            name = getattr(value, "name", None) if getattr(value, "isnative", True) else None
            found = _BY_NAME.get(name if isinstance(name, str) else getattr(value, "__name__", None))
        if found is None:
            raise InvalidArgumentError(f"{value!r} is no type of elements that Iris knows: one of "
                                       + ", ".join(_LONG_NAMES[d] for d in cls if d))
        return found


DTypeLike = Union[DType, str, Any]

_LONG_NAMES: Dict[DType, str] = {
    DType.NONE: "none", DType.F32: "float32", DType.F64: "float64", DType.F16: "float16", DType.BF16: "bfloat16",
    DType.I32: "int32", DType.I64: "int64", DType.U8: "uint8", DType.I8: "int8", DType.I16: "int16",
    DType.U16: "uint16", DType.U32: "uint32", DType.U64: "uint64", DType.BOOL: "bool",
    DType.F8E4M3: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2",
}
_BYTES: Dict[DType, int] = {
    DType.NONE: 0, DType.F32: 4, DType.F64: 8, DType.F16: 2, DType.BF16: 2, DType.I32: 4, DType.I64: 8, DType.U8: 1,
    DType.I8: 1, DType.I16: 2, DType.U16: 2, DType.U32: 4, DType.U64: 8, DType.BOOL: 1, DType.F8E4M3: 1,
    DType.F8E5M2: 1,
}
_FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2)
_NOT_OF_NUMPY = (DType.NONE, DType.BF16, DType.F8E4M3, DType.F8E5M2)
_OF_TORCH: Dict[Any, DType] = {}  # those that were asked for, because text takes long
_BY_NAME: Dict[Optional[str], DType] = {
    **{name: dtype for dtype, name in _LONG_NAMES.items() if dtype},
    **{dtype.name.lower(): dtype for dtype in DType if dtype},
    "bool_": DType.BOOL, "float": DType.F32, "double": DType.F64, "half": DType.F16, "int": DType.I32,
    "long": DType.I64, "short": DType.I16,
}
