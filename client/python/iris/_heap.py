"""Who holds memory of the heap, and how what nobody holds any more is given back.

A Storage is one range of the heap. Tensors and their views hold it, and so do arrays of other libraries that were made
of them (an Export). Giving back what iris_allocate gave is collective, and Python drops objects at different times on
different ranks. So dropping one does nothing but write down its number; the ranks give it back together later:

  * Each team counts what its members have allocated together. The count is the same on all members, because they
    allocate in the same order, and so it names a storage on all of them alike.
  * When a storage is dropped, its number goes to the end of a list of this process. That is all: no call, no lock, no
    waiting. It may happen on any thread, inside any statement.
  * Every member takes part in an agreement at the same places of the program, and at no others: in the allocation
    that follows EVERY_ALLOCATIONS others, or EVERY_BYTES; in an allocation that found no room, or its name taken, of
    which every member is told the same; and in Context.collect(). Member after member, in the order of the team, says
    which numbers of those that all before it have dropped it has dropped, too. What the last one says, everybody gives
    back, in the order of the numbers, with iris_free. When nothing is left, the rest do not speak.
  * Before a member names a storage as dropped, it waits for what it has put on its streams. So when all have named it,
    no rank's kernel or copy uses it any more.

A member that has not dropped a storage keeps it for all, which is right: it can still reach the others' copies. What
is left when the context ends, ends with it.

What one rank has allocated or opened alone is not collective. It is given back by the next allocation or collect().
"""

from __future__ import annotations

import collections
import ctypes
import os
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Tuple

from iris import _capi
from iris.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError

if TYPE_CHECKING:
    from iris.context import Context
    from iris.team import Team

# The same on all ranks, whatever they know: constants.
EVERY_ALLOCATIONS = 32
EVERY_BYTES = 64 << 20
# What one agreement names at most, 8 bytes each: a broadcast has room for 1 MiB.
NAMED_MAX = 100_000


