"""Symmetric memory in the shape of torch.distributed._symmetric_memory:

    import iris.symm_mem as symm_mem

    buffer = symm_mem.empty(1024, dtype=torch.float32)      # not collective
    handle = symm_mem.rendezvous(buffer, group=None)        # collective over the group
    peer = handle.get_buffer(rank, (1024,), torch.float32)
    handle.put_signal(dst_rank=1)                           # on rank 0
    handle.wait_signal(src_rank=0)                          # on rank 1

empty() allocates in this rank's heap alone, with room for signals after the buffer, and rendezvous() opens the buffers
of the others. So ranks may drop their buffers in any order, without waiting. rendezvous() takes other tensors, too, if
Context.as_symmetric() can share their memory. Tensors are torch's if torch is installed. The context is the one made
last; without any, one is made from the environment.

A group is None (all ranks), a team of Iris, or torch's group of all ranks, or that group's name.
Ranks in calls of a handle are places in its group, as in torch.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

from iris import _foreign
from iris.context import Context, current_context
from iris._shapes import bytes_of, parse_shape
from iris.dtypes import DType, DTypeLike
from iris.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from iris.team import Team
from iris.tensor import Tensor

_ALIGNMENT = 16
_CHANNELS = 16
_own_context: Optional[Context] = None
_pad_bytes = 2048


def get_signal_pad_size() -> int:
    """Returns the size, in bytes, of the signal pad of buffers that empty() will make."""
    return _pad_bytes


def set_signal_pad_size(size: int) -> None:
    """Sets the size of the signal pad. All ranks set the same size, before empty()."""
    global _pad_bytes
    if size < 4 or size % 4:
        raise InvalidArgumentError(f"a signal pad of {size} bytes: it is of 4-byte words, at least one")
    _pad_bytes = size


def _context() -> Context:
    global _own_context
    found = current_context()
    if found is None:
        _own_context = found = Context(**_foreign.torch_world())
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _signal_bytes(context: Context) -> int:
    """Returns the size of a signal pad with the words of put_signal() and wait_signal() after it."""
    return _aligned(_pad_bytes) + 2 * 8 * _CHANNELS * context.n_ranks


def _give(tensor: Tensor) -> Any:
    if _foreign.importable_torch() is None:
        return tensor
    if not tensor.count:  # a view of an element, which is there: signals follow each buffer
        return tensor._view((1,), None).torch()[:0].reshape(tensor.shape)
    return tensor.torch()


def _whole(storage: Any) -> Tensor:
    return Tensor(storage, (storage.bytes,), None, DType.U8)


def _part(base: Tensor, at: int, shape: Tuple[int, ...], dtype: DType) -> Tensor:
    """Returns a view of the memory from byte `at` of a tensor on."""
    return base._view(shape, None, dtype, base._offset + at)


def empty(*size: Any, dtype: Optional[DTypeLike] = None, device: Any = None) -> Any:
    """Allocates memory for a rendezvous in this rank's heap. Not collective. Only the signals after it are cleared."""
    context = _context()
    _foreign.check_device(context, device)
    shape = parse_shape(size)
    kind = _foreign.dtype_of(dtype)
    nbytes = bytes_of(shape, kind)
    pad_at = _aligned(nbytes)
    whole = context.allocate_local(pad_at + _signal_bytes(context))
    whole[pad_at:].zero_()
    whole._storage.symm_mem = (nbytes, _pad_bytes)
    return _give(Tensor(whole._storage, shape, None, kind))


def _storage_of(context: Context, tensor: Any) -> Any:
    """Returns the storage of a tensor that empty() made, or None for other tensors."""
    storage: Any
    if isinstance(tensor, Tensor):
        storage = tensor._storage
    elif _foreign.is_torch_tensor(tensor):
        storage = context.heap.find(_foreign.storage_address(tensor))
    else:
        storage = context.heap.find(_foreign.buffer_of(context, tensor, "the tensor").address)
    return None if storage is None or storage.symm_mem is None else storage


_serial = 0


def rendezvous(tensor: Any, group: Any = None) -> "SymmetricMemory":
    """Makes every member's buffer reachable for all members: a tensor of empty(), or on all ranks one whose memory
    Context.as_symmetric() can share, as that of the factories. Collective over the group. Buffers must have the same
    number of bytes. A second rendezvous of the same buffer with the same group returns the same handle, without waiting
    for the other members, as long as the first handle exists.

    Raises InvalidArgumentError on all ranks, with the rank and the reason, if a buffer cannot be shared."""
    global _serial
    context = _context()
    team = _team_of(context, group)
    storage = _storage_of(context, tensor)
    if storage is None:
        return _rendezvous_of_others(context, tensor, team)
    storage.check()
    made = storage.symm_mem
    handles: Dict[int, SymmetricMemory] = storage.__dict__.setdefault("symm_mem_handles", {})
    if team.id not in handles:
        if storage.name is None:
            _serial += 1
            context.publish(_whole(storage), f"symm_mem {_serial}")
        names = _agree(context, team, made, storage.name)
        # None stands for the own storage, which refers to the handle: a cycle would wait for Python's collector.
        opened = [None if rank == context.rank else context.open(rank, name) for rank, name in zip(team.ranks, names)]
        handle = SymmetricMemory(context, team, opened, weakref.ref(storage), *made)
        context.barrier(team)  # all members have opened before one may drop
        handles[team.id] = handle
    return handles[team.id]


