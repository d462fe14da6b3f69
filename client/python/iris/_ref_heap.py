"""The reference's heap object, `iris.iris().heap`, and its allocators, over the heap of a Context.

irisd owns the memory and maps it for all ranks when the context is made. So what the reference's programs do to share
memory, such as refresh_peer_access(), has nothing to do here, and what would hand them its file descriptors is refused.
"""

from __future__ import annotations

import abc
import contextlib
import os
from typing import Any, Iterator, List, Tuple

from iris import _foreign
from iris._shapes import parse_shape
from iris.context import Context
from iris.dtypes import DType
from iris.errors import InvalidArgumentError, ResourceExhaustedError, UnimplementedError
from iris.logging import DEBUG
from iris.tensor import Tensor

_MOVED = "_iris_moved"  # an attribute of tensors whose memory as_symmetric() has moved
# Their memory is all of irisd. "torch": as_symmetric() copies; the others: it shares memory.
ALLOCATORS = ("torch", "vmem", "vmem_chunked")


def allocator_of(allocator_type: str) -> str:
    """Returns the allocator that is meant: IRIS_ALLOCATOR overrides the argument. Raises InvalidArgumentError, a
    ValueError, for an unknown one."""
    found = os.environ.get("IRIS_ALLOCATOR", allocator_type).lower()
    if found not in ALLOCATORS:
        raise InvalidArgumentError(f"allocator_type={found!r}: one of {', '.join(ALLOCATORS)} is wanted")
    return found


class SymmetricHeap:
    """The symmetric heap of this rank, with torch's tensors. Its constructor joins the job, as iris.iris() does."""

    def __init__(self, heap_size: int, device_id: int, cur_rank: int, num_ranks: int,
                 allocator_type: str = "torch") -> None:
        place = _foreign.torch_world() or {"rank": cur_rank, "n_ranks": num_ranks, "local_rank": device_id}
        self._begin(Context(heap_size, **place), heap_size, allocator_of(allocator_type))

    @classmethod
    def of(cls, context: Context, heap_size: int, allocator_type: str) -> "SymmetricHeap":
        """Returns the heap of a context."""
        self = cls.__new__(cls)
        self._begin(context, heap_size, allocator_type)
        return self

    def _begin(self, context: Context, heap_size: int, allocator_type: str) -> None:
        self.context = context
        self.heap_size = heap_size
        self.device_id = context.device_index
        self.cur_rank, self.num_ranks = context.rank, context.n_ranks
        self.heap_bases = _foreign.words_on_device(context, context.heap_bases)
        self.fd_conns = None  # the reference's connections to other ranks
        self.shares = allocator_type != "torch"
        if self.shares:
            _foreign.make_torch_memory_shareable(context)
        self.allocator = VMemAllocator._of(self) if self.shares else TorchAllocator._of(self)

    def new(self, num_elements: int, dtype: Any, alignment: int = 1024) -> Tuple[Tensor, Any]:
        """Allocates as allocate() does. Returns the memory as a tensor of Iris, and as one of torch."""
        (count,) = parse_shape((num_elements,))
        kind, n = _foreign.dtype_or_bytes(dtype, max(count, 1))  # an empty tensor has a place of its own, too
        made = self.context.heap.allocate(self.context.world, (n,), kind, None, alignment)
        flat = _foreign.torch_view(made)
        return made, (flat if flat.dtype == dtype else flat.view(dtype))[:count]

    @contextlib.contextmanager
    def filling(self, made: Tensor) -> Iterator[None]:
        """Runs a block in which torch fills a new tensor. Waits for torch, and then for the other ranks' blocks: see
        Heap.filling."""
        with self.context.heap.filling(made), _foreign.own_torch_stream(self.context):
            yield

    def allocate(self, num_elements: int, dtype: Any, alignment: int = 1024) -> Any:
        """Returns a tensor of torch of one dimension at one offset of all ranks' heaps. Its values are not set.
        Collective over all ranks. Raises ResourceExhaustedError, a MemoryError, if there is no room."""
        return self.new(num_elements, dtype, alignment)[1]

    def get_device(self) -> Any:
        """Returns the rank's device as a torch.device."""
        return _foreign.torch_device(self.context)

    def on_symmetric_heap(self, tensor: Any) -> bool:
        """Returns True if the tensor's memory lies in this rank's heap, or if the tensor is empty. As in the reference,
        the argument of as_symmetric() is not symmetric afterwards, but its result is."""
        return tensor.numel() == 0 or (not getattr(tensor, _MOVED, False) and
                                       self.context.is_symmetric_at(tensor.data_ptr()))

    is_symmetric = on_symmetric_heap

    def get_heap_bases(self) -> Any:
        """Returns the address of each rank's heap in this process, as a tensor for kernels."""
        return self.heap_bases

    def refresh_peer_access(self) -> None:
        """Does nothing: irisd has mapped all heaps in all ranks, and maps what they grow by."""

    def close_fd_conns(self) -> None:
        """Does nothing: ranks have no connections among themselves."""

    def as_symmetric(self, external_tensor: Any) -> Any:
        """Returns a symmetric tensor with the values of a contiguous tensor of torch on the rank's device. Collective
        over all ranks, which give the same size and type.

        With the allocator "torch" it is a copy. With "vmem" both tensors have the same memory. If that of
        external_tensor cannot be shared (see Context.as_symmetric), external_tensor moves into the heap: its `data`
        becomes the copy. Other views of the old memory, for instance the tensor that it is a slice of, keep that.
        Raises InvalidArgumentError, a RuntimeError, for a tensor that is not contiguous or not on the device."""
        context = self.context
        flat = _foreign.bytes_of_torch(context, external_tensor)
        if self.shares:
            try:
                shared = context.as_symmetric(flat)
                shared = shared if shared is flat else _foreign.torch_view(shared)
                return shared.view(external_tensor.dtype).view(external_tensor.shape)
            except (InvalidArgumentError, ResourceExhaustedError) as reason:
                # All ranks get an error, and all of them copy.
                context.log(DEBUG, f"as_symmetric: the tensor moves into the heap: {reason}")
        made, copy = self.new(external_tensor.numel(), external_tensor.dtype)
        copy = copy.view(external_tensor.shape)
        with context.heap.filling(made):
            copy.copy_(external_tensor.detach())
            context.stream_for(None)[0].synchronize()
        if self.shares:
            external_tensor.data = copy
            setattr(external_tensor, _MOVED, True)
        return copy


