"""All uses of other array libraries and of the vendors' platforms. No other file of the package has their names.
Nothing in this file needs torch or cupy.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import types
import uuid
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy

from iris import _capi
from iris._shapes import contiguous_strides, is_contiguous
from iris.dtypes import DType
from iris.errors import FailedPreconditionError, InvalidArgumentError
from iris.logging import DEBUG

if TYPE_CHECKING:
    from iris.context import Context

# torch's kinds of devices that programs name.
KINDS = ("cpu", "cuda")
# DLPack's kinds of devices, by backend of Iris.
_DLPACK_DEVICE = {"emu": 1, "cuda": 2, "hip": 10}
_DTYPE_OF_TYPESTR = {numpy.dtype(dtype.numpy_name).str[1:]: dtype for dtype in DType if dtype.numpy_name}


class Buffer(NamedTuple):
    """Contiguous memory that a call reads or writes; `keep` owns it."""

    address: int
    count: int  # type: ignore[assignment]  # of elements; a tuple's method is not used
    dtype: DType
    shape: Tuple[int, ...]
    keep: Any

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.count * self.dtype.itemsize


_torch: Any = None


def loaded_torch() -> Optional[Any]:
    """Returns torch if this process has imported it."""
    global _torch
    if _torch is None:
        torch = sys.modules.get("torch")
        _torch = torch if hasattr(torch, "Tensor") else None
    return _torch


def is_torch_tensor(what: Any) -> bool:
    """Returns True for tensors of torch."""
    torch = loaded_torch()
    return torch is not None and isinstance(what, torch.Tensor)


def torch_on_gpu(context: "Context") -> Optional[Any]:
    """Returns torch if this process has imported it and the rank's device is a GPU that torch can use."""
    torch = loaded_torch()
    return None if context.on_host or torch is None or not torch.cuda.is_available() else torch


def importable_torch() -> Optional[Any]:
    """Returns torch if it is installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def device_name(context: "Context") -> str:
    """Returns torch's name of the rank's device: "cuda:0", or "cpu" if devices are emulated."""
    return "cpu" if context.on_host else f"cuda:{context.device_index}"


def dlpack_device(context: "Context") -> Tuple[int, int]:
    """Returns the result of `__dlpack_device__`."""
    return _DLPACK_DEVICE[context.backend], 0 if context.on_host else context.device_index


_CAPSULE = b"dltensor"
# DLPack's codes of these types; dlpack_capsule() computes those of the other types.
_DLPACK_CODES = {DType.BF16: 4, DType.BOOL: 6, DType.F8E4M3: 10, DType.F8E5M2: 12}
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

# Keeps, by its address, the memory of each capsule whose deleter was not called yet. The consumer calls the deleter, on
# any thread, or the capsule's destructor does if there is no consumer.
_capsules_in_use: Dict[int, Any] = {}


@_Deleter  # type: ignore[misc]  # ctypes makes it an object of its own
def _delete(managed: int, in_use: Dict[int, Any] = _capsules_in_use) -> None:
    in_use.pop(managed, None)


@_Destructor  # type: ignore[misc]
def _destroy(capsule: int) -> None:
    # A consumer renames the capsule, and calls the deleter itself.
    if _capsule_is_valid(capsule, _CAPSULE):
        _delete(_capsule_pointer(capsule, _CAPSULE))


# Consumers may keep these functions longer than this module lives.
for _function in (_delete, _destroy):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_function))


def dlpack_capsule(tensor: Any) -> Any:
    """Returns a new capsule, which holds the tensor's memory until the capsule's consumer is done. The protocol is
    version 0, which all consumers know."""
    dtype, dims = tensor.dtype, tensor.ndim
    code = _DLPACK_CODES.get(dtype, 2 if dtype.is_floating_point else 0 if dtype.is_signed else 1)
    numbers = (c_int64 * max(2 * dims, 1))(*tensor.shape, *tensor.strides)
    first = ctypes.cast(numbers, ctypes.POINTER(c_int64))
    second = ctypes.cast(ctypes.addressof(numbers) + 8 * dims, ctypes.POINTER(c_int64))
    managed = _DLManagedTensor(tensor.data_ptr(), *tensor.__dlpack_device__(), dims, code, 8 * dtype.itemsize, 1, first,
                               second, 0, None, _delete)
    where = ctypes.addressof(managed)
    _capsules_in_use[where] = (managed, numbers, tensor._export())
    try:
        return _capsule_new(where, _CAPSULE, _destroy)
    except BaseException:
        del _capsules_in_use[where]
        raise


def check_device(context: Any, device: Any) -> None:
    """Raises InvalidArgumentError if `device` is not the rank's device. None, and a kind without a number, mean the
    rank's own. If devices are emulated, programs that ask for "cuda" get the emulated device."""
    if device is None:
        return
    kind, _, number = str(device).partition(":")
    if kind not in KINDS or (kind == "cpu") > context.on_host or (
            number and not context.on_host and int(number) != context.device_index):
        raise InvalidArgumentError(f"device={device!s}: the heap of this rank is on {device_name(context)}. Leave the "
                                   "device out, or name that one")