class Native:
    """The C context, for as long as anything needs its mappings. The last reference that goes ends it: leaving a job
    is not collective. At the interpreter's end it is left, too, so that the peers are told."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.leave = weakref.finalize(self, Native._leave, handle, os.getpid())

    @staticmethod
    def _leave(handle: int, pid: int) -> None:
        if os.getpid() == pid:
            _capi.library().iris_context_destroy(handle)


class Export:
    """What an array of another library holds: the storage, and the mappings, which outlive Context.close() for it."""

    def __init__(self, storage: "Storage") -> None:
        self.storage = storage
        self.native = storage.context.native()


class Storage:
    """One range of the heap. `address` is where this process uses it, `symmetric` what stands for it in this rank's
    heap, `owner` the only rank that has it (None: every member of the team)."""

    def __init__(self, context: "Context", team: Optional["Team"], allocation: Any, name: Optional[str],
                 owner: Optional[int] = None, symmetric: Optional[int] = None) -> None:
        self.context = context
        self.team = team
        self.allocation = allocation
        self.name = name
        self.owner = owner
        self.address = allocation.address or 0
        self.symmetric = self.address if symmetric is None else symmetric
        self.bytes = allocation.bytes
        self.freed = False
        self.symm_mem: Any = None  # what rendezvous() asks for, of the buffers of symm_mem.empty()
        self.kept: Any = None  # what has the memory, of what this rank has registered
        self.dropped: Any = None  # the weakref.finalize that writes the number down
        self.generation = _capi.generation

    def check(self) -> None:
        """FailedPreconditionError: its memory must not be used any more, and why."""
        what = f"the tensor '{self.name}'" if self.name else "a tensor"
        if self.freed:
            raise FailedPreconditionError(f"{what} of the heap was used after it was freed: allocate another one")
        if self.context.closed:
            raise FailedPreconditionError(f"{what} of the heap was used after its context was closed: copy what you "
                                          "need before, for instance with tensor.numpy().copy()")
        if self.generation != _capi.generation:
            raise FailedPreconditionError(f"{what} of the heap was used in a forked child, which has no heap: use the "
                                          "start method 'spawn', and make a context in the child")


class Heap:
    """The storages of one context. Thread-safe; ranks must allocate in the same order all the same."""

    def __init__(self, context: "Context") -> None:
        self._context = weakref.ref(context)
        self._mutex = threading.RLock()  # never held while other ranks are waited for
        self._ledgers: Dict[int, _Ledger] = {}
        self._storages: "weakref.WeakSet[Storage]" = weakref.WeakSet()
        self._own: Deque[Callable[[int], Any]] = collections.deque()  # what gives back what was dropped of this rank's

    @property
    def context(self) -> "Context":
        """Whose heap it is."""
        context = self._context()
        assert context is not None  # it owns this object
        return context

    def _ledger(self, team: "Team") -> "_Ledger":
        with self._mutex:
            return self._ledgers.setdefault(team.id, _Ledger(team))

    def allocate(self, team: "Team", options: Any, name: Optional[str]) -> Storage:
        """Collective over the team."""
        library = _capi.library()
        return self._together(team, name, lambda context, out: library.iris_allocate(
            context, team.handle, ctypes.byref(options), out))

    def register_together(self, team: "Team", address: int, options: Any, name: Optional[str], keep: Any) -> Storage:
        """Collective over the team: memory of each member's process, which `keep` has."""
        library = _capi.library()
        storage = self._together(team, name, lambda context, out: library.iris_register_symmetric(
            context, team.handle, address, ctypes.byref(options), out))
        # With the allocation, which stays until all members have dropped theirs: others may write into it until then.
        storage.allocation.keep = keep
        return storage

    def _together(self, team: "Team", name: Optional[str], allocate: Callable[[int, Any], Any]) -> Storage:
        context = self.context
        self.free_own()
        ledger = self._ledger(team)
        with ledger.mutex:
            if ledger.due():
                ledger.collect(context)
            allocation = _capi.iris_allocation()
            try:
                allocate(context.handle, ctypes.byref(allocation))
            except (ResourceExhaustedError, AlreadyExistsError):
                # Every member is told the same, so all of them come here.
                if not ledger.collect(context):
                    raise
                allocate(context.handle, ctypes.byref(allocation))
            storage = Storage(context, team, allocation, name)
            ledger.add(storage)
            self._storages.add(storage)
            return storage

    def allocate_local(self, options: Any, name: Optional[str]) -> Storage:
        """A range of this rank's heap alone."""
        context = self.context
        self.free_own()
        allocation = _capi.iris_allocation()
        _capi.library().iris_allocate_local(context.handle, ctypes.byref(options), ctypes.byref(allocation))
        storage = Storage(context, None, allocation, name, owner=context.rank)
        storage.dropped = weakref.finalize(storage, self._own.append, _capi_call("iris_free", allocation))
        storage.dropped.atexit = False
        self._storages.add(storage)
        return storage

    def register(self, address: int, options: Any, name: Optional[str], keep: Any) -> Storage:
        """Memory of this process, which `keep` has, for others to open."""
        context = self.context
        self.free_own()
        allocation = _capi.iris_allocation()
        _capi.library().iris_register(context.handle, address, ctypes.byref(options), ctypes.byref(allocation))
        storage = Storage(context, None, allocation, name, owner=context.rank, symmetric=0)
        storage.kept = keep
        storage.dropped = weakref.finalize(storage, self._own.append, _capi_call("iris_free", allocation, keep))
        storage.dropped.atexit = False
        self._storages.add(storage)
        return storage

    def open_local(self, opened: Any, name: str) -> Storage:
        """What another rank has allocated so, and iris_open_local has opened."""
        storage = Storage(self.context, None, opened, name, owner=opened.rank, symmetric=opened.symmetric or 0)
        storage.dropped = weakref.finalize(storage, self._own.append, _capi_call("iris_close_local", opened))
        storage.dropped.atexit = False
        self._storages.add(storage)
        return storage

    def free(self, storage: Storage) -> None:
        """Collective over the team that allocated, or of this rank alone."""
        storage.check()
        handle = self.context.handle
        if storage.team is not None:
            ledger = self._ledger(storage.team)
            with ledger.mutex:
                storage.check()
                storage.freed = True
                storage.dropped.detach()
                ledger.forget(storage)
                _capi.library().iris_free(handle, ctypes.byref(storage.allocation))
            return
        with self._mutex:
            storage.check()
            storage.freed = True
            storage.dropped.detach()
            opened = isinstance(storage.allocation, _capi.iris_opened)
            function = _capi.library().iris_close_local if opened else _capi.library().iris_free
            function(handle, ctypes.byref(storage.allocation))

    def collect(self, team: "Team") -> int:
        """Collective over the team: gives back what all its members have dropped. Returns how many."""
        self.free_own()
        ledger = self._ledger(team)
        with ledger.mutex:
            return ledger.collect(self.context)

    def forget_team(self, team: "Team") -> None:
        """What a team that has ended had allocated stays until the context ends."""
        with self._mutex:
            self._ledgers.pop(team.id, None)

    def free_own(self) -> None:
        """Gives back what was dropped of what this rank has alone."""
        count = len(self._own)  # what is dropped from now on is perhaps still in use by what is not waited for
        context = self.context
        if not count or not context.quiet():
            return
        with self._mutex:
            for _ in range(min(count, len(self._own))):
                self._own.popleft()(context.handle)

    def find(self, address: int) -> Optional[Storage]:
        """The storage that has the address in it."""
        for storage in list(self._storages):
            if not storage.freed and storage.address <= address < storage.address + max(storage.bytes, 1):
                return storage
        return None

    def live(self) -> int:
        """How many storages are not freed, here."""
        return sum(len(ledger.storages) for ledger in list(self._ledgers.values()))