class BaseAllocator(abc.ABC):
    """The base of an allocator of the reference: memory of one rank."""

    def __init__(self, heap_size: int, device_id: int, cur_rank: int, num_ranks: int) -> None:
        self.heap_size, self.device_id = heap_size, device_id
        self.cur_rank, self.num_ranks = cur_rank, num_ranks

    def get_minimum_allocation_size(self) -> int:
        """Returns the bytes of the smallest allocation; 0: there is no such limit."""
        return 0

    @abc.abstractmethod
    def get_base_address(self) -> int:
        """Returns the address of this rank's heap."""

    @abc.abstractmethod
    def get_device(self) -> Any:
        """See SymmetricHeap.get_device."""

    @abc.abstractmethod
    def allocate(self, num_elements: int, dtype: Any, alignment: int = 1024) -> Any:
        """See SymmetricHeap.allocate."""

    @abc.abstractmethod
    def owns_tensor(self, tensor: Any) -> bool:
        """See SymmetricHeap.on_symmetric_heap."""


class TorchAllocator(BaseAllocator):
    """The allocator of a SymmetricHeap, which is its attribute `allocator`. It has no constructor of its own, because
    irisd allocates."""

    _heap: SymmetricHeap
    aligned_heap_size: int

    def __init__(self, heap_size: int, device_id: int, cur_rank: int, num_ranks: int) -> None:
        raise UnimplementedError(f"{type(self).__name__}: irisd owns the memory of heaps: make a heap with "
                                 "iris.iris(), whose heap.allocator this is")

    @classmethod
    def _of(cls, heap: SymmetricHeap) -> "TorchAllocator":
        self = cls.__new__(cls)
        BaseAllocator.__init__(self, heap.heap_size, heap.device_id, heap.cur_rank, heap.num_ranks)
        self._heap = heap
        self.aligned_heap_size = heap.context.heap_bytes
        return self

    @property
    def device(self) -> Any:
        """The rank's device."""
        return self.get_device()

    def get_base_address(self) -> int:
        """Returns the address of this rank's heap."""
        return self._heap.context.heap_bases[self.cur_rank]

    def get_device(self) -> Any:
        """See SymmetricHeap.get_device."""
        return self._heap.get_device()

    def allocate(self, num_elements: int, dtype: Any, alignment: int = 1024) -> Any:
        """See SymmetricHeap.allocate."""
        return self._heap.allocate(num_elements, dtype, alignment)

    def owns_tensor(self, tensor: Any) -> bool:
        """See SymmetricHeap.on_symmetric_heap."""
        return self._heap.on_symmetric_heap(tensor)

    def import_external_tensor(self, external_tensor: Any) -> Any:
        """See SymmetricHeap.as_symmetric."""
        return self._heap.as_symmetric(external_tensor)

    def close(self) -> None:
        """Leaves the job: see Context.close."""
        self._heap.context.close()

    def _refused(self, *unused: Any, **also: Any) -> Any:
        """Raises UnimplementedError."""
        raise UnimplementedError("irisd has mapped the heaps of all ranks already, and gives no rank a descriptor of "
                                 "their memory: use get_heap_bases(), or as_symmetric(tensor) for memory of torch")

    get_shareable_handle = establish_peer_access = _refused


class VMemAllocator(TorchAllocator):
    """The allocator whose import_external_tensor() shares memory. See TorchAllocator."""

    def __init__(self, heap_size: int, device_id: int, rank: int, world_size: int,
                 va_multiplier: float = 1.0) -> None:
        super().__init__(heap_size, device_id, rank, world_size)

    @property
    def base_va(self) -> int:
        """The address of this rank's heap."""
        return self.get_base_address()

    def get_allocation_segments(self) -> List[Tuple[int, int, int]]:
        """Returns (offset, bytes, address) of the heap's memory, which is one range."""
        return [(0, self.aligned_heap_size, self.base_va)]
