"""Context: this process's rank in a job, with its symmetric heap.

    with iris.Context() as context:
        x = context.ones(1024)
        context.all_reduce(x)

Thread-safe as the C API is. All ranks of the team make calls that are marked collective, in the same order.
"""

from __future__ import annotations

import collections
import ctypes
import operator
import pickle
import struct
import time
import weakref
from typing import Any, Deque, Dict, List, Optional, Tuple

from iris import _capi, _foreign, _heap, bench
from iris.logging import logger
from iris.collectives import Collectives
from iris._shapes import common_rows, contiguous_strides, parse_shape
from iris.dtypes import DType, DTypeLike
from iris.errors import (DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, IrisError,
                         OutOfRangeError, StatusCode, error_of)
from iris.factories import Factories, Generator
from iris.stream import Event, Stream, out_handle
from iris.team import Team
from iris.tensor import Tensor

_BROADCAST_MAX = 1 << 20
_SIGNAL_OPS = {"set": 0, "add": 1}
_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")}

_latest: "Optional[weakref.ref[Context]]" = None


def nanoseconds(seconds: Optional[float]) -> int:
    """Returns a time for the C API, where 0 means the default."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise InvalidArgumentError(f"a time of {seconds} s is not positive: leave it out, or give a longer one")
    return max(int(min(seconds, 1e9) * 1e9), 1)


class Context(Collectives, Factories):
    """This process's rank in a job. Arguments that are left out come from the launcher's environment (iris-run,
    torchrun, Open MPI, MPICH, PMIx, Slurm). Without a launcher, the process is rank 0 of 1. Creation is collective over
    the job.

    Args:
      heap_bytes: size of each rank's heap; by default IRIS_HEAP_BYTES, else 1 GiB.
      max_heap_bytes: limit of that size; by default four times heap_bytes.
      job: the job's name.
      rank, n_ranks, local_rank: the place in the job.
      prealloc: reserve all memory now.
      device_uuid: the device; by default number local_rank mod the number of devices.
      runtime_dir: irisd's directory.
      join_timeout, timeout: limits, in seconds, of this call's wait for the other ranks, and of each later wait; 60.
      connect_timeout: seconds to retry while no irisd answers; 2.

    Raises UnavailableError, which says how to start irisd, if there is none, and DeadlineExceededError, which names the
    missing ranks. If irisd refuses a rank (its quota, its options), the call fails on all ranks, with the reason.
    """

    def __init__(self, heap_bytes: Optional[int] = None, *, job: Optional[str] = None, rank: Optional[int] = None,
                 n_ranks: Optional[int] = None, local_rank: Optional[int] = None,
                 max_heap_bytes: Optional[int] = None, prealloc: bool = False, device_uuid: Optional[str] = None,
                 runtime_dir: Optional[str] = None, join_timeout: Optional[float] = None,
                 timeout: Optional[float] = None, connect_timeout: Optional[float] = None) -> None:
        global _latest
        self._native: Optional[_heap.Native] = None
        library = _capi.library()
        options = _capi.iris_context_options()
        library.iris_context_options_init_sized(ctypes.byref(options), ctypes.sizeof(options))
        options.header_version, options.device_abi = _capi.VERSION, 0
        for name, value, low, high in (("heap_bytes", heap_bytes, 1, 2**63 - 1),
                                       ("max_heap_bytes", max_heap_bytes, 1, 2**63 - 1),
                                       ("rank", rank, 0, 2**31 - 1), ("local_rank", local_rank, 0, 2**31 - 1),
                                       ("n_ranks", n_ranks, 1, 2**31 - 1)):
            if value is None:
                continue
            if not low <= value <= high:
                raise InvalidArgumentError(f"{name} is {value}, and must be {low} to {high}")
            setattr(options, name, value)
        options.prealloc = bool(prealloc)
        for name, text in (("job", job), ("device_uuid", device_uuid), ("runtime_dir", runtime_dir)):
            setattr(options, name, _capi.text(text))
        for name, seconds in (("join_timeout_ns", join_timeout), ("timeout_ns", timeout),
                              ("connect_timeout_ns", connect_timeout)):
            setattr(options, name, nanoseconds(seconds))
        self.timeout = timeout or 60.0
        """Limit of waits that have no other, in seconds."""
        self._native = _heap.Native(out_handle(library.iris_context_create, ctypes.byref(options)))
        self._generation = _capi.generation
        info = self._info()
        self.rank: int = info.rank
        self.n_ranks: int = info.n_ranks
        self.job: str = info.job.decode()
        self.device_uuid: str = info.device_uuid.decode()
        self.backend: str = info.backend.decode()
        """The owner of the heap's memory: "emu", or the name of a GPU driver."""
        self.on_host: bool = self.backend == "emu"
        """True if the heap is in memory that the host reads and writes, too."""
        self.base: int = info.base
        self.stride_bytes: int = info.stride_bytes
        self.same_address: bool = bool(info.same_address)
        self.capturing = 0
        self.heap = _heap.Heap(self)
        self.generator = Generator()
        """The random factories' own: the same on all ranks until manual_seed()."""
        self.streams: "weakref.WeakSet[Stream]" = weakref.WeakSet()
        self.dropped_streams: Deque[Any] = collections.deque()
        self.dropped_events: Deque[int] = collections.deque()
        self._communicators = {}
        self._barriers = {}
        self.matmul_workspaces: Dict[int, Any] = {}
        self._wrapped: Dict[int, Stream] = {}
        self.torch_stream: Any = None  # of torch, on which factories fill memory
        self.raw_stream: Any = None  # torch's function for the number of its current stream, once torch uses the GPU
        self.world = Team(self, None)
        """The team of all ranks."""
        self.own_stream = Stream(self)
        """The stream of collectives and copies that have no other."""
        self.device_index: int = max(self.own_stream.native_and_device()[1], 0)
        """The number of the rank's device in this process."""
        _latest = weakref.ref(self)

    @property
    def closed(self) -> bool:
        """Returns True after close()."""
        return self._native is None

    def check(self) -> None:
        """Raises FailedPreconditionError if the context is closed, or in a forked child of its process."""
        if self._native is None:
            raise FailedPreconditionError("the context was used after it was closed: make another one")
        if self._generation != _capi.generation:
            raise FailedPreconditionError(_capi.FORKED.format("the context"))

    def native(self) -> "_heap.Native":
        """The owner of the mappings."""
        self.check()
        assert self._native is not None
        return self._native

    @property
    def handle(self) -> int:
        """The handle for the C API."""
        return self.native().handle

    def close(self) -> None:
        """Leaves the job; everything that belongs to the context ends. Not collective: peers that still wait for this
        rank get AbortedError. Waits for the streams first. A second call does nothing.

        Arrays of numpy, torch or cupy that were made of tensors stay valid: the memory stays mapped, and the rank in
        its job, until the last of them is gone."""
        if self._native is None:
            return
        if self._generation == _capi.generation:
            try:
                self.quiesce()
            except IrisError as error:
                self.log(30, f"close: {error}")
        self._native = None

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "iris.Context(closed)"
        return (f"iris.Context(job={self.job!r}, rank={self.rank}, n_ranks={self.n_ranks}, "
                f"device={_foreign.device_name(self)!r})")

    def health(self) -> None:
        """Raises AbortedError, which names the rank, if a rank has died or left."""
        _capi.library().iris_context_health(self.handle)

    def peer_pid(self, rank: int) -> int:
        """Returns the process id of a rank."""
        return _capi.out(ctypes.c_int64, _capi.library().iris_context_peer_pid, self.handle, rank).value

    def _info(self) -> Any:
        return _capi.out(_capi.iris_context_info, _capi.library().iris_context_get_info, self.handle)

    @property
    def device(self) -> str:
        """torch's name of the rank's device; "cpu" if devices are emulated."""
        return _foreign.device_name(self)

    @property
    def epoch(self) -> int:
        """The number of times that the job's ranks have joined."""
        return self._info().epoch

    @property
    def heap_bytes(self) -> int:
        """Bytes of each rank's heap, now."""
        return self._info().heap_bytes

    @property
    def heap_bases(self) -> Tuple[int, ...]:
        """The address of each rank's heap in this process, by rank; 0 if it is not mapped (see reaches())."""
        return tuple(self.base + rank * self.stride_bytes if self.reaches(rank) else 0 for rank in range(self.n_ranks))

    def timings(self) -> Dict[str, float]:
        """Returns the durations of the steps that made the context, in seconds, by the names of iris_create_timings."""
        times = _capi.out(_capi.iris_create_timings, _capi.library().iris_context_get_timings, self.handle)
        return {name[:-3]: getattr(times, name) / 1e9 for name, _ in times._fields_ if name.endswith("_ns")}

    def locate(self, address: int) -> Tuple[int, int]:
        """Returns the (rank, offset) of an address in any rank's heap. Raises InvalidArgumentError if it is in none."""
        rank, offset = ctypes.c_uint32(), ctypes.c_uint64()
        _capi.library().iris_locate(self.handle, address, ctypes.byref(rank), ctypes.byref(offset))
        return rank.value, offset.value

    def is_symmetric(self, what: Any) -> bool:
        """Returns True if the memory of a tensor or an array lies in this rank's heap, or in memory that this rank has
        registered together with others."""
        buffer = _foreign.buffer_of(self, what, "is_symmetric: the argument")
        return self.is_symmetric_at(buffer.address, buffer.nbytes)

    def is_symmetric_at(self, address: int, nbytes: int = 1) -> bool:
        """As is_symmetric(), of the memory at an address."""
        symmetric = _capi.out(ctypes.c_int32, _capi.library().iris_is_symmetric, self.handle, address, nbytes).value
        return bool(symmetric) and 0 <= address - self.base - self.rank * self.stride_bytes < self.stride_bytes

    def reaches(self, rank: int) -> bool:
        """Returns True if a rank's heap is mapped here, because the rank is on this node."""
        return bool(_capi.out(ctypes.c_int32, _capi.library().iris_context_reaches, self.handle, rank).value)

    def check_rank(self, rank: int, what: str = "") -> None:
        """Raises OutOfRangeError, whose text begins with `what`, if there is no such rank."""
        if not 0 <= rank < self.n_ranks:
            raise OutOfRangeError(f"{what}rank {rank} is none of this job, which has ranks 0 to {self.n_ranks - 1}")

    def team_of(self, team: Optional[Team]) -> Team:
        """Returns an argument's team. Raises InvalidArgumentError if it is of another context, or lacks this rank."""
        self.check()
        if team is None:
            return self.world
        if not isinstance(team, Team) or team.context is not self:
            raise InvalidArgumentError(f"{team!r} is no team of this context: use context.world, or one that its "
                                       "split() or team() made")
        if not team.is_member:
            raise InvalidArgumentError(f"rank {self.rank} is no member of the team of the ranks {list(team.ranks)}: "
                                       "only members call")
        return team

    def team(self, ranks: Any, *, parent: Optional[Team] = None) -> Team:
        """Makes a team of the listed world ranks, in this order. Collective over the parent (the world), with the same
        list on all its ranks. Ranks outside the list get a team whose is_member is false."""
        ranks = [int(rank) for rank in ranks]
        if any(not 0 <= rank < self.n_ranks for rank in ranks):
            raise OutOfRangeError(f"the ranks {ranks} are not all of this job, which has 0 to {self.n_ranks - 1}")
        return Team(self, out_handle(_capi.library().iris_team_create, self.handle, self.team_of(parent).handle,
                                     (ctypes.c_uint32 * max(len(ranks), 1))(*ranks), len(ranks)))

    def split(self, color: int, key: int = 0, *, team: Optional[Team] = None) -> Team:
        """Makes a team of the ranks with the same color, ordered by key, then by their place in `team`. Collective over
        `team` (the world). A rank with a negative color is in no team."""
        return Team(self, out_handle(_capi.library().iris_team_split, self.handle, self.team_of(team).handle,
                                     color, key))

    def barrier(self, team: Optional[Team] = None, *, stream: Any = None, timeout: Optional[float] = None) -> None:
        """Waits for the stream, or for all streams that the context knows, then for all ranks of the team. Collective
        over the team. DeadlineExceededError names missing ranks, AbortedError ranks that died."""
        team = self.team_of(team)
        if stream is None:
            self.quiesce()
        else:
            self.stream_for(stream)[0].synchronize()
        _capi.library().iris_barrier(self.handle, team.handle, nanoseconds(timeout))

    def broadcast_bytes(self, data: bytes, root: int, *, team: Optional[Team] = None) -> bytes:
        """Returns root's bytes, at most 1 MiB, on every rank. Collective over the team. Only root's `data` is read."""
        team = self.team_of(team)
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        _capi.library().iris_broadcast_bytes(self.handle, team.handle, data, len(data), root, ctypes.byref(out),
                                             ctypes.byref(length))
        return ctypes.string_at(out, length.value) if length.value else b""

    def broadcast_object(self, value: Any, root: int = 0, *, team: Optional[Team] = None) -> Any:
        """Returns the root's value on every rank, by pickle: numbers, strings, arrays, anything that pickle accepts.
        Collective over the team. Ranks of a job trust each other. The value of other ranks is not read."""
        team = self.team_of(team)
        self._root(team, root, "broadcast_object")
        data = pickle.dumps(value, protocol=4) if self.rank == root else b""
        room = _BROADCAST_MAX - 8
        first = self.broadcast_bytes(struct.pack("<Q", len(data)) + data[:room], root, team=team)
        (length,) = struct.unpack_from("<Q", first)
        parts = [first[8:]]
        for begin in range(room, length, _BROADCAST_MAX):
            parts.append(self.broadcast_bytes(data[begin:begin + _BROADCAST_MAX], root, team=team))
        return pickle.loads(b"".join(parts))

    def all_gather_object(self, value: Any, *, team: Optional[Team] = None) -> List[Any]:
        """Returns the values of all ranks, in the team's order, by pickle. Collective over the team."""
        team = self.team_of(team)
        return [self.broadcast_object(value, root, team=team) for root in team.ranks]

    def allocate(self, shape: Any, dtype: DTypeLike = DType.U8, *, name: Optional[str] = None,
                 team: Optional[Team] = None, alignment_bytes: int = 0) -> Tensor:
        """Allocates memory at the same offset in the heap of every rank of the team, and does not clear it. Collective
        over the team. Raises InvalidArgumentError, which names the ranks, if they asked for different things, and
        ResourceExhaustedError if there is no room."""
        return self.heap.allocate(self.team_of(team), parse_shape((shape,)), DType.of(dtype), name, alignment_bytes)

    def allocate_local(self, shape: Any, dtype: DTypeLike = DType.U8, *, name: Optional[str] = None,
                       alignment_bytes: int = 0) -> Tensor:
        """Allocates memory in this rank's heap only. Not collective. Memory with a name is cleared, and other ranks can
        open() it; without a name they can after publish()."""
        return self.heap.allocate(None, parse_shape((shape,)), DType.of(dtype), name, alignment_bytes)

    def register(self, array: Any, *, name: Optional[str] = None) -> Tensor:
        """Returns a tensor on memory that another library has allocated, which other ranks can open() and put into. Not
        collective. Nothing is copied: it is the array's own memory, which is kept until the tensor is freed or dropped.
        On GPUs it must be memory that others can map (torch with expandable segments), on emulated devices a shared
        mapping of a memfd; other memory raises InvalidArgumentError, which says what to do. Other ranks open it as a
        tensor of one dimension."""
        buffer = _foreign.buffer_of(self, array, "register()")
        return self.heap.allocate(None, buffer.shape, buffer.dtype, name, lent=buffer)

    def as_symmetric(self, array: Any, *, copy: bool = False, team: Optional[Team] = None,
                     name: Optional[str] = None) -> Any:
        """Returns a tensor at one offset on all ranks, as if allocate() had made it, for a tensor or an array of each
        rank, of one shape and type. Collective over the team. An array that lies in the heaps at one offset already is
        returned as it is; memory that ranks allocated alone in the heap (allocate_local(), mem_pool()) can only be
        copied.

        The tensor shares the array's memory, which is kept until all ranks free or drop the tensor. On GPUs that must
        be memory that others can map (torch with expandable segments), at the same place of its allocation on all
        ranks; on emulated devices a shared mapping of a memfd. With copy=True the tensor is a copy in the heap, of any
        array.

        On a GPU the tensor has another address of the array's memory. A kernel that writes through one address and
        reads through the other may read old values: use only one of them in a kernel. Later kernels see all writes.

        Raises InvalidArgumentError on all ranks if the memory of a rank cannot be shared, with the rank, the reason and
        what to do, or if the ranks differ. Raises ResourceExhaustedError if the address space above the heap is too
        small."""
        team = self.team_of(team)
        error: Optional[Tuple[int, str]] = None
        offset: Optional[int] = None
        buffer = None
        try:
            buffer = _foreign.buffer_of(self, array, "the argument")
            if self.is_symmetric_at(buffer.address, buffer.nbytes):
                offset = buffer.address - self.heap_bases[self.rank]
        except Exception as wrong:  # pylint: disable=broad-except  # the others wait for this rank after any error
            code = wrong.code if isinstance(wrong, IrisError) else StatusCode.INVALID_ARGUMENT
            error = (int(code), str(wrong) or type(wrong).__name__)
        told = self.all_gather_object((offset, bool(copy), error), team=team)
        for rank, (_, _, theirs) in zip(team.ranks, told):
            if theirs is not None:
                raise error_of(theirs[0], f"as_symmetric() of rank {rank}: {theirs[1]}")
        assert buffer is not None
        offsets = [each for each, _, _ in told]
        if None not in offsets and len(set(offsets)) == 1:
            return array
        if len({theirs for _, theirs, _ in told}) > 1:
            raise InvalidArgumentError("as_symmetric(): some ranks say copy=True, and others do not: say the same")
        if copy:
            made = self.allocate(buffer.shape, buffer.dtype, name=name, team=team)
            with self.heap.filling(made):
                made.copy_(array)
            return made
        if None not in offsets:
            raise InvalidArgumentError(f"as_symmetric(): ranks {list(team.ranks)} give memory of their heaps at the "
                                       f"offsets {offsets}, which each has alone: copy=True makes a copy at one offset")
        for rank, there in zip(team.ranks, offsets):
            if there is not None:
                raise InvalidArgumentError(f"as_symmetric(): what rank {rank} gives is in its heap already, and that "
                                           "of others is not: give the same kind on all ranks, or copy=True for a copy")
        _capi.text(name)  # a wrong name is not an error of the memory
        try:
            return self.heap.allocate(team, buffer.shape, buffer.dtype, name, lent=buffer)
        except InvalidArgumentError as wrong:
            raise InvalidArgumentError(f"as_symmetric(): {wrong}. With copy=True it makes a copy in the heap") from None

    def publish(self, tensor: Tensor, name: str) -> None:
        """Names memory of allocate_local() or register() so that other ranks can open it, with all earlier writes. Not
        collective."""
        storage = tensor._storage
        storage.check()
        if storage.team is not None or storage.owner != self.rank:
            raise InvalidArgumentError("publish() is for what this rank has allocated alone, with allocate_local()")
        if not name:
            raise InvalidArgumentError("publish() needs a name that is not empty")
        _capi.library().iris_publish_local(self.handle, ctypes.byref(storage.allocation), _capi.text(name))
        storage.name = name

    def open(self, rank: int, name: str, *, timeout: Optional[float] = None) -> Tensor:
        """Returns memory that another rank allocated alone under this name, as a tensor of one dimension. Not
        collective. Waits until the memory exists; DeadlineExceededError names rank and name. The memory stays as long
        as the tensor."""
        self.check_rank(rank)
        return self.heap.open(rank, name, nanoseconds(timeout))

    def grow(self, nbytes: int) -> None:
        """Adds at least `nbytes` bytes to every heap. Collective over all ranks. Mapped memory does not move."""
        if nbytes < 0:
            raise InvalidArgumentError(f"a heap does not grow by {nbytes} bytes")
        _capi.library().iris_grow(self.handle, nbytes)

    def collect(self, team: Optional[Team] = None) -> int:
        """Frees the tensors that all ranks of the team have dropped, as allocations do from time to time and when there
        is no room, and returns their number. Collective over the team."""
        return self.heap.collect(self.team_of(team))

    def stream(self, native: Any = None) -> Stream:
        """Returns a new stream of the rank's device, or one that stands for `native`, a stream of the platform (a
        number, or an object of torch or cupy)."""
        return Stream(self, native)

    def event(self) -> Event:
        """Returns a new event."""
        return Event(self)

    def stream_for(self, stream: Any) -> Tuple[Stream, bool]:
        """Returns the stream that an argument means, and True if a call without async_op waits for its result."""
        if stream is None:
            stream = self.raw_stream(self.device_index) if self.raw_stream else _foreign.current_torch_stream(self)
            if stream is None:
                return self.own_stream, not self.capturing
            known = self._wrapped.get(stream)
            if known is not None:
                return known, False
        if isinstance(stream, Stream):
            if stream.context is not self:
                raise InvalidArgumentError("the stream is of another context: use streams with the context that made "
                                           "them")
            return stream, False
        native = _foreign.native_stream(self, stream)
        if native not in self._wrapped:
            self._wrapped[native] = Stream(self, native)
        return self._wrapped[native], False

    def reusable_stream(self) -> Optional[Any]:
        """Returns the record of a dropped stream, for use by a new one."""
        for _ in range(len(self.dropped_streams)):
            record = self.dropped_streams.popleft()
            if record[2]:
                return record
            self.dropped_streams.append(record)
        return None

    def quiesce_own(self) -> None:
        """Waits for the context's own stream, if it has work."""
        stream = self.own_stream
        if (stream._pending or not stream.idle()) and not self.capturing:
            stream.synchronize()

    def quiesce(self) -> bool:
        """Waits for all streams that the context knows, and for torch's on the rank's device. Returns False if work is
        being recorded, because a wait is then impossible."""
        if self.capturing or not _foreign.synchronize_torch(self):
            return False
        for stream in list(self.streams):
            stream.synchronize()
        for record in list(self.dropped_streams):
            handle, pending, reusable = record
            _capi.library().iris_stream_synchronize(handle)
            pending.clear()
            if not reusable:
                self.dropped_streams.remove(record)
                _capi.library().iris_stream_destroy(handle)
        return True

    def quiet(self) -> bool:
        """Works as quiesce(), but logs a failure of a stream and returns False. Used when other ranks wait for this
        rank."""
        try:
            return self.quiesce()
        except IrisError as error:
            self.log(40, f"before tensors are given back: {error}")
            return False

    def synchronize(self, stream: Any = None, *, team: Optional[Team] = None) -> None:
        """Waits for the stream, by default that of calls without a stream. Raises the failure of the team's collectives
        on it, which names the missing ranks."""
        where, _ = self.stream_for(stream)
        of_team = (made.get(self.team_of(team).id) for made in (self._communicators, self._barriers))
        communicators = [communicator for communicator in of_team if communicator is not None]
        for communicator in communicators:
            communicator.synchronize(where)
        if not communicators:
            where.synchronize()

    def copy_now(self, to: int, source: int, nbytes: int) -> None:
        """Copies between addresses, after the work on the calling program's stream, and waits for the copy."""
        if nbytes:
            stream, _ = self.stream_for(None)
            _capi.library().iris_copy_async(to, source, nbytes, stream.handle)
            stream.synchronize()

    def do_bench(self, function: Any, *, team: Optional[Team] = None, **options: Any) -> Any:
        """Calls iris.do_bench with barriers of the team's ranks, and returns the largest of their results, in
        milliseconds, on all of them. Collective over the team."""
        team = self.team_of(team)
        options.setdefault("barrier_fn", lambda: self.barrier(team))
        return bench.do_bench(function, context=self, over_ranks=True, team=team, **options)

    def _signal(self, signal: Any) -> Any:
        if signal is None:
            return None
        word, value, op = (tuple(signal) + ("set",))[:3] if isinstance(signal, (tuple, list)) and (
            len(signal) in (2, 3)) else (None, None, None)
        if op not in _SIGNAL_OPS or isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError("a signal is (word, value) or (word, value, 'set' or 'add'), where the word is "
                                       "a tensor of uint64 in the heap and the value an integer")
        return ctypes.byref(_capi.iris_signal(word=self._check_word(word), value=value % 2**64, op=_SIGNAL_OPS[op]))

    def _side(self, side: Any, role: str, is_peers: bool, written: bool) -> "_foreign.Buffer":
        """Returns the memory of one side of a put or get, which may be a tile. The peer's is at the address in this
        rank's heap that stands for it."""
        if isinstance(side, Tensor) and side.context is self and (is_peers or not side.contiguous):
            address = side.symmetric_ptr() if is_peers else side.data_ptr()
            return _foreign.Buffer(address, side.count, side.dtype, side.shape, side)
        return _foreign.buffer_of(self, side, role, written)

    def _transfer(self, what: str, remote: Any, local: Any, rank: int, stream: Any, signal: Any) -> None:
        to_remote = what == "put"
        theirs = self._side(remote, f"{what}: the peer's side", True, False)
        mine = self._side(local, f"{what}: this rank's side", False, not to_remote)
        tiles = any(isinstance(side, Tensor) and not side.contiguous for side in (remote, local))
        if theirs.count != mine.count or theirs.dtype is not mine.dtype or (tiles and theirs.shape != mine.shape):
            raise InvalidArgumentError(f"{what}: {mine.dtype.long_name} of shape {mine.shape} and "
                                       f"{theirs.dtype.long_name} of shape {theirs.shape} are not alike: give two "
                                       "tensors of one type and size, and tiles of one shape")
        self.check_rank(rank, f"{what}: ")
        to, source = (theirs.address, mine.address) if to_remote else (mine.address, theirs.address)
        library = _capi.library()
        where, waits = self.stream_for(stream)
        if tiles:
            strides, my_strides = (side.strides if isinstance(side, Tensor) else contiguous_strides(mine.shape)
                                   for side in (remote, local))
            rows = common_rows(mine.shape, strides, my_strides)
            if rows is None:
                raise InvalidArgumentError(f"{what}: a tensor of shape {mine.shape} with the strides {strides} at the "
                                           f"peer and {my_strides} here is not made of rows that are contiguous on "
                                           "both sides, each as far behind the one before: use contiguous tensors, or "
                                           "one call for each part")
            length, their_pitch, my_pitch = (number * mine.dtype.itemsize for number in rows[1:])
            pitches = (their_pitch, my_pitch) if to_remote else (my_pitch, their_pitch)
            copied: Any = ctypes.byref(_capi.iris_rows(rows=rows[0], row_bytes=length, dst_pitch_bytes=pitches[0],
                                                       src_pitch_bytes=pitches[1]))
            function = library.iris_put_rows_async if to_remote else library.iris_get_rows_async
        else:
            copied = mine.nbytes
            function = library.iris_put_async if to_remote else library.iris_get_async
        function(self.handle, to, source, copied, rank, where.handle, self._signal(signal))
        if waits:
            where.synchronize()
        elif stream is not None or self.capturing:
            where.keep(local, remote)

    def put(self, dst: Tensor, src: Any, to: int, *, stream: Any = None, signal: Any = None) -> None:
        """Copies `src` into rank `to`'s copy of `dst`, by the device's copy engine. Either may be a tile of a tensor of
        Iris: a view whose rows are contiguous; memory between the rows stays as it is. A signal (word, value, "set" or
        "add") changes that rank's copy of the word once all bytes have arrived. Without a stream the call waits until
        the copy is done; see collectives."""
        self._transfer("put", dst, src, to, stream, signal)

    def get(self, dst: Any, src: Tensor, source: int, *, stream: Any = None, signal: Any = None) -> None:
        """Copies rank `source`'s copy of `src` into `dst`. A signal changes that rank's copy of the word once all
        bytes have been read."""
        self._transfer("get", src, dst, source, stream, signal)

    def signal(self, word: Tensor, value: int, to: int, op: str = "set", *, stream: Any = None) -> None:
        """Sets rank `to`'s copy of a 64-bit word, or adds to it, after earlier work on the stream."""
        self.check_rank(to, "signal: ")
        signal = self._signal((word, value, op))
        where, waits = self.stream_for(stream)
        _capi.library().iris_put_async(self.handle, word.symmetric_ptr(), None, 0, to, where.handle, signal)
        if waits:
            where.synchronize()

    def _check_word(self, word: Any) -> Any:
        if not isinstance(word, Tensor) or word.dtype not in (DType.U64, DType.I64) or word.count < 1:
            raise InvalidArgumentError("the word of a signal is a tensor of the heap with elements of uint64 or int64: "
                                       "its first one is meant")
        if word.context is not self:
            raise InvalidArgumentError("the word of a signal is of another context: use one of the context that is "
                                       "called")
        return ctypes.cast(word.symmetric_ptr(), ctypes.POINTER(ctypes.c_uint64))

    def prepare_signals(self) -> None:
        """Loads the signals' kernel now: call it before a kernel runs that waits for a signal of put or get."""
        _capi.library().iris_prepare_signals(self.handle)

    def read_word(self, word: Tensor) -> int:
        """Returns the present value of a 64-bit word of the heap, read by the host."""
        self._check_word(word)
        if self.on_host:
            return ctypes.cast(word.data_ptr(), ctypes.POINTER(ctypes.c_uint64))[0]
        value = ctypes.c_uint64()
        if not hasattr(self, "_polling"):
            self._polling = Stream(self)
        _capi.library().iris_copy_async(ctypes.addressof(value), word.data_ptr(), 8, self._polling.handle)
        self._polling.synchronize()
        return value.value

    def wait_signal(self, word: Tensor, value: int, compare: str = "ge", *, timeout: Optional[float] = None) -> int:
        """Waits on the host until this rank's word is eq, ne, gt, ge, lt or le `value`, and returns the word. Raises
        DeadlineExceededError if that does not happen in time, and AbortedError if a rank dies or leaves meanwhile."""
        if compare not in _COMPARISONS:
            raise InvalidArgumentError(f"compare={compare!r}: one of {', '.join(_COMPARISONS)} is wanted")
        limit = self.timeout if timeout is None else timeout
        end = time.monotonic() + limit
        pause = 0.0
        next_health = time.monotonic() + 0.05
        while True:
            there = self.read_word(word)
            if _COMPARISONS[compare](there, value % 2**64):
                return there
            now = time.monotonic()
            if now > end:
                raise DeadlineExceededError(f"a signal word of rank {self.rank} holds {there} after {limit:g} s, and "
                                            f"not {compare} {value}: look at the rank that was to send it")
            if now > next_health:
                self.health()
                next_health = now + 0.05
            time.sleep(pause)
            pause = min(pause + 1e-6, 1e-3)

    def log(self, level: int, message: Any) -> None:
        """Logs one line. The log record has iris_rank and iris_num_ranks for the program's own formatters."""
        if logger.isEnabledFor(level):
            record = logger.makeRecord("iris", level, "", 0, "%s", (message,), None)
            record.iris_rank, record.iris_num_ranks = self.rank, self.n_ranks
            logger.handle(record)


def current_context() -> Optional[Context]:
    """Returns the context that was made last, if it is not closed."""
    context = _latest() if _latest is not None else None
    return context if context is not None and not context.closed else None


def latest_context(context: Optional[Context], what: str) -> Context:
    """Returns the context of an argument; None: the one made last. Raises FailedPreconditionError if there is none."""
    found = context or current_context()
    if found is None:
        raise FailedPreconditionError(f"{what}: there is no context: make one first")
    return found


def mem_pool(context: Optional[Context] = None) -> "_foreign.MemPool":
    """Returns a memory pool for torch in the heap of the context, or of the one made last. Not collective. Raises
    FailedPreconditionError without a context, on emulated devices, or if torch is older than 2.5."""
    return _foreign.MemPool(latest_context(context, "mem_pool()"))