def torch_device(context: "Context") -> Any:
    """Returns the rank's device as a torch.device, or its name if torch is not installed."""
    torch = importable_torch()
    return device_name(context) if torch is None else torch.device(device_name(context))


class DeviceArrayInterface:
    """Gives tensors on GPUs the attribute with which cupy, numba and others use them without a copy."""

    @property
    def __cuda_array_interface__(self: Any) -> Any:
        if self.context.on_host:
            raise AttributeError("this tensor is in the memory of the host: use __array_interface__")
        # 1 is the legacy default stream, with which all blocking streams synchronize. Users must order work of Iris on
        # other streams themselves.
        return dict(self._array_interface(), version=3, stream=1)


_IrisTensor: Any = DeviceArrayInterface


def _array(interface: Any, written: bool) -> Tuple[int, DType, Tuple[int, ...], Tuple[int, ...]]:
    """Returns the address, type, shape and strides (in elements) of an array interface."""
    dtype = _DTYPE_OF_TYPESTR.get(interface["typestr"][1:])
    if dtype is None or interface["typestr"][0] == ">":
        raise InvalidArgumentError(f"elements of the type {interface['typestr']} are none that Iris knows")
    if written and interface["data"][1]:
        raise InvalidArgumentError("it is read-only, and the call writes it: give an array that may be written")
    shape, given = tuple(interface["shape"]), interface.get("strides")
    if given is None:
        return interface["data"][0] or 0, dtype, shape, contiguous_strides(shape)
    if any(stride % dtype.itemsize and extent > 1 for extent, stride in zip(shape, given)):
        raise InvalidArgumentError(f"its strides are {tuple(given)} bytes, which are no multiples of the "
                                   f"{dtype.itemsize} of an element, as those of a field of a structured array: copy "
                                   "it first")
    return interface["data"][0] or 0, dtype, shape, tuple(stride // dtype.itemsize for stride in given)


def _check_torch(context: "Context", what: Any, role: str) -> None:
    """Raises InvalidArgumentError if the values of a tensor of torch are not in the memory of the rank's device."""
    if not (what.device.type == "cpu" if context.on_host else
            what.is_cuda and what.get_device() == context.device_index):
        raise InvalidArgumentError(f"{role}: it is on {what.device}, and the device of this rank is "
                                   f"{device_name(context)}: move it there first")
    if what.layout is not _torch.strided:
        raise InvalidArgumentError(f"{role}: its layout is {what.layout}: call to_dense() first")
    if hasattr(what, "is_neg") and what.is_neg():
        raise InvalidArgumentError(f"{role}: its memory has the negatives of its values, which are taken when they are "
                                   "read: call resolve_neg() first")


def storage_address(tensor: Any) -> int:
    """Returns the address of the memory of which a tensor of torch is a view, also of one without elements."""
    storage = getattr(tensor, "untyped_storage", tensor.storage)  # older releases of torch have the second alone
    return int(storage().data_ptr())


def check_no_gradient(what: Any, role: str) -> None:
    """Raises InvalidArgumentError if the gradient of a tensor of torch would be lost. torch's own functions with `out=`
    refuse such tensors, too."""
    if is_torch_tensor(what) and what.requires_grad and _torch.is_grad_enabled():
        raise InvalidArgumentError(f"{role} requires a gradient, which this operation does not have: call it under "
                                   "torch.no_grad(), or give detach() of the tensor")


def _memory_of(context: "Context", what: Any, role: str,
               written: bool) -> Tuple[int, DType, Tuple[int, ...], Tuple[int, ...]]:
    """Returns address, type, shape and strides of a tensor or array. Raises InvalidArgumentError like buffer_of()."""
    if isinstance(what, _IrisTensor):
        if what.context is not context:
            raise InvalidArgumentError(f"{role} is a tensor of another context: use tensors with the context that made "
                                       "them")
        return what.data_ptr(), what.dtype, what.shape, what.strides
    if is_torch_tensor(what):
        _check_torch(context, what, role)
        return what.data_ptr(), DType.of(what.dtype), tuple(what.shape), tuple(what.stride())
    try:
        if not context.on_host and hasattr(what, "__cuda_array_interface__"):
            return _array(what.__cuda_array_interface__, written)
        if hasattr(what, "__array_interface__"):
            if not context.on_host:
                raise InvalidArgumentError(f"it is in the memory of the host, and the device of this rank is "
                                           f"{device_name(context)}: copy it there first")
            return _array(what.__array_interface__, written)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{role}: {error}") from None
    raise InvalidArgumentError(f"{role} is {type(what).__name__}: a tensor of Iris, torch or cupy, or an array of "
                               "numpy where devices are emulated, is wanted")


def buffer_of(context: Any, what: Any, role: str, written: bool = False) -> Buffer:
    """Returns the memory of a tensor of Iris, torch or cupy, or of an array of numpy. A Buffer is returned as it is.
    Raises InvalidArgumentError if `what` is nothing of that kind, not contiguous, on another device, or read-only
    although it is to be written; the text names the argument by `role`."""
    if isinstance(what, _IrisTensor) and what.contiguous and what.context is context:
        return Buffer(what.data_ptr(), what.count, what.dtype, what.shape, what)
    torch = loaded_torch()
    if torch is not None and isinstance(what, torch.Tensor):  # without its strides, since models call this often
        _check_torch(context, what, role)
        if what.is_contiguous():
            return Buffer(what.data_ptr(), what.numel(), DType.of(what.dtype), tuple(what.shape), what)
    if isinstance(what, Buffer):
        return what
    address, dtype, shape, strides = _memory_of(context, what, role, written)
    if not is_contiguous(shape, strides):
        raise InvalidArgumentError(f"{role} has the shape {shape} and the strides {strides}, which is not contiguous: "
                                   "give a contiguous one, which torch's contiguous() makes")
    return Buffer(address, math.prod(shape), dtype, shape, what)


class Matrix(NamedTuple):
    """A matrix that a call reads or writes: rows of `shape[1]` elements, `ld` elements apart; `keep` owns it."""

    address: int
    shape: Tuple[int, int]
    ld: int
    transposed: bool
    dtype: DType
    keep: Any


def matrix_of(context: "Context", what: Any, role: str, may_be_transposed: bool = False,
              written: bool = False) -> Matrix:
    """Returns the matrix in a two-dimensional tensor of Iris, torch or cupy, or array of numpy. It is `transposed` if
    the columns, and not the rows, are contiguous, `ld` elements apart. Raises InvalidArgumentError as buffer_of() does,
    or if the tensor is stored in another way, or its gradient would be lost."""
    check_no_gradient(what, role)
    address, dtype, shape, strides = _memory_of(context, what, role, written)
    if len(shape) != 2:
        raise InvalidArgumentError(f"{role} has the shape {shape}: a matrix of two dimensions is wanted")
    rows, columns = shape
    if columns <= 1 or strides[1] == 1:
        ld = strides[0] if rows > 1 else columns
        if rows <= 1 or ld >= columns:
            return Matrix(address, (rows, columns), max(ld, columns), False, dtype, what)
    if may_be_transposed and (rows <= 1 or strides[0] == 1):
        ld = strides[1] if columns > 1 else rows
        if columns <= 1 or ld >= rows:
            return Matrix(address, (rows, columns), max(ld, rows), True, dtype, what)
    also = ", or its columns" if may_be_transposed else ""
    raise InvalidArgumentError(f"{role} has the shape {shape} and the strides {strides}: its rows must "
                               f"be contiguous{also}: call contiguous() first")


def native_stream(context: "Context", stream: Any) -> int:
    """Returns the number of the platform's stream for a number, or for a stream of torch or cupy. Raises
    InvalidArgumentError if the argument is no stream, or a stream of another device."""
    index = getattr(getattr(stream, "device", None), "index", getattr(stream, "device_id", None))
    if isinstance(index, int) and index >= 0 and not context.on_host and index != context.device_index:
        raise InvalidArgumentError(f"the stream is of device {index}, and this rank's is {device_name(context)}: use a "
                                   "stream of that one")
    for number in (getattr(stream, "cuda_stream", None), getattr(stream, "ptr", None), stream):
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    raise InvalidArgumentError(f"{type(stream).__name__} is no stream: one of Iris, torch or cupy is wanted, or the "
                               "number of a stream of the platform")


def current_torch_stream(context: "Context") -> Optional[int]:
    """Returns torch's current stream on the rank's device, or None if torch, or its GPU, is not in use."""
    if context.on_host:
        return None
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_initialized():
        return None
    context.raw_stream = torch._C._cuda_getCurrentRawStream  # the only call that is needed from now on
    return context.raw_stream(context.device_index)


def synchronize_torch(context: "Context") -> bool:
    """Waits for all work of torch on the rank's device. Returns False, without a wait, if a graph is being recorded."""
    torch = torch_on_gpu(context)
    if torch is None:
        return True
    if torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize(context.device_index)
    return True


@contextlib.contextmanager
def own_torch_stream(context: "Context") -> Iterator[None]:
    """Puts torch's work in the block on a stream of its own, and waits for it at the end. So it does not wait for
    kernels that the program has launched, which may wait for other ranks."""
    torch = torch_on_gpu(context)
    if torch is None:
        yield
        return
    if context.torch_stream is None:
        context.torch_stream = torch.cuda.Stream(context.device_index)
    stream = context.torch_stream
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


def make_torch_memory_shareable(context: "Context") -> None:
    """Makes torch take memory that other ranks can map from now on, unless the program's environment says how torch
    takes it. Memory that torch has already stays as it is."""
    torch = torch_on_gpu(context)
    given = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if torch is None or "expandable_segments" in given:
        return
    try:
        torch.cuda.memory._set_allocator_settings(",".join(filter(None, (given, "expandable_segments:True"))))
    except (AttributeError, RuntimeError) as error:
        context.log(DEBUG, f"torch's memory cannot be shared: {error}")


class MemPool:
    """Memory of this rank's heap for torch: inside `with pool:`, on this thread, torch allocates on the rank's GPU from
    the heap, at offsets of the rank's own. docs/python.md says what that means for gradients, put, get and signals.

    Keep the pool as long as its tensors: it keeps their memory mapped, also after the context's close(). Only one
    thread uses it at a time, and `with` blocks of one pool do not nest."""

    def __init__(self, context: "Context") -> None:
        context.check()
        torch = importable_torch()
        if context.on_host:
            raise FailedPreconditionError("mem_pool() is for GPUs: where devices are emulated, torch has one allocator "
                                          "for all. Allocate with the factories of the context")
        if torch is None or not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
            raise FailedPreconditionError("mem_pool() needs torch.cuda.MemPool, which torch has since 2.5: install a "
                                          "newer one, or allocate with the factories of the context")
        self.context = context
        """The context whose heap it uses."""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(_capi.library()._name, "iris_torch_malloc",
                                                             "iris_torch_free")
        self.pool = torch.cuda.MemPool(allocator.allocator())
        self._kept = (allocator, context.native())
        self._entered: List[Any] = []
        self._use()

    def _use(self) -> None:
        _capi.library().iris_torch_use(self.context.handle, self.context.device_index)

    def __enter__(self) -> "MemPool":
        self._use()
        torch: Any = loaded_torch()  # which may have been loaded after __init__
        self._entered.append(torch.cuda.use_mem_pool(self.pool, self.context.device_index))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *what: Any) -> None:
        self._entered.pop().__exit__(*what)


