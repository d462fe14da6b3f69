"""DLPack: a tensor as a capsule that other libraries take without a copy, made with ctypes.

The capsule's memory is a DLManagedTensor in a table here. It stays, and with it the tensor's storage, until its deleter
is called: by the capsule's consumer, on any thread, or by the capsule's destructor if it has none. The protocol is
version 0, which all consumers know.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, Dict, Sequence, Tuple

from iris.dtypes import DType

_NAME = b"dltensor"
# DLPack's codes of types; of the others see capsule().
_CODES = {DType.BF16: 4, DType.BOOL: 6, DType.F8E4M3: 10, DType.F8E5M2: 12}


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("type_code", c_uint8), ("type_bits", c_uint8), ("type_lanes", c_uint16),
                ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)), ("byte_offset", c_uint64),
                ("manager_ctx", c_void_p), ("deleter", _Deleter)]


_Destructor = ctypes.PYFUNCTYPE(None, c_void_p)
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi))
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

# Keeps the memory of each capsule that is in use, by the address of its managed tensor.
_in_use: Dict[int, Any] = {}


@_Deleter  # type: ignore[misc]  # ctypes makes it an object of its own
def _delete(managed: int, in_use: Dict[int, Any] = _in_use) -> None:
    in_use.pop(managed, None)


@_Destructor  # type: ignore[misc]
def _destroy(capsule: int) -> None:
    # A consumer renames it, and calls the deleter itself.
    if _capsule_is_valid(capsule, _NAME):
        _delete(_capsule_pointer(capsule, _NAME))


# Consumers may keep them longer than this module lives.
for _function in (_delete, _destroy):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_function))


def capsule(keep: Any, address: int, shape: Sequence[int], strides: Sequence[int], dtype: DType,
            device: Tuple[int, int]) -> Any:
    """A new capsule, which holds `keep` until its consumer is done. Strides are elements."""
    code = _CODES.get(dtype, 2 if dtype.is_floating_point else 0 if dtype.is_signed else 1)
    dims = len(shape)
    numbers = (c_int64 * max(2 * dims, 1))(*shape, *strides)
    first = ctypes.cast(numbers, ctypes.POINTER(c_int64))
    second = ctypes.cast(ctypes.addressof(numbers) + 8 * dims, ctypes.POINTER(c_int64))
    managed = _DLManagedTensor(address, *device, dims, code, 8 * dtype.itemsize, 1, first, second, 0, None, _delete)
    where = ctypes.addressof(managed)
    _in_use[where] = (managed, numbers, keep)
    try:
        return _capsule_new(where, _NAME, _destroy)
    except BaseException:
        del _in_use[where]
        raise
