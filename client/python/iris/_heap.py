"""Storages, and how the heap frees memory that nothing refers to.

A Storage is one range of the heap. Tensors, their views and arrays of other libraries made of them refer to it. Freeing
a range that iris_allocate gave is collective, and Python drops objects at different times on different ranks. So
dropping a storage only records its number; the ranks free it together later:

  * Each team counts its allocations. The count is equal on all members, because they allocate in the same order, and
    so it names a storage on all of them.
  * A storage that is dropped appends its number to a list of this process, without a call, a lock or a wait. That may
    happen on any thread, inside any statement.
  * Every member takes part in an agreement at the same places of the program: in the allocation that follows
    EVERY_ALLOCATIONS others, or EVERY_BYTES; in an allocation that found no room, or its name taken, which is reported
    to every member; and in Context.collect(). The first member broadcasts the numbers that it has dropped. Each next
    member, in the order of the team, broadcasts those numbers of the broadcast before that it has dropped, too. All
    members free the numbers of the last broadcast, in their order, with iris_free. An empty broadcast ends the
    agreement.
  * Before a member names a storage as dropped, it waits for the work on its streams. So when all have named it, no
    rank's kernel or copy uses it.

A member that has not dropped a storage keeps it for all, since it can still reach the others' copies. Unfreed ones end
with the context. Memory that one rank has allocated or opened alone is freed by its next allocation or collect().
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any, Deque, Dict, Iterator, List, Optional, Tuple

from iris import _capi
from iris._shapes import bytes_of
from iris.dtypes import DType
from iris.errors import AlreadyExistsError, InvalidArgumentError, ResourceExhaustedError
from iris.tensor import Storage, Tensor

if TYPE_CHECKING:
    from iris.context import Context
    from iris.team import Team

# Constants are equal on all ranks.
EVERY_ALLOCATIONS = 32
EVERY_BYTES = 64 << 20
# Limit of the numbers in one agreement, 8 bytes each: a broadcast has room for 1 MiB.
NAMED_MAX = 100_000


class Native:
    """Owns the C context as long as something needs its mappings. The context ends with the last reference, which is
    possible because leaving a job is not collective, or with the interpreter, so that peers get a report."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.leave = weakref.finalize(self, Native._leave, handle, os.getpid())

    @staticmethod
    def _leave(handle: int, pid: int) -> None:
        if os.getpid() == pid:
            _capi.library().iris_context_destroy(handle)