def dtype_of(dtype: Any) -> DType:
    """Returns the DType that an argument means. None means torch's default, or float32 if torch is not loaded."""
    if dtype is None:
        torch = loaded_torch()
        dtype = DType.F32 if torch is None else torch.get_default_dtype()
    return DType.of(dtype)


def dtype_or_bytes(dtype: Any, count: int) -> Tuple[DType, int]:
    """Returns the type and number of elements of memory for `count` elements of a type of torch: bytes for types that
    Iris does not know."""
    try:
        return DType.of(dtype), count
    except InvalidArgumentError:
        torch: Any = importable_torch()
        return DType.U8, count * torch.empty((), dtype=dtype).element_size()


def bytes_of_torch(context: "Context", tensor: Any) -> Any:
    """Returns the memory of a tensor of torch as a tensor of bytes. Raises InvalidArgumentError if it is none, not on
    the rank's device, or not contiguous."""
    if not is_torch_tensor(tensor):
        raise InvalidArgumentError(f"{type(tensor).__name__} is no tensor of torch")
    if not context.on_host and not tensor.is_cuda:
        raise InvalidArgumentError(f"the tensor is on {tensor.device}, and only CUDA tensors of {device_name(context)} "
                                   "become symmetric: move it there first")
    _check_torch(context, tensor, "as_symmetric")
    if not tensor.is_contiguous():
        raise InvalidArgumentError(f"a tensor of shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())} is "
                                   "not contiguous: call contiguous() first")
    return tensor.detach().reshape(-1).view(_torch.uint8)