def _agree(context: Context, team: Team, made: Tuple[int, int], name: Optional[str]) -> List[Any]:
    """Returns the names of all members' buffers, None for those that empty() has not made. Raises InvalidArgumentError
    on all ranks if some sizes differ, or some names are None and others not."""
    told = context.all_gather_object((name, made), team=team)
    for member, (its_name, theirs) in zip(team.ranks, told):
        if theirs != told[0][1]:
            raise InvalidArgumentError(f"rendezvous: rank {team.ranks[0]} has a buffer of {told[0][1][0]} bytes with a "
                                       f"signal pad of {told[0][1][1]}, and rank {member} one of {theirs[0]} with "
                                       f"{theirs[1]}: they must be the same")
        if (its_name is None) != (told[0][0] is None):
            raise InvalidArgumentError(f"rendezvous: only one of the ranks {team.ranks[0]} and {member} gives a tensor "
                                       "of symm_mem.empty(): give the same kind on all ranks")
    return [its_name for its_name, _ in told]


def _rendezvous_of_others(context: Context, tensor: Any, team: Team) -> "SymmetricMemory":
    """Makes the handle of a tensor that empty() has not made."""
    buffer = _foreign.buffer_of(context, tensor, "rendezvous: the tensor")
    known: Any = context.__dict__.setdefault("symm_mem_handles", weakref.WeakValueDictionary())
    key = buffer.address, buffer.nbytes, team.id
    handle = known.get(key)
    if handle is None:
        _agree(context, team, (buffer.nbytes, _pad_bytes), None)
        try:
            shared = context.as_symmetric(tensor, team=team)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"rendezvous: {error}; symm_mem.empty() makes tensors that can be "
                                       "shared") from None
        place = _foreign.buffer_of(context, shared, "rendezvous: the tensor").address
        storage = context.heap.find(place)
        if storage is None or storage.team is None:  # of iris.mem_pool() or allocate_local()
            raise InvalidArgumentError("rendezvous: ranks have allocated the tensor's memory in their heaps alone: use "
                                       "symm_mem.empty() or a factory")
        whole = Tensor(storage, (buffer.nbytes,), None, DType.U8, place - storage.address)
        signals = context.allocate(_signal_bytes(context), team=team).zero_()
        views: List[Optional[Tensor]] = [whole.at(rank) for rank in team.ranks]
        handle = known[key] = SymmetricMemory(context, team, views, None, buffer.nbytes, _pad_bytes,
                                              [signals.at(rank) for rank in team.ranks], tensor)
        context.barrier(team)  # all signals are zero
    return handle


def _team_of(context: Context, group: Any) -> Team:
    if group is None or isinstance(group, Team):
        return context.team_of(group)
    ranks = _foreign.ranks_of_group(_foreign.group_of_name(group) if isinstance(group, str) else group)
    if ranks == context.world.ranks:
        return context.world
    raise FailedPreconditionError(f"the group of the ranks {list(ranks)} is not the world: give a team, which "
                                  "context.team(ranks) makes on all ranks")