class Heap:
    """The storages of one context. Thread-safe, but ranks must allocate in the same order."""

    def __init__(self, context: "Context") -> None:
        self._context = weakref.ref(context)
        self._mutex = threading.RLock()  # never held during a wait for other ranks
        self._ledgers: Dict[int, _Ledger] = {}
        self._storages: "weakref.WeakSet[Storage]" = weakref.WeakSet()
        self._own: Deque[Tuple[str, Any]] = collections.deque()  # (function, argument) to free memory of one rank alone

    @property
    def context(self) -> "Context":
        """The context of this heap."""
        context = self._context()
        assert context is not None  # it owns this object
        return context

    def _ledger(self, team: "Team") -> "_Ledger":
        with self._mutex:
            ledger = self._ledgers.get(team.id)
            if ledger is None:
                ledger = self._ledgers[team.id] = _Ledger(team)
            return ledger

    def allocate(self, team: Optional["Team"], shape: Tuple[int, ...], dtype: DType, name: Optional[str],
                 alignment_bytes: int = 0, lent: Any = None) -> Tensor:
        """Returns a new tensor, in newly allocated memory or in a buffer that each rank lends. Collective over the
        team: the tensor is at one offset of every heap. Without a team only this rank has the tensor."""
        if alignment_bytes < 0 or alignment_bytes & (alignment_bytes - 1):
            raise InvalidArgumentError(f"an alignment of {alignment_bytes} bytes is no power of two")
        nbytes = bytes_of(shape, dtype)
        shown = shape if len(shape) <= 16 else (nbytes,)  # the most dimensions that listings show
        options = _capi.iris_allocate_options(bytes=nbytes, alignment_bytes=alignment_bytes, name=_capi.text(name),
                                              dtype=dtype, n_dims=len(shown),
                                              shape=(ctypes.c_uint64 * max(len(shown), 1))(*shown))
        context, library = self.context, _capi.library()
        allocation = _capi.iris_allocation()
        place = () if lent is None else (lent.address,)
        arguments = (*place, ctypes.byref(options), ctypes.byref(allocation))
        # Kept with the allocation, which stays until all members have dropped theirs: others may write until then.
        allocation.keep = lent and lent.keep
        self.free_own()
        if team is None:
            function = library.iris_allocate_local if lent is None else library.iris_register
            function(context.handle, *arguments)
            return Tensor(self._alone(allocation, name, context.rank, None if lent is None else 0), shape, None, dtype)
        function = library.iris_allocate if lent is None else library.iris_register_symmetric
        ledger = self._ledger(team)
        with ledger.mutex:
            if ledger.due():
                ledger.collect(context)
            try:
                function(context.handle, team.handle, *arguments)
            except (ResourceExhaustedError, AlreadyExistsError):
                # Every member gets this error, so all of them come here.
                if not ledger.collect(context):
                    raise
                function(context.handle, team.handle, *arguments)
            storage = Storage(context, team, allocation, name)
            ledger.add(storage)
            self._storages.add(storage)
        return Tensor(storage, shape, None, dtype)

    @contextlib.contextmanager
    def filling(self, tensor: Tensor) -> Iterator[None]:
        """Waits at the end of the block, after an error, too, for the end of this block on all members of the team that
        has allocated the tensor. The block gives this rank's copy its values and waits for them. So a peer that
        returns from the call may write into any copy."""
        team = tensor._storage.team
        try:
            yield
        finally:
            if team is not None and team.n_ranks > 1 and tensor.count:
                _capi.library().iris_barrier(self.context.handle, team.handle, 0)

    def _alone(self, allocation: Any, name: Optional[str], owner: int, symmetric: Optional[int],
               free: str = "iris_free") -> Storage:
        storage = Storage(self.context, None, allocation, name, owner, symmetric, free)
        storage.dropped = weakref.finalize(storage, self._own.append, (free, allocation))
        storage.dropped.atexit = False
        self._storages.add(storage)
        return storage

    def open(self, rank: int, name: str, timeout_ns: int) -> Tensor:
        """Returns a tensor of one dimension, of memory that another rank has alone."""
        opened = _capi.out(_capi.iris_opened, _capi.library().iris_open_local, self.context.handle, rank,
                           _capi.text(name), timeout_ns)
        storage = self._alone(opened, name, opened.rank, opened.symmetric or 0, "iris_close_local")
        dtype = DType(opened.dtype) or DType.U8
        return Tensor(storage, (opened.bytes // dtype.itemsize,), None, dtype)

    def free(self, storage: Storage) -> None:
        """Frees a storage. Collective over the team that allocated it; not collective if this rank has it alone."""
        storage.check()
        ledger = None if storage.team is None else self._ledger(storage.team)
        with self._mutex if ledger is None else ledger.mutex:
            storage.check()
            storage.freed = True
            storage.dropped.detach()
            if ledger is not None:
                ledger.forget(storage)
            getattr(_capi.library(), storage.free)(self.context.handle, ctypes.byref(storage.allocation))

    def collect(self, team: "Team") -> int:
        """Frees the storages that all ranks of the team have dropped. Returns how many. Collective over the team."""
        self.free_own()
        ledger = self._ledger(team)
        with ledger.mutex:
            return ledger.collect(self.context)

    def forget_team(self, team: "Team") -> None:
        """Forgets the storages of a team that has ended: they stay until the context ends."""
        with self._mutex:
            self._ledgers.pop(team.id, None)

    def free_own(self) -> None:
        """Frees the storages that this rank had alone and has dropped."""
        count = len(self._own)  # storages that are dropped later may be in use by work that this call does not wait for
        context = self.context
        if not count or not context.quiet():
            return
        with self._mutex:
            for _ in range(min(count, len(self._own))):
                function, argument = self._own.popleft()
                getattr(_capi.library(), function)(context.handle, ctypes.byref(argument))

    def find(self, address: int) -> Optional[Storage]:
        """Returns the storage in which the address lies."""
        for storage in list(self._storages):
            if not storage.freed and storage.address <= address < storage.address + max(storage.bytes, 1):
                return storage
        return None

    def live(self) -> int:
        """Returns the number of storages of teams that this process has not freed."""
        return sum(len(ledger.storages) for ledger in list(self._ledgers.values()))


class _Ledger:
    """The allocations of a team by number, and those that this process has dropped."""

    def __init__(self, team: "Team") -> None:
        self.team = team
        self.mutex = threading.RLock()  # one per team, so that a thread that waits for a team delays no other team
        self.storages: Dict[int, Any] = {}  # number: iris_allocation
        self._dropped: Deque[int] = collections.deque()
        self._mine: Dict[int, None] = {}  # dropped here and not agreed on yet, in order
        self._next = 0
        self._since = 0
        self._bytes_since = 0

    def add(self, storage: Storage) -> None:
        number = storage.allocation.number = self._next
        self._next += 1
        self._since += 1
        self._bytes_since += storage.bytes
        self.storages[number] = storage.allocation
        # deque.append is one step for every thread, and may run inside any statement of this one.
        storage.dropped = weakref.finalize(storage, self._dropped.append, number)
        storage.dropped.atexit = False

    def forget(self, storage: Storage) -> None:
        del self.storages[storage.allocation.number]

    def due(self) -> bool:
        """Returns True if an agreement is due. Depends only on the team's allocations, so it is equal on all ranks."""
        return self._since >= EVERY_ALLOCATIONS or self._bytes_since >= EVERY_BYTES

    def collect(self, context: "Context") -> int:
        self._since = self._bytes_since = 0
        while self._dropped:
            self._mine[self._dropped.popleft()] = None
        named: List[int] = []
        if self._mine and context.quiet():
            named = sorted(self._mine)[:NAMED_MAX]
        agreed: Optional[List[int]] = None
        for root in self.team.ranks:
            if agreed is not None:
                wanted = set(named)
                named = [number for number in agreed if number in wanted]
            words = context.broadcast_bytes(struct.pack(f"<{len(named)}Q", *named), root, team=self.team)
            agreed = list(struct.unpack(f"<{len(words) // 8}Q", words))
            if not agreed:
                return 0
        for number in agreed or ():
            allocation = self.storages.pop(number)
            del self._mine[number]
            _capi.library().iris_free(context.handle, ctypes.byref(allocation))
        return len(agreed or ())