def as_numpy(value: Any) -> Any:
    """Returns an array of numpy for a tensor of torch, a tensor of Iris, and for lists and tuples of numbers. Returns
    other values as they are. The numbers of bfloat16 become float32."""
    if is_torch_tensor(value):
        value = value.detach().cpu()
        return (value.float() if value.dtype == _torch.bfloat16 else value).numpy()
    if isinstance(value, _IrisTensor):
        return value.to_host()
    if isinstance(value, (list, tuple)) and value:
        try:
            array = numpy.asarray(value)
        except ValueError:  # the rows have different lengths
            return value
        return array if array.dtype.kind in "biufc" else value
    return value


def seed_from_torch(generator: Any) -> int:
    """Draws a seed from a generator of torch. Raises TypeError if the argument is no generator."""
    torch = loaded_torch()
    if torch is None or not isinstance(generator, torch.Generator):
        raise TypeError(f"a generator is an iris.Generator or one of torch's, and not {type(generator).__name__}")
    return int(torch.randint(0, 2**63 - 1, (1,), generator=generator, device=generator.device).item())


def torch_view(tensor: Any) -> Any:
    """Returns a tensor of torch that shares the memory."""
    torch = importable_torch()
    if torch is None:
        raise FailedPreconditionError("torch is not installed: use tensor.numpy(), or install torch")
    kind = tensor.dtype.torch
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=kind, device=device_name(tensor.context))
    if tensor.dtype in (DType.BOOL, DType.F8E4M3, DType.F8E5M2):
        # Older releases of torch do not know these types in DLPack, so their bits are passed.
        return torch.from_dlpack(tensor.view_dtype(DType.U8)).view(kind)
    return torch.from_dlpack(tensor)