def _capi_call(function: str, argument: Any, keep: Any = None) -> Callable[[int], Any]:
    """The call, which keeps `keep` as long as it can still be made."""

    def call(handle: int, _keep: Any = keep) -> Any:
        return getattr(_capi.library(), function)(handle, ctypes.byref(argument))

    return call


class _Ledger:
    """What a team has allocated, by number, and which of it was dropped here."""

    def __init__(self, team: "Team") -> None:
        self.team = team
        self.mutex = threading.RLock()  # for each team: a thread that waits for its members holds up no other team's
        self.storages: Dict[int, Any] = {}  # number: iris_allocation
        self._number_of: Dict[int, int] = {}  # id of that: number
        self._dropped: Deque[int] = collections.deque()
        self._mine: Dict[int, None] = {}  # dropped here and not agreed on yet, in order
        self._next = 0
        self._since = 0
        self._bytes_since = 0

    def add(self, storage: Storage) -> None:
        number = self._next
        self._next += 1
        self._since += 1
        self._bytes_since += storage.bytes
        self.storages[number] = storage.allocation
        self._number_of[id(storage.allocation)] = number
        # deque.append is one step for every thread, and may run inside any statement of this one.
        storage.dropped = weakref.finalize(storage, self._dropped.append, number)
        storage.dropped.atexit = False

    def forget(self, storage: Storage) -> None:
        number = self._number_of.pop(id(storage.allocation))
        del self.storages[number]

    def due(self) -> bool:
        """The same on all members: it depends on what they have allocated together alone."""
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
            del self._number_of[id(allocation)]
            del self._mine[number]
            _capi.library().iris_free(context.handle, ctypes.byref(allocation))
        return len(agreed or ())


def allocate_options(bytes_: int, dtype: int, shape: Tuple[int, ...], name: Optional[str],
                     alignment_bytes: int) -> Any:
    """The C struct. `shape` is for listings: one with more dimensions than those show is shown as one number."""
    if alignment_bytes < 0 or alignment_bytes & (alignment_bytes - 1):
        raise InvalidArgumentError(f"an alignment of {alignment_bytes} bytes is no power of two")
    shown = shape if len(shape) <= 16 else (bytes_,)
    return _capi.iris_allocate_options(bytes=bytes_, alignment_bytes=alignment_bytes, name=_capi.text(name),
                                       dtype=dtype, n_dims=len(shown),
                                       shape=(ctypes.c_uint64 * max(len(shown), 1))(*shown))
