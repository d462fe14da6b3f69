"""Tensor: memory of the symmetric heap with a shape, strides, a type and perhaps a name.

A tensor is a view of a storage (see _heap.py). Slices, reshapes and peers' copies are views of the same storage, which
stays while any of them, or an array of numpy, torch or cupy made of them, exists. After free(), after the context's
close() and in a forked child every use raises FailedPreconditionError. Only free() is collective. Dropping a tensor
makes no call.
"""

from __future__ import annotations

import ctypes
import math
import operator
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Tuple, Union

import numpy

from iris import _capi, _fill, _foreign
from iris._shapes import contiguous_strides, is_contiguous, parse_shape
from iris.dtypes import DType, DTypeLike
from iris.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError, UnimplementedError

if TYPE_CHECKING:
    from iris.context import Context
    from iris.team import Team


class _ArrayBase:
    """The base of a numpy array, which keeps the memory."""

    def __init__(self, interface: Any, keep: Any) -> None:
        self.__array_interface__ = interface
        self.keep = keep


class Storage:
    """One range of the heap. `address` is for use in this process, `symmetric` stands for it in this rank's heap, and
    `owner` is the only rank that has it (None: every member of the team). `free` is the C function that frees it."""

    def __init__(self, context: "Context", team: Optional["Team"], allocation: Any, name: Optional[str],
                 owner: Optional[int] = None, symmetric: Optional[int] = None, free: str = "iris_free") -> None:
        self.context = context
        self.team = team
        self.allocation = allocation
        self.name = name
        self.owner = owner
        self.address = allocation.address or 0
        self.symmetric = self.address if symmetric is None else symmetric
        self.bytes = allocation.bytes
        self.fresh = bool(getattr(allocation, "fresh", 0))  # nobody has had this rank's memory before: it is zero
        self.free = free
        self.freed = False
        self.symm_mem: Any = None  # for rendezvous(), if symm_mem.empty() made it
        self.dropped: Any = None  # the weakref.finalize that records the number

    def check(self) -> None:
        """Raises FailedPreconditionError, with the reason, if the memory must not be used any more."""
        context = self.context
        if not self.freed and context._native is not None and context._generation == _capi.generation:
            return
        what = f"the tensor '{self.name}'" if self.name else "a tensor"
        if self.freed:
            raise FailedPreconditionError(f"{what} of the heap was used after it was freed: allocate another one")
        if context.closed:
            raise FailedPreconditionError(f"{what} of the heap was used after its context was closed: copy what you "
                                          "need before, for instance with tensor.numpy().copy()")
        raise FailedPreconditionError(_capi.FORKED.format(f"{what} of the heap"))