def copy_from_torch(tensor: Any, values: Any) -> None:
    """Fills a tensor of the heap with the values of a tensor of torch, of any type and on any device, and waits."""
    if not all(a in (1, b) for a, b in zip(reversed(values.shape), reversed(tensor.shape))) or (
            values.ndim > tensor.ndim):
        raise InvalidArgumentError(f"values of shape {tuple(values.shape)} do not fill a tensor of shape "
                                   f"{tensor.shape}")
    with _torch.no_grad():
        torch_view(tensor).copy_(values)
    synchronize_torch(tensor.context)


def torch_world() -> Dict[str, Any]:
    """Returns the place of this process in torch's default group, as options of Context, or an empty dictionary if
    there is no such group. Collective over that group: rank 0 names the job."""
    torch = loaded_torch()
    distributed = getattr(torch, "distributed", None)
    if torch is None or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    rank = distributed.get_rank()
    local = _local_rank(torch, rank)
    if torch.cuda.is_available():
        torch.cuda.set_device(local)  # a broadcast of objects goes there
    names = [f"torch-{uuid.uuid4().hex[:16]}"]
    distributed.broadcast_object_list(names, src=0)
    return {"job": names[0], "rank": rank, "n_ranks": distributed.get_world_size(), "local_rank": local}


def _local_rank(torch: Any, rank: int) -> int:
    """Returns the number of the rank's GPU: the one that its group is bound to, else the current one if the program has
    chosen another than the first, else LOCAL_RANK, else the rank."""
    wanted = int(os.environ.get("LOCAL_RANK", rank))
    if not torch.cuda.is_available():
        return wanted
    bound = getattr(torch.distributed.group.WORLD, "bound_device_id", None)
    if bound is not None and bound.index is not None:
        return int(bound.index)
    return torch.cuda.current_device() or wanted % torch.cuda.device_count()


