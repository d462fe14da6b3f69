"""The tensor factories of the reference as functions of a heap: its module `tensor_creation`, and what the methods of
iris.iris() call.

Shapes, types, values and errors are torch's, because torch fills the memory: random numbers come from torch's
generators, which torch.manual_seed() seeds. `heap` is a SymmetricHeap. Factories are collective over all ranks, in the
same order with the same sizes, and return when the copies of all ranks have their values, except empty(). A factory
with `out` allocates nothing and is not collective.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Tuple

import torch

from iris import _foreign
from iris.errors import InvalidArgumentError


def allocate(heap: Any, num_elements: int, dtype: Any) -> Any:
    """Returns a tensor of one dimension on the heap, whose values are not set. Collective."""
    return heap.allocate(num_elements, dtype)


def parse_size(size: Any) -> Tuple[Tuple[int, ...], int]:
    """Returns the shape that the arguments of a factory mean, and its number of elements. A list or a tuple that is the
    only argument, or the only element of such a list, stands for its elements."""
    while len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    return tuple(size), math.prod(size)


def is_valid_device(device: Any, iris_device: Any) -> bool:
    """Returns True if `device` means the heap's device. None does, and a kind without a number. Where devices are
    emulated, in the host's memory, the name of any GPU means the rank's emulated one."""
    if device is None:
        return True
    device = torch.device(device)
    if iris_device.type == "cpu":
        return device.type in _foreign.KINDS
    return device.type == iris_device.type and device.index in (None, iris_device.index)


def throw_if_invalid_device(device: Any, iris_device: Any) -> None:
    """Raises InvalidArgumentError, a RuntimeError, unless is_valid_device()."""
    if not is_valid_device(device, iris_device):
        raise InvalidArgumentError(f"device={device}: the heap of this rank is on {iris_device}. Leave the device out, "
                                   "or name that one")


def throw_if_invalid_output_tensor(heap: Any, tensor: Any, num_elements: int, dtype: Any) -> None:
    """Raises InvalidArgumentError, a RuntimeError, if a tensor cannot be the `out` of a factory: it has another number
    of elements or another type, or is not on the heap."""
    # Programs match these texts.
    if tensor.numel() != num_elements:
        raise InvalidArgumentError(f"The output tensor has {tensor.numel()} elements, but {num_elements} are required")
    if tensor.dtype != dtype:
        raise InvalidArgumentError(f"The output tensor has dtype {tensor.dtype}, but {dtype} is required")
    if not heap.is_symmetric(tensor):
        raise InvalidArgumentError("The output tensor is not on the symmetric heap")


def apply_layout(tensor: Any, layout: Any) -> Any:
    """Returns the tensor. Raises InvalidArgumentError, a ValueError, for layouts other than torch.strided."""
    if layout not in (None, torch.strided):
        raise InvalidArgumentError(f"layout={layout}: tensors of the symmetric heap are strided")
    return tensor


def apply_memory_format(heap: Any, tensor: Any, size: Any, memory_format: Any,
                        input_tensor: Optional[Any] = None) -> Any:
    """Returns a view of a contiguous tensor whose strides are those of the format. They stay contiguous where the
    format is for another number of dimensions. To preserve a format is to take the channels_last of input_tensor. All
    elements of `tensor` must have one value, because the view has them in another order."""
    dims = len(size)
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        if dims != (4 if memory_format is torch.channels_last else 5):
            return tensor
        form = torch.empty(size, memory_format=memory_format, device="meta")
    elif memory_format is torch.preserve_format and input_tensor is not None and dims in (4, 5) and (
            input_tensor.stride(1) == 1):
        form = torch.empty_like(input_tensor, device="meta")
    else:
        return tensor
    return tensor.as_strided(tuple(size), form.stride())


def _new(heap: Any, iris_device: Any, size: Any, fill: Optional[Callable[[Any], Any]], *, out: Any, dtype: Any,
         layout: Any, device: Any, requires_grad: bool, is_zero: bool = False) -> Any:
    """Returns a tensor of the heap, or a view of `out`, which `fill` has filled. `is_zero`: it writes zeros alone."""
    throw_if_invalid_device(device, iris_device)
    apply_layout(None, layout)
    size, num_elements = parse_size(size)
    if out is not None:
        throw_if_invalid_output_tensor(heap, out, num_elements, dtype)
        tensor = out if tuple(out.shape) == size else out.view(size)
        if fill is not None:
            fill(tensor)
    else:
        made, flat = heap.new(num_elements, dtype)
        tensor = flat.view(size)
        if fill is not None:
            with heap.filling(made):
                if not (is_zero and made._storage.fresh):
                    fill(tensor)
    return tensor.requires_grad_() if requires_grad else tensor


def _default(dtype: Any) -> Any:
    return torch.get_default_dtype() if dtype is None else dtype


def zeros(heap: Any, iris_device: Any, size: Any, *, out: Any = None, dtype: Any = None, layout: Any = torch.strided,
          device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.zeros, on the heap."""
    return _new(heap, iris_device, size, torch.Tensor.zero_, out=out, dtype=_default(dtype), layout=layout,
                device=device, requires_grad=requires_grad, is_zero=True)