class Tensor(_foreign.DeviceArrayInterface):
    """Memory of the heap with a shape. Made by the factories of Context; not by its constructor."""

    def __init__(self, storage: Storage, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]],
                 dtype: DType, offset: int = 0, shift: int = 0, rank: Optional[int] = None) -> None:
        self._storage = storage
        self._offset = offset  # bytes from the storage's beginning
        self._shift = shift  # bytes from this rank's copy to the viewed copy
        self.shape = shape
        self.strides = contiguous_strides(shape) if strides is None else strides
        self.dtype = dtype
        self.count = math.prod(shape)
        """The number of elements."""
        self.contiguous = strides is None or is_contiguous(shape, strides)
        """True if they follow each other without a gap."""
        own = storage.context.rank if storage.owner is None else storage.owner
        self.rank = own if rank is None else rank
        """The rank whose copy this is."""

    @property
    def context(self) -> "Context":
        """The context of the tensor's heap."""
        return self._storage.context

    @property
    def name(self) -> Optional[str]:
        """The name that iris-ctl shows."""
        return self._storage.name

    @property
    def device(self) -> str:
        """torch's name of the device; "cpu" if devices are emulated."""
        return _foreign.device_name(self.context)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * self.dtype.itemsize

    @property
    def offset_bytes(self) -> int:
        """The tensor's offset in the heap, the same on every rank that allocated it."""
        self._storage.check()
        return self._storage.allocation.offset_bytes + self._offset

    def numel(self) -> int:
        """Returns the number of elements."""
        return self.count

    def element_size(self) -> int:
        """Returns the size of one element in bytes."""
        return self.dtype.itemsize

    def size(self, dim: Optional[int] = None) -> Union[int, Tuple[int, ...]]:
        """Returns the shape, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: Optional[int] = None) -> Union[int, Tuple[int, ...]]:
        """Returns the strides in elements, or one of them."""
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self) -> bool:
        """Returns `contiguous`."""
        return self.contiguous

    def data_ptr(self) -> int:
        """Returns the address of the first element in this process, for kernels and copies. Raises UnimplementedError
        if it is in the heap of a rank of another node."""
        self._storage.check()
        if self.rank != self.context.rank and not self.context.reaches(self.rank):
            raise UnimplementedError(f"rank {self.rank} is on another node, and its memory is not mapped here: use "
                                     "put() and get()")
        return self._storage.address + self._offset + self._shift

    def symmetric_ptr(self) -> int:
        """The address in this rank's heap that stands for the tensor in put, get and signals. It is data_ptr() for
        memory that all ranks have. Memory that only a peer has is reached with this address and the peer's number."""
        self._storage.check()
        return self._storage.symmetric + self._offset

    @property
    def freed(self) -> bool:
        """True after free()."""
        return self._storage.freed

    def _view(self, shape: Sequence[int], strides: Optional[Sequence[int]], dtype: Optional[DType] = None,
              offset: Optional[int] = None) -> "Tensor":
        self._storage.check()
        return Tensor(self._storage, tuple(shape), None if strides is None else tuple(strides), dtype or self.dtype,
                      self._offset if offset is None else offset, self._shift, self.rank)

    def at(self, rank: int) -> "Tensor":
        """Returns a view of the same place in another rank's heap: on GPUs for kernels and copies, on emulated devices
        also for numpy. If the rank is on another node, it is for the peer's side of put, get and signals alone. Raises
        OutOfRangeError for no such rank, InvalidArgumentError if the rank has no copy."""
        storage, context = self._storage, self.context
        storage.check()
        rank = operator.index(rank)
        context.check_rank(rank)
        if rank != self.rank and (storage.team is None or rank not in storage.team.ranks):
            owners = f"rank {storage.owner} alone" if storage.team is None else f"the ranks {list(storage.team.ranks)}"
            raise InvalidArgumentError(f"rank {rank} has no copy of this tensor, which was allocated by {owners}")
        if storage.team is None:
            return self
        return Tensor(storage, self.shape, self.strides, self.dtype, self._offset,
                      (rank - context.rank) * context.stride_bytes, rank)

    def view_dtype(self, dtype: DTypeLike) -> "Tensor":
        """Views the bits as another type of the same size. Raises InvalidArgumentError if the sizes differ."""
        dtype = DType.of(dtype)
        if dtype.itemsize != self.dtype.itemsize:
            raise InvalidArgumentError(f"elements of {self.dtype.long_name} have {self.dtype.itemsize} bytes and those "
                                       f"of {dtype.long_name} {dtype.itemsize}: view_dtype changes no sizes")
        return self._view(self.shape, self.strides, dtype)

    def reshape(self, *shape: Any) -> "Tensor":
        """Views the elements in another shape; one extent may be -1. Raises InvalidArgumentError if the shape has
        another number of elements, or if the tensor is not contiguous."""
        if len(shape) == 1 and not hasattr(shape[0], "__index__"):
            (shape,) = shape
        wanted = [operator.index(extent) for extent in shape]
        if wanted.count(-1) == 1:
            rest = -math.prod(wanted)
            if rest <= 0 or self.count % rest:
                raise InvalidArgumentError(f"{self.count} elements do not fit into the shape {tuple(wanted)}")
            wanted[wanted.index(-1)] = self.count // rest
        if math.prod(parse_shape(wanted)) != self.count:
            raise InvalidArgumentError(f"a tensor of shape {self.shape} has {self.count} elements, and the shape "
                                       f"{tuple(wanted)} has {math.prod(wanted)}")
        if not self.contiguous:
            raise InvalidArgumentError(f"a tensor of shape {self.shape} and strides {self.strides} is not contiguous: "
                                       "it has no other shape without a copy")
        return self._view(wanted, None)

    view = reshape

    def __getitem__(self, index: Any) -> "Tensor":
        """Returns a view. The index has integers, slices of positive step, and one ellipsis."""
        items = list(index) if isinstance(index, tuple) else [index]
        if items.count(Ellipsis) > 1 or sum(item is not Ellipsis for item in items) > self.ndim:
            raise OutOfRangeError(f"{index!r} has more parts than the shape {self.shape} has dimensions")
        missing = self.ndim - sum(item is not Ellipsis for item in items)
        at = items.index(Ellipsis) if Ellipsis in items else len(items)
        items[at:at + 1] = [slice(None)] * missing
        shape, strides, offset = [], [], self._offset
        for item, extent, stride in zip(items, self.shape, self.strides):
            if isinstance(item, slice):
                start, stop, step = item.indices(extent)
                if step < 0:
                    raise InvalidArgumentError("a slice of a tensor has a positive step")
                shape.append(len(range(start, stop, step)))
                strides.append(stride * step)
                offset += start * stride * self.dtype.itemsize if shape[-1] else 0
            elif hasattr(item, "__index__"):
                number = operator.index(item)
                if not -extent <= number < extent:
                    raise OutOfRangeError(f"{number} is outside a dimension of {extent}")
                offset += (number % extent) * stride * self.dtype.itemsize
            else:
                raise TypeError(f"a tensor is indexed by integers and slices, and not by {type(item).__name__}")
        return self._view(shape, strides, offset=offset)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Sets all elements of a view to a number, or to values that fit the view."""
        view = self[index]
        if hasattr(value, "shape") or isinstance(value, (list, tuple)):
            view.copy_(value)
        else:
            view.fill_(value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    def _export(self) -> Any:
        """Returns an owner of the storage and the mappings for another library: they then outlive Context.close()."""
        return self._storage, self.context.native()

    def _array_interface(self) -> Any:
        strides = None if self.contiguous else tuple(s * self.dtype.itemsize for s in self.strides)
        # An empty tensor has no address.
        return {"shape": self.shape, "typestr": numpy.dtype(self.dtype.numpy_storage).str, "strides": strides,
                "data": (self.data_ptr(), False)}

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy() if self.context.on_host else self.to_host()
        return array if dtype is None else array.astype(dtype, copy=bool(copy))

    def numpy(self) -> Any:
        """Returns the memory itself as an array of numpy, if devices are emulated. bfloat16 and 8-bit floats become the
        unsigned integers of their bits. Raises FailedPreconditionError for a GPU's memory; see to_host()."""
        if not self.context.on_host:
            raise FailedPreconditionError(f"the tensor is on {self.device}, which numpy cannot read: use "
                                          "tensor.to_host() for a copy, or torch, or cupy")
        interface = dict(self._array_interface(), version=3)
        return numpy.asarray(_ArrayBase(interface, self._export()))

    def torch(self) -> Any:
        """Returns the memory itself as a tensor of torch."""
        return _foreign.torch_view(self)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: Optional[bool] = None) -> Any:
        """Exports the memory by DLPack, without a copy. Waits for the work on the context's own stream."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.device} and stays there: dl_device={dl_device} is not offered")
        if copy:
            raise BufferError("a copy is not offered: copy the array that DLPack gives")
        self._storage.check()
        self.context.quiesce_own()
        return _foreign.dlpack_capsule(self)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _foreign.dlpack_device(self.context)

    def to_host(self) -> Any:
        """Returns a copy of the values as an array of numpy, after waiting for it."""
        self._storage.check()
        self.context.quiesce_own()
        if self.context.on_host:
            return self.numpy().copy()
        if not self.contiguous:
            raise InvalidArgumentError("a tensor that is not contiguous is not copied from a GPU: copy the whole one")
        array = numpy.empty(self.shape, self.dtype.numpy_storage)
        self.context.copy_now(array.ctypes.data, self.data_ptr(), self.nbytes)
        return array

    def copy_(self, values: Any) -> "Tensor":
        """Fills the tensor with values that numpy can read, a tensor of torch, or another tensor of the heap, of the
        same shape or one that broadcasts to it. Returns the tensor."""
        self._storage.check()
        context = self.context
        context.quiesce_own()
        if _foreign.is_torch_tensor(values):
            _foreign.copy_from_torch(self, values)
            return self
        if isinstance(values, Tensor):
            if values.dtype is not self.dtype:
                values = _fill.as_numbers(values.to_host(), values.dtype)
            elif values.contiguous and self.contiguous and values.shape == self.shape:
                context.copy_now(self.data_ptr(), values.data_ptr(), self.nbytes)
                return self
            else:
                values = values.to_host()
        array = numpy.asarray(values)
        if array.dtype.kind in "OSUMm":
            raise InvalidArgumentError(f"a tensor is not filled with {type(values).__name__} of the type "
                                       f"{array.dtype}: numbers are wanted, of which numpy makes an array")
        if self.dtype.numpy_name is None and array.dtype != numpy.dtype(self.dtype.numpy_storage):
            array = _fill.round_to(array, self.dtype)
        try:
            array = numpy.broadcast_to(array, self.shape).astype(self.dtype.numpy_storage, order="C")
        except ValueError:
            raise InvalidArgumentError(f"values of shape {array.shape} do not fill a tensor of shape "
                                       f"{self.shape}") from None
        if context.on_host:
            self.numpy()[...] = array
        elif self.contiguous:
            context.copy_now(self.data_ptr(), array.ctypes.data, self.nbytes)
        else:
            raise InvalidArgumentError("a tensor that is not contiguous is not filled on a GPU: fill the whole one")
        return self

    def _fill(self, kind: str, **numbers: Any) -> "Tensor":
        """Fills the tensor in row-major order, by the device, and waits. `numbers` are those of iris_fill_options.
        Raises InvalidArgumentError if they make no sequence of the tensor's type."""
        address, context = self.data_ptr(), self.context
        context.quiesce_own()
        if self.count == 0:
            return self
        for name in ("whole_start", "whole_end", "whole_step"):
            if name in numbers:  # as the bits of an int64
                numbers[name] = (numbers[name] + 2**63) % 2**64 - 2**63
        options = _capi.iris_fill_options(kind=_fill.KINDS[kind], dtype=int(self.dtype), count=self.count, **numbers)
        if not self.contiguous:
            if self.ndim > _fill.MAX_DIMS:
                raise InvalidArgumentError(f"a tensor of shape {self.shape} is not contiguous, and of these at most "
                                           f"{_fill.MAX_DIMS} dimensions are filled: fill slices of it")
            array = ctypes.c_int64 * self.ndim
            options.n_dims, options.shape, options.strides = self.ndim, array(*self.shape), array(*self.strides)
        stream, _ = context.stream_for(None)
        _capi.library().iris_fill(context.handle, address, ctypes.byref(options), stream.handle)
        stream.synchronize()
        return self

    def fill_(self, value: Any) -> "Tensor":
        """Sets every element to the value. Returns the tensor."""
        return self._fill("value", **_fill.value_numbers(value, self.dtype))

    def zero_(self) -> "Tensor":
        """Sets every element to 0. Returns the tensor."""
        return self.fill_(0)

    def item(self) -> Any:
        """Returns the value of the only element. Raises InvalidArgumentError if there are more, or none."""
        if self.count != 1:
            raise InvalidArgumentError(f"item() is for one element, and a tensor of shape {self.shape} has "
                                       f"{self.count}")
        return self.tolist() if not self.shape else self.reshape(()).tolist()

    def tolist(self) -> Any:
        """Returns the values as lists of Python's numbers."""
        return _fill.as_numbers(self.to_host(), self.dtype).tolist()

    def free(self) -> None:
        """Frees the memory now, for all its views. Collective over the ranks that allocated it; memory that one rank
        allocated alone is freed by that rank alone. Raises FailedPreconditionError if it was freed already."""
        self._storage.check()
        self.context.quiet()
        self.context.heap.free(self._storage)

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ", closed" if self.context.closed else ""
        named = f", name={self.name!r}" if self.name else ""
        whose = f", rank={self.rank}" if self.rank != self.context.rank else ""
        return f"iris.Tensor(shape={self.shape}, dtype={self.dtype.long_name}{named}{whose}{state})"