class SymmetricMemory:
    """The result of rendezvous()."""

    def __init__(self, context: Context, team: Team, views: List[Optional[Tensor]], own: Any, nbytes: int, pad: int,
                 signals: Optional[List[Tensor]] = None, keep: Any = None) -> None:
        self._context = context
        self._team = team
        self._views = views
        self._own = own
        self._signals = signals
        self._keep = keep
        self.buffer_size = nbytes
        """Bytes of each buffer."""
        self.signal_pad_size = pad
        """Bytes of each signal pad."""
        self._pad_at = _aligned(nbytes) if signals is None else 0
        self._words_at = _aligned(self._pad_at + pad)
        self._sent: Dict[Tuple[int, int], int] = {}
        self._seen: Dict[Tuple[int, int], int] = {}

    def _bytes_of(self, place: int) -> Tensor:
        if not 0 <= place < len(self._views):
            raise OutOfRangeError(f"{place} is no place in a group of {len(self._views)} ranks")
        view = self._views[place]
        if view is None:
            storage = self._own()
            if storage is None:
                raise FailedPreconditionError("the buffer of this handle was dropped: keep the tensor of empty()")
            view = _whole(storage)
        return view

    def _signals_of(self, place: int) -> Tensor:
        """Returns the memory with a member's signals, from byte _pad_at on."""
        return self._bytes_of(place) if self._signals is None else self._signals[place]

    @property
    def rank(self) -> int:
        """The place of this rank in the group."""
        return self._team.index

    @property
    def world_size(self) -> int:
        """The number of ranks of the group."""
        return self._team.n_ranks

    @property
    def buffer_ptrs(self) -> List[int]:
        """The addresses of all buffers in this process, for kernels."""
        return [self._bytes_of(place).data_ptr() for place in range(self.world_size)]

    @property
    def signal_pad_ptrs(self) -> List[int]:
        """The addresses of all signal pads."""
        return [self._signals_of(place).data_ptr() + self._pad_at for place in range(self.world_size)]

    def _view(self, base: Tensor, begin: int, room: int, sizes: Sequence[int], dtype: DTypeLike, offset: int,
              what: str) -> Any:
        dtype = DType.of(dtype)
        shape = parse_shape((tuple(sizes),))
        first = offset * dtype.itemsize
        nbytes = bytes_of(shape, dtype)
        if offset < 0 or first + nbytes > room:
            raise InvalidArgumentError(f"{what}: {nbytes} bytes from byte {first} on are not in its {room} bytes")
        return _give(_part(base, begin + first, shape, dtype))

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: DTypeLike, storage_offset: int = 0) -> Any:
        """Returns a member's buffer, from element storage_offset on, as a tensor."""
        return self._view(self._bytes_of(rank), 0, self.buffer_size, sizes, dtype, storage_offset, "get_buffer")

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: DTypeLike) -> Any:
        """Works as get_buffer(), from the first element on."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(self, rank: int, sizes: Sequence[int] = (), dtype: Optional[DTypeLike] = None,
                       storage_offset: int = 0) -> Any:
        """A member's signal pad, all of it without sizes; uint32 without a type (int32 if torch lacks uint32)."""
        if dtype is None:
            torch = _foreign.importable_torch()
            dtype = DType.U32 if torch is None or hasattr(torch, "uint32") else DType.I32
        kind = DType.of(dtype)
        if not sizes:
            sizes = ((self.signal_pad_size - storage_offset * kind.itemsize) // kind.itemsize,)
        return self._view(self._signals_of(rank), self._pad_at, self.signal_pad_size, sizes, kind, storage_offset,
                          "get_signal_pad")

    def _channel(self, channel: int) -> int:
        if not 0 <= channel < _CHANNELS:
            raise OutOfRangeError(f"channel {channel}: there are {_CHANNELS}, from 0")
        return channel

    def _word(self, place: int, channel: int, other: int, taken: bool) -> Tensor:
        """Returns a word in a member's memory: how many signals `other` has sent to the member on a channel, or taken
        from it."""
        at = self._words_at + 8 * ((taken * _CHANNELS + channel) * self._context.n_ranks + other)
        return _part(self._signals_of(place), at, (1,), DType.U64)

    def _wait(self, word: Tensor, value: int, timeout_ms: int, text: str) -> None:
        try:
            self._context.wait_signal(word, value, "ge", timeout=timeout_ms / 1000 if timeout_ms else None)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{text}: {error}") from None

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Waits for the device, then for all members."""
        self._channel(channel)
        self._context.barrier(self._team, timeout=timeout_ms / 1000 if timeout_ms else None)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Sends a signal to a member on a channel, after earlier work on the device. First it waits until the member
        has waited for the signal before. Raises DeadlineExceededError if that does not happen within timeout_ms, or if
        that is 0, within the context's timeout."""
        key = (dst_rank, self._channel(channel))
        word = self._word(dst_rank, channel, self.rank, False)
        sent = self._sent.get(key, 0)
        if sent:
            self._wait(self._word(self.rank, channel, dst_rank, True), sent, timeout_ms,
                       f"put_signal: rank {dst_rank} has not taken the signal before on channel {channel}")
        self._context.quiesce()
        self._sent[key] = sent + 1
        self._context.signal(word, sent + 1, self._team.ranks[dst_rank])

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Waits for the next signal of a member on a channel. Raises DeadlineExceededError if it does not arrive within
        timeout_ms, or if that is 0, within the context's timeout."""
        key = (src_rank, self._channel(channel))
        taken = self._word(src_rank, channel, self.rank, True)  # an error if there is no such place
        seen = self._seen.get(key, 0) + 1
        self._wait(self._word(self.rank, channel, src_rank, False), seen, timeout_ms,
                   f"wait_signal: rank {src_rank} has sent no signal on channel {channel}")
        self._seen[key] = seen
        self._context.signal(taken, seen, self._team.ranks[src_rank])


def is_symm_mem_tensor(tensor: Any) -> bool:
    """Returns True if empty() made the tensor."""
    context = current_context()
    return context is not None and _storage_of(context, tensor) is not None


__all__ = ["SymmetricMemory", "empty", "get_signal_pad_size", "is_symm_mem_tensor", "rendezvous",
           "set_signal_pad_size"]