def ones(heap: Any, iris_device: Any, size: Any, *, out: Any = None, dtype: Any = None, layout: Any = torch.strided,
         device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.ones, on the heap."""
    return full(heap, iris_device, size, 1, out=out, dtype=_default(dtype), layout=layout, device=device,
                requires_grad=requires_grad)


def full(heap: Any, iris_device: Any, size: Any, fill_value: Any, *, out: Any = None, dtype: Any = None,
         layout: Any = torch.strided, device: Any = None, requires_grad: bool = False) -> Any:
    """Sets every element to the value. Without a dtype, integers and bools give int64, and other values torch's default
    type."""
    if dtype is None:
        dtype = torch.int64 if isinstance(fill_value, int) else torch.get_default_dtype()
    fill_value = fill_value.item() if isinstance(fill_value, torch.Tensor) else fill_value
    return _new(heap, iris_device, size, lambda tensor: tensor.fill_(fill_value), out=out, dtype=dtype, layout=layout,
                device=device, requires_grad=requires_grad)


def zeros_like(heap: Any, iris_device: Any, input: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
               requires_grad: bool = False, memory_format: Any = torch.preserve_format) -> Any:
    """As torch.zeros_like, on the heap. The device is by default that of `input`, which must be the heap's. Of its
    strides only those of the formats channels_last are preserved."""
    tensor = zeros(heap, iris_device, input.shape, dtype=input.dtype if dtype is None else dtype,
                   layout=input.layout if layout is None else layout, device=input.device if device is None else device)
    tensor = apply_memory_format(heap, tensor, input.shape, memory_format, input)
    return tensor.requires_grad_() if requires_grad else tensor


def empty(heap: Any, iris_device: Any, size: Any, *, out: Any = None, dtype: Any = None, layout: Any = torch.strided,
          device: Any = None, requires_grad: bool = False, memory_format: Any = torch.contiguous_format) -> Any:
    """As torch.empty, on the heap. It does not wait for other ranks beyond the allocation."""
    tensor = _new(heap, iris_device, size, None, out=out, dtype=_default(dtype), layout=layout, device=device,
                  requires_grad=False)
    tensor = apply_memory_format(heap, tensor, tensor.shape, memory_format)
    return tensor.requires_grad_() if requires_grad else tensor


def uniform(heap: Any, iris_device: Any, size: Any, low: float = 0.0, high: float = 1.0,
            dtype: Any = torch.float) -> Any:
    """Draws from the uniform distribution over [low, high), from torch's default generator. The size may be one
    number."""
    size = size if isinstance(size, (tuple, list)) else (size,)
    return _new(heap, iris_device, size, lambda tensor: tensor.uniform_(low, high), out=None, dtype=dtype, layout=None,
                device=None, requires_grad=False)


def _drawn(function: Any, generator: Any, *first: Any) -> Callable[[Any], Any]:
    """Returns what fills a tensor by one of torch's functions of random numbers."""
    return lambda tensor: function(*first, tensor.shape, generator=generator, out=tensor, dtype=tensor.dtype,
                                   device=tensor.device)


def randn(heap: Any, iris_device: Any, size: Any, *, generator: Any = None, out: Any = None, dtype: Any = None,
          layout: Any = torch.strided, device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.randn, on the heap."""
    return _new(heap, iris_device, size, _drawn(torch.randn, generator), out=out, dtype=_default(dtype), layout=layout,
                device=device, requires_grad=requires_grad)


def rand(heap: Any, iris_device: Any, size: Any, *, generator: Any = None, out: Any = None, dtype: Any = None,
         layout: Any = torch.strided, device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.rand, on the heap."""
    return _new(heap, iris_device, size, _drawn(torch.rand, generator), out=out, dtype=_default(dtype), layout=layout,
                device=device, requires_grad=requires_grad)


def randint(heap: Any, iris_device: Any, low: int, high: int, size: Any, *, generator: Any = None, out: Any = None,
            dtype: Any = None, layout: Any = torch.strided, device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.randint, on the heap."""
    dtype = torch.int64 if dtype is None else dtype
    return _new(heap, iris_device, size, _drawn(torch.randint, generator, low, high), out=out, dtype=dtype,
                layout=layout, device=device, requires_grad=requires_grad)


def arange(heap: Any, iris_device: Any, start: Any, end: Any, step: Any, *, out: Any = None, dtype: Any = None,
           layout: Any = torch.strided, device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.arange, on the heap. Raises InvalidArgumentError, a ValueError, if the step is 0, or the range has no
    element."""
    if step == 0:
        raise InvalidArgumentError("arange: step must be non-zero")
    if (start >= end) if step > 0 else (start <= end):
        raise InvalidArgumentError(f"arange: no number lies between {start} and {end} in steps of {step}: the step "
                                   "must lead from the start to the end")
    if dtype is None:
        dtype = torch.get_default_dtype() if any(isinstance(x, float) for x in (start, end, step)) else torch.int64
    return _new(heap, iris_device, (math.ceil((end - start) / step),),
                lambda tensor: tensor.copy_(torch.arange(start, end, step, dtype=dtype, device=tensor.device)),
                out=out, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def linspace(heap: Any, iris_device: Any, start: Any, end: Any, steps: Any, *, out: Any = None, dtype: Any = None,
             layout: Any = torch.strided, device: Any = None, requires_grad: bool = False) -> Any:
    """As torch.linspace, on the heap. The ends may be complex, or tensors without a dimension. `steps` may be in a list
    or a tuple; the product counts if there are several."""
    first, last = (x.item() if isinstance(x, torch.Tensor) else x for x in (start, end))
    if dtype is None:
        dtype = torch.get_default_dtype()
        if isinstance(first, complex) or isinstance(last, complex):
            dtype = torch.complex64 if dtype == torch.float32 else torch.complex128
    count = parse_size(steps if isinstance(steps, (tuple, list)) else (steps,))[1]

    def fill(tensor: Any) -> None:
        torch.linspace(first, last, int(count), out=tensor, dtype=dtype, device=tensor.device)

    return _new(heap, iris_device, (int(count),), fill, out=out, dtype=dtype, layout=layout, device=device,
                requires_grad=requires_grad)