def group_of_name(name: str) -> Any:
    """Returns the process group of torch that has this name."""
    torch = loaded_torch()
    if torch is None:
        raise InvalidArgumentError(f"group={name!r} is the name of a process group of torch, which is not loaded")
    return torch.distributed.distributed_c10d._resolve_process_group(name)


def ranks_of_group(group: Any) -> Tuple[int, ...]:
    """Returns the world ranks of a process group of torch, in its order. Raises TypeError if it is no such group."""
    torch = loaded_torch()
    distributed = getattr(torch, "distributed", None)
    kind = getattr(distributed, "ProcessGroup", None)
    if distributed is None or kind is None or not isinstance(group, kind):
        raise TypeError(f"a group is a team of Iris or a process group of torch's, and not {type(group).__name__}")
    known = getattr(distributed, "get_process_group_ranks", None)
    if known is not None:
        return tuple(known(group))
    table = distributed.distributed_c10d._pg_group_ranks.get(group, {})
    return tuple(rank for rank, _ in sorted(table.items(), key=lambda item: item[1]))


def group_barrier(group: Any) -> None:
    """Waits for all members of a process group of torch."""
    loaded_torch().distributed.barrier(group=group)  # type: ignore[union-attr]


def gathered(group: Any, value: Any) -> List[Any]:
    """Returns the values of all members of a process group of torch, in its order. Collective over the group."""
    distributed = loaded_torch().distributed  # type: ignore[union-attr]
    values: List[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def is_capturing(context: "Context") -> bool:
    """Returns True if torch records the work of its current stream in a graph."""
    torch = None if context.on_host else loaded_torch()
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def heap_view(context: "Context", rank: int, dtype: Any) -> Any:
    """Returns the addresses of a rank's heap as a tensor of one dimension and of torch's type `dtype`. It does not keep
    the mapping, and may only be used for views of memory that exists."""
    torch: Any = importable_torch()
    size = context.stride_bytes
    heap = types.SimpleNamespace(
        dtype=DType.U8, ndim=1, shape=(size,), strides=(1,), data_ptr=lambda: context.base + rank * size,
        __dlpack_device__=lambda: dlpack_device(context), _export=lambda: None)
    return torch.from_dlpack(dlpack_capsule(heap)).view(dtype)


def zero_words(context: "Context", count: int) -> Any:
    """Returns a tensor of torch of 32-bit words that are 0, outside the heap."""
    torch: Any = loaded_torch()
    return torch.zeros(count, dtype=torch.int32, device=device_name(context))


def _no_grad() -> Any:
    torch: Any = loaded_torch()
    return torch.no_grad()


def copy_into(output: Any, values: Any) -> None:
    """Copies a tensor of torch into another, without a gradient."""
    with _no_grad():
        output.copy_(values)


def sum_of(tensors: Sequence[Any]) -> Any:
    """Returns the sum of tensors of torch, in their order. Sums of 16-bit floats are in float32."""
    first = tensors[0]
    torch: Any = loaded_torch()
    narrow = first.is_floating_point() and first.element_size() < 4
    with torch.no_grad():
        total = first.to(torch.float32 if narrow else first.dtype, copy=True)
        for tensor in tensors[1:]:
            total += tensor
    return total


def zero(output: Any) -> None:
    """Sets all elements of a tensor of torch to 0."""
    with _no_grad():
        output.zero_()


def product_into(output: Any, a: Any, b: Any, bias: Any = None) -> None:
    """output = a @ b + bias of tensors of torch, with sums in float32 or wider. The bias has an element for each row.
    """
    torch: Any = loaded_torch()
    with torch.no_grad():
        if output.dtype is not a.dtype or a.element_size() < 4 and a.device.type == "cpu":
            # The host has no such product of 16-bit floats in all releases of torch.
            product = torch.matmul(a.float(), b.float())
            output.copy_(product if bias is None else product + bias.float().unsqueeze(1))
        elif bias is None:
            torch.matmul(a, b, out=output)
        else:
            torch.addmm(bias.to(a.dtype).unsqueeze(1), a, b, out=output)


def words_on_device(context: "Context", words: Sequence[int], signed: bool = False) -> Any:
    """Returns 64-bit words as one array for kernels: torch's, on the device, or numpy's if torch is not installed."""
    array = numpy.array(words, dtype=numpy.int64)  # no address needs the highest bit
    torch = importable_torch()
    if torch is None:
        return array if signed else array.view(numpy.uint64)
    made = torch.from_numpy(array).to(device_name(context))
    kind = getattr(torch, "uint64", None)  # older releases have none
    return made if signed or kind is None else made.view(kind)


class CUDAArrayInterface:
    """Memory of a GPU, at an address that the caller keeps valid, as an array that torch.as_tensor() takes. Without a
    shape it has one dimension. Raises InvalidArgumentError, a ValueError, for a type that such arrays do not have."""

    def __init__(self, ptr: int, size_bytes: int, dtype: Any = None, device: str = "cuda", shape: Any = None) -> None:
        torch: Any = importable_torch()
        self.ptr, self.size_bytes, self.device = ptr, size_bytes, device
        self.dtype = torch.uint8 if dtype is None else dtype
        found = DType.F16 if self.dtype == torch.bfloat16 else DType.of(self.dtype)  # the interface has no bfloat16
        if found.numpy_name is None:
            raise InvalidArgumentError(f"arrays of this interface have no elements of {self.dtype}: use uint8, and "
                                       "view() of the tensor")
        self.typestr = numpy.dtype(found.numpy_name).str
        self.shape = (size_bytes // found.itemsize,) if shape is None else shape

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {"shape": self.shape, "typestr": self.typestr, "data": (self.ptr, False), "version": 3}


def tensor_from_ptr(ptr: int, size_bytes: int, dtype: Any = None, device: Any = "cuda", shape: Any = None) -> Any:
    """Returns a tensor of torch on memory that the caller keeps valid, by default of float32 and of one dimension. The
    memory is the host's if `device` is the CPU, or if there is no GPU. None: the GPU that has it. Memory of another GPU
    than `device` is copied, as torch.as_tensor does."""
    torch: Any = importable_torch()
    if str(device).startswith("cpu") or not torch.cuda.is_available():
        flat = torch.from_numpy(numpy.ctypeslib.as_array((c_uint8 * size_bytes).from_address(ptr)))
    else:
        flat = torch.as_tensor(CUDAArrayInterface(ptr, size_bytes), device=device)
    dtype = torch.float32 if dtype is None else dtype
    size = torch.empty((), dtype=dtype).element_size()
    flat = flat[:size_bytes // size * size].view(dtype)
    return flat if shape is None else flat.view(shape)


def use_device(context: "Context") -> None:
    """Makes the rank's GPU torch's current one, if torch is used, because Triton launches kernels on that GPU."""
    torch = torch_on_gpu(context)
    if torch is not None:
        torch.cuda.set_device(context.device_index)


def store_fence(target: Any) -> str:
    """Returns inline assembly with which each wave makes its stores visible to other GPUs before a barrier ends: the
    release after the barrier waits for the stores of one wave only, and some versions of Triton do not wait for the
    write-back that the release begins. Returns "" if nothing is needed, or if the target is not known."""
    if target is None or target.backend != "hip":
        return ""
    wait = "s_waitcnt vmcnt(0)"
    if str(target.arch).startswith(("gfx94", "gfx95")):
        wait = f"{wait}\nbuffer_wbl2 sc0 sc1\n{wait}"
    elif str(target.arch).startswith("gfx90a"):
        wait = f"{wait}\nbuffer_wbl2\n{wait}"
    return f"{wait}\nv_mov_b32 $0, $1"


def volatile_modifier(target: Any) -> str:
    """Returns the cache modifier that a volatile load has beside it: NVIDIA's takes none, and for AMD's GPUs Triton 3.6
    does not look whether a load is volatile."""
    return ".cv" if target is not None and target.backend == "hip" else ""


def system_fence(target: Any) -> Tuple[str, str]:
    """Returns inline assembly that orders a thread's stores before all that it does later, as other GPUs see it, and
    the constraints of its result and its argument. Both are "" if the target is not known."""
    if target is None or target.backend not in ("cuda", "hip"):
        return "", ""
    if target.backend == "cuda":
        return "fence.acq_rel.sys;\nmov.b32 $0, $1;", "=r,r,~{memory}"
    return store_fence(target), "=v,v,~{memory}"


# So that Triton lets kernels depend on them:
for function in (store_fence, system_fence, volatile_modifier):
    function.__triton_builtin__ = True  # type: ignore[attr-defined]
